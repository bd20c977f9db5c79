"""Sets of generations, held as spans without a gap: of a million of them a few hundred numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final


@dataclass(frozen=True, slots=True)
class Spans(Collection[int]):
    """``spans``: (first, last) of each, both in it, ascending and with a gap between one and the next."""

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ascending: Iterable[int]) -> Spans:
        return _merged((each, each) for each in ascending)

    @property
    def first(self) -> int | None:
        return self.spans[0][0] if self.spans else None

    @property
    def last(self) -> int | None:
        return self.spans[-1][1] if self.spans else None

    def upto(self, last: float) -> Spans:
        """Those that are not above this one."""
        found = ((a, int(min(b, last))) for a, b in self.spans if a <= last)
        return Spans(tuple(found))

    def above(self, first: float) -> Spans:
        found = ((a, b) for a, b in self.spans if b > first)
        return Spans(tuple((int(max(a, first + 1)), b) for a, b in found))

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int):
            return False
        at = bisect_right(self.spans, value, key=lambda span: span[0]) - 1
        return at >= 0 and value <= self.spans[at][1]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(a, b + 1) for a, b in self.spans)

    def __len__(self) -> int:
        return sum(b - a + 1 for a, b in self.spans)


NO_SPANS: Final = Spans()


def union(several: Iterable[Spans]) -> Spans:
    return _merged(sorted(chain.from_iterable(each.spans for each in several)))


def _merged(ascending: Iterable[tuple[int, int]]) -> Spans:
    found: list[tuple[int, int]] = []
    for first, last in ascending:
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return Spans(tuple(found))

"""Which sequence numbers of a process are stored: sorted, disjoint stretches with both ends included."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Intervals:
    """Almost always one stretch; more only where the client thinned or a batch came late."""

    def __init__(self, stretches: Iterable[tuple[int, int]] = ()) -> None:
        self._stretches: list[tuple[int, int]] = []
        for first, last in stretches:
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._stretches)

    def add(self, first: int, last: int) -> None:
        """Add a stretch; neighbours and overlaps grow together."""
        at = bisect_right(self._stretches, (first, last))
        if at and self._stretches[at - 1][1] >= first - 1:
            at -= 1
            first = self._stretches[at][0]
        end = at
        while end < len(self._stretches) and self._stretches[end][0] <= last + 1:
            last = max(last, self._stretches[end][1])
            end += 1
        self._stretches[at:end] = [(first, last)]

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of a stretch that are not stored."""
        gaps = []
        at = bisect_right(self._stretches, (first, last))
        if at and self._stretches[at - 1][1] >= first:
            at -= 1
        for low, high in self._stretches[at:]:
            if low > last:
                break
            if low > first:
                gaps.append((first, low - 1))
            first = max(first, high + 1)
        if first <= last:
            gaps.append((first, last))
        return gaps

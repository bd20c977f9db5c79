"""What a program of JavaScript in Node keeps beside its tensors, as far as its collector has shown.

V8 collects in earnest seldom: meanwhile its heap and the buffers outside grow by what is garbage already, and resident
memory follows them and stays at their highest. What is there right after such a collection is kept; of what lies above
nothing is known, but for what V8 would not let lie. Resident memory above the highest that V8 has held is of native
code.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ..javascript_runs import EXTERNAL_BYTES, HEAP_BYTES, RESIDENT_BYTES, TENSOR_BYTES
from ..run_history import Value
from ..timeline import END, Lane, fill_gaps

MIB: Final = 2**20
# Outside the heap a collection in earnest shows by a fall of so much over a generation, to a generation's rise below
# what the last ones led to at the usual rate: where young buffers that wait go after a high reading, it is back on it.
_LEAST_TAKEN: Final = MIB // 2
_LOOKED_BACK: Final = 3
# In the heap by more than the young objects in it, which go all the time. Of those, each floor holds some.
YOUNG: Final = 16 * MIB
# What V8 lets lie at most: its heap grows to four times what it kept, buffers outside by 64 MiB.
_HEAP_GROWS: Final = 3.0
_OUTSIDE_GROWS: Final = 64 * MIB
# So many floors are a trend; fewer, where each lies above the one before by more than the young objects.
_FLOORS: Final = 4
_CLEAR_FLOORS: Final = 3
# What lies in a floor and is not kept is seldom still there two collections later.
_LOWER_AFTER: Final = 2


def is_told(lane: Lane) -> bool:
    """Whether all that V8 manages is read; without it resident memory is all there is to go by."""
    return all(map(lane.has, (HEAP_BYTES, EXTERNAL_BYTES, RESIDENT_BYTES)))


@dataclass(frozen=True, slots=True)
class Beside:
    """Bytes per generation beside the tensors: those that V8 is known to keep, and those of native code.

    ``told``: of the generations those up to the last that V8 has told something of; 0 while that is too little.
    ``longest_gap``: generations between two of which it has.
    """

    kept: tuple[float, ...]
    native: tuple[float, ...]
    told: int
    longest_gap: int


def beside_tensors(lane: Lane) -> Beside:
    """Between two collections what is kept lies on a straight line; after the last one it stands, and is not known."""
    kept, native = _kept_and_native(lane)
    told = _told_upto(kept)
    floors = [value for value in kept if value is not None]
    level = (
        _on_lines([*kept[:told], *[None] * (len(kept) - told)])
        if told
        else floors[:1] * len(kept) or [0.0] * len(kept)
    )
    return Beside(tuple(level), tuple(native), told, _longest_gap(kept))


def told_for_good(lane: Lane, upto: int) -> int:
    """Of the first ``upto`` generations those whose values no later collection changes."""
    kept = _kept_and_native(lane)[0][:upto]
    return _known(kept)[-_LOWER_AFTER - 1] + 1 if _told_upto(kept) else 0


def _told_upto(kept: Sequence[Value]) -> int:
    """Behind the last floor but one, where enough are: few are no trend, and the last may be lowered most."""
    floors = [value for value in kept if value is not None]
    clear = len(floors) >= _CLEAR_FLOORS and all(b - a > YOUNG for a, b in pairwise(floors))
    if len(floors) < _FLOORS and not clear:
        return 0
    return _known(kept)[-2] + 1


def _known(kept: Sequence[Value]) -> list[int]:
    return [i for i, value in enumerate(kept) if value is not None]


def _longest_gap(kept: Sequence[Value]) -> int:
    return max((b - a for a, b in pairwise(_known(kept))), default=0)


def _on_lines(kept: Sequence[Value]) -> list[float]:
    filled = fill_gaps(kept)
    for a, b in pairwise(_known(kept)):
        for i in range(a + 1, b):
            filled[i] = filled[a] + (filled[b] - filled[a]) * (i - a) / (b - a)
    return filled


def _kept_and_native(lane: Lane) -> tuple[list[Value], list[float]]:
    """Per generation, bytes: what V8 is known to keep beside the tensors, None where it is not; what is native."""
    kept: list[Value] = [None] * len(lane.kind)
    native: list[Value] = [None] * len(lane.kind)
    first = 0
    for row in range(1, len(lane.kind) + 1):
        if row == len(lane.kind) or lane.segment[row] != lane.segment[first]:
            _read(lane, range(first, row), kept, native)
            first = row
    return _lowered(lane.at_ends(kept)), fill_gaps(lane.at_ends(native))


def _lowered(kept: Sequence[Value]) -> list[Value]:
    """What is kept at one collection is no more than what the next ones find, but for what was freed between."""
    found, known = list(kept), _known(kept)
    for i, at in enumerate(known):
        found[at] = min(kept[later] for later in known[i : i + _LOWER_AFTER + 1])  # type: ignore[type-var]
    return found


def _read(lane: Lane, rows: range, kept: list[Value], native: list[Value]) -> None:
    """Of one attempt, into the rows that end its generations."""
    heap, outside, resident, tensors = (
        fill_gaps(lane.series.get(name, ())[rows.start : rows.stop])
        for name in (HEAP_BYTES, EXTERNAL_BYTES, RESIDENT_BYTES, TENSOR_BYTES)
    )
    if not (heap and outside and resident and tensors):
        return
    beside = [h + o - t for h, o, t in zip(heap, outside, tensors, strict=True)]
    ends = [row - rows.start for row in lane.end_rows if row in rows]
    collector = _Collector(heap, outside, beside)
    before, highest = 0, beside[0]
    for position, end in enumerate(ends):
        highest = max(highest, *beside[before : end + 1])
        native[rows.start + end] = resident[end] - tensors[end] - highest
        last = position == len(ends) - 1
        if not last or lane.kind[rows.start + end] == END:
            kept[rows.start + end] = collector.after(before, end)
        before = end + 1


class _Collector:
    """Follows V8 from the end of one generation to that of the next."""

    def __init__(
        self, heap: Sequence[float], outside: Sequence[float], beside: Sequence[float]
    ) -> None:
        self.heap, self.outside, self.beside = heap, outside, beside
        self.heap_kept, self.kept = heap[0], beside[0]
        # The ends of generations so far, and by how much buffers rose in those in which they did, in order of size.
        self.ends: list[int] = []
        self.rises: list[float] = []

    def after(self, begin: int, end: int) -> Value:
        """What is known to be kept at the end of the generation of these readings; None when nothing is."""
        seen = bool(self.ends) and self._has_collected(end)
        if self.ends and (rose := self.outside[end] - self.outside[self.ends[-1]]) > 0:
            insort(self.rises, rose)
        self.ends.append(end)
        if seen:
            at = min(range(begin, end + 1), key=self.beside.__getitem__)
            self.kept, self.heap_kept = self.beside[at], self.heap[at]
            return self.kept
        more = self.beside[end] - _HEAP_GROWS * self.heap_kept - _OUTSIDE_GROWS
        return more if more > self.kept else None

    def _has_collected(self, end: int) -> bool:
        """Whether the heap lost more than the young, or buffers fell below what each of the last generations led to."""
        if self.heap[self.ends[-1]] - self.heap[end] > YOUNG:
            return True
        usual = self.rises[len(self.rises) // 2] if self.rises else 0.0
        fell = self.outside[self.ends[-1]] - self.outside[end]
        return fell >= _LEAST_TAKEN and all(
            self.outside[end] < self.outside[before] + more * usual
            for more, before in enumerate(self.ends[-1 : -_LOOKED_BACK - 1 : -1])
        )

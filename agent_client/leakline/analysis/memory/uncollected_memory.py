"""Memory that a collector has not freed yet: reference cycles in Python, and the heap of V8 in Node.

Reference cycles that wait for the collector are distinguished from live objects: are they what grows?

V8 rarely runs a full collection: meanwhile its heap and the buffers outside it grow by garbage, and resident memory
follows them and stays at their highest. Memory right after such a collection is live; nothing is known of memory above
that, but for the bound on garbage that V8 leaves uncollected. Resident memory above the highest that V8 has held is of
native code.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from ...snapshot import CYCLIC_GARBAGE
from ...text_format import format_count
from ..attribution.candidates import Candidate, Place, family_of, scaled
from ..attribution.causes import Cause
from ..run_history import EXTERNAL_BYTES, HEAP_BYTES, RESIDENT_BYTES, TENSOR_BYTES, Holders, Value
from ..series_facts import Facts
from ..statistics.count_evidence import CountGrowth, count_growth
from ..statistics.trend import Slope, floor_slope
from ..timeline import END, Timeline, fill_gaps

_OBJECTS: Final = "python.garbage_objects"
_BYTES: Final = "python.garbage_bytes"
_LOOKED_AT: Final = "python.garbage_looked_at"
_WHOLE: Final = "python.garbage_is_whole"
_ENABLED: Final = "python.collector_enabled"
_PENDING: Final = "python.collector_pending"
# Fewer wait at any time in any program.
_MATTERS: Final = 1_000
_LOOKS: Final = 4
# Garbage that falls below this share of what it was has been collected.
_COLLECTED: Final = 0.5
# A look at the newest objects alone sees no more than those; what it sees is what grows when it is this much of them.
_MOSTLY: Final = 0.5
# A look at the newest that goes through more objects than another by this factor reaches older ones, too.
_FURTHER: Final = 1.5
# Bytes of garbage that are at least this share of a growth explain it.
_EXPLAINS: Final = 0.30
_WINDOW: Final = 64
_TYPES_NAMED: Final = 3
# A class of which less than this share of the most frequent type is garbage does not stand for the rest.
_FEW: Final = 0.1


@dataclass(frozen=True, slots=True)
class Waiting:
    """Garbage that is not being collected: ``objects`` at the newest look, and how they grow.

    ``objects`` is None where nobody looked, or what was seen does not grow; then a holder path alone may tell.
    """

    objects: float | None = None
    growth: CountGrowth | None = None
    bytes_rate: float = 0.0  # per generation; 0 where it is not known
    mostly: bool = False  # most of the newest objects are garbage
    least: bool = False  # only the newest objects were looked at
    collector_off: bool = False

    def sentence(self, unit: str) -> str:
        """One line of evidence."""
        off = " The collector is switched off." if self.collector_off else ""
        if self.objects is None:
            return f"Nothing but each other refers to them: only the collector can free them.{off}"
        more = f", {format_count(self.growth.slope)} more per {unit}" if self.growth else ""
        least = "At least " if self.least else ""
        return (
            f"{least}{format_count(self.objects)} objects wait for the collector{more}: "
            f"nothing but each other refers to them.{off}"
        )


def waiting_of(timeline: Timeline) -> Waiting:
    """What is known of the garbage of a timeline; without ``objects`` when no look says that it grows."""
    off = _newest(timeline, _ENABLED) == 0
    nothing = Waiting(collector_off=off)
    if not timeline.has(_OBJECTS):
        return nothing
    x, counts = timeline.points(_OBJECTS, newest=_WINDOW)
    recent = counts[-_LOOKS:]
    fell = any(b < _COLLECTED * a for a, b in pairwise(recent))
    if len(recent) < _LOOKS or recent[-1] < _MATTERS or fell:
        return nothing
    if _newest(timeline, _WHOLE) != 0:
        growth = count_growth(x, counts, None, timeline.spacing(len(timeline)))
        rate = max(0.0, floor_slope(*timeline.points(_BYTES, newest=_WINDOW)).estimate)
        return nothing if growth is None else Waiting(recent[-1], growth, rate, False, False, off)
    share = recent[-1] / max(1.0, _newest(timeline, _LOOKED_AT) or 0.0)
    if share >= _MOSTLY:
        return _by_share(timeline, recent[-1], share, off)
    return _among_the_newest(timeline, recent[-1]) if off else nothing


def _among_the_newest(timeline: Timeline, objects: float) -> Waiting:
    """Where nothing is collected and looks reach no further back than before: what there is more of has come since."""
    _, reached = timeline.points(_LOOKED_AT, newest=_WINDOW)
    growth = count_growth(
        *timeline.points(_OBJECTS, newest=_WINDOW), None, timeline.spacing(len(timeline))
    )
    if growth is None or not reached or reached[-1] > _FURTHER * min(reached):
        return Waiting(collector_off=True)
    rate = max(0.0, floor_slope(*timeline.points(_BYTES, newest=_WINDOW)).estimate)
    return Waiting(objects, growth, rate, False, True, True)


def _by_share(timeline: Timeline, objects: float, share: float, off: bool) -> Waiting:
    """Where only the newest objects are looked at: while the collector is off, what waits for it is counted apart."""
    pending = off and timeline.has(_PENDING)
    spacing = timeline.spacing(len(timeline))
    found = (
        count_growth(*timeline.points(_PENDING, newest=_WINDOW), None, spacing) if pending else None
    )
    if found is None:
        return Waiting(objects, None, 0.0, True, True, off)
    growth = scaled(found, share)
    each = (_newest(timeline, _BYTES) or 0.0) / objects
    return Waiting(objects, growth, growth.slope * each, True, True, off)


def _newest(timeline: Timeline, series: str) -> float | None:
    known = [float(v) for v in timeline.series.get(series, ()) if v is not None]
    return known[-1] if known else None


def garbage_of(cause: Cause, facts: Facts, waiting: Waiting) -> Cause | None:
    """The same cause as what it is when garbage is what grows; None when it is not."""
    owner = cause.owner
    if owner is not None and owner.role == "type":
        in_cycles = facts.holders.get(owner.name) == CYCLIC_GARBAGE or (
            waiting.mostly and owner.name in facts.history.holders_by_type.garbage_types
        )
        if in_cycles:
            return replace(cause, kind="cyclic_garbage")
    # Numbers and strings follow whoever holds them: in cycles, too, they are what the cycles hold.
    nameless = owner is None or owner.family == "plain"
    if not nameless or cause.kind not in ("native", "objects") or waiting.objects is None:
        return None
    if waiting.bytes_rate < _EXPLAINS * cause.rate.estimate and not (waiting.mostly and not owner):
        return None
    growth = waiting.growth or no_growth(0.0)
    members = members_of(facts.history.holders_by_type, cause.place, growth, waiting.bytes_rate)
    measured = min(waiting.bytes_rate, cause.rate.estimate) or None
    names = {member.name for member in members}
    members += tuple(member for member in cause.members if member.name not in names)
    return replace(cause, kind="cyclic_garbage", members=members, measured=measured)


def may_pass(cause: Cause, facts: Facts, waiting: Waiting, window: float, end: int) -> bool:
    """Whether a collection may still free most of it, for the collector runs.

    Garbage of which little waits, or a growth that is no more than what waits, of no name or of a class that was seen
    in it: such garbage rises for many generations where its objects and the collector's threshold keep a slow beat.
    """
    timeline, owner = facts.timeline, cause.owner
    _, enabled = timeline.points(_ENABLED, end) if timeline.has(_ENABLED) else ([], [])
    if enabled and not enabled[-1]:
        return False
    in_cycles = cause.kind == "cyclic_garbage"
    if in_cycles and waiting.objects is not None:
        return False
    nameless = owner is None or owner.family == "plain"
    seen = owner is not None and owner.name in facts.history.holders_by_type.garbage_types
    if not timeline.has(_BYTES) or not (in_cycles or nameless or seen):
        return False
    _, found = timeline.points(_BYTES, end)
    return bool(found) and found[-1] >= _EXPLAINS * cause.rate.estimate * window


def together(first: Cause, second: Cause) -> Cause:
    """Two causes that are one: what lies in cycles drags along what it refers to. The program's own class leads."""
    a, b = first.rate, second.rate
    rate = Slope(a.estimate + b.estimate, a.low + b.low, a.high + b.high, max(a.points, b.points))
    measured = (first.measured or 0.0) + (second.measured or 0.0)
    names = {member.name for member in first.members}
    more = tuple(member for member in second.members if member.name not in names)
    members = sorted((*first.members, *more), key=lambda member: member.family != "object")
    return replace(first, members=tuple(members), measured=measured or None, rate=rate)


def no_growth(each: float) -> CountGrowth:
    """So many in each generation, without anything known of a beginning or a pattern."""
    return CountGrowth("irregular", each, each, each, 0, 0, 0, 0, 1, each)


def _telling(types: Mapping[str, int]) -> list[str]:
    """The program's own classes before the lists and dictionaries they hold, which are as many; then the most."""
    few = _FEW * max(types.values(), default=0)

    def rank(name: str) -> tuple[bool, int]:
        own = family_of(name, "type") == "object" and types[name] >= few
        return not own, -types[name]

    return sorted(types, key=rank)


def members_of(
    holders: Holders, place: Place, growth: CountGrowth, bytes_rate: float
) -> tuple[Candidate, ...]:
    """The types of the garbage that tell most, each with its share of the growth."""
    types = holders.garbage_types
    total = sum(types.values())
    found = []
    for name in _telling(types)[:_TYPES_NAMED]:
        share = types[name] / total
        own = scaled(growth, share)
        family = family_of(name, "type")
        found.append(
            Candidate(
                name, "type", family, own, place, bytes_rate * share or None, False, False, CYCLIC_GARBAGE
            )
        )  # fmt: skip
    return tuple(found)


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
# What lies in a floor and is not kept is rarely still there two collections later.
_LOWER_AFTER: Final = 2


def is_known(timeline: Timeline) -> bool:
    """Whether all that V8 manages is read; without it resident memory is all there is to go by."""
    return all(map(timeline.has, (HEAP_BYTES, EXTERNAL_BYTES, RESIDENT_BYTES)))


@dataclass(frozen=True, slots=True)
class NonTensorGrowth:
    """Bytes per generation outside the tensors: those that V8 is known to keep, and those of native code.

    ``known_until``: the generations up to the last of which V8 has reported anything; 0 while that is too little.
    ``longest_gap``: generations between two of which it has.
    """

    kept: tuple[float, ...]
    native: tuple[float, ...]
    known_until: int
    longest_gap: int


def outside_tensors(timeline: Timeline) -> NonTensorGrowth:
    """Between two collections what is kept lies on a straight line; after the last one it stands, and is not known."""
    kept, native = _kept_and_native(timeline)
    known_until = _known_until(kept)
    floors = [value for value in kept if value is not None]
    level = (
        _on_lines([*kept[:known_until], *[None] * (len(kept) - known_until)])
        if known_until
        else floors[:1] * len(kept) or [0.0] * len(kept)
    )
    return NonTensorGrowth(tuple(level), tuple(native), known_until, _longest_gap(kept))


def final_until(timeline: Timeline, end: int) -> int:
    """Of the first ``end`` generations those whose values no later collection changes."""
    kept = _kept_and_native(timeline)[0][:end]
    return _known(kept)[-_LOWER_AFTER - 1] + 1 if _known_until(kept) else 0


def _known_until(kept: Sequence[Value]) -> int:
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


def _kept_and_native(timeline: Timeline) -> tuple[list[Value], list[float]]:
    """Per generation, bytes: what V8 is known to keep outside the tensors, None where it is not; what is native."""
    kept: list[Value] = [None] * len(timeline.kind)
    native: list[Value] = [None] * len(timeline.kind)
    first = 0
    for row in range(1, len(timeline.kind) + 1):
        if row == len(timeline.kind) or timeline.segment[row] != timeline.segment[first]:
            _read(timeline, range(first, row), kept, native)
            first = row
    return _lowered(timeline.at_ends(kept)), fill_gaps(timeline.at_ends(native))


def _lowered(kept: Sequence[Value]) -> list[Value]:
    """What is kept at one collection is no more than what the next ones find, but for what was freed between."""
    found, known = list(kept), _known(kept)
    for i, at in enumerate(known):
        found[at] = min(kept[later] for later in known[i : i + _LOWER_AFTER + 1])  # type: ignore[type-var]
    return found


def _read(timeline: Timeline, rows: range, kept: list[Value], native: list[Value]) -> None:
    """Of one attempt, into the rows that end its generations."""
    heap, outside, resident, tensors = (
        fill_gaps(timeline.series.get(name, ())[rows.start : rows.stop])
        for name in (HEAP_BYTES, EXTERNAL_BYTES, RESIDENT_BYTES, TENSOR_BYTES)
    )
    if not (heap and outside and resident and tensors):
        return
    without_tensors = [h + o - t for h, o, t in zip(heap, outside, tensors, strict=True)]
    ends = [row - rows.start for row in timeline.end_rows if row in rows]
    collector = _Collector(heap, outside, without_tensors)
    before, highest = 0, without_tensors[0]
    for position, end in enumerate(ends):
        highest = max(highest, *without_tensors[before : end + 1])
        native[rows.start + end] = resident[end] - tensors[end] - highest
        last = position == len(ends) - 1
        if not last or timeline.kind[rows.start + end] == END:
            kept[rows.start + end] = collector.after(before, end)
        before = end + 1


class _Collector:
    """Follows V8 from the end of one generation to that of the next."""

    def __init__(
        self, heap: Sequence[float], outside: Sequence[float], without_tensors: Sequence[float]
    ) -> None:
        self.heap, self.outside, self.without_tensors = heap, outside, without_tensors
        self.heap_kept, self.kept = heap[0], without_tensors[0]
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
            at = min(range(begin, end + 1), key=self.without_tensors.__getitem__)
            self.kept, self.heap_kept = self.without_tensors[at], self.heap[at]
            return self.kept
        more = self.without_tensors[end] - _HEAP_GROWS * self.heap_kept - _OUTSIDE_GROWS
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

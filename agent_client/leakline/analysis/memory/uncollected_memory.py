"""Memory that a collector has not freed yet: reference cycles in Python, and the heap of V8 in Node.

Reference cycles that wait for the collector are distinguished from live objects, to decide whether garbage or live
memory grows.

V8 rarely runs a full collection. Between two full collections, garbage accumulates in V8's heap and in the buffers
outside the heap, and resident memory rises and stays at its maximum. Memory right after a full collection is live.
Nothing is known about memory above that level, except the upper bound on garbage that V8 leaves uncollected.
Resident memory above the maximum that V8 has held belongs to native code.
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
# Fewer waiting objects than this are normal in any program.
_MATTERS: Final = 1_000
_LOOKS: Final = 4
# Garbage that falls below this share of its earlier amount has been collected.
_COLLECTED: Final = 0.5
# A scan of only the newest objects misses older garbage; garbage counts as what grows if it is this share of the
# newest objects.
_MOSTLY: Final = 0.5
# If one scan of the newest objects covers this many times as many objects as another, it also reaches older objects.
_FURTHER: Final = 1.5
# Garbage explains memory growth if it accounts for at least this share of the growth.
_EXPLAINS: Final = 0.30
_WINDOW: Final = 64
_TYPES_NAMED: Final = 3
# An object that grows with at least so many types of garbage is garbage as well.
_SOME: Final = 2
# A class represents the garbage only if it has at least this share of the most frequent type's objects.
_FEW: Final = 0.1


@dataclass(frozen=True, slots=True)
class Waiting:
    """Garbage that waits for the collector: the number of ``objects`` at the newest scan, and its growth.

    ``objects`` is None without a scan or without growth; garbage may then be shown only by a holder path.
    """

    objects: float | None = None
    growth: CountGrowth | None = None
    bytes_rate: float = 0.0  # per generation; 0 if unknown
    mostly: bool = False  # most of the newest objects are garbage
    least: bool = False  # only the newest objects were scanned
    collector_off: bool = False

    def sentence(self, unit: str) -> str:
        """Return the evidence as one line of text."""
        off = " The collector is switched off." if self.collector_off else ""
        if self.objects is None:
            return (
                f"The objects refer only to each other, so only the collector can free them.{off}"
            )
        more = f", {format_count(self.growth.slope)} more per {unit}" if self.growth else ""
        least = "At least " if self.least else ""
        return (
            f"{least}{format_count(self.objects)} objects wait for the collector{more}: "
            f"they refer only to each other.{off}"
        )


def waiting_of(timeline: Timeline) -> Waiting:
    """Return the garbage that waits for the collector in a timeline.

    ``objects`` is None if no scan shows that the garbage grows.
    """
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
    """Return the garbage among the newest objects while the collector is off.

    If scans reach no further back than before, any additional garbage is new.
    """
    _, reached = timeline.points(_LOOKED_AT, newest=_WINDOW)
    growth = count_growth(
        *timeline.points(_OBJECTS, newest=_WINDOW), None, timeline.spacing(len(timeline))
    )
    if growth is None or not reached or reached[-1] > _FURTHER * min(reached):
        return Waiting(collector_off=True)
    rate = max(0.0, floor_slope(*timeline.points(_BYTES, newest=_WINDOW)).estimate)
    return Waiting(objects, growth, rate, False, True, True)


def _by_share(timeline: Timeline, objects: float, share: float, off: bool) -> Waiting:
    """Return the garbage and its growth, estimated from its share of the newest objects.

    Uncollected objects are counted only while the collector is off; otherwise no growth is returned.
    """
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
    """Return the cause reclassified as cyclic garbage if garbage grows, otherwise None."""
    owner = cause.owner
    if owner is not None and owner.role == "type":
        in_cycles = facts.holders.get(owner.name) == CYCLIC_GARBAGE or (
            waiting.mostly and owner.name in facts.history.holders_by_type.garbage_types
        )
        if in_cycles or (waiting.objects is not None and _comes_with_garbage(cause, facts)):
            return replace(cause, kind="cyclic_garbage")
    # Numbers and strings grow with the objects that hold them, so in garbage they belong to the cycles.
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


def _comes_with_garbage(cause: Cause, facts: Facts) -> bool:
    """Return True if the owner has no known holder, and everything known that grows with it is garbage.

    Only the most frequent types of garbage are recorded, and a closed figure has hundreds of other objects.
    """
    owner, *others = cause.members
    holders = [facts.holders.get(other.name) for other in others if other.role == "type"]
    known = [holder for holder in holders if holder is not None]
    return owner.holder is None and len(known) >= _SOME and set(known) == {CYCLIC_GARBAGE}


def may_pass(cause: Cause, facts: Facts, waiting: Waiting, window: float, end: int) -> bool:
    """Return True if a collection may still free most of the growth, because the collector is running.

    This applies if the bytes of garbage explain the growth, and the growth is garbage, has no name, or is of a class
    seen in garbage. Such garbage may rise for many generations if it reaches the collector's threshold slowly.
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
    """Merge two causes into one, because garbage keeps other objects alive.

    Classes of the program are listed first.
    """
    a, b = first.rate, second.rate
    rate = Slope(a.estimate + b.estimate, a.low + b.low, a.high + b.high, max(a.points, b.points))
    measured = (first.measured or 0.0) + (second.measured or 0.0)
    names = {member.name for member in first.members}
    more = tuple(member for member in second.members if member.name not in names)
    members = sorted((*first.members, *more), key=lambda member: member.family != "object")
    return replace(first, members=tuple(members), measured=measured or None, rate=rate)


def no_growth(each: float) -> CountGrowth:
    """Return a growth of ``each`` per generation without a known start or pattern."""
    return CountGrowth("irregular", each, each, each, 0, 0, 0, 0, 1, each)


def _telling(types: Mapping[str, int]) -> list[str]:
    """Return the types, most informative first.

    Frequent classes of the program precede all other types, because the lists and dictionaries that their objects
    hold are just as frequent.
    """
    few = _FEW * max(types.values(), default=0)

    def rank(name: str) -> tuple[bool, int]:
        own = family_of(name, "type") == "object" and types[name] >= few
        return not own, -types[name]

    return sorted(types, key=rank)


def members_of(
    holders: Holders, place: Place, growth: CountGrowth, bytes_rate: float
) -> tuple[Candidate, ...]:
    """Return the most informative types of the garbage, each with its share of the growth."""
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
# Outside the heap, a full collection shows as a drop of at least this much in one generation, to a level below the
# trend of each of the last generations by at least one usual rise. If only young buffers are freed after a high
# reading, memory just returns to the trend.
_LEAST_TAKEN: Final = MIB // 2
_LOOKED_BACK: Final = 3
# In the heap, a full collection shows as a drop by more than the young objects, which are freed all the time. Each
# floor still contains some young objects.
YOUNG: Final = 16 * MIB
# Upper bound on garbage that V8 leaves uncollected: 3 times the live heap, and 64 MiB of external buffers.
_HEAP_GROWS: Final = 3.0
_OUTSIDE_GROWS: Final = 64 * MIB
# This many floors make a trend; fewer floors are enough if each is above the previous floor by more than the size of
# the young objects.
_FLOORS: Final = 4
_CLEAR_FLOORS: Final = 3
# Garbage that is still part of a floor is usually gone two collections later.
_LOWER_AFTER: Final = 2


def is_known(timeline: Timeline) -> bool:
    """Return True if all memory that V8 manages is read; otherwise only resident memory can be judged."""
    return all(map(timeline.has, (HEAP_BYTES, EXTERNAL_BYTES, RESIDENT_BYTES)))


@dataclass(frozen=True, slots=True)
class NonTensorGrowth:
    """Bytes outside the tensors by generation: bytes that V8 is known to keep, and bytes of native code.

    ``known_until``: number of generations up to the last one with a reliable value; 0 while there are too few.
    ``longest_gap``: the largest distance between two generations with known values.
    """

    kept: tuple[float, ...]
    native: tuple[float, ...]
    known_until: int
    longest_gap: int


def outside_tensors(timeline: Timeline) -> NonTensorGrowth:
    """Return the memory outside the tensors.

    Kept memory is interpolated between two collections; after the last collection it is unknown and the last known
    value repeats.
    """
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
    """Return how many of the first ``end`` generations have values that later collections cannot change."""
    kept = _kept_and_native(timeline)[0][:end]
    return _known(kept)[-_LOWER_AFTER - 1] + 1 if _known_until(kept) else 0


def _known_until(kept: Sequence[Value]) -> int:
    """Return the number of generations up to the second-to-last floor; 0 while there are too few floors for a trend.

    The last floor is ignored because later collections may lower it most.
    """
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
    """Return (bytes that V8 keeps outside the tensors, or None if unknown; bytes of native code) per generation."""
    kept: list[Value] = [None] * len(timeline.kind)
    native: list[Value] = [None] * len(timeline.kind)
    first = 0
    for row in range(1, len(timeline.kind) + 1):
        if row == len(timeline.kind) or timeline.segment[row] != timeline.segment[first]:
            _read(timeline, range(first, row), kept, native)
            first = row
    return _lowered(timeline.at_ends(kept)), fill_gaps(timeline.at_ends(native))


def _lowered(kept: Sequence[Value]) -> list[Value]:
    """Lower the memory kept at each collection to the minimum of the next collections; the excess was garbage."""
    found, known = list(kept), _known(kept)
    for i, at in enumerate(known):
        found[at] = min(kept[later] for later in known[i : i + _LOWER_AFTER + 1])  # type: ignore[type-var]
    return found


def _read(timeline: Timeline, rows: range, kept: list[Value], native: list[Value]) -> None:
    """Write the kept and native memory of one attempt into the rows that end its generations."""
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
    """A detector of V8's full collections, which reads one generation at a time."""

    def __init__(
        self, heap: Sequence[float], outside: Sequence[float], without_tensors: Sequence[float]
    ) -> None:
        self.heap, self.outside, self.without_tensors = heap, outside, without_tensors
        self.heap_kept, self.kept = heap[0], without_tensors[0]
        # Positions of the generation ends so far, and the rises of buffers between them, sorted by size.
        self.ends: list[int] = []
        self.rises: list[float] = []

    def after(self, begin: int, end: int) -> Value:
        """Return the memory that V8 is known to keep after rows ``begin`` to ``end``, or None if unknown."""
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
        """Return True if the heap lost more than its young objects, or buffers fell below the recent trend."""
        if self.heap[self.ends[-1]] - self.heap[end] > YOUNG:
            return True
        usual = self.rises[len(self.rises) // 2] if self.rises else 0.0
        fell = self.outside[self.ends[-1]] - self.outside[end]
        return fell >= _LEAST_TAKEN and all(
            self.outside[end] < self.outside[before] + more * usual
            for more, before in enumerate(self.ends[-1 : -_LOOKED_BACK - 1 : -1])
        )

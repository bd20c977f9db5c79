"""Expected counts: declared and accepted counts of classes, capacities of containers, and stable counts.

Declared and accepted counts are exact, so they are checked without statistics. The memory that a bounded container
holds within its declared capacity is not a leak and is subtracted before the analysis. A stable count did not
change in the last generations of a run; it becomes an expectation once a person accepts it.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import le
from statistics import median
from typing import Final

from ...snapshot import LARGEST_INTEGER
from ...text_format import short_name
from ..results import StableCount
from ..run_history import Expectation, RunHistory, Value
from ..timeline import Timeline, fill_gaps, timelines_of

COLLECTIONS: Final = "python.collections_full"
_READ_AFTER: Final = ("baseline", "phase_end", "generation_end", "manual")


@dataclass(frozen=True, slots=True)
class Readings:
    """The readings of one type in one timeline that are checked against an expectation.

    ``rows`` are the row numbers of ``counts``.
    """

    expectation: Expectation
    type: str
    rows: tuple[int, ...]
    counts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """An expectation that does not hold at its newest reading.

    ``proven``: the surplus outlived a full collection or was still there at the next reading, or collections are
    not recorded. ``count_before`` is the last reading within bounds, or None if there is no such reading.
    """

    expectation: Expectation
    type: str
    count: float
    first_count: float
    count_before: float | None
    first_row: int
    row_before: int | None
    proven: bool
    above: bool


def expected_text(expectation: Expectation) -> str:
    """Return ``2`` or ``16 to 17``, followed by ``after evolve_population`` if limited to a phase."""
    text = range_text(expectation)
    return text if expectation.after is None else f"{text} after {expectation.after}"


def range_text(expectation: Expectation) -> str:
    """Return ``2``, ``16 to 17`` or ``up to 567 (baseline)``.

    Return ``up to the baseline`` if the baseline has not been read yet.
    """
    low, high = expectation.low, expectation.high
    if expectation.baseline:
        return f"up to {high} (baseline)" if high < LARGEST_INTEGER else "up to the baseline"
    return str(low) if low == high else f"{low} to {high}"


def matching_types(timeline: Timeline, declared: str) -> tuple[str, ...]:
    """Return the types that a declared name matches, by full name or by class name alone."""
    types = types_of(timeline)
    if declared in types:
        return (declared,)
    return tuple(sorted(t for t in types if stands_for(declared, t)))


def stands_for(declared: str, name: str) -> bool:
    """Return True if a declared name may refer to this type."""
    return name == declared or name.endswith("." + declared) or name == short_name(declared)


def types_of(timeline: Timeline) -> set[str]:
    return {name for series in timeline.series if (name := counted_type(series)) is not None}


def counted_type(series: str) -> str | None:
    """Return the type whose instances a series counts, or None for any other series.

    Also return None for types of this library: their counts depend on what is monitored, and the library's memory
    is reported separately.
    """
    if not (series.startswith("type.") and series.endswith(".count")):
        return None
    name = series[len("type.") : -len(".count")]
    return None if name.startswith("leakline.") else name


def applicable_readings(
    timeline: Timeline, expectations: Iterable[Expectation]
) -> tuple[Readings, ...]:
    found = []
    for expectation in expectations:
        for name in matching_types(timeline, expectation.type):
            column = timeline.series[f"type.{name}.count"]
            known = [
                (row, float(value))
                for row, value in enumerate(column)
                if value is not None and applies(timeline, row, expectation.after)
            ]
            bound = expectation
            if expectation.baseline:
                bound, known = _since_baseline(timeline, expectation, known)
            rows, counts = tuple(r for r, _ in known), tuple(c for _, c in known)
            found.append(Readings(bound, name, rows, counts))
    return tuple(found)


def _since_baseline(
    timeline: Timeline, expectation: Expectation, known: list[tuple[int, float]]
) -> tuple[Expectation, list[tuple[int, float]]]:
    """Return the bound from the newest attempt's baseline, and the readings of that attempt.

    The baseline is the highest count up to the end of the first generation, because objects created in that
    generation, such as gradients and optimizer state, stay alive. A resumed program creates such objects again.
    """
    if not known:
        return expectation, known
    newest = timeline.segment[known[-1][0]]
    known = [(row, count) for row, count in known if timeline.segment[row] == newest]
    numbered = (g for row, _ in known if (g := timeline.generation[row]) is not None)
    first = next(numbered, None)
    by_then = [c for row, c in known if (g := timeline.generation[row]) is None or g == first]
    return replace(expectation, high=int(max(by_then))), known


def applies(timeline: Timeline, row: int, after: str | None) -> bool:
    """Return True if the count is expected at this row.

    ``after``: the phase after which the count is expected, or None for every reading.
    """
    if after is None:
        return timeline.kind[row] in _READ_AFTER
    phase = timeline.phase[row]
    if timeline.kind[row] != "phase_end" or phase is None:
        return False
    return phase == after or phase.endswith("/" + after)


def find_violation(timeline: Timeline, readings: Readings, last_row: int) -> Violation | None:
    """Return the violation at the newest reading up to ``last_row``.

    Return None if that reading is within bounds.
    """
    end = bisect_right(readings.rows, last_row)
    low, high = readings.expectation.low, readings.expectation.high
    if not end or low <= readings.counts[end - 1] <= high:
        return None
    above = readings.counts[end - 1] > high
    first = end - 1
    while first > 0 and _breaks(readings.counts[first - 1], low, high, above):
        first -= 1
    row = readings.rows[first]
    repeated = end - first >= 2
    proven = repeated or _outlived_collection(timeline, readings.type, row, last_row, high)
    return Violation(
        readings.expectation, readings.type, readings.counts[end - 1], readings.counts[first],
        readings.counts[first - 1] if first else None, row,
        readings.rows[first - 1] if first else None, proven, above,
    )  # fmt: skip


def _breaks(count: float, low: int, high: int, above: bool) -> bool:
    return count > high if above else count < low


def _outlived_collection(timeline: Timeline, name: str, row: int, last_row: int, high: int) -> bool:
    collections: Sequence[int | float | None] | None = timeline.series.get(COLLECTIONS)
    if collections is None or all(v is None for v in collections[: last_row + 1]):
        return True
    at_first = collections[row]
    counts = timeline.series[f"type.{name}.count"]
    for later in range(row + 1, last_row + 1):
        count, passed = counts[later], collections[later]
        if count is None or passed is None or at_first is None:
            continue
        if count > high and passed > at_first:
            return True
    return False


# A container is still filling if it gained more than this share of its capacity in the last generations.
_STILL_GROWING: Final = 1e-3
_RECENT: Final = 3
# Number of generations over which the growth of a container is compared with the growth of memory.
_SEEN: Final = 8
# If memory rose by less than this share of what a container gained, the container was preallocated.
_COMMITTED: Final = 0.5


# The name of all preallocated arrays together. Their items are bytes.
PREALLOCATED: Final = "preallocated arrays"


@dataclass(frozen=True, slots=True)
class Bounded:
    """A container with a capacity, with its length and its size per generation.

    ``bytes`` is empty if the size is unknown. If ``estimated`` is true, the size is derived from the growth of
    memory while the container filled.
    """

    name: str
    length: tuple[float, ...]
    capacity: float
    bytes: tuple[float, ...]
    # Like ``bytes``, but continued across resumes, although the container starts empty after each resume. Includes the
    # memory that the allocator kept when the container was cleared.
    gained: tuple[float, ...] = ()
    estimated: bool = False
    # Bytes of one item, if sizes are estimated.
    each: float = 0.0
    # False if the client read the capacity where the program keeps it; ``name`` is then the container's path.
    declared: bool = True

    def series(self, what: str) -> str:
        """Return the series of the container's ``length`` or ``bytes``."""
        if self.name == PREALLOCATED:
            return "arrays.written_bytes"
        return f"{'tracked' if self.declared else 'container'}.{self.name}.{what}"

    def is_filling(self, end: int) -> bool:
        if end < 2 or self.length[end - 1] >= self.capacity:
            return False
        first = max(0, end - 1 - _RECENT)
        return self.length[end - 1] - self.length[first] > _STILL_GROWING * self.capacity

    def is_reason_of_growth(self, private: Sequence[float], end: int) -> bool:
        """Return True if the container fills, and it is declared or makes most of the memory growth.

        Many programs keep a small deque of results, which fills while something else leaks.
        """
        if not self.is_filling(end) or self.declared:
            return self.is_filling(end)
        first = max(0, end - 1 - _SEEN)
        grown = private[end - 1] - private[first] if len(private) >= end else 0.0
        return 0 < grown <= self.growth(first, end) / _COMMITTED

    def is_over(self, end: int) -> bool:
        return self.length[end - 1] > self.capacity

    def growth(self, first: int, end: int) -> float:
        """Return the bytes gained between two positions, without any excess over the capacity."""
        return self.gained[end - 1] - self.gained[first] if self.gained else 0.0

    def fullest(self, end: int) -> int:
        """Return the newest position at which the container held the most items."""
        newest_first = self.length[end - 1 :: -1]
        return end - 1 - newest_first.index(max(newest_first))

    def overshoot(self, end: int) -> list[float]:
        """Return the number of items beyond the capacity in each generation."""
        return [max(0.0, length - self.capacity) for length in self.length[:end]]

    def remaining_bytes(self, end: int) -> float:
        if not self.bytes or self.length[end - 1] <= 0:
            return 0.0
        each = self.bytes[end - 1] / self.length[end - 1]
        return max(0.0, (self.capacity - self.length[end - 1]) * each)

    def per_generation(self, end: int) -> float:
        """Return the number of items added per generation in the last few generations."""
        first = max(0, end - 1 - _RECENT)
        return (self.length[end - 1] - self.length[first]) / max(1, end - 1 - first)

    def fill_rate(self, end: int) -> float:
        """Return the bytes recently added per generation.

        Return 0 if the container is not filling or if its size is unknown.
        """
        if not self.is_filling(end) or not self.bytes:
            return 0.0
        each = self.bytes[end - 1] / max(self.length[end - 1], 1.0)
        return each * self.per_generation(end)


def bounded_containers(
    timeline: Timeline, capacities: Mapping[str, int | None], limit_bytes: float | None = None
) -> tuple[Bounded, ...]:
    """Return the containers of this timeline whose capacity is declared, or was read where the program keeps it."""
    found = []
    for name in sorted(tracked_names(timeline)):
        capacity = capacity_of(timeline, name, capacities)
        if capacity and (read := _bounded(timeline, name, float(capacity), declared=True)):
            found.append(read)
    if limit_bytes is None:
        # Without a limit, nothing shows whether a full container would fit into memory.
        return tuple(found)
    read_ones = [
        read
        for name in names_in(timeline, "container.", ".capacity")
        if (capacity := constant_capacity(timeline, name))
        and (read := _bounded(timeline, name, capacity, declared=False))
        and max(read.length) <= capacity
    ]
    # A declared container always has the length of its declaration. The second name of a container comes without a
    # size, and memory must not be attributed to it again.
    for read in sorted(read_ones, key=lambda each: (each.estimated, each.name)):
        same = next((each for each in found if each.length == read.length), None)
        if same is not None and same.declared:
            continue
        if same is not None and read.estimated:
            found.append(replace(read, bytes=(), gained=(), each=0.0))
        elif _fits(read, timeline, limit_bytes):
            found.append(read)
    arrays = _preallocated_arrays(timeline)
    if arrays is not None and _fits(arrays, timeline, limit_bytes):
        found.append(arrays)
    return tuple(found)


def _preallocated_arrays(timeline: Timeline) -> Bounded | None:
    """Return the memory of arrays that are allocated but not completely written, as one container of bytes.

    Return None if their total size has changed in the last readings: a program that keeps allocating such arrays is
    not bounded by their size.
    """
    written, unwritten = "arrays.written_bytes", "arrays.unwritten_bytes"
    if not (timeline.generations and timeline.has(written) and timeline.has(unwritten)):
        return None
    bytes_written = fill_gaps(timeline.readings(written))
    totals = [
        a + b
        for a, b in zip(timeline.readings(written), timeline.readings(unwritten), strict=True)
        if a is not None and b is not None
    ]
    if (
        not bytes_written
        or not totals
        or max(totals[-_SEEN:]) > (1 + _STILL_GROWING) * min(totals[-_SEEN:])
    ):
        return None
    gained = _with_kept(_going_on(timeline, bytes_written), timeline.private)
    return Bounded(
        PREALLOCATED, tuple(bytes_written), totals[-1], tuple(bytes_written), gained, declared=False
    )


def _fits(container: Bounded, timeline: Timeline, limit_bytes: float) -> bool:
    """Return True if memory can hold the container when it is full; otherwise, it is a leak for its user."""
    end = min(len(container.length), len(timeline.private))
    if not end or not container.bytes:
        return False
    return timeline.private[end - 1] + container.remaining_bytes(end) <= limit_bytes


def tracked_names(timeline: Timeline) -> set[str]:
    return names_in(timeline, "tracked.", ".length")


def names_in(timeline: Timeline, prefix: str, suffix: str) -> set[str]:
    """Return what is between prefix and suffix in the names of the timeline's series."""
    return {
        name[len(prefix) : -len(suffix)]
        for name in timeline.series
        if name.startswith(prefix) and name.endswith(suffix)
    }


def constant_capacity(timeline: Timeline, name: str) -> float | None:
    """Return the capacity that was read of a container in the newest attempt, or None if it changed or has vanished.

    A sum over more and more instances of a class bounds nothing.
    """
    lengths = timeline.series.get(f"container.{name}.length", ())
    read: set[float] = set()
    for row in reversed(range(len(lengths))):
        if timeline.segment[row] != timeline.segment[-1]:
            break
        capacity = timeline.series[f"container.{name}.capacity"][row]
        if capacity is not None:
            read.add(capacity)
        elif lengths[row] and not read:
            return None
    return read.pop() if len(read) == 1 else None


def capacity_of(
    timeline: Timeline, name: str, capacities: Mapping[str, int | None]
) -> int | float | None:
    declared = capacities.get(name)
    if declared is not None:
        return declared
    column = f"tracked.{name}.capacity"
    known = [v for v in timeline.series.get(column, ()) if v is not None]
    return known[-1] if known else None


def _bounded(timeline: Timeline, name: str, capacity: float, *, declared: bool) -> Bounded | None:
    """Return the container, or None if its length was never read."""
    prefix = f"{'tracked' if declared else 'container'}.{name}"
    lengths = f"{prefix}.length"
    length = fill_gaps(timeline.readings(lengths)) if timeline.generations else []
    if not length:
        return None
    sizes, device_series = f"{prefix}.bytes", f"{prefix}.device_bytes"
    size = fill_gaps(timeline.readings(sizes)) if timeline.has(sizes) else []
    if size and timeline.has(device_series):
        # Device memory is not part of the process's memory.
        size = [
            max(0.0, a - (b or 0))
            for a, b in zip(size, timeline.readings(device_series), strict=True)
        ]
    each = 0.0 if size else _bytes_per_item(timeline, length)
    guess = tuple(min(n, capacity) * each for n in length) if each else ()
    within = _within(length, capacity, size) if size else guess
    gained = _with_kept(_going_on(timeline, within), timeline.private)
    return Bounded(
        name, tuple(length), capacity, within, gained, not size, each=each, declared=declared
    )


def _going_on(timeline: Timeline, size: Sequence[float]) -> tuple[float, ...]:
    """Remove the drop in size at each resume, as is done for the memory series."""
    if not timeline.segment or timeline.segment[0] == timeline.segment[-1]:
        return tuple(size)
    out: list[float] = []
    shift = 0.0
    for i, value in enumerate(size):
        if _is_resumed(timeline, i):
            shift = out[-1] - value
        out.append(value + shift)
    return tuple(out)


def _is_resumed(timeline: Timeline, i: int) -> bool:
    return (
        i > 0
        and timeline.segment[timeline.end_rows[i]] != timeline.segment[timeline.end_rows[i - 1]]
    )


def _with_kept(size: Sequence[float], private: Sequence[float]) -> tuple[float, ...]:
    """Add the memory that the allocator keeps when sizes fall and reuses when sizes rise."""
    if len(private) < len(size) or all(map(le, size, size[1:])):
        return tuple(size)
    out = list(size[:1])
    for i in range(1, len(size)):
        fell = max(0.0, size[i - 1] - size[i])
        back = min(fell, max(0.0, private[i - 1] - private[i]))
        out.append(max(size[i], out[-1] - back))
    return tuple(out)


def _within(length: Sequence[float], capacity: float, size: Sequence[float]) -> tuple[float, ...]:
    """Return the bytes of the items within the capacity, without the excess."""
    if max(length) <= capacity:
        return tuple(size)
    return tuple(
        s if n <= capacity else s * capacity / n for n, s in zip(length, size, strict=True)
    )


def _bytes_per_item(timeline: Timeline, length: Sequence[float]) -> float:
    """Return the median growth of memory per new item, over generations that set a new maximum length.

    Growth in generations without a new item is subtracted, since it has another cause. Refilling is left out, since
    a cleared container may reuse memory that the allocator kept.
    """
    private, fuller, idle, most = timeline.private, [], [], -1.0
    for i in range(min(len(length), len(private))):
        if i and length[i] > max(most, length[i - 1]):
            fuller.append((private[i] - private[i - 1], length[i] - length[i - 1]))
        elif i and length[i] == length[i - 1] and not _is_resumed(timeline, i):
            idle.append(private[i] - private[i - 1])
        most = length[i] if _is_resumed(timeline, i) else max(most, length[i])
    others = max(0.0, median(idle)) if len(idle) >= _RECENT else 0.0
    ratios = [(gained - others) / items for gained, items in fuller]
    return max(0.0, median(ratios)) if ratios else 0.0


def without_bounded(
    private: Sequence[float], containers: Sequence[Bounded], end: int
) -> list[float]:
    """Return private bytes per generation without the growth of bounded containers.

    A preallocated container is not subtracted. Memory did not grow while it filled, so subtracting its items would
    hide a leak of the same size.
    """
    rest = list(private[:end])
    for container in containers:
        full = container.fullest(end) + 1
        gained = container.growth(0, full)
        # A container that was read may hold the same objects as one that was subtracted before.
        memory = private if container.declared else rest
        if gained <= 0 or memory[full - 1] - memory[0] < _COMMITTED * gained:
            continue
        at_first = container.gained[0]
        gains = container.gained[:end]
        rest = [bytes - (gain - at_first) for bytes, gain in zip(rest, gains, strict=True)]
    return rest


# Number of generations in which a count must stay the same to be proposed as an expectation.
GENERATIONS: Final = 8

# Phase (None: every reading) -> count at the end of the phase.
_Counts = Mapping[str | None, int]


def with_accepted(
    declared: Sequence[Expectation], accepted: Iterable[Expectation]
) -> tuple[Expectation, ...]:
    """Return the declared expectations, plus accepted expectations for types that the program does not declare."""
    return (*declared, *(a for a in accepted if not _is_declared(a.type, declared)))


def _is_declared(name: str, expectations: Iterable[Expectation]) -> bool:
    return any(not e.accepted and stands_for(e.type, name) for e in expectations)


def stable_counts(history: RunHistory) -> tuple[StableCount, ...]:
    """Return counts that stayed the same over the last `GENERATIONS` generations and are not expected yet.

    Counts that differ from an accepted count come first, followed by the smallest counts, which are the most likely
    to be intended. A count is reported for every reading if all readings agree, otherwise for each phase at whose
    end the count is constant. Types of builtins and the standard library are excluded, since every program creates
    such objects, and so are types that the program declares itself.
    """
    views = _views(history)
    if not any(len(view.generations) >= GENERATIONS for view in views):
        return ()
    expected = history.expectations
    found: list[StableCount] = []
    for name in sorted(
        {name for view in views for name in types_of(view.timeline) if _is_of_a_program(name)}
    ):
        accepted = [e for e in expected if e.accepted and e.type == name]
        if _is_declared(name, expected):
            continue
        for after, count in _agreed(views, name):
            if not _is_expected(accepted, after, count):
                replaced = [expected_text(e) for e in accepted if replaces(after, e.after)]
                found.append(
                    StableCount(name, count, after, GENERATIONS, "; ".join(replaced) or None)
                )
    return tuple(sorted(found, key=_order))


def _is_of_a_program(name: str) -> bool:
    module, _, rest = name.partition(".")
    return bool(rest) and module not in sys.stdlib_module_names


def _order(each: StableCount) -> tuple[bool, bool, int, str, str]:
    return each.replaces is None, each.count == 0, each.count, each.type, each.after or ""


def replaces(new: str | None, old: str | None) -> bool:
    """Return True if an accepted count for one place replaces an accepted count for the other place.

    This holds if the places are equal or if either place is None (every reading).
    """
    return new == old or new is None or old is None


def _is_expected(accepted: Sequence[Expectation], after: str | None, count: int) -> bool:
    meant = [e for e in accepted if after is None or e.after == after]
    return bool(meant) and all(e.low <= count <= e.high for e in meant)


@dataclass(frozen=True, slots=True)
class _View:
    """The last generations of a process, with their rows by place.

    A place is a phase, or None for every reading.
    """

    timeline: Timeline
    generations: frozenset[int]
    rows: Mapping[str | None, Sequence[int]]


def _views(history: RunHistory) -> list[_View]:
    """Return a view of each process that was active in the last generations."""
    timelines = [timeline for timeline in timelines_of(history) if timeline.generations]
    newest = max((timeline.generations[-1] for timeline in timelines), default=0)
    return [
        _view(timeline) for timeline in timelines if timeline.generations[-1] > newest - GENERATIONS
    ]


def _view(timeline: Timeline) -> _View:
    generations = timeline.generations[-GENERATIONS:]
    whole = len(timeline.generations) > len(generations)
    first = timeline.end_rows[-len(generations) - 1] + 1 if whole else 0
    # Readings before the first generation do not belong to any generation.
    among = [row for row in range(first, len(timeline.kind)) if timeline.kind[row] != "baseline"]
    phases = {timeline.phase[row] for row in among if timeline.kind[row] == "phase_end"}
    places = [None, *sorted(phase for phase in phases if phase is not None)]
    rows = {place: [row for row in among if applies(timeline, row, place)] for place in places}
    return _View(timeline, frozenset(generations), rows)


def _agreed(views: Sequence[_View], name: str) -> Iterator[tuple[str | None, int]]:
    """Yield (phase or None, count) for each place where all processes that count the type agree."""
    of_each = [counts for view in views if (counts := _steady(view, name)) is not None]
    if not of_each:
        return
    same = {
        place: count
        for place, count in of_each[0].items()
        if all(counts.get(place) == count for counts in of_each)
    }
    yield from [(None, same[None])] if None in same else same.items()


def _steady(view: _View, name: str) -> _Counts | None:
    """Return the constant counts of a type by place.

    Return None if the type was not counted in this view.
    """
    column = view.timeline.series.get(f"type.{name}.count")
    if column is None or all(column[row] is None for row in view.rows[None]):
        return None
    found = {
        place: count
        for place, rows in view.rows.items()
        if (count := _only(view, column, rows)) is not None
    }
    return {None: found[None]} if None in found else found


def _only(view: _View, column: Sequence[Value], rows: Sequence[int]) -> int | None:
    """Return the count that all these rows share.

    Return None if counts differ or a generation has no reading.
    """
    counts = {column[row] for row in rows} - {None}
    if len(counts) != 1:
        return None
    read_in = {view.timeline.generation[row] for row in rows if column[row] is not None}
    count = counts.pop()
    whole = count is not None and count == int(count) and view.generations <= read_in
    return int(count) if whole and count is not None else None

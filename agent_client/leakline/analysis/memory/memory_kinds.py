"""Kinds of memory other than the process's own heap: each has its own series and is judged like private memory.

Child processes are included: each child that is reported individually has its own series, so that growing children
can be named.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from statistics import median
from typing import Final, NamedTuple

from ...text_format import format_bytes
from ..results import Kind, Suspect
from ..run_history import HEAP_BYTES, KEPT, RESIDENT_BYTES, TENSOR_BYTES, is_javascript
from ..statistics.memory_evidence import Scale, baseline_of
from ..statistics.trend import floor_slope, theil_sen
from ..timeline import Timeline, bridge_gaps, can_bridge
from .uncollected_memory import YOUNG, final_until, is_known, outside_tensors

# Cyclic garbage matters if there are at least this many objects per generation and memory swings by this share of
# the baseline.
_GARBAGE_PER_GENERATION: Final = 1000
_SWING: Final = 0.10
_MIN_GENERATIONS: Final = 8
_OF_A_DEVICE: Final = (".allocated_bytes", ".process_bytes")
_OF_ALL_PROCESSES: Final = ".used_bytes"
CHILDREN: Final = ("children.uss_bytes", "children.pss_bytes")
SHARED: Final = "process.shared_bytes"
# Files in /dev/shm: those of the run's user, and the part that is known to be the run's.
FILES_OF_USER: Final = "shm.bytes"
FILES_OF_RUN: Final = "shm.run_bytes"
FILES_BY_PREFIX: Final = "shm.files."
# Memory that all processes of a run report alike.
SHARED_BY_ALL: Final = (SHARED, FILES_OF_RUN)
# The kernel's objects that it cannot free on demand.
SLAB: Final = "cgroup.slab_unreclaimable_bytes"
# Shows the phase in which files in /dev/shm grow: it is read after each phase, the files only at generation ends.
_SHARED_IN_GROUP: Final = "cgroup.shmem_bytes"
# Freed memory that the C allocator keeps.
KEPT_BY_ALLOCATOR: Final = "allocator.kept_bytes"
_METAL: Final = "mps.allocated_bytes"
# A device's cache counts as idle if it is at least a share (`_FAR_ABOVE`) of the tensors at this many of the
# newest generation ends.
_IDLE_AT_ENDS: Final = 4
_FAR_ABOVE: Final = 0.5
# Minimum share of the idle bytes that must be in blocks that can be released.
_MOSTLY_WHOLE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Channel:
    """The bytes of one kind of memory per generation, and the scale of their growth.

    ``other_values``: other bytes in the same memory; growth is measured against the sum, and both fill the limit.
    ``known_until``: number of generations with known values if unknown values follow; 0 if all values are known.
    ``longest_gap``: the longest earlier gap between known values, in generations. ``noise_bytes``: a smaller rise
    is not significant. ``read``: positions of the generations in which the channel was read; None means all.
    ``placed_by``: the series whose phases show where the channel grows, if the channel itself is not a series.
    """

    name: str
    kind: Kind
    values: tuple[float, ...]
    limit_bytes: float | None = None
    own_baseline: bool = True
    other_values: tuple[float, ...] = ()
    known_until: int = 0
    longest_gap: int = 0
    noise_bytes: float = 0.0
    placed_by: str = ""
    read: tuple[int, ...] | None = field(default=None, compare=False)

    def stands(self, end: int) -> int:
        """Return the number of generations to judge: all up to the last reading or the last known value.

        A known value that is too old is ignored; the result is then ``end``.
        """
        if self.read is not None:
            return last_read(self.read, end)
        silent = end - self.known_until
        return (
            self.known_until
            if self.known_until and silent > 0 and can_bridge(silent, self.longest_gap)
            else end
        )

    def positions(self, end: int) -> Sequence[int]:
        """Return the positions of known values among the first ``end`` generations.

        Values between two readings are known if the gap is short enough for a straight line.
        """
        if self.read is None:
            return range(end)
        read = self.read[: bisect_left(self.read, end)]
        found, longest = list(read[:1]), 0
        for a, b in pairwise(read):
            found.extend(range(a + 1, b + 1) if can_bridge(b - a, longest) else (b,))
            longest = max(longest, b - a)
        return found

    def unread(self, end: int) -> set[int]:
        """Return the positions between two readings whose values are unknown."""
        known = self.positions(end)
        is_whole = not known or len(known) == known[-1] - known[0] + 1
        return set() if is_whole else {*range(known[0], known[-1])}.difference(known)

    def line(self, end: int) -> Sequence[float]:
        """Return the first ``end`` values with a straight line across every gap between two readings."""
        if not self.unread(end):
            return self.values[:end]
        known = self.positions(end)
        found = list(self.values[:end])
        for a, b in pairwise(known):
            for i in range(a + 1, b):
                found[i] = found[a] + (found[b] - found[a]) * (i - a) / (b - a)
        return found

    def scale(
        self, private: Sequence[float], end: int, remaining: float | None, spacing: int = 1
    ) -> Scale:
        baseline = self._level_at_first(self.values, end) + self._level_at_first(
            self.other_values, end
        )
        if not self.own_baseline:
            baseline += baseline_of(private)
        level = self.values[end - 1] + (self.other_values[end - 1] if self.other_values else 0.0)
        return Scale(baseline, self.limit_bytes, level, remaining, spacing)

    def _level_at_first(self, values: Sequence[float], end: int) -> float:
        """Return the bytes that growth is compared with: the median of the first three readings above zero.

        A worker that starts in the fourth generation grows from its own size, not from zero.
        """
        read = range(end) if self.read is None else self.read[: bisect_left(self.read, end)]
        known = (values[i] for i in read if i < len(values))
        return baseline_of(tuple(islice((v for v in known if v > 0), 3)))

    @property
    def holds_tensors(self) -> bool:
        """True for device memory of live tensors, whose growth can be explained by growing tensors and graphs."""
        return self.kind == "gpu" and self.name.endswith(".allocated_bytes")


@dataclass(frozen=True, slots=True)
class IdleCache:
    """Device memory that torch keeps without any tensor in it.

    ``bytes``: the smallest amount at the ends of the newest generations. ``whole``: True if split blocks, which
    cannot be released, are excluded; False if the size of split blocks is unknown.
    """

    device: str
    bytes: float
    whole: bool


def channels_of(timeline: Timeline, *, ranks_until: float | None = None) -> tuple[Channel, ...]:
    """Return the channels with enough readings in this timeline, in a fixed order.

    ``ranks_until``: the time up to which all ranks of the run have reported, or None if there is only one rank. A
    rank that started other ranks also counts their memory as memory of its children, so this memory is subtracted
    as far as the reports reach.
    """
    found = []
    for series in CHILDREN:
        values = _column(timeline, series)
        covered = _reported_by_ranks(timeline, ranks_until)
        ranks = _column(timeline, of_ranks(series)) if covered else ()
        if values and ranks:
            ranks = (*ranks[:covered], *[ranks[covered - 1]] * (len(ranks) - covered))
            values = tuple(max(0.0, a - b) for a, b in zip(values, ranks, strict=True))
        if values:
            read = _read(timeline, series)
            found.append(Channel(series, "children", values, own_baseline=False, read=read))
            break
    shared = _column(timeline, SHARED)
    if shared:
        read = _read(timeline, SHARED)
        found.append(Channel(SHARED, "shared_memory", shared, own_baseline=False, read=read))
    found.extend(_outside_processes(timeline))
    for index in _devices(timeline):
        found.extend(_device_channels(timeline, index))
    found.extend(_metal_channels(timeline))
    if is_javascript(timeline.series):
        found.extend(_outside_tensors(timeline))
    return tuple(found)


def _outside_processes(timeline: Timeline) -> list[Channel]:
    """Return the channels of files in /dev/shm and of the kernel's memory, which no process's own memory includes.

    Files of unknown creators and the kernel's memory may be due to other programs.
    """
    found = []
    files, ours = _column(timeline, FILES_OF_USER), _column(timeline, FILES_OF_RUN)
    if files and ours:
        read = _read(timeline, FILES_OF_USER, FILES_OF_RUN)
        placed_by = _SHARED_IN_GROUP if timeline.has(_SHARED_IN_GROUP) else ""
        others = tuple(a - b for a, b in zip(files, ours, strict=True))
        found = [
            Channel(
                FILES_OF_RUN,
                "shared_memory",
                ours,
                own_baseline=False,
                placed_by=placed_by,
                read=read,
            ),
            Channel(
                FILES_OF_USER,
                "external",
                others,
                own_baseline=False,
                placed_by=placed_by,
                read=read,
            ),
        ]
    slab = _column(timeline, SLAB)
    if slab:
        read = _read(timeline, SLAB)
        found.append(Channel(SLAB, "external", slab, own_baseline=False, read=read))
    return found


def _reported_by_ranks(timeline: Timeline, until: float | None) -> int:
    """Return the number of generations that all ranks have reported, or 0 if no child is a rank."""
    if until is None or not any(timeline.has(of_ranks(series)) for series in CHILDREN):
        return 0
    return sum(timeline.time[row] <= until for row in timeline.end_rows)


def of_ranks(series: str) -> str:
    """Return the corresponding series for children that are ranks and report their own memory."""
    return series.replace("children.", "children.ranks.")


def _devices(timeline: Timeline) -> list[str]:
    return sorted(
        {
            name.split(".")[1]
            for name in timeline.series
            if name.startswith(("cuda.", "gpu."))
            and name.endswith(
                _OF_A_DEVICE if timeline.private else (*_OF_A_DEVICE, _OF_ALL_PROCESSES)
            )
        }
    )


def _of_device(index: str) -> tuple[str, str, str, str]:
    return (
        f"cuda.{index}.allocated_bytes", f"cuda.{index}.reserved_bytes", f"gpu.{index}.outside_bytes",
        f"gpu.{index}.process_bytes",
    )  # fmt: skip


def _device_channels(timeline: Timeline, index: str) -> list[Channel]:
    allocated, reserved, outside, process = (_column(timeline, name) for name in _of_device(index))
    limit = _last(timeline, f"gpu.{index}.total_bytes")
    found = []
    if allocated:
        name = f"cuda.{index}.allocated_bytes"
        found.append(Channel(name, "gpu", allocated, limit, read=_read(timeline, name)))
    elif process:
        # For a framework other than torch, use its memory as the driver reports it.
        name = f"gpu.{index}.process_bytes"
        found.append(Channel(name, "gpu", process, limit, read=_read(timeline, name)))
    elif not timeline.private and (used := _column(timeline, f"gpu.{index}.used_bytes")):
        # A driver log alone contains the memory of all processes together, but not the memory of a single process.
        name = f"gpu.{index}.used_bytes"
        found.append(Channel(name, "gpu", used, limit, read=_read(timeline, name)))
    if allocated and reserved:
        spare = tuple(r - a for r, a in zip(reserved, allocated, strict=True))
        name = f"cuda.{index}.reserved_bytes"
        read = _read(timeline, name, f"cuda.{index}.allocated_bytes")
        found.append(
            Channel(name, "gpu_fragmentation", spare, limit, other_values=allocated, read=read)
        )
    if outside and reserved:
        name = f"gpu.{index}.outside_bytes"
        read = _read(timeline, name)
        found.append(Channel(name, "gpu", outside, limit, other_values=reserved, read=read))
    return found


def _metal_channels(timeline: Timeline) -> list[Channel]:
    allocated = _column(timeline, _METAL)
    limit = _last(timeline, "mps.limit_bytes")
    return (
        [Channel(_METAL, "gpu", allocated, limit, read=_read(timeline, _METAL))]
        if allocated
        else []
    )


def _outside_tensors(timeline: Timeline) -> list[Channel]:
    """Return the channels of a JavaScript program other than its tensors; a page has only the heap."""
    known = outside_tensors(timeline) if is_known(timeline) else None
    if known and known.native:
        kept = Channel(
            KEPT, "objects", known.kept, other_values=known.native, known_until=known.known_until,
            longest_gap=known.longest_gap, noise_bytes=YOUNG, placed_by=RESIDENT_BYTES,
        )  # fmt: skip
        return [kept, Channel(RESIDENT_BYTES, "objects", known.native, other_values=known.kept)]
    heap, resident = _column(timeline, HEAP_BYTES), _column(timeline, RESIDENT_BYTES)
    if resident:
        tensors = _column(timeline, TENSOR_BYTES) or (0.0,) * len(resident)
        rest = tuple(r - t for r, t in zip(resident, tensors, strict=True))
        return [Channel(RESIDENT_BYTES, "objects", rest)]
    return [Channel(HEAP_BYTES, "objects", heap)] if heap else []


def _last(timeline: Timeline, series: str) -> float | None:
    values = _column(timeline, series)
    return values[-1] if values else None


def _column(timeline: Timeline, series: str) -> tuple[float, ...]:
    return tuple(bridge_gaps(timeline.values(series))) if timeline.has(series) else ()


def _read(timeline: Timeline, *series: str) -> tuple[int, ...]:
    """Return the positions of the generations in which all of these series were read."""
    columns = [timeline.values(name) for name in series]
    return tuple(
        i
        for i, values in enumerate(zip(*columns, strict=True))
        if all(v is not None for v in values)
    )


def device_of(series: str) -> str:
    """Return the name of the device that a series belongs to, such as ``GPU 0``."""
    index = series.split(".")[1]
    return f"GPU {index}" if index.isdigit() else "the GPU"


def last_read(read: Sequence[int], end: int) -> int:
    """Return the number of generations up to the last reading before ``end``, or ``end`` without a reading."""
    at = bisect_left(read, end)
    return read[at - 1] + 1 if at else end


def bridged_for_good(timeline: Timeline, end: int, ranks_until: float | None = None) -> int:
    """Return how many of the first ``end`` generations have values that later readings cannot change."""
    of_devices = [series for index in _devices(timeline) for series in _of_device(index)]
    ends = [last_read(timeline.private_read, end)]
    if any(timeline.has(of_ranks(series)) for series in CHILDREN):
        ends.append(_reported_by_ranks(timeline, ranks_until))
    of_javascript = (HEAP_BYTES, RESIDENT_BYTES) if is_javascript(timeline.series) else ()
    shared = (*SHARED_BY_ALL, FILES_OF_USER, SLAB)
    for series in filter(timeline.has, (*CHILDREN, *shared, *of_devices, _METAL, *of_javascript)):
        known = [i for i, value in enumerate(timeline.values(series)[:end]) if value is not None]
        read = known[-1] + 1 if known else 0
        longest = max((b - a for a, b in pairwise(known)), default=0)
        if can_bridge(end - read, longest):
            ends.append(read)
    if is_javascript(timeline.series) and is_known(timeline):
        ends.append(final_until(timeline, end))
    return min(ends)


def garbage_per_generation(timeline: Timeline, end: int) -> float | None:
    """Return how many objects the collector frees per generation, or None if memory hardly swings."""
    if not timeline.has("python.garbage_freed") or end < _MIN_GENERATIONS or not timeline.private:
        return None
    x, freed = timeline.points("python.garbage_freed", end)
    if len(x) < _MIN_GENERATIONS:
        return None
    rate = theil_sen(x[-16:], freed[-16:]).estimate
    if rate < _GARBAGE_PER_GENERATION or _swing(timeline, end) < _SWING * baseline_of(
        timeline.private
    ):
        return None
    return rate


def _swing(timeline: Timeline, end: int) -> float:
    """Return the usual drop of memory between two generations in bytes, or 0 if memory rarely falls."""
    recent = timeline.private[max(0, end - 16) : end]
    falls = [a - b for a, b in pairwise(recent) if a > b]
    return median(falls) if len(falls) * 4 >= len(recent) else 0.0


def idle_in_cache(timeline: Timeline, series: str) -> IdleCache | None:
    """Return the memory that torch keeps idle on a device, if it is large compared with the tensors.

    ``series``: the series of the reserved bytes. Return None if little of the memory can be released, or if it was
    read too rarely.
    """
    kept, tensors, split = (
        timeline.readings(name) if timeline.has(name) else ()
        for name in (series, f"{_stem(series)}.allocated_bytes", f"{_stem(series)}.inactive_split_bytes")
    )  # fmt: skip
    if not series.startswith("cuda.") or not kept or not tensors:
        return None
    read = zip(kept, tensors, split or (None,) * len(kept), strict=True)
    newest = [(a, b, c) for a, b, c in read if a is not None and b is not None][-_IDLE_AT_ENDS:]
    far = all(a - b >= _FAR_ABOVE * b for a, b, _ in newest)
    if len(newest) < _IDLE_AT_ENDS or not far:
        return None
    # Split blocks are partly in use by tensors and cannot be released; if their size is unknown, count everything.
    whole = all(c is not None for _, _, c in newest)
    idle = [float(a - b - (c or 0 if whole else 0)) for a, b, c in newest]
    mostly = all(i >= _MOSTLY_WHOLE * (a - b) for i, (a, b, _) in zip(idle, newest, strict=True))
    return IdleCache(_stem(series), min(idle), whole) if mostly and min(idle) > 0 else None


def _stem(series: str) -> str:
    return series.rpartition(".")[0]


def allocator_rate(timeline: Timeline, start: float, end: int) -> float | None:
    """Return the growth per generation of freed memory that the C allocator keeps.

    Return None if this memory was read too rarely.
    """
    if not timeline.has(KEPT_BY_ALLOCATOR):
        return None
    x, y = timeline.points(KEPT_BY_ALLOCATOR, end)
    first = next((i for i, at in enumerate(x) if at >= start - 1), len(x))
    if len(x) - first < 4:
        return None
    return theil_sen(x[first:][-64:], y[first:][-64:]).estimate


CHILD_PREFIX: Final = "children.process."
_CHILDREN_RESIDENT: Final = "children.rss_bytes"
# Series of a child's size: its own memory (USS) if known, otherwise its memory with a share of shared memory (PSS).
SIZES: Final = (".uss_bytes", ".pss_bytes")
# The name of the sum of all children that have no name.
OTHER: Final = "other"
_NEWEST: Final = 256
_FEW: Final = 3
# Minimum share of the growth of all children that one child must have to be named.
_PART: Final = 0.1
_MAX_NAMED: Final = 8


def sizes_of_children(series: Iterable[str]) -> dict[str, str]:
    """Map the series of each child's size to the child's name, sorted by name."""
    known = sorted(series)
    found: dict[str, str] = {}
    for size in SIZES:
        for each in known:
            if each.startswith(CHILD_PREFIX) and each.endswith(size):
                found.setdefault(each[len(CHILD_PREFIX) : -len(size)], each)
    return {found[name]: name for name in sorted(found)}


class GrowingChildren(NamedTuple):
    """The child processes that grow.

    ``counted``: number of children with their own series. ``rest``: growth of all other children in bytes per
    generation, or 0 if unknown or too small to report.
    """

    suspects: tuple[Suspect, ...] = ()
    counted: int = 0
    rest: float = 0.0


def growing_children(timeline: Timeline, since: float | None, rate: float) -> GrowingChildren:
    """Return the children with a substantial share of the growth, fastest first.

    ``since``: the generation in which the growth began. ``rate``: the total growth in bytes per generation.
    """
    sizes = sizes_of_children(timeline.series)
    named = {series: name for series, name in sizes.items() if name != OTHER}
    rates = {name: _rate(timeline, series, since) for series, name in named.items()}
    least = _PART * rate
    grown = sorted((name for name in rates if rates[name] >= least > 0), key=lambda n: -rates[n])
    suspects = (Suspect(name, "process", None, round(rates[name], 1)) for name in grown)
    rest = sum(_rate_of_rest(timeline, s, named, since) for s in sizes.keys() - named.keys())
    return GrowingChildren(
        tuple(suspects)[:_MAX_NAMED], len(named), rest if rest >= least > 0 else 0.0
    )


# Children copy shared pages if their resident memory grows by less than this share of their own memory.
_COPIED: Final = 0.25


def copies_pages(timeline: Timeline, since: float | None, rate: float) -> bool:
    """Return True if the children may only copy pages that they share with their parent.

    Memory that only one process uses then grows, by ``rate`` bytes per generation, but resident memory does not.
    """
    xs, ys = _since(timeline, _CHILDREN_RESIDENT, since)
    return len(xs) >= _FEW and abs(theil_sen(xs, ys).estimate) < _COPIED * rate


def growing_lines(growing: GrowingChildren, unit: str) -> list[str]:
    """Return a sentence about the named children that grow and a sentence about the other children.

    A sentence is left out if its children do not grow.
    """
    found = []
    if growing.suspects:
        grown = (
            f"{s.name} by {format_bytes(s.bytes_per_generation or 0.0)}" for s in growing.suspects
        )
        verb = "one grows" if len(growing.suspects) == 1 else "these grow"
        said = f"Of {growing.counted} children listed individually, {verb}"
        if growing.counted == 1:
            said = "The only child listed individually grows"
        found.append(f"{said}: {', '.join(grown)} per {unit}.")
    if growing.rest:
        found.append(
            f"The children that are not listed individually grow by {format_bytes(growing.rest)} per {unit}."
        )
    return found


def _rate(timeline: Timeline, series: str, since: float | None) -> float:
    """Return the growth of a series in bytes per generation, or 0 if the series was read too rarely."""
    xs, ys = _since(timeline, series, since)
    return floor_slope(xs, ys).estimate if len(xs) >= _FEW else 0.0


def _since(
    timeline: Timeline, series: str, since: float | None
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the generations and readings since the growth began; there are none if the series does not exist."""
    xs, ys = timeline.points(series, newest=_NEWEST) if timeline.has(series) else ([], [])
    # Include the previous generation, because growth is measured from the size at its end.
    first = 0 if since is None else bisect_left(xs, since - 1)
    return xs[first:], ys[first:]


# A part of the memory explains a growth if its own growth differs by at most this share.
_DIFFERS: Final = 0.3


def part_that_grows(
    timeline: Timeline, family: str, since: float | None, rate: float
) -> tuple[str, float] | None:
    """Return the part of the memory whose growth explains ``rate``, with its own bytes per generation, or None.

    ``family``: "library" for the memory that a library reports, "malloc" for what a library allocates, or "mapping"
    for a kind of mapping. ``since``: the generation in which the growth began.
    """
    series = {
        name.removeprefix(f"{family}.").removesuffix(".bytes"): name
        for name in timeline.series
        if name.startswith(f"{family}.") and name.endswith(".bytes")
    }
    rates = ((_rate(timeline, name, since), part) for part, name in sorted(series.items()))
    close = [(own, part) for own, part in rates if abs(own - rate) <= _DIFFERS * rate]
    own, part = min(close, key=lambda each: abs(each[0] - rate), default=(0.0, ""))
    return (part, own) if own > 0 else None


class _Read(NamedTuple):
    generation: int
    size: float
    # The attempt, and the names of the children with a reading of their own. While both stay the same, the remaining
    # children are the same ones.
    reported: Hashable


def _rate_of_rest(
    timeline: Timeline, series: str, named: Mapping[str, str], since: float | None
) -> float:
    """Return the growth of the children without their own series, in bytes per generation.

    A child that joins or leaves this group brings or takes all of its memory, which is not growth. Such a
    generation is therefore assigned the average growth of the other generations.
    """
    read = []
    for generation, row in list(zip(timeline.generations, timeline.end_rows, strict=True))[
        -_NEWEST:
    ]:
        size = timeline.series[series][row]
        if size is not None and (since is None or generation >= since - 1):
            was_read = frozenset(name for name in named if timeline.series[name][row] is not None)
            read.append(_Read(generation, size, (timeline.segment[row], was_read)))
    alike = [(a, b) for a, b in pairwise(read) if a.reported == b.reported]
    if len(alike) < _FEW - 1:
        return 0.0
    usual = sum(b.size - a.size for a, b in alike) / sum(
        b.generation - a.generation for a, b in alike
    )
    return floor_slope([float(r.generation) for r in read], _without_moves(read, usual)).estimate


def _without_moves(read: Sequence[_Read], usual: float) -> list[float]:
    gains = (
        b.size - a.size if a.reported == b.reported else usual * (b.generation - a.generation)
        for a, b in pairwise(read)
    )
    return list(accumulate(gains, initial=0.0))

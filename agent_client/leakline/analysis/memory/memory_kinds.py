"""Memory that is not the process's own heap: each kind is a series of its own, judged like private memory.

That includes child processes: each child that is reported individually has its own series, so the growing ones can be
named.
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

# Cyclic garbage: objects a generation that only the collector could free, and memory that swings with them.
_GARBAGE_PER_GENERATION: Final = 1000
_SWING: Final = 0.10
_MIN_GENERATIONS: Final = 8
_OF_A_DEVICE: Final = (".allocated_bytes", ".process_bytes")
_OF_ALL_PROCESSES: Final = ".used_bytes"
CHILDREN: Final = ("children.uss_bytes", "children.pss_bytes")
SHARED: Final = "process.shared_bytes"
# What the C allocator keeps without using it.
KEPT_BY_ALLOCATOR: Final = "allocator.kept_bytes"
_METAL: Final = "mps.allocated_bytes"
# Generation ends at which the cache of a device is looked at, and the share of the tensors that is far more.
_IDLE_AT_ENDS: Final = 4
_FAR_ABOVE: Final = 0.5
# Of what no tensor uses, the share that has to lie in pieces which can be given back.
_MOSTLY_WHOLE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Channel:
    """One kind of memory, per generation, with the scale its growth is measured against.

    ``other_values`` is what lies in the same memory: growth is measured against both, and both fill it.
    ``known_until``: up to which generation something is known, where more follow of which nothing is; 0: of all.
    ``longest_gap``: generations without a reading of which they have had so many before.
    ``noise_bytes``: a rise by less than this says nothing.
    ``read``: positions of the generations in which it was read; None: in all of them.
    ``placed_by``: the series whose phases say where it grows, where it is none itself.
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
        """The generations that speak at this moment: up to the last reading, or to the last one known, while it is
        not too long ago.
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
        """Return the positions of the first ``end`` generations of which something is known.

        What lies between two readings is known where they are near enough for a straight line.
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
        """Return the positions between two readings of which nothing is known."""
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
        """Return the bytes that growth is compared with: the middle of the first three readings of any.

        A worker that starts in the fourth generation grows from its own size, not from nothing.
        """
        read = range(end) if self.read is None else self.read[: bisect_left(self.read, end)]
        known = (values[i] for i in read if i < len(values))
        return baseline_of(tuple(islice((v for v in known if v > 0), 3)))

    @property
    def holds_tensors(self) -> bool:
        """Device memory that live tensors hold, so that tensors and graphs that grow explain it."""
        return self.kind == "gpu" and self.name.endswith(".allocated_bytes")


@dataclass(frozen=True, slots=True)
class IdleCache:
    """``bytes`` of a device that torch kept for no tensor at each of the newest generation ends, at the least.

    ``whole``: without the split pieces, which stay; else nothing says how much of it those are.
    """

    device: str
    bytes: float
    whole: bool


def channels_of(timeline: Timeline, *, ranks_until: float | None = None) -> tuple[Channel, ...]:
    """All channels this timeline has readings of in every sense needed, in a fixed order.

    ``ranks_until``: up to when all ranks of the run have reported themselves (None: there is only one). A rank that
    started the others has them as children as well; what they gained later is not yet known from themselves.
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
    for index in _devices(timeline):
        found.extend(_device_channels(timeline, index))
    found.extend(_metal_channels(timeline))
    if is_javascript(timeline.series):
        found.extend(_outside_tensors(timeline))
    return tuple(found)


def _reported_by_ranks(timeline: Timeline, until: float | None) -> int:
    """Return in how many of the first generations the ranks among the children have reported themselves."""
    if until is None or not any(timeline.has(of_ranks(series)) for series in CHILDREN):
        return 0
    return sum(timeline.time[row] <= until for row in timeline.end_rows)


def of_ranks(series: str) -> str:
    """Return the series of the ranks among the children, which report themselves."""
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
        # Another framework than torch: its memory as the driver sees it.
        name = f"gpu.{index}.process_bytes"
        found.append(Channel(name, "gpu", process, limit, read=_read(timeline, name)))
    elif not timeline.private and (used := _column(timeline, f"gpu.{index}.used_bytes")):
        # A log of the driver alone says what all processes use, and nothing of one of them.
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
    """What else a program of JavaScript takes: in a page its heap."""
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
    """Return the positions of the generations in which all of these were read."""
    columns = [timeline.values(name) for name in series]
    return tuple(
        i
        for i, values in enumerate(zip(*columns, strict=True))
        if all(v is not None for v in values)
    )


def device_of(series: str) -> str:
    """Return the name of the device of a series: ``GPU 0``."""
    index = series.split(".")[1]
    return f"GPU {index}" if index.isdigit() else "the GPU"


def last_read(read: Sequence[int], end: int) -> int:
    """Return how many of the first ``end`` generations there are up to the last one read; all where none was."""
    at = bisect_left(read, end)
    return read[at - 1] + 1 if at else end


def bridged_for_good(timeline: Timeline, end: int, ranks_until: float | None = None) -> int:
    """Of the first ``end`` generations those without an open gap: no reading to come changes what is read of them."""
    of_devices = [series for index in _devices(timeline) for series in _of_device(index)]
    ends = [last_read(timeline.private_read, end)]
    if any(timeline.has(of_ranks(series)) for series in CHILDREN):
        ends.append(_reported_by_ranks(timeline, ranks_until))
    of_javascript = (HEAP_BYTES, RESIDENT_BYTES) if is_javascript(timeline.series) else ()
    for series in filter(timeline.has, (*CHILDREN, SHARED, *of_devices, _METAL, *of_javascript)):
        known = [i for i, value in enumerate(timeline.values(series)[:end]) if value is not None]
        read = known[-1] + 1 if known else 0
        longest = max((b - a for a, b in pairwise(known)), default=0)
        if can_bridge(end - read, longest):
            ends.append(read)
    if is_javascript(timeline.series) and is_known(timeline):
        ends.append(final_until(timeline, end))
    return min(ends)


def garbage_per_generation(timeline: Timeline, end: int) -> float | None:
    """Objects the collector freed per generation when memory swings with it; None when it does not matter."""
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
    """How far memory goes up and down inside a generation or from one to the next, bytes."""
    recent = timeline.private[max(0, end - 16) : end]
    falls = [a - b for a, b in pairwise(recent) if a > b]
    return median(falls) if len(falls) * 4 >= len(recent) else 0.0


def idle_in_cache(timeline: Timeline, series: str) -> IdleCache | None:
    """What torch keeps of a device outside its tensors, where that is far more than they leave by chance.

    ``series`` is that of its reserved bytes. None where little of it can be given back, or too little was read.
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
    # Pieces of what tensors share with others cannot be given back; where they are not known, all may.
    whole = all(c is not None for _, _, c in newest)
    idle = [float(a - b - (c or 0 if whole else 0)) for a, b, c in newest]
    mostly = all(i >= _MOSTLY_WHOLE * (a - b) for i, (a, b, _) in zip(idle, newest, strict=True))
    return IdleCache(_stem(series), min(idle), whole) if mostly and min(idle) > 0 else None


def _stem(series: str) -> str:
    return series.rpartition(".")[0]


def allocator_rate(timeline: Timeline, start: float, end: int) -> float | None:
    """Growth per generation of what the C allocator keeps without using it."""
    if not timeline.has(KEPT_BY_ALLOCATOR):
        return None
    x, y = timeline.points(KEPT_BY_ALLOCATOR, end)
    first = next((i for i, at in enumerate(x) if at >= start - 1), len(x))
    if len(x) - first < 4:
        return None
    return theil_sen(x[first:][-64:], y[first:][-64:]).estimate


CHILD_PREFIX: Final = "children.process."
# Memory of a child alone where it is known, else with its part of what it shares.
SIZES: Final = (".uss_bytes", ".pss_bytes")
# All that have no name, together.
OTHER: Final = "other"
_NEWEST: Final = 256
_FEW: Final = 3
# Of all that the children gain, what one has to gain to be named.
_PART: Final = 0.1
_MAX_NAMED: Final = 8


def sizes_of_children(series: Iterable[str]) -> dict[str, str]:
    """The series of the size of each child among these -> its name, in the order of the names."""
    known = sorted(series)
    found: dict[str, str] = {}
    for size in SIZES:
        for each in known:
            if each.startswith(CHILD_PREFIX) and each.endswith(size):
                found.setdefault(each[len(CHILD_PREFIX) : -len(size)], each)
    return {found[name]: name for name in sorted(found)}


class GrowingChildren(NamedTuple):
    """``counted``: how many children have series of their own. ``rest``: bytes per generation by which the others grow
    together; 0 where that is too little to report, or not known."""

    suspects: tuple[Suspect, ...] = ()
    counted: int = 0
    rest: float = 0.0


def growing_children(timeline: Timeline, since: float | None, rate: float) -> GrowingChildren:
    """Those that account for a growth of all together by ``rate`` bytes per generation, what grows most first.

    ``since``: the generation from which they grow.
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


def growing_lines(growing: GrowingChildren, unit: str) -> list[str]:
    """``Of 3 children reported one by one, this grows: collector-b by 12.00 MiB per generation.``, and of the rest."""
    found = []
    if growing.suspects:
        grown = (
            f"{s.name} by {format_bytes(s.bytes_per_generation or 0.0)}" for s in growing.suspects
        )
        children = "1 child" if growing.counted == 1 else f"{growing.counted} children"
        verb = "this grows" if len(growing.suspects) == 1 else "these grow"
        found.append(f"Of {children} listed one by one, {verb}: {', '.join(grown)} per {unit}.")
    if growing.rest:
        found.append(
            f"The children that have no series of their own grow by {format_bytes(growing.rest)} per {unit}."
        )
    return found


def _rate(timeline: Timeline, series: str, since: float | None) -> float:
    """Bytes per generation; 0 of one that was read too rarely to say."""
    xs, ys = timeline.points(series, newest=_NEWEST)
    # It grows from what it had in the generation before.
    kept = [(x, y) for x, y in zip(xs, ys, strict=True) if since is None or x >= since - 1]
    if len(kept) < _FEW:
        return 0.0
    return floor_slope([x for x, _ in kept], [y for _, y in kept]).estimate


class _Read(NamedTuple):
    generation: int
    size: float
    # Who is reported one by one then, in which attempt: the rest is the same children while that is the same.
    reported: Hashable


def _rate_of_rest(
    timeline: Timeline, series: str, named: Mapping[str, str], since: float | None
) -> float:
    """As `_rate`. A child that joins the rest or leaves it, for a series of its own, takes along all that it has: that
    is no growth. So such a generation counts as the others do on average."""
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

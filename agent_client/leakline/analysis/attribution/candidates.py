"""Leak candidates: every count series with lasting growth, together with its phase and its measured bytes.

Growth that only fills a declared store is excused; growth beyond the store's capacity is not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

from ...snapshot import GRAPH_NODE
from ...text_format import short_name
from ..assertions.expected_counts import Bounded, Violation
from ..memory.memory_by_phase import live_bytes_by_phase, without_give_and_take
from ..run_history import TENSOR as JS_TENSOR
from ..run_history import TENSOR_BYTES as JS_TENSOR_BYTES
from ..series_facts import ARRAY, FIGURE, TENSOR, Facts, growth_of, leads_into
from ..statistics.count_evidence import CountGrowth, count_growth
from ..statistics.trend import floor_slope
from ..timeline import BETWEEN, UNKNOWN_PHASE, Timeline, top_level

# Maximum number of objects of one type per item of a store, and the relative tolerance of such ratios.
_PER_ITEM: Final = 8
_EXACTLY: Final = 0.02
# Number of distinct lengths (or rises) that must agree before a type counts as part of what a store keeps.
_MIN_LENGTHS: Final = 3
# While a store is full, replacing items of varying size does not explain a rise by this share of the count.
_MUCH: Final = 0.5
# An item may measure up to this many times the store's mean bytes per item.
_AS_LARGE: Final = 1.5
# A count has stopped rising if it now rises at less than this share of its rate.
_STOPPED: Final = 0.25


def lies_in_a_store(facts: Facts, series: str, name: str, role: str, end: int) -> bool:
    """Return True if the growth lies in a declared store that is within its capacity.

    The path of the container, or of the type's holder, identifies the store. Growth that continues after the store
    has stopped filling is not excused.
    """
    path = name if role == "container" else facts.holders.get(name)
    store = None if path is None else facts.store_of(path)
    if store is None or store.is_over(end):
        return False
    return not _grows_in_a_full_store(facts.timeline, series, store, end)


def _grows_in_a_full_store(timeline: Timeline, series: str, store: Bounded, end: int) -> bool:
    """Return True if a count has risen since the length of the store last changed.

    Replacing items of varying size makes the count of their parts fluctuate, so only a steady rise or a rise by a
    large share of the count is evidence. If each item brought the same number of parts, any lasting rise is
    evidence.
    """
    full = next((i for i in range(end - 1, 0, -1) if store.length[i - 1] != store.length[i]), 0)
    x, counts = timeline.points(series, end)
    after = [i for i, at in enumerate(x) if at >= timeline.generations[full]]
    growth = (
        count_growth(
            [x[i] for i in after], [counts[i] for i in after], spacing=timeline.spacing(end)
        )
        if after
        else None
    )
    if growth is None:
        return False
    steady = growth.pattern in ("constant", "periodic")
    much = counts[-1] - counts[after[0]] >= _MUCH * counts[after[0]]
    return steady or much or _is_exact(timeline, x, counts, store)


def _is_exact(
    timeline: Timeline, x: Sequence[float], counts: Sequence[float], store: Bounded
) -> bool:
    """Return True if each item added to the store brought the same number of these objects."""
    lengths = [store.length[timeline.position[int(at)]] for at in x]
    each = [
        (b - a) / (longer - length)
        for (a, length), (b, longer) in pairwise(zip(counts, lengths, strict=True))
        if longer > length
    ]
    return len(each) >= _MIN_LENGTHS and max(each) - min(each) <= _EXACTLY * max(each)


def comes_with_a_store(facts: Facts, series: str, growth: CountGrowth, end: int) -> bool:
    """Return True if a count grows by a whole number of objects per item added to a declared store."""
    at = _read_until(facts, series, end)
    return any(_come_with_items(store, growth, at) for store in facts.bounded if store.declared)


def fills_a_container(facts: Facts, candidate: Candidate, end: int, *, rises: bool) -> bool:
    """Return True if a type only fills a container whose capacity was read: in step with its items, and not larger.

    Without a measured size, the type is excused only while memory does not rise otherwise (``rises``): metrics of the
    last episodes fill a deque as fast as a leak of episodes. Growth stays visible for some generations after the
    container was full, so it is compared with what the container took in before, unless the count has risen since.
    """
    series, size = counted_in(facts, candidate), candidate.bytes_rate
    at = end if series is None else _read_until(facts, series, end)
    for store in facts.bounded:
        if store.declared or _is_held_elsewhere(candidate, store):
            continue
        full = next((i for i in range(at) if store.length[i] >= store.capacity), at)
        has_stopped = None
        if full < at and series is not None:
            has_stopped = _has_stopped(facts, series, candidate.growth, full, end)
        if has_stopped is False:
            continue
        is_small = not rises if size is None else size <= _AS_LARGE * store.fill_rate(full)
        # A count that stopped rising when the container was full was in step, but its slope now covers level readings.
        if is_small and (has_stopped or _come_with_items(store, candidate.growth, full)):
            return True
    return False


def _is_held_elsewhere(candidate: Candidate, store: Bounded) -> bool:
    """Return True if another container holds a type.

    An attribute such as ``app.Result.scores`` may belong to objects that the store holds.
    """
    path = candidate.holder
    return path is not None and "[" in path and not leads_into(path, store.name)


def _has_stopped(
    facts: Facts, series: str, growth: CountGrowth, first: int, end: int
) -> bool | None:
    """Return whether a count has stopped rising since the generation at position ``first``.

    Return None if it was read fewer than twice since then.
    """
    since = facts.timeline.generations[first]
    x, counts = facts.timeline.points(series, end)
    after = [(at, n) for at, n in zip(x, counts, strict=True) if at >= since]
    if len(after) < 2:
        return None
    (began, low), (ended, high) = after[0], after[-1]
    return high - low <= _STOPPED * growth.slope * (ended - began)


def _read_until(facts: Facts, series: str, end: int) -> int:
    """Return the end of the generation at which a count, which may be read rarely, was last read."""
    read = facts.timeline.newest_reading(series, end)
    return end if read is None else read + 1


def _come_with_items(store: Bounded, growth: CountGrowth, end: int) -> bool:
    speed = store.per_generation(end) if store.is_filling(end) else 0.0
    each = growth.slope / speed if speed > 0 else 0.0
    return 1 <= round(each) <= _PER_ITEM and abs(each - round(each)) <= _EXACTLY * round(each)


def is_stored(facts: Facts, name: str, end: int) -> bool:
    """Return True if objects of this class may be the items of a declared store.

    Their number must match the number of items, and an object must not be much larger than an item. Two stores may
    fill in step, so this is not proof: it excuses a class only while memory shows no other growth.
    """
    return any(_are_its_items(facts, name, store, end) for store in facts.bounded)


def _are_its_items(facts: Facts, name: str, store: Bounded, end: int) -> bool:
    size, most = facts.bytes_each.get(name), store.fullest(end)
    if size is None or not store.bytes or store.is_over(end) or store.length[most] <= 0:
        return False
    if size > _AS_LARGE * store.bytes[most] / store.length[most]:
        return False
    counts = facts.timeline.readings(f"type.{name}.count")[:end]
    pairs = [(a, b) for a, b in zip(counts, store.length, strict=False) if a is not None]
    alike = all(abs(count - length) <= _EXACTLY * length for count, length in pairs)
    return alike and len({length for _, length in pairs}) >= _MIN_LENGTHS


def grows_while_a_store_fills(facts: Facts, name: str, end: int, *, full: bool = False) -> bool:
    """Return True if the latest rises of a type's count coincided with new items in a declared store.

    The number of objects per item may vary, for example tokens per document or steps per episode. With ``full``,
    only stores that have stopped filling are considered.
    """
    x, counts = facts.timeline.points(f"type.{name}.count", end)
    at = [facts.timeline.position[int(generation)] for generation in x]
    rises = [(at[i - 1], at[i]) for i in range(1, len(at)) if counts[i] > counts[i - 1]]
    within = (
        store
        for store in facts.bounded
        if store.declared and not store.is_over(end) and not (full and store.is_filling(end))
    )
    return bool(rises) and any(
        all(store.length[after] > store.length[before] for before, after in rises[-_MIN_LENGTHS:])
        for store in within
    )


def overshooting(facts: Facts, end: int) -> Iterator[tuple[str, CountGrowth]]:
    """Yield (name, growth of the excess) for each declared store whose excess over its capacity grows."""
    timeline = facts.timeline
    x = [float(g) for g in timeline.generations[:end]]
    for store in facts.bounded:
        if store.is_over(end):
            growth = count_growth(x, store.overshoot(end), x[0], timeline.spacing(end))
            if growth is not None:
                yield store.name, growth


Family = Literal["object", "figure", "graph", "tensor", "array", "container", "library", "plain"]
# Families of types that the program does not define and that reveal little about what it retains.
OF_OTHERS: Final[tuple[Family, ...]] = ("plain", "library")

_PARAMETER: Final = "Parameter"
_TENSORS: Final = (TENSOR, f"torch.nn.parameter.{_PARAMETER}", JS_TENSOR)
_LIBRARIES: Final = frozenset(
    {"torch", "numpy", "matplotlib", "pandas", "scipy", "PIL", "leakline", "psutil", "tqdm", "gymnasium",
     "gym", "jax", "tensorflow", "sklearn", "lightning", "pytorch_lightning", "transformers", "mpl_toolkits",
     "contourpy", "fontTools", "kiwisolver", "pyparsing", "sympy", "networkx", "triton", "pynvml", "rich"}
)  # fmt: skip
_PLAIN: Final = frozenset(
    {"list", "dict", "tuple", "set", "frozenset", "str", "bytes", "int", "float", "complex", "bool", "bytearray",
     "function", "builtin_function_or_method", "method", "cell", "code", "frame", "traceback", "generator",
     "module", "type", "object", "slice", "range", "property", "staticmethod", "classmethod", "weakref",
     "ReferenceType", "getset_descriptor", "wrapper_descriptor", "method-wrapper", "mappingproxy", "deque"}
)  # fmt: skip
# Standard library modules whose classes hold memory of the system or of a C library, such as thread stacks.
_OF_THE_SYSTEM: Final = frozenset({
    "_bz2", "_ctypes", "_elementtree", "_io", "_lzma", "_socket", "_sqlite3", "_ssl", "bz2", "concurrent", "ctypes",
    "http", "io", "lzma", "mmap", "multiprocessing", "pyexpat", "select", "socket", "sqlite3", "ssl", "tempfile",
    "threading", "urllib", "zlib",
})  # fmt: skip
# The largest memory of one node with its C++ objects and small saved tensors.
_NODE_BYTES: Final = 2**16
# Nodes of autograd graphs: torch reports them without a module, whereas a program's own functions have a module.
_NODE: Final = re.compile(r"(\w*Backward\d*|AccumulateGrad|CppFunction)\Z")
# A phase owns growth only if the phase keeps at least this share of the growth.
OWNS: Final = 0.60
_PHASE_WINDOW: Final = 64
_MIN_READINGS: Final = 3
# A phase with at least this share of a shared type's growth gets a candidate of its own.
_PART: Final = 0.25
# A phase that made less than this share of the growing objects does not count as a phase that makes these objects.
BORN: Final = 0.05
# Objects made between phases, for example while a program loads, are ignored below this share of growth.
_CHANCE: Final = 0.1
# If at least this share of the new tensors carry a graph, the growth is attributed to retained graphs.
_GRAPH_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a count rises: top-level phase, nested path and the phase's share of the rise."""

    phase: str | None
    path: str | None
    share: float | None


NOWHERE: Final = Place(None, None, None)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A type or container whose count grows.

    ``bytes_rate`` is the measured growth in bytes per generation; ``deep`` means that these bytes include
    everything that the objects hold.
    """

    name: str
    role: Literal["type", "container"]
    family: Family
    growth: CountGrowth
    place: Place
    bytes_rate: float | None
    deep: bool
    declared: bool
    holder: str | None = None
    violation: Violation | None = None
    # True if the store exceeds its declared capacity and the excess grows.
    overfull: bool = False
    # The series that grows, if known: figures are counted while they are open, and until they are freed.
    series: str | None = None


def may_hide_memory(c: Candidate) -> bool:
    """Return True for handles, which may hold memory beyond their measured bytes.

    A handle belongs to a library or to the system. An object with a known holder but no deep size contains a handle
    or refers to more objects than could be walked.
    """
    # All that a cache holds are counted objects. Handles such as connections come with one.
    if c.family not in ("object", "library") or c.deep or c.name == "functools._lru_cache_wrapper":
        return False
    return c.holder is not None or c.name.partition(".")[0] in _OF_THE_SYSTEM


def chain_can_hold(chain: Candidate, rate: float) -> bool:
    """Return True if a growing chain of autograd nodes can hold ``rate`` bytes per generation.

    ``bytes_rate`` is the growth of the data that the nodes save, or None between two measurements. The limit per node
    also covers small saved tensors.
    """
    return rate <= _NODE_BYTES * chain.growth.slope + _AS_LARGE * (chain.bytes_rate or 0.0)


def grows_larger(c: Candidate) -> bool:
    """Return True for a type whose bytes rise although the number of its objects does not."""
    more = c.growth.slope > 0 or c.growth.rises < 2 or c.violation is not None
    return c.role == "type" and not more and (c.bytes_rate or 0.0) > 0


def find_candidates(facts: Facts, end: int) -> list[Candidate]:
    """Return a candidate for each type and container that grows in the timeline's first ``end`` generations."""
    found: list[Candidate] = []
    growths = facts.growths(end)
    named = set[tuple[str, str]]()
    for series, name, role in facts.count_series:
        if (name, role) in named:
            continue
        growth = growths.get(series)
        if growth is not None and not _fills_a_store(facts, series, name, role, growth, end):
            found.append(describe(facts, series, name, role, growth, end))
            named.add((name, role))
    found += [
        replace(
            describe(facts, f"tracked.{name}.length", name, "container", growth, end),
            overfull=True,
        )
        for name, growth in overshooting(facts, end)
    ]
    graph = _kept_graphs(facts, found, end)
    if graph is not None:
        graphs = _graphs_by_phase(facts, graph, found, end)
        found = [*graphs, *_without_graphs(found, graph)]
    found += _carried_chain(facts, graph, end)
    return [part for candidate in found for part in _by_phase(facts, candidate, end)]


def _fills_a_store(
    facts: Facts, series: str, name: str, role: str, growth: CountGrowth, end: int
) -> bool:
    """Return True if growth only fills a declared store.

    For the program's own classes, this is true only if the path that holds them lies in a store. For built-in types,
    arrays and tensors, it is also true if their count rises with the number of items in a store.
    """
    if lies_in_a_store(facts, series, name, role, end):
        return True
    if role != "type" or family_of(name, role) not in ("plain", "array", "tensor"):
        return False
    return comes_with_a_store(facts, series, growth, end)


def _kept_graphs(facts: Facts, found: Sequence[Candidate], end: int) -> Candidate | None:
    """Return the growth of tensors with an autograd graph as a separate candidate, or None.

    The growth is measured by the count of these tensors, or by a single heap scan after tensors began to grow. A
    filling store excuses its tensors, which are then missing from ``found``, but it does not excuse their graphs.
    """
    timeline, series = facts.timeline, "tensors.graph_count"
    if not timeline.has(series):
        return None
    tensors = next((c for c in found if short_name(c.name) == "Tensor"), None)
    tensors = tensors or _excused_tensors(facts, end)
    growth = growth_of(facts.timeline, series, end)
    if growth is not None and tensors is None and _has_ended(facts, growth, end):
        return None
    if tensors is not None and (growth is None or growth.pattern != "constant"):
        share = _share_with_a_graph(timeline, tensors.growth, end)
        if growth is not None and share > 0:
            growth = scaled(growth, share * tensors.growth.slope / growth.slope)
        elif share >= _GRAPH_SHARE:
            growth = scaled(tensors.growth, share)
    if growth is None:
        return None
    size = gained_since(timeline, "tensors.graph_bytes", growth.start, end)
    name = tensors.name if tensors is not None else TENSOR
    place = _graph_place(facts, found, tensors, growth, end)
    holder = facts.holders.get(name)
    return Candidate(name, "type", "graph", growth, place, size or None, bool(size), False, holder)


def _carried_chain(facts: Facts, graph: Candidate | None, end: int) -> list[Candidate]:
    """Return the growth of the longest chain of autograd nodes: one tensor may keep it, and no count then rises.

    Reading a chain turns the data that it saved into tensors, so ``graph`` may be the same growth; its phase is used.
    """
    timeline, series = facts.timeline, "tensors.graph_depth"
    growth = growth_of(timeline, series, end) if timeline.has(series) else None
    if growth is None:
        return []
    size = gained_since(timeline, "tensors.graph_bytes", growth.start, end) or None
    place = NOWHERE if graph is None else graph.place
    holder = facts.holders.get(GRAPH_NODE)
    return [Candidate(GRAPH_NODE, "type", "graph", growth, place, size, False, False, holder)]


def _excused_tensors(facts: Facts, end: int) -> Candidate | None:
    """Return the candidate for growing tensors, even if a store excuses the growth, or None."""
    growths = facts.growths(end)
    for series, name, role in facts.count_series:
        if short_name(name) == "Tensor" and series in growths:
            return describe(facts, series, name, role, growths[series], end)
    return None


def _share_with_a_graph(timeline: Timeline, growth: CountGrowth, end: int) -> float:
    """Return the share (0 to 1) of new tensors that carry a graph.

    The share follows from heap scans before and after growth began. A sliced scan reports the state of the previous
    generation, but it counts tensors and graphs in the same slices. With a single scan, the earlier number of
    tensors is unknown, so the graphs are compared with the number of tensors that the growth has added up to that
    scan.
    """
    tensors = dict(zip(*timeline.points("tensors.count", end, baseline=True), strict=True))
    looks = [
        (x, count, tensors[x])
        for x, count in zip(
            *timeline.points("tensors.graph_count", end, baseline=True), strict=True
        )
        if x in tensors
    ]
    since = [look for look in looks if look[0] >= growth.start]
    if not since:
        return 0.0
    newest, graphs, new = since[-1]
    earlier = [look for look in looks if look[0] < growth.start][-1:] or since[:-1]
    if earlier:
        _, before, least = earlier[0]
        graphs, new = graphs - before, new - least
    else:
        new = min(new, growth.slope * (newest - growth.start + 1))
    return max(0.0, min(1.0, graphs / new)) if new > 0 else 0.0


def _has_ended(facts: Facts, growth: CountGrowth, end: int) -> bool:
    """Return True if tensors have grown far more slowly since the last count of graphs than ``growth`` implies."""
    timeline = facts.timeline
    counted = next((s for s, name, _ in facts.count_series if short_name(name) == "Tensor"), None)
    newest = timeline.newest_reading("tensors.graph_count", end)
    if counted is None or newest is None:
        return False
    read = zip(*timeline.points(counted, end), strict=True)
    since = [(x, n) for x, n in read if x >= timeline.generations[newest]]
    if len(since) <= _MIN_READINGS:
        return False
    (first, before), (last, now) = since[0], since[-1]
    return now - before < _GRAPH_SHARE * growth.slope * (last - first)


def _graph_place(
    facts: Facts,
    found: Sequence[Candidate],
    tensors: Candidate | None,
    growth: CountGrowth,
    end: int,
) -> Place:
    """Return the place where graphs are kept: the phase in which the graph count rises.

    If that phase is unknown, return the phase that keeps the most new tensors, preferably a phase without growing
    objects of the program.
    """
    own = place_of(facts.timeline, "tensors.graph_count", growth.start, end)
    series = next((s for s, n, _ in facts.count_series if tensors and n == tensors.name), None)
    if own.phase is not None or series is None:
        return own
    kept, _ = _kept_by_phase(facts.timeline, series, growth.start, end)
    owned = {c.place.phase for c in found if c.family == "object" and (c.deep or c.declared)}
    phases = {p: r for p, r in kept.items() if p not in (BETWEEN, UNKNOWN_PHASE) and r > 0}
    free = {p: r for p, r in phases.items() if p not in owned} or phases
    if not free:
        return NOWHERE
    best = max(free, key=lambda p: (free[p], p))
    return Place(best, best, min(1.0, free[best] / sum(free.values())))


def _without_graphs(found: Sequence[Candidate], graph: Candidate) -> list[Candidate]:
    """Subtract the tensors that carry a graph from their type's candidate.

    The candidate is dropped if little growth remains.
    """
    rest = []
    for candidate in found:
        if candidate.family == "tensor" and candidate.name == graph.name:
            left = 1 - graph.growth.slope / candidate.growth.slope
            if left < _PART:
                continue
            candidate = replace(candidate, growth=scaled(candidate.growth, left))
        rest.append(candidate)
    return rest


def scaled(growth: CountGrowth, share: float) -> CountGrowth:
    """Return the growth multiplied by ``share``, with the same pattern."""
    return replace(
        growth, slope=growth.slope * share, low=growth.low * share, high=growth.high * share,
        each=growth.each * share,
    )  # fmt: skip


def _by_phase(facts: Facts, candidate: Candidate, end: int) -> list[Candidate]:
    """Split a candidate by phase if its type may have many owners.

    Tensors, arrays, library types and built-in types are split; other candidates stay whole.
    """
    if candidate.role == "container" or candidate.family in ("object", "figure", "graph"):
        return [candidate]
    return _parts(facts, candidate, series_of(facts, candidate), end, frozenset())


def _graphs_by_phase(
    facts: Facts, graph: Candidate, found: Sequence[Candidate], end: int
) -> list[Candidate]:
    """Split retained graphs by phase if nearly all new tensors carry a graph.

    Phases that make growing objects or parameters are left out, because the tensors made there belong to these
    objects.
    """
    series = next((s for s, n, _ in facts.count_series if n == graph.name), None)
    tensors = next((c for c in found if (c.name, c.role) == (graph.name, "type")), None)
    if series is None or tensors is None or graph.growth.slope < (1 - _PART) * tensors.growth.slope:
        return [graph]
    owned = {
        c.place.phase
        for c in found
        if (c.family == "object" and (c.deep or c.declared)) or short_name(c.name) == _PARAMETER
    }
    whole = replace(graph, growth=tensors.growth)
    parts = _parts(facts, whole, series, end, frozenset(p for p in owned if p is not None))
    return parts if len(parts) > 1 else [graph]


def _parts(
    facts: Facts, candidate: Candidate, series: str, end: int, without: frozenset[str]
) -> list[Candidate]:
    """Return one candidate for each phase with a substantial share of the growth in count or bytes.

    Phases in ``without`` are ignored. If fewer than two phases qualify, return the candidate unchanged.
    """
    start = candidate.growth.start
    kept, _ = _kept_by_phase(facts.timeline, series, start, end)
    total = sum(rate for rate in kept.values() if rate > 0)
    elsewhere = sum(max(0.0, kept.get(name, 0.0)) for name in (BETWEEN, UNKNOWN_PHASE))
    if elsewhere < _CHANCE * total:
        total -= elsewhere
    live = live_bytes_by_phase(facts.timeline, first_position(facts.timeline, start), end) or {}
    known = sum(live.get(phase, 0.0) for phase, rate in kept.items() if rate > 0)
    shares = {
        phase: (rate / total, live.get(phase, 0.0) / known if known > 0 else rate / total)
        for phase, rate in sorted(kept.items())
        if phase not in (BETWEEN, UNKNOWN_PHASE, *without) and rate >= BORN * total > 0
    }
    parts = {phase: share for phase, share in shares.items() if max(share) >= _PART}
    if len(parts) < 2:
        return [candidate]
    size = candidate.bytes_rate
    return [
        replace(
            candidate, growth=scaled(candidate.growth, count), place=Place(phase, phase, 1.0),
            bytes_rate=None if size is None else size * weight,
        )
        for phase, (count, weight) in parts.items()
    ]  # fmt: skip


def born_in(timeline: Timeline, series: str, start: float, end: int) -> set[str]:
    """Return the phases that have created a relevant share of the live objects since ``start``.

    For a container, phases that remove items are included: it grows because more items are added than these phases
    remove.
    """
    if not timeline.has(series):
        return set()
    kept, change = _kept_by_phase(timeline, series, start, end)
    total = sum(rate for rate in kept.values() if rate > 0)
    if series.endswith(".length"):
        changes: dict[str, float] = {}
        for path, rate in change.items():
            changes[top_level(path)] = changes.get(top_level(path), 0.0) + rate
        kept = {phase: abs(rate) for phase, rate in changes.items()}
    named = {phase: rate for phase, rate in kept.items() if phase not in (BETWEEN, UNKNOWN_PHASE)}
    return {phase for phase, rate in named.items() if rate >= BORN * total > 0}


def counted_in(facts: Facts, c: Candidate) -> str | None:
    """Return the series in which a candidate is counted, or None."""
    return c.series or facts.series_of(c.name, c.role)


def series_of(facts: Facts, c: Candidate) -> str:
    """Return the series that counts a candidate, or the one of the declared container that is a candidate."""
    return counted_in(facts, c) or f"tracked.{c.name}.length"


def describe(
    facts: Facts,
    series: str,
    name: str,
    role: Literal["type", "container"],
    growth: CountGrowth,
    end: int,
    violation: Violation | None = None,
) -> Candidate:
    """Return a candidate with its family, place and measured bytes."""
    family = family_of(name, role)
    rate, deep = _bytes_rate(facts, name, role, family, growth, end)
    declared = short_name(name) in facts.watched
    place = place_of(facts.timeline, series, growth.start, end)
    return Candidate(
        name, role, family, growth, place, rate, deep, declared, facts.holders.get(name), violation, series=series
    )  # fmt: skip


def family_of(name: str, role: str) -> Family:
    """Return the family of a type or container, judged by its name alone."""
    if role == "container":
        return "container"
    if name in _TENSORS or name == "Tensor":
        return "tensor"
    if name in (ARRAY, "ndarray"):
        return "array"
    if name == FIGURE:
        return "figure"
    root = name.split(".", 1)[0]
    if root == "builtins" or short_name(name) in _PLAIN:
        return "plain"
    if "." in name and (
        root in _LIBRARIES or (root in sys.stdlib_module_names and root != "__main__")
    ):
        return "library"
    return "library" if _NODE.match(name) else "object"


def is_of_the_program(path: str) -> bool:
    """Return True if the path begins in the program itself, not in a library."""
    root = re.split(r"[.\[]", path, maxsplit=1)[0]
    return root == "__main__" or (root not in _LIBRARIES and root not in sys.stdlib_module_names)


def _bytes_rate(
    facts: Facts, name: str, role: str, family: Family, growth: CountGrowth, end: int
) -> tuple[float | None, bool]:
    """Return (bytes per generation or None, whether these bytes include everything that the objects hold)."""
    each = facts.bytes_each.get(name)
    if each is not None:
        return growth.slope * each, True
    if role == "container":
        for series in (f"container.{name}.bytes", f"tracked.{name}.bytes"):
            rate = rate_of(facts.timeline, series, growth.start, end)
            if rate is not None:
                return rate, False
        return None, False
    rate = rate_of(facts.timeline, bytes_series(name, family), growth.start, end)
    if family == "tensor" and rate is not None:
        # Device memory does not explain growth of host memory.
        on_devices = rate_of(facts.timeline, "tensors.device_bytes", growth.start, end)
        rate = max(0.0, rate - on_devices) if on_devices else rate
    return rate, family in ("tensor", "array") and rate is not None


def bytes_series(name: str, family: Family) -> str:
    """Return the name of the series with the bytes of a type; tensors and arrays include their data."""
    if name == JS_TENSOR:
        return JS_TENSOR_BYTES
    return {"tensor": "tensors.bytes", "array": "arrays.bytes"}.get(family, f"type.{name}.bytes")


def rate_of(timeline: Timeline, series: str, start: float, end: int) -> float | None:
    """Return the growth per generation of a series since ``start``, or None with fewer than three readings.

    The baseline is excluded, since memory that a program builds up in its first generations is not growth.
    """
    if not timeline.has(series):
        return None
    x, y = timeline.points(series, end)
    first = next((i for i, at in enumerate(x) if at >= start - 1), len(x))
    if len(x) - first < _MIN_READINGS:
        return None
    return floor_slope(x[first:], y[first:]).estimate


def gained_since(timeline: Timeline, series: str, start: float, end: int) -> float | None:
    """Return the gain per generation from the last reading before ``start`` to the newest reading.

    Return None without a reading since ``start``. A series that begins at zero, such as tensors with a graph, needs
    only one heap scan after the start.
    """
    if not timeline.has(series):
        return None
    x, y = timeline.points(series, end, baseline=True)
    if not x or x[-1] < start:
        return None
    before = [value for at, value in zip(x, y, strict=True) if at < start]
    return max(0.0, y[-1] - (before[-1] if before else 0.0)) / (x[-1] - start + 1)


def place_of(timeline: Timeline, series: str, start: float, end: int) -> Place:
    """Return the place that keeps a count's rise since ``start``.

    The usual change before ``start`` is subtracted.
    """
    tops, rates = _kept_by_phase(timeline, series, start, end)
    total = sum(rate for rate in tops.values() if rate > 0)
    if total <= 0:
        return NOWHERE
    _, best = max(zip(tops.values(), tops, strict=True))
    share = tops[best] / total
    if best in (BETWEEN, UNKNOWN_PHASE) or share < OWNS:
        return Place(None, None, share if best == BETWEEN else None)
    inner = {p: r for p, r in rates.items() if r > 0 and top_level(p) == best}
    _, path = max(zip(inner.values(), inner, strict=True), default=(0.0, best))
    owns = bool(inner) and inner[path] >= OWNS * sum(inner.values())
    return Place(best, path if owns else best, share)


def _kept_by_phase(
    timeline: Timeline, series: str, start: float, end: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return (instances kept per generation by top-level phase, change of the count per generation by phase path)."""
    return timeline.known.once(
        end, ("phases", series, start), lambda: _by_phases(timeline, series, start, end)
    )


def _by_phases(
    timeline: Timeline, series: str, start: float, end: int
) -> tuple[dict[str, float], dict[str, float]]:
    begin = first_position(timeline, start)
    after = timeline.increments(series, max(begin, end - _PHASE_WINDOW), end)
    before = timeline.increments(series, max(0, begin - _PHASE_WINDOW), min(begin, end))
    rates = _rates_by_path(after)
    usual = _rates_by_path(before) if sum(bool(line) for line in before) >= 3 else {}
    # If the count already rose more than half as fast before ``start``, the growth did not begin there, and there
    # is no baseline to compare with.
    if 2 * sum(usual.values()) <= sum(rates.values()):
        rates = {p: rates.get(p, 0.0) - usual.get(p, 0.0) for p in {**rates, **usual}}
    tops: dict[str, float] = {}
    for path, rate in rates.items():
        top = top_level(path)
        tops[top] = tops.get(top, 0.0) + rate
    return without_give_and_take(tops), rates


def first_position(timeline: Timeline, start: float) -> int:
    """Return the position of the first generation at or after ``start``, or 0 if every generation is earlier."""
    return next((i for i, g in enumerate(timeline.generations) if g >= start), 0)


def _rates_by_path(lines: tuple[Mapping[str, float], ...]) -> dict[str, float]:
    rates: dict[str, float] = {}
    for line in lines:
        for path, change in line.items():
            rates[path] = rates.get(path, 0.0) + change / max(1, len(lines))
    return rates

"""What grows: every count series with lasting growth, with its phase and the bytes measured for it."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from ..snapshot import CYCLIC_GARBAGE, Holder
from .books import without_give_and_take
from .bounds import Bounded, bounded_containers, tracked_names
from .contracts import Readings, Violation, applicable_readings, find_violation, types_of
from .counts import LOOK_BACK, CountGrowth, count_growth
from .history import RunHistory
from .series import BETWEEN, UNKNOWN_PHASE, Lane, top_level
from .trend import floor_slope
from .wording import short_name

Family = Literal["object", "figure", "graph", "tensor", "array", "container", "library", "plain"]

TENSOR: Final = "torch.Tensor"
ARRAY: Final = "numpy.ndarray"
FIGURE: Final = "matplotlib.figure.Figure"
_TENSORS: Final = (TENSOR, "torch.nn.parameter.Parameter")
_LIBRARIES: Final = frozenset(
    {"torch", "numpy", "matplotlib", "pandas", "scipy", "PIL", "leakline", "psutil", "tqdm", "gymnasium",
     "gym", "jax", "tensorflow", "sklearn", "lightning", "pytorch_lightning", "transformers", "mpl_toolkits",
     "contourpy", "fontTools", "kiwisolver", "pyparsing", "sympy", "networkx", "triton", "pynvml"}
)  # fmt: skip
_PLAIN: Final = frozenset(
    {"list", "dict", "tuple", "set", "frozenset", "str", "bytes", "int", "float", "complex", "bool", "bytearray",
     "function", "builtin_function_or_method", "method", "cell", "code", "frame", "traceback", "generator",
     "module", "type", "object", "slice", "range", "property", "staticmethod", "classmethod", "weakref",
     "ReferenceType", "getset_descriptor", "wrapper_descriptor", "method-wrapper", "mappingproxy", "deque"}
)  # fmt: skip
# A phase that keeps less of a growth than this does not own it.
OWNS: Final = 0.60
_PHASE_WINDOW: Final = 64
_MIN_READINGS: Final = 3
# A phase with at least this share of a shared type's rise is a place of its own.
_PART: Final = 0.25
# Of what a type gained, the share that must be garbage before garbage is what it grows by.
_MOST_OF_A_RISE: Final = 0.5
# Generations without a reading after which a count is set against memory, and the part of its rate that goes on.
_STALE: Final = 4
_GOES_ON: Final = 0.25
# Of a search, a path with this share of what the best one holds may be the culprit too.
_AS_MANY: Final = 0.3
# With this share of the new tensors holding a graph, graphs are what is kept.
_GRAPH_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Place:
    """Where a count rises: the top-level phase, the nested path, and the share of the rise that is there."""

    phase: str | None
    path: str | None
    share: float | None


NOWHERE: Final = Place(None, None, None)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A count that grows. ``bytes_rate`` is measured bytes per generation; ``deep`` if it includes what is held."""

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


class Facts:
    """What the run declares and what its holders say; one object for all moments of a lane."""

    def __init__(self, history: RunHistory, lane: Lane) -> None:
        self.history = history
        self.lane = lane
        self.holders = _best_holders(self._lasting(history.holders), self._growing_containers())
        self.bytes_each = _bytes_each(history.holders)
        self.watched = frozenset(
            short_name(e.name) for e in history.events if e.kind in ("watch", "expect")
        ) | {short_name(e.type) for e in history.expectations}
        self.readings: tuple[Readings, ...] = applicable_readings(lane, history.expectations)

    def _growing_containers(self) -> list[str]:
        return [
            name
            for series, name, role in self.count_series
            if role == "container" and _growth(self, series, len(self.lane)) is not None
        ]

    def _lasting(self, holders: Sequence[Holder]) -> list[Holder]:
        """Without garbage that is little of what grew: some of any class may wait for the collector for a while."""
        newest: dict[str, Holder] = {}
        for holder in holders:
            known = newest.get(holder.type)
            if holder.path == CYCLIC_GARBAGE and (not known or holder.sequence >= known.sequence):
                newest[holder.type] = holder
        passing = {name for name, holder in newest.items() if self._is_passing(holder)}
        return [h for h in holders if h.path != CYCLIC_GARBAGE or h.type not in passing]

    def _is_passing(self, holder: Holder) -> bool:
        process = next(
            (p for p in self.history.processes if p.instance == self.lane.instance), None
        )
        if process is None:
            return False
        upto = bisect_right(process.sequence, holder.sequence)
        counts = process.series.get(f"type.{holder.type}.count", ())[:upto]
        known = [count for count in counts if count is not None]
        return bool(known) and holder.count < _MOST_OF_A_RISE * (known[-1] - min(known))

    @cached_property
    def bounded(self) -> tuple[Bounded, ...]:
        return bounded_containers(self.lane, self.history.capacities)

    @cached_property
    def bounded_bytes(self) -> list[float]:
        """Bytes of all bounded containers per generation."""
        sizes = [b.gained for b in self.bounded if b.gained]
        return [sum(size[i] for size in sizes) for i in range(len(self.lane))] if sizes else []

    @cached_property
    def count_series(self) -> tuple[tuple[str, str, Literal["type", "container"]], ...]:
        """(series, name, role) of everything whose count can be a witness."""
        lane = self.lane
        types = types_of(lane)
        found: list[tuple[str, str, Literal["type", "container"]]] = []
        if lane.has("figures.open"):
            # What pyplot has open is exact and often read, and goes before the class of the same name.
            found.append(("figures.open", FIGURE, "type"))
        found.extend((f"type.{name}.count", name, "type") for name in sorted(types))
        for series, name in (("tensors.count", TENSOR), ("arrays.count", ARRAY)):
            if lane.has(series) and name not in types:
                found.append((series, name, "type"))
        found.extend(
            (series, series[len("container.") : -len(".length")], "container")
            for series in sorted(lane.series)
            if series.startswith("container.")
            and series.endswith(".length")
            and not any(self._is_store(series, bounded) for bounded in self.bounded)
        )
        free = tracked_names(lane) - {b.name for b in self.bounded}
        found.extend((f"tracked.{name}.length", name, "container") for name in sorted(free))
        return tuple(found)

    def _is_store(self, series: str, bounded: Bounded) -> bool:
        """Whether this container is what a tracked one keeps its items in: as long in every reading."""
        lengths = self.lane.readings(series)
        pairs = [(a, b) for a, b in zip(lengths, bounded.length, strict=True) if a is not None]
        return len(pairs) >= 2 and all(a == b for a, b in pairs) and pairs[0] != pairs[-1]

    def violations(self, last_row: int) -> dict[str, Violation]:
        """type -> its surplus now. Fewer than declared is shown with the expectations; it is no leak."""
        found: dict[str, Violation] = {}
        for readings in self.readings:
            violation = find_violation(self.lane, readings, last_row)
            if violation is None or not violation.above:
                continue
            known = found.get(violation.type)
            if known is None or (violation.proven and not known.proven):
                found[violation.type] = violation
        return found


def find_candidates(facts: Facts, upto: int) -> list[Candidate]:
    """Everything that grows at the end of generation number ``upto`` of the lane."""
    found: list[Candidate] = []
    for series, name, role in facts.count_series:
        if any((c.name, c.role) == (name, role) for c in found):
            continue
        growth = _growth(facts, series, upto)
        if growth is not None:
            found.append(describe(facts, series, name, role, growth, upto))
    graph = _kept_graphs(facts, found, upto)
    if graph is not None:
        found = [graph, *_without_graphs(found, graph)]
    return [part for candidate in found for part in _by_phase(facts, candidate, upto)]


def _growth(facts: Facts, series: str, upto: int) -> CountGrowth | None:
    x, counts = facts.lane.points(series, upto, baseline=True, newest=LOOK_BACK)
    growth = count_growth(x, counts, facts.lane.generations[0]) if counts else None
    return None if growth is None or _is_stale(facts.lane, growth, x[-1], upto) else growth


def _is_stale(lane: Lane, growth: CountGrowth, read: float, upto: int) -> bool:
    """Whether a growth was last seen a while ago, and memory has hardly risen since, though it rose with it."""
    age = lane.generations[upto - 1] - read
    if age < _STALE or not lane.private or growth.start > read:
        return False
    at = lane.position.get(int(read), 0)
    first = max(0, at - round(min(age, growth.generations)))
    before = lane.private[at] - lane.private[first]
    since = lane.private[upto - 1] - lane.private[at]
    return at > first and since * (at - first) < _GOES_ON * before * (upto - 1 - at)


def _kept_graphs(facts: Facts, found: Sequence[Candidate], upto: int) -> Candidate | None:
    """Tensors with a graph as a growth of their own: by their count, or by one look after tensors began to grow."""
    lane, series = facts.lane, "tensors.graph_count"
    if not lane.has(series):
        return None
    tensors = next((c for c in found if short_name(c.name) == "Tensor"), None)
    growth = _growth(facts, series, upto)
    if growth is None and tensors is not None:
        rate = gained_since(lane, series, tensors.growth.start, upto) or 0.0
        if rate >= _GRAPH_SHARE * tensors.growth.slope:
            growth = scaled(tensors.growth, min(1.0, rate / tensors.growth.slope))
    if growth is None:
        return None
    size = gained_since(lane, "tensors.graph_bytes", growth.start, upto)
    name = tensors.name if tensors is not None else TENSOR
    place = _graph_place(facts, found, tensors, growth, upto)
    holder = facts.holders.get(name)
    return Candidate(name, "type", "graph", growth, place, size or None, bool(size), False, holder)


def _graph_place(
    facts: Facts,
    found: Sequence[Candidate],
    tensors: Candidate | None,
    growth: CountGrowth,
    upto: int,
) -> Place:
    """Where graphs are kept: where tensors rise that no growing object of the program holds."""
    own = place_of(facts.lane, "tensors.graph_count", growth.start, upto)
    series = next((s for s, n, _ in facts.count_series if tensors and n == tensors.name), None)
    if own.phase is not None or series is None:
        return own
    kept, _ = _kept_by_phase(facts.lane, series, growth.start, upto)
    owned = {c.place.phase for c in found if c.family == "object" and (c.deep or c.declared)}
    phases = {p: r for p, r in kept.items() if p not in (BETWEEN, UNKNOWN_PHASE) and r > 0}
    free = {p: r for p, r in phases.items() if p not in owned} or phases
    if not free:
        return NOWHERE
    best = max(free, key=lambda p: (free[p], p))
    return Place(best, best, min(1.0, free[best] / sum(free.values())))


def _without_graphs(found: Sequence[Candidate], graph: Candidate) -> list[Candidate]:
    """Tensors less those with a graph; nothing is left of them where the graphs are most of the rise."""
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
    """A part of a growth, of the same pattern."""
    return replace(
        growth, slope=growth.slope * share, low=growth.low * share, high=growth.high * share,
        each=growth.each * share,
    )  # fmt: skip


def _by_phase(facts: Facts, candidate: Candidate, upto: int) -> list[Candidate]:
    """Tensors, arrays and library types serve many owners: one candidate for each phase that keeps its part."""
    if candidate.role == "container" or candidate.family in ("object", "figure", "graph"):
        return [candidate]
    series = next(s for s, n, r in facts.count_series if (n, r) == (candidate.name, candidate.role))
    kept, _ = _kept_by_phase(facts.lane, series, candidate.growth.start, upto)
    total = sum(rate for rate in kept.values() if rate > 0)
    parts = {
        phase: rate / total
        for phase, rate in sorted(kept.items())
        if phase not in (BETWEEN, UNKNOWN_PHASE) and rate >= _PART * total > 0
    }
    if len(parts) < 2:
        return [candidate]
    size = candidate.bytes_rate
    return [
        replace(
            candidate, growth=scaled(candidate.growth, share), place=Place(phase, phase, 1.0),
            bytes_rate=None if size is None else size * share,
        )
        for phase, share in parts.items()
    ]  # fmt: skip


def describe(
    facts: Facts,
    series: str,
    name: str,
    role: Literal["type", "container"],
    growth: CountGrowth,
    upto: int,
    violation: Violation | None = None,
) -> Candidate:
    """A candidate with its family, its place and its measured bytes."""
    family = family_of(name, role)
    rate, deep = _bytes_rate(facts, name, role, family, growth, upto)
    declared = short_name(name) in facts.watched
    place = place_of(facts.lane, series, growth.start, upto)
    return Candidate(
        name, role, family, growth, place, rate, deep, declared, facts.holders.get(name), violation
    )  # fmt: skip


def family_of(name: str, role: str) -> Family:
    """What kind of thing a type or container is, by its name alone."""
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
    return "object"


def _bytes_rate(
    facts: Facts, name: str, role: str, family: Family, growth: CountGrowth, upto: int
) -> tuple[float | None, bool]:
    """(bytes per generation, whether they include what the objects hold)."""
    each = facts.bytes_each.get(name)
    if each is not None:
        return growth.slope * each, True
    if role == "container":
        for series in (f"container.{name}.bytes", f"tracked.{name}.bytes"):
            rate = rate_of(facts.lane, series, growth.start, upto)
            if rate is not None:
                return rate, False
        return None, False
    series = {"tensor": "tensors.bytes", "array": "arrays.bytes"}.get(family, f"type.{name}.bytes")
    rate = rate_of(facts.lane, series, growth.start, upto)
    return rate, family in ("tensor", "array") and rate is not None


def rate_of(lane: Lane, series: str, start: float, upto: int) -> float | None:
    """Growth per generation of a series since ``start``; None with fewer than three readings since.

    The baseline does not count: what a program builds up in its first generations is no growth.
    """
    if not lane.has(series):
        return None
    x, y = lane.points(series, upto)
    first = next((i for i, at in enumerate(x) if at >= start - 1), len(x))
    if len(x) - first < _MIN_READINGS:
        return None
    return floor_slope(x[first:], y[first:]).estimate


def gained_since(lane: Lane, series: str, start: float, upto: int) -> float | None:
    """Gain per generation since ``start`` by the newest reading alone, against the one before the start.

    For series that begin at zero, such as tensors with a graph, one look after the start is enough.
    """
    if not lane.has(series):
        return None
    x, y = lane.points(series, upto, baseline=True)
    if not x or x[-1] < start:
        return None
    before = [value for at, value in zip(x, y, strict=True) if at < start]
    return max(0.0, y[-1] - (before[-1] if before else 0.0)) / (x[-1] - start + 1)


def place_of(lane: Lane, series: str, start: float, upto: int) -> Place:
    """The phase that keeps a count's rise since ``start``, against what it did before."""
    tops, rates = _kept_by_phase(lane, series, start, upto)
    total = sum(rate for rate in tops.values() if rate > 0)
    if total <= 0:
        return NOWHERE
    best = max(tops, key=lambda name: (tops[name], name))
    share = tops[best] / total
    if best in (BETWEEN, UNKNOWN_PHASE) or share < OWNS:
        return Place(None, None, share if best == BETWEEN else None)
    inner = {p: r for p, r in rates.items() if top_level(p) == best and r > 0}
    path = max(inner, key=lambda p: (inner[p], p), default=best)
    owns = bool(inner) and inner[path] >= OWNS * sum(inner.values())
    return Place(best, path if owns else best, share)


def _kept_by_phase(
    lane: Lane, series: str, start: float, upto: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Counts per generation that stay in each top-level phase, and what each path adds or takes."""
    lines = lane.increments(series)[:upto]
    begin = next((i for i, g in enumerate(lane.generations) if g >= start), 0)
    after = lines[max(begin, upto - _PHASE_WINDOW) :]
    before = lines[max(0, begin - _PHASE_WINDOW) : begin]
    rates = _rates_by_path(after)
    usual = _rates_by_path(before) if sum(bool(line) for line in before) >= 3 else {}
    # Where it grew as fast before, the start is not where it began, and there is nothing to set against.
    if 2 * sum(usual.values()) <= sum(rates.values()):
        rates = {p: rates.get(p, 0.0) - usual.get(p, 0.0) for p in {**rates, **usual}}
    tops: dict[str, float] = {}
    for path, rate in rates.items():
        tops[top_level(path)] = tops.get(top_level(path), 0.0) + rate
    return without_give_and_take(tops), rates


def _rates_by_path(lines: tuple[Mapping[str, float], ...]) -> dict[str, float]:
    rates: dict[str, float] = {}
    for line in lines:
        for path, change in line.items():
            rates[path] = rates.get(path, 0.0) + change / max(1, len(lines))
    return rates


def _best_holders(holders: Iterable[Holder], growing: Sequence[str] = ()) -> dict[str, str]:
    """type -> the path that held most of its objects when last looked for.

    Of paths that hold about as many the one into a container that grows: the others hold as many as ever.
    """
    newest: dict[str, list[Holder]] = {}
    for holder in holders:
        known = newest.setdefault(holder.type, [])
        if known and holder.sequence > known[0].sequence:
            known.clear()
        if not known or holder.sequence == known[0].sequence:
            known.append(holder)
    return {name: _best_of(found, growing) for name, found in newest.items()}


def _best_of(found: Sequence[Holder], growing: Sequence[str]) -> str:
    most = max(holder.count for holder in found)

    def rank(holder: Holder) -> tuple[bool, int, str]:
        grows = any(_leads_into(holder.path, container) for container in growing)
        return grows and holder.count >= _AS_MANY * most, holder.count, holder.path

    return max(found, key=rank).path


def _leads_into(path: str, container: str) -> bool:
    return path == container or path.startswith((f"{container}[", f"{container}."))


def _bytes_each(holders: tuple[Holder, ...]) -> dict[str, int]:
    newest: dict[str, tuple[int, int]] = {}
    for holder in holders:
        if holder.bytes_each is not None:
            row = (holder.sequence, holder.bytes_each)
            newest[holder.type] = max(newest.get(holder.type, row), row)
    return {name: each for name, (_, each) in newest.items()}

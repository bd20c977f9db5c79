"""The declared limits of a run (bands, limits of gauges, budgets) and the readings of their metrics by generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final

from ..results import Assertion
from ..run_history import RunHistory, Value, amount_of, number_of
from ..timeline import Lane, lies_within
from ..timeline_analysis import LaneStudy

# The metrics of a budget: bytes that a phase keeps, that a generation adds, and that the run has grown by.
KEPT_BY_PHASE: Final = "phase.kept_bytes"
KEPT_BY_GENERATION: Final = "generation.kept_bytes"
KEPT_BY_RUN: Final = "run.kept_bytes"
# The metrics of the promises of a fix.
GROWTH: Final = "growth_bytes_per_generation"
PHASE_GROWTH: Final = "phase_growth_bytes_per_generation"
PEAK: Final = "peak_bytes"
GPU_PEAK: Final = "gpu_peak_bytes"
JUMP: Final = "max_jump_bytes_per_generation"
GENERATIONS: Final = "generations"
# As many in all as memory has room for, those that are complete among them.
POSSIBLE: Final = "possible_generations"
# With the name of a class behind it: instances alive at the end of a generation, in any one process.
COUNT: Final = "count:"
SIZES: Final = (GROWTH, PHASE_GROWTH, PEAK, GPU_PEAK, JUMP)
NUMBERS: Final = (GENERATIONS, POSSIBLE)
NAMES: Final = (*SIZES, *NUMBERS)
# Growth of resident memory from one generation end to the next: computed, not read.
GENERATION_GROWTH: Final = "generation.growth_bytes"
_RESIDENT: Final = "process.rss_bytes"
# A peak covers the time since the previous snapshot: that of a generation is the highest of all its snapshots.
_PEAK: Final = "peak_bytes"
_GAUGE: Final = "gauge."
# The names that stand for the entire run; a phase of the same name has precedence.
_RUN: Final = "run"
_GENERATION: Final = "generation"
# The number of events is up to the sender.
_MAX_OF_AN_ORIGIN: Final = 40

# (generation, amount) of each generation with a reading
Amounts = list[tuple[int, float]]


def declared_assertions(history: RunHistory) -> tuple[Assertion, ...]:
    """Return bands by series and generation, then gauges and budgets as declared, each with its newest bounds.

    Events that declare no valid limit are ignored.
    """
    if not any(history.events_of(origin) for origin in ("band", "gauge", "budget")):
        return ()
    of = (history.events, history.processes, history.phases, history.unit)
    return history.said.once(
        "assertions", of, lambda: (*_bands(history), *_gauges(history), *_budgets(history))
    )


def declared_budgets(history: RunHistory) -> tuple[Assertion, ...]:
    return tuple(each for each in declared_assertions(history) if each.origin == "budget")


def _bands(history: RunHistory) -> list[Assertion]:
    found: dict[tuple[str, int | None, int | None], Assertion] = {}
    for event in history.events_of("band"):
        band = _band(event.name, event.data)
        if band is not None:
            found[band.name, band.first, band.last] = band
    newest = list(found.values())[-_MAX_OF_AN_ORIGIN:]
    return sorted(newest, key=lambda b: (b.name, b.first, b.last or math.inf))


def _band(series: str, data: Mapping[str, Any]) -> Assertion | None:
    first, last = _whole(data.get("first")), _whole(data.get("last"))
    low, high = number_of(data.get("low_bytes")), number_of(data.get("high_bytes"))
    if first is None or (low is None and high is None):
        return None
    if last is None and data.get("last") is not None:
        return None
    return Assertion("band", series, series, None, low, high, None, first, last)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and number_of(value) is not None else None


def _gauges(history: RunHistory) -> list[Assertion]:
    found: dict[str, Assertion] = {}
    for event in history.events_of("gauge"):
        limit = number_of(event.data.get("warn_above"))
        if limit is not None:
            found[event.name] = Assertion(
                "gauge", event.name, f"{_GAUGE}{event.name}", None, None, limit
            )
    return list(found.values())[-_MAX_OF_AN_ORIGIN:]


def _budgets(history: RunHistory) -> list[Assertion]:
    found: dict[str, Assertion] = {}
    for event in history.events_of("budget"):
        normal, leak = (amount_of(event.data.get(f"{end}_bytes")) for end in ("normal", "leak"))
        if normal is not None or leak is not None:
            metric = _metric(history, event.name)
            phase = event.name if metric == KEPT_BY_PHASE else None
            found[event.name] = Assertion("budget", event.name, metric, phase, None, normal, leak)
    return list(found.values())[-_MAX_OF_AN_ORIGIN:]


def _metric(history: RunHistory, name: str) -> str:
    if name not in (_RUN, _GENERATION, history.unit) or _is_phase(history, name):
        return KEPT_BY_PHASE
    return KEPT_BY_RUN if name == _RUN else KEPT_BY_GENERATION


def _is_phase(history: RunHistory, name: str) -> bool:
    return any(lies_within(path, name) for path in history.phases) or has_run(history, name)


def has_run(history: RunHistory, phase: str) -> bool:
    """Return True if a snapshot of any process was taken in the phase or within it."""
    return any(
        path and lies_within(path, phase)
        for process in history.processes
        for path in {*process.phase, *process.left_out.phases}
    )


def is_measured(lane: Lane, series: str) -> bool:
    source = _RESIDENT if series == GENERATION_GROWTH else series
    return any(value is not None for value in lane.series.get(source, ()))


def readings_of(lane: Lane, series: str, *, highest: bool = False) -> Sequence[Value]:
    """Return one reading per generation: that of its end, or of where this series is read most.

    ``highest``: the highest of the generation, as always of a peak.
    """
    if series == GENERATION_GROWTH:
        return _gained(lane)
    if not (highest or series.endswith(_PEAK)):
        return lane.readings(series)
    column = lane.series[series]
    most: dict[int, float] = {}
    for generation, value in zip(lane.generation, column, strict=True):
        if generation is not None and value is not None:
            most[generation] = max(most.get(generation, value), value)
    return [most.get(generation) for generation in lane.generations]


def _gained(lane: Lane) -> Sequence[Value]:
    """Return the growth since the previous end, of the first since the baseline.

    Growth over a resume or over a lost reading is unknown.
    """
    before: Value = None
    if lane.baseline_row is not None:
        before = lane.series[_RESIDENT][lane.baseline_row]
    segment = lane.segment[lane.end_rows[0]] if lane.end_rows else 0
    last = lane.generations[0] - 1 if lane.generations else 0
    gained: list[Value] = []
    for generation, row, now in zip(
        lane.generations, lane.end_rows, lane.readings(_RESIDENT), strict=True
    ):
        follows = generation == last + 1 and lane.segment[row] == segment
        known = follows and now is not None and before is not None
        gained.append(now - before if known and now is not None and before is not None else None)
        before, segment, last = now, lane.segment[row], generation
    return gained


def kept_amounts(study: LaneStudy, budget: Assertion, upto: int) -> Amounts:
    """Return what the scope of a budget kept, in the first ``upto`` generations of a process."""
    return _KEPT_BY[budget.metric](study, budget.name, upto)


def _kept_by_run(study: LaneStudy, _name: str, upto: int) -> Amounts:
    """Return the growth since before the first generation; without a baseline since the end of the first."""
    lane = study.lane
    if not lane.private:
        return []
    before = None if lane.baseline_row is None else lane.private_rows[lane.baseline_row]
    begin = lane.private[0] if before is None else float(before)
    levels = zip(lane.generations[:upto], lane.private[:upto], strict=False)
    return [(generation, level - begin) for generation, level in levels]


def _kept_by_generation(study: LaneStudy, _name: str, upto: int) -> Amounts:
    """Return the growth in each generation but the first, which builds up what stays.

    A rise over a lost generation says nothing of either.
    """
    ends = list(zip(study.lane.generations, study.lane.private, strict=False))[:upto]
    steps = [b - a for (a, _), (b, _) in pairwise(ends)]
    usual = median(steps) if steps else 0
    return [(b, after - before) for (a, before), (b, after) in pairwise(ends) if b - a <= usual]


def _kept_by_phase(study: LaneStudy, name: str, upto: int) -> Amounts:
    """Return what the phase keeps, without the generation it first ran in: what it builds up there stays."""
    found: Amounts = []
    for generation, booked in zip(study.lane.generations[:upto], study.booked, strict=False):
        amounts = [amount for path, amount in booked.items() if lies_within(path, name)]
        if amounts:
            found.append((generation, sum(amounts)))
    return found[1:]


_KEPT_BY: Final[Mapping[str, Callable[[LaneStudy, str, int], Amounts]]] = {
    KEPT_BY_RUN: _kept_by_run, KEPT_BY_GENERATION: _kept_by_generation, KEPT_BY_PHASE: _kept_by_phase,
}  # fmt: skip


def added(each: Sequence[Amounts], metric: str) -> Amounts:
    """Add up processes: one that has ended keeps what it had grown by, and gains nothing more."""
    generations = sorted({g for amounts in each for g, _ in amounts})
    total = dict.fromkeys(generations, 0.0)
    for amounts in each:
        known, newest = dict(amounts), 0.0
        for generation in generations:
            newest = known.get(generation, newest if metric == KEPT_BY_RUN else 0.0)
            total[generation] += newest
    return list(total.items())

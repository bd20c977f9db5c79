"""The readings of a metric by generation, for each metric that can be declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from ..history import Value
from ..results import AssertionScope
from ..series import Lane, lies_within
from ..study import LaneStudy
from .model import Assertion

# Growth of resident memory from one generation end to the next: computed, not read.
GROWTH: Final = "generation.growth_bytes"
_RESIDENT: Final = "process.rss_bytes"
# A peak covers the time since the previous snapshot: that of a generation is the highest of all its snapshots.
_PEAK: Final = "peak_bytes"

# (generation, amount) of each generation with a reading
Amounts = list[tuple[int, float]]


def is_measured(lane: Lane, series: str) -> bool:
    source = _RESIDENT if series == GROWTH else series
    return any(value is not None for value in lane.series.get(source, ()))


def readings_of(lane: Lane, series: str) -> Sequence[Value]:
    """Return one reading per generation: that of its end, or of where this series is read most."""
    if series == GROWTH:
        return _gained(lane)
    if not series.endswith(_PEAK):
        return lane.readings(series)
    column = lane.series[series]
    highest: dict[int, float] = {}
    for generation, value in zip(lane.generation, column, strict=True):
        if generation is not None and value is not None:
            highest[generation] = max(highest.get(generation, value), value)
    return [highest.get(generation) for generation in lane.generations]


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
    return _KEPT_BY[budget.scope or "run"](study, budget.name, upto)


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


_KEPT_BY: Final[Mapping[AssertionScope, Callable[[LaneStudy, str, int], Amounts]]] = {
    "run": _kept_by_run, "generation": _kept_by_generation, "phase": _kept_by_phase,
}  # fmt: skip


def added(each: Sequence[Amounts], scope: AssertionScope | None) -> Amounts:
    """Add up processes: one that has ended keeps what it had grown by, and gains nothing more."""
    generations = sorted({g for amounts in each for g, _ in amounts})
    total = dict.fromkeys(generations, 0.0)
    for amounts in each:
        known, newest = dict(amounts), 0.0
        for generation in generations:
            newest = known.get(generation, newest if scope == "run" else 0.0)
            total[generation] += newest
    return list(total.items())

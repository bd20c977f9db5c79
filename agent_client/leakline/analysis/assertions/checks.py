"""The evaluator: declared limits and the readings of their metrics -> the rows ``assertions`` of the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..history import RunHistory
from ..results import AssertionCheck, AssertionOrigin, AssertionState, Deviation
from ..study import LaneStudy
from .model import Assertion, declared_assertions
from .readings import Amounts, added, is_measured, kept_amounts, readings_of
from .words import band_sentence, budget_sentence

# Rows: one a process.
_MAX_OF_AN_ORIGIN: Final = 80
_MAX_DEVIATIONS: Final = 50


@dataclass(frozen=True, slots=True)
class Readings:
    """The amounts that an assertion applies to, and how many of its generations have ended.

    ``process`` is None where there is only one, or all are added up; ``newest``: the newest generation of all.
    """

    amounts: Amounts
    ended: int
    newest: float = -math.inf
    process: str | None = None
    is_measured: bool = True


def check_assertions(
    history: RunHistory, studies: Sequence[LaneStudy]
) -> tuple[AssertionCheck, ...]:
    """Return every declared limit with what was measured, for each process that has readings of its metric."""
    found: dict[AssertionOrigin, list[AssertionCheck]] = {origin: [] for origin in _READERS}
    for assertion in declared_assertions(history):
        rows = found[assertion.origin]
        if len(rows) < _MAX_OF_AN_ORIGIN:
            readings = _READERS[assertion.origin](assertion, studies)
            rows += [check(history, assertion, each) for each in readings]
    return tuple(row for rows in found.values() for row in rows[:_MAX_OF_AN_ORIGIN])


def band_readings(band: Assertion, studies: Sequence[LaneStudy]) -> list[Readings]:
    measuring = [study.lane for study in studies if is_measured(study.lane, band.metric)]
    found = []
    for lane in measuring:
        values = dict(zip(lane.generations, readings_of(lane, band.metric), strict=True))
        ended = [g for g in lane.generations if band.covers(g)]
        known = [(g, float(v)) for g in ended if (v := values[g]) is not None]
        newest = lane.generations[-1] if lane.generations else -math.inf
        found.append(Readings(known, len(ended), newest, lane.name if len(measuring) > 1 else None))
    return found or [Readings([], 0, is_measured=False)]


def budget_readings(budget: Assertion, studies: Sequence[LaneStudy]) -> list[Readings]:
    """Return a phase's amounts for each process it ran in, those of the run for all processes added up."""
    each = [(s.lane.name, kept_amounts(s, budget, len(s.lane))) for s in studies]
    if budget.scope != "phase":
        amounts = added([amounts for _, amounts in each], budget.scope)
        return [Readings(amounts, len(amounts))]
    ran = [(name, amounts) for name, amounts in each if amounts] or each[:1]
    return [Readings(a, len(a), process=name if len(ran) > 1 else None) for name, a in ran]


_READERS: Final[
    Mapping[AssertionOrigin, Callable[[Assertion, Sequence[LaneStudy]], list[Readings]]]
] = {"band": band_readings, "budget": budget_readings}


def check(history: RunHistory, assertion: Assertion, readings: Readings) -> AssertionCheck:
    amounts, is_band = readings.amounts, assertion.origin == "band"
    states = [assertion.state_of(amount) for _, amount in amounts]
    beyond = [each for each, state in zip(amounts, states, strict=True) if state != "holds"]
    outside = [Deviation(g, v, assertion.off_by(v)) for g, v in beyond] if is_band else []
    worst_at, worst = max(
        beyond if is_band else amounts,
        key=lambda each: (abs(assertion.off_by(each[1])) if is_band else each[1], -each[0]),
        default=(None, None),
    )
    is_open = is_band and not history.ended
    is_open = is_open and (assertion.last is None or readings.newest < assertion.last)
    state: AssertionState = "holds" if worst is None else assertion.state_of(worst)
    if not amounts:
        is_early = is_band and readings.is_measured and not readings.ended
        state = "open" if is_early else "not_measured"
    elif is_open and state == "holds":
        state = "open"
    if not readings.is_measured:
        sentence = f"{assertion.metric} is not measured in this run."
    elif is_band:
        sentence = band_sentence(
            assertion, history, readings.ended, len(amounts), outside, readings.newest
        )
    else:
        sentence = budget_sentence(assertion, history, amounts, len(beyond))
    return AssertionCheck(
        assertion.origin, assertion.name, assertion.metric, assertion.scope, assertion.low, assertion.high,
        assertion.leak, assertion.first, assertion.last, readings.process, state,
        amounts[-1][1] if amounts else None, worst, worst_at, len(beyond), len(amounts),
        readings.ended - len(amounts), is_open, tuple(outside[:_MAX_DEVIATIONS]), sentence,
    )  # fmt: skip

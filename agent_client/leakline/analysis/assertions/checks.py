"""The evaluator: assertions and the readings of their metrics -> the rows ``assertions`` of the verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ...snapshot import LARGEST_INTEGER
from ..results import BY_READING, Assertion, AssertionCheck, AssertionState, Deviation, Interval
from ..run_history import Expectation, RunHistory
from ..timeline import Lane, lanes_of
from ..timeline_analysis import LaneStudy
from ..window import Told
from .declared import (
    KEPT_BY_PHASE,
    Amounts,
    added,
    declared_assertions,
    is_measured,
    kept_amounts,
    readings_of,
)
from .declared_counts import Readings as CountReadings
from .declared_counts import applicable_readings, find_violation
from .fixes import check_fixes
from .words import band_sentence, budget_sentence, count_sentence

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


def check_assertions(history: RunHistory, told: Sequence[Told]) -> tuple[AssertionCheck, ...]:
    """Return every assertion with what was measured. ``told``: each process place at its newest moment.

    Bands, gauges and budgets are first, then the promises of fixes, then counts, broken ones first.
    """
    studies = [study for study, _ in told]
    found: dict[str, list[AssertionCheck]] = {"band": [], "gauge": [], "budget": []}
    for assertion in declared_assertions(history):
        rows = found[assertion.origin]
        if len(rows) < _MAX_OF_AN_ORIGIN:
            readings = band_readings if assertion.origin in BY_READING else budget_readings
            rows += [check(history, assertion, each) for each in readings(assertion, studies)]
    found["fix"] = check_fixes(history, told)
    found["count"] = _in_order(check_counts(history, [study.lane for study in studies]))
    return tuple(
        row
        for origin, rows in found.items()
        for row in (rows if origin == "fix" else rows[:_MAX_OF_AN_ORIGIN])
    )


def _in_order(counts: Sequence[AssertionCheck]) -> list[AssertionCheck]:
    """Return broken ones first, and before the second of any class the first of each, so that none is cut off whole."""
    before = Counter[tuple[bool, str, str]]()
    ranked = []
    for each in counts:
        which = each.state != "broken", each.origin, each.name
        ranked.append((which[0], before[which], each))
        before[which] += 1
    return [each for _, _, each in sorted(ranked, key=lambda found: found[:2])]


def _checked(assertion: Assertion, **found: Any) -> AssertionCheck:
    return AssertionCheck(**asdict(assertion), **found)


def _exactly(value: float | None) -> Interval | None:
    return None if value is None else Interval(value, value, value)


def band_readings(band: Assertion, studies: Sequence[LaneStudy]) -> list[Readings]:
    measuring = [study.lane for study in studies if is_measured(study.lane, band.metric)]
    found = []
    for lane in measuring:
        each = readings_of(lane, band.metric, highest=band.origin == "gauge")
        values = dict(zip(lane.generations, each, strict=True))
        ended = [g for g in lane.generations if band.covers(g)]
        known = [(g, float(v)) for g in ended if (v := values[g]) is not None]
        newest = lane.generations[-1] if lane.generations else -math.inf
        found.append(Readings(known, len(ended), newest, lane.name if len(measuring) > 1 else None))
    return found or [Readings([], 0, is_measured=False)]


def budget_readings(budget: Assertion, studies: Sequence[LaneStudy]) -> list[Readings]:
    """Return a phase's amounts for each process it ran in, those of the run for all processes added up."""
    each = [(s.lane.name, kept_amounts(s, budget, len(s.lane))) for s in studies]
    if budget.metric != KEPT_BY_PHASE:
        amounts = added([amounts for _, amounts in each], budget.metric)
        return [Readings(amounts, len(amounts))]
    ran = [(name, amounts) for name, amounts in each if amounts] or each[:1]
    return [Readings(a, len(a), process=name if len(ran) > 1 else None) for name, a in ran]


def check(history: RunHistory, assertion: Assertion, readings: Readings) -> AssertionCheck:
    amounts, is_band = readings.amounts, assertion.origin in BY_READING
    states = [assertion.state_of(amount) for _, amount in amounts]
    beyond = [each for each, state in zip(amounts, states, strict=True) if state != "holds"]
    outside = [Deviation(g, v, assertion.off_by(v)) for g, v in beyond] if is_band else []
    worst_at, worst = max(
        beyond if is_band else amounts,
        key=lambda each: (abs(assertion.off_by(each[1])) if is_band else each[1], -each[0]),
        default=(None, None),
    )
    is_open = assertion.origin == "band" and not history.ended
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
    return _checked(
        assertion, process=readings.process, state=state,
        measured=_exactly(amounts[-1][1] if amounts else None), worst=worst, worst_generation=worst_at,
        outside=len(beyond), judged=len(amounts), deviations=tuple(outside[:_MAX_DEVIATIONS]),
        sentence=sentence,
    )  # fmt: skip


def check_counts(
    history: RunHistory, lanes: Sequence[Lane] | None = None
) -> tuple[AssertionCheck, ...]:
    """Return one check per declared or accepted count, type that it matches and process."""
    lanes = lanes_of(history) if lanes is None else lanes
    rows: list[AssertionCheck] = []
    matched = set()
    for lane in lanes:
        for readings in applicable_readings(lane, history.expectations):
            matched.add((readings.expectation.type, readings.expectation.after))
            process = lane.name if len(lanes) > 1 else None
            rows.append(_check_count(history, lane, readings, process))
    sentence = count_sentence(history.unit, (), (), "not_measured")
    never = [e for e in history.expectations if (e.type, e.after) not in matched]
    rows += [_checked(_counted(e, e.type), state="not_measured", sentence=sentence) for e in never]
    return tuple(rows)


def _counted(expected: Expectation, name: str) -> Assertion:
    is_unread = expected.baseline and expected.high >= LARGEST_INTEGER
    return Assertion(
        "accepted" if expected.accepted else "expect", name, f"type.{name}.count", expected.after,
        None if expected.baseline else expected.low, None if is_unread else expected.high,
    )  # fmt: skip


def _check_count(
    history: RunHistory, lane: Lane, readings: CountReadings, process: str | None
) -> AssertionCheck:
    assertion = _counted(readings.expectation, readings.type)
    broken = [
        Deviation(lane.generation[row], count, off)
        for row, count in zip(readings.rows, readings.counts, strict=True)
        if (off := assertion.off_by(count))
    ]
    violation = find_violation(lane, readings, len(lane.kind) - 1)
    state: AssertionState = "holds" if readings.counts else "not_measured"
    if violation is not None:
        state = "broken" if violation.proven or not violation.above else "undecided"
    return _checked(
        assertion, process=process, state=state,
        measured=_exactly(readings.counts[-1] if readings.counts else None),
        outside=len(broken), judged=len(readings.counts), deviations=tuple(broken[:_MAX_DEVIATIONS]),
        sentence=count_sentence(
            history.unit, readings.counts, broken, state, in_part=bool(lane.whole_from)
        ),
    )  # fmt: skip

"""Breaches that need no trend: a budget above its leak bound is evidence, or a finding of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..attribution import Cause
from ..candidates import NOWHERE, Place
from ..evidence import Rise
from ..results import Assertion
from ..series import top_level
from ..study import Assessed, LaneStudy
from ..trend import Slope
from .declared import KEPT_BY_PHASE, KEPT_BY_RUN, Amounts, declared_budgets, kept_amounts
from .words import broken_budget_evidence


def with_budgets(study: LaneStudy, upto: int, found: Sequence[Assessed]) -> list[Assessed]:
    """Add each broken budget to the cause that explains it, or as a finding of its own."""
    result = list(found)
    for budget in declared_budgets(study.history):
        if budget.leak is None:
            continue
        amounts = kept_amounts(study, budget, upto)
        if not amounts or amounts[-1][1] < budget.leak:
            continue
        generation, kept = amounts[-1]
        if generation != study.lane.generations[upto - 1]:
            continue
        said = broken_budget_evidence(budget, study.history.unit, kept)
        index = _explained_by(budget, result)
        if index is None:
            result.append(_alone(study, upto, budget, amounts, said))
        else:
            a = result[index]
            note = f"{a.note} {said}" if a.note else said
            result[index] = replace(a, witnesses=a.witnesses | {"budget"}, note=note)
    return result


def _explained_by(budget: Assertion, found: Sequence[Assessed]) -> int | None:
    """Return the position of the first cause that matters, within the phase of the budget if it has one."""
    for i, a in enumerate(found):
        theirs = budget.metric != KEPT_BY_PHASE or a.cause.place.phase == budget.name
        if theirs and a.scale.is_material(a.cause.rate.estimate, a.window):
            return i
    return None


def _alone(study: LaneStudy, upto: int, budget: Assertion, amounts: Amounts, said: str) -> Assessed:
    kept, leak = amounts[-1][1], budget.leak or 0.0
    generation = float(amounts[-1][0])
    place = NOWHERE
    if budget.metric == KEPT_BY_PHASE:
        place = Place(top_level(budget.name), budget.name, 1.0)
    elif budget.metric == KEPT_BY_RUN:
        kept /= len(amounts)
        generation = float(next(g for g, amount in amounts if amount >= leak))
    cause = Cause("native", place, (), None, Slope(kept, 0.0, kept, 1))
    start = (generation, generation, generation)
    return Assessed(
        cause, start, 1.0, Rise(), frozenset({"budget"}), study.scale(upto), study.lane.name, note=said
    )  # fmt: skip

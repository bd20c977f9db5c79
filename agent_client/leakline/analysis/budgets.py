"""Declared budgets: who keeps more than it may in one generation, or a run in all, needs no trend to be told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Final, Literal

from ..snapshot import Event
from ..text_format import format_bytes
from .attribution import Cause
from .candidates import NOWHERE, Place
from .evidence import Rise
from .history import RunHistory, amount_of
from .results import BudgetCheck
from .series import lies_within, top_level
from .study import Assessed, LaneStudy
from .trend import Slope

# The names that stand for the whole run; a phase that is called so goes first.
RUN: Final = "run"
GENERATION: Final = "generation"

# Whoever sends events decides how many there are.
_MAX_BUDGETS: Final = 40
_MAX_CHECKS: Final = 80

Scope = Literal["phase", "generation", "run"]
# (generation, bytes) of what is judged
Amounts = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes that are fine up to ``normal``, and a leak from ``leak`` on."""

    name: str
    scope: Scope
    normal: float | None
    leak: float | None

    def state_of(self, amount: float) -> Literal["normal", "above_normal", "leak"]:
        if self.leak is not None and amount >= self.leak:
            return "leak"
        if self.normal is not None and amount > self.normal:
            return "above_normal"
        return "normal"


def declared_budgets(history: RunHistory) -> tuple[Budget, ...]:
    """The newest bounds of each name; what is no budget is passed over."""
    declared = history.events_of("budget")
    if not declared:
        return ()
    of = (history.events, history.processes, history.phases, history.unit)
    return history.said.once("budgets", of, lambda: _newest_bounds(history, declared))


def _newest_bounds(history: RunHistory, declared: Iterable[Event]) -> tuple[Budget, ...]:
    found: dict[str, Budget] = {}
    for event in declared:
        normal, leak = (amount_of(event.data.get(f"{end}_bytes")) for end in ("normal", "leak"))
        if normal is not None or leak is not None:
            found[event.name] = Budget(event.name, _scope(history, event.name), normal, leak)
    return tuple(list(found.values())[-_MAX_BUDGETS:])


def _scope(history: RunHistory, name: str) -> Scope:
    if name not in (RUN, GENERATION, history.unit) or _is_phase(history, name):
        return "phase"
    return "run" if name == RUN else "generation"


def _is_phase(history: RunHistory, name: str) -> bool:
    return any(lies_within(path, name) for path in (*history.phases, *_phases_seen(history)))


def _phases_seen(history: RunHistory) -> set[str]:
    seen = (set(process.phase) | process.left_out.phases for process in history.processes)
    return {path for paths in seen for path in paths if path}


def with_budgets(study: LaneStudy, upto: int, found: Sequence[Assessed]) -> list[Assessed]:
    """Add what broken budgets say: to the cause that explains them, or as a finding of their own."""
    result = list(found)
    for budget in declared_budgets(study.history):
        amounts = _amounts(study, budget, upto)
        if budget.leak is None or not amounts or amounts[-1][1] < budget.leak:
            continue
        generation, kept = amounts[-1]
        if generation != study.lane.generations[upto - 1]:
            continue
        told = _broken(study.history, budget, kept)
        index = _explained_by(budget, result)
        if index is None:
            result.append(_alone(study, upto, budget, amounts, told))
        else:
            a = result[index]
            note = f"{a.note} {told}" if a.note else told
            result[index] = replace(a, witnesses=a.witnesses | {"budget"}, note=note)
    return result


def _broken(history: RunHistory, budget: Budget, kept: float) -> str:
    allowed = f"its budget is {format_bytes(budget.leak or 0.0)}."
    if budget.scope == "run":
        return f"Memory has grown by {format_bytes(kept)} since the run began; {allowed}"
    who = "The run" if budget.scope == "generation" else budget.name
    return f"{who} kept {format_bytes(kept)} in one {history.unit}; {allowed}"


def _explained_by(budget: Budget, found: Sequence[Assessed]) -> int | None:
    """The first cause that matters, of the phase where the budget is a phase's."""
    for i, a in enumerate(found):
        theirs = budget.scope != "phase" or a.cause.place.phase == budget.name
        if theirs and a.scale.is_material(a.cause.rate.estimate, a.window):
            return i
    return None


def _amounts(study: LaneStudy, budget: Budget, upto: int) -> Amounts:
    """What is judged, by generation.

    A phase is not judged on the generation it first ran in, nor the run on its first: what they build up there stays.
    """
    lane = study.lane
    if budget.scope == "run":
        begin = _beginning(study)
        return [] if begin is None else [
            (g, level - begin)
            for g, level in zip(lane.generations[:upto], lane.private[:upto], strict=False)
        ]  # fmt: skip
    if budget.scope == "generation":
        return _gained(study, upto)
    kept = ((lane.generations[i], _kept(study, i, budget.name)) for i in range(upto))
    return [(generation, amount) for generation, amount in kept if amount is not None][1:]


def _beginning(study: LaneStudy) -> float | None:
    """Private memory before the first generation; without a baseline at the end of the first."""
    lane = study.lane
    if not lane.private:
        return None
    before = None if lane.baseline_row is None else lane.private_rows[lane.baseline_row]
    return lane.private[0] if before is None else float(before)


def _gained(study: LaneStudy, upto: int) -> Amounts:
    """Where a generation was lost two of them are one rise, which says nothing of each."""
    ends = list(zip(study.lane.generations, study.lane.private, strict=False))[:upto]
    steps = [b - a for (a, _), (b, _) in pairwise(ends)]
    usual = median(steps) if steps else 0
    return [(b, after - before) for (a, before), (b, after) in pairwise(ends) if b - a <= usual]


def _kept(study: LaneStudy, position: int, phase: str) -> float | None:
    amounts = [v for path, v in study.booked[position].items() if lies_within(path, phase)]
    return sum(amounts) if amounts else None


def _alone(study: LaneStudy, upto: int, budget: Budget, amounts: Amounts, told: str) -> Assessed:
    kept, leak = amounts[-1][1], budget.leak or 0.0
    generation = float(amounts[-1][0])
    place = NOWHERE
    if budget.scope == "phase":
        place = Place(top_level(budget.name), budget.name, 1.0)
    elif budget.scope == "run":
        kept /= len(amounts)
        generation = float(next(g for g, amount in amounts if amount >= leak))
    cause = Cause("native", place, (), None, Slope(kept, 0.0, kept, 1))
    start = (generation, generation, generation)
    return Assessed(
        cause, start, 1.0, Rise(), frozenset({"budget"}), study.scale(upto), study.lane.name, note=told
    )  # fmt: skip


def check_budgets(history: RunHistory, studies: Sequence[LaneStudy]) -> tuple[BudgetCheck, ...]:
    """Every declared budget: a phase's for each process it ran in, the run's for its processes added up."""
    found: list[BudgetCheck] = []
    for budget in declared_budgets(history):
        judged = [(s.lane.name, _amounts(s, budget, len(s.lane))) for s in studies]
        if budget.scope == "phase":
            rows = [(name, amounts) for name, amounts in judged if amounts] or judged[:1]
            several = len(rows) > 1
            found += [_checked(history, budget, a, n if several else None) for n, a in rows]
        else:
            added = _added([amounts for _, amounts in judged], budget.scope)
            found.append(_checked(history, budget, added, None))
    return tuple(found[:_MAX_CHECKS])


def _added(each: Sequence[Amounts], scope: Scope) -> Amounts:
    """A process that has ended keeps what it had grown by, and gains nothing more."""
    generations = sorted({g for amounts in each for g, _ in amounts})
    whole = dict.fromkeys(generations, 0.0)
    for amounts in each:
        known, newest = dict(amounts), 0.0
        for generation in generations:
            newest = known.get(generation, newest if scope == "run" else 0.0)
            whole[generation] += newest
    return list(whole.items())


def _checked(
    history: RunHistory, budget: Budget, amounts: Amounts, process: str | None
) -> BudgetCheck:
    if not amounts:
        return BudgetCheck(
            budget.name, budget.scope, budget.normal, budget.leak, "not_measured", None, None, None, 0, 0,
            process, _unmeasured(history, budget),
        )  # fmt: skip
    worst_at, worst = max(amounts, key=lambda each: (each[1], -each[0]))
    state = budget.state_of(worst)
    beyond = sum(budget.state_of(amount) != "normal" for _, amount in amounts)
    return BudgetCheck(
        budget.name, budget.scope, budget.normal, budget.leak, state, amounts[-1][1], worst, worst_at,
        beyond, len(amounts), process, _told(history, budget, amounts, (worst_at, worst), beyond),
    )  # fmt: skip


def _unmeasured(history: RunHistory, budget: Budget) -> str:
    if budget.scope != "phase":
        return f"No {history.unit} to judge yet."
    ran = any(lies_within(path, budget.name) for path in _phases_seen(history))
    if ran:
        return f"{budget.name} ran in one {history.unit}; it is judged from the second on."
    return f"{budget.name} never ran."


def _told(
    history: RunHistory, budget: Budget, amounts: Amounts, worst: tuple[int, float], beyond: int
) -> str:
    unit, (generation, most) = history.unit, worst
    if budget.scope == "run":
        newest = amounts[-1][1]
        said = f"Memory has grown by {format_bytes(newest)} since the run began"
        if budget.state_of(newest) != budget.state_of(most):
            said += f", and by {format_bytes(most)} at {unit} {generation}"
    else:
        who = "The run" if budget.scope == "generation" else budget.name
        said = f"{who} kept at most {format_bytes(most)} in one {unit} ({unit} {generation})"
    said += f": {_against(budget, most)}"
    if beyond and budget.scope != "run":
        said += f"; beyond in {beyond} of {len(amounts)} {unit}s"
    return f"{said}."


def _against(budget: Budget, amount: float) -> str:
    state = budget.state_of(amount)
    fine = "" if budget.normal is None else f"fine up to {format_bytes(budget.normal)}"
    leak = "" if budget.leak is None else f"a leak from {format_bytes(budget.leak)} on"
    if state == "leak":
        return leak
    if state == "above_normal":
        return f"more than the {format_bytes(budget.normal or 0.0)} that are fine" + (
            f", less than the {format_bytes(budget.leak)} of a leak" if budget.leak else ""
        )
    return fine or f"below the {format_bytes(budget.leak or 0.0)} of a leak"


def budget_title(name: str, scope: str, unit: str) -> str:
    """What a budget is about: ``train_population``, ``each generation``, ``the whole run``."""
    return {"generation": f"each {unit}", "run": "the whole run"}.get(scope, name)

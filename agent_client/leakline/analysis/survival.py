"""How far two runs come: where each ended or stands, and where its memory runs out."""

from __future__ import annotations

from ..text_format import format_interval
from .compared import Survival, SurvivalChange
from .history import RunHistory
from .results import Verdict
from .series import lanes_of


def survival_of(history: RunHistory, verdict: Verdict) -> Survival:
    known = [lane.generations[-1] for lane in lanes_of(history) if lane.generations]
    return Survival(max(known, default=None), history.ended, verdict.oom.generation)


def survival_change(
    before: Survival, after: Survival, unit: str, unit_after: str
) -> SurvivalChange:
    told = f"Before: {_told(before, unit)}. After: {_told(after, unit_after)}."
    return SurvivalChange(before, after, told)


def _told(side: Survival, unit: str) -> str:
    """``memory runs out about episode 1,004 (990 to 1,020); it ended at episode 998``"""
    if side.last_generation is None:
        return f"no {unit} was seen"
    stands = f"{'ended' if side.ended else 'has come'} {'at' if side.ended else 'to'} {unit} {side.last_generation:,}"
    out = side.runs_out_at_generation
    if out is None:
        return f"nothing says that memory runs out; it {stands}"
    when = format_interval(out.estimate, out.low, out.high, lambda value: f"{round(value):,}")
    return f"memory runs out about {unit} {when}; it {stands}"

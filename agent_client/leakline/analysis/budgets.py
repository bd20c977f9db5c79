"""Declared budgets: a phase that keeps more than it may in one generation needs no trend to be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .attribution import Cause
from .candidates import Place
from .evidence import Rise
from .series import top_level
from .study import Assessed, LaneStudy
from .trend import Slope
from .wording import format_bytes


def with_budgets(study: LaneStudy, upto: int, found: Sequence[Assessed]) -> list[Assessed]:
    """Add what broken budgets say: to the cause that explains them, or as a finding of their own."""
    result = list(found)
    for phase, (kept, allowed) in broken_budgets(study, upto).items():
        told = f"{phase} kept {format_bytes(kept)} in one generation; its budget is {format_bytes(allowed)}."
        for i, a in enumerate(result):
            if a.cause.place.phase == phase and a.scale.is_material(
                a.cause.rate.estimate, a.window
            ):
                result[i] = replace(a, witnesses=a.witnesses | {"budget"}, note=told)
                break
        else:
            result.append(_alone(study, upto, phase, kept, told))
    return result


def broken_budgets(study: LaneStudy, upto: int) -> dict[str, tuple[float, float]]:
    """phase -> (bytes kept in the newest generation, bytes from which it is a leak).

    A phase is not judged on the generation it first ran in: what it builds up there stays.
    """
    limits = {
        event.name: float(event.data["leak_bytes"])
        for event in study.history.events
        if event.kind == "budget" and event.data.get("leak_bytes") is not None
    }
    found = {}
    for phase, allowed in sorted(limits.items()):
        kept = [_kept(study, position, phase) for position in range(upto)]
        ran = [amount for amount in kept if amount is not None]
        if len(ran) >= 2 and kept[-1] is not None and kept[-1] >= allowed:
            found[phase] = (kept[-1], allowed)
    return found


def _kept(study: LaneStudy, position: int, phase: str) -> float | None:
    amounts = [v for path, v in study.booked[position].items() if phase in (path, top_level(path))]
    return sum(amounts) if amounts else None


def _alone(study: LaneStudy, upto: int, phase: str, kept: float, told: str) -> Assessed:
    generation = float(study.lane.generations[upto - 1])
    rate = Slope(kept, 0.0, kept, 1)
    cause = Cause("native", Place(phase, phase, 1.0), (), None, rate)
    start = (generation, generation, generation)
    return Assessed(
        cause, start, 1.0, Rise(), frozenset({"budget"}), study.scale(upto), study.lane.name, note=told
    )  # fmt: skip

"""What memory gained, shared out among the causes: each gets a rate, and together they are the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..memory.memory_by_phase import BETWEEN_LINE, OTHER_THREADS_LINE
from ..statistics.trend import Slope
from .candidates import NOWHERE, OF_OTHERS
from .causes import EXPLAINS, SECOND, SMALL, Cause, Memory, is_like

# One object of a class nobody declared is hardly larger than this.
_PLAUSIBLE_BYTES: Final = 2**20
# Tensors, what their graphs hold, figures with their canvas, and objects that a container is seen to keep.
_PLAUSIBLE_LARGE_BYTES: Final = 2**27
# Measured bytes below this share leave room for a second cause outside Python.
_LEAVES_ROOM: Final = 0.25
# What causes and other phases have together of what memory gains, at most, to be told apart.
_ALL: Final = 1.1


def share_out(
    causes: Sequence[Cause], memory: Memory, memory_rises: bool, matters: bool
) -> tuple[list[Cause], float, Mapping[str, float]]:
    """Give each cause its rate, so that together they are what memory gained.

    ``matters``: whether memory gains enough to be shared out at all; below that each keeps what was measured.

    Returns the causes, the bytes per generation that none of them accounts for, and of these what is known of the
    phases that keep them.
    """
    total = memory.total
    active = _taking_part(causes, memory)
    idle = [c.with_rate(_around(c.measured or 0.0)) for c in causes if c not in active]
    if not active:
        return idle, total.estimate if memory_rises else 0.0, {}
    if not (total.rises and matters):
        return [*(c.with_rate(_unsure(c, total)) for c in active), *idle], 0.0, {}
    claims = [_claim(c, memory, active) for c in active]
    claimed = sum(claims)
    room = memory_rises and claimed < _LEAVES_ROOM * total.estimate
    elsewhere = _unclaimed(active, claimed, memory) if memory_rises and not room else {}
    apart = min(sum(elsewhere.values()), max(0.0, total.estimate - claimed))
    scale = 1.0 if room or claimed <= 0 else (total.estimate - apart) / claimed
    rated = [
        c.with_rate(total.scaled(claim * scale / total.estimate))
        for c, claim in zip(active, claims, strict=True)
    ]
    return [*rated, *idle], total.estimate - claimed if room else apart, elsewhere


def _unclaimed(causes: Sequence[Cause], claimed: float, memory: Memory) -> dict[str, float]:
    """Return what stays in use of each phase that no cause is in, where it is a real share of what memory gains.

    Only if all causes were measured and leave room for it: what one phase makes and another keeps is theirs.
    """
    if not memory.living or any(c.measured is None or c.place.phase is None for c in causes):
        return {}
    total, places = memory.total.estimate, {c.place.phase for c in causes}
    found = {
        phase: size
        for phase, size in memory.phases.items()
        if phase not in (*places, BETWEEN_LINE, OTHER_THREADS_LINE) and size >= SECOND * total > 0
    }
    return found if claimed + sum(found.values()) <= _ALL * total else {}


def _taking_part(causes: Sequence[Cause], memory: Memory) -> list[Cause]:
    """The causes with a claim on what memory gained.

    What phases gained decides little: the allocator gives one phase what another freed, so that memory grows
    where its pool ran dry. Counts say who keeps; sizes say whether that can be all.
    """
    total = max(memory.total.estimate, 0.0)
    measured = [c for c in causes if c.measured is not None and c.measured >= SMALL * total]
    if sum(c.measured or 0.0 for c in measured) >= _LEAVES_ROOM * total and measured:
        return measured
    guessed = [c for c in causes if c.measured is None and _is_plausible(c, total)]
    guessed.sort(key=lambda c: _likelihood(c, memory), reverse=True)
    # Without sizes nothing tells how to share: the likeliest answer stands, and others that hold their phase.
    kept = guessed[:1] + [c for c in guessed[1:] if (memory.at(c.place) or 0.0) >= EXPLAINS * total]
    return measured + kept


def _is_plausible(cause: Cause, total: float) -> bool:
    owner = cause.owner
    if owner is None or owner.growth.slope <= 0:
        return owner is not None and owner.violation is not None
    if owner.declared or owner.violation is not None:
        return True
    each = total / owner.growth.slope
    # What a list gains one by one, in every generation, is kept; nobody has said yet how large it is.
    kept = any(m.role == "container" and is_like(m, owner) for m in cause.members[1:])
    if owner.family in ("tensor", "graph", "figure") or (owner.family == "object" and kept):
        return each <= _PLAUSIBLE_LARGE_BYTES
    if owner.place == NOWHERE or owner.family in OF_OTHERS:
        return False
    return each <= _PLAUSIBLE_BYTES


def _likelihood(cause: Cause, memory: Memory) -> tuple[bool, bool, float, float]:
    owner = cause.owner
    if owner is None:
        return False, False, 0.0, 0.0
    broken = owner.violation is not None
    return broken, owner.declared, memory.at(cause.place) or 0.0, owner.growth.slope


def _claim(cause: Cause, memory: Memory, active: Sequence[Cause]) -> float:
    in_phase = memory.at(cause.place)
    if cause.measured is None:
        if len(active) == 1:
            return memory.total.estimate
        return max(in_phase if in_phase is not None else memory.total.estimate / len(active), 0.0)
    # A walk that ended early measures too little; the books of its phase then say more.
    left = None if in_phase is None else in_phase - _measured_beside(cause, active)
    return left if left is not None and cause.measured < 0.5 * left else cause.measured


def _measured_beside(cause: Cause, active: Sequence[Cause]) -> float:
    """What the others in its phase were measured to keep."""
    others = [c for c in active if c is not cause and c.place.phase == cause.place.phase]
    return sum(c.measured or 0.0 for c in others)


def _around(size: float) -> Slope:
    return Slope(size, 0.5 * size, 1.5 * size, 0)


def _unsure(cause: Cause, total: Slope) -> Slope:
    """Memory does not show the rise (yet): what was measured, within what memory allows."""
    if cause.measured is None:
        return total
    size = min(cause.measured, max(total.high, 0.0))
    return Slope(size, min(total.low, 0.5 * size), max(total.high, size), total.points)

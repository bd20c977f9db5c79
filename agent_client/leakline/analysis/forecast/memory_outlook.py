"""How memory goes on from the newest reading: how fast it rises by now, and how far readings swing about that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..memory.memory_kinds import SHARED, Channel
from ..statistics.onset import Start, bend_of
from ..statistics.trend import NO_GROWTH, Slope, floor_slope, robust_spread
from ..timeline_analysis import LaneStudy

# Of the growth so far, the newest part tells the rate; the newest half of that, whether it still holds.
_RECENT: Final = 0.6
_NEWEST: Final = 0.3
_MIN_POINTS: Final = 6
# Readings that say where the line is now, and how far others rise above it.
_ABOUT_NOW: Final = 16
# What gets a process killed is a reading well above the line, not the line.
_HIGH_READING: Final = 0.75
# Readings in each half before a rate that grows is believed.
_MIN_HALF: Final = 8
# Memory under the same limit, next to private memory. Shared memory counts once for all processes.
_UNDER_LIMIT: Final = ("children",)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Bytes per generation now, and by how much that itself grows with each generation (0 unless it clearly does).

    ``low`` and ``high`` bound the rate by what different stretches say of it. ``over`` is how far high readings lie
    above the newest one, negative where that is itself high; ``spread`` is how much readings scatter.
    """

    rate: Slope = NO_GROWTH
    gains: float = 0.0
    over: float = 0.0
    spread: float = 0.0


def level_of(study: LaneStudy, upto: int) -> float:
    """Bytes under the limit at this moment: private memory and children."""
    private = study.lane.private[upto - 1] - study.lane.left_behind(upto)
    return private + sum(c.values[upto - 1] for c in beside_private(study))


def outlook_of(study: LaneStudy, upto: int) -> Outlook:
    """Without what bounded containers gain: they have an end of their own."""
    return study.known.once(upto, "outlook", lambda: _outlook_of(study, upto))


def _outlook_of(study: LaneStudy, upto: int) -> Outlook:
    y, beside = study.residual(upto), beside_private(study)
    for channel in beside:
        y = [a + b for a, b in zip(y, channel.line(upto), strict=False)]
    bend = bend_of(study.lane, y, upto) if beside else study.bend(upto)
    unknown = {i for channel in beside for i in channel.unread(upto)}
    known = [i for i in range(len(y)) if i not in unknown]
    x = [float(study.lane.generations[i]) for i in known]
    return _of_growth(*_since(bend, x, [y[i] for i in known]))


def outlook_of_channel(study: LaneStudy, channel: Channel, upto: int) -> Outlook:
    """Return how memory with a limit of its own goes on, such as that of a device."""
    at = channel.stands(upto)
    x, y = [float(g) for g in study.lane.generations[:at]], channel.values[:at]
    return _of_growth(*_since(bend_of(study.lane, y, at), x, y))


def _since(
    bend: Start | None, x: Sequence[float], y: Sequence[float]
) -> tuple[Sequence[float], Sequence[float]]:
    first = 0 if bend is None else next((i for i, a in enumerate(x) if a >= bend[0] - 1), 0)
    first = min(first, max(0, len(x) - _MIN_POINTS))
    return x[first:], y[first:]


def shared_now(study: LaneStudy, upto: int) -> float:
    """Bytes of shared memory at this moment; several processes of a run count the same bytes."""
    return max((c.values[upto - 1] for c in study.channels if c.name == SHARED), default=0.0)


def beside_private(study: LaneStudy) -> list[Channel]:
    """What counts under the same limit as private memory does."""
    return [c for c in study.channels if c.kind in _UNDER_LIMIT]


def _of_growth(x: Sequence[float], y: Sequence[float]) -> Outlook:
    recent, newest = _last(x, y, _RECENT), _last(x, y, _NEWEST)
    slopes = [floor_slope(*recent), floor_slope(x, y), floor_slope(*newest)]
    rate, gains = _speeding_up(x, y) or (slopes[0].estimate, 0.0)
    low = min(slopes[0].low, *(s.estimate for s in slopes), rate)
    high = max(slopes[0].high, *(s.estimate for s in slopes), rate)
    level = [b + rate * (x[-1] - a) for a, b in zip(x[-_ABOUT_NOW:], y[-_ABOUT_NOW:], strict=True)]
    top = sorted(level)[round(_HIGH_READING * (len(level) - 1))]
    return Outlook(Slope(rate, low, high, len(x)), gains, top - y[-1], robust_spread(level))


def _last(
    x: Sequence[float], y: Sequence[float], share: float
) -> tuple[Sequence[float], Sequence[float]]:
    first = max(0, min(round((1 - share) * len(x)), len(x) - _MIN_POINTS))
    return x[first:], y[first:]


def _speeding_up(x: Sequence[float], y: Sequence[float]) -> tuple[float, float] | None:
    """(rate now, its gain per generation) where the second half rises clearly faster than the first."""
    half = len(x) // 2
    if half < _MIN_HALF:
        return None
    a, b = floor_slope(x[:half], y[:half]), floor_slope(x[half:], y[half:])
    if b.low <= a.high or a.estimate <= 0:
        return None
    between = (x[-1] + x[half] - x[half - 1] - x[0]) / 2
    gains = (b.estimate - a.estimate) / between
    return b.estimate + gains * (x[-1] - x[half]) / 2, gains


def generations_to(amount: float, rate: float, gains: float) -> float | None:
    """Until ``rate`` and what it gains have added up to this amount; None when never."""
    if amount <= 0:
        return 0.0
    if gains <= 0:
        return amount / rate if rate > 0 else None
    root = math.sqrt(rate * rate + 2 * gains * amount)
    # The form that does not take two nearly equal numbers from each other.
    return 2 * amount / (root + rate) if rate > 0 else (root - rate) / gains

"""How memory continues: how fast it rises by now, how far readings swing, and from which generation on it is flat.

Memory is flat (settled) once warm-up and filling are over and nothing has moved its level since.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ..memory.memory_kinds import SHARED, Channel
from ..results import Interval
from ..statistics.memory_evidence import Scale, Start, bend_of
from ..statistics.trend import (
    MAX_HINGE_POINTS,
    NO_GROWTH,
    Slope,
    fit_hinge,
    floor_slope,
    robust_spread,
)
from ..timeline_analysis import Moment, TimelineAnalysis

# Of the growth so far, the newest part gives the rate; the newest half of that, whether it still holds.
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


def level_of(study: TimelineAnalysis, end: int) -> float:
    """Bytes under the limit at this moment: private memory and children."""
    private = study.timeline.private[end - 1] - study.timeline.left_behind(end)
    return private + sum(c.values[end - 1] for c in outside_private(study))


def outlook_of(study: TimelineAnalysis, end: int) -> Outlook:
    """Without what bounded containers gain: they have an end of their own."""
    return study.known.once(end, "outlook", lambda: _outlook_of(study, end))


def _outlook_of(study: TimelineAnalysis, end: int) -> Outlook:
    y, outside = study.residual(end), outside_private(study)
    for channel in outside:
        y = [a + b for a, b in zip(y, channel.line(end), strict=False)]
    bend = bend_of(study.timeline, y, end) if outside else study.bend(end)
    unknown = {i for channel in outside for i in channel.unread(end)}
    known = [i for i in range(len(y)) if i not in unknown]
    x = [float(study.timeline.generations[i]) for i in known]
    return _of_growth(*_since(bend, x, [y[i] for i in known]))


def outlook_of_channel(study: TimelineAnalysis, channel: Channel, end: int) -> Outlook:
    """Return how memory with a limit of its own goes on, such as that of a device."""
    at = channel.stands(end)
    x, y = [float(g) for g in study.timeline.generations[:at]], channel.values[:at]
    return _of_growth(*_since(bend_of(study.timeline, y, at), x, y))


def _since(
    bend: Start | None, x: Sequence[float], y: Sequence[float]
) -> tuple[Sequence[float], Sequence[float]]:
    first = 0 if bend is None else next((i for i, a in enumerate(x) if a >= bend[0] - 1), 0)
    first = min(first, max(0, len(x) - _MIN_POINTS))
    return x[first:], y[first:]


def shared_now(study: TimelineAnalysis, end: int) -> float:
    """Bytes of shared memory at this moment; several processes of a run count the same bytes."""
    return max((c.values[end - 1] for c in study.channels if c.name == SHARED), default=0.0)


def outside_private(study: TimelineAnalysis) -> list[Channel]:
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


# Readings that must lie on the level before it is called one.
MIN_FLAT: Final = 5
# A reading so many spreads off the level is on the way to it, and no nearer than this share of the level.
_CLEAR: Final = 4.0
_SMALLEST: Final = 5e-4
# A level that turns out to rise still is looked for once more behind its beginning, so often.
_TRIES: Final = 4
# Share of the slope before the level at which the level itself still moves on.
_SAME_WAY: Final = 0.5
# Of a level's newest readings, those that say where it is.
_NEWEST_READINGS: Final = 256
# What was off by this share of the whole way in the reading before the level came to it in one step.
_STEP: Final = 0.5


def settled(timelines: Sequence[tuple[TimelineAnalysis, Moment]], growing: bool) -> Interval | None:
    """The first generation from which private memory is flat, in the process that took longest.

    None while one still rises or falls by what matters. ``growing``: whether a finding says that memory grows, which
    no flat look outweighs.
    """
    if growing or any(m.rise.window or m.rise.visible for _, m in timelines):
        return None
    found = [_settled(study, moment) for study, moment in timelines if study.timeline.private]
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    return Interval(
        max(i.estimate for i in known), max(i.low for i in known), max(i.high for i in known)
    )


def _settled(study: TimelineAnalysis, moment: Moment) -> Interval | None:
    read = [i for i in study.timeline.private_read if i < moment.end]
    x = [float(study.timeline.generations[i]) for i in read]
    return settling_of(x, [study.timeline.private[i] for i in read], moment.scale)


def settling_of(x: Sequence[float], y: Sequence[float], scale: Scale) -> Interval | None:
    """Where a line that rises or falls turns into a flat one; its first x where it was flat from there on."""
    first = 0
    for _ in range(_TRIES):
        if len(x) - first < MIN_FLAT:
            return None
        ends = _bend(x[first:], y[first:])
        # (position of the estimate, of its low and of its high end)
        at, low, high = (first + end for end in ends)
        if len(x) - at < MIN_FLAT:
            return None
        if _is_flat(x[at:], y[at:], scale):
            if _goes_on(x, y, at):
                return None
            return Interval(x[at], x[low], x[min(high, len(x) - 1)])
        first = max(at, first + 1)
    return None


def _is_flat(x: Sequence[float], y: Sequence[float], scale: Scale) -> bool:
    """Neither rising nor falling by what matters, over all of it and over its newer half."""
    for first in (0, len(x) // 2):
        stretch = list(x[first:]), list(y[first:])
        if len(stretch[0]) < MIN_FLAT:
            continue
        up, down = floor_slope(*stretch), floor_slope(stretch[0], [-b for b in stretch[1]])
        if any(
            s.rises and scale.is_material(s.estimate, len(stretch[0]) * scale.spacing)
            for s in (up, down)
        ):
            return False
    # The newer half of so few readings shows no slope.
    return len(y) >= 2 * MIN_FLAT or not _leaves(y, scale)


def _goes_on(x: Sequence[float], y: Sequence[float], at: int) -> bool:
    """Return True if the line behind ``at`` moves on as it did before, however slowly: then nothing has settled."""
    for sign in (1.0, -1.0):
        line = [sign * value for value in y]
        after, before = floor_slope(x[at:], line[at:]), floor_slope(x[: at + 1], line[: at + 1])
        if after.rises and before.rises and after.estimate >= _SAME_WAY * before.estimate:
            return True
    return False


def _leaves(y: Sequence[float], scale: Scale) -> bool:
    """Whether the two newest readings, one after the other, move on from all before them by what matters."""
    *before, last, newest = y
    moves = newest > last > max(before) or newest < last < min(before)
    return moves and scale.is_material(
        abs(newest - before[-1]) / 2 / scale.spacing, len(y) * scale.spacing
    )


def _bend(x: Sequence[float], y: Sequence[float]) -> tuple[int, int, int]:
    """Positions of (where the flat part begins, its low end, its high end); zeros where all of it is flat."""
    newest = y[max(len(y) // 2, len(y) - _NEWEST_READINGS) :]
    off = _off(y, median(newest))
    away = _behind(off, _CLEAR * robust_spread(newest))
    if away == 0:
        return 0, 0, 0
    at, low, high = _end_of_way(x, y, away, 1.0 if off[away - 1] < 0 else -1.0)
    level = y[at:][-_NEWEST_READINGS:]
    off = _off(y, median(level))
    away = _behind(off, max(_CLEAR * robust_spread(level), _SMALLEST * abs(level[-1])))
    if away and abs(off[away - 1]) >= _STEP * max(map(abs, off)):
        return away, away, away
    # A way that slows down ends behind the bend of the straight line through it.
    return max(at, away), low, max(high, away)


def _off(y: Sequence[float], level: float) -> list[float]:
    """How far from the level each reading lies, of three neighbours the middle one, so that a spike is none."""
    return [median(y[max(0, i - 1) : i + 2]) - level if i else y[0] - level for i in range(len(y))]


def _behind(off: Sequence[float], reach: float) -> int:
    """The position behind the last reading that lies farther off than that."""
    return next((i + 1 for i in range(len(off) - 1, -1, -1) if abs(off[i]) > reach), 0)


def _end_of_way(
    x: Sequence[float], y: Sequence[float], away: int, sign: float
) -> tuple[int, int, int]:
    """Where a straight way to the level ends. Fitted over as much of the level as there is of the way; of long ways
    first to every n-th reading, then closer about what was found.
    """
    first, last = 0, min(len(x), max(2 * away, MAX_HINGE_POINTS))
    while True:
        step = -(-(last - first) // MAX_HINGE_POINTS)
        at, low, high = _fitted(x, y, range(first, last, step), sign)
        if step == 1:
            return at, low, high
        first, last = max(0, low - 2 * step), min(len(x), high + 2 * step + 1)
        if last - first > (step - 1) * MAX_HINGE_POINTS:
            return at, low, high


def _fitted(
    x: Sequence[float], y: Sequence[float], rows: Sequence[int], sign: float
) -> tuple[int, int, int]:
    """Mirrored in time, what rises and then stays first stays and then falls: a hinge, once its sign is turned."""
    back = rows[::-1]
    hinge = fit_hinge([-x[i] for i in back], [-sign * y[i] for i in back])
    if hinge is None:
        return rows[0], rows[0], rows[0]
    ends = (hinge.start, hinge.high, hinge.low)
    at, low, high = (next((i for i in rows if x[i] >= -end), rows[-1]) for end in ends)
    return at, low, high

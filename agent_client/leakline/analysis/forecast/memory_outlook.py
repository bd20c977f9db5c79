"""The outlook for memory: its current growth, its scatter, and the generation in which it became flat.

Memory is flat (settled) once warm-up and filling are over and its level no longer changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ..memory.memory_kinds import SHARED_BY_ALL, Channel
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

# The newest part of the growth so far determines the rate; the newest half of that part shows whether the rate
# still holds.
_RECENT: Final = 0.6
_NEWEST: Final = 0.3
_MIN_POINTS: Final = 6
# Number of newest readings that determine the current level of the line, and how far high readings rise above the
# line.
_ABOUT_NOW: Final = 16
# A process is killed when a reading is well above the line, so this quantile of the newest readings counts.
_HIGH_READING: Final = 0.75
# Minimum number of readings in each half to detect accelerating growth.
_MIN_HALF: Final = 8
# Kinds of memory that count towards the limit of private memory, except shared memory, which counts only once for
# all processes.
_UNDER_LIMIT: Final = ("children",)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The current growth of memory and the scatter of its readings.

    ``rate`` is in bytes per generation, and its interval covers the rates over different windows. ``gains`` is the
    increase of the rate per generation, or 0 unless the growth clearly accelerates. ``over`` is how far high
    readings are above the newest reading, or negative if the newest reading is itself high. ``spread`` is the
    scatter of the readings.
    """

    rate: Slope = NO_GROWTH
    gains: float = 0.0
    over: float = 0.0
    spread: float = 0.0


def level_of(study: TimelineAnalysis, end: int) -> float:
    """Return the bytes that count towards the limit after ``end`` generations: private memory and children."""
    private = study.timeline.private[end - 1] - study.timeline.left_behind(end)
    return private + sum(c.values[end - 1] for c in outside_private(study))


def outlook_of(study: TimelineAnalysis, end: int) -> Outlook:
    """Return the outlook without the gains of bounded containers, which end at their capacity."""
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
    """Return the outlook of memory that has its own limit, such as a device's memory."""
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
    """Return the bytes of shared memory after ``end`` generations; several processes of a run report the same bytes."""
    return max((c.values[end - 1] for c in study.channels if c.name in SHARED_BY_ALL), default=0.0)


def outside_private(study: TimelineAnalysis) -> list[Channel]:
    """Return the channels that count towards the same limit as private memory."""
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
    """Return (current rate, its increase per generation), or None if the growth does not clearly accelerate."""
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
    """Return the number of generations until memory has grown by ``amount``, or None if it never does.

    The rate increases by ``gains`` with each generation.
    """
    if amount <= 0:
        return 0.0
    if gains <= 0:
        return amount / rate if rate > 0 else None
    root = math.sqrt(rate * rate + 2 * gains * amount)
    # This form avoids subtracting two nearly equal numbers.
    return 2 * amount / (root + rate) if rate > 0 else (root - rate) / gains


# Minimum number of readings on a level.
MIN_FLAT: Final = 5
# A reading is still off the level if its distance exceeds this many spreads, and also this share of the level.
_CLEAR: Final = 4.0
_SMALLEST: Final = 5e-4
# If memory still rises on a level, search for another level after that level's beginning, at most this many times.
_TRIES: Final = 4
# Memory has not settled on a level whose slope is at least this share of the preceding slope.
_SAME_WAY: Final = 0.5
# Maximum number of newest readings that determine a level.
_NEWEST_READINGS: Final = 256
# If the last reading off the level is at least this share of the maximum distance from the level, memory reached
# the level in one step.
_STEP: Final = 0.5


def settled(timelines: Sequence[tuple[TimelineAnalysis, Moment]], growing: bool) -> Interval | None:
    """Return the generation since which private memory has been flat in all processes.

    Return None while the memory of any process rises or falls materially. ``growing``: True if a finding reports
    growth, which outweighs flat readings.
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
    """Return where a rising or falling line turns flat.

    Return the first x if the line was always flat, or None if it is never flat.
    """
    first = 0
    for _ in range(_TRIES):
        if len(x) - first < MIN_FLAT:
            return None
        ends = _bend(x[first:], y[first:])
        # positions of (the estimate, its low end, its high end)
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
    """Return True if a line neither rises nor falls materially.

    This must hold for the entire line and for its newer half.
    """
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
    # The newer half of so few readings is too short for a slope.
    return len(y) >= 2 * MIN_FLAT or not _leaves(y, scale)


def _goes_on(x: Sequence[float], y: Sequence[float], at: int) -> bool:
    """Return True if the line keeps moving in the same direction after ``at``, so it has not settled."""
    for sign in (1.0, -1.0):
        line = [sign * value for value in y]
        after, before = floor_slope(x[at:], line[at:]), floor_slope(x[: at + 1], line[: at + 1])
        if after.rises and before.rises and after.estimate >= _SAME_WAY * before.estimate:
            return True
    return False


def _leaves(y: Sequence[float], scale: Scale) -> bool:
    """Return True if the two newest readings lie materially above or below all earlier readings."""
    *before, last, newest = y
    moves = newest > last > max(before) or newest < last < min(before)
    return moves and scale.is_material(
        abs(newest - before[-1]) / 2 / scale.spacing, len(y) * scale.spacing
    )


def _bend(x: Sequence[float], y: Sequence[float]) -> tuple[int, int, int]:
    """Return (start, low, high) of the flat part as positions, or zeros if the entire line is flat."""
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
    # If the readings approach the level more and more slowly, they reach it later than the bend of the two-piece line
    # fitted to them, so use the later position.
    return max(at, away), low, max(high, away)


def _off(y: Sequence[float], level: float) -> list[float]:
    """Return the distance of each reading from the level.

    The median of three neighbours removes spikes.
    """
    return [median(y[max(0, i - 1) : i + 2]) - level if i else y[0] - level for i in range(len(y))]


def _behind(off: Sequence[float], reach: float) -> int:
    """Return the position after the last reading whose distance exceeds ``reach``."""
    return next((i + 1 for i in range(len(off) - 1, -1, -1) if abs(off[i]) > reach), 0)


def _end_of_way(
    x: Sequence[float], y: Sequence[float], away: int, sign: float
) -> tuple[int, int, int]:
    """Return (estimate, low, high) of the position where a straight approach to the level ends.

    The fit covers equal lengths of the approach and of the level. A long approach is first fitted to every n-th
    reading, and then to more of the readings around the result.
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
    """Return (estimate, low, high) of the bend of a line that moves and then stays level.

    The line is fitted as a hinge that is reversed in time.
    """
    back = rows[::-1]
    hinge = fit_hinge([-x[i] for i in back], [-sign * y[i] for i in back])
    if hinge is None:
        return rows[0], rows[0], rows[0]
    ends = (hinge.start, hinge.high, hinge.low)
    at, low, high = (next((i for i in rows if x[i] >= -end), rows[-1]) for end in ends)
    return at, low, high

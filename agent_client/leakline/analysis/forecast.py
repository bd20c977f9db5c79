"""Will memory run out, and when? A question of its own: a filling buffer can answer yes, a leak no."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Final

from .limits import newest
from .results import Interval, OomForecast, Risk
from .results import Moment as When
from .study import LaneStudy, Moment
from .trend import Slope

# Never look further ahead than twice the stretch the growth was seen in.
_REACH: Final = 2.0
_MIN_GENERATIONS: Final = 4
# Share of the run's life left at which the risk rises.
_HIGH: Final = 0.50
_CRITICAL: Final = 0.25
_NEAR: Final = 3.0
# A nominal 90 % interval covered 82 to 87 % in back tests: widen it.
_WIDEN: Final = 1.3


def forecast(studies: Sequence[LaneStudy], moments: Sequence[Moment], growing: bool) -> OomForecast:
    """The forecast of a run; processes under one limit are added up.

    ``growing``: whether any finding says that the growth is real. Without one only a rise that matters
    and goes on is extrapolated.
    """
    known = [(s, m) for s, m in zip(studies, moments, strict=True) if s.lane.private]
    if not known:
        return OomForecast()
    limit = known[0][0].limit
    if limit is None:
        return OomForecast()
    quiet = OomForecast("none", int(limit.bytes), limit.source)
    rate = _sum([m.growth for _, m in known])
    rising = growing or any(m.rise.window or m.rise.visible for _, m in known)
    filling = [
        (b.remaining_bytes(m.upto), _fill_rate(s, m, b.name))
        for s, m in known
        for b in s.facts.bounded
    ]
    if max(m.upto for _, m in known) < _MIN_GENERATIONS and not growing:
        return quiet
    headroom = _headroom(known[0][0], limit.source, limit.bytes, known)
    leak = Slope(rate.estimate, *_widened(rate), rate.points) if rising else Slope(0.0, 0.0, 0.0, 0)
    crossing = [
        generations_left(headroom, r, filling) for r in (leak.estimate, leak.high, leak.low)
    ]
    if crossing[0] is None:
        return quiet
    return _told(known, quiet, crossing[0], crossing[1] or crossing[0], crossing[2])


def _told(
    known: Sequence[tuple[LaneStudy, Moment]],
    quiet: OomForecast,
    left: float,
    soonest: float,
    latest: float | None,
) -> OomForecast:
    study, moment = known[0]
    now = float(study.lane.generations[moment.upto - 1])
    lived = now - study.lane.generations[0] + 1
    reach = _REACH * lived
    planned = study.remaining(moment.upto)
    if left > reach or (planned is not None and left > planned):
        return quiet
    latest = min(latest if latest is not None else reach, max(reach, left))
    generation = Interval(now + left, now + soonest, now + latest)
    return OomForecast(
        _risk(left, lived), quiet.limit_bytes, quiet.limit_source, generation,
        _moments(study, left, soonest, latest),
    )  # fmt: skip


def _risk(left: float, lived: float) -> Risk:
    share = left / (left + lived)
    if share <= _CRITICAL or left <= _NEAR:
        return "critical"
    return "high" if share <= _HIGH else "low"


def generations_left(
    headroom: float, rate: float, filling: Sequence[tuple[float, float]]
) -> float | None:
    """Generations until ``headroom`` bytes are used up by growth at ``rate`` and by containers filling.

    Each container adds its own bytes per generation until its remaining bytes are in. None when never.
    """
    if headroom <= 0:
        return 0.0
    now = 0.0
    open_ones = sorted((room / speed, speed) for room, speed in filling if room > 0 and speed > 0)
    for index, (full_at, _) in enumerate(open_ones):
        speed = rate + sum(s for _, s in open_ones[index:])
        if speed > 0 and headroom / speed <= full_at - now:
            return now + headroom / speed
        headroom -= speed * (full_at - now)
        now = full_at
    return now + headroom / rate if rate > 0 else None


def _sum(slopes: Sequence[Slope]) -> Slope:
    return Slope(
        sum(s.estimate for s in slopes), sum(s.low for s in slopes), sum(s.high for s in slopes),
        min(s.points for s in slopes),
    )  # fmt: skip


def _widened(rate: Slope) -> tuple[float, float]:
    low = rate.estimate - _WIDEN * (rate.estimate - rate.low)
    return low, rate.estimate + _WIDEN * (rate.high - rate.estimate)


def _fill_rate(study: LaneStudy, moment: Moment, name: str) -> float:
    """Bytes per generation a bounded container takes on lately."""
    container = next(b for b in study.facts.bounded if b.name == name)
    if not container.is_filling(moment.upto) or not container.bytes:
        return 0.0
    each = container.bytes[moment.upto - 1] / max(container.length[moment.upto - 1], 1.0)
    return each * container.per_generation(moment.upto)


def _headroom(
    study: LaneStudy, source: str, limit: float, known: Sequence[tuple[LaneStudy, Moment]]
) -> float:
    """Bytes left at the peaks of a generation, not at its quiet end: peaks are what gets a process killed."""
    if source == "system":
        available = newest(study.lane, "system.available_bytes")
        if available is not None:
            return available - sum(_peak_over_floor(s, m) for s, m in known)
    level = sum(s.lane.private[m.upto - 1] for s, m in known)
    level += sum(newest(s.lane, "children.uss_bytes") or 0.0 for s, _ in known)
    return limit - level - sum(_peak_over_floor(s, m) for s, m in known)


def _peak_over_floor(study: LaneStudy, moment: Moment) -> float:
    """How far memory rises inside a generation above its end, in the last three generations."""
    lane = study.lane
    overs = []
    for position in range(max(1, moment.upto - 3), moment.upto):
        rows = range(lane.end_rows[position - 1] + 1, lane.end_rows[position] + 1)
        inside = [v for row in rows if (v := lane.private_rows[row]) is not None]
        if inside:
            end = lane.private_rows[lane.end_rows[position]]
            overs.append(max(inside) - (end if end is not None else inside[-1]))
    return max(overs, default=0.0)


def _moments(study: LaneStudy, left: float, soonest: float, latest: float) -> When | None:
    lane = study.lane
    times = [lane.time[row] for row in lane.end_rows[-9:]]
    if len(times) < 2:
        return None
    each = median([b - a for a, b in pairwise(times)])
    if each <= 0:
        return None
    return When(*(_iso(times[-1] + each * n) for n in (left, soonest, latest)))


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

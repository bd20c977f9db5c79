"""Will memory run out, and when? A question of its own: a filling buffer can answer yes, a leak no."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Final

from .limits import Limit, newest
from .outlook import Outlook, generations_to, level_of, outlook_of
from .results import Interval, OomForecast, Risk
from .results import Moment as When
from .study import LaneStudy, Moment
from .trend import Z_90, Slope

# Never look further ahead than twice the stretch the growth was seen in.
_REACH: Final = 2.0
_MIN_GENERATIONS: Final = 4
# Share of the run's life left at which the risk rises.
_HIGH: Final = 0.50
_CRITICAL: Final = 0.25
_NEAR: Final = 3.0
# A nominal 90 % interval covered 82 to 87 % in back tests: widen it.
_WIDEN: Final = 1.2

# Generations left as expected, at the soonest and at the latest; None where that is never.
Ends = tuple[float | None, float | None, float | None]


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
    if max(m.upto for _, m in known) < _MIN_GENERATIONS and not growing:
        return quiet
    rising = growing or any(m.rise.window or m.rise.visible for _, m in known)
    leak = _sum([outlook_of(s, m.upto) for s, m in known]) if rising else Outlook()
    left, soonest, latest = _ends(known, limit, leak.rate, leak.gains)
    if left is None:
        return quiet
    return _told(known, quiet, left, left if soonest is None else soonest, latest)


def memory_lasts(known: Sequence[tuple[LaneStudy, Moment]], growth: Interval) -> Ends | None:
    """Where memory ends if it goes on to grow so, however far ahead that is; None without a limit.

    Growth that speeds up brings the soonest end nearer.
    """
    limit = known[0][0].limit if known else None
    if limit is None:
        return None
    return _ends(known, limit, growth, sum(outlook_of(s, m.upto).gains for s, m in known))


def _ends(
    known: Sequence[tuple[LaneStudy, Moment]], limit: Limit, rate: Slope | Interval, gains: float
) -> Ends:
    outlooks = [outlook_of(s, m.upto) for s, m in known]
    headroom = _headroom(known, limit) - sum(o.over for o in outlooks)
    scatter = Z_90 * sum(o.spread for o in outlooks)
    filling = [
        (b.remaining_bytes(m.upto), b.fill_rate(m.upto)) for s, m in known for b in s.facts.bounded
    ]
    low, high = widened(rate)
    return (
        generations_left(headroom, rate.estimate, filling, gains),
        generations_left(headroom - scatter, high, filling, gains),
        generations_left(headroom + scatter, low, filling),
    )


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
    headroom: float, rate: float, filling: Sequence[tuple[float, float]], gains: float = 0.0
) -> float | None:
    """Generations until ``headroom`` bytes are used up by growth at ``rate`` and by containers filling.

    The rate grows by ``gains`` with each generation; each container adds its own bytes per generation until its
    remaining bytes are in. None when never.
    """
    now = 0.0
    open_ones = sorted((room / speed, speed) for room, speed in filling if room > 0 and speed > 0)
    for index, (full_at, _) in enumerate(open_ones):
        speed = rate + gains * now + sum(s for _, s in open_ones[index:])
        span = full_at - now
        needed = generations_to(headroom, speed, gains)
        if needed is not None and needed <= span:
            return now + needed
        headroom -= speed * span + gains * span * span / 2
        now = full_at
    needed = generations_to(headroom, rate + gains * now, gains)
    return None if needed is None else now + needed


def _sum(outlooks: Sequence[Outlook]) -> Outlook:
    rates = [o.rate for o in outlooks]
    rate = Slope(
        sum(r.estimate for r in rates), sum(r.low for r in rates), sum(r.high for r in rates),
        min(r.points for r in rates),
    )  # fmt: skip
    return Outlook(rate, sum(o.gains for o in outlooks))


def widened(rate: Slope | Interval) -> tuple[float, float]:
    """(low, high) of a rate as they are believed."""
    low = rate.estimate - _WIDEN * (rate.estimate - rate.low)
    return low, rate.estimate + _WIDEN * (rate.high - rate.estimate)


def _headroom(known: Sequence[tuple[LaneStudy, Moment]], limit: Limit) -> float:
    """Bytes left at the peaks of a generation, not at its quiet end: peaks are what gets a process killed."""
    over = sum(_peak_over_floor(s, m) for s, m in known)
    if limit.source == "system":
        available = newest(known[0][0].lane, "system.available_bytes")
        if available is not None:
            return available - over
    return limit.bytes - sum(level_of(s, m.upto) for s, m in known) - over


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

"""The forecast of whether and when memory runs out.

The forecast is independent of the status of leaks: a filling buffer may exhaust memory, and a leak may not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Final

from ...text_format import format_bytes
from ..findings.verdict_summary import OF_DEVICES, Ahead
from ..memory.memory_kinds import CHILDREN, SHARED_BY_ALL, Channel, device_of
from ..results import Interval, OomForecast, Risk
from ..results import Moment as When
from ..run_history import RunHistory
from ..statistics.count_evidence import WINDOW
from ..statistics.trend import NO_GROWTH, Z_90, Slope, floor_slope
from ..status import ACTIVE, MIN_GENERATIONS, Standing, TimelineStatus
from ..timeline_analysis import PRIVATE, Limit, Moment, TimelineAnalysis, read_newest
from .memory_outlook import (
    Outlook,
    generations_to,
    level_of,
    outlook_of,
    outlook_of_channel,
    shared_now,
)

# A rise without a finding is extrapolated to at most this many times the length of the run so far.
_REACH: Final = 2.0
_MIN_GENERATIONS: Final = 4
# The risk is high or critical if at most this share of the run's life is left.
_HIGH: Final = 0.50
_CRITICAL: Final = 0.25
_NEAR: Final = 3.0
# A nominal 90 % interval covered 82 to 87 % in back tests, so it is widened.
_WIDEN: Final = 1.2
# The latest end is capped at this many times the distance to the expected end: the lower bound of the rate may be zero,
# which would put the end infinitely far away.
_LATEST: Final = 10.0
# Without a plan, an end more than a day ahead is not a high risk, and no date is given beyond a year.
DAY_SECONDS: Final = 86_400.0
_YEAR_SECONDS: Final = 365 * DAY_SECONDS

# Generations left until the expected, the soonest and the latest end, with None for an end that is never reached.
Ends = tuple[float | None, float | None, float | None]
# The analysis of a process place with its newest moment.
Known = tuple[TimelineAnalysis, Moment]


@dataclass(frozen=True, slots=True)
class _Growth:
    """The growth to extrapolate, summed over all processes. ``sure``: an active finding shows the growth."""

    rate: Slope = NO_GROWTH
    gains: float = 0.0
    shared_bytes: float = 0.0
    sure: bool = False
    confirmed: bool = False

    def after(self, generations: float) -> float:
        """Return the bytes that memory gains over this many generations."""
        return self.rate.estimate * generations + self.gains * generations * generations / 2


def unread(*, ended: bool) -> OomForecast:
    """Return the forecast of a run whose memory was not read."""
    return OomForecast(sentence="not known: memory was not read") if ended else OomForecast()


def forecast(timelines: Sequence[TimelineStatus]) -> OomForecast:
    """Return the forecast for a run's memory, without device memory.

    Processes under one limit are added up. The growth of active findings is extrapolated until the planned end or
    until memory runs out; a material rise without a finding is extrapolated only for a while.
    """
    known = [(study, moment) for study, moment, _ in timelines if study.timeline.private]
    if not known:
        return unread(ended=any(study.history.ended for study, _, _ in timelines))
    history, limit = known[0][0].history, known[0][0].limit
    if limit is None:
        return OomForecast(planned=history.total, sentence="no limit known")
    quiet = OomForecast("none", int(limit.bytes), limit.source, planned=history.total)
    growth = _growth_of([each for each in timelines if each[0].timeline.private])
    seen = max(moment.end for _, moment in known)
    if seen < _MIN_GENERATIONS and not growth.sure:
        return replace(quiet, sentence=_not_known(history))
    ends = _ends(known, limit, growth.rate, growth.gains, growth.shared_bytes)
    if ends[0] is None:
        if growth.sure:
            return replace(quiet, sentence="not expected: memory under the limit does not grow")
        if seen < MIN_GENERATIONS:
            return replace(quiet, sentence=_not_known(history))
        return replace(quiet, sentence="not in sight")
    by_the_end = _used_by_the_end(known, limit, growth)
    return _oom(known[0], quiet, growth, ends[0], ends, by_the_end)


def first_end(memory: OomForecast, device: OomForecast | None) -> OomForecast:
    """Return the earlier of two forecasts: for the memory of the processes and for a device."""
    return memory if device is None else min((memory, device), key=_end)


def of_devices(timelines: Sequence[TimelineStatus]) -> OomForecast | None:
    """Return the forecast for the device that fills up first, or None without growth on a device."""
    return min(
        (found for each in timelines for found in _ends_of_devices(*each)), key=_end, default=None
    )


def _end(oom: OomForecast) -> float:
    return math.inf if oom.generation is None else oom.generation.estimate


def _ends_of_devices(
    study: TimelineAnalysis, moment: Moment, standings: Sequence[Standing]
) -> Iterator[OomForecast]:
    """Yield the forecast for each device on which a finding of this process shows growth."""
    active: dict[str, list[Standing]] = {}
    for each in standings:
        if each.status in ACTIVE:
            active.setdefault(each.assessed.channel, []).append(each)
    growing: dict[str, list[Channel]] = {}
    for channel in study.channels:
        if channel.name in active and channel.limit_bytes and channel.kind in OF_DEVICES:
            growing.setdefault(device_of(channel.name), []).append(channel)
    for device, channels in growing.items():
        outlooks = [outlook_of_channel(study, each, moment.end) for each in channels]
        rates = [
            _carried_on(outlook, sum(map(_rate, active[channel.name])))
            for outlook, channel in zip(outlooks, channels, strict=True)
        ]
        growth = _Growth(
            _with_others(study, moment, channels, _total(rates)), sum(o.gains for o in outlooks), sure=True,
            confirmed=any(s.status == "confirmed" for c in channels for s in active[c.name]),
        )  # fmt: skip
        limit = max(channel.limit_bytes or 0.0 for channel in channels)
        used = _used_on_device(study, channels, moment.end)
        # Memory that torch has reserved outside its tensors is needed at the peak of a generation, so it is not free.
        headroom = limit - used - sum(o.over for o in outlooks)
        ends = _ends_of(headroom, Z_90 * sum(o.spread for o in outlooks), growth.rate, growth.gains)
        if ends[0] is not None:
            quiet = OomForecast("none", int(limit), "device", planned=study.history.total)
            by_the_end = used + growth.after(study.remaining(moment.end) or 0.0)
            yield _oom((study, moment), quiet, growth, ends[0], ends, by_the_end, device)


def _with_others(
    study: TimelineAnalysis, moment: Moment, channels: Sequence[Channel], own: Slope
) -> Slope:
    """Return the larger growth on a device: of this process or, if read, of all processes there."""
    used = _used_series(channels)
    if not study.timeline.has(used):
        return own
    x, y = study.timeline.points(used, moment.end, newest=WINDOW)
    of_all = floor_slope(x, y) if len(x) >= _MIN_GENERATIONS else own
    return max(own, of_all, key=lambda slope: slope.estimate)


def _used_series(channels: Sequence[Channel]) -> str:
    return f"gpu.{channels[0].name.split('.')[1]}.used_bytes"


def _used_on_device(study: TimelineAnalysis, channels: Sequence[Channel], end: int) -> float:
    """Return the bytes in use on a device by all processes or, if unknown, by this process."""
    used = read_newest(study.timeline, _used_series(channels))
    if used is not None:
        return used
    at = {each: each.stands(end) - 1 for each in channels}
    return max(c.values[i] + (c.other_values[i] if c.other_values else 0.0) for c, i in at.items())


def ahead(timelines: Sequence[TimelineStatus], oom: OomForecast, hours: float) -> Ahead | None:
    """Return the rest of the run: up to its planned end or, without a plan, for this many hours.

    Return None if the memory limit or the duration of a generation is unknown.
    """
    of_memory = oom.limit_source != "device"
    known = [(s, moment) for s, moment, _ in timelines if s.timeline.private or not of_memory]
    if not known or not oom.limit_bytes:
        return None
    study, moment = known[0]
    now = float(study.timeline.generations[moment.end - 1])
    generations = study.remaining(moment.end)
    if generations is None:
        seconds = _seconds_each(study)
        if seconds is None:
            return None
        generations = hours * 3600 / seconds
    left = None if oom.generation is None else oom.generation.estimate - now
    return Ahead(oom.limit_bytes, now, generations, left)


def memory_lasts(known: Sequence[Known], growth: Interval) -> Ends | None:
    """Return the generations left until memory runs out at this growth, or None if no limit is known.

    Accelerating growth brings the expected and the soonest end nearer.
    """
    limit = known[0][0].limit if known else None
    if limit is None:
        return None
    return _ends(known, limit, growth, sum(outlook_of(s, m.end).gains for s, m in known))


def _growth_of(timelines: Sequence[TimelineStatus]) -> _Growth:
    """Add up the growth of active findings and, in processes without findings, any material rise."""
    rates: list[Slope] = []
    gains = 0.0
    shared = 0.0
    for study, moment, standings in timelines:
        outlook = outlook_of(study, moment.end)
        active = [each for each in standings if each.status in ACTIVE]
        found = _rate_under_limit(active)
        if found > 0:
            rates.append(_carried_on(outlook, found))
            gains += outlook.gains
        elif moment.rise.window or moment.rise.visible:
            rates.append(outlook.rate)
            gains += outlook.gains
        # Processes share this memory, so it is not added up.
        shared = max(
            shared, *(_rate(each) for each in active if each.assessed.channel in SHARED_BY_ALL), 0.0
        )
    active = [each for _, _, standings in timelines for each in standings if each.status in ACTIVE]
    return _Growth(
        _total(rates, shared), gains,
        shared_bytes=max(shared_now(s, m.end) for s, m, _ in timelines) if shared else 0.0,
        sure=bool(active),
        confirmed=any(each.status == "confirmed" for each in active),
    )  # fmt: skip


def _total(rates: Sequence[Slope], shared: float = 0.0) -> Slope:
    return Slope(
        sum(r.estimate for r in rates) + shared, sum(r.low for r in rates) + shared,
        sum(r.high for r in rates) + shared, min((r.points for r in rates), default=0),
    )  # fmt: skip


def _rate_under_limit(active: Sequence[Standing]) -> float:
    """Return the growth of these findings in private memory and in children, in bytes per generation."""
    return sum(
        _rate(each)
        for each in active
        if each.assessed.channel == PRIVATE or each.assessed.channel in CHILDREN
    )


def _rate(standing: Standing) -> float:
    return standing.assessed.cause.rate.estimate


def _carried_on(outlook: Outlook, found: float) -> Slope:
    """Return the findings' rate with the outlook's interval or, if growth accelerates, the outlook's current rate."""
    rate = outlook.rate
    if outlook.gains > 0:
        return rate
    return Slope(found, min(found, rate.low), max(found, rate.high), rate.points)


def _ends(
    known: Sequence[Known], limit: Limit, rate: Slope | Interval, gains: float, shared: float = 0.0
) -> Ends:
    outlooks = [outlook_of(s, m.end) for s, m in known]
    headroom = _headroom(known, limit, shared) - sum(o.over for o in outlooks)
    scatter = Z_90 * sum(o.spread for o in outlooks)
    filling = [
        (b.remaining_bytes(m.end), b.fill_rate(m.end)) for s, m in known for b in s.facts.bounded
    ]
    return _ends_of(headroom, scatter, rate, gains, filling)


def _ends_of(
    headroom: float, scatter: float, rate: Slope | Interval, gains: float,
    filling: Sequence[tuple[float, float]] = (),
) -> Ends:  # fmt: skip
    low, high = widened(rate)
    return (
        generations_left(headroom, rate.estimate, filling, gains),
        generations_left(headroom - scatter, high, filling, gains),
        generations_left(headroom + scatter, low, filling),
    )


def _oom(
    known: Known,
    quiet: OomForecast,
    growth: _Growth,
    left: float,
    ends: Ends,
    by_the_end: float,
    device: str = "",
) -> OomForecast:
    """Return the forecast that memory runs out in ``left`` generations, with its risk and its sentence.

    ``by_the_end``: bytes in use at the planned end. ``device``: the name of the device, empty for the memory of
    processes.
    """
    study, moment = known
    history = study.history
    now = float(study.timeline.generations[moment.end - 1])
    lived = now - study.timeline.generations[0] + 1
    planned = study.remaining(moment.end)
    _, soonest, latest = ends
    soonest = left if soonest is None else min(soonest, left)
    farthest = max(_LATEST * left, left)
    latest = farthest if latest is None else max(left, min(latest, farthest))
    if not growth.sure and left > _REACH * lived:
        return replace(quiet, sentence=_not_known(history, "the rise did not last long enough"))
    seconds = _seconds_each(study)
    at = None if seconds is None else _moments(study, seconds, left, soonest, latest)
    found = replace(
        quiet,
        risk=_risk(
            _Distance(left, soonest, latest, lived, planned, None if seconds is None else seconds * left),
            growth.confirmed,
        ),
        generation=Interval(now + left, now + soonest, now + latest),
        at=at,
    )  # fmt: skip
    if planned is not None and soonest > planned:
        sentence = _safe(by_the_end, quiet.limit_bytes or 0, device)
    elif planned is None and seconds is not None and seconds * soonest > _YEAR_SECONDS:
        sentence = "not within a year at this rate"
    else:
        sentence = _oom_sentence(found, history.unit, history.ended, device)
    return replace(found, sentence=sentence)


@dataclass(frozen=True, slots=True)
class _Distance:
    """Numbers of generations: until memory runs out, lived so far, and still planned.

    ``seconds``: time until the expected end, or None if time was not read.
    """

    left: float
    soonest: float
    latest: float
    lived: float
    planned: float | None = None
    seconds: float | None = None


def _risk(end: _Distance, confirmed: bool) -> Risk:
    """Return the risk, based on the share of the run's life that is left until memory runs out.

    With a plan, running out of memory is a risk only if it may happen before the planned end. The risk is at least
    high if a confirmed leak is certain to exhaust memory before the planned end. Without a plan, an end more than a
    day ahead is not a high risk.
    """
    share = end.left / (end.left + end.lived)
    if end.planned is not None:
        if end.soonest > end.planned:
            return "none"
        if end.left > end.planned:
            return "low"
    elif end.seconds is not None and end.seconds > DAY_SECONDS and end.left > _NEAR:
        return "low" if end.left <= _REACH * end.lived else "none"
    if share <= _CRITICAL or end.left <= _NEAR:
        return "critical"
    if share <= _HIGH:
        return "high"
    if end.planned is not None:
        return "high" if confirmed and end.latest <= end.planned else "low"
    near = end.left <= _REACH * end.lived or end.seconds is not None
    return "low" if near else "none"


def _oom_sentence(oom: OomForecast, unit: str, ended: bool, device: str = "") -> str:
    """Return text such as ``OOM near generation 415 of 1,000 at this rate (380 to 460)``, with the date if known.

    ``device``: the name of the device that runs out, such as ``GPU 0``; empty for the memory of processes.
    """
    if oom.generation is None:
        return oom.sentence
    estimate, low, high = (
        f"{round(end):,}" for end in (oom.generation.estimate, oom.generation.low, oom.generation.high)
    )  # fmt: skip
    plan = ""
    if oom.planned is not None:
        is_before = oom.generation.estimate < oom.planned
        plan = f" of {oom.planned:,}" if is_before else f", after the planned {oom.planned:,},"
    interval = "" if low == high else f" ({low} to {high})"
    was = "was forecast " if ended else ""
    date = f", about {_minute(oom.at.estimate)}" if oom.at is not None and not ended else ""
    where = f"on {device} " if device else ""
    return f"OOM {where}{was}near {unit} {estimate}{plan} at this rate{interval}{date}"


def _minute(iso: str) -> str:
    """Return the minute of an ISO 8601 time, as in ``2026-11-26 15:04 UTC``."""
    return f"{iso[:16].replace('T', ' ')} UTC"


def _safe(used: float, limit_bytes: float, device: str = "") -> str:
    where = f" on {device}" if device else ""
    return f"not before the planned end (projected use: {format_bytes(used)} of {format_bytes(limit_bytes)}{where})"


def _not_known(history: RunHistory, why: str = "") -> str:
    """Return the sentence for an unknown end, with the reason if the run has ended."""
    reason = why or f"too few {history.unit}s"
    return f"not known: {reason}" if history.ended else "not known yet"


def _used_by_the_end(known: Sequence[Known], limit: Limit, growth: _Growth) -> float:
    """Return the bytes expected in use at the planned end or, without a plan, the bytes in use now."""
    study, moment = known[0]
    generations = study.remaining(moment.end) or 0.0
    outlooks = [outlook_of(s, m.end) for s, m in known]
    headroom = _headroom(known, limit, growth.shared_bytes) - sum(o.over for o in outlooks)
    filled = sum(
        min(b.remaining_bytes(m.end), generations * b.fill_rate(m.end))
        for s, m in known
        for b in s.facts.bounded
    )
    return min(limit.bytes, limit.bytes - headroom + growth.after(generations) + filled)


def generations_left(
    headroom: float, rate: float, filling: Sequence[tuple[float, float]], gains: float = 0.0
) -> float | None:
    """Return the number of generations until ``headroom`` bytes are used up, or None if never.

    Memory grows by ``rate``, which increases by ``gains`` with each generation, and by filling containers.
    ``filling``: (remaining bytes, bytes per generation) of each container, which grows until it is full.
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


def widened(rate: Slope | Interval) -> tuple[float, float]:
    """Return (low, high) of a rate, widened because its interval covered too little in back tests."""
    low = rate.estimate - _WIDEN * (rate.estimate - rate.low)
    return low, rate.estimate + _WIDEN * (rate.high - rate.estimate)


def _headroom(known: Sequence[Known], limit: Limit, shared: float = 0.0) -> float:
    """Return the bytes left at the peak of a generation, because a process is killed at a peak."""
    over = sum(_peak_over_floor(s, m) for s, m in known)
    if limit.source == "system":
        available = read_newest(known[0][0].timeline, "system.available_bytes")
        if available is not None:
            return available - over
    return limit.bytes - sum(level_of(s, m.end) for s, m in known) - shared - over


def _peak_over_floor(study: TimelineAnalysis, moment: Moment) -> float:
    """Return the highest peak over the memory at the generation's end, in the last three generations."""
    timeline = study.timeline
    overs = []
    for position in range(max(1, moment.end - 3), moment.end):
        rows = range(timeline.end_rows[position - 1] + 1, timeline.end_rows[position] + 1)
        inside = [v for row in rows if (v := timeline.private_rows[row]) is not None]
        if inside:
            end = timeline.private_rows[timeline.end_rows[position]]
            overs.append(max(inside) - (end if end is not None else inside[-1]))
    return max(overs, default=0.0)


def _seconds_each(study: TimelineAnalysis) -> float | None:
    """Return the typical duration of the newest generations in seconds, or None if time was not read."""
    timeline = study.timeline
    newest = timeline.generations[-9:], timeline.end_rows[-9:]
    ends = [(generation, timeline.time[row]) for generation, row in zip(*newest, strict=False)]
    each = [(b - a) / (after - before) for (before, a), (after, b) in pairwise(ends)]
    seconds = median(each) if each else 0.0
    return seconds if seconds > 0 else None


def _moments(
    study: TimelineAnalysis, seconds: float, left: float, soonest: float, latest: float
) -> When | None:
    """Return the times of the expected, the soonest and the latest end.

    Return None if these times are too far ahead for a date.
    """
    timeline = study.timeline
    last = timeline.time[timeline.end_rows[-1]]
    if seconds * left > _YEAR_SECONDS:
        return None
    farthest = last + _LATEST * _YEAR_SECONDS
    return When(*(_iso(min(farthest, last + seconds * n)) for n in (left, soonest, latest)))


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

"""The status machine: learning, ok, filling, watch, suspected, confirmed, recovered.

A status depends on the newest moment and on earlier moments. Memory must pass the tests at several moments in a
row. A leak that stops keeps its status until enough readings show that it has stopped; then it is marked as
recovered.

The attempts of a run form one curve: a leak before and after a restart is one finding, which starts in the leak's
first generation. But people often resume a run with a fix, so the newest attempt is also judged on its own.

A run that is counted in seconds is counted in minutes after ten minutes. Ten minutes are too few for a verdict, so
a leak that was suspected or confirmed in seconds keeps its status until the minutes show that it has stopped.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from .assessment import is_over, moment_of
from .attribution.candidates import Candidate
from .attribution.causes import fingerprint_of
from .findings.verdict_summary import MIN_GENERATIONS as MIN_GENERATIONS
from .generation_axis import COUNTED_BY_SECONDS_UP_TO
from .memory.memory_by_phase import IN_USE
from .results import SEVERITY, Status
from .run_history import MINUTE_SECONDS, ProcessHistory, RunHistory
from .statistics.trend import floor_slope
from .timeline import Timeline, timelines_of
from .timeline_analysis import PRIVATE, RATE_WINDOW, Assessed, Moment, TimelineAnalysis

_WATCH: Final = 8
_SUSPECT: Final = (12, 4)  # generations of growth, moments in a row
# Number of moments in a row that confirm a leak by memory alone; `confirmations` looks back no further.
CONFIRMATIONS: Final = 5
# Number of generations of growth that confirm a leak by memory alone.
CONFIRMING: Final = 24
_CONFIRM: Final = (CONFIRMING, CONFIRMATIONS)
_CONFIRM_WITH_WITNESSES: Final = 16
_CONFIRM_BROKEN_CONTRACT: Final = 8
# Number of quiet readings before a leak counts as recovered: exact counts need fewer than memory alone.
_HOLD_COUNTS: Final = 4
_HOLD_MEMORY: Final = 8
# The objects of a cause have been released if at most this share of those that it has gained is left.
_RELEASED: Final = 0.25
# After a gap of more than this many generations between two readings, the evidence starts over.
_SILENCE: Final = 16
# Growth counts as continuing while memory grows at no less than this share of the rate attributed to the cause.
_STILL_GROWS: Final = 0.25
# Objects whose bytes are known explain growth if they are at least this share of it.
_EXPLAINED: Final = 0.8
# The newest moments are examined one by one, and older ones on a grid that becomes coarser.
_DENSE: Final = 32
_GRID: Final = 8
_MAX_OLD: Final = 24

ACTIVE: Final[tuple[Status, ...]] = ("suspected", "confirmed")
# Statuses of certain and possible leaks.
GROWING: Final[tuple[Status, ...]] = (*ACTIVE, "watch")


@dataclass(frozen=True, slots=True)
class Standing:
    """One cause with its status after the walk through the moments."""

    fingerprint: str
    assessed: Assessed
    status: Status
    confirmations: int


@dataclass(slots=True)
class _Memory:
    """The state of one cause during the walk through the moments."""

    assessed: Assessed
    status: Status
    confirmations: int
    last_active: int | None = None
    peak: Status = "ok"


# For this long, a run without generations that has not ended may load data; growth is then only worth watching.
LOADING_SECONDS: Final = 300


def moments_of(generations: int) -> list[int]:
    """Return the moments to examine: the last 32, and older moments on a fixed grid.

    The grid bounds the work.
    """
    step = _GRID
    while generations // step > _MAX_OLD:
        step *= 2
    old = range(step, max(1, generations - _DENSE + 1), step)
    recent = range(max(1, generations - _DENSE + 1), generations + 1)
    return sorted({*old, *recent})


def moments_in(timeline: Timeline) -> list[int]:
    """Return the moments of a timeline to examine.

    If generations are left out, their phase accounts and counts are unknown, so moments close to them are skipped.
    """
    found = moments_of(len(timeline))
    if not timeline.whole_from:
        return found
    later = [end for end in found if end > timeline.whole_from + RATE_WINDOW]
    return later if len(later) >= _DENSE else found[-_DENSE:]


def moments_for(study: TimelineAnalysis) -> list[int]:
    """Return the moments to examine, including the last readings of memory that is no longer read.

    The last readings remain evidence when many generations without readings follow.
    """
    timeline = study.timeline
    read_of = [timeline.private_read, *(c.read for c in study.channels if c.read is not None)]
    found = moments_in(timeline)
    silent = (read for read in read_of if read and read[-1] < len(timeline) - _DENSE)
    return sorted({*found, *(at + 1 for read in silent for at in read[-2 * _HOLD_MEMORY :])})


def walk(
    study: TimelineAnalysis,
    moments: Sequence[int] | None = None,
    *,
    carried: Sequence[Standing] = (),
    carried_at: int = 0,
) -> tuple[Moment | None, list[Standing]]:
    """Return the newest moment, and every cause with its status after all moments.

    ``carried``: leaks that were active at the end of generation number ``carried_at``, when counted in another unit.
    """
    remembered = {
        each.fingerprint: _Memory(
            each.assessed, each.status, each.confirmations, carried_at, each.status
        )
        for each in carried
    }
    newest: Moment | None = None
    if moments is None:
        moments = moments_for(study)
        if remembered:
            moments = [end for end in moments if end > carried_at] or moments[-1:]
        moments = [end for end in moments if not _may_load(study, end)] or moments[-1:]
    for end in moments:
        newest = moment_of(study, end)
        step(study, newest, remembered)
    if newest is None:
        return None, []
    standings = [Standing(p, m.assessed, m.status, m.confirmations) for p, m in remembered.items()]
    if not study.history.ended and _may_load(study, newest.end):
        standings = [replace(s, status="watch") if s.status in ACTIVE else s for s in standings]
    return newest, standings


def _may_load(study: TimelineAnalysis, end: int) -> bool:
    """Return True if a program without generations may still be loading its data, so that no growth is a leak yet."""
    return study.history.unit == "second" and study.timeline.generations[end - 1] < LOADING_SECONDS


def step(study: TimelineAnalysis, moment: Moment, remembered: dict[str, _Memory]) -> None:
    """Update the remembered causes with the results of one moment."""
    levels = levels_of(study, moment)
    for fingerprint, (assessed, status, confirmations) in levels.items():
        memory = remembered.get(fingerprint)
        if memory is None:
            memory = remembered[fingerprint] = _Memory(assessed, status, confirmations)
        if status in ACTIVE:
            memory.assessed, memory.confirmations = assessed, confirmations
            # A confirmed leak that is still active stays confirmed.
            memory.status = "confirmed" if memory.status == "confirmed" else status
            memory.last_active, memory.peak = moment.end, memory.status
        else:
            _quiet(study, memory, moment, assessed, status)
    for fingerprint, memory in list(remembered.items()):
        if fingerprint not in levels:
            heir = _successor(memory, moment) if memory.peak in ACTIVE else None
            if memory.peak in ACTIVE and heir is None:
                _quiet(study, memory, moment, memory.assessed, "ok")
                continue
            del remembered[fingerprint]
            if heir is not None:
                _inherit(remembered[fingerprint_of(heir.cause)], memory)


def _quiet(
    study: TimelineAnalysis, memory: _Memory, moment: Moment, assessed: Assessed, status: Status
) -> None:
    """Keep the status of an inactive cause until enough readings show that its growth has stopped."""
    if memory.last_active is None:
        memory.assessed, memory.status, memory.confirmations = assessed, status, 0
        return
    if status == "filling" and memory.status == "suspected":
        memory.assessed, memory.status, memory.confirmations = assessed, status, 0
        memory.last_active, memory.peak = None, status
        return
    if status == "watch" and still_counted(assessed):
        memory.last_active = moment.end
        return
    if _is_shown_quiet(study, memory.assessed, memory.last_active, moment.end):
        memory.status = "recovered"


def _is_shown_quiet(study: TimelineAnalysis, a: Assessed, active: int, end: int) -> bool:
    """Return True if enough readings since the last active moment show that the growth has stopped.

    Generations without a reading do not count, since a missing reading is not evidence of flat memory.
    """
    if _is_released(study, a, active, end):
        return True
    if a.channel == PRIVATE and _fills_freed_memory(study, a, active, end):
        return False
    read = study.readings(a.channel)
    memory = _read_between(read, active, end)
    counts = study.counts_between(a.cause, active, end) if "counts" in a.witnesses else []
    # A count that keeps rising shows that the growth has not ended, even if memory is flat.
    counted = len(counts) >= _HOLD_COUNTS and counts[-1] <= max(counts[: len(counts) // 2])
    if counted or _has_ended_unread(study, a, end):
        return True
    resumed = _readings_since_silence(read, end) if a.channel == PRIVATE else ()
    if resumed:
        return len(resumed) >= _HOLD_MEMORY and _has_stopped_in(study, a, resumed, end)
    if memory >= _HOLD_MEMORY:
        return True
    return (
        a.channel == PRIVATE and "counts" not in a.witnesses and _was_level(study, a, active, end)
    )


def _is_released(study: TimelineAnalysis, a: Assessed, active: int, end: int) -> bool:
    """Return True if two counts since the last active moment are near the one that the growth began with.

    Memory must have stopped growing as well. For example, the collector frees figures that were closed long before. A
    single count may be read when the program has ended and everything is being freed.
    """
    owner = a.cause.owner
    if owner is None or "counts" not in a.witnesses:
        return False
    begin = bisect_left(study.timeline.generations, owner.growth.start, 0, active)
    gained = study.counts_between(a.cause, begin, active)
    newest = study.counts_between(a.cause, active, end)[-2:]
    if not gained or len(newest) < 2:
        return False
    if a.channel == PRIVATE:
        residual, generations = study.residual(end), study.timeline.generations
        passed = generations[end - 1] - generations[active - 1]
        if residual[end - 1] - residual[active - 1] >= _STILL_GROWS * _claimed(a) * passed:
            return False
    rise = max(gained) - gained[0]
    return rise > 0 and max(newest) - gained[0] <= _RELEASED * rise


def _readings_since_silence(read: Sequence[int], end: int) -> Sequence[int]:
    """Return the readings after the newest long gap, if they are still too few to confirm growth again.

    Too few readings to prove growth do not prove that growth has ended.
    """
    newest = read[: bisect_left(read, end)][-CONFIRMING - 1 :]
    for at in range(len(newest) - 1, 0, -1):
        if newest[at] - newest[at - 1] > _SILENCE:
            return newest[at:]
    return ()


def _was_level(study: TimelineAnalysis, a: Assessed, active: int, end: int) -> bool:
    """Return True if memory has been level for longer than any pause during its rise.

    A cause stays active for some moments after its growth has ended, although memory is already level. If a
    program leaks in every eighth generation, memory is level for eight generations between two steps.
    """
    read, residual, claimed = study.readings(PRIVATE), study.residual(end), _claimed(a)
    pause = longest = 0
    highest = -math.inf
    for at in read[: bisect_left(read, active)]:
        if residual[at] > highest + claimed:
            highest, pause = residual[at], 0
        pause += 1
        longest = max(longest, pause)
    needed = max(_HOLD_MEMORY, longest + _HOLD_MEMORY // 2)
    lately = read[: bisect_left(read, end)][-needed:]
    if len(lately) < needed or residual[lately[-1]] - residual[lately[0]] >= claimed:
        return False
    return _has_stopped_in(study, a, lately, end)


def _fills_freed_memory(study: TimelineAnalysis, a: Assessed, active: int, end: int) -> bool:
    """Return True if memory stays level only because live memory grows into freed memory that the allocator kept."""
    if not study.timeline.has(IN_USE):
        return False
    x, in_use = study.timeline.points(IN_USE, end, newest=max(_HOLD_MEMORY, end - active))
    slope = floor_slope(x, in_use)
    return slope.rises and a.scale.is_material(slope.estimate, x[-1] - x[0])


def _has_ended_unread(study: TimelineAnalysis, a: Assessed, end: int) -> bool:
    """Return True if memory shows that growth has ended although its count was not read for long.

    Missing readings of a count are not evidence that the count is flat, but memory that was level for at least two
    steps of the count is such evidence. Memory that falls by as much as it rose is not level: it may oscillate.
    """
    series = study.counted_in(a.cause) if a.channel == PRIVATE else None
    counted = None if series is None else study.timeline.newest_reading(series, end)
    if counted is None:
        return False
    read = study.readings(PRIVATE)
    owner, needed = a.cause.owner, _HOLD_MEMORY
    if owner is not None and owner.growth.slope > 0:
        needed = max(needed, math.ceil(2 * owner.growth.each / owner.growth.slope))
    since = read[bisect_left(read, counted + 1) : bisect_left(read, end)][-needed:]
    if len(since) < needed or not _has_stopped_in(study, a, since, end):
        return False
    generations = study.timeline.generations
    matters = a.scale.is_material(
        _claimed(a), float(generations[since[-1]] - generations[since[0]])
    )
    return matters and not _fills_freed_memory(study, a, since[0], end)


def _claimed(a: Assessed) -> float:
    """Return the bytes per generation by which memory grows while the cause is active."""
    rate = a.cause.rate.estimate
    return min(a.cause.measured or rate, rate)


def _has_stopped_in(
    study: TimelineAnalysis, a: Assessed, readings: Sequence[int], end: int
) -> bool:
    """Return True if memory was level over these readings, compared with the rate of the cause."""
    residual, claimed = study.residual(end), _claimed(a)
    x = [float(study.timeline.generations[at]) for at in readings]
    slope = floor_slope(x, [residual[at] for at in readings])
    return abs(slope.estimate) < _STILL_GROWS * claimed and slope.high < claimed


def _read_between(read: Sequence[int], first: int, end: int) -> int:
    return bisect_left(read, end) - bisect_left(read, first)


def still_counted(a: Assessed) -> bool:
    """Return True if the count of a cause still rises.

    A rising count alone is too little for an alarm while memory is noisy, but it rules out a recovery.
    """
    return "counts" in a.witnesses and a.garbage is None and not a.passing


def _successor(memory: _Memory, moment: Moment) -> Assessed | None:
    """Return the cause that now accounts for this growth under another owner or phase, or None."""
    owner = memory.assessed.cause.owner
    for other in moment.causes:
        if other.channel != memory.assessed.channel:
            continue
        matters = other.scale.is_material(other.cause.rate.estimate, other.window)
        names = {member.name for member in other.cause.members}
        if (matters and owner is None) or (owner is not None and owner.name in names):
            return other
    return None


def _inherit(heir: _Memory, memory: _Memory) -> None:
    """Give a renamed cause the status of its old name, since a new name is not a sign of recovery.

    Garbage that the collector frees does not inherit the status: it is a new explanation, not only a new name.
    """
    if heir.assessed.garbage is not None or heir.assessed.passing:
        return
    if memory.status in ACTIVE and SEVERITY.index(memory.status) > SEVERITY.index(heir.status):
        heir.status = heir.peak = memory.status
        heir.confirmations = max(heir.confirmations, memory.confirmations)
        heir.last_active = max(heir.last_active or 0, memory.last_active or 0)


# Key of the levels cached in `TimelineAnalysis.known`.
LEVELS: Final = "levels"
# Fingerprint -> the cause, its status at a moment, and the number of moments in a row at which memory alone passed.
Levels = Mapping[str, tuple[Assessed, Status, int]]


def levels_of(study: TimelineAnalysis, moment: Moment) -> Levels:
    """Return the causes of a moment with their statuses, cached if later snapshots cannot change them."""
    if not is_over(study, moment.end):
        return _levels(study, moment)
    return study.known.once(moment.end, LEVELS, lambda: _levels(study, moment))


def _levels(study: TimelineAnalysis, moment: Moment) -> Levels:
    found: dict[str, tuple[Assessed, Status, int]] = {}
    for assessed in moment.causes:
        fingerprint = fingerprint_of(assessed.cause)
        if fingerprint not in found:
            found[fingerprint] = (assessed, *level(study, assessed, moment.end))
    return found


def level(study: TimelineAnalysis, a: Assessed, end: int) -> tuple[Status, int]:
    """Return (status after ``end`` generations, number of moments in a row at which memory alone passed the tests)."""
    rate = a.cause.rate
    counts, steady = "counts" in a.witnesses, "steady" in a.witnesses
    if a.garbage is not None:
        return "watch", 0
    material = a.scale.is_material(rate.estimate, a.window)
    in_a_row = confirmations(study, a, end, _WATCH)
    if "contract" in a.witnesses or "budget" in a.witnesses:
        long_enough = a.window >= _CONFIRM_BROKEN_CONTRACT * a.scale.spacing
        sure = material and steady and rate.rises and long_enough
        sure = sure or (material and _by_memory(study, a, end) == "confirmed")
        return ("confirmed" if sure else "suspected"), in_a_row
    if _has_ended_unread(study, a, end):
        return "ok", in_a_row
    if "explosion" in a.witnesses and material:
        return "suspected", in_a_row
    if a.passing and "container" not in a.witnesses:
        return "watch", 0
    if material and a.cause.kind == "external":
        # Another program may be the cause.
        return "watch", 0
    if not material:
        trivial = a.scale.is_trivial(rate.estimate, a.window)
        if not trivial and _is_overfull(a):
            return "suspected", in_a_row
        quiet = not a.cause.members or trivial or not counts
        return ("ok" if quiet else "watch"), in_a_row
    if a.ceiling is not None:
        # A count that slows down is no evidence of a leak, but memory that rises faster than its objects is.
        if (a.cause.measured or 0.0) >= _EXPLAINED * rate.estimate:
            return "filling", in_a_row
        alone = replace(a, witnesses=frozenset[str]())
        return _by_memory(study, alone, end) or "filling", in_a_row
    return _by_memory(study, a, end) or _by_counts(a) or "watch", in_a_row


def _by_memory(study: TimelineAnalysis, a: Assessed, end: int) -> Status | None:
    """Return the status that memory justifies; without other evidence, memory must pass the strict test repeatedly."""
    witnesses = len(a.witnesses & {"counts", "container", "measured"})
    for status, (window, moments) in (("confirmed", _CONFIRM), ("suspected", _SUSPECT)):
        if status == "suspected" and a.rise.window >= _CONFIRM_WITH_WITNESSES and witnesses >= 2:
            return "confirmed"
        if a.rise.strict >= window and confirmations(study, a, end, window) >= moments:
            return cast(Status, status)
    return "suspected" if a.rise.window >= _WATCH and witnesses else None


def _is_overfull(a: Assessed) -> bool:
    """Return True if a container beyond its declared capacity still grows and memory rises with it.

    Any size beyond the capacity is unintended, so its growth need not be material.
    """
    owner = a.cause.owner
    counted = owner is not None and owner.overfull and "counts" in a.witnesses
    return counted and _is_seen(a)


def _is_seen(a: Assessed) -> bool:
    return a.cause.rate.low > 0 and a.cause.rate.points >= MIN_GENERATIONS


def _by_counts(a: Assessed) -> Status | None:
    """Return the status that the counts justify.

    The counts must keep rising, and either the objects' size has been measured or the rise also shows in memory.
    """
    if "counts" not in a.witnesses:
        return None
    owner = a.cause.owner
    measured = a.cause.measured
    counted = max((c.growth.generations for c in a.cause.members), default=0.0)
    if a.cause.kind == "children" and counted >= _SUSPECT[0] * a.scale.spacing:
        # The count is the number of child processes, whose memory was measured, though perhaps in few generations.
        measured = max(a.cause.rate.low, 0.0)
    proven = measured is not None and a.scale.is_material(measured, a.window)
    seen = _is_seen(a)
    if proven and (seen or "steady" in a.witnesses):
        return "suspected"
    if seen and ("together" in a.witnesses or _is_overfull(a)):
        return "suspected"
    named = owner is not None and owner.family in ("object", "figure", "graph", "tensor")
    return "suspected" if seen and named and (owner.declared if owner else False) else None


def confirmations(study: TimelineAnalysis, a: Assessed, end: int, window: int) -> int:
    """Return the number of newest generations in a row that show growth over at least ``window`` readings.

    The result is at most `CONFIRMATIONS`. Two readings that are far apart also count for the generations between
    them. The strict test for saturation is used, because a rise that slows down sometimes passes the looser test.
    """
    found = 0
    channel = next((c for c in study.channels if c.name == a.channel), None)
    read = study.readings(a.channel)
    newest = bisect_left(read, end)
    for position in reversed(read[max(0, newest - CONFIRMATIONS) : newest]):
        moment = position + 1
        rise = study.rise(moment) if channel is None else study.channel_rise(channel, moment)
        if rise.strict < window:
            break
        found = min(CONFIRMATIONS, read[newest - 1] - position + 1)
    return found


# Minimum number of generations before an attempt is judged alone; it is higher if other memory than private memory
# leaked.
MIN_OWN: Final = 12
MIN_OWN_ELSEWHERE: Final = 24
# A leak has stopped if memory grows by at most this share of its rate; an active leak rarely looks so slow by chance.
MUCH_LESS: Final = 0.5

TimelineStatus = tuple[TimelineAnalysis, Moment, list[Standing]]


def judged(timeline_status: TimelineStatus) -> list[TimelineStatus]:
    """Return one status over all attempts, or two statuses if the newest attempt no longer leaks.

    The first of the two covers the newest attempt alone. The second covers all attempts, with the leaks of earlier
    attempts as recovered.
    """
    study, moment, standings = timeline_status
    own = _of_newest_attempt(study)
    if own is None:
        return [timeline_status]
    newest, now = walk(own)
    if newest is None or any(standing.status in ACTIVE for standing in now):
        return [timeline_status]
    before = [standing for standing in standings if standing.status in (*ACTIVE, "recovered")]
    if not all(_is_gone(standing, newest, now, own) for standing in before):
        return [timeline_status]
    gone = [replace(standing, status="recovered") for standing in before]
    return [(own, newest, now), (study, moment, gone)]


def _of_newest_attempt(study: TimelineAnalysis) -> TimelineAnalysis | None:
    timeline = study.timeline
    if not timeline.segment or timeline.segment[0] == timeline.segment[-1]:
        return None
    mine = tuple(study.history.of_instance(timeline.instance))
    history = replace(study.history, processes=mine)
    own = timelines_of(history)
    if not own or not MIN_OWN <= len(own[0]) < len(timeline):
        return None
    return TimelineAnalysis(history, own[0])


def _is_gone(
    standing: Standing, newest: Moment, now: list[Standing], own: TimelineAnalysis
) -> bool:
    """Return True if enough readings of the newest attempt show that the growth has stopped."""
    same = next((each for each in now if each.fingerprint == standing.fingerprint), None)
    if same is not None and still_counted(same.assessed):
        return False
    channel = standing.assessed.channel
    if channel != PRIVATE:
        is_known = any(each.name == channel for each in own.channels)
        return is_known and len(own.readings(channel)) >= MIN_OWN_ELSEWHERE
    if len(own.readings(PRIVATE)) < MIN_OWN:
        return False
    return newest.growth.high <= MUCH_LESS * standing.assessed.cause.rate.estimate


# With more minutes than this, the first minutes no longer need to be judged in seconds.
_ENOUGH_MINUTES: Final = 48


def studies_by_seconds(
    history: RunHistory, studies: Sequence[TimelineAnalysis]
) -> list[TimelineAnalysis]:
    """Return analyses, in seconds, of the first minutes of a run that began in seconds.

    The result is empty for other runs, and once enough minutes have been recorded.
    """
    if (
        not history.began_by_seconds
        or max((len(s.timeline) for s in studies), default=0) > _ENOUGH_MINUTES
    ):
        return []
    first = tuple(_first_minutes(process) for process in history.processes if len(process))
    early = replace(history, unit="second", total=None, processes=first)
    return [TimelineAnalysis(early, timeline) for timeline in timelines_of(early)]


def active_by_seconds(early: Sequence[TimelineAnalysis]) -> dict[str, list[Standing]]:
    """Return the leaks that were active when minutes replaced seconds, by process place.

    Rates are converted to rates per minute.
    """
    found = {}
    for study in early:
        _, standings = walk(study)
        active = [
            replace(s, assessed=_by_minute(s.assessed)) for s in standings if s.status in ACTIVE
        ]
        if active:
            found[study.timeline.name] = active
    return found


def minutes_carried(study: TimelineAnalysis) -> int:
    """Return the number of minutes of a timeline that were judged in seconds."""
    return bisect_right(study.timeline.generations, COUNTED_BY_SECONDS_UP_TO / MINUTE_SECONDS - 1)


def _first_minutes(process: ProcessHistory) -> ProcessHistory:
    rows = bisect_right(process.monotonic, process.monotonic[0] + COUNTED_BY_SECONDS_UP_TO)
    return replace(process.picked(lambda column: column[:rows]), unit_seconds=1.0)


def _by_minute(a: Assessed) -> Assessed:
    """Return the cause with its growth converted from seconds to minutes."""
    cause, n = a.cause, MINUTE_SECONDS
    cause = replace(
        cause, rate=cause.rate.scaled(n), members=tuple(_member_by_minute(c) for c in cause.members),
        measured=None if cause.measured is None else cause.measured * n,
    )  # fmt: skip
    start = None if a.start is None else (a.start[0] // n, a.start[1] // n, a.start[2] // n)
    return replace(a, cause=cause, start=start, window=max(1.0, a.window / n))


def _member_by_minute(c: Candidate) -> Candidate:
    g, n = c.growth, MINUTE_SECONDS
    growth = replace(
        g, slope=g.slope * n, low=g.low * n, high=g.high * n, start=g.start // n, start_low=g.start_low // n,
        start_high=g.start_high // n, generations=max(1.0, g.generations / n), period=None,
    )  # fmt: skip
    return replace(c, growth=growth, bytes_rate=None if c.bytes_rate is None else c.bytes_rate * n)

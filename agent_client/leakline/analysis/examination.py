"""The examination of a run: the pure function ``examine`` turns a history, complete or partial, into a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median, quantiles
from typing import Final

from ..text_format import (
    format_bytes,
    format_count,
    format_estimated_seconds,
    format_interval,
    format_share,
)
from .assertions.checks import check_assertions
from .assertions.expected_counts import PREALLOCATED
from .attribution.candidates import BORN, OF_OTHERS, born_in, family_of, series_of
from .comparison.fix_effects import check_list, effects_within
from .findings.advice import with_counters
from .findings.code_locations import located
from .findings.finding_builder import (
    build_finding,
    ceiling_sentence,
    merge_alike,
    of_note,
    worth_reporting,
)
from .findings.gauges import with_companions
from .findings.growth_tables import measured, of_how_many, process_growth
from .findings.verdict_summary import DEFAULTS, Priorities, nothing_yet, raised, summary_sentence
from .forecast.forecast_score import score_of
from .forecast.memory_outlook import settled
from .forecast.oom_forecast import ahead, first_end, forecast, of_devices, unread
from .generation_axis import PLANS, UNITS_OF_TIME, passed, thinned
from .incremental_cache import Kept
from .memory.memory_by_phase import (
    NO_PHASE,
    live_bytes_by_phase,
    phase_executions,
    unread_phases,
)
from .memory.memory_kinds import CHILDREN, SHARED_BY_ALL
from .results import (
    SEVERITY,
    AttemptGrowth,
    Finding,
    GenerationSpan,
    Interval,
    RuledOut,
    RunDuration,
    Status,
    Verdict,
)
from .run_history import RunHistory, union
from .statistics.trend import theil_sen
from .status import (
    ACTIVE,
    GROWING,
    MIN_GENERATIONS,
    Standing,
    TimelineStatus,
    active_by_seconds,
    judged,
    minutes_carried,
    studies_by_seconds,
    walk,
)
from .timeline import END, MAIN, Timeline, timelines_of, top_level, with_its_generations
from .timeline_analysis import Moment, TimelineAnalysis, memory_since
from .window import added

_MAX_FINDINGS: Final = 20
_MAX_HARMLESS: Final = 5
_UNKNOWN: Final = 0.20
_SAME: Final = "it leaves memory unchanged"
_FREES: Final = "it gives back more memory than it takes"
_SECONDS: Final = "generation.seconds"
# Readings required to estimate a duration, and the number of newest readings that the estimate uses.
_FIRST: Final = 3
_RECENT: Final = 16
# Only this many of the newest attempts are reported.
MAX_ATTEMPTS: Final = 50


def examine(
    history: RunHistory, kept: Kept | None = None, priorities: Priorities = DEFAULTS
) -> Verdict:
    """Return the verdict of a run at its newest snapshot.

    ``kept``: results of earlier examinations of the same run. They save most of the work and do not change the
    verdict.

    ``priorities``: thresholds above which a finding is major or critical.

    1. Walk through the moments of each process place; 2. turn the resulting causes into findings and merge similar
    ones; 3. derive the status of the run from the worst finding, or from other facts if there is no finding.
    """
    verdict = _examine(history, kept, priorities)
    rest = of_how_many(history)
    return replace(verdict, summary=f"{verdict.summary}{rest}") if rest else verdict


def _examine(history: RunHistory, kept: Kept | None, priorities: Priorities) -> Verdict:
    read = thinned(history)
    studies = _studies(read)
    # Plans and promises are checked against every generation, including those that thinning leaves out.
    every = studies if read is history or not _is_planned(history) else _studies(history)
    early = studies_by_seconds(read, studies)
    if kept is None:
        return _verdict(read, studies, every, early, priorities)
    for study in (*studies, *early):
        kept.give(study)
    verdict = _verdict(read, studies, every, early, priorities)
    kept.take((*studies, *early))
    return verdict


def _studies(history: RunHistory) -> list[TimelineAnalysis]:
    return [TimelineAnalysis(history, timeline) for timeline in timelines_of(history)]


def _is_planned(history: RunHistory) -> bool:
    return any(event.kind in PLANS for event in history.events)


def _verdict(
    history: RunHistory, studies: Sequence[TimelineAnalysis], every: Sequence[TimelineAnalysis],
    early: Sequence[TimelineAnalysis], priorities: Priorities,
) -> Verdict:  # fmt: skip
    carried = active_by_seconds(early)
    walks = [
        walk(s, carried=carried.get(s.timeline.name, ()), carried_at=minutes_carried(s))
        for s in studies
    ]
    statuses = [
        (s, m, standings) for s, (m, standings) in zip(studies, walks, strict=True) if m is not None
    ]
    timelines = with_its_generations([study.timeline for study in studies])
    lived = union(timeline.lived for timeline in timelines)
    generations, went_by = len(lived), passed(history.unit, lived)
    if not statuses:
        verdict = Verdict(
            history.run, history.unit, generations, "learning",
            nothing_yet(history.unit, ended=history.ended), None, None,
            ruled_out=_never_ran(history, studies) if generations else (),
            effects=effects_within(history, every),
            assertions=check_assertions(history, [(s, None) for s in every]),
            processes=process_growth([s.timeline for s in studies], (), ()), generations_passed=went_by,
            oom=unread(ended=history.ended),
        )  # fmt: skip
        unjudged = [(s, None) for s in studies]
        return replace(verdict, checklist=check_list(history, verdict, unjudged))
    judgements = [judged(each) for each in statuses]
    statuses = [first for first, *_ in judgements]
    said = [each for judgement in judgements for each in judgement]
    findings = located(_findings(said, len(statuses) > 1, priorities), history)
    memory, device = forecast(statuses), of_devices(statuses)
    oom = first_end(memory, device)
    findings = raised(
        findings, ahead(statuses, memory, priorities.hours),
        None if device is None else ahead(statuses, device, priorities.hours), priorities,
    )  # fmt: skip
    moments = [m for _, m, _ in statuses]
    growth = _growth(moments)
    status = _status(findings, statuses, generations)
    filling = [
        line
        for study, moment, standings in statuses
        for line in (*_filling_lines(study, moment), *_ceiling_lines(standings, history.unit))
    ]
    summary = summary_sentence(
        status, findings, unit=history.unit, generations=generations, growth=growth, filling=filling,
        visible=any(m.rise.visible for m in moments), periods=_periods(statuses), passed=went_by,
        ended=history.ended,
    )  # fmt: skip
    # Child processes and shared memory count as well: while they may grow, memory has not settled.
    rising = any(f.status in GROWING for f in findings)
    verdict = Verdict(
        history.run, history.unit, generations, status, summary, growth,
        _explained_share([s for s, _, _ in statuses], moments), tuple(findings),
        _ruled_out(history, statuses, findings), oom,
        check_assertions(history, [(s, m) for s, (m, _) in zip(every, walks, strict=True)]),
        settled_at_generation=settled([(s, m) for s, m, _ in statuses], rising),
        forecast_score=score_of([s for s, _, _ in statuses], history.unit),
        processes=process_growth([s.timeline for s in studies], said, findings),
        duration=duration_of(history, [s.timeline for s in studies]),
        effects=effects_within(history, every),
        attempts=_attempt_growth(history),
        generations_passed=went_by,
    )  # fmt: skip
    read = [(s, m) for s, m, _ in statuses]
    return replace(verdict, checklist=check_list(history, verdict, read))


def _findings(
    statuses: Sequence[TimelineStatus], several: bool, priorities: Priorities
) -> list[Finding]:
    found = [
        with_companions(
            with_counters(
                build_finding(study, standing, several, priorities), study.history, study.timeline
            ),
            study.timeline,
        )
        for study, _, standings in statuses
        for standing in standings
        if worth_reporting(standing)
    ]
    merged = merge_alike(found, priorities)
    harmless = [f for f in merged if f.status == "ok"][_MAX_HARMLESS:]
    return [f for f in merged if f not in harmless][:_MAX_FINDINGS]


def _status(
    findings: Sequence[Finding], statuses: Sequence[TimelineStatus], generations: int
) -> Status:
    worst = max((f.status for f in findings), key=SEVERITY.index, default="ok")
    if worst in ("watch", *ACTIVE):
        return worst
    if worst == "filling" or any(moment.filling for _, moment, _ in statuses):
        return "filling"
    if generations < MIN_GENERATIONS:
        return "learning"
    if worst == "recovered":
        return "recovered"
    return "watch" if any(m.rise.visible for _, m, _ in statuses) else "ok"


def _filling_lines(study: TimelineAnalysis, moment: Moment) -> list[str]:
    lines = []
    for container in study.facts.bounded:
        if container.name not in moment.filling:
            continue
        at = moment.end - 1
        share = container.length[at] / container.capacity
        in_bytes = container.name == PREALLOCATED
        number = format_bytes if in_bytes else format_count
        held, room = number(container.length[at]), number(container.capacity)
        verb = "use" if in_bytes else "holds"
        line = f"{container.name} {verb} {held} of {room} ({format_share(share)})"
        speed = container.per_generation(moment.end)
        if speed > 0:
            left = (container.capacity - container.length[at]) / speed
            line += f", full at about {study.history.unit} {round(study.timeline.generations[at] + left)}"
        if container.bytes and container.length[at] > 0 and not in_bytes:
            ceiling = container.bytes[at] * container.capacity / container.length[at]
            line += f" with {format_bytes(ceiling)}"
        lines.append(line)
    return lines


def _ceiling_lines(standings: Sequence[Standing], unit: str) -> list[str]:
    return [
        ceiling_sentence(standing.assessed, unit)
        for standing in standings
        if standing.status == "filling"
    ]


def _growth(moments: Sequence[Moment]) -> Interval | None:
    each = [growth for m in moments if (growth := measured(m.growth)) is not None]
    if not each:
        return None
    return Interval(
        sum(g.estimate for g in each), sum(g.low for g in each), sum(g.high for g in each)
    )


def _periods(statuses: Sequence[TimelineStatus]) -> dict[str, int]:
    found = {}
    for _, _, standings in statuses:
        for standing in standings:
            owner = standing.assessed.cause.owner
            if owner is not None and owner.growth.period:
                found[standing.fingerprint] = owner.growth.period
    return found


def _explained_share(
    studies: Sequence[TimelineAnalysis], moments: Sequence[Moment]
) -> float | None:
    """Return the share of memory growth explained by measured objects, arrays, tensors and bounded containers."""
    grown = known = 0.0
    for study, moment in zip(studies, moments, strict=True):
        private, end = study.timeline.private, moment.end
        if len(private) < 2 or end < MIN_GENERATIONS:
            continue
        x = [float(g) for g in study.timeline.generations[:end]][-64:]
        total = theil_sen(x[::4] + x[-1:], private[:end][-64:][::4] + private[end - 1 : end])
        if not moment.scale.is_material(total.estimate, end * moment.scale.spacing):
            continue
        bounded = study.facts.bounded_bytes[:end][-64:]
        filled = (bounded[-1] - bounded[0]) / max(1.0, x[-1] - x[0]) if bounded else 0.0
        causes = [a.cause for a in moment.causes if a.channel == "private"]
        measured = [c.measured for c in causes]
        unsized = sum(c.rate.estimate for c in causes if c.members and c.measured is None)
        # Growth of objects without a measured size is unknown, which is not the same as unexplained.
        if unsized > _UNKNOWN * total.estimate or not (
            bounded or any(m is not None for m in measured)
        ):
            continue
        grown += total.estimate
        known += min(total.estimate, max(0.0, filled) + sum(m for m in measured if m))
    return round(known / grown, 3) if grown > 0 else None


def _never_ran(history: RunHistory, studies: Sequence[TimelineAnalysis]) -> tuple[RuledOut, ...]:
    ran = {
        part
        for study in studies
        for path, times in phase_executions(study.timeline).items()
        if times
        for part in (path, top_level(path), path.rsplit("/", 1)[-1])
    }
    return tuple(RuledOut(phase, "never ran") for phase in history.phases if phase not in ran)


def _attempts_without(history: RunHistory, studies: Sequence[TimelineAnalysis]) -> dict[str, str]:
    """Return "never ran in attempt N" by phase, for phases that ran only in earlier attempts."""
    newest = {study.timeline.instance for study in studies if study.timeline.role == MAIN}
    if all(each.instance in newest for each in history.processes if each.role == MAIN):
        return {}
    now: set[str] = set()
    before: set[str] = set()
    number = 0
    for process in history.processes:
        if process.role != MAIN:
            continue
        ran = {top_level(path) for path, times in phase_executions(process).items() if times}
        (now if process.instance in newest else before).update(ran)
        if process.instance in newest and END in process.kind:
            number = max(number, process.attempt)
    if not number:
        return {}
    # Attempts that all report the same number can be distinguished only by their processes.
    which = f"attempt {number}" if number > 1 else "the newest attempt"
    return dict.fromkeys(sorted(before - now), f"never ran in {which}")


def _ruled_out(
    history: RunHistory, statuses: Sequence[TimelineStatus], findings: Sequence[Finding]
) -> tuple[RuledOut, ...]:
    found = list(_never_ran(history, [s for s, _, _ in statuses]))
    blamed = {f.phase for f in findings if f.status in GROWING}
    ceased = _attempts_without(history, [s for s, _, _ in statuses])
    found += [RuledOut(phase, why) for phase, why in ceased.items() if phase not in blamed]
    of_others = any(
        standing.status in GROWING and standing.assessed.channel in (*CHILDREN, *SHARED_BY_ALL)
        for _, _, standings in statuses
        for standing in standings
    )
    if not blamed or of_others:
        # The memory of the training process says nothing about what a child keeps.
        return tuple(found)
    for study, moment, _ in statuses:
        if moment.end < 3:
            continue
        end, first = moment.end, max(0, min(moment.end // 4, moment.end - 3))
        slopes = study.phase_slopes(first, end)
        born = _phases_with_births(study, moment, first)
        unread = unread_phases(study.timeline, study.booked_columns(first, end), first, end)
        for phase, slope in slopes.items():
            if phase in blamed or phase in NO_PHASE or phase in born or phase in unread:
                continue
            generations = end * moment.scale.spacing
            known = {r.phase for r in found}
            if not moment.scale.is_material(slope.estimate, generations) and phase not in known:
                frees = moment.scale.is_material(-slope.estimate, generations)
                found.append(RuledOut(phase, _FREES if frees else _SAME))
    return tuple(found)


def _phases_with_births(study: TimelineAnalysis, moment: Moment, first: int) -> set[str]:
    """Return the phases that created growing objects, or allocated memory that is still in use.

    These phases are not ruled out, even if the phase accounts charge nothing to them.
    """
    facts, growths = study.facts, study.facts.growths(moment.end)
    named = (member for a in moment.causes for member in of_note(a.cause))
    starts = {series_of(facts, c): c.growth.start for c in named}
    # Objects in a store that fills belong to no cause, but the phase that makes them keeps memory.
    for series, name, role in facts.count_series:
        if series in growths and family_of(name, role) not in OF_OTHERS:
            starts.setdefault(series, growths[series].start)
    born = (born_in(study.timeline, *each, moment.end) for each in starts.items())
    found = {phase for phases in born for phase in phases}
    live = live_bytes_by_phase(study.timeline, first, moment.end) or {}
    total = sum(live.values())
    return found | {phase for phase, size in live.items() if size >= BORN * total > 0}


def duration_of(history: RunHistory, timelines: Sequence[Timeline]) -> RunDuration | None:
    """Return the estimated duration of a run, which is the duration of its slowest process.

    Return None if the run has ended, has no ``total`` or has reached its ``total``, or has fewer than three timed
    generations.
    """
    if history.ended or not history.total:
        return None
    each = [
        found
        for timeline in timelines
        if (found := _of_timeline(timeline, history.total)) is not None
    ]
    if not each:
        return None
    if max(whole.estimate for _, _, whole in each) < 1:
        # A sentence such as "All 8 take about 0 s" is useless.
        return None
    of_one, left, whole = max(each, key=lambda found: found[2].estimate)
    return RunDuration(of_one, left, whole, _duration_sentence(left, whole, history))


def _of_timeline(timeline: Timeline, total: int) -> tuple[Interval, Interval, Interval] | None:
    """Return the duration of one generation, of all remaining generations and of the entire run, in seconds."""
    read = (
        [float(v) for v in timeline.readings(_SECONDS) if v is not None]
        if timeline.has(_SECONDS)
        else []
    )
    done = len(timeline.generations) + len(timeline.left_out.generations)
    if len(read) < _FIRST or done >= total:
        return None
    newest = read[-_RECENT:]
    usual = median(newest)
    # 90 % of the generations lie between these cuts, and so does the mean of the remaining generations, even if all
    # of these are fast or all are slow.
    cuts = quantiles(newest, n=20, method="inclusive")
    of_one = Interval(usual, min(cuts[0], usual), max(cuts[-1], usual))
    # Generations without a reading are assumed to have taken the median time.
    passed, to_come = sum(read) + median(read) * (done - len(read)), total - done
    ends = (of_one.estimate, of_one.low, of_one.high)
    left = Interval(*(to_come * seconds for seconds in ends))
    return of_one, left, Interval(*(passed + to_come * seconds for seconds in ends))


def _duration_sentence(left: Interval, whole: Interval, history: RunHistory) -> str:
    write = format_estimated_seconds
    whole_time = format_interval(whole.estimate, whole.low, whole.high, write)
    return f"All {history.total:,} {history.unit}s take about {whole_time}; {write(left.estimate)} remaining."


def _attempt_growth(history: RunHistory) -> tuple[AttemptGrowth, ...]:
    """Return the growth of each attempt that completed a generation, in order.

    The result is empty for a run with a single attempt, or a run that is counted in units of time.
    """
    numbers = sorted({process.attempt for process in history.processes if len(process)})
    if len(numbers) < 2 or history.unit in UNITS_OF_TIME:
        return ()
    found: list[AttemptGrowth] = []
    before: GenerationSpan | None = None
    for number in numbers:
        mine = tuple(p for p in history.processes if p.attempt == number)
        own = replace(history, processes=mine)
        timelines = [
            timeline for timeline in with_its_generations(timelines_of(own)) if len(timeline)
        ]
        if not timelines:
            continue
        did = _generations(timelines)
        growth = _growth_of_attempt(own, timelines) if number in numbers[-MAX_ATTEMPTS:] else None
        found.append(AttemptGrowth(number, did, growth, _both(before, did)))
        before = did if before is None else _together(before, did)
    return tuple(found[-MAX_ATTEMPTS:])


def _generations(timelines: Sequence[Timeline]) -> GenerationSpan:
    """Return the range of completed generations; each timeline must have completed at least one generation."""
    # A very long timeline has also completed the generations that thinning leaves out.
    ended = union(timeline.lived for timeline in timelines).spans
    return GenerationSpan(ended[0][0], ended[-1][1])


def _growth_of_attempt(history: RunHistory, timelines: Sequence[Timeline]) -> Interval | None:
    """Return the growth of all processes together.

    Return None if the growth of any process is unknown, since a partial sum would be misleading.
    """
    each = [_growth_of_timeline(TimelineAnalysis(history, timeline)) for timeline in timelines]
    known = [growth for growth in each if growth is not None]
    return added(known) if len(known) == len(each) else None


def _growth_of_timeline(study: TimelineAnalysis) -> Interval | None:
    end = len(study.timeline)
    return measured(memory_since(study, study.residual(end), None, end).total)


def _together(a: GenerationSpan, b: GenerationSpan) -> GenerationSpan:
    return GenerationSpan(min(a.first, b.first), max(a.last, b.last))


def _both(a: GenerationSpan | None, b: GenerationSpan) -> GenerationSpan | None:
    """Return the overlap of two ranges, or None if the ranges do not overlap."""
    if a is None or a.last < b.first or b.last < a.first:
        return None
    return GenerationSpan(max(a.first, b.first), min(a.last, b.last))

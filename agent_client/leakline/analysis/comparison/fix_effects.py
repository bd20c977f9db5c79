"""Effects of fixes, and the checklist after a fix.

A fix applies to the classes whose counts it promises and to the phase that it names. A fix that promises no counts
and names no phase applies to the growth of the entire run. Its effect is measured within its run, or against a run
without the fix. "No effect" is a positive result: the difference is no larger than usual between two runs of the
same program, and removing half of the growth would have been visible.

The checklist answers four questions about the run: does GPU memory keep growing, does the memory of the processes
keep growing, does the run pass the point where it died before, and do the cleanups free something? Every answer
comes with its evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...text_format import (
    count_of,
    format_bytes,
    format_change,
    format_count,
    format_count_change,
    format_interval,
    format_times,
    seen_of,
    short_name,
)
from ..assertions.checks import Fix, declared_fixes
from ..assertions.declared_limits import COUNT, GENERATIONS
from ..findings.cleanup_effects import Freed, freed_by, freed_in_all
from ..generation_axis import UNITS_OF_TIME
from ..results import (
    CheckItem,
    CheckOutcome,
    EffectMeasure,
    EffectOutcome,
    Finding,
    FixEffect,
    HeldAgainst,
    Interval,
    Verdict,
)
from ..run_history import ProcessHistory, RunHistory, number_of
from ..status import ACTIVE, MIN_GENERATIONS
from ..timeline_analysis import TimelineAnalysis
from ..window import Since, Stretch, TimelineMoment
from .comparison_results import SAME, change_of

# Number of generations required on each side of a fix to report an effect.
GENERATIONS_AROUND: Final = 4
# "No effect" is reported only if removing this share of the growth would have been visible.
_HALF: Final = 0.5
_MAX_SUBJECTS: Final = 5


@dataclass(frozen=True, slots=True)
class _Subject:
    """The subject of a fix: ``name`` is a phase or a class, or empty for the entire run."""

    measure: EffectMeasure
    name: str

    def of(self, stretch: Stretch) -> Interval | None:
        if self.measure == "count":
            return stretch.counted(self.name)
        return stretch.kept_by(self.name) if self.measure == "phase_growth" else stretch.growth()

    @property
    def title(self) -> str:
        return short_name(self.name) if self.measure == "count" else self.name or "the run"

    def matters(self, before: Stretch, after: Stretch) -> float:
        """Return the smallest change that is reported.

        For bytes, this is the threshold of the verdict; for counts, it is one instance over all generations.
        """
        if self.measure == "count":
            return 1 / max(1, min(before.generations, after.generations))
        return max(before.growth_that_matters(), after.growth_that_matters())


def effects_within(
    history: RunHistory, studies: Sequence[TimelineAnalysis]
) -> tuple[FixEffect, ...]:
    """Return the effect of each fix of a run: generations after the fix compared with generations before.

    If several fixes have the same subject, each comparison reaches only from the previous fix to the next fix.
    """
    every = [(fix, subject) for fix in declared_fixes(history) for subject in _subjects(fix)]
    rows = []
    for fix, subject in every:
        # Any fix may affect the entire run, so a fix whose subject is the entire run overlaps with every other fix.
        near = [f for f, s in every if s == subject or "" in (s.name, subject.name)]
        since = sorted({each.since for each in near})
        at = since.index(fix.since)
        begin = since[at - 1] if at else float("-inf")
        end = since[at + 1] if at + 1 < len(since) else float("inf")
        sides = (
            _between(studies, begin, fix.since, first=not at),
            _between(studies, fix.since, end, first=False),
        )
        note = _inseparable_note(
            fix, subject, [f for f, s in every if f.since == fix.since and s == subject]
        )
        rows.append(_effect(fix, subject, sides, note, history.unit, _WITHIN))
    return tuple(rows)


def effects_of_comparison(
    before: RunHistory, after: RunHistory, a: Stretch, b: Stretch
) -> tuple[FixEffect, ...]:
    """Return the effect of each fix of the run ``after``, over the generations that both runs have."""
    had = {fix.name for fix in declared_fixes(before)}
    every = [(fix, subject) for fix in declared_fixes(after) for subject in _subjects(fix)]
    rows = []
    for fix, subject in every:
        if fix.name in had:
            said = "The other run has this fix too, so the comparison does not show its effect."
            rows.append(_row(fix, subject, None, None, "undecided", said))
            continue
        note = _inseparable_note(
            fix, subject, [f for f, s in every if s == subject and f.name not in had]
        )
        rows.append(_effect(fix, subject, (a, b), note, after.unit, _COMPARED))
    return tuple(rows)


def _subjects(fix: Fix) -> list[_Subject]:
    classes = [str(c).removeprefix(COUNT) for c in fix.promises if str(c).startswith(COUNT)]
    found = [_Subject("count", name) for name in classes[:_MAX_SUBJECTS]]
    if fix.phase is not None:
        found.append(_Subject("phase_growth", fix.phase))
    return found or [_Subject("growth", "")]


def _between(studies: Sequence[TimelineAnalysis], begin: float, end: float, first: bool) -> Stretch:
    """Return the generations that ended in a time range, without the warm-up.

    A warm-up follows the start of a process and each fix.
    """
    positions = []
    for study in studies:
        timeline = study.timeline
        found = [i for i, row in enumerate(timeline.end_rows) if begin <= timeline.time[row] < end]
        # After a start, leave out as many generations as in a comparison of runs; after a fix, leave out the
        # generation in which it took effect.
        left_out = min(2 if first else 1, max(0, len(found) - GENERATIONS_AROUND))
        positions.append(found[left_out:])
    return Stretch(studies, positions)


@dataclass(frozen=True, slots=True)
class _Way:
    """Messages for an effect that cannot be measured: too few generations, or no measurement."""

    too_few: Callable[[int, int, str], str]
    unmeasured: str


def _too_few_within(before: int, after: int, unit: str) -> str:
    if before < GENERATIONS_AROUND and after >= GENERATIONS_AROUND:
        return (
            f"Too few {unit}s ran before the fix: compare this run with a run without the fix."
        )  # fmt: skip
    return f"Measuring an effect takes at least {GENERATIONS_AROUND} {unit}s both before and after the fix."


def _too_few_compared(before: int, after: int, unit: str) -> str:
    return f"Only {count_of(min(before, after), unit)} to compare."


_WITHIN: Final = _Way(_too_few_within, "was not measured both before and after the fix")
_COMPARED: Final = _Way(_too_few_compared, "was not measured in both runs")


def _effect(
    fix: Fix, subject: _Subject, sides: tuple[Stretch, Stretch], note: str, unit: str, way: _Way
) -> FixEffect:  # fmt: skip
    old, new = (subject.of(side) for side in sides)
    lengths = [side.generations for side in sides]
    if min(lengths) < GENERATIONS_AROUND:
        return _row(fix, subject, old, new, "undecided", way.too_few(lengths[0], lengths[1], unit))
    _, difference = change_of(old, new)
    if old is None or new is None or difference is None:
        said = f"{_MEASURED[subject.measure]} {subject.title} {way.unmeasured}."
        return _row(fix, subject, old, new, "undecided", said)
    least = max(SAME * abs(old.estimate), subject.matters(*sides))
    outcome = _outcome(difference, least, max(_HALF * abs(old.estimate), least))
    said = f"{_said(subject, old, new, difference, unit)}: {_REASONS[outcome]}.{note}"
    return _row(fix, subject, old, new, outcome, said)


def _outcome(difference: Interval, least: float, clear: float) -> EffectOutcome:
    """Classify the difference that a fix made.

    ``least``: the smallest change that counts. ``clear``: the size of a change that would have been visible.
    """
    if difference.high < 0 and difference.estimate <= -least:
        return "helped"
    if difference.low > 0 and difference.estimate >= least:
        return "worse"
    if abs(difference.estimate) < least and -clear < difference.low and difference.high < clear:
        return "no_effect"
    return "undecided"


_VERBS: Final[Mapping[EffectMeasure, str]] = {
    "growth": "grows by", "phase_growth": "keeps", "count": "grows by",
}  # fmt: skip
_MEASURED: Final[Mapping[EffectMeasure, str]] = {
    "growth": "The growth of", "phase_growth": "The memory kept by", "count": "The number of",
}  # fmt: skip
_REASONS: Final[Mapping[EffectOutcome, str]] = {
    "helped": "helped",
    "no_effect": "no effect, within the normal difference between two runs",
    "worse": "worse",
    "undecided": "undecided because the interval is too wide",
}


def _said(subject: _Subject, old: Interval, new: Interval, difference: Interval, unit: str) -> str:
    write = format_change if subject.measure != "count" else format_count_change
    change = format_interval(difference.estimate, difference.low, difference.high, write)
    title = subject.title if subject.name else "The run"
    return (
        f"{title} {_VERBS[subject.measure]} {write(old.estimate)} per {unit} before and "
        f"{write(new.estimate)} after, a difference of {change}"
    )


def _inseparable_note(fix: Fix, subject: _Subject, alike: Sequence[Fix]) -> str:
    """Return a note if other fixes share the subject and the time, otherwise an empty string."""
    others = [each.name for each in alike if each.name != fix.name]
    if not others:
        return ""
    names, verb = ", ".join(others), "apply" if len(others) > 1 else "applies"
    said = "This effect cannot be separated from the effect of"
    return f" {said} {names}, which also {verb} to {subject.title}."


def _row(
    fix: Fix, subject: _Subject, old: Interval | None, new: Interval | None, outcome: EffectOutcome, said: str
) -> FixEffect:  # fmt: skip
    change, difference = change_of(old, new)
    return FixEffect(
        fix.name, fix.phase, fix.location, fix.rejected, fix.since, subject.measure, subject.name or None,
        old, new, change, difference, outcome, said,
    )  # fmt: skip


def effect_figures(effect: Mapping[str, object]) -> tuple[str, str, str]:
    """Format an effect from the JSON output as text: (before, after, difference).

    A value that was not measured is an empty string.
    """
    write = format_count_change if effect["measure"] == "count" else format_change
    before, after = (
        write(each["estimate"]) if isinstance(each := effect[name], Mapping) else ""
        for name in ("before", "after")
    )
    difference = effect["difference"]
    if not isinstance(difference, Mapping):
        return before, after, ""
    ends = difference["low"], difference["high"]
    return before, after, format_interval(difference["estimate"], *ends, write)


def effect_title(effect: Mapping[str, object]) -> str:
    """Return the subject of an effect, such as ``TradingEnvironment``, ``evaluate_population`` or ``the run``."""
    name = str(effect["subject"] or "the run")
    return short_name(name) if effect["measure"] == "count" else name


_GPU_KINDS: Final = ("gpu", "gpu_fragmentation")
_DEVICES: Final = ("cuda.", "gpu.", "mps.")
_OF_THIS_PROCESS: Final = (
    ".allocated_bytes", ".reserved_bytes", ".process_bytes", ".driver_bytes",
)  # fmt: skip
_CLEANUPS_SHOWN: Final = 3

Answer = tuple[CheckOutcome, str] | tuple[CheckOutcome, str, HeldAgainst | None]
_SOURCES: Final[dict[HeldAgainst, str]] = {"promise": "the fix promised", "plan": "were planned"}


def check_list(
    history: RunHistory, verdict: Verdict, timelines: Sequence[TimelineMoment]
) -> tuple[CheckItem, ...]:
    """Return the checklist: always the same four items in the same order.

    ``verdict`` is the run's verdict, which does not contain the checklist yet.
    """
    seen = Since(history, timelines, 0.0)
    answers = {
        "gpu": _gpu(history, verdict, seen), "memory": _memory(verdict, seen), "passed": _passed(history, seen),
        "cleanups": _cleanups(history),
    }  # fmt: skip
    return tuple(CheckItem(name, *answer) for name, answer in answers.items())  # type: ignore[arg-type]


def _gpu(history: RunHistory, verdict: Verdict, seen: Since) -> Answer:
    tops = [top for process in history.processes for top in _tops(process)]
    if not tops:
        return "not_measured", "GPU memory was not measured: no device was found."
    top, generation = max(tops, key=lambda found: found[0])
    if top <= 0:
        return "not_measured", "This run uses no GPU memory."
    where = "" if generation is None else f" in {seen.unit} {generation}"
    most = f"the highest reading on one device was {format_bytes(top)}{where}"
    own = [f for f in verdict.findings if f.kind in _GPU_KINDS]
    return _judged(own, seen, "GPU memory", f"GPU memory does not keep growing; {most}.")


def _tops(process: ProcessHistory) -> Iterator[tuple[float, int | None]]:
    """Yield (highest reading, its generation) for each device series that was read."""
    for name, column in process.series.items():
        if name.startswith(_DEVICES) and name.endswith(_OF_THIS_PROCESS):
            # Avoid a Python loop over the rows: a verdict is computed for every snapshot, and a run may have
            # many rows.
            top = max(filter(None, column), default=None)
            if top is not None:
                yield top, process.generation[column.index(top)]
            elif any(value is not None for value in column):
                yield 0.0, None


def _memory(verdict: Verdict, seen: Since) -> Answer:
    growth = verdict.growth_bytes_per_generation
    if growth is None:
        if seen.generations >= MIN_GENERATIONS:
            return "not_measured", "Private memory was not measured."
        return _too_few(seen)
    own = [f for f in verdict.findings if f.kind not in _GPU_KINDS]
    answer = _judged(own, seen, "Memory", _steady(verdict, seen))
    if answer[0] == "done" and verdict.status == "watch" and not _of_status(own, "watch"):
        change = f"{format_change(growth.estimate)} per {seen.unit}"
        return (
            "not_yet",
            f"Memory changes by {change}, but the run is too short or its memory too unsteady to judge.",
        )
    return answer


def _steady(verdict: Verdict, seen: Since) -> str:
    growth, settled = verdict.growth_bytes_per_generation, verdict.settled_at_generation
    change = f"{format_change(growth.estimate)} per {seen.unit}" if growth else "an unknown amount"
    if verdict.status == "filling":
        return f"Memory grows only as containers fill to their capacity; otherwise it changes by {change}."
    if settled is not None and settled.estimate > 0:
        since = f"{seen.unit} {format_count(settled.estimate)}"
        return f"Memory has been flat since {since}, and no leak is suspected ({change})."
    return f"No leak is suspected; memory changes by {change} over {seen_of(seen.generations, seen.passed, seen.unit)}."


def _judged(findings: Sequence[Finding], seen: Since, what: str, steady: str) -> Answer:
    """Return the answer for the worst finding; ``steady`` is the sentence if there is no such finding."""
    worst = _of_status(findings, *ACTIVE) or _of_status(findings, "watch")
    if worst is not None:
        rate = format_bytes(max(0.0, worst.growth_bytes_per_generation.estimate))
        where = f" in {worst.phase}" if worst.phase else ""
        name = f" ({worst.suspects[0].name})" if worst.suspects else ""
        said = f"{what} grows by {rate} per {seen.unit}{where}{name}: {worst.status}."
        return ("failed" if worst.status in ACTIVE else "not_yet"), said
    if seen.generations < MIN_GENERATIONS:
        return _too_few(seen)
    return "done", steady


def _of_status(findings: Sequence[Finding], *statuses: str) -> Finding | None:
    return next((finding for finding in findings if finding.status in statuses), None)


def _too_few(seen: Since) -> Answer:
    if seen.ended:
        ran = seen_of(seen.generations, seen.passed, seen.unit)
        return "not_measured", f"The run ended after {ran}; a verdict needs {MIN_GENERATIONS}."
    if seen.unit in UNITS_OF_TIME and seen.generations < 2:
        return "not_yet", f"No {seen.unit} has ended yet."
    return (
        "not_yet",
        f"{seen_of(seen.generations, seen.passed, seen.unit)} so far, too few to judge.",
    )


def _passed(history: RunHistory, seen: Since) -> Answer:
    """Answer whether the run got past the point where it died before.

    That point is the end of an earlier attempt or, without an earlier attempt, the number of generations that a fix
    promised or that was planned. Earlier runs are not known here, so the sentence names what the run was compared
    with.
    """
    died = _end_of_earlier_attempts(history)
    if died is not None:
        attempt, end, newest = died
        before = f"attempt {attempt} ended at {seen.unit} {end}"
        said = (
            f"No {seen.unit} of the newest attempt has been recorded yet; {before}."
            if newest is None
            else f"The run reached {seen.unit} {newest}; {before}."
        )
        if newest is not None and newest > end:
            return "done", said, "attempt"
        return _short_of(seen), said, "attempt"
    goal, source = _goal(history)
    if goal is None:
        return (
            "not_measured",
            "It is unknown where the run died before. To check this, promise a number of generations with a "
            "fix, or declare the planned total.",
        )
    against = f"compared with the {format_count(goal)} that {_SOURCES[source]}"
    outcome = "done" if seen.complete >= goal else _short_of(seen)
    return outcome, f"Completed {count_of(seen.complete, seen.unit)}, {against}.", source


def _short_of(seen: Since) -> CheckOutcome:
    return "failed" if seen.ended else "not_yet"


def _end_of_earlier_attempts(history: RunHistory) -> tuple[int, int, int | None] | None:
    """Return (earlier attempt that got furthest, its last generation, last generation of the newest attempt).

    Return None if there is no earlier attempt.
    """
    ends: dict[int, int] = {}
    for process in history.processes:
        known = [generation for generation in process.generation if generation is not None]
        if known:
            ends[process.attempt] = max(max(known), ends.get(process.attempt, 0))
    newest = max((process.attempt for process in history.processes), default=0)
    earlier = {attempt: end for attempt, end in ends.items() if attempt < newest}
    if not earlier:
        return None
    furthest = max(earlier, key=lambda attempt: (earlier[attempt], attempt))
    return furthest, earlier[furthest], ends.get(newest)


def _goal(history: RunHistory) -> tuple[float | None, HeldAgainst]:
    promised = [
        value
        for event in history.events
        if event.kind == "fix" and isinstance(event.data.get("promises"), Mapping)
        if (value := number_of(event.data["promises"].get(GENERATIONS))) is not None
    ]
    if promised:
        return promised[-1], "promise"
    return history.total, "plan"


def _cleanups(history: RunHistory) -> Answer:
    freed: dict[str, list[Freed]] = {}
    for event in history.events:
        if event.kind == "cleanup" and (size := freed_by(event.data)).known:
            freed.setdefault(event.name, []).append(size)
    if not freed:
        return (
            "not_measured",
            "No cleanup was recorded: wrap your cleanup code in run.cleanup(name).",
        )
    # Cleanups that free nothing come first, because they need attention.
    ranked = sorted(freed, key=lambda name: (_is_useful(freed[name]), -len(freed[name]), name))
    listed = "; ".join(_cleanup(name, freed[name]) for name in ranked[:_CLEANUPS_SHOWN])
    more = len(ranked) - _CLEANUPS_SHOWN
    useful = any(_is_useful(sizes) for sizes in freed.values())
    return ("done" if useful else "failed"), f"{listed}{f'; and {more} more' if more > 0 else ''}."


def _is_useful(freed: Sequence[Freed]) -> bool:
    return any(each.something for each in freed)


def _cleanup(name: str, freed: Sequence[Freed]) -> str:
    times = format_times(len(freed))
    vain = sum(not each.something for each in freed)
    total = freed_in_all(freed).words
    sometimes = f", but nothing {format_times(vain)}" if 0 < vain < len(freed) else ""
    return f"{name} ran {times} and freed {total}{sometimes}"

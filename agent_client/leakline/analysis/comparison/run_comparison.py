"""Comparison of two runs on one generation axis, by phase and by type: did the fix work?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from statistics import median
from typing import Final

from ...text_format import format_bytes, format_change, format_interval, seen_of
from ..attribution.candidates import family_of
from ..examination import examine
from ..findings import gauges
from ..findings.growth_tables import of_how_many, type_growth, with_verdict
from ..findings.verdict_summary import DEFAULTS, Priorities
from ..generation_axis import passed
from ..memory.memory_by_phase import NO_PHASE
from ..results import Finding, Interval, Status, TypeGrowth, Verdict, to_json
from ..run_history import TENSOR_BYTES, ProcessHistory, RunHistory, Spans, is_page, union
from ..statistics.memory_evidence import MATERIAL, Scale
from ..status import ACTIVE, GROWING
from ..timeline import Timeline, timelines_of
from ..timeline_analysis import TimelineAnalysis
from ..window import Stretch
from .comparison_results import (
    SAME,
    Change,
    Comparison,
    FindingChanges,
    GrowthChange,
    MemoryAfter,
    Outcome,
    PhaseChange,
    Survival,
    SurvivalChange,
    TypeChange,
    change_of,
    percent_of,
)
from .fix_effects import effects_of_comparison

_MIN_GENERATIONS: Final = 4
# Number of generations at the start of both runs that are left out as warm-up if enough generations remain.
_WARM_UP: Final = 2
# Two runs without a leak are reported as different if their memory differs by at least this share at the end.
_APART: Final = 2 * MATERIAL
_FIXED: Final = 0.80
_MAX_TYPES: Final = 20
# Verdicts that mean no leak. Too few generations, growth to watch and a leak that stopped are not among them.
CLEAN: Final[tuple[Status, ...]] = ("ok", "filling")
# Status of the second run -> why the leak is not called fixed although memory grows less.
_NOT_CLEAN: Final[dict[Status, str]] = {
    "watch": "but the second run still has growth to watch",
    "recovered": "but the second run also leaked until its leak stopped",
    "learning": "but the second run was too short for a verdict",
}
RESIDENT: Final = ("process.rss_bytes", "process.peak_bytes")


def compare(before: RunHistory, after: RunHistory, priorities: Priorities = DEFAULTS) -> Comparison:
    """Compare ``after`` with ``before`` over the generations that both runs have.

    Growth means growth of private memory after the first generations, without the growth of declared containers.
    Runs that are counted in different units have no generations in common: the tenth second is not the tenth
    generation.
    """
    alike = before.unit == after.unit
    shared = _shared_generations(before, after) if alike else []
    a, b = _Side(before, shared, priorities), _Side(after, shared, priorities)
    changes = _finding_changes(a.verdict.findings, b.verdict.findings)
    if not alike:
        # A run may be unable to detect what the other run names, so a missing finding does not mean that a leak is
        # fixed.
        changes = replace(changes, gone=())
    both = _both_have(before, after, shared) if alike else 0
    went_by = passed(after.unit, Spans.of(shared))
    # The two numbers differ in very long runs, in which not every generation is read.
    went_by = None if went_by == both else went_by
    outcome = _outcome(a, b, changes, both)
    return Comparison(
        before=before.run,
        after=after.run,
        outcome=outcome,
        summary=_summary(outcome, a, b, both, went_by)
        + (of_how_many(before) or of_how_many(after)),
        generations_compared=len(shared),
        growth_bytes_per_generation=GrowthChange(
            a.growth, b.growth, *change_of(a.growth, b.growth)
        ),
        peak_bytes=Change(a.peak, b.peak, percent_of(a.peak, b.peak)),
        seconds_per_generation=Change(a.seconds, b.seconds, percent_of(a.seconds, b.seconds)),
        by_phase=_by_phase(a, b),
        by_type=_by_type(
            _types(_end(before, shared), a.verdict),
            _types(_end(after, shared), b.verdict),
            changes,
        )
        if alike
        else (),
        findings=changes,
        environment_changes=environment_changes(before.environment, after.environment),
        assertions=b.verdict.assertions,
        by_gauge=gauges.compared(a.timelines, b.timelines, a.shared),
        effects=effects_of_comparison(before, after, a.stretch, b.stretch),
        memory_after=_memory_after(a, b, shared, both),
        generations_passed=went_by,
        survival=survival_change(
            _survival_of(before, a.verdict),
            _survival_of(after, b.verdict),
            before.unit,
            after.unit,
        ),
    )


def warm_up(generations: int) -> int:
    """Return the number of common generations at the start that are left out as warm-up."""
    return min(_WARM_UP, max(0, generations - _MIN_GENERATIONS))


class _Side:
    """Measurements of one run over the shared generations."""

    def __init__(self, history: RunHistory, shared: Sequence[int], priorities: Priorities) -> None:
        self.history = history
        self.verdict: Verdict = examine(history, priorities=priorities)
        self.studies = [TimelineAnalysis(history, timeline) for timeline in timelines_of(history)]
        self.shared = frozenset(shared[warm_up(len(shared)) :])
        self.stretch = Stretch(self.studies, [self._positions(study) for study in self.studies])
        self.growth = self.stretch.growth()
        self.phases = self.stretch.kept()
        self.peak = self._peak(shared)
        self.seconds = self._seconds()

    def _positions(self, study: TimelineAnalysis) -> list[int]:
        return [i for i, g in enumerate(study.timeline.generations) if g in self.shared]

    def _peak(self, shared: Sequence[int]) -> float | None:
        """Return the highest resident memory in the shared generations, summed over processes.

        For a page, the memory of its tensors is used instead.
        """
        end = max(shared, default=None)
        total, seen = 0.0, False
        for study in self.studies:
            timeline = study.timeline
            known = [
                float(value)
                for name in ((TENSOR_BYTES,) if is_page(timeline.series) else RESIDENT)
                for value, generation in zip(
                    timeline.series.get(name, ()), timeline.generation, strict=False
                )
                if value is not None and (end is None or generation is None or generation <= end)
            ]
            if known:
                total, seen = total + max(known), True
        return total if seen else None

    def memory_at(self, generation: int) -> float | None:
        """Return the resident bytes of all processes at the end of a generation.

        For a page, return the bytes of its tensors. Return None if a process that completed the generation was not
        read at its end.
        """
        total, seen = 0.0, False
        for timeline in self.timelines:
            name = TENSOR_BYTES if is_page(timeline.series) else RESIDENT[0]
            if generation not in timeline.generations or not timeline.has(name):
                continue
            value = timeline.values(name)[timeline.generations.index(generation)]
            if value is None:
                return None
            total, seen = total + value, True
        return total if seen else None

    def _seconds(self) -> float | None:
        known = []
        for study in self.studies:
            if study.timeline.has("generation.seconds"):
                values = study.timeline.values("generation.seconds")
                known += [float(v) for i in self._positions(study) if (v := values[i]) is not None]
        return median(known) if known else None

    @property
    def timelines(self) -> list[Timeline]:
        return [study.timeline for study in self.studies]

    @property
    def leaks(self) -> bool:
        return any(f.status in ACTIVE for f in self.verdict.findings)

    @property
    def is_clean(self) -> bool:
        """True if the verdict rules out a leak; otherwise, no leak counts as fixed."""
        return self.verdict.status in CLEAN

    @property
    def baseline(self) -> float:
        return sum(study.scale(1).baseline_bytes for study in self.studies if len(study.timeline))

    def matters(self, rate: float, generations: int) -> bool:
        spacing = self.stretch.spacing
        return Scale(self.baseline, spacing=spacing).is_material(rate, generations * spacing)


def _memory_after(
    a: _Side, b: _Side, shared: Sequence[int], generations: int
) -> MemoryAfter | None:
    if not shared:
        return None
    newest = shared[-1]
    old, new = a.memory_at(newest), b.memory_at(newest)
    return MemoryAfter(newest, generations, old, new, percent_of(old, new))


def _shared_generations(before: RunHistory, after: RunHistory) -> list[int]:
    sides = [
        {g for timeline in timelines_of(history) for g in timeline.generations}
        for history in (before, after)
    ]
    return sorted(sides[0] & sides[1])


def _both_have(before: RunHistory, after: RunHistory, shared: Sequence[int]) -> int:
    """Return the number of generations that both runs completed, including generations that were not read."""
    timelines = [timelines_of(history) for history in (before, after)]
    if not any(timeline.left_out.generations for side in timelines for timeline in side):
        return len(shared)
    sides = [union(timeline.lived for timeline in side) for side in timelines]
    return sum(map(len, sides)) - len(union(sides))


def _end(history: RunHistory, shared: Sequence[int]) -> RunHistory:
    """Return the run without the generations after the last common generation."""
    last = max(shared, default=None)
    if last is None:
        return history
    return replace(history, processes=tuple(_cut(process, last) for process in history.processes))


def _cut(process: ProcessHistory, last: int) -> ProcessHistory:
    kept = [g is None or g <= last for g in process.generation]
    if all(kept):
        return process
    return process.picked(lambda column: list(compress(column, kept)))


def _outcome(a: _Side, b: _Side, changes: FindingChanges, generations: int) -> Outcome:
    """Return the outcome, based on the findings if there are any, otherwise on the two growth intervals.

    The outcome "fixed" also requires a verdict that the second run does not leak, so that outcome and verdict
    agree.
    """
    old, new = a.growth, b.growth
    if old is None or new is None or generations < _MIN_GENERATIONS:
        return "undecided"
    grew, grows = a.matters(old.estimate, generations), b.matters(new.estimate, generations)
    if not a.leaks and not b.leaks and not _shows(a, b, new.estimate - old.estimate, generations):
        return "no_effect"
    apart_down, apart_up = new.high < old.low, new.low > old.high
    smaller = new.estimate < (1 - SAME) * old.estimate and apart_down
    larger = new.estimate > (1 + SAME) * max(old.estimate, 0.0) and apart_up
    if larger and grows:
        return "worse"
    if a.leaks and not b.leaks and (smaller or not grew):
        enough = new.estimate <= (1 - _FIXED) * old.estimate or not grows
        return "fixed" if enough and b.is_clean else "improved"
    if smaller:
        return "fixed" if not grows and not b.leaks and b.is_clean else "improved"
    if b.leaks and not a.leaks:
        return "worse" if any(f.status in ACTIVE for f in changes.new) else "undecided"
    decided = apart_down or apart_up or _overlap(old, new)
    return "no_effect" if decided and a.leaks == b.leaks else "undecided"


def _shows(a: _Side, b: _Side, difference: float, generations: int) -> bool:
    """Return True if two runs that do not leak clearly differ at the end.

    The difference must be larger than a settling allocator can explain.
    """
    passed_by = generations * b.stretch.spacing
    return abs(difference) * passed_by >= _APART * max(a.baseline, b.baseline, 1.0)


def _overlap(a: Interval, b: Interval) -> bool:
    return a.low <= b.high and b.low <= a.high


def _less(percent: float | None) -> str:
    """Return the reduction in percent, such as ``99.6``; ``100`` only if no growth is left."""
    less = min(100.0, max(0.0, -(percent or 0.0)))
    return f"{less:.0f}" if less == 100.0 or less < 99.5 else f"{min(less, 99.9):.1f}"


def _summary(
    outcome: Outcome, a: _Side, b: _Side, generations: int, went_by: int | None = None
) -> str:
    unit = b.history.unit
    seen = seen_of(generations, went_by, unit)
    if a.history.unit != unit:
        return (
            f"Undecided: one run is counted in {a.history.unit}s, the other in {unit}s; record both runs the same way "
            "(both with leakline run, or both with generations)"
        )
    if a.growth is None or b.growth is None or generations < _MIN_GENERATIONS:
        return f"Undecided: only {seen} to compare"
    was, now = a.growth.estimate, b.growth.estimate
    change = f"{format_bytes(was)} per {unit} before, {format_bytes(now)} after"
    percent = percent_of(was, now)
    if outcome == "fixed":
        return f"Fixed: {change}: {_less(percent)} % less growth over {seen}"
    if outcome == "improved":
        less = "" if percent is None else f" ({percent:+,.0f} %)"
        return f"Improved: {change}{less}, {_NOT_CLEAN.get(b.verdict.status, 'but memory still grows')}"
    if outcome == "worse":
        more = "" if percent is None or was <= 0 else f" ({percent:+,.0f} %)"
        return f"Worse: {change}{more}"
    if outcome == "no_effect":
        if a.is_clean and b.is_clean:
            return f"No effect: neither run leaks ({change})"
        return f"No effect: {change}, within the normal difference between two runs"
    return f"Undecided: a change of {format_change(now - was)} per {unit} does not stand out from the noise over {seen}"


def _by_phase(a: _Side, b: _Side) -> tuple[PhaseChange, ...]:
    names = sorted({*a.phases, *b.phases}, key=lambda name: (name in NO_PHASE, name))
    pairs = [(name, a.phases.get(name), b.phases.get(name)) for name in names]
    rows = [PhaseChange(name, old, new, *change_of(old, new)) for name, old, new in pairs]
    return tuple(sorted(rows, key=_largest))


def _largest(row: PhaseChange) -> float:
    return -max(abs(i.estimate) for i in (row.before, row.after) if i is not None)


def _types(history: RunHistory, verdict: Verdict) -> dict[str, TypeGrowth]:
    return {row.name: row for row in with_verdict(type_growth(history), to_json(verdict))}


def _by_type(
    old: Mapping[str, TypeGrowth], new: Mapping[str, TypeGrowth], changes: FindingChanges
) -> tuple[TypeChange, ...]:
    """Return the type changes: types that findings name, then the program's classes, then other types.

    Each group is sorted by growth.
    """
    found = (*changes.gone, *changes.still, *changes.new)
    named = {suspect.name for finding in found for suspect in finding.suspects[:1]}
    rows = [_type_change(name, old.get(name), new.get(name)) for name in sorted({*old, *new})]
    rows.sort(key=lambda row: (_rank(row, named), -_rate(row)))
    return tuple(rows[:_MAX_TYPES])


def _rate(row: TypeChange) -> float:
    return max(abs(row.before_per_generation or 0), abs(row.after_per_generation or 0))


def _rank(row: TypeChange, named: Collection[str]) -> int:
    """Return the sort rank of a type; lower comes first.

    Dicts, lists and library objects come late, because they are far more numerous than the objects that own them.
    """
    if not _rate(row):
        return 3
    if row.type in named:
        return 0
    return 2 if family_of(row.type, "type") in ("plain", "library") else 1


def _type_change(name: str, old: TypeGrowth | None, new: TypeGrowth | None) -> TypeChange:
    was, now = (None if row is None else row.count_per_generation for row in (old, new))
    return TypeChange(
        name, None if was is None else was.estimate, None if now is None else now.estimate,
        old.last_count if old else None, new.last_count if new else None, *change_of(was, now),
    )  # fmt: skip


def _finding_changes(before: Sequence[Finding], after: Sequence[Finding]) -> FindingChanges:
    """Match the suspected, confirmed and watched findings of both runs by fingerprint."""
    old = {f.fingerprint: f for f in before if f.status in GROWING}
    new = {f.fingerprint: f for f in after if f.status in GROWING}
    return FindingChanges(
        gone=tuple(f for p, f in old.items() if p not in new),
        still=tuple(f for p, f in new.items() if p in old),
        new=tuple(f for p, f in new.items() if p not in old),
    )


def environment_changes(
    before: Mapping[str, object], after: Mapping[str, object]
) -> dict[str, tuple[object, object]]:
    """Return the environment values that differ, by name, as (before, after); a missing value is None."""
    old, new = _flat(before), _flat(after)
    return {
        name: (old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    }


def _flat(environment: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in environment.items():
        if name == "packages" and isinstance(value, Mapping):
            flat.update({str(package): version for package, version in value.items()})
        else:
            flat[name] = value
    return flat


def _survival_of(history: RunHistory, verdict: Verdict) -> Survival:
    known = [timeline.generations[-1] for timeline in timelines_of(history) if timeline.generations]
    return Survival(max(known, default=None), history.ended, verdict.oom.generation)


def survival_change(
    before: Survival, after: Survival, unit: str, unit_after: str
) -> SurvivalChange:
    sides = f"Before: {_ending_words(before, unit)}. After: {_ending_words(after, unit_after)}."
    return SurvivalChange(before, after, sides)


def _ending_words(side: Survival, unit: str) -> str:
    """Return text such as ``memory runs out around episode 1,004 (990 to 1,020); the run ended at episode 998``."""
    if side.last_generation is None:
        return f"no {unit} was recorded"
    progress = f"{'ended at' if side.ended else 'has reached'} {unit} {side.last_generation:,}"
    out = side.oom_at_generation
    if out is None:
        return f"memory is not forecast to run out; the run {progress}"
    when = format_interval(out.estimate, out.low, out.high, lambda value: f"{round(value):,}")
    return f"memory runs out around {unit} {when}; the run {progress}"

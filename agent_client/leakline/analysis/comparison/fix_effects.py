"""What each fix has done: what it is about, before it and after it, within its run or against a run without it.

A fix is about the classes whose counts it promises, and the phase it names; else about the growth of the whole run.
"No effect" is an answer: the difference is within what two runs of one program differ by, and half of the growth gone
would have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...text_format import (
    format_change,
    format_count_change,
    format_interval,
    short_name,
)
from ..assertions.declared import COUNT
from ..assertions.fixes import Fix, declared_fixes
from ..range_window import Stretch
from ..results import EffectMeasure, EffectOutcome, FixEffect, Interval
from ..run_history import RunHistory
from ..timeline_analysis import LaneStudy
from .comparison_results import SAME, change_of

# Generations on each side of a fix from which an effect is told.
MIN_GENERATIONS: Final = 4
# No effect is said only where a fix that had taken away this share of the growth would have shown.
_HALF: Final = 0.5
_MAX_SUBJECTS: Final = 5


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a fix is about: ``name`` is a phase or a class, and empty of the whole run."""

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
        """The least change that is told: of bytes as the verdict minds them, of instances one over all generations."""
        if self.measure == "count":
            return 1 / max(1, min(before.generations, after.generations))
        return max(before.growth_that_matters(), after.growth_that_matters())


def effects_within(history: RunHistory, studies: Sequence[LaneStudy]) -> tuple[FixEffect, ...]:
    """Of each fix of a run, from the generations before it and those after it.

    Where several fixes are about the same, each is measured from the one before it up to the next.
    """
    every = [(fix, subject) for fix in declared_fixes(history) for subject in _subjects(fix)]
    rows = []
    for fix, subject in every:
        # What the whole run does is the doing of every fix.
        near = [f for f, s in every if s == subject or "" in (s.name, subject.name)]
        since = sorted({each.since for each in near})
        at = since.index(fix.since)
        begin = since[at - 1] if at else float("-inf")
        end = since[at + 1] if at + 1 < len(since) else float("inf")
        sides = (
            _between(studies, begin, fix.since, first=not at),
            _between(studies, fix.since, end, first=False),
        )
        beside = _beside(
            fix, subject, [f for f, s in every if f.since == fix.since and s == subject]
        )
        rows.append(_effect(fix, subject, sides, beside, history.unit, _WITHIN))
    return tuple(rows)


def effects_of_comparison(
    before: RunHistory, after: RunHistory, a: Stretch, b: Stretch
) -> tuple[FixEffect, ...]:
    """Of each fix of the run ``after``, over the generations that both runs have."""
    had = {fix.name for fix in declared_fixes(before)}
    every = [(fix, subject) for fix in declared_fixes(after) for subject in _subjects(fix)]
    rows = []
    for fix, subject in every:
        if fix.name in had:
            said = "The run before has this fix too, so the two do not tell what it does."
            rows.append(_row(fix, subject, None, None, "undecided", said))
            continue
        beside = _beside(fix, subject, [f for f, s in every if s == subject and f.name not in had])
        rows.append(_effect(fix, subject, (a, b), beside, after.unit, _COMPARED))
    return tuple(rows)


def _subjects(fix: Fix) -> list[_Subject]:
    classes = [str(c).removeprefix(COUNT) for c in fix.promises if str(c).startswith(COUNT)]
    found = [_Subject("count", name) for name in classes[:_MAX_SUBJECTS]]
    if fix.phase is not None:
        found.append(_Subject("phase_growth", fix.phase))
    return found or [_Subject("growth", "")]


def _between(studies: Sequence[LaneStudy], begin: float, end: float, first: bool) -> Stretch:
    """Generations that ended in a stretch of time, without what builds up as a process starts, or as a fix sets in."""
    positions = []
    for study in studies:
        lane = study.lane
        found = [i for i, row in enumerate(lane.end_rows) if begin <= lane.time[row] < end]
        # As much as a comparison leaves out at a start; after a fix what the change itself moved goes with it.
        left_out = min(2 if first else 1, max(0, len(found) - MIN_GENERATIONS))
        positions.append(found[left_out:])
    return Stretch(studies, positions)


@dataclass(frozen=True, slots=True)
class _Way:
    """How an effect was come by, in words: of too few generations on a side, and of a subject nobody measured."""

    too_few: Callable[[int, int, str], str]
    unmeasured: str


def _too_few_within(before: int, after: int, unit: str) -> str:
    if before < MIN_GENERATIONS and after >= MIN_GENERATIONS:
        return (
            f"Too few {unit}s ran before the fix in this run: a comparison with a run without it tells its effect."
        )  # fmt: skip
    return f"An effect is told from {MIN_GENERATIONS} {unit}s on each side of the fix on."


def _too_few_compared(before: int, after: int, unit: str) -> str:
    return f"Only {min(before, after)} {unit}s to compare."


_WITHIN: Final = _Way(_too_few_within, "was not measured on both sides of the fix")
_COMPARED: Final = _Way(_too_few_compared, "was not measured in both runs")


def _effect(
    fix: Fix, subject: _Subject, sides: tuple[Stretch, Stretch], beside: str, unit: str, way: _Way
) -> FixEffect:  # fmt: skip
    old, new = (subject.of(side) for side in sides)
    lengths = [side.generations for side in sides]
    if min(lengths) < MIN_GENERATIONS:
        return _row(fix, subject, old, new, "undecided", way.too_few(lengths[0], lengths[1], unit))
    _, difference = change_of(old, new)
    if old is None or new is None or difference is None:
        said = f"What {subject.title} {_VERBS[subject.measure]} {way.unmeasured}."
        return _row(fix, subject, old, new, "undecided", said)
    least = max(SAME * abs(old.estimate), subject.matters(*sides))
    outcome = _outcome(difference, least, max(_HALF * abs(old.estimate), least))
    said = f"{_said(subject, old, new, difference, unit)}: {_REASONS[outcome]}.{beside}"
    return _row(fix, subject, old, new, outcome, said)


def _outcome(difference: Interval, least: float, clear: float) -> EffectOutcome:
    """``least``: what a change must reach to be one. ``clear``: a change of so much would have been seen."""
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
_REASONS: Final[Mapping[EffectOutcome, str]] = {
    "helped": "helped",
    "no_effect": "no effect, within what two runs of one program differ by",
    "worse": "worse",
    "undecided": "not decidable, the interval is too wide",
}


def _said(subject: _Subject, old: Interval, new: Interval, difference: Interval, unit: str) -> str:
    write = format_change if subject.measure != "count" else format_count_change
    change = format_interval(difference.estimate, difference.low, difference.high, write)
    return (
        f"{subject.title} {_VERBS[subject.measure]} {write(old.estimate)} per {unit} before and "
        f"{write(new.estimate)} after, difference {change}"
    )


def _beside(fix: Fix, subject: _Subject, alike: Sequence[Fix]) -> str:
    """Of fixes about the same at the same time, nobody can tell which did it."""
    others = [each.name for each in alike if each.name != fix.name]
    if not others:
        return ""
    names, verb = ", ".join(others), "are" if len(others) > 1 else "is"
    return f" It cannot be told from that of {names}, which {verb} about {subject.title} too."


def _row(
    fix: Fix, subject: _Subject, old: Interval | None, new: Interval | None, outcome: EffectOutcome, said: str
) -> FixEffect:  # fmt: skip
    change, difference = change_of(old, new)
    return FixEffect(
        fix.name, fix.phase, fix.location, fix.rejected, fix.since, subject.measure, subject.name or None,
        old, new, change, difference, outcome, said,
    )  # fmt: skip


def effect_figures(effect: Mapping[str, object]) -> tuple[str, str, str]:
    """(before, after, difference) of an effect as in the JSON, written; empty where not measured."""
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
    """What an effect is of: ``TradingEnvironment``, ``evaluate_population``, ``the run``."""
    name = str(effect["subject"] or "the run")
    return short_name(name) if effect["measure"] == "count" else name

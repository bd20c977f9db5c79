"""Each fix has an effect of its own, before and after: helped, no effect, worse, or not decidable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from builder import EVALUATE, EVOLVE, TRAIN, Training, kept_environments, loss_graph, old_population

from leakline.analysis import RunHistory, compare, examine
from leakline.analysis.assertions.checks import Fix
from leakline.analysis.comparison.fix_effects import (
    _COMPARED,
    _WITHIN,
    _between,
    _effect,
    _outcome,
    _Subject,
    _subjects,
    effect_figures,
    effect_title,
    effects_of_comparison,
    effects_within,
)
from leakline.analysis.results import FixEffect, Interval
from leakline.analysis.timeline_analysis import TimelineAnalysis
from leakline.analysis.window import Stretch
from leakline.snapshot import Event

ENVIRONMENT = "trading.TradingEnvironment"
# Each of the leaks, and a fix of something that did not leak.
FIXES: dict[str, dict[str, Any]] = {
    "close environments": {"phase": EVALUATE, "promises": {f"count:{ENVIRONMENT}": 2}},
    "detach losses": {"phase": TRAIN},
    "drop the old population": {"phase": EVOLVE},
    "bound the history": {"phase": "between"},
}


def with_fixes(history: RunHistory, at: float = 0.0, names: Sequence[str] = ()) -> RunHistory:
    events = [Event(0, at, "fix", name, data=FIXES[name]) for name in names or FIXES]
    return replace(history, events=(*history.events, *events))


def moment_of(history: RunHistory, generation: int) -> float:
    """When a generation had ended, and a little."""
    (process,) = history.processes
    ends = zip(process.time, process.generation, process.kind, strict=True)
    return next(t for t, g, kind in ends if g == generation and kind == "generation_end") + 0.001


@pytest.mark.parametrize("seed", range(4))
def test_four_fixes_declared_at_the_start_are_told_apart_by_the_comparison(seed: int) -> None:
    before = Training(leaks=(kept_environments(), loss_graph(), old_population()), seed=seed)
    after = Training(leaks=(old_population(),), seed=seed + 50)
    effects = compare(before.history(), with_fixes(after.history())).effects
    found = {(each.fix, each.measure): each for each in effects}
    assert found["close environments", "phase_growth"].outcome == "helped"
    assert found["detach losses", "phase_growth"].outcome == "helped"
    # Its leak is still there.
    assert found["drop the old population", "phase_growth"].outcome == "no_effect"
    assert found["bound the history", "phase_growth"].outcome in ("no_effect", "undecided")
    count = found["close environments", "count"]
    assert count.before is not None and count.after is not None
    assert (count.outcome, count.before.estimate, count.after.estimate) == ("helped", 16, 0)
    assert "difference -16" in count.sentence


def test_at_the_start_of_a_run_it_cannot_tell_and_says_what_can() -> None:
    verdict = examine(with_fixes(Training(leaks=(old_population(),)).history()))
    assert {each.outcome for each in verdict.effects} == {"undecided"}
    assert all("a comparison with a run without it" in each.sentence for each in verdict.effects)


@pytest.mark.parametrize("seed", range(4))
def test_in_the_middle_of_a_run_each_phase_has_its_before_and_after(seed: int) -> None:
    leaks = (replace(loss_graph(), stop=30), old_population())
    history = Training(leaks=leaks, generations=60, seed=seed).history()
    names = ["detach losses", "drop the old population"]
    helped, same = examine(with_fixes(history, moment_of(history, 29), names)).effects
    assert (helped.fix, same.fix) == tuple(names)
    assert helped.outcome == "helped", helped.sentence
    assert helped.difference is not None and helped.difference.high < 0
    assert same.outcome == "no_effect", same.sentence
    assert "no effect" in same.sentence


def test_what_grows_more_after_a_fix_is_worse() -> None:
    late = loss_graph(start=10)
    history = Training(leaks=(late,), generations=20).history()
    verdict = examine(with_fixes(history, moment_of(history, 9), ["detach losses"]))
    assert [each.outcome for each in verdict.effects] == ["worse"], verdict.effects


def test_two_fixes_of_one_phase_at_one_moment_are_said_to_be_one() -> None:
    before, after = Training(leaks=(loss_graph(),)), Training(seed=2)
    twin = Event(0, 0.0, "fix", "clear gradients", data={"phase": TRAIN})
    history = with_fixes(after.history(), names=["detach losses"])
    both = replace(history, events=(*history.events, twin))
    effects = compare(before.history(), both).effects
    assert [each.outcome for each in effects] == ["helped", "helped"]
    assert "cannot be told from that of" in effects[0].sentence


def test_a_phase_that_never_ran_is_not_decidable_and_never_no_effect() -> None:
    before, after = Training(leaks=(loss_graph(),)), Training(seed=2)
    event = Event(0, 0.0, "fix", "x", data={"phase": "upload", "rejected": "pickling: too slow"})
    history = replace(after.history(), events=(*after.history().events, event))
    (effect,) = compare(before.history(), history).effects
    assert (effect.outcome, effect.before, effect.after) == ("undecided", None, None)
    assert effect.rejected == "pickling: too slow"


OF_RUN = _Subject("growth", "")


def around(estimate: float, reach: float = 1.0) -> Interval:
    return Interval(estimate, estimate - reach, estimate + reach)


def side(growth: Interval | None = None, *, generations: int = 10, matters: float = 0.0) -> Stretch:
    told = SimpleNamespace(
        generations=generations, growth=lambda: growth, growth_that_matters=lambda: matters,
        counted=lambda name: growth, kept_by=lambda name: growth,
    )  # fmt: skip
    return cast(Stretch, told)


def fix(
    name: str = "detach", *, phase: str | None = None, since: float = 0.0, promises: Any = ()
) -> Fix:
    return Fix(name, phase, None, dict.fromkeys(promises, 1), since)


@pytest.mark.parametrize(
    ("difference", "told"),
    [
        # A change of 10 is one, and a change of 50 would have been seen.
        (Interval(-10, -15, -1), "helped"), (Interval(-9.9, -15, -1), "no_effect"),
        (Interval(-10, -15, 0), "undecided"), (Interval(10, 1, 15), "worse"), (Interval(9.9, 1, 15), "no_effect"),
        (Interval(10, 0, 15), "undecided"), (Interval(0, -49, 49), "no_effect"), (Interval(0, -50, 49), "undecided"),
        (Interval(0, -49, 50), "undecided"), (Interval(-10, -49, 49), "undecided"),
    ],
)  # fmt: skip
def test_an_effect_is_clear_of_nothing_and_no_effect_of_what_would_have_been_seen(
    difference: Interval, told: str
) -> None:
    assert _outcome(difference, 10, 50) == told


def effect(old: Stretch, new: Stretch, subject: _Subject = OF_RUN) -> FixEffect:
    return _effect(fix(), subject, (old, new), "", "generation", _WITHIN)


@pytest.mark.parametrize(
    ("old", "new", "matters", "told"),
    [
        # A fifth of what it was,
        (around(100), around(80), 0, "helped"), (around(100), around(80.1), 0, "no_effect"),
        # or what the verdict minds, of which side ever.
        (around(100), around(61), 40, "no_effect"), (around(100), around(60), 40, "helped"),
        # Of what fell the size counts.
        (around(-100), around(-81), 0, "no_effect"), (around(-100), around(-120), 0, "helped"),
        # Half of the growth would have shown: both err by 35, together by 49.5; by 36 together by 50.9.
        (around(100, 35), around(100, 35), 0, "no_effect"), (around(100, 36), around(100, 36), 0, "undecided"),
        # Where half of it does not matter, what does would have.
        (around(100, 36), around(100, 36), 60, "no_effect"),
    ],
)  # fmt: skip
def test_a_change_counts_from_a_fifth_or_from_what_matters(
    old: Interval, new: Interval, matters: float, told: str
) -> None:
    assert effect(side(old, matters=matters), side(new)).outcome == told
    assert effect(side(old), side(new, matters=matters)).outcome == told


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (4, 4, "the run grows by +100 B"), (3, 4, "Too few generations ran before the fix in this run: a comparison"),
        (4, 3, "An effect is told from 4 generations on each side of the fix on."),
        (3, 3, "An effect is told from 4 generations on each side of the fix on."),
    ],
)  # fmt: skip
def test_an_effect_is_told_from_four_generations_on_each_side(
    before: int, after: int, said: str
) -> None:
    found = effect(side(around(100), generations=before), side(around(50), generations=after))
    assert found.outcome == ("helped" if before == after == 4 else "undecided")
    assert found.sentence.startswith(said)
    # What was measured is there all the same.
    assert (found.before, found.after, found.change_percent) == (around(100), around(50), -50.0)


def test_of_two_runs_the_shorter_is_told() -> None:
    sides = side(around(1), generations=3), side(around(1), generations=2)
    found = _effect(fix(), OF_RUN, sides, "", "minute", _COMPARED)
    assert found.sentence == "Only 2 minutes to compare."


def test_what_one_side_did_not_measure_is_not_told() -> None:
    for old, new in ((None, around(1)), (around(1), None)):
        found = effect(side(old), side(new), _Subject("phase_growth", "train"))
        assert (found.outcome, found.difference) == ("undecided", None)
        assert found.sentence == "What train keeps was not measured on both sides of the fix."


@pytest.mark.parametrize(
    ("measure", "before", "after", "least"),
    [
        # One instance over all the generations of the shorter side.
        ("count", 4, 10, 1 / 4), ("count", 0, 5, 1.0), ("growth", 10, 10, 7.0), ("phase_growth", 10, 10, 7.0),
    ],
)  # fmt: skip
def test_the_least_change_is_one_instance_or_what_the_verdict_minds(
    measure: Any, before: int, after: int, least: float
) -> None:
    subject = _Subject(measure, "")
    a, b = side(generations=before, matters=7), side(generations=after, matters=3)
    assert subject.matters(a, b) == subject.matters(b, a) == least


def test_instances_are_told_as_counts_and_the_run_has_no_name() -> None:
    sides = side(around(2)), side(around(-3))
    of_class = effect(*sides, _Subject("count", "app.Env"))
    assert (of_class.subject, of_class.sentence) == (
        "app.Env",
        "Env grows by +2 per generation before and -3 after, difference -5 (-6.4 to -3.6): helped.",
    )
    of_run = effect(*sides)
    assert (of_run.subject, of_run.sentence) == (
        None,
        "the run grows by +2 B per generation before and -3 B after, difference -5 B (-6 B to -4 B): helped.",
    )


def test_each_subject_is_measured_as_what_it_is() -> None:
    told = SimpleNamespace(growth=lambda: 1, counted=lambda name: 2, kept_by=lambda name: 3)
    subjects = [OF_RUN, _Subject("count", "app.Env"), _Subject("phase_growth", "a/b.c")]
    assert [subject.of(cast(Stretch, told)) for subject in subjects] == [1, 2, 3]
    assert [subject.title for subject in subjects] == ["the run", "Env", "a/b.c"]


@pytest.mark.parametrize(
    ("declared", "subjects"),
    [
        (fix(promises=["growth"]), [OF_RUN]),
        (fix(phase="train"), [_Subject("phase_growth", "train")]),
        (fix(promises=["count:Env", "peak"]), [_Subject("count", "Env")]),
        (fix(phase="train", promises=["count:Env"]), [_Subject("count", "Env"), _Subject("phase_growth", "train")]),
        (fix(promises=[f"count:C{i}" for i in range(7)]), [_Subject("count", f"C{i}") for i in range(5)]),
    ],
)  # fmt: skip
def test_a_fix_is_about_its_classes_and_its_phase_else_about_the_run(
    declared: Fix, subjects: list[_Subject]
) -> None:
    assert _subjects(declared) == subjects


def timeline_analysis(ends: int) -> TimelineAnalysis:
    """Generations that end at 100, 200, 300 … seconds."""
    timeline = SimpleNamespace(
        end_rows=range(ends), time=[100.0 * (i + 1) for i in range(ends)], generations=range(ends)
    )
    return cast(TimelineAnalysis, SimpleNamespace(timeline=timeline))


@pytest.mark.parametrize(
    ("begin", "end", "first", "counted"),
    [
        # What ends as the stretch begins belongs to it, what ends as it ends does not: 4 of 100 to 400.
        (100, 500, False, 4), (100.1, 500, False, 3), (100, 500.1, False, 4),
        # At the start of a run two are warm-up and behind a fix one is, where four remain.
        (100, 700, True, 4), (100, 800, True, 5), (100, 600, False, 4), (100, 700, False, 5), (100, 300, True, 2),
    ],
)  # fmt: skip
def test_a_stretch_leaves_out_what_builds_up_at_its_start(
    begin: float, end: float, first: bool, counted: int
) -> None:
    assert _between([timeline_analysis(12)], begin, end, first).generations == counted


def declared(name: str, at: float, phase: str | None = None) -> Event:
    return Event(0, at, "fix", name, data={"phase": phase})


def sentences(*events: Event, ends: int = 30) -> dict[str, str]:
    found = effects_within(RunHistory("r", events=events), [timeline_analysis(ends)])
    return {each.fix: each.sentence for each in found}


def test_a_fix_is_measured_from_the_one_before_it_up_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[float, float, bool]] = []

    def between(studies: Any, begin: float, end: float, first: bool) -> Stretch:
        asked.append((begin, end, first))
        return side(around(1))

    monkeypatch.setattr("leakline.analysis.comparison.fix_effects._between", between)
    never, ever = float("-inf"), float("inf")
    events = (declared("a", 10, "train"), declared("b", 20, "evolve"), declared("c", 30, "train"))
    effects_within(RunHistory("r", events=events), [])
    assert asked == [
        (never, 10, True), (10, 30, False), (never, 20, True), (20, ever, False),
        (10, 30, False), (30, ever, False),
    ]  # fmt: skip
    asked.clear()
    # What the whole run does is the doing of every fix.
    effects_within(RunHistory("r", events=(*events[:2], declared("r", 15))), [])
    assert asked == [
        (never, 10, True), (10, 15, False), (10, 15, False), (15, 20, False), (15, 20, False), (20, ever, False),
    ]  # fmt: skip


def test_only_fixes_of_the_same_moment_and_subject_cannot_be_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "leakline.analysis.comparison.fix_effects._between", lambda *_, **__: side(around(1))
    )
    events = (
        declared("a", 10, "train"), declared("b", 10, "train"), declared("c", 10, "evolve"), declared("d", 20, "train"),
    )  # fmt: skip
    named = {name: said.split("from that of ")[1:] for name, said in sentences(*events).items()}
    assert named == {
        "a": ["b, which is about train too."], "b": ["a, which is about train too."], "c": [], "d": [],
    }  # fmt: skip


def test_a_fix_that_both_runs_have_is_not_told_by_them() -> None:
    old, new = declared("old", 5, "train"), declared("new", 6, "train")
    before, after = RunHistory("r", events=(old,)), RunHistory("r", events=(old, new))
    first, second = effects_of_comparison(before, after, side(around(100)), side(around(50)))
    assert (first.outcome, first.before) == ("undecided", None)
    assert "The run before has this fix too" in first.sentence
    assert (second.outcome, second.sentence.count("cannot be told")) == ("helped", 0)


def test_figures_of_an_effect_are_written_in_its_unit() -> None:
    counted = {
        "measure": "count", "subject": "app.Env", "before": {"estimate": 2.0}, "after": {"estimate": 0.0},
        "difference": {"estimate": -2.0, "low": -3.0, "high": 1.0},
    }  # fmt: skip
    assert effect_figures(counted) == ("+2", "0", "-2 (-3 to +1)")
    kept = {**counted, "measure": "phase_growth"}
    assert effect_figures(kept) == ("+2 B", "+0 B", "-2 B (-3 B to +1 B)")
    assert (effect_title(counted), effect_title(kept)) == ("Env", "app.Env")
    unmeasured = {**counted, "after": None, "difference": None, "subject": None}
    assert effect_figures(unmeasured) == ("+2", "", "")
    assert effect_title(unmeasured) == "the run"

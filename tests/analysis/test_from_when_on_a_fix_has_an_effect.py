"""The effect of a fix at the edges of its rules: how much is one, where no effect may be said, and what is its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leakline.analysis import RunHistory
from leakline.analysis.effects import (
    _COMPARED,
    _WITHIN,
    _beside,
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
from leakline.analysis.promises import Fix
from leakline.analysis.results import FixEffect, Interval
from leakline.analysis.stretch import Stretch
from leakline.analysis.study import LaneStudy
from leakline.snapshot import Event

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
        (Interval(-10, -15, -1), "helped"),
        (Interval(-9.9, -15, -1), "no_effect"),
        (Interval(-10, -15, 0), "undecided"),
        (Interval(10, 1, 15), "worse"),
        (Interval(9.9, 1, 15), "no_effect"),
        (Interval(10, 0, 15), "undecided"),
        (Interval(0, -49, 49), "no_effect"),
        (Interval(0, -50, 49), "undecided"),
        (Interval(0, -49, 50), "undecided"),
        (Interval(-10, -49, 49), "undecided"),
        (Interval(10, -49, 49), "undecided"),
    ],
)
def test_an_effect_is_clear_of_nothing_and_no_effect_of_what_would_have_been_seen(
    difference: Interval, told: str
) -> None:
    assert _outcome(difference, 10, 50) == told


def effect(old: Stretch, new: Stretch, subject: _Subject = OF_RUN) -> FixEffect:
    return _effect(fix(), subject, (old, new), "", "generation", _WITHIN)


@pytest.mark.parametrize(
    ("old", "new", "matters", "told"),
    [
        # A fifth of what it was.
        (around(100), around(80), 0, "helped"),
        (around(100), around(80.1), 0, "no_effect"),
        # Or what the verdict minds, of which side ever.
        (around(100), around(61), 40, "no_effect"),
        (around(100), around(60), 40, "helped"),
        # Of what fell the size counts.
        (around(-100), around(-81), 0, "no_effect"),
        (around(-100), around(-120), 0, "helped"),
        (around(-100), around(-80), 0, "worse"),
        # Half of the growth would have shown: both err by 35, together by 49.5; by 36 together by 50.9.
        (around(100, 35), around(100, 35), 0, "no_effect"),
        (around(100, 36), around(100, 36), 0, "undecided"),
        # Where half of it does not matter, what does would have.
        (around(100, 36), around(100, 36), 60, "no_effect"),
    ],
)
def test_a_change_counts_from_a_fifth_or_from_what_matters(
    old: Interval, new: Interval, matters: float, told: str
) -> None:
    assert effect(side(old, matters=matters), side(new)).outcome == told
    assert effect(side(old), side(new, matters=matters)).outcome == told


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (4, 4, None),
        (
            3, 4,
            "Too few generations ran before the fix in this run: a comparison with a run without it tells its effect.",
        ),
        (4, 3, "An effect is told from 4 generations on each side of the fix on."),
        (3, 3, "An effect is told from 4 generations on each side of the fix on."),
    ],
)  # fmt: skip
def test_an_effect_is_told_from_four_generations_on_each_side(
    before: int, after: int, said: str | None
) -> None:
    found = effect(side(around(100), generations=before), side(around(50), generations=after))
    if said is None:
        assert found.outcome == "helped"
    else:
        assert (found.outcome, found.sentence) == ("undecided", said)
    # What was measured is there all the same.
    assert (found.before, found.after, found.change_percent) == (around(100), around(50), -50.0)


def test_of_two_runs_the_shorter_is_told() -> None:
    sides = side(around(1), generations=3), side(around(1), generations=2)
    found = _effect(fix(), OF_RUN, sides, "", "minute", _COMPARED)
    assert found.sentence == "Only 2 minutes to compare."


@pytest.mark.parametrize(("old", "new"), [(None, around(1)), (around(1), None)])
def test_what_one_side_did_not_measure_is_not_told(
    old: Interval | None, new: Interval | None
) -> None:
    found = effect(side(old), side(new), _Subject("phase_growth", "train"))
    assert (found.outcome, found.difference) == ("undecided", None)
    assert found.sentence == "What train keeps was not measured on both sides of the fix."


@pytest.mark.parametrize(
    ("measure", "before", "after", "least"),
    [
        # One instance over all the generations of the shorter side.
        ("count", 4, 10, 1 / 4),
        ("count", 10, 5, 1 / 5),
        ("count", 0, 5, 1.0),
        ("growth", 10, 10, 7.0),
        ("phase_growth", 10, 10, 7.0),
    ],
)
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
    told = SimpleNamespace(
        growth=lambda: around(1), counted=lambda name: around(2), kept_by=lambda name: around(3)
    )
    measured = [
        _Subject(measure, "app.Env").of(cast(Stretch, told))
        for measure in ("growth", "count", "phase_growth")
    ]
    assert measured == [around(1), around(2), around(3)]
    titles = [_Subject("count", "app.Env"), _Subject("phase_growth", "a/b.c"), OF_RUN]
    assert [subject.title for subject in titles] == ["Env", "a/b.c", "the run"]


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


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([], ""),
        ([fix()], ""),
        ([fix(), fix("close")], " It cannot be told from that of close, which is about the run too."),
        ([fix("a"), fix("b"), fix()], " It cannot be told from that of a, b, which are about the run too."),
    ],
)  # fmt: skip
def test_fixes_of_the_same_are_named_beside_each_other(others: Sequence[Fix], said: str) -> None:
    assert _beside(fix(), OF_RUN, others) == said


def lane_study(ends: int) -> LaneStudy:
    """Generations that end at 100, 200, 300 … seconds."""
    lane = SimpleNamespace(
        end_rows=range(ends), time=[100.0 * (i + 1) for i in range(ends)], generations=range(ends)
    )
    return cast(LaneStudy, SimpleNamespace(lane=lane))


@pytest.mark.parametrize(
    ("begin", "end", "first", "counted"),
    [
        # What ends as the stretch begins belongs to it, what ends as it ends does not: 4 of 100 to 400.
        (100, 500, False, 4),
        (100.1, 500, False, 3),
        (100, 500.1, False, 4),
        (100, 600.1, False, 5),
        # At the start of a run two are warm-up and behind a fix one is, where four remain.
        (100, 600, True, 4),
        (100, 700, True, 4),
        (100, 800, True, 5),
        (100, 600, False, 4),
        (100, 700, False, 5),
        (100, 300, True, 2),
    ],
)
def test_a_stretch_leaves_out_what_builds_up_at_its_start(
    begin: float, end: float, first: bool, counted: int
) -> None:
    assert _between([lane_study(12)], begin, end, first).generations == counted


def declared(name: str, at: float, phase: str | None = None) -> Event:
    return Event(0, at, "fix", name, data={"phase": phase})


def sentences(*events: Event, ends: int = 30) -> dict[str, str]:
    found = effects_within(RunHistory("r", events=events), [lane_study(ends)])
    return {each.fix: each.sentence for each in found}


def test_a_fix_is_measured_from_the_one_before_it_up_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[float, float, bool]] = []

    def between(studies: Any, begin: float, end: float, first: bool) -> Stretch:
        asked.append((begin, end, first))
        return side(around(1))

    monkeypatch.setattr("leakline.analysis.effects._between", between)
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
    monkeypatch.setattr("leakline.analysis.effects._between", lambda *_, **__: side(around(1)))
    events = (
        declared("a", 10, "train"), declared("b", 10, "train"), declared("c", 10, "evolve"), declared("d", 20, "train"),
    )  # fmt: skip
    named = {name: said.split("from that of ")[1:] for name, said in sentences(*events).items()}
    assert named == {
        "a": ["b, which is about train too."], "b": ["a, which is about train too."], "c": [], "d": [],
    }  # fmt: skip


def test_a_fix_that_both_runs_have_is_not_told_by_them() -> None:
    before = RunHistory("r", events=(declared("old", 5, "train"),))
    events = (
        declared("old", 5, "train"),
        declared("new", 6, "train"),
        declared("other", 7, "evolve"),
    )
    after = RunHistory("r", events=events)
    old, new, _ = effects_of_comparison(before, after, side(around(100)), side(around(50)))
    assert (old.outcome, old.before) == ("undecided", None)
    assert (new.outcome, new.sentence.count("cannot be told")) == ("helped", 0)


@pytest.mark.parametrize(
    ("measure", "figures", "title"),
    [
        ("count", ("+2", "0", "-2 (-3 to +1)"), "Env"),
        ("phase_growth", ("+2 B", "+0 B", "-2 B (-3 B to +1 B)"), "app.Env"),
    ],
)
def test_figures_of_an_effect_are_written_in_its_unit(
    measure: str, figures: tuple[str, str, str], title: str
) -> None:
    told = {
        "measure": measure, "subject": "app.Env", "before": {"estimate": 2.0}, "after": {"estimate": 0.0},
        "difference": {"estimate": -2.0, "low": -3.0, "high": 1.0},
    }  # fmt: skip
    assert effect_figures(told) == figures
    assert effect_title(told) == title
    unmeasured = {**told, "after": None, "difference": None, "subject": None}
    assert effect_figures(unmeasured) == (figures[0], "", "")
    assert effect_title(unmeasured) == "the run"

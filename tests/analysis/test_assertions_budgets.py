"""Budgets: fine up to normal, a leak from leak on; of a phase, of each generation, and of the run as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from builder import (
    EPISODE,
    EVALUATE,
    EVOLVE,
    GB,
    GIB,
    MIB,
    TRAIN,
    Leak,
    Training,
    crashed_at_13,
    kept_environments,
)
from pieces import steps_history

from leakline.analysis import RunHistory, examine
from leakline.analysis.assertions.checks import Readings, check, check_assertions
from leakline.analysis.assertions.declared_limits import (
    Amounts,
    _against,
    added,
    assertion_title,
    budget_sentence,
    declared_budgets,
    kept_amounts,
)
from leakline.analysis.assessment import _alone, _explained_by, with_budgets
from leakline.analysis.attribution.candidates import NOWHERE, Place
from leakline.analysis.attribution.causes import Cause
from leakline.analysis.results import Assertion, AssertionCheck, Interval
from leakline.analysis.statistics.memory_evidence import Rise, Scale
from leakline.analysis.statistics.trend import Slope
from leakline.analysis.timeline_analysis import Assessed, TimelineAnalysis
from leakline.snapshot import Event


def event(name: str, normal: Any = None, leak: Any = None) -> Event:
    return Event(0, 0.0, "budget", name, data={"normal_bytes": normal, "leak_bytes": leak})


Row = tuple[str, int | None, str | None]


def budgeted(history: RunHistory, *events: Event) -> RunHistory:
    return replace(history, events=(*history.events, *events))


def of_readings(
    levels: list[int], *events: Event, baseline: int | None = None, **more: Any
) -> RunHistory:
    """Private memory at the end of each generation, exact to the byte, with a reading before the first."""
    rows: list[Row] = [] if baseline is None else [("baseline", None, None)]
    rows += [("generation_end", g, None) for g in range(len(levels))]
    readings = levels if baseline is None else [baseline, *levels]
    return steps_history(rows, {"process.anon_bytes": readings}, events=events, **more)


def of_phase(kept: list[int], *events: Event, path: str = "train") -> RunHistory:
    """What one phase keeps in each generation, exact to the byte, where nothing else moves."""
    level, levels = GIB, [GIB]
    rows: list[Row] = [("baseline", None, None)]
    for generation, amount in enumerate(kept):
        level += amount
        rows += [("phase_end", generation, path), ("generation_end", generation, None)]
        levels += [level, level]
    return steps_history(rows, {"process.anon_bytes": levels}, events=events)


def checked(history: RunHistory) -> AssertionCheck:
    (check,) = examine(history).assertions
    return check


@pytest.mark.parametrize(
    ("kept", "state"),
    [
        (GB, "holds"), (GB + 1, "above_normal"), (5 * GB - 1, "above_normal"), (5 * GB, "broken"),
        (-GB, "holds"),
    ],
)  # fmt: skip
def test_report_004_s_bounds_of_a_phase_are_exact(kept: int, state: str) -> None:
    """After training up to 1 GB is normal and from 5 GB on it is a leak."""
    check = checked(of_phase([0, kept], event("train", GB, 5 * GB)))
    assert (check.metric, check.state, check.worst, check.worst_generation) == (
        "phase.kept_bytes", state, kept, 1,
    )  # fmt: skip
    assert check.outside == int(state != "holds")


def test_more_than_normal_is_shown_and_is_no_leak() -> None:
    verdict = examine(of_phase([0, 2 * GB, 0, 0, 0, 0, 0, 0], event("train", GB, 5 * GB)))
    (check,) = verdict.assertions
    assert check.state == "above_normal"
    assert check.sentence == (
        "train kept at most 1.86 GiB in one generation (generation 1): more than the 953.67 MiB that are fine, "
        "less than the 4.66 GiB of a leak; beyond in 1 of 7 generations."
    )
    assert not any(f.status in ("suspected", "confirmed") for f in verdict.findings)


def test_from_a_leak_on_it_is_a_finding_too_and_one_byte_less_is_none() -> None:
    bounds = event("train", GB, 5 * GB)
    broken = examine(of_phase([0, 5 * GB], bounds))
    assert broken.status == "suspected"
    assert any("its budget is 4.66 GiB" in line for line in broken.findings[0].evidence)
    assert examine(of_phase([0, 5 * GB - 1], bounds)).status != "suspected"


def test_the_generation_a_phase_first_runs_in_is_not_judged() -> None:
    check = checked(of_phase([9 * GB, 0, 0], event("train", GB, 5 * GB)))
    assert (check.state, check.judged) == ("holds", 2)
    check = checked(of_phase([9 * GB], event("train", GB, 5 * GB)))
    assert (check.state, check.worst) == ("not_measured", None)
    assert check.sentence == "train ran in one generation; it is judged from the second on."


def test_a_phase_that_never_ran_is_not_within_its_budget() -> None:
    check = checked(of_phase([0, 0], event("evolve", GB)))
    assert (check.state, check.sentence) == ("not_measured", "evolve never ran.")
    # A nested one ran, if only once; and no run is judged that has not begun.
    nested = checked(of_phase([0], event("train", GB), path="evaluate/train"))
    assert nested.sentence == "train ran in one generation; it is judged from the second on."
    (run,) = check_assertions(RunHistory("r", events=(event("run", GB),)), [])
    assert (run.state, run.sentence) == ("not_measured", "No generation to judge yet.")


@pytest.mark.parametrize("name", ["evaluate/run_episode", "run_episode", "evaluate"])
def test_a_nested_phase_has_a_budget_by_its_path_or_its_name(name: str) -> None:
    history = of_phase([0, 6 * GB], event(name, GB, 5 * GB), path="evaluate/run_episode")
    verdict = examine(history)
    assert (verdict.assertions[0].state, verdict.status) == ("broken", "suspected")


@pytest.mark.parametrize(
    ("growth", "state"),
    [
        (35 * GB, "holds"), (35 * GB + 1, "above_normal"), (100 * GB - 1, "above_normal"),
        (100 * GB, "broken"),
    ],
)  # fmt: skip
def test_report_004_s_bounds_of_the_whole_run_are_exact(growth: int, state: str) -> None:
    """25 to 35 GB in all are fine, 100 GB or more are a leak, from the reading before the first generation on."""
    levels = [4 * GB + growth * g // 10 for g in range(1, 11)]
    verdict = examine(of_readings(levels, event("run", 35 * GB, 100 * GB), baseline=4 * GB))
    (check,) = verdict.assertions
    assert (check.metric, check.state) == ("run.kept_bytes", state)
    assert check.measured is not None and check.measured.estimate == growth
    assert check.worst_generation == 9


def test_a_run_over_its_budget_is_suspected_even_where_it_grows_no_more() -> None:
    """One step of 100 GB and level from there: no trend would call that a leak, the budget does."""
    bounds = event("run", 35 * GB, 100 * GB)
    levels = [4 * GB] * 3 + [104 * GB] * 20
    broken = examine(of_readings(levels, bounds, baseline=4 * GB))
    assert broken.status == "suspected"
    (finding,) = [f for f in broken.findings if f.status == "suspected"]
    assert finding.evidence[0] == (
        "Memory has grown by 93.13 GiB since the run began; its budget is 93.13 GiB."
    )
    assert finding.started_at_generation is not None
    assert finding.started_at_generation.estimate == 3
    fine = examine(of_readings([v - 1 for v in levels], bounds, baseline=4 * GB))
    assert fine.status == "ok"
    # As flat as the other, of which a finding says that it leaks.
    assert broken.settled_at_generation is None
    assert fine.settled_at_generation is not None
    assert fine.settled_at_generation.estimate == 3
    assert fine.assertions[0].state == "above_normal"


def test_the_run_s_budget_joins_the_leak_that_breaks_it() -> None:
    verdict = examine(budgeted(crashed_at_13(0.5), event("run", 35 * GB, 100 * GB)))
    told = [f for f in verdict.findings if any("since the run began" in e for e in f.evidence)]
    assert [f.phase for f in told] == [EVALUATE]
    assert verdict.assertions[0].state == "broken"


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (3 * GB // 2, "holds"), (3 * GB // 2 + 1, "above_normal"), (5 * GB - 1, "above_normal"),
        (5 * GB, "broken"),
    ],
)  # fmt: skip
def test_report_004_s_bounds_of_each_generation_are_exact(step: int, state: str) -> None:
    """0.5 to 1.5 GB per generation are normal, 5 GB and more are a leak; the first generation is not judged."""
    levels = [20 * GB, 20 * GB, 20 * GB, 20 * GB + step]
    verdict = examine(
        of_readings(levels, event("generation", 3 * GB // 2, 5 * GB), baseline=4 * GB)
    )
    (check,) = verdict.assertions
    assert (check.metric, check.state, check.worst, check.worst_generation) == (
        "generation.kept_bytes", state, step, 3,
    )  # fmt: skip
    assert (verdict.status == "suspected") is (state == "broken")


def test_a_leak_that_breaks_several_budgets_tells_each() -> None:
    leak = kept_environments(40 * MIB)
    events = [event("run", None, 200 * MIB), event("generation", None, 32 * MIB)]
    verdict = examine(budgeted(Training(leaks=(leak,)).history(), *events))
    told = verdict.findings[0].evidence[0]
    assert "since the run began; its budget is 200.00 MiB." in told
    assert "in one generation; its budget is 32.00 MiB." in told


def test_a_run_may_call_its_generation_by_its_own_word() -> None:
    history = of_readings([GIB, GIB, 3 * GIB], event("epoch", GIB), unit="epoch")
    check = checked(history)
    assert (check.metric, check.state) == ("generation.kept_bytes", "above_normal")
    assert check.sentence == (
        "The run kept at most 2.00 GiB in one epoch (epoch 2): more than the 1.00 GiB that are fine; "
        "beyond in 1 of 2 epochs."
    )


def test_budgets_of_a_healthy_training_are_kept() -> None:
    events = [
        event(EVALUATE, 16 * MIB, 64 * MIB), event(EPISODE, 16 * MIB), event(TRAIN, 16 * MIB),
        event("generation", 16 * MIB, 64 * MIB), event("run", 128 * MIB, GIB),
    ]  # fmt: skip
    verdict = examine(budgeted(Training(seed=3).history(), *events))
    assert {c.state for c in verdict.assertions} == {"holds"}
    assert verdict.status == "ok"


def test_budgets_of_a_leaking_training_tell_where() -> None:
    leak = kept_environments(40 * MIB)
    events = [event(name, 16 * MIB, 32 * MIB) for name in (EVALUATE, TRAIN, EVOLVE)]
    verdict = examine(budgeted(Training(leaks=(leak,)).history(), *events))
    assert {c.name: c.state for c in verdict.assertions} == {
        EVALUATE: "broken", TRAIN: "holds", EVOLVE: "holds",
    }  # fmt: skip


def test_what_is_no_budget_breaks_no_verdict() -> None:
    wrong = [
        event("train"), event("train", "1 GiB", None), event("train", -1, None), event("train", True, None),
        event("train", None, float("inf")), event("train", 10**400), Event(0, 0.0, "budget", "train"),
    ]  # fmt: skip
    assert examine(of_phase([0, 0], *wrong)).assertions == ()


def test_a_broken_budget_does_not_keep_a_leak_from_being_confirmed() -> None:
    history = Training(generations=45, leaks=(Leak(TRAIN, 20 * MIB),)).history()
    assert examine(history).status == "confirmed"
    assert examine(budgeted(history, event("run", leak=GIB // 2))).status == "confirmed"


RUN = RunHistory("r")


def budget(
    scope: str = "phase", *, normal: float | None = 100, leak: float | None = 200, name: str = "train"
) -> Assertion:  # fmt: skip
    phase = name if scope == "phase" else None
    return Assertion("budget", name, f"{scope}.kept_bytes", phase, None, normal, leak)


class _Timeline(SimpleNamespace):
    """As long as its generations are many."""

    def __len__(self) -> int:
        return len(self.generations)


def study(
    levels: Sequence[float] = (), *, booked: Sequence[Mapping[str, float]] = (), baseline: Sequence[float | None] = (),
    generations: Sequence[int] = (), history: RunHistory = RUN, name: str = "rank 0 main",
) -> TimelineAnalysis:  # fmt: skip
    """Private memory at the end of each generation, and what its phases kept; ``baseline``: read before the first."""
    timeline = _Timeline(
        generations=tuple(generations or range(max(len(levels), len(booked)))), private=list(levels),
        private_rows=[*baseline, *levels], baseline_row=0 if baseline else None, name=name,
    )  # fmt: skip
    told = SimpleNamespace(
        timeline=timeline, booked=booked, history=history, scale=lambda end: Scale(1_000)
    )
    return cast(TimelineAnalysis, told)


@pytest.mark.parametrize(
    ("normal", "leak", "amount", "state"),
    [
        (None, 200, 199, "holds"), (100, None, 9_999, "above_normal"), (0, None, 0, "holds"), (None, 0, 0, "broken"),
        # Where both bounds are one, that is a leak.
        (100, 100, 100, "broken"),
    ],
)  # fmt: skip
def test_up_to_normal_is_fine_and_from_leak_on_is_a_leak(
    normal: float | None, leak: float | None, amount: float, state: str
) -> None:
    assert budget(normal=normal, leak=leak).state_of(amount) == state


def test_a_budget_has_at_least_one_bound_that_is_an_amount() -> None:
    bounds = [(0, None), (None, 0), (None, None), (-1, "2")]
    histories = [RunHistory("r", events=(event("train", *each),)) for each in bounds]
    assert [bool(declared_budgets(each)) for each in histories] == [True, True, False, False]


def test_the_newest_forty_names_count_each_with_its_newest_bounds() -> None:
    events = (*(event(f"p{i}", i) for i in range(45)), event("p44", 7))
    found = declared_budgets(RunHistory("r", events=events))
    assert [(b.name, b.high) for b in found] == [
        *((f"p{i}", i) for i in range(5, 44)),
        ("p44", 7),
    ]


@pytest.mark.parametrize(
    ("name", "phases", "scope"),
    [
        ("run", (), "run"), ("generation", (), "generation"), ("episode", (), "generation"), ("train", (), "phase"),
        # A phase that is called so goes first, wherever it lies.
        ("run", ("run",), "phase"), ("generation", ("train/generation",), "phase"),
        ("run", ("train/run_episode",), "run"),
    ],
)  # fmt: skip
def test_the_run_and_its_generations_have_their_names(
    name: str, phases: tuple[str, ...], scope: str
) -> None:
    history = RunHistory("r", unit="episode", phases=phases, events=(event(name, 5),))
    assert declared_budgets(history)[0].metric == f"{scope}.kept_bytes"


def test_a_phase_is_judged_from_the_second_generation_that_it_ran_in() -> None:
    booked: list[dict[str, float]] = [
        {"evolve": 1}, {"train": 90}, {"evolve": 2}, {"train": 5, "train/fit": 6}, {"train/fit": 7}, {"train": 8},
    ]  # fmt: skip
    assert kept_amounts(study(booked=booked), budget(), 6) == [(3, 11), (4, 7), (5, 8)]
    assert kept_amounts(study(booked=booked), budget(), 5) == [(3, 11), (4, 7)]
    assert kept_amounts(study(booked=booked), budget(name="fit"), 6) == [(4, 7)]
    assert kept_amounts(study(booked=booked), budget(name="add"), 6) == []


def test_the_run_has_grown_since_its_baseline_or_the_end_of_its_first_generation() -> None:
    levels = [110.0, 150.0, 130.0]
    assert kept_amounts(study(levels, baseline=[100]), budget("run"), 3) == [
        (0, 10),
        (1, 50),
        (2, 30),
    ]
    assert kept_amounts(study(levels, baseline=[100]), budget("run"), 2) == [(0, 10), (1, 50)]
    assert kept_amounts(study(levels), budget("run"), 3) == [(0, 0), (1, 40), (2, 20)]
    assert kept_amounts(study(levels, baseline=[None]), budget("run"), 3) == [
        (0, 0),
        (1, 40),
        (2, 20),
    ]
    assert kept_amounts(study(generations=[0, 1]), budget("run"), 2) == []


def test_a_rise_over_a_lost_generation_is_no_amount_of_one() -> None:
    levels = [100.0, 103.0, 110.0, 150.0, 151.0]
    lost = study(levels, generations=[0, 1, 2, 4, 5])
    assert kept_amounts(lost, budget("generation"), 5) == [(1, 3), (2, 7), (5, 1)]
    # Where all are a thousand apart, that is one.
    apart = study(levels, generations=[0, 1000, 2000, 3000, 4000])
    assert kept_amounts(apart, budget("generation"), 4) == [(1000, 3), (2000, 7), (3000, 40)]


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        # A process that has ended keeps what it had grown by,
        ("run", [(0, 1), (1, 12), (2, 23), (3, 24)]),
        # and gains nothing more.
        ("generation", [(0, 1), (1, 12), (2, 23), (3, 4)]),
    ],
)
def test_processes_are_added_up_by_generation(scope: str, expected: Amounts) -> None:
    assert (
        added([[(0, 1), (1, 2), (2, 3), (3, 4)], [(1, 10), (2, 20)]], f"{scope}.kept_bytes")
        == expected
    )


def test_the_worst_of_those_that_are_alike_is_the_first() -> None:
    assert _against(budget(normal=None), 50) == "below the 200 B of a leak"
    amounts: Amounts = [(2, 50), (3, 200), (4, 200), (5, 101), (6, 100)]
    found = check(RUN, budget(), Readings(amounts, 5))
    assert (found.worst, found.worst_generation, found.state) == (200, 3, "broken")
    assert (found.measured, found.outside, found.judged) == (Interval(100, 100, 100), 3, 5)


@pytest.mark.parametrize(
    ("scope", "amounts", "beyond", "said"),
    [
        ("phase", [(1, 50)], 0, "train kept at most 50 B in one generation (generation 1): fine up to 100 B."),
        ("generation", [(1, 250), (2, 50)], 1, "The run kept at most 250 B in one generation (generation 1): "
            "a leak from 200 B on; beyond in 1 of 2 generations."),
        ("run", [(1, 250), (2, 70), (3, 60)], 1, "Memory has grown by 60 B since the run began, and by 250 B "
            "at generation 1: a leak from 200 B on."),
        ("run", [(1, 50), (2, 60)], 0, "Memory has grown by 60 B since the run began: fine up to 100 B."),
    ],
)  # fmt: skip
def test_the_sentence_has_the_worst_and_how_often_it_was_beyond(
    scope: str, amounts: Amounts, beyond: int, said: str
) -> None:
    assert budget_sentence(budget(scope), RUN, amounts, beyond) == said


def cause_of(phase: str | None, rate: float, note: str | None = None) -> Assessed:
    place = NOWHERE if phase is None else Place(phase, phase, 1.0)
    cause = Cause("native", place, (), None, Slope(rate, 0.0, rate, 9))
    return Assessed(cause, None, 10, Rise(), frozenset({"counts"}), Scale(1_000), "rank 0 main", note=note)  # fmt: skip


@pytest.mark.parametrize(
    ("scope", "found", "index"),
    [
        # Twenty generations ahead, a twentieth of 1,000 bytes: 2.5 a generation matter.
        ("phase", [cause_of("train", 2.5)], 0), ("phase", [cause_of("train", 2.4)], None),
        ("phase", [cause_of("evolve", 9), cause_of("train", 3), cause_of("train", 9)], 1),
        ("generation", [cause_of("evolve", 2.4), cause_of(None, 3)], 1), ("run", [cause_of("evolve", 9)], 0),
        ("phase", [cause_of(None, 9)], None),
    ],
)  # fmt: skip
def test_a_budget_is_broken_by_the_first_cause_that_matters_in_its_phase(
    scope: str, found: list[Assessed], index: int | None
) -> None:
    assert _explained_by(budget(scope), found) == index


def test_a_broken_budget_that_nothing_explains_is_a_finding_of_its_own() -> None:
    amounts: Amounts = [(3, 100), (4, 200), (5, 300), (6, 400)]
    of_phase = _alone(study([1.0] * 7), 7, budget(name="train/fit"), amounts, "told")
    assert of_phase.cause.place == Place("train", "train/fit", 1.0)
    assert of_phase.cause.rate == Slope(400, 0.0, 400, 1)
    assert (of_phase.start, of_phase.window, of_phase.witnesses) == (
        (6, 6, 6), 1.0, frozenset({"budget"}),
    )  # fmt: skip
    of_run = _alone(study([1.0] * 7), 7, budget("run"), amounts, "told")
    # On average over the generations judged, since it first was beyond.
    assert (of_run.cause.rate.estimate, of_run.start) == (100, (4, 4, 4))
    assert (of_run.cause.place, of_run.note) == (NOWHERE, "told")
    of_each = _alone(study([1.0] * 7), 7, budget("generation"), amounts, "told")
    assert (of_each.cause.rate.estimate, of_each.start) == (400, (6, 6, 6))


def judged(
    levels: Sequence[float], found: Sequence[Assessed], end: int, **bounds: Any
) -> list[Assessed]:
    history = RunHistory("r", events=(event("generation", **bounds),))
    return with_budgets(study(levels, history=history), end, found)


def test_only_the_newest_generation_breaks_a_budget_now() -> None:
    levels = [1_000.0, 1_300.0, 1_305.0]
    assert judged(levels, [], 3, leak=200) == []
    assert len(judged(levels, [], 2, leak=200)) == 1
    # The newest one was lost with the one before it: nothing is known of it alone.
    history = RunHistory("r", events=(event("generation", leak=200),))
    lost = study([1_000, 1_005, 1_300, 1_900], generations=[0, 1, 2, 4], history=history)
    assert with_budgets(lost, 4, []) == []


def test_a_cause_that_explains_a_broken_budget_has_it_as_a_witness() -> None:
    said = "The run kept 300 B in one generation; its budget is 200 B."
    levels = [1_000.0, 1_005.0, 1_305.0]
    for note, told in ((None, said), ("Seen before.", f"Seen before. {said}")):
        (alone,) = judged(levels, [cause_of("train", 9, note)], 3, leak=200)
        assert (alone.note, alone.witnesses) == (told, frozenset({"counts", "budget"}))


def processes_of(
    scope: Literal["train", "run"], *kept: Sequence[float]
) -> list[tuple[str | None, float | None]]:
    history = RunHistory("r", events=(event(scope, 1, 2),))
    studies = [
        study(row, booked=[{"train": v} for v in row], name=f"rank {i} main") for i, row in enumerate(kept)
    ]  # fmt: skip
    checks = check_assertions(history, [(each, None) for each in studies])
    return [(check.process, check.measured and check.measured.estimate) for check in checks]


def test_a_phase_is_checked_in_each_process_it_ran_in_and_the_run_once() -> None:
    assert processes_of("train", [1, 2], [3, 4]) == [("rank 0 main", 2), ("rank 1 main", 4)]
    # Its second generation is the first that is judged.
    assert processes_of("train", [1, 2], [3]) == [(None, 2)]
    assert processes_of("train", [1], [3]) == [(None, None)]
    assert processes_of("run", [1, 2], [3, 7]) == [(None, 5)]


def test_eighty_checks_are_told() -> None:
    history = RunHistory("r", events=(event("train", 1), event("fit", 1)))
    studies = [study(booked=[{"train/fit": 1.0}] * 2, name=f"rank {i} main") for i in range(50)]
    assert len(check_assertions(history, [(each, None) for each in studies])) == 80


def test_a_budget_is_titled_by_what_it_is_of() -> None:
    checks = [
        {"origin": "budget", "name": "train", "metric": f"{scope}.kept_bytes", "process": None}
        for scope in ("generation", "run", "phase")
    ]
    titles = [assertion_title(each, "episode") for each in checks]
    assert titles == ["budget of each episode", "budget of the whole run", "budget of train"]

"""A budget at its bounds, what is judged by it, and who is told to break it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from leakline.analysis import RunHistory
from leakline.analysis.attribution import Cause
from leakline.analysis.budgets import (
    Amounts,
    Budget,
    Scope,
    _added,
    _against,
    _alone,
    _amounts,
    _broken,
    _checked,
    _explained_by,
    _told,
    _unmeasured,
    budget_title,
    check_budgets,
    declared_budgets,
    with_budgets,
)
from leakline.analysis.candidates import NOWHERE, Place
from leakline.analysis.evidence import Rise, Scale
from leakline.analysis.history import ProcessHistory
from leakline.analysis.study import Assessed, LaneStudy
from leakline.analysis.trend import Slope
from leakline.snapshot import Event

RUN = RunHistory("r")


def budget(
    scope: Scope = "phase", *, normal: float | None = 100, leak: float | None = 200, name: str = "train"
) -> Budget:  # fmt: skip
    return Budget(name, scope, normal, leak)


class _Lane(SimpleNamespace):
    """As long as its generations are many."""

    def __len__(self) -> int:
        return len(self.generations)


def study(
    levels: Sequence[float] = (), *, booked: Sequence[Mapping[str, float]] = (), baseline: Sequence[float | None] = (),
    generations: Sequence[int] = (), history: RunHistory = RUN, name: str = "rank 0 main",
) -> LaneStudy:  # fmt: skip
    """Private memory at the end of each generation, and what its phases kept; ``baseline``: read before the first."""
    lane = _Lane(
        generations=tuple(generations or range(max(len(levels), len(booked)))), private=list(levels),
        private_rows=[*baseline, *levels], baseline_row=0 if baseline else None, name=name,
    )  # fmt: skip
    told = SimpleNamespace(
        lane=lane, booked=booked, history=history, scale=lambda upto: Scale(1_000)
    )
    return cast(LaneStudy, told)


@pytest.mark.parametrize(
    ("normal", "leak", "amount", "state"),
    [
        (100, 200, 100, "normal"),
        (100, 200, 101, "above_normal"),
        (100, 200, 199, "above_normal"),
        (100, 200, 200, "leak"),
        (None, 200, 199, "normal"),
        (100, None, 9_999, "above_normal"),
        # Where both bounds are one, that is a leak.
        (100, 100, 100, "leak"),
        (0, None, 0, "normal"),
        (None, 0, 0, "leak"),
    ],
)
def test_up_to_normal_is_fine_and_from_leak_on_is_a_leak(
    normal: float | None, leak: float | None, amount: float, state: str
) -> None:
    assert budget(normal=normal, leak=leak).state_of(amount) == state


def event(name: str, normal: Any = None, leak: Any = None) -> Event:
    return Event(0, 0.0, "budget", name, data={"normal_bytes": normal, "leak_bytes": leak})


@pytest.mark.parametrize(
    ("normal", "leak", "found"),
    [(1, None, True), (None, 1, True), (0, None, True), (None, None, False), (-1, "2", False)],
)
def test_a_budget_has_at_least_one_bound_that_is_an_amount(
    normal: Any, leak: Any, found: bool
) -> None:
    history = RunHistory("r", events=(event("train", normal, leak),))
    assert bool(declared_budgets(history)) is found


def test_the_newest_forty_names_count_each_with_its_newest_bounds() -> None:
    events = (*(event(f"p{i}", i) for i in range(45)), event("p44", 7))
    found = declared_budgets(RunHistory("r", events=events))
    assert [b.name for b in found] == [f"p{i}" for i in range(5, 45)]
    assert found[-1].normal == 7


@pytest.mark.parametrize(
    ("name", "phases", "scope"),
    [
        ("run", (), "run"),
        ("generation", (), "generation"),
        ("episode", (), "generation"),
        ("train", (), "phase"),
        # A phase that is called so goes first, wherever it lies.
        ("run", ("run",), "phase"),
        ("generation", ("train/generation",), "phase"),
        ("run", ("train/run_episode",), "run"),
    ],
)
def test_the_run_and_its_generations_have_their_names(
    name: str, phases: tuple[str, ...], scope: str
) -> None:
    history = RunHistory("r", unit="episode", phases=phases, events=(event(name, 5),))
    assert declared_budgets(history)[0].scope == scope


def test_a_phase_is_judged_from_the_second_generation_that_it_ran_in() -> None:
    booked: list[dict[str, float]] = [
        {"evolve": 1}, {"train": 90}, {"evolve": 2}, {"train": 5, "train/fit": 6}, {"train/fit": 7}, {"train": 8},
    ]  # fmt: skip
    assert _amounts(study(booked=booked), budget(), 6) == [(3, 11), (4, 7), (5, 8)]
    assert _amounts(study(booked=booked), budget(), 5) == [(3, 11), (4, 7)]
    assert _amounts(study(booked=booked), budget(name="fit"), 6) == [(4, 7)]
    assert _amounts(study(booked=booked), budget(name="add"), 6) == []


def test_the_run_has_grown_since_its_baseline_or_the_end_of_its_first_generation() -> None:
    levels = [110.0, 150.0, 130.0]
    assert _amounts(study(levels, baseline=[100]), budget("run"), 3) == [(0, 10), (1, 50), (2, 30)]
    assert _amounts(study(levels, baseline=[100]), budget("run"), 2) == [(0, 10), (1, 50)]
    assert _amounts(study(levels), budget("run"), 3) == [(0, 0), (1, 40), (2, 20)]
    assert _amounts(study(levels, baseline=[None]), budget("run"), 3) == [(0, 0), (1, 40), (2, 20)]
    assert _amounts(study(generations=[0, 1]), budget("run"), 2) == []


def test_a_rise_over_a_lost_generation_is_no_amount_of_one() -> None:
    levels = [100.0, 103.0, 110.0, 150.0, 151.0]
    lost = study(levels, generations=[0, 1, 2, 4, 5])
    assert _amounts(lost, budget("generation"), 5) == [(1, 3), (2, 7), (5, 1)]
    # Where all are a thousand apart, that is one.
    apart = study(levels, generations=[0, 1000, 2000, 3000, 4000])
    assert _amounts(apart, budget("generation"), 4) == [(1000, 3), (2000, 7), (3000, 40)]
    assert _amounts(study([100.0]), budget("generation"), 1) == []


@pytest.mark.parametrize(
    ("scope", "added"),
    [
        # A process that has ended keeps what it had grown by,
        ("run", [(0, 1), (1, 12), (2, 23), (3, 24)]),
        # and gains nothing more.
        ("generation", [(0, 1), (1, 12), (2, 23), (3, 4)]),
    ],
)
def test_processes_are_added_up_by_generation(scope: Scope, added: Amounts) -> None:
    assert _added([[(0, 1), (1, 2), (2, 3), (3, 4)], [(1, 10), (2, 20)]], scope) == added


def test_the_worst_of_those_that_are_alike_is_the_first() -> None:
    check = _checked(RUN, budget(), [(2, 50), (3, 200), (4, 200), (5, 101), (6, 100)], None)
    assert (check.worst, check.worst_generation, check.state) == (200, 3, "leak")
    assert (check.newest, check.beyond, check.generations) == (100, 3, 5)


def test_what_was_not_measured_has_no_worst() -> None:
    check = _checked(RUN, budget(), [], "rank 1 main")
    assert (check.state, check.newest, check.worst, check.worst_generation) == (
        "not_measured", None, None, None,
    )  # fmt: skip
    assert (check.beyond, check.generations, check.process) == (0, 0, "rank 1 main")


def ran(path: str) -> RunHistory:
    process = ProcessHistory(
        "p", 0, "main", 1, [0], [0.0], [0.0], [0], [path], [""], ["phase_end"], {}
    )
    return RunHistory("r", processes=(process,))


@pytest.mark.parametrize(
    ("history", "scope", "said"),
    [
        (RUN, "run", "No generation to judge yet."),
        (RUN, "phase", "train never ran."),
        (ran("evaluate"), "phase", "train never ran."),
        (ran("evaluate/train"), "phase", "train ran in one generation; it is judged from the second on."),
    ],
)  # fmt: skip
def test_what_was_not_measured_says_why(history: RunHistory, scope: Scope, said: str) -> None:
    assert _unmeasured(history, budget(scope)) == said


@pytest.mark.parametrize(
    ("normal", "leak", "amount", "said"),
    [
        (100, 200, 200, "a leak from 200 B on"),
        (100, 200, 150, "more than the 100 B that are fine, less than the 200 B of a leak"),
        (100, None, 150, "more than the 100 B that are fine"),
        (100, 200, 50, "fine up to 100 B"),
        (None, 200, 50, "below the 200 B of a leak"),
    ],
)
def test_an_amount_is_told_against_the_bound_it_meets(
    normal: float | None, leak: float | None, amount: float, said: str
) -> None:
    assert _against(budget(normal=normal, leak=leak), amount) == said


@pytest.mark.parametrize(
    ("scope", "amounts", "worst", "beyond", "said"),
    [
        ("phase", [(1, 50)], (1, 50), 0, "train kept at most 50 B in one generation (generation 1): fine up to 100 B."),
        (
            "generation", [(1, 250), (2, 50)], (1, 250), 1,
            "The run kept at most 250 B in one generation (generation 1): a leak from 200 B on; "
            "beyond in 1 of 2 generations.",
        ),
        ("run", [(1, 50), (2, 60)], (2, 60), 0, "Memory has grown by 60 B since the run began: fine up to 100 B."),
        (
            "run", [(1, 250), (2, 70), (3, 60)], (1, 250), 1,
            "Memory has grown by 60 B since the run began, and by 250 B at generation 1: a leak from 200 B on.",
        ),
    ],
)  # fmt: skip
def test_the_sentence_has_the_worst_and_how_often_it_was_beyond(
    scope: Scope, amounts: Amounts, worst: tuple[int, float], beyond: int, said: str
) -> None:
    assert _told(RUN, budget(scope), amounts, worst, beyond) == said


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        ("run", "Memory has grown by 300 B since the run began; its budget is 200 B."),
        ("generation", "The run kept 300 B in one generation; its budget is 200 B."),
        ("phase", "train kept 300 B in one generation; its budget is 200 B."),
    ],
)
def test_a_broken_budget_is_told_with_what_was_allowed(scope: Scope, said: str) -> None:
    assert _broken(RUN, budget(scope), 300) == said


def cause_of(phase: str | None, rate: float, note: str | None = None) -> Assessed:
    place = NOWHERE if phase is None else Place(phase, phase, 1.0)
    cause = Cause("native", place, (), None, Slope(rate, 0.0, rate, 9))
    return Assessed(cause, None, 10, Rise(), frozenset({"counts"}), Scale(1_000), "rank 0 main", note=note)  # fmt: skip


@pytest.mark.parametrize(
    ("scope", "found", "index"),
    [
        # Twenty generations ahead, a twentieth of 1,000 bytes: 2.5 a generation matter.
        ("phase", [cause_of("train", 2.5)], 0),
        ("phase", [cause_of("train", 2.4)], None),
        ("phase", [cause_of("evolve", 9), cause_of("train", 3), cause_of("train", 9)], 1),
        ("generation", [cause_of("evolve", 2.4), cause_of(None, 3)], 1),
        ("run", [cause_of("evolve", 9)], 0),
        ("phase", [cause_of(None, 9)], None),
    ],
)
def test_a_budget_is_broken_by_the_first_cause_that_matters_in_its_phase(
    scope: Scope, found: list[Assessed], index: int | None
) -> None:
    assert _explained_by(budget(scope), found) == index


def test_a_broken_budget_that_nothing_explains_is_a_finding_of_its_own() -> None:
    amounts: Amounts = [(3, 100), (4, 200), (5, 300), (6, 400)]
    of_phase = _alone(study([1.0] * 7), 7, budget(name="train/fit"), amounts, "told")
    assert of_phase.cause.place == Place("train", "train/fit", 1.0)
    assert of_phase.cause.rate == Slope(400, 0.0, 400, 1)
    assert (of_phase.start, of_phase.window, of_phase.witnesses) == (
        (6, 6, 6),
        1.0,
        frozenset({"budget"}),
    )
    of_run = _alone(study([1.0] * 7), 7, budget("run"), amounts, "told")
    # On average over the generations judged, since it first was beyond.
    assert (of_run.cause.rate.estimate, of_run.start) == (100, (4, 4, 4))
    assert (of_run.cause.place, of_run.note) == (NOWHERE, "told")
    of_each = _alone(study([1.0] * 7), 7, budget("generation"), amounts, "told")
    assert (of_each.cause.rate.estimate, of_each.start) == (400, (6, 6, 6))


def judged(
    levels: Sequence[float], found: Sequence[Assessed], upto: int, **bounds: Any
) -> list[Assessed]:
    history = RunHistory("r", events=(event("generation", **bounds),))
    return with_budgets(study(levels, history=history), upto, found)


@pytest.mark.parametrize(
    ("newest", "leak", "broken"), [(199, 200, False), (200, 200, True), (9_999, None, False)]
)
def test_a_generation_breaks_its_budget_from_the_leak_on(
    newest: float, leak: float | None, broken: bool
) -> None:
    found = judged([1_000, 1_005, 1_005 + newest], [], 3, normal=1, leak=leak)
    assert len(found) == broken


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
    (alone,) = judged(levels, [cause_of("train", 9)], 3, leak=200)
    assert (alone.note, alone.witnesses) == (said, frozenset({"counts", "budget"}))
    (noted,) = judged(levels, [cause_of("train", 9, "Seen before.")], 3, leak=200)
    assert noted.note == f"Seen before. {said}"


def processes_of(
    scope: Literal["train", "run"], *kept: Sequence[float]
) -> list[tuple[str | None, float | None]]:
    history = RunHistory("r", events=(event(scope, 1, 2),))
    studies = [
        study(row, booked=[{"train": v} for v in row], name=f"rank {i} main") for i, row in enumerate(kept)
    ]  # fmt: skip
    return [(check.process, check.newest) for check in check_budgets(history, studies)]


def test_a_phase_is_checked_in_each_process_it_ran_in_and_the_run_once() -> None:
    assert processes_of("train", [1, 2], [3, 4]) == [("rank 0 main", 2), ("rank 1 main", 4)]
    # Its second generation is the first that is judged.
    assert processes_of("train", [1, 2], [3]) == [(None, 2)]
    assert processes_of("train", [1], [3]) == [(None, None)]
    assert processes_of("run", [1, 2], [3, 7]) == [(None, 5)]


def test_eighty_checks_are_told() -> None:
    history = RunHistory("r", events=tuple(event(name, 1) for name in ("train", "fit")))
    booked = [{"train/fit": 1.0}] * 2
    studies = [study(booked=booked, name=f"rank {i} main") for i in range(50)]
    assert len(check_budgets(history, studies)) == 80


@pytest.mark.parametrize(
    ("scope", "title"),
    [("generation", "each episode"), ("run", "the whole run"), ("phase", "train")],
)
def test_a_budget_is_titled_by_what_it_is_of(scope: str, title: str) -> None:
    assert budget_title("train", scope, "episode") == title

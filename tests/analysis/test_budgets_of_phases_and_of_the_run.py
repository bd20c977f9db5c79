"""Budgets: fine up to normal, a leak from leak on; of a phase, of each generation, and of the run as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builder import EPISODE, EVALUATE, EVOLVE, GIB, MIB, TRAIN, Leak, Training, kept_environments
from test_promises_of_a_fix_are_checked import crashed_at_13

from leakline.analysis import RunHistory, examine
from leakline.analysis.history import ProcessHistory
from leakline.analysis.results import BudgetCheck
from leakline.snapshot import Event

GB = 10**9


def budget(name: str, normal: Any = None, leak: Any = None) -> Event:
    return Event(0, 0.0, "budget", name, data={"normal_bytes": normal, "leak_bytes": leak})


def with_budgets(history: RunHistory, *events: Event) -> RunHistory:
    return replace(history, events=(*history.events, *events))


def of_readings(
    levels: list[int], *events: Event, baseline: int | None = None, rank: int = 0,
    unit: str = "generation", phases: tuple[str, ...] = (),
) -> RunHistory:  # fmt: skip
    """Private memory at the end of each generation, exact to the byte, with a reading before the first."""
    readings = levels if baseline is None else [baseline, *levels]
    n, before = len(readings), len(readings) - len(levels)
    process = ProcessHistory(
        f"p{rank}", rank, "main", 1, range(n), [60.0 * i for i in range(n)], [60.0 * i for i in range(n)],
        [*([None] * before), *range(len(levels))], [None] * n, [""] * n,
        [*(["baseline"] * before), *(["generation_end"] * len(levels))], {"process.anon_bytes": readings},
    )  # fmt: skip
    return RunHistory("r", unit=unit, processes=(process,), events=events, phases=phases)


def of_phase(kept: list[int], *events: Event, path: str = "train") -> RunHistory:
    """What one phase keeps in each generation, exact to the byte, where nothing else moves."""
    level = GIB
    rows: list[tuple[int | None, str | None, str, int]] = [(None, None, "baseline", level)]
    for generation, amount in enumerate(kept):
        level += amount
        rows += [
            (generation, path, "phase_end", level),
            (generation, None, "generation_end", level),
        ]
    n = len(rows)
    process = ProcessHistory(
        "p", 0, "main", 1, range(n), [60.0 * i for i in range(n)], [60.0 * i for i in range(n)],
        [r[0] for r in rows], [r[1] for r in rows], [""] * n, [r[2] for r in rows],
        {"process.anon_bytes": [r[3] for r in rows]},
    )  # fmt: skip
    return RunHistory("r", processes=(process,), events=events)


def checked(history: RunHistory) -> BudgetCheck:
    (check,) = examine(history).budgets
    return check


@pytest.mark.parametrize(
    ("kept", "state"),
    [
        (GB, "normal"), (GB + 1, "above_normal"), (5 * GB - 1, "above_normal"), (5 * GB, "leak"),
        (-GB, "normal"),
    ],
)  # fmt: skip
def test_report_004_s_bounds_of_a_phase_are_exact(kept: int, state: str) -> None:
    """After training up to 1 GB is normal and from 5 GB on it is a leak."""
    check = checked(of_phase([0, kept], budget("train", GB, 5 * GB)))
    assert (check.scope, check.state, check.worst, check.worst_generation) == (
        "phase", state, kept, 1,
    )  # fmt: skip
    assert check.beyond == int(state != "normal")


def test_more_than_normal_is_shown_and_is_no_leak() -> None:
    verdict = examine(of_phase([0, 2 * GB, 0, 0, 0, 0, 0, 0], budget("train", GB, 5 * GB)))
    (check,) = verdict.budgets
    assert check.state == "above_normal"
    assert check.sentence == (
        "train kept at most 1.86 GiB in one generation (generation 1): more than the 953.67 MiB that are fine, "
        "less than the 4.66 GiB of a leak; beyond in 1 of 7 generations."
    )
    assert not any(f.status in ("suspected", "confirmed") for f in verdict.findings)


def test_from_a_leak_on_it_is_a_finding_too_and_one_byte_less_is_none() -> None:
    bounds = budget("train", GB, 5 * GB)
    broken = examine(of_phase([0, 5 * GB], bounds))
    assert broken.status == "suspected"
    assert any("its budget is 4.66 GiB" in line for line in broken.findings[0].evidence)
    assert examine(of_phase([0, 5 * GB - 1], bounds)).status != "suspected"


def test_the_generation_a_phase_first_runs_in_is_not_judged() -> None:
    check = checked(of_phase([9 * GB, 0, 0], budget("train", GB, 5 * GB)))
    assert (check.state, check.generations) == ("normal", 2)
    check = checked(of_phase([9 * GB], budget("train", GB, 5 * GB)))
    assert (check.state, check.worst) == ("not_measured", None)
    assert check.sentence == "train ran in one generation; it is judged from the second on."


def test_a_phase_that_never_ran_is_not_within_its_budget() -> None:
    check = checked(of_phase([0, 0], budget("evolve", GB)))
    assert (check.state, check.sentence) == ("not_measured", "evolve never ran.")


def test_a_nested_phase_has_a_budget_by_its_path_or_its_name() -> None:
    for name in ("evaluate/run_episode", "run_episode", "evaluate"):
        history = of_phase([0, 6 * GB], budget(name, GB, 5 * GB), path="evaluate/run_episode")
        verdict = examine(history)
        assert verdict.budgets[0].state == "leak"
        assert verdict.status == "suspected"


@pytest.mark.parametrize(
    ("growth", "state"),
    [
        (35 * GB, "normal"), (35 * GB + 1, "above_normal"), (100 * GB - 1, "above_normal"),
        (100 * GB, "leak"),
    ],
)  # fmt: skip
def test_report_004_s_bounds_of_the_whole_run_are_exact(growth: int, state: str) -> None:
    """25 to 35 GB in all are fine, 100 GB or more are a leak, from the reading before the first generation on."""
    levels = [4 * GB + growth * g // 10 for g in range(1, 11)]
    verdict = examine(of_readings(levels, budget("run", 35 * GB, 100 * GB), baseline=4 * GB))
    (check,) = verdict.budgets
    assert (check.scope, check.state, check.newest) == ("run", state, growth)
    assert check.worst_generation == 9


def test_a_run_over_its_budget_is_suspected_even_where_it_grows_no_more() -> None:
    """One step of 100 GB and level from there: no trend would call that a leak, the budget does."""
    bounds = budget("run", 35 * GB, 100 * GB)
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
    assert fine.budgets[0].state == "above_normal"


def test_the_run_s_budget_joins_the_leak_that_breaks_it() -> None:
    verdict = examine(with_budgets(crashed_at_13(0.5), budget("run", 35 * GB, 100 * GB)))
    told = [f for f in verdict.findings if any("since the run began" in e for e in f.evidence)]
    assert [f.phase for f in told] == [EVALUATE]
    assert verdict.budgets[0].state == "leak"


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (3 * GB // 2, "normal"), (3 * GB // 2 + 1, "above_normal"), (5 * GB - 1, "above_normal"),
        (5 * GB, "leak"),
    ],
)  # fmt: skip
def test_report_004_s_bounds_of_each_generation_are_exact(step: int, state: str) -> None:
    """0.5 to 1.5 GB per generation are normal, 5 GB and more are a leak; the first generation is not judged."""
    levels = [20 * GB, 20 * GB, 20 * GB, 20 * GB + step]
    verdict = examine(
        of_readings(levels, budget("generation", 3 * GB // 2, 5 * GB), baseline=4 * GB)
    )
    (check,) = verdict.budgets
    assert (check.scope, check.state, check.worst, check.worst_generation) == (
        "generation", state, step, 3,
    )  # fmt: skip
    assert (verdict.status == "suspected") is (state == "leak")


def test_a_leak_that_breaks_several_budgets_tells_each() -> None:
    leak = kept_environments(40 * MIB)
    events = [budget("run", None, 200 * MIB), budget("generation", None, 32 * MIB)]
    verdict = examine(with_budgets(Training(leaks=(leak,)).history(), *events))
    told = verdict.findings[0].evidence[0]
    assert "since the run began; its budget is 200.00 MiB." in told
    assert "in one generation; its budget is 32.00 MiB." in told


def test_a_run_may_call_its_generation_by_its_own_word() -> None:
    history = of_readings([GIB, GIB, 3 * GIB], budget("epoch", GIB), unit="epoch")
    check = checked(history)
    assert (check.scope, check.state) == ("generation", "above_normal")
    assert check.sentence == (
        "The run kept at most 2.00 GiB in one epoch (epoch 2): more than the 1.00 GiB that are fine; "
        "beyond in 1 of 2 epochs."
    )


def test_a_phase_called_run_goes_before_the_run() -> None:
    assert checked(of_phase([0, 2 * GB], budget("run", GB), path="run")).scope == "phase"
    assert checked(of_readings([1, 2], budget("run", GB), phases=("run",))).scope == "phase"


def test_the_processes_of_a_run_are_added_up() -> None:
    one, two = of_readings([GB, 3 * GB]), of_readings([GB, 4 * GB], rank=1)
    history = replace(
        one, processes=(*one.processes, *two.processes),
        events=(budget("run", 4 * GB), budget("generation", 4 * GB)),
    )  # fmt: skip
    found = examine(history).budgets
    assert [(c.scope, c.worst, c.state) for c in found] == [
        ("run", 5 * GB, "above_normal"), ("generation", 5 * GB, "above_normal"),
    ]  # fmt: skip


def test_budgets_of_a_healthy_training_are_kept() -> None:
    events = [
        budget(EVALUATE, 16 * MIB, 64 * MIB), budget(EPISODE, 16 * MIB), budget(TRAIN, 16 * MIB),
        budget("generation", 16 * MIB, 64 * MIB), budget("run", 128 * MIB, GIB),
    ]  # fmt: skip
    verdict = examine(with_budgets(Training(seed=3).history(), *events))
    assert {c.state for c in verdict.budgets} == {"normal"}
    assert verdict.status == "ok"


def test_budgets_of_a_leaking_training_tell_where() -> None:
    leak = kept_environments(40 * MIB)
    events = [budget(name, 16 * MIB, 32 * MIB) for name in (EVALUATE, TRAIN, EVOLVE)]
    verdict = examine(with_budgets(Training(leaks=(leak,)).history(), *events))
    assert {c.name: c.state for c in verdict.budgets} == {
        EVALUATE: "leak", TRAIN: "normal", EVOLVE: "normal",
    }  # fmt: skip


def test_a_peak_that_went_back_is_told_beside_what_is_left() -> None:
    check = checked(of_readings([GIB, 9 * GIB, GIB], budget("run", 2 * GIB, 4 * GIB)))
    assert (check.state, check.newest) == ("leak", 0)
    assert check.sentence == (
        "Memory has grown by 0 B since the run began, and by 8.00 GiB at generation 1: "
        "a leak from 4.00 GiB on."
    )


def test_what_is_no_budget_breaks_no_verdict() -> None:
    wrong = [
        budget("train"), budget("train", "1 GiB", None), budget("train", -1, None), budget("train", True, None),
        budget("train", None, float("inf")), budget("train", 10**400), Event(0, 0.0, "budget", "train"),
    ]  # fmt: skip
    assert examine(of_phase([0, 0], *wrong)).budgets == ()


def test_the_newest_declaration_counts() -> None:
    history = of_phase([0, 2 * GB], budget("train", GB), budget("train", 3 * GB))
    assert checked(history).state == "normal"


def test_a_leak_in_one_phase_alone_breaks_no_budget_of_another() -> None:
    history = Training(leaks=(Leak(EVOLVE, 40 * MIB),)).history()
    assert checked(with_budgets(history, budget(TRAIN, 16 * MIB, 32 * MIB))).state == "normal"


def test_a_broken_budget_does_not_keep_a_leak_from_being_confirmed() -> None:
    history = Training(generations=45, leaks=(Leak(TRAIN, 20 * MIB),)).history()
    assert examine(history).status == "confirmed"
    assert examine(with_budgets(history, budget("run", leak=GIB // 2))).status == "confirmed"

"""Attempts form one run however they are numbered, and each has its own growth."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from builder import EVOLVE, MIB, TRAIN, Training, kept_environments, loss_graph

from leakline.analysis import examine
from leakline.analysis.memory.memory_by_phase import phase_accounts
from leakline.analysis.results import AttemptGrowth, GenerationSpan
from leakline.analysis.run_history import ProcessHistory, RunHistory, history_from_batches
from leakline.analysis.timeline import timelines_of
from leakline.snapshot import Batch


def together(*trainings: Training, **changes: int) -> RunHistory:
    """Return the history of these trainings in the wrong order, with changed process identities."""
    batches: list[Batch] = [
        replace(batch, process=replace(batch.process, **changes))
        for training in reversed(trainings)
        for batch in training.batches()
    ]
    return history_from_batches(trainings[0].header(), batches)


FIRST = Training(leaks=(kept_environments(),), generations=8, instance="p1", resident=900 * MIB)
# Killed at generation 7 and resumed at 6 with half of the memory; the rest ended with the process.
SECOND = Training(
    leaks=(kept_environments(),), generations=12, instance="p2", attempt=2, first_generation=6,
    resident=450 * MIB, seed=5,
)  # fmt: skip


# Attempts may or may not be numbered.
NUMBERED = pytest.mark.parametrize(
    "changes", [{}, {"attempt": 1}], ids=["numbered", "not numbered"]
)


@NUMBERED
def test_the_same_leak_in_both_attempts_is_one_finding_with_one_rate(
    changes: dict[str, int],
) -> None:
    verdict = examine(together(FIRST, SECOND, **changes))
    assert verdict.generations == 18
    active = [f for f in verdict.findings if f.status in ("suspected", "confirmed")]
    assert len(active) == 1
    rate = active[0].growth_bytes_per_generation.estimate
    # The second attempt also warms up.
    assert rate == pytest.approx(6 * MIB, rel=0.2)


@NUMBERED
def test_memory_freed_by_the_end_of_a_process_is_not_a_release(changes: dict[str, int]) -> None:
    history = together(FIRST, SECOND, **changes)
    assert examine(history).status in ("suspected", "confirmed")
    (timeline,) = timelines_of(history)
    # The drop of 400 MiB is invisible on the axis of the verdict and in the accounts by phase.
    steps = [b - a for a, b in pairwise(timeline.private)]
    assert min(steps) > -8 * MIB
    booked = phase_accounts(history)
    assert min(booked.total) > -8 * MIB
    # Resident memory is kept as read and shows the drop.
    resident = [v for v in timeline.readings("process.rss_bytes") if v is not None]
    assert min(b - a for a, b in pairwise(resident)) < -300 * MIB


@NUMBERED
def test_repeated_generations_count_once_as_in_the_later_attempt(
    changes: dict[str, int],
) -> None:
    history = together(FIRST, SECOND, **changes)
    (timeline,) = timelines_of(history)
    assert timeline.generations == tuple(range(18))
    assert [timeline.segment[row] for row in timeline.end_rows] == [0] * 6 + [1] * 12
    assert phase_accounts(history).generations == tuple(range(18))
    alone = phase_accounts(together(SECOND))
    assert phase_accounts(history).total[7:] == alone.total[1:]


def child(number: int, begins: float) -> ProcessHistory:
    (process,) = together(Training(generations=3, instance=f"c{number}")).processes
    shift = begins - process.time[0]
    return replace(process, role="child", time=[t + shift for t in process.time])


def test_successive_children_share_a_timeline() -> None:
    alone = together(FIRST)
    end = alone.processes[0].time[-1]
    children = tuple(child(n, end + 100_000 * n) for n in range(5))
    history = replace(alone, processes=(*children, *alone.processes))
    assert [timeline.name for timeline in timelines_of(history)] == ["rank 0 child", "rank 0 main"]
    assert phase_accounts(history) == phase_accounts(alone)
    assert examine(history).generations == examine(alone).generations == 8
    at_once = tuple(child(n, end + n) for n in range(3))
    names = [timeline.name for timeline in timelines_of(replace(alone, processes=at_once))]
    assert names == ["rank 0 child", "rank 0 child 2", "rank 0 child 3"]


def test_children_alone_count_their_own_generations() -> None:
    history = replace(together(FIRST), processes=(child(0, 0.0),))
    assert phase_accounts(history).generations == (0, 1, 2)


LEAKING = Training(leaks=(kept_environments(),), generations=30, instance="p1")


def resumed(generations: int, **changes: object) -> Training:
    """Return a training resumed at generation 30 by a new process with a third of the memory."""
    given = {"leaks": (), "resident": 300 * MIB, **changes}
    return replace(
        LEAKING, generations=generations, instance="p2", attempt=2, first_generation=30, seed=5, **given
    )  # fmt: skip


def test_a_run_resumed_with_a_fix_has_recovered() -> None:
    verdict = examine(together(LEAKING, resumed(16)))
    assert verdict.status == "recovered", verdict.summary
    (finding,) = [f for f in verdict.findings if f.status == "recovered"]
    assert finding.kind == "objects"
    assert verdict.oom.risk == "none"
    assert verdict.growth_bytes_per_generation is not None
    assert abs(verdict.growth_bytes_per_generation.estimate) < 2 * MIB
    assert verdict.generations == 46


def test_too_few_generations_after_a_resume_are_not_judged() -> None:
    assert examine(together(LEAKING, resumed(4))).status == "confirmed"


@pytest.mark.parametrize(
    ("changes", "which"), [({}, "attempt 2"), ({"attempt": 1}, "the newest attempt")]
)
def test_a_phase_run_only_by_an_earlier_attempt_is_ruled_out(
    changes: dict[str, int], which: str
) -> None:
    """Reports 001 and 002: whether losses were kept in a phase depends on whether each attempt ran it."""
    again = replace(SECOND, never=(TRAIN,), generations=14)
    verdict = examine(together(FIRST, again, **changes))
    reasons = {ruled.phase: ruled.reason for ruled in verdict.ruled_out}
    assert reasons[TRAIN] == f"never ran in {which}"
    assert reasons[EVOLVE] == "it leaves memory unchanged"
    # One phase that ran in both attempts, and one that ran in neither.
    both = {r.phase: r.reason for r in examine(together(FIRST, SECOND, **changes)).ruled_out}
    assert both[TRAIN] == "it leaves memory unchanged"
    neither = together(replace(FIRST, never=(TRAIN,)), again, **changes)
    assert {r.phase: r.reason for r in examine(neither).ruled_out}[TRAIN] == "never ran"


def test_the_phase_that_leaked_before_the_resume_is_blamed_and_not_ruled_out() -> None:
    first = replace(FIRST, leaks=(loss_graph(),), generations=30)
    second = replace(SECOND, leaks=(), never=(TRAIN,), first_generation=30, generations=4)
    verdict = examine(together(first, second))
    assert verdict.findings[0].phase == TRAIN
    assert TRAIN not in {ruled.phase for ruled in verdict.ruled_out}


def attempt(number: int, first: int, generations: int, mib: float) -> Training:
    return Training(
        leaks=(kept_environments(mib * MIB),) if mib else (), generations=generations, instance=f"p{number}",
        attempt=number, first_generation=first, seed=number,
    )  # fmt: skip


def attempts_of(*trainings: Training) -> tuple[AttemptGrowth, ...]:
    return examine(together(*trainings)).attempts


def test_a_run_without_a_resume_lists_no_attempts() -> None:
    assert attempts_of(attempt(1, 0, 12, 6)) == ()
    # Minutes are never repeated.
    history = together(attempt(1, 0, 8, 6), attempt(2, 0, 8, 6))
    assert examine(replace(history, unit="minute")).attempts == ()


def test_each_attempt_has_its_own_growth_rate() -> None:
    found = attempts_of(attempt(1, 0, 16, 6), attempt(2, 14, 16, 24))
    assert [each.attempt for each in found] == [1, 2]
    for each, mib in zip(found, (6, 24), strict=True):
        growth = each.growth_bytes_per_generation
        assert growth is not None
        assert growth.estimate == pytest.approx(mib * MIB, rel=0.15)
        assert growth.low < growth.estimate < growth.high


def test_repeated_generations_are_listed_by_attempt() -> None:
    found = attempts_of(attempt(1, 0, 8, 6), attempt(2, 6, 4, 6), attempt(3, 5, 12, 6))
    assert [(each.generations, each.again) for each in found] == [
        (GenerationSpan(0, 7), None), (GenerationSpan(6, 9), GenerationSpan(6, 7)),
        (GenerationSpan(5, 16), GenerationSpan(5, 9)),
    ]  # fmt: skip
    # A resume directly after the last generation repeats none.
    assert [each.again for each in attempts_of(attempt(1, 0, 8, 6), attempt(2, 8, 8, 6))] == [
        None,
        None,
    ]


def test_an_attempt_too_short_for_a_rate_has_none() -> None:
    _, second = attempts_of(attempt(1, 0, 12, 6), attempt(2, 12, 1, 6))
    assert second.growth_bytes_per_generation is None
    assert second.generations == GenerationSpan(12, 12)


def test_the_growth_of_an_attempt_is_the_sum_of_its_ranks() -> None:
    ranks = [attempt(1, 0, 12, 6), replace(attempt(1, 0, 12, 6), instance="q1", rank=1)]
    again = [attempt(2, 12, 12, 6), replace(attempt(2, 12, 1, 6), instance="q2", rank=1)]
    first, second = attempts_of(*ranks, *again)
    assert first.growth_bytes_per_generation is not None
    assert first.growth_bytes_per_generation.estimate == pytest.approx(12 * MIB, rel=0.15)
    assert second.growth_bytes_per_generation is None

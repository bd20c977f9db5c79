"""Rates and intervals as people read them, and what is said of a run that has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builder import MIB, TRAIN, Leak, Training

from leakline.analysis import examine
from leakline.analysis.wording import (
    entries_in,
    format_count_change,
    format_range,
    format_rate,
    in_brackets,
    processes_told,
)


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (16.0, "16 per generation"), (1.0, "1 per generation"), (3.4, "3.4 per generation"),
        (0.0, "0 per generation"), (0.333, "1 about every 3 generations"),
        (0.5, "1 about every 2 generations"), (0.66, "1 about every 1.5 generations"),
        (0.67, "0.7 per generation"), (0.94, "0.9 per generation"),
        (0.96, "1 per generation"), (0.001, "1 about every 1,000 generations"), (-0.3, "-0.3 per generation"),
    ],
)  # fmt: skip
def test_a_rate_below_one_is_the_distance_between_two_rises(count: float, written: str) -> None:
    assert format_rate(count, "generation") == written


def test_entries_of_a_container_are_one_or_many() -> None:
    assert entries_in(0.3, "seen", "epoch") == "1 more entry in seen about every 3.3 epochs"
    assert entries_in(0.8, "seen", "epoch") == "0.8 more entries in seen per epoch"
    assert entries_in(1.0, "seen", "epoch") == "1 more entry in seen per epoch"
    assert entries_in(20.0, "seen", "epoch") == "20 more entries in seen per epoch"


def test_an_interval_that_reads_as_one_number_is_left_out() -> None:
    assert format_range(57.268 * MIB, 57.272 * MIB) == ""
    assert format_range(57.2 * MIB, 57.3 * MIB) == "57.20 MiB to 57.30 MiB"
    assert format_range(2.0, 2.0, str) == ""
    assert in_brackets("") == ""
    assert in_brackets("1 to 2") == " (1 to 2)"


@pytest.mark.parametrize(
    ("change", "written"),
    [(2.0, "+2"), (0.0, "0"), (-2.0, "-2"), (0.25, "+0.25"), (0.02, "+0.02"), (0.0001, "0"), (3072.2, "+3,072")],
)  # fmt: skip
def test_a_count_that_changes_has_a_sign(change: float, written: str) -> None:
    assert format_count_change(change) == written


def test_numbers_of_several_processes_are_called_their_sum() -> None:
    assert processes_told("rank 1 main") == "rank 1 main"
    assert processes_told("rank 0 main, rank 1 main") == "rank 0 main and rank 1 main together"
    many = ", ".join(f"rank {n} main" for n in range(6))
    assert processes_told(many).endswith("rank 3 main and 2 more together")


WAITING = ("yet", "so far", "will settle", "a few more", "come by themselves", "to come")


@pytest.mark.parametrize("generations", [1, 2, 3, 4, 6, 9, 14])
@pytest.mark.parametrize("leak", [None, Leak(TRAIN, 20 * MIB)], ids=["healthy", "leaking"])
def test_nothing_that_is_said_of_it_waits(generations: int, leak: Leak | None) -> None:
    training = Training(generations, leaks=() if leak is None else (leak,))
    verdict = examine(replace(training.history(), ended=True))
    said = [verdict.summary, *(item.sentence for item in verdict.checklist)]
    for finding in verdict.findings:
        said += [*finding.evidence, *finding.advice]
    assert not [line for line in said for word in WAITING if word in line]


def test_a_run_that_was_too_short_says_what_a_verdict_needs() -> None:
    history = Training(3, declare_buffer=False).history()
    assert examine(history).summary == "Learning: 3 generations seen, too few to judge"
    ended = examine(replace(history, ended=True))
    assert ended.summary == (
        "Not judged: the run ended after 3 generations, and a verdict needs 5 generations"
    )
    memory = next(item for item in ended.checklist if item.check == "memory")
    assert (memory.outcome, memory.sentence) == (
        "not_measured", "The run ended after 3 generations; 5 are needed to tell.",
    )  # fmt: skip

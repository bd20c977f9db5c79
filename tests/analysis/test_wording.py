"""Sentences about a run that has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builder import MIB, TRAIN, Leak, Training

from leakline.analysis import examine

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

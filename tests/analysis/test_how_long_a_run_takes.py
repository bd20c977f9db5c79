"""The whole time of a run that has said how many generations it takes: those that ended, and those to come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builder import MIB, history_of

from leakline.analysis import RunHistory, examine

HOUR = 3600.0


def timed(*seconds: float | None, total: int | None = 25, ended: bool = False) -> RunHistory:
    memory = [500.0 * MIB] * len(seconds)
    history = history_of(memory, generation__seconds=list(seconds))
    return replace(history, total=total, ended=ended)


@pytest.mark.parametrize(
    "history",
    [
        timed(*[100.0] * 8, total=None),
        timed(*[100.0] * 8, ended=True),
        timed(*[100.0] * 8, total=8),
        timed(100.0, 100.0),
        timed(*[None] * 8),
    ],
    ids=["no total", "ended", "all done", "two timed", "none timed"],
)
def test_where_nothing_can_be_said_nothing_is(history: RunHistory) -> None:
    assert examine(history).duration is None


def test_the_40_to_50_hours_of_report_001_are_told_from_its_first_generations() -> None:
    """25 generations of 1.6 to 2 hours."""
    found = examine(timed(*[1.6 * HOUR, 1.8 * HOUR, 2.0 * HOUR] * 3)).duration
    assert found is not None
    assert found.seconds.estimate == pytest.approx(45 * HOUR)
    assert 40 * HOUR <= found.seconds.low < found.seconds.high <= 50 * HOUR
    assert found.seconds_left.estimate == pytest.approx(16 * 1.8 * HOUR)
    assert found.sentence.startswith(
        "All 25 generations take about 45 h 0 min (41 h 48 min to 48 h"
    )
    assert found.sentence.endswith("28 h 48 min of them to come.")


def test_those_to_come_take_as_long_as_the_newest_ones_did() -> None:
    """Training begins once the buffer is full, and each generation takes three times as long from there."""
    found = examine(timed(*[100.0] * 20, *[300.0] * 16, total=100)).duration
    assert found is not None
    assert found.seconds.estimate == pytest.approx(20 * 100 + 80 * 300)
    assert found.seconds_per_generation.estimate == 300


def test_a_generation_that_was_not_timed_took_as_long_as_usual() -> None:
    found = examine(timed(100.0, None, 100.0, 100.0, total=10)).duration
    assert found is not None
    assert found.seconds.estimate == pytest.approx(1000)

"""The generation from which memory is flat, with its interval, and the total duration of a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import corpus
import pytest
from builder import GIB, MIB, Leak, Training, history_of, kept_environments
from builder import TRAIN as IN_TRAINING
from pieces import timeline_of

from leakline.analysis import RunHistory, examine
from leakline.analysis.examination import _of_timeline, duration_of
from leakline.analysis.forecast.memory_outlook import _is_flat, settling_of
from leakline.analysis.results import Interval
from leakline.analysis.statistics.memory_evidence import Scale, baseline_of
from leakline.analysis.timeline import (
    Timeline,
    timelines_of,
)


def of_levels(levels: list[float], first: int = 0) -> Interval | None:
    x = [float(first + i) for i in range(len(levels))]
    return settling_of(x, levels, Scale(baseline_of(levels)))


def test_the_run_of_report_002_settles_when_its_buffer_is_full() -> None:
    """It should settle after generation 3 to 4: three generations of warm-up, and a buffer full after the fourth."""
    training = Training(generations=12, buffer_full_after=4, noise=0.5 * MIB)
    found = examine(training.history()).settled_at_generation
    assert found is not None
    assert found.low <= 3 <= found.high
    assert found.estimate == 3


@pytest.mark.parametrize("settles", [5, 6, 7])
@pytest.mark.parametrize("generations", [14, 100])
def test_the_run_of_report_004_settles_at_generations_5_to_7(
    settles: int, generations: int
) -> None:
    found = []
    for seed in range(3):
        training = Training(
            generations, buffer_full_after=settles + 1, buffer_bytes=200 * MIB, seed=seed
        )
        settled = examine(training.history()).settled_at_generation
        assert settled is not None
        found.append(settled.estimate)
    assert all(abs(each - settles) <= 1 for each in found)


@pytest.mark.parametrize("generations", [6, 25])
def test_a_run_that_keeps_growing_has_not_settled(generations: int) -> None:
    for leak in (kept_environments(), Leak(IN_TRAINING, 12 * MIB)):
        history = Training(generations, leaks=(leak,)).history()
        assert examine(history).settled_at_generation is None


def test_the_interval_contains_the_truth_in_nine_of_ten_runs() -> None:
    inside = near = known = 0
    for seed in range(60):
        rng = random.Random(seed)
        n, size, length = rng.choice((16, 25, 60, 200)), rng.uniform(0.1, 1.0), rng.randint(2, 8)
        noise = corpus._noise(rng, n)
        levels = [corpus.BASE * (1 + size * min(1.0, i / length)) + e for i, e in enumerate(noise)]
        found = of_levels(levels)
        known += found is not None
        inside += found is not None and found.low <= length <= found.high
        near += found is not None and abs(found.estimate - length) <= 1
    assert known >= 0.95 * 60
    assert inside >= 0.90 * known
    assert near >= 0.95 * known


@pytest.mark.parametrize(
    ("level", "settled"),
    [
        (lambda i: GIB + (100 * MIB if i >= 30 else 0), 30),
        (lambda i: 2 * GIB - (GIB if i >= 20 else 0), 20),
        (lambda i: GIB + (GIB if i == 30 else 0), 0),
    ],
    ids=["a step", "a release", "a spike"],
)
def test_steps_and_releases_move_the_settling_point_but_spikes_do_not(
    level: Callable[[int], float], settled: int
) -> None:
    found = of_levels([level(i) + (i % 3) * MIB for i in range(60)])
    assert found is not None
    assert found.low <= found.estimate == settled <= found.high


def test_a_preallocated_buffer_does_not_hide_the_settling_point() -> None:
    training = Training(25, buffer_full_after=40, buffer_bytes=0.0)
    verdict = examine(training.history())
    assert verdict.status == "filling"
    assert verdict.settled_at_generation is not None
    assert verdict.settled_at_generation.estimate <= 4


def test_the_last_process_to_settle_counts() -> None:
    early, late = (
        Training(25, buffer_full_after=n, buffer_bytes=200 * MIB, instance=f"p{n}", rank=rank).history()
        for rank, n in enumerate((4, 10))
    )  # fmt: skip
    both = replace(early, processes=(*early.processes, *late.processes))
    found = examine(both).settled_at_generation
    assert found is not None
    assert found.estimate == pytest.approx(9, abs=1)
    leaking = Training(25, leaks=(kept_environments(),), instance="p9", rank=1).history()
    both = replace(early, processes=(*early.processes, *leaking.processes))
    assert examine(both).settled_at_generation is None


def _from(n: int, first: int = 0) -> list[float]:
    return [float(first + i) for i in range(n)]


def test_nine_readings_that_end_with_a_move_are_not_flat() -> None:
    assert not _is_flat(_from(9), [100.0] * 7 + [110, 120], Scale(100.0))
    assert _is_flat(_from(10), [100.0] * 8 + [110, 120], Scale(100.0))
    assert not _is_flat(_from(10), [100.0 - 2 * i for i in range(10)], Scale(100.0))
    assert not _is_flat(_from(10), [100.0] * 5 + [110, 120, 130, 140, 150], Scale(100.0))
    assert _is_flat(_from(4), [100.0] * 4, Scale(100.0))


@pytest.mark.parametrize(
    ("y", "settled"),
    [
        ([100.0] * 5, Interval(10, 10, 10)), ([100.0] * 4, None),
        ([50.0] * 4 + [100.0] * 5, Interval(14, 14, 14)), ([10.0 * i for i in range(10, 22)], None),
    ],
)  # fmt: skip
def test_memory_is_flat_after_five_level_readings(y: list[float], settled: Interval | None) -> None:
    assert settling_of(_from(len(y), 10), y, Scale(100.0)) == settled


HOUR = 3600.0


def timed(*seconds: float | None, total: int | None = 25, ended: bool = False) -> RunHistory:
    memory = [500.0 * MIB] * len(seconds)
    history = history_of(memory, generation__seconds=list(seconds))
    return replace(history, total=total, ended=ended)


@pytest.mark.parametrize(
    "history",
    [
        timed(*[100.0] * 8, total=None), timed(*[100.0] * 8, ended=True), timed(*[100.0] * 8, total=8),
        timed(100.0, 100.0), timed(*[None] * 8),
    ],
    ids=["no total", "ended", "all done", "two timed", "none timed"],
)  # fmt: skip
def test_unknown_durations_are_omitted(history: RunHistory) -> None:
    assert examine(history).duration is None


def test_the_40_to_50_hours_of_report_001_are_forecast_early() -> None:
    """25 generations of 1.6 to 2 hours."""
    found = examine(timed(*[1.6 * HOUR, 1.8 * HOUR, 2.0 * HOUR] * 3)).duration
    assert found is not None
    assert found.seconds.estimate == pytest.approx(45 * HOUR)
    assert 40 * HOUR <= found.seconds.low < found.seconds.high <= 50 * HOUR
    assert found.seconds_left.estimate == pytest.approx(16 * 1.8 * HOUR)
    assert found.sentence.startswith(
        "All 25 generations take about 45 h 0 min (41 h 48 min to 48 h"
    )
    assert found.sentence.endswith("; 28 h 48 min remaining.")


def test_remaining_generations_take_as_long_as_the_newest() -> None:
    """Training begins once the buffer is full, and each generation then takes three times as long."""
    found = examine(timed(*[100.0] * 20, *[300.0] * 16, total=100)).duration
    assert found is not None
    assert found.seconds.estimate == pytest.approx(20 * 100 + 80 * 300)
    assert found.seconds_per_generation.estimate == 300


def read(n: int, **others: Sequence[float | None]) -> Timeline:
    return timeline_of(history_of([500.0 * MIB] * n, **others))


def test_the_duration_is_the_elapsed_plus_the_remaining_time() -> None:
    found = _of_timeline(read(4, generation__seconds=[10.0, 20.0, 30.0, None]), 10)
    # The generation without a reading took 20, and six remain; nine of ten take between 11 and 29.
    assert found == (Interval(20, 11, 29), Interval(120, 66, 174), Interval(200, 146, 254))
    assert _of_timeline(read(4, generation__seconds=[10.0, 20.0, None, None]), 10) is None
    assert _of_timeline(read(3, generation__seconds=[10.0] * 3), 3) is None
    assert _of_timeline(read(3, generation__seconds=[10.0] * 3), 4) is not None
    assert _of_timeline(read(3), 10) is None


@pytest.mark.parametrize(("each", "known"), [(0.24, False), (0.25, True)])
def test_a_total_below_a_second_has_no_duration(each: float, known: bool) -> None:
    history = history_of([500.0 * MIB] * 3)
    process = history.processes[0]
    series = {**process.series, "generation.seconds": [each] * 3}
    timed = replace(history, total=4, processes=(replace(process, series=series),))
    assert (duration_of(timed, timelines_of(timed)) is not None) is known

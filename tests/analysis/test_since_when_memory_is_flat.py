"""The generation from which memory is flat, with its interval; None while it is not."""

from __future__ import annotations

import random
from dataclasses import replace

import corpus
import pytest
from builder import GIB, MIB, Leak, Training, kept_environments
from builder import TRAIN as IN_TRAINING

from leakline.analysis import examine
from leakline.analysis.evidence import Scale, baseline_of
from leakline.analysis.results import Interval
from leakline.analysis.settling import settling_of


def of_levels(levels: list[float], first: int = 0) -> Interval | None:
    x = [float(first + i) for i in range(len(levels))]
    return settling_of(x, levels, Scale(baseline_of(levels)))


def test_report_002_s_run_settles_where_its_filling_ends() -> None:
    """It was to stabilise after generation 3 to 4: warm-up of three generations, a buffer full at the fourth's end."""
    training = Training(generations=12, buffer_full_after=4, noise=0.5 * MIB)
    found = examine(training.history()).settled_at_generation
    assert found is not None
    assert found.low <= 3 <= found.high
    assert found.estimate == 3


@pytest.mark.parametrize("settles", [5, 6, 7])
@pytest.mark.parametrize("generations", [14, 25, 100])
def test_report_004_s_run_settles_at_generations_5_to_7(settles: int, generations: int) -> None:
    found = []
    for seed in range(5):
        training = Training(
            generations, buffer_full_after=settles + 1, buffer_bytes=200 * MIB, seed=seed
        )
        settled = examine(training.history()).settled_at_generation
        assert settled is not None
        found.append(settled.estimate)
    assert all(abs(each - settles) <= 1 for each in found)


@pytest.mark.parametrize("generations", [6, 12, 25, 100])
def test_a_run_that_keeps_growing_has_not_settled(generations: int) -> None:
    for leak in (kept_environments(), Leak(IN_TRAINING, 12 * MIB)):
        history = Training(generations, leaks=(leak,)).history()
        assert examine(history).settled_at_generation is None


def test_no_leak_of_the_corpus_has_settled() -> None:
    """Of a leak that memory can show: one that goes on, and matters."""
    for family in (corpus.linear, corpus.stairs, corpus.accelerating, corpus.warm_up_and_leak):
        for seed in range(3):
            verdict = examine(corpus.history_of(family(random.Random(seed), 60)))
            assert verdict.settled_at_generation is None, (family.__name__, seed)


def test_the_interval_holds_the_truth_in_nine_of_ten_runs() -> None:
    inside = near = told = 0
    for seed in range(120):
        rng = random.Random(seed)
        n, size, length = rng.choice((16, 25, 60, 200)), rng.uniform(0.1, 1.0), rng.randint(2, 8)
        noise = corpus._noise(rng, n)
        levels = [corpus.BASE * (1 + size * min(1.0, i / length)) + e for i, e in enumerate(noise)]
        found = of_levels(levels)
        told += found is not None
        inside += found is not None and found.low <= length <= found.high
        near += found is not None and abs(found.estimate - length) <= 1
    assert told >= 0.95 * 120
    assert inside >= 0.90 * told
    assert near >= 0.95 * told


def test_a_late_and_long_way_is_found_to_the_generation() -> None:
    rng = random.Random(5)
    levels = [GIB * min(1.0, (i + 50) / 750) + rng.gauss(0, 2 * MIB) for i in range(3000)]
    found = of_levels(levels)
    assert found is not None
    assert found.low <= 700 <= found.high
    assert abs(found.estimate - 700) <= 10


def test_what_was_flat_from_the_beginning_settled_in_its_first_generation() -> None:
    found = of_levels([GIB + 1.0 * (i % 3) for i in range(9)], first=13)
    assert found == Interval(13.0, 13.0, 13.0)


def test_a_step_moves_the_beginning_of_the_level_behind_it() -> None:
    levels = [GIB + (100 * MIB if i >= 30 else 0) + (i % 3) * MIB for i in range(60)]
    found = of_levels(levels)
    assert found is not None
    assert (found.estimate, found.low <= 30 <= found.high) == (30, True)


def test_a_release_moves_it_too() -> None:
    levels = [2 * GIB - (GIB if i >= 20 else 0) + (i % 3) * MIB for i in range(40)]
    found = of_levels(levels)
    assert found is not None
    assert found.estimate == 20


def test_a_spike_does_not() -> None:
    levels = [GIB + (GIB if i == 30 else 0) + (i % 3) * MIB for i in range(60)]
    found = of_levels(levels)
    assert found is not None
    assert found.estimate == 0


def test_falling_memory_has_not_settled() -> None:
    assert of_levels([4 * GIB - i * 100 * MIB for i in range(20)]) is None


@pytest.mark.parametrize("flat", [3, 4, 5])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_short_run_whose_two_newest_readings_move_on_has_not_settled(
    flat: int, sign: int
) -> None:
    for step, settles in ((100 * MIB, False), (0.1 * MIB, True)):
        levels = [GIB] * flat + [GIB + sign * step, GIB + sign * 2 * step]
        assert (of_levels(levels) is not None) == settles


def test_too_few_readings_are_no_level() -> None:
    assert of_levels([GIB] * 4) is None
    assert of_levels([GIB, 2 * GIB, 3 * GIB, 3 * GIB, 3 * GIB, 3 * GIB]) is None
    assert examine(Training(generations=2).history()).settled_at_generation is None


def test_a_buffer_that_fills_has_not_settled_and_a_full_one_has() -> None:
    training = Training(generations=7, buffer_full_after=12, buffer_bytes=400 * MIB)
    assert examine(training.history()).settled_at_generation is None
    found = examine(replace(training, generations=25).history()).settled_at_generation
    assert found is not None
    assert found.estimate == pytest.approx(11, abs=1)


def test_a_buffer_whose_memory_was_there_before_it_fills_hides_no_level() -> None:
    training = Training(25, buffer_full_after=40, buffer_bytes=0.0)
    verdict = examine(training.history())
    assert verdict.status == "filling"
    assert verdict.settled_at_generation is not None
    assert verdict.settled_at_generation.estimate <= 4


def test_of_several_processes_the_last_to_settle_counts() -> None:
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

"""Counts: what rises and stays risen, in which pattern, since when."""

from __future__ import annotations

import random

import pytest

from leakline.analysis import counts as counts_of
from leakline.analysis.counts import come_together, count_growth


def _x(n: int, first: int = -1) -> list[float]:
    return [float(first + i) for i in range(n)]


def test_a_steady_count_does_not_grow() -> None:
    assert count_growth(_x(12), [17.0] * 12) is None


def test_a_count_that_goes_up_and_down_does_not_grow() -> None:
    assert count_growth(_x(12), [17.0, 33, 17, 33, 17, 33, 17, 33, 17, 33, 17, 33]) is None


def test_three_rises_are_too_few() -> None:
    assert count_growth(_x(4), [2.0, 18, 34, 50]) is None


def test_a_count_that_stopped_growing_does_not_grow() -> None:
    assert count_growth(_x(16), [float(min(i, 6)) for i in range(16)]) is None


def test_a_cache_that_fills_more_and_more_slowly_does_not_grow() -> None:
    counts = [0.0, 40, 60, 70, 75, 78, 79, 80, 80, 80, 80, 80]
    assert count_growth(_x(12), counts) is None


def test_equal_rises_are_constant_from_the_fourth_on() -> None:
    growth = count_growth(_x(5), [2.0, 18, 34, 50, 66], 0)
    assert growth is not None
    assert (growth.pattern, growth.slope, growth.start) == ("constant", 16, 0)


def test_the_start_is_the_first_generation_that_rose() -> None:
    counts = [2.0] * 7 + [18.0, 34, 50, 66, 82]
    growth = count_growth(_x(12), counts, 0)
    assert growth is not None
    assert (growth.start, growth.slope) == (6, 16)


def test_without_a_baseline_a_count_rising_at_once_began_at_once() -> None:
    growth = count_growth(_x(6, 0), [18.0, 34, 50, 66, 82, 98], 0)
    assert growth is not None
    assert growth.start == 0


def test_every_fifth_generation_is_a_period() -> None:
    counts = [0.0] + [float(g // 5 + 1) for g in range(16)]
    growth = count_growth(_x(17), counts, 0)
    assert growth is not None
    assert (growth.pattern, growth.period, growth.each, growth.start) == ("periodic", 5, 1, 0)
    assert growth.slope == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("first", "counts", "start"),
    [
        # The first reading comes after the first beat, or after two of them.
        (0, [192.0 * (g // 3 + 1) for g in range(16)], 0),
        (4, [192.0 * (g // 3 + 1) for g in range(4, 16)], 0),
        # What was there before is none of them.
        (0, [50.0 + 192 * (g // 3) for g in range(16)], 3),
        (0, [192.0 * (g // 3) for g in range(16)], 3),
        # As much as a beat leaves, but the generation that it would have come in added nothing.
        (0, [192.0, 192, 192, 192, 192, 384, 384, 384, 576, 576, 576, 768, 768], 5),
        # More than all beats since the first generation.
        (0, [192.0 * 9 + 192 * (g // 3) for g in range(16)], 3),
    ],
)
def test_beats_before_the_first_reading_are_told_by_what_was_there(
    first: int, counts: list[float], start: int
) -> None:
    growth = count_growth(_x(len(counts), first), counts, 0)
    assert growth is not None
    assert (growth.pattern, growth.period, growth.start) == ("periodic", 3, start)


def test_a_period_that_missed_its_beat_is_over() -> None:
    counts = [0.0, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]
    assert count_growth(_x(16), counts, 0) is None


def test_irregular_rises_that_are_never_taken_back() -> None:
    rises = {0, 1, 2, 4, 5, 7, 10, 11, 13, 15}
    counts, total = [17.0], 17.0
    for g in range(16):
        total += g in rises
        counts.append(total)
    growth = count_growth(_x(17), counts, 0)
    assert growth is not None
    assert growth.pattern == "irregular"
    assert growth.slope == pytest.approx(10 / 16)
    assert growth.start == 0


def test_a_rising_floor_is_found_through_noise() -> None:
    rng = random.Random(1)
    counts = [1000 + 40 * i + rng.choice([0, 0, 40, 80]) for i in range(24)]
    growth = count_growth(_x(24), [float(c) for c in counts], 0)
    assert growth is not None
    assert growth.slope == pytest.approx(40, rel=0.25)


def test_sparse_readings_give_the_rate_per_generation() -> None:
    x = [0.0, 3, 6, 9, 12, 15]
    growth = count_growth(x, [100 + 64 * g for g in x], 0)
    assert growth is not None
    assert growth.slope == pytest.approx(64)


def test_rises_that_became_steady_began_with_the_first_of_them() -> None:
    rises = {1, 2, 4, 6, *range(8, 16)}
    counts, total = [17.0], 17.0
    for g in range(16):
        total += g in rises
        counts.append(total)
    growth = count_growth(_x(17), counts, 0)
    assert growth is not None
    assert growth.start == 1


def test_memory_that_rises_where_a_count_does_comes_together() -> None:
    x = [float(i) for i in range(20)]
    stairs = [float(i // 6) for i in range(20)]
    noise = [0.3, -0.2, 0.1, -0.4, 0.2] * 4
    memory = [100 * s + n for s, n in zip(stairs, noise, strict=True)]
    assert come_together(x, memory, x, stairs)
    # Three generations later, or little by little: something else.
    assert not come_together(x, [0.0] * 3 + memory[:-3], x, stairs)
    assert not come_together(x, [16.0 * i + n for i, n in enumerate(noise)], x, stairs)


def test_a_count_that_rises_every_time_tells_of_no_coincidence() -> None:
    x = [float(i) for i in range(20)]
    assert not come_together(x, [100.0 * i for i in x], x, x)
    # Two steps happen to any program; counts read now and then tell of no generation.
    steps = [0.0] * 5 + [1.0] * 5 + [2.0] * 10
    assert not come_together(x, [100 * s for s in steps], x, steps)
    assert not come_together(x, [100.0 * (i // 6) for i in x], x[::6], [i // 6 for i in x][::6])


def test_the_cheap_look_before_the_dear_one_refuses_nothing_that_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(5)
    with_look, without = [], []
    for _ in range(300):
        n, slope = rng.randint(8, 120), rng.choice((0.0, 0.02, 0.1, 0.5))
        start, noise = rng.randint(0, n), rng.uniform(0.2, 3)
        counts = [
            100 + round(slope * max(0, i - start) * 5 + rng.gauss(0, noise)) for i in range(n)
        ]
        x = [float(i) for i in range(n)]
        with_look.append(counts_of._noisy(x, counts))
        with monkeypatch.context() as patched:
            patched.setattr(counts_of, "_may_break_new_ground", lambda counts: True)
            without.append(counts_of._noisy(x, counts))
    assert with_look == without
    assert sum(growth is not None for growth in without) > 20

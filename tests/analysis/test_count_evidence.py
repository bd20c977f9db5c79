"""Evidence from counts: what rises and stays, in which pattern, since when, and what only seems to grow."""

from __future__ import annotations

import math
import random
from itertools import accumulate

import pytest
from builder import MIB, curve, history_of

from leakline.analysis import examine
from leakline.analysis.statistics import count_evidence as counts_of
from leakline.analysis.statistics.count_evidence import (
    CountGrowth,
    _beats_unseen,
    _constant,
    _goes_beyond,
    _irregular,
    _may_break_new_ground,
    _noisy,
    _periodic,
    _rises_never_taken_back,
    ceiling_of,
    come_together,
    count_growth,
    may_grow,
)

STEADY = CountGrowth("constant", 2.0, 2.0, 2.0, 6.0, 6.0, 7.0, 4, 4.0, 2.0)
BEATS = CountGrowth("periodic", 10 / 3, 3.0, 3.7, 12.0, 12.0, 12.0, 4, 10.0, 10.0, 3)


def _x(n: int, first: int = 0) -> list[float]:
    return [float(first + i) for i in range(n)]


def _after(rises: list[float]) -> tuple[list[float], list[float]]:
    """Return generations and a count that starts at zero and has these rises."""
    counts = list(accumulate(rises, initial=0.0))
    return _x(len(counts)), counts


def _risen_at(at: set[int], n: int) -> tuple[list[float], list[float]]:
    return _after([float(i in at) for i in range(1, n)])


def of_period(x: list[float], counts: list[float]) -> CountGrowth | None:
    return _periodic(x, counts, _rises_never_taken_back(counts)[0])


def without_order(x: list[float], counts: list[float]) -> CountGrowth | None:
    return _irregular(x, counts, *_rises_never_taken_back(counts))


@pytest.mark.parametrize(
    ("counts", "may"),
    [
        ([3.0, 4.0], True), ([4.0, 4.0], False), ([4.0, 3.0], False), ([0.0] + [5.0] * 63, True),
        ([0.0] + [5.0] * 64, False),
    ],
)  # fmt: skip
def test_a_count_may_grow_when_one_of_its_last_64_readings_was_lower(
    counts: list[float], may: bool
) -> None:
    assert may_grow(counts) is may


@pytest.mark.parametrize(
    ("inside", "outside", "together"),
    [
        ([7.0, 7, 7], [3.0, 3, 3], True),
        # Less than seven tenths of the memory gain.
        ([7.0, 7, 7], [3.0, 3, 3.5], False),
        # Memory rises more often than not.
        ([7.0, 7, 7], [1.0, 1], False),
        # In one of the generations the count rose and memory did not.
        ([0.5, 7, 7], [0.0, 0, 0], True),
        # The noise of the others is 1.4826; four times that is 5.93.
        ([5.94, 5.94, 5.94], [-1.0, 0, 1], True),
    ],
)  # fmt: skip
def test_memory_rises_with_a_count_beyond_its_noise(
    inside: list[float], outside: list[float], together: bool
) -> None:
    x, memory = _after([*inside, *outside])
    counts = list(accumulate([1.0] * len(inside) + [0.0] * len(outside), initial=0.0))
    assert come_together(x, memory, x, counts) is together


def test_generations_without_a_count_are_ignored() -> None:
    x, memory = _after([9.0, 9, 9, 0, 0, 0, 5])
    assert come_together(x, memory, x[:-1], [0.0, 1, 2, 3, 3, 3, 3])


@pytest.mark.parametrize(
    ("counts", "beyond"),
    [
        # The count was at 4 before: a rise of 2 above that is not beyond earlier values.
        ([4.0, 5, 0, 0, 0, 0, 2, 7], True), ([4.0, 5, 0, 0, 0, 0, 2, 6], False),
        # The value 9 was read only once.
        ([0.0, 9, 0, 0, 0, 0, 2, 3], True),
        # Values from the start on are not earlier values.
        ([0.0, 0, 0, 0, 0, 0, 8, 8], True),
    ],
)  # fmt: skip
def test_growth_exceeds_earlier_values(counts: list[float], beyond: bool) -> None:
    assert _goes_beyond(STEADY, _x(8), counts) is beyond


def test_without_repeated_earlier_values_all_growth_exceeds_them() -> None:
    assert _goes_beyond(STEADY, [5.0, 6, 7], [100.0, 1, 2])


@pytest.mark.parametrize(
    ("first_x", "count", "first_generation", "start"),
    [
        (10.0, 20.0, 0.0, 6.0), (10.0, 10.0, 0.0, 9.0), (10.0, 0.0, 0.0, 12.0),
        # A tenth of one is within the tolerance.
        (10.0, 21.0, 0.0, 6.0), (10.0, 19.0, 0.0, 6.0), (10.0, 21.1, 0.0, 12.0), (10.0, 18.9, 0.0, 12.0),
        # The previous beat was at 9: a reading before it would have seen it.
        (10.0, 20.0, 6.0, 6.0),
    ],
)  # fmt: skip
def test_earlier_beats_are_inferred_from_the_first_reading(
    first_x: float, count: float, first_generation: float, start: float
) -> None:
    found = _beats_unseen(BEATS, first_x, count, first_generation)
    assert (found.start, found.start_low, found.generations) == (start, start, 10 + 12 - start)
    assert found.start_high == 12


def test_with_an_initial_baseline_the_start_is_as_observed() -> None:
    x, counts = _x(6, 1), [8.0, 10, 12, 14, 16, 18]
    assert count_growth(x, counts) == CountGrowth("constant", 2, 2, 2, 2, 2, 2, 5, 5, 2)
    assert count_growth(x, counts, 2) == CountGrowth("constant", 2, 2, 2, 2, 2, 2, 5, 5, 2)
    # Since generation 1: eight existed at its end, at most two of them made in it.
    assert count_growth(x, counts, 1) == CountGrowth("constant", 2, 2, 2, 1, 1, 2, 5, 6, 2)
    assert count_growth(x, counts, 0) == CountGrowth("constant", 2, 2, 2, 0, 0, 2, 5, 7, 2)


def test_a_count_that_rose_later_starts_where_it_rose() -> None:
    x, counts = _x(7, 1), [8.0, 8, 10, 12, 14, 16, 18]
    found = count_growth(x, counts, 0)
    assert found is not None
    assert (found.start, found.start_low, found.start_high) == (3, 3, 3)


def test_growth_is_searched_in_the_last_256_readings() -> None:
    found = count_growth(_x(300), _x(300))
    assert found is not None
    assert (found.rises, found.generations, found.start) == (255, 255, 45)


@pytest.mark.parametrize(
    ("rises", "found"),
    [
        ([0.0, 0, 1, 1, 1, 1], (4, 3, 3, 1)),
        # Half and three halves of the usual rise count as usual.
        ([5.0, 10, 10, 10, 10], (5, 1, 1, 10)), ([4.9, 10, 10, 10, 10], (4, 2, 2, 10)),
        # A larger rise contains the usual one, and so does the one before it.
        ([0.0, 40.0, 10, 10, 10, 10], (4, 2, 3, 10)), ([40.0, 10, 10, 10, 10], (4, 1, 2, 10)),
        ([0.0, 40, 40, 10, 10, 10, 10], (4, 2, 4, 10)),
        # Deviations are a quarter of the mean: 2 of 8, and 2.5 of 7.5.
        ([6.0, 10, 6, 10], (4, 1, 1, 8)),
    ],
)  # fmt: skip
def test_a_constant_pattern_needs_four_equal_rises_at_the_end(
    rises: list[float], found: tuple[int, int, int, float] | None
) -> None:
    growth = _constant(*_after(rises))
    seen = growth and (growth.rises, growth.start, growth.start_high, growth.each)
    assert seen == found


@pytest.mark.parametrize(
    ("at", "readings", "found"),
    [
        ({2, 5, 8}, 9, (3, 2, 3)), ({2, 5}, 9, None),
        # The wait after the last rise is at most one period.
        ({2, 5, 8}, 12, (3, 2, 3)), ({2, 5, 8}, 13, None),
        ({2, 4, 6}, 8, (3, 2, 2)), ({2, 3, 4}, 5, None),
        # Rises before the beat are warm-up, which may leave too few.
        ({1, 2, 4, 6, 8}, 9, (4, 2, 2)), ({1, 2, 4}, 5, None), ({1, 3, 6, 8}, 9, None),
        ({1, 2, 3, 6, 8, 10}, 11, (3, 6, 2)),
    ],
)  # fmt: skip
def test_three_equally_spaced_rises_are_a_period(
    at: set[int], readings: int, found: tuple[int, int, int] | None
) -> None:
    growth = of_period(*_risen_at(at, readings))
    assert (growth and (growth.rises, growth.start, growth.period)) == found


def test_a_period_grows_by_one_rise_in_each() -> None:
    growth = of_period(*_after([0.0, 4, 0, 0, 4, 0, 0, 4, 0]))
    slope = 4 / 3
    assert growth == CountGrowth("periodic", slope, slope * 0.9, slope * 1.1, 2, 2, 2, 3, 8, 4.0, 3)


@pytest.mark.parametrize(("small", "steady"), [(6.0, True), (5.0, False)])
def test_rises_of_a_period_vary_by_at_most_a_quarter(small: float, steady: bool) -> None:
    growth = of_period(*_after([10.0, 0, small, 0, 10, 0, small]))
    assert (growth is not None) is steady


@pytest.mark.parametrize(
    ("at", "readings", "grows"),
    [
        ({1, 2, 4, 6}, 7, True),
        # The rises must span six generations.
        ({1, 2, 4, 5}, 6, False),
        # The wait is at most three generations, or one and a half times the longest gap.
        ({1, 2, 6, 10}, 17, True), ({1, 2, 6, 10}, 18, False),
    ],
)  # fmt: skip
def test_irregular_growth_needs_four_rises_over_six_generations(
    at: set[int], readings: int, grows: bool
) -> None:
    assert (without_order(*_risen_at(at, readings)) is not None) is grows


@pytest.mark.parametrize(("last", "grows"), [(1.0, True), (0.9, False)])
def test_a_quarter_of_irregular_growth_is_in_its_second_half(last: float, grows: bool) -> None:
    # The last of the four rises is exactly in the middle.
    assert (without_order(*_after([1.0, 1, 1, last, 0, 0, 0])) is not None) is grows


def test_irregular_growth_is_averaged_since_its_first_rise() -> None:
    counts = [19.0, 10, 10, 10, 13, 16, 16, 19, 19, 22]
    slope = 12 / 6
    # With four rises half of the rate is uncertain, and the start is when the count last fell.
    assert without_order(_x(10), counts) == CountGrowth(
        "irregular", slope, slope * 0.5, slope * 1.5, 4, 2, 4, 4, 6, 3.0
    )


@pytest.mark.parametrize(
    ("readings", "as_high", "may"),
    [(16, 1, True), (16, 2, False), (50, 2, True), (50, 3, False)],
)
def test_few_early_readings_may_be_as_high_as_the_newest(
    readings: int, as_high: int, may: bool
) -> None:
    # 7 is the second highest of the newest eight; higher readings just before them do not count.
    before = [5.0] * (readings // 2 - as_high) + [7.0] * as_high
    between = [100.0] * (readings - readings // 2 - 8)
    assert _may_break_new_ground([*before, *between, *_x(8, 1)]) is may


@pytest.mark.parametrize(
    ("flat", "rising", "found"),
    [
        (0, 7, None), (0, 8, (1, 1, 1, 7, 7)),
        # The last flat reading is the bend; with it there are eight.
        (9, 7, (9, 9, 9, 7, 7)), (9, 6, None),
    ],
)  # fmt: skip
def test_a_rising_floor_needs_eight_readings_from_its_bend(
    flat: int, rising: int, found: tuple[float, float, float, int, float] | None
) -> None:
    counts = [0.0] * flat + _x(rising, 1 if flat else 0)
    growth = _noisy(_x(len(counts)), counts)
    seen = growth and (
        growth.start, growth.start_low, growth.start_high, growth.rises, growth.generations,
    )  # fmt: skip
    assert seen == found
    assert growth is None or growth.slope == growth.each == 1


@pytest.mark.parametrize(
    "counts",
    [
        # Three jumps, one sawtooth, a return to an earlier level, and slowing growth.
        [0.0, 0, 0, 0, 10, 10, 10, 10, 20, 20, 20, 20, 30, 30, 30, 30],
        [*_x(10, 5), *_x(10, 5)],
        [50.0, 50, 50, *_x(12)],
        [0.0, 30, 50, 62, 70, 75, 78, 80, 81, 81.5, 82, 82.2],
    ],
)
def test_a_floor_that_only_seems_to_rise_is_not_growth(counts: list[float]) -> None:
    assert _noisy(_x(len(counts)), counts) is None


@pytest.mark.parametrize(
    "counts",
    [
        [17.0] * 12, [17.0, 33] * 6, [2.0, 18, 34, 50], [float(min(i, 6)) for i in range(16)],
        [0.0, 40, 60, 70, 75, 78, 79, 80, 80, 80, 80, 80],
    ],
    ids=["steady", "up and down", "three rises", "stopped", "ever more slowly"],
)  # fmt: skip
def test_a_count_that_stops_rising_is_not_growth(counts: list[float]) -> None:
    assert count_growth(_x(len(counts), -1), counts) is None


def test_growth_in_every_fifth_generation_is_a_period() -> None:
    counts = [0.0] + [float(g // 5 + 1) for g in range(16)]
    growth = count_growth(_x(17, -1), counts, 0)
    assert growth is not None
    assert (growth.pattern, growth.period, growth.each, growth.start) == ("periodic", 5, 1, 0)
    assert growth.slope == pytest.approx(0.2)


def test_steady_growth_starts_with_its_first_rise() -> None:
    _, counts = _risen_at({2, 3, 5, 7, *range(9, 17)}, 17)
    growth = count_growth(_x(17, -1), counts, 0)
    assert growth is not None
    assert growth.start == 1


def test_the_quick_check_rejects_no_growing_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(5)
    with_look, without = [], []
    for _ in range(80):
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
    assert sum(growth is not None for growth in without) > 5


def _seen(n: int, pace: float, states: float = 12_000.0) -> list[float]:
    return [float(round(states * (1 - math.exp(-g / pace)))) for g in range(n)]


@pytest.mark.parametrize("n", [8, 12, 16, 24, 40, 60, 90, 120])
@pytest.mark.parametrize("power", [0.7, 0.8, 0.9])
def test_a_leak_that_slows_the_program_down_has_no_ceiling(power: float, n: int) -> None:
    """Looking through all kept objects takes longer and longer, so that fewer are added per second."""
    assert ceiling_of(_x(n), [50.0 * at**power for at in range(n)], 1) is None


@pytest.mark.parametrize(("pace", "n"), [(5, 8), (5, 20), (15, 24), (30, 40)])
def test_a_count_that_slows_down_has_a_ceiling(pace: float, n: int) -> None:
    ceiling = ceiling_of(_x(n), _seen(n, pace), 1)
    assert ceiling is not None
    assert ceiling.count == _seen(n, pace)[-1]
    assert ceiling.level == pytest.approx(12_000, rel=0.05)
    # A twentieth of the states is left after three times the pace.
    assert ceiling.generation == pytest.approx(max(n - 1, 3 * pace), abs=3)


@pytest.mark.parametrize(
    "counts",
    [
        [100.0 * g for g in range(20)], [100.0 * g - g * g for g in range(5)],
        [1000 * math.log1p(g) for g in range(60)],
        [100.0 * g + 300 * (1 - math.exp(-g / 2)) for g in range(20)], _seen(4, 5.0),
        [*_seen(12, 5.0), *(11_000.0 + 600 * g for g in range(6))],
    ],
    ids=["even", "hardly slower", "logarithm", "warm-up", "three rises", "beyond its ceiling"],
)  # fmt: skip
def test_a_count_that_goes_on_has_no_ceiling(counts: list[float]) -> None:
    assert ceiling_of(_x(len(counts)), counts, 1) is None


def counted(last_read: int, private: list[float]) -> dict[str, list[float | None]]:
    """Return ten more environments of 1 MiB per generation, counted until ``last_read``."""
    counts = [10.0 * i if i <= last_read else None for i in range(len(private))]
    sizes = [None if c is None else c * MIB for c in counts]
    return {"type__app.Env__count": counts, "type__app.Env__bytes": sizes}


def test_an_old_count_is_no_evidence_if_memory_has_been_flat() -> None:
    stops = curve(lambda i: 10.0 * min(i, 12), 40)
    assert examine(history_of(stops, **counted(12, stops))).status == "recovered"
    # While it rose it was rightly suspected.
    assert examine(history_of(stops[:12], **counted(11, stops[:12]))).status == "suspected"


def test_a_sawtooth_rises_only_once() -> None:
    teeth = [4.0 * (i % 5) for i in range(60)]
    x = [float(i) for i in range(60)]
    assert count_growth(x[:5], teeth[:5]) is not None
    assert all(count_growth(x[:n], teeth[:n]) is None for n in range(6, 60))
    rising = [tooth + 2.0 * i for i, tooth in enumerate(teeth)]
    assert count_growth(x, rising) is not None
    # A value read only once while a program loads is not a level to return to.
    loaded = [2_000.0 if i == 1 else 5.0 * i for i in range(12)]
    assert count_growth(x[:12], loaded) is not None

"""Slopes, blocks, hinges and what tells a leak's rise from others, on few points whose answer is known by hand."""

from __future__ import annotations

import math

import pytest

from leakline.analysis.shape import (
    _at,
    _left_over,
    _without_steps,
    breaks_new_ground,
    is_a_real_start,
    is_more_than_steps,
    keeps_rising,
    slows_like_a_logarithm,
    stands_out,
    what_stays,
)
from leakline.analysis.trend import (
    NO_GROWTH,
    Hinge,
    Slope,
    _fit_from,
    block_minima,
    fit_hinge,
    floor_slope,
    hinge_among,
    kendall_variance,
    lag_one_correlation,
    pair_slopes,
    robust_spread,
    theil_sen,
    weighted_median,
)


def _x(n: int) -> list[float]:
    return [float(i) for i in range(n)]


def _squares(n: int) -> list[float]:
    """Of which the slope between two points is the sum of their positions."""
    return [float(i * i) for i in range(n)]


@pytest.mark.parametrize(("low", "rises"), [(-0.5, False), (0.0, False), (0.5, True)])
def test_a_line_rises_when_all_of_its_interval_is_above_zero(low: float, rises: bool) -> None:
    assert Slope(1.0, low, 2.0, 4).rises is rises


def test_a_slope_in_other_units_keeps_its_low_end_low() -> None:
    assert Slope(2.0, 1.0, 3.0, 7).scaled(4.0) == Slope(8.0, 4.0, 12.0, 7)
    assert Slope(2.0, 1.0, 3.0, 7).scaled(-4.0) == Slope(-8.0, -12.0, -4.0, 7)


def test_no_growth_rests_on_nothing() -> None:
    assert Slope(0.0, 0.0, 0.0, 0) == NO_GROWTH


def test_points_at_the_same_x_have_no_slope_between_them() -> None:
    assert pair_slopes([0.0, 1, 1, 3], [0.0, 2, 5, 3]) == [-1.0, 0.5, 1.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("y", "eighteenths"),
    [
        ([1.0, 2, 3, 4], 4 * 3 * 13),
        ([1.0, 1, 2, 3], 4 * 3 * 13 - 2 * 1 * 9),
        ([1.0, 1, 2, 2], 4 * 3 * 13 - 2 * 2 * 1 * 9),
        ([1.0, 1, 1, 2], 4 * 3 * 13 - 3 * 2 * 11),
        ([1.0, 1, 1, 1], 0),
    ],
)
def test_ties_lower_the_variance_of_kendalls_s(y: list[float], eighteenths: int) -> None:
    assert kendall_variance(y) == pytest.approx(eighteenths / 18)


@pytest.mark.parametrize(
    ("values", "correlation"),
    [
        ([0.0, 0, 1], 0.0),
        ([2.0, 2, 2, 2], 0.0),
        ([0.0, 0, 1, 1], 0.25),
        ([0.0, 1, 0, 1], -0.75),
        ([2.0, 2, 4, 4], 0.25),
    ],
)
def test_neighbours_of_four_values_or_more_are_correlated(
    values: list[float], correlation: float
) -> None:
    assert lag_one_correlation(values) == pytest.approx(correlation)


@pytest.mark.parametrize(
    ("x", "y", "slope"),
    [
        ([3.0], [1.0], Slope(0.0, 0.0, 0.0, 1)),
        ([1.0, 1, 1], [1.0, 2, 3], Slope(0.0, 0.0, 0.0, 3)),
        # Two points may as well stand or rise twice as fast, in either direction.
        ([0.0, 2], [5.0, 9], Slope(2.0, 0.0, 4.0, 2)),
        ([0.0, 2], [9.0, 5], Slope(-2.0, -4.0, 0.0, 2)),
        # Three tell their smallest and largest slope.
        ([0.0, 1, 2], [0.0, 1, 5], Slope(2.5, 1.0, 4.0, 3)),
        ([0.0, 1, 2, 3], [0.0, 1, 4, 9], Slope(3.0, 1.0, 5.0, 4)),
        # What is left of 8 squares is correlated by 3/8, so 20 of 28 slopes are within: all but 3 at either end.
        (_x(8), _squares(8), Slope(7.0, 3.0, 11.0, 8)),
    ],
)
def test_the_interval_of_a_slope_is_that_of_its_few_points(
    x: list[float], y: list[float], slope: Slope
) -> None:
    assert theil_sen(x, y) == slope


def test_correlation_widens_an_interval_no_further_than_nine_tenths_would() -> None:
    y = _squares(64)
    reach = 1.6448536 * math.sqrt(64 * 63 * 133 / 18 * 1.9 / 0.1)
    slopes = sorted(i + j for i in range(64) for j in range(i))
    line = theil_sen(_x(64), y)
    assert line.estimate == 63
    assert line.low == slopes[round((2016 - reach) / 2) - 1]
    assert line.high == slopes[round((2016 + reach) / 2)]


def test_each_block_keeps_its_lowest_reading_and_of_equal_ones_the_first() -> None:
    assert block_minima(_x(5), [5.0, 3, 3, 9, 1], 2) == ([1.0, 4.0], [3.0, 1.0])
    assert block_minima(_x(4), [1.0, 1, 1, 1], 2) == ([0.0, 2.0], [1.0, 1.0])
    assert block_minima(_x(2), [5.0, 3], 2) == ([0.0, 1.0], [5.0, 3.0])


@pytest.mark.parametrize(("readings", "kept"), [(15, 15), (16, 16), (17, 16), (33, 16)])
def test_a_line_is_laid_through_sixteen_blocks_at_most(readings: int, kept: int) -> None:
    xs, ys = block_minima(_x(readings), _x(readings))
    assert len(xs) == len(ys) == kept


def test_the_floor_rests_on_all_readings_whatever_stands_above_it() -> None:
    teeth = [2.0 * i + (50.0 if i % 2 else 0.0) for i in range(32)]
    assert floor_slope(_x(32), teeth) == Slope(2.0, 2.0, 2.0, 32)


@pytest.mark.parametrize(
    ("values", "spread"),
    [([], 0.0), ([7.0], 0.0), ([1.0, 2, 3, 4, 100], 1.4826), ([0.0, 10, 20], 14.826)],
)
def test_one_value_far_off_does_not_spread_the_others(values: list[float], spread: float) -> None:
    assert robust_spread(values) == pytest.approx(spread)


@pytest.mark.parametrize(
    ("y", "hinge"),
    [
        ([0.0, 1, 2], None),
        ([0.0, 0, 1, 2], Hinge(1.0, 1.0, 1.0, 1.0)),
        ([0.0, 1, 2, 3], Hinge(0.0, 0.0, 0.0, 1.0)),
        ([0.0, 0, 0, 0, 5, 10], Hinge(3.0, 3.0, 3.0, 5.0)),
        ([3.0, 2, 1, 0], None),
        # What counts is the rise, not how high it stands.
        ([1000.0, 1000, 1000, 1000, 1001, 1002], Hinge(3.0, 3.0, 3.0, 1.0)),
    ],
)
def test_a_line_bends_at_its_last_flat_point(y: list[float], hinge: Hinge | None) -> None:
    assert fit_hinge(_x(len(y)), y) == hinge


def test_a_bend_is_looked_for_in_the_floor_of_many_readings() -> None:
    teeth = [max(0.0, i - 40.0) + (1000.0 if i % 2 else 0.0) for i in range(96)]
    assert fit_hinge(_x(96), teeth) == Hinge(40.0, 40.0, 40.0, 1.0)


def test_bends_that_fit_as_well_but_for_noise_bound_where_the_line_may_bend() -> None:
    # With 10 points a loss of 10 stands for up to 11.353.
    fits = [(10.0, 2.0, 4.0, 6.0), (11.35, 1.0, 3.0, 4.0), (11.0, 3.0, 8.0, 9.0), (11.36, 1.0, 1.0, 12.0)]  # fmt: skip
    assert hinge_among(fits, 10, 0.0) == Hinge(5.0, 3.0, 9.0, 2.0)


def test_a_bend_into_no_rise_is_none() -> None:
    assert hinge_among([(1.0, 0.0, 2.0, 2.0), (1.0, -1.0, 3.0, 3.0)], 8, 0.0) is None
    fits = [(1.0, 0.0, 2.0, 2.0), (2.0, 0.5, 5.0, 5.0)]
    assert hinge_among(fits, 8, 0.0) == Hinge(5.0, 5.0, 5.0, 0.5)


def test_without_noise_a_thousandth_of_the_rise_is_rounding() -> None:
    fits = [(0.0, 1.0, 5.0, 5.0), (1.0, 1.0, 4.0, 4.0), (1.01, 1.0, 3.0, 3.0)]
    assert hinge_among(fits, 20, 1000.0) == Hinge(5.0, 4.0, 5.0, 1.0)


def test_the_error_of_a_bend_is_what_both_of_its_lines_leave_over() -> None:
    # Flat at 1 leaves 1 and 1; a slope of 2, which carries 3 of 4 in weight, leaves 2 of the third reading.
    assert _fit_from([0.0, 1, 2, 4], [0.0, 2, 5, 7], 1) == (4.0, 2.0)


@pytest.mark.parametrize(
    ("pairs", "median"),
    [
        ([(1.0, 1.0), (2.0, 1.0)], 1.0),
        ([(1.0, 1.0), (2.0, 3.0)], 2.0),
        ([(1.0, 1.0), (2.0, 1.0), (3.0, 5.0)], 3.0),
        ([(1.0, 2.0), (2.0, 1.0), (3.0, 1.0)], 1.0),
    ],
)
def test_the_weighted_median_is_where_half_of_the_weight_has_passed(
    pairs: list[tuple[float, float]], median: float
) -> None:
    assert weighted_median(pairs) == median


@pytest.mark.parametrize(
    ("y", "keeps"),
    [
        ([0.0, 1, 2, 3, 4, 5, 6], True),
        ([9.0, 9.1, 9.2, 9.3, 9.4, 9.5, 9.6], True),
        ([5.0, 5, 5, 5, 5, 5, 5], False),
        ([1.0, 2, 3, 4, 5, 6, 1], False),
        # The second half must rise by 7 tenths of the first.
        ([0.0, 10, 20, 30, 37, 44, 51], True),
        ([0.0, 10, 20, 30, 36.9, 43.8, 50.7], False),
        # Of all growth 22 % must come in the last third, and no more than 65 % in any.
        ([0.0, 10, 20, 34, 78, 89, 100], True),
        ([0.0, 10, 20, 34, 78.1, 89, 100], False),
        ([0.0, 6, 13, 45, 78, 89, 100], True),
        ([0.0, 6, 12.9, 45, 78, 89, 100], False),
        ([0.0, 8, 17, 26, 35, 67, 100], True),
        ([0.0, 8, 17, 26, 34.9, 67, 100], False),
    ],
)
def test_what_rises_on_does_so_in_its_second_half_and_last_third(
    y: list[float], keeps: bool
) -> None:
    assert keeps_rising(_x(7), y) is keeps


def test_what_bends_down_may_be_asked_to_rise_as_fast_as_one_wants() -> None:
    y = [0.0, 10, 20, 30, 37, 44, 51]
    assert keeps_rising(_x(7), y, 0.5)
    assert not keeps_rising(_x(7), y, 0.8)


def test_two_readings_have_no_second_half() -> None:
    assert not keeps_rising([0.0, 1], [0.0, 5])
    assert keeps_rising([0.0, 1, 2], [0.0, 5, 10])
    # Nor have three of which one lies far from the others: half of the way is only there at the last.
    assert not keeps_rising([0.0, 1, 9], [0.0, 5, 45])
    assert not keeps_rising([0.0, 8, 9], [0.0, 5, 3])


def test_generations_need_not_begin_with_zero() -> None:
    x = [float(i) for i in range(10, 17)]
    assert keeps_rising(x, [50.0, 60, 70, 80, 90, 100, 110])
    assert not keeps_rising(x, [0.0, 10, 20, 30, 36.9, 43.8, 50.7])


@pytest.mark.parametrize(
    ("where", "reading"), [(0.0, 10.0), (1.0, 15.0), (2.0, 20.0), (3.0, 60.0), (4.0, 100.0)]
)
def test_between_two_readings_lies_a_straight_line(where: float, reading: float) -> None:
    assert _at([0.0, 2, 4], [10.0, 20, 100], where) == reading


def test_three_jumps_are_no_growth_however_far_apart() -> None:
    assert _without_steps(_x(8), [0.0, 10, 10, 20, 20, 30, 30, 30]) == 0
    # Of ten equal rises seven stay.
    assert _without_steps(_x(11), [5.0 * i for i in range(11)]) == pytest.approx(0.7)
    assert _without_steps(_x(5), [4.0, 4, 4, 4, 4]) == 0
    assert _without_steps(_x(5), [4.0, 3, 2, 1, 0]) == 0
    # Small growth is growth.
    assert _without_steps(_x(6), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(0.4)


def test_what_lost_generations_gained_together_is_no_jump() -> None:
    x = [0.0, 1, 2, 3, 8, 9, 10, 11, 12]
    # Eight gaps that count as one rise of 5 each.
    assert _without_steps(x, [5.0 * g for g in x]) == pytest.approx(5 / 8)
    # Where every second one is read, the jump over four is two.
    assert _without_steps([0.0, 2, 4, 6, 10, 12], [0.0, 2, 4, 6, 10, 12]) == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("small", "more"),
    # Five small rises behind three of 70: 30 % of all are 18 each.
    [(18.0, True), (17.9, False)],
)
def test_without_its_three_jumps_growth_keeps_three_tenths(small: float, more: bool) -> None:
    y = [0.0, 70, 140, 210] + [210 + small * i for i in range(1, 6)]
    assert is_more_than_steps(_x(9), y) is more


@pytest.mark.parametrize(
    ("wave", "last", "more"),
    # What is never taken back rises by 10 each time; without three of them, half is left of 6 and two fifths of 5.
    [(50.0, 7, True), (50.0, 6, False)],
)
def test_readings_that_scatter_are_judged_by_what_stays(wave: float, last: int, more: bool) -> None:
    y = [10.0 * i + wave * part for i in range(last) for part in (0, 1)][:-1]
    assert _without_steps(_x(len(y)), y) < 0.3
    assert is_more_than_steps(_x(len(y)), y) is more


def test_what_stays_is_what_no_later_reading_falls_below() -> None:
    assert what_stays([5.0, 1, 3, 2, 4]) == [1.0, 1.0, 2.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("window", "before", "new"),
    [
        ([0.0, 1, 2, 3, 4, 5, 6, 7], [], True),
        # The low of the last quarter, 6, has been there.
        ([0.0, 1, 2, 6, 4, 5, 6, 7], [], False),
        ([0.0, 1, 2, 5.9, 4, 5, 6, 7], [], True),
        ([0.0, 1, 2, 3, 9, 9, 6, 7], [], True),
        ([0.0, 1, 2, 3, 4, 5, 6, 7], [6.0], False),
        ([0.0, 1, 2, 3, 4, 5, 6, 7], [5.0], True),
        # Of a window of two or three the last two are the newest.
        ([3.0, 1, 2], [], False),
        ([0.5, 1, 2], [], True),
        ([5.0], [], True),
        ([5.0], [5.0], False),
    ],
)
def test_new_ground_lies_above_all_that_was_before(
    window: list[float], before: list[float], new: bool
) -> None:
    assert breaks_new_ground(window, before) is new


def test_one_reading_in_fifty_may_have_been_as_high_and_one_of_eleven_newest_may_be_low() -> None:
    window = [float(i) for i in range(44)]
    assert breaks_new_ground(window, [0.0] * 29 + [100.0])
    assert not breaks_new_ground(window, [0.0] * 28 + [100.0, 100.0])
    assert breaks_new_ground([*window[:40], 0.0, *window[41:]], [])
    assert not breaks_new_ground([*window[:40], 0.0, 0.0, *window[42:]], [])


@pytest.mark.parametrize(("slope", "out"), [(5.93, False), (5.94, True)])
def test_growth_stands_out_by_four_spreads(slope: float, out: bool) -> None:
    # Off its line by -1, 0, 1, 0 and -1 the spread is 1.4826, and the growth over 4 generations the slope itself.
    line = Slope(slope / 4, 0.0, 1.0, 5)
    y = [line.estimate * i + off for i, off in enumerate((-1.0, 0.0, 1.0, 0.0, 2.0))]
    assert stands_out(_x(5), y, line) is out


def test_a_line_without_noise_stands_out() -> None:
    assert stands_out(_x(5), _x(5), Slope(1.0, 1.0, 1.0, 5))
    assert stands_out(_x(5), [4.0] * 5, Slope(0.0, 0.0, 0.0, 5))


def test_growth_is_that_from_the_first_generation_read() -> None:
    x = [float(i) for i in range(100, 105)]
    y = [a + off for a, off in zip(x, (-1.0, 0.0, 1.0, 0.0, 2.0), strict=True)]
    assert not stands_out(x, y, Slope(1.0, 0.5, 1.5, 5))


@pytest.mark.parametrize(
    ("estimate", "before", "window", "run", "real"),
    [
        (1.6, 3, 6, 10, True), (1.5, 3, 6, 10, False),
        # Seven tenths of the run are most of it; two readings before tell of no rise.
        (1.5, 3, 7, 10, True), (0.1, 2, 1, 10, True), (0.1, 3, 1, 10, False),
    ],
)  # fmt: skip
def test_a_late_window_must_rise_faster_than_what_was_before(
    estimate: float, before: int, window: int, run: int, real: bool
) -> None:
    slope = Slope(2 * estimate, 0.0, 4.0, window)
    rising = [2.0 * i for i in range(before)]
    assert is_a_real_start(slope, _x(before), rising, window, run) is real


def test_a_logarithm_slows_and_a_line_does_not() -> None:
    x = [float(i) for i in range(3, 23)]
    logarithm = [100 * math.log1p(a - 3) for a in x]
    assert slows_like_a_logarithm(x, logarithm, 3.0)
    assert not slows_like_a_logarithm(x, x, 3.0)
    # Neither is better of what does not rise.
    assert not slows_like_a_logarithm(x, [5.0] * 20, 3.0)


def test_what_a_line_leaves_over_is_counted_from_its_middle() -> None:
    # Slope 1; left over are 10, 10, 10, 13 and 10.
    assert _left_over(_x(5), [10.0, 11, 12, 16, 14]) == pytest.approx(3.0)

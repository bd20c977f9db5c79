"""Slopes, blocks and hinges match scipy, and tests distinguish the rise of a leak from others."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from scipy import stats

from leakline.analysis.statistics.trend import (
    Hinge,
    Slope,
    _without_steps,
    block_minima,
    breaks_new_ground,
    fit_hinge,
    hinge_among,
    is_a_real_start,
    is_more_than_steps,
    keeps_rising,
    kendall_variance,
    lag_one_correlation,
    pair_slopes,
    robust_spread,
    slows_like_a_logarithm,
    stands_out,
    theil_sen,
    weighted_median,
    what_stays,
)


def _x(n: int) -> list[float]:
    return [float(i) for i in range(n)]


def _squares(n: int) -> list[float]:
    """Return squares: the slope between two points is the sum of their positions."""
    return [float(i * i) for i in range(n)]


def test_points_at_the_same_x_have_no_slope_between_them() -> None:
    assert pair_slopes([0.0, 1, 1, 3], [0.0, 2, 5, 3]) == [-1.0, 0.5, 1.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("values", "correlation"),
    [
        ([0.0, 0, 1], 0.0), ([2.0, 2, 2, 2], 0.0), ([0.0, 1, 0, 1], -0.75), ([2.0, 2, 4, 4], 0.25),
    ],
)  # fmt: skip
def test_neighbours_of_four_values_or_more_are_correlated(
    values: list[float], correlation: float
) -> None:
    assert lag_one_correlation(values) == pytest.approx(correlation)


@pytest.mark.parametrize(
    ("x", "y", "slope"),
    [
        ([3.0], [1.0], Slope(0.0, 0.0, 0.0, 1)),
        # With two points the interval includes no slope and twice the slope, in either direction.
        ([0.0, 2], [9.0, 5], Slope(-2.0, -4.0, 0.0, 2)),
        # With three points the interval is the smallest to the largest slope.
        ([0.0, 1, 2], [0.0, 1, 5], Slope(2.5, 1.0, 4.0, 3)),
        # The residuals of 8 squares are correlated by 3/8, so 20 of 28 slopes are within: all but 3 at either end.
        (_x(8), _squares(8), Slope(7.0, 3.0, 11.0, 8)),
    ],
)  # fmt: skip
def test_the_interval_of_a_slope_is_that_of_its_few_points(
    x: list[float], y: list[float], slope: Slope
) -> None:
    assert theil_sen(x, y) == slope


@pytest.mark.parametrize(("readings", "kept"), [(15, 15), (16, 16), (17, 16), (33, 16)])
def test_a_line_is_fitted_to_at_most_sixteen_blocks(readings: int, kept: int) -> None:
    xs, ys = block_minima(_x(readings), _x(readings))
    assert len(xs) == len(ys) == kept


@pytest.mark.parametrize(
    ("values", "spread"),
    [([], 0.0), ([7.0], 0.0), ([1.0, 2, 3, 4, 100], 1.4826), ([0.0, 10, 20], 14.826)],
)
def test_one_outlier_does_not_increase_the_spread(values: list[float], spread: float) -> None:
    assert robust_spread(values) == pytest.approx(spread)


@pytest.mark.parametrize(
    ("y", "hinge"),
    [
        ([0.0, 1, 2], None), ([0.0, 0, 1, 2], Hinge(1.0, 1.0, 1.0, 1.0)),
        ([0.0, 1, 2, 3], Hinge(0.0, 0.0, 0.0, 1.0)), ([0.0, 0, 0, 0, 5, 10], Hinge(3.0, 3.0, 3.0, 5.0)),
        # The rise counts, not the level.
        ([1000.0, 1000, 1000, 1000, 1001, 1002], Hinge(3.0, 3.0, 3.0, 1.0)),
    ],
)  # fmt: skip
def test_a_line_bends_at_its_last_flat_point(y: list[float], hinge: Hinge | None) -> None:
    assert fit_hinge(_x(len(y)), y) == hinge


def test_equally_good_bends_bound_the_interval_of_the_bend() -> None:
    # With 10 points, losses up to 11.353 count as equal to a loss of 10.
    fits = [(10.0, 2.0, 4.0, 6.0), (11.35, 1.0, 3.0, 4.0), (11.0, 3.0, 8.0, 9.0), (11.36, 1.0, 1.0, 12.0)]  # fmt: skip
    assert hinge_among(fits, 10, 0.0) == Hinge(5.0, 3.0, 9.0, 2.0)


def test_without_noise_a_thousandth_of_the_rise_is_tolerance() -> None:
    fits = [(0.0, 1.0, 5.0, 5.0), (1.0, 1.0, 4.0, 4.0), (1.01, 1.0, 3.0, 3.0)]
    assert hinge_among(fits, 20, 1000.0) == Hinge(5.0, 4.0, 5.0, 1.0)


@pytest.mark.parametrize(
    ("pairs", "median"),
    [
        ([(1.0, 1.0), (2.0, 1.0)], 1.0),
        ([(1.0, 1.0), (2.0, 3.0)], 2.0),
        ([(1.0, 1.0), (2.0, 1.0), (3.0, 5.0)], 3.0),
        ([(1.0, 2.0), (2.0, 1.0), (3.0, 1.0)], 1.0),
    ],
)
def test_the_weighted_median_is_at_half_of_the_weight(
    pairs: list[tuple[float, float]], median: float
) -> None:
    assert weighted_median(pairs) == median


@pytest.mark.parametrize(
    ("y", "keeps"),
    [
        ([9.0, 9.1, 9.2, 9.3, 9.4, 9.5, 9.6], True),
        # The second half must rise by 7 tenths of the first.
        ([0.0, 10, 20, 30, 37, 44, 51], True),
        # At least 22 % of all growth must be in the last third, and at most 65 % in any third.
        ([0.0, 10, 20, 34, 78, 89, 100], True), ([0.0, 10, 20, 34, 78.1, 89, 100], False),
        ([0.0, 6, 13, 45, 78, 89, 100], True), ([0.0, 6, 12.9, 45, 78, 89, 100], False),
    ],
)  # fmt: skip
def test_lasting_growth_continues_in_the_second_half_and_last_third(
    y: list[float], keeps: bool
) -> None:
    assert keeps_rising(_x(7), y) is keeps


def test_two_readings_have_no_second_half() -> None:
    assert not keeps_rising([0.0, 1], [0.0, 5])
    assert keeps_rising([0.0, 1, 2], [0.0, 5, 10])
    # Nor do three readings with one far away: only the last is beyond half of the way.
    assert not keeps_rising([0.0, 1, 9], [0.0, 5, 45])
    assert not keeps_rising([0.0, 8, 9], [0.0, 5, 3])


def test_three_jumps_are_not_growth_however_far_apart() -> None:
    assert _without_steps(_x(8), [0.0, 10, 10, 20, 20, 30, 30, 30]) == 0
    # Seven of ten equal rises remain.
    assert _without_steps(_x(11), [5.0 * i for i in range(11)]) == pytest.approx(0.7)
    assert _without_steps(_x(5), [4.0, 4, 4, 4, 4]) == 0
    assert _without_steps(_x(5), [4.0, 3, 2, 1, 0]) == 0
    # Small growth counts as growth.
    assert _without_steps(_x(6), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(0.4)


def test_the_gain_across_lost_generations_is_not_a_jump() -> None:
    x = [0.0, 1, 2, 3, 8, 9, 10, 11, 12]
    # Eight gaps with a rise of 5 each.
    assert _without_steps(x, [5.0 * g for g in x]) == pytest.approx(5 / 8)
    # If every second generation is read, a jump across four counts as two.
    assert _without_steps([0.0, 2, 4, 6, 10, 12], [0.0, 2, 4, 6, 10, 12]) == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("small", "more"),
    # Five small rises after three of 70: 30 % of the total is 18 each.
    [(18.0, True), (17.9, False)],
)
def test_without_its_three_jumps_growth_keeps_three_tenths(small: float, more: bool) -> None:
    y = [0.0, 70, 140, 210] + [210 + small * i for i in range(1, 6)]
    assert is_more_than_steps(_x(9), y) is more


def test_lasting_levels_are_never_undercut_later() -> None:
    assert what_stays([5.0, 1, 3, 2, 4]) == [1.0, 1.0, 2.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("window", "before", "new"),
    [
        ([0.0, 1, 2, 3, 4, 5, 6, 7], [], True),
        # The low of the last quarter, 6, was reached before.
        ([0.0, 1, 2, 6, 4, 5, 6, 7], [], False), ([0.0, 1, 2, 5.9, 4, 5, 6, 7], [], True),
        # In a window of two or three, the last two are the newest.
        ([5.0], [], True), ([5.0], [5.0], False),
    ],
)  # fmt: skip
def test_new_maxima_exceed_all_earlier_readings(
    window: list[float], before: list[float], new: bool
) -> None:
    assert breaks_new_ground(window, before) is new


def test_a_few_outliers_do_not_prevent_new_maxima() -> None:
    window = [float(i) for i in range(44)]
    assert breaks_new_ground(window, [0.0] * 29 + [100.0])
    assert not breaks_new_ground(window, [0.0] * 28 + [100.0, 100.0])
    assert breaks_new_ground([*window[:40], 0.0, *window[41:]], [])
    assert not breaks_new_ground([*window[:40], 0.0, 0.0, *window[42:]], [])


@pytest.mark.parametrize(("slope", "out"), [(5.93, False), (5.94, True)])
def test_growth_must_exceed_four_spreads(slope: float, out: bool) -> None:
    # Deviations of -1, 0, 1, 0 and -1 give a spread of 1.4826; the growth over 4 generations equals the slope.
    line = Slope(slope / 4, 0.0, 1.0, 5)
    y = [line.estimate * i + off for i, off in enumerate((-1.0, 0.0, 1.0, 0.0, 2.0))]
    assert stands_out(_x(5), y, line) is out


def test_a_line_without_noise_is_significant() -> None:
    assert stands_out(_x(5), _x(5), Slope(1.0, 1.0, 1.0, 5))
    assert stands_out(_x(5), [4.0] * 5, Slope(0.0, 0.0, 0.0, 5))


def test_growth_is_counted_from_the_first_generation_read() -> None:
    x = [float(i) for i in range(100, 105)]
    y = [a + off for a, off in zip(x, (-1.0, 0.0, 1.0, 0.0, 2.0), strict=True)]
    assert not stands_out(x, y, Slope(1.0, 0.5, 1.5, 5))


@pytest.mark.parametrize(
    ("estimate", "before", "window", "run", "real"),
    [
        (1.6, 3, 6, 10, True), (1.5, 3, 6, 10, False),
        # Seven tenths of the run are most of it; two earlier readings show no rise.
        (1.5, 3, 7, 10, True),
    ],
)  # fmt: skip
def test_a_late_window_must_rise_faster_than_earlier_readings(
    estimate: float, before: int, window: int, run: int, real: bool
) -> None:
    slope = Slope(2 * estimate, 0.0, 4.0, window)
    rising = [2.0 * i for i in range(before)]
    assert is_a_real_start(slope, _x(before), rising, window, run) is real


def test_a_logarithm_slows_down_and_a_line_does_not() -> None:
    x = [float(i) for i in range(3, 23)]
    logarithm = [100 * math.log1p(a - 3) for a in x]
    assert slows_like_a_logarithm(x, logarithm, 3.0)
    assert not slows_like_a_logarithm(x, x, 3.0)
    # Without a rise neither model is better.
    assert not slows_like_a_logarithm(x, [5.0] * 20, 3.0)


def _series(seed: int, n: int, slope: float) -> tuple[list[float], list[float]]:
    rng = random.Random(seed)
    x = [float(i) for i in range(n)]
    return x, [slope * i + rng.gauss(0, 1) for i in range(n)]


@pytest.mark.parametrize("n", [4, 8, 16, 40])
@pytest.mark.parametrize("seed", range(3))
def test_slope_and_interval_match_scipy_for_uncorrelated_points(seed: int, n: int) -> None:
    x, y = _series(seed, n, 0.3)
    line = theil_sen(x, y)
    rest = [b - line.estimate * a for a, b in zip(x, y, strict=True)]
    theirs = stats.theilslopes(y, x, 0.90)
    assert line.estimate == pytest.approx(theirs.slope)
    if n == 4:
        return
    if lag_one_correlation(rest) <= 0:
        assert (line.low, line.high) == pytest.approx((theirs.low_slope, theirs.high_slope))
    else:
        assert line.low <= theirs.low_slope + 1e-12
        assert line.high >= theirs.high_slope - 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_the_variance_of_kendalls_s_matches_scipy(seed: int) -> None:
    x, y = _series(seed, 30, 0.02)
    y = [round(v) for v in y]  # makes ties
    s = sum((b > a) - (b < a) for i, a in enumerate(y) for b in y[i + 1 :])
    z = s / math.sqrt(kendall_variance(y))
    theirs = stats.kendalltau(x, y, method="asymptotic")
    assert math.erfc(abs(z) / math.sqrt(2)) == pytest.approx(theirs.pvalue, rel=1e-6)


def test_the_bend_is_at_the_best_of_all_hinges() -> None:
    """Also if most hinges are not tried, as for a line that rises from its first point on."""
    rng = random.Random(5)
    for begin in range(0, 40, 4):
        y = [float(10 * max(0, i - begin) + rng.randint(-9, 9)) for i in range(40)]
        every = []
        for bend in range(38):
            flat = statistics.median(y[: bend + 1])
            slopes = sorted(((y[i] - flat) / (i - bend), i - bend) for i in range(bend + 1, 40))
            slope = weighted_median(slopes)
            line = [flat + slope * max(0, i - bend) for i in range(40)]
            error = sum(abs(a - b) for a, b in zip(y, line, strict=True))
            every.append((error, slope, float(bend), float(bend)))
        expected = hinge_among(every, 40, abs(y[-1] - y[0]))
        found = fit_hinge(_x(40), y)
        assert found is not None and expected is not None
        assert (found.start, found.low, found.high) == (expected.start, expected.low, expected.high)
        assert found.slope == pytest.approx(expected.slope)


def test_a_falling_line_has_no_hinge() -> None:
    assert fit_hinge([float(i) for i in range(10)], [10.0 - i for i in range(10)]) is None

"""The robust line is the published one: slope, interval and variance as scipy computes them."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from leakline.analysis.trend import (
    block_minima,
    fit_hinge,
    kendall_variance,
    lag_one_correlation,
    theil_sen,
)


def _series(seed: int, n: int, slope: float) -> tuple[list[float], list[float]]:
    rng = random.Random(seed)
    x = [float(i) for i in range(n)]
    return x, [slope * i + rng.gauss(0, 1) for i in range(n)]


@pytest.mark.parametrize("n", [4, 8, 16, 40])
@pytest.mark.parametrize("seed", range(5))
def test_the_slope_is_scipys(seed: int, n: int) -> None:
    x, y = _series(seed, n, 0.3)
    assert theil_sen(x, y).estimate == pytest.approx(stats.theilslopes(y, x, 0.90).slope)


@pytest.mark.parametrize("n", [8, 16, 40])
@pytest.mark.parametrize("seed", range(5))
def test_the_interval_is_scipys_when_neighbours_are_unrelated(seed: int, n: int) -> None:
    x, y = _series(seed, n, 0.3)
    line = theil_sen(x, y)
    rest = [b - line.estimate * a for a, b in zip(x, y, strict=True)]
    theirs = stats.theilslopes(y, x, 0.90)
    if lag_one_correlation(rest) <= 0:
        assert (line.low, line.high) == pytest.approx((theirs.low_slope, theirs.high_slope))
    else:
        assert line.low <= theirs.low_slope + 1e-12
        assert line.high >= theirs.high_slope - 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_the_variance_of_kendalls_s_gives_scipys_p_value(seed: int) -> None:
    x, y = _series(seed, 30, 0.02)
    y = [round(v) for v in y]  # ties
    s = sum((b > a) - (b < a) for i, a in enumerate(y) for b in y[i + 1 :])
    z = s / math.sqrt(kendall_variance(y))
    theirs = stats.kendalltau(x, y, method="asymptotic")
    assert math.erfc(abs(z) / math.sqrt(2)) == pytest.approx(theirs.pvalue, rel=1e-6)


def test_related_neighbours_widen_the_interval() -> None:
    rng = random.Random(3)
    x = [float(i) for i in range(40)]
    level, y = 0.0, []
    for i in range(40):
        level = 0.8 * level + rng.gauss(0, 1)
        y.append(0.05 * i + level)
    line, theirs = theil_sen(x, y), stats.theilslopes(y, x, 0.90)
    assert line.high - line.low > 1.3 * (theirs.high_slope - theirs.low_slope)


def test_ninety_per_cent_intervals_hold_the_true_slope() -> None:
    held = sum(
        line.low <= 0.3 <= line.high
        for line in (theil_sen(*_series(seed, 16, 0.3)) for seed in range(400))
    )
    assert held / 400 >= 0.87


def test_two_readings_do_not_pretend_to_be_sure() -> None:
    line = theil_sen([0.0, 1.0], [5.0, 7.0])
    assert (line.low, line.estimate, line.high) == (0.0, 2.0, 4.0)
    assert not line.rises


def test_block_minima_are_the_lower_envelope() -> None:
    x = [float(i) for i in range(64)]
    y = [i + 50.0 * (i % 4 != 0) for i in range(64)]
    xs, ys = block_minima(x, y)
    assert len(xs) == 16
    assert xs == ys  # only the untouched readings are left


@pytest.mark.parametrize("bend", [4, 10, 20])
def test_the_hinge_finds_where_the_rise_begins(bend: int) -> None:
    rng = random.Random(bend)
    x = [float(i) for i in range(36)]
    y = [10 + 2.0 * max(0, i - bend) + rng.gauss(0, 0.5) for i in range(36)]
    hinge = fit_hinge(x, y)
    assert hinge is not None
    assert abs(hinge.start - bend) <= 1
    assert hinge.low <= bend <= hinge.high
    assert hinge.slope == pytest.approx(2.0, rel=0.05)


def test_no_hinge_in_a_falling_line() -> None:
    assert fit_hinge([float(i) for i in range(10)], [10.0 - i for i in range(10)]) is None

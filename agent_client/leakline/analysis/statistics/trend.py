"""Robust straight lines: Theil-Sen slope, Kendall interval widened for autocorrelation, hinge for the start.

Sources: Sen (1968) for the slope and its interval; Hamed and Rao (1998) for the idea of inflating the
variance of Kendall's S, here by (1 + r) / (1 - r) for the lag-1 correlation r of the residuals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

# 90 % two-sided; what every interval of this project states.
Z_90: Final = 1.6448536269514722
# More points than this say nothing more about a slope and cost quadratically.
MAX_BLOCKS: Final = 16
MAX_HINGE_POINTS: Final = 48
_MAX_CORRELATION: Final = 0.9
# Half of the 90 % quantile of chi-square with one degree of freedom: profile likelihood of Laplace noise.
_PROFILE: Final = 1.353


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of y per unit of x with its 90 % interval; ``points`` is how many readings it rests on."""

    estimate: float
    low: float
    high: float
    points: int

    @property
    def rises(self) -> bool:
        return self.low > 0

    def scaled(self, factor: float) -> Slope:
        ends = sorted((self.low * factor, self.high * factor))
        return Slope(self.estimate * factor, ends[0], ends[1], self.points)

    def plus(self, other: Slope) -> Slope:
        """Return the slope of the sum, which rests on the fewer readings of the two."""
        points = min(self.points, other.points) or max(self.points, other.points)
        return Slope(
            self.estimate + other.estimate, self.low + other.low, self.high + other.high, points
        )


NO_GROWTH: Final = Slope(0.0, 0.0, 0.0, 0)


# (absolute error, slope, first x and last x at which it bends: the same but where readings are missing)
Fit = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Hinge:
    """Flat until ``start``, a straight line from there; ``low`` and ``high`` bound where it may bend."""

    start: float
    low: float
    high: float
    slope: float


def pair_slopes(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """All slopes between two points of different x, ascending."""
    n = len(x)
    return sorted(
        (y[j] - y[i]) / (x[j] - x[i]) for i in range(n) for j in range(i + 1, n) if x[j] != x[i]
    )


def kendall_variance(y: Sequence[float]) -> float:
    """Variance of Kendall's S under no trend, corrected for ties in ``y``."""
    n = len(y)
    counts: dict[float, int] = {}
    for value in y:
        counts[value] = counts.get(value, 0) + 1
    ties = sum(t * (t - 1) * (2 * t + 5) for t in counts.values() if t > 1)
    return (n * (n - 1) * (2 * n + 5) - ties) / 18


def lag_one_correlation(values: Sequence[float]) -> float:
    """Correlation of neighbouring values; 0 when it cannot be told."""
    n = len(values)
    if n < 4:
        return 0.0
    mean = sum(values) / n
    spread = sum((v - mean) ** 2 for v in values)
    if spread <= 0:
        return 0.0
    return sum((values[i] - mean) * (values[i + 1] - mean) for i in range(n - 1)) / spread


def theil_sen(x: Sequence[float], y: Sequence[float]) -> Slope:
    """The median slope of ``y`` over ``x`` with its 90 % interval.

    Up to three points have no spread worth the name: two points give an interval of the estimate's own
    size, three give the smallest and largest of their slopes.
    """
    slopes = pair_slopes(x, y)
    if not slopes:
        return Slope(0.0, 0.0, 0.0, len(x))
    middle = median(slopes)
    if len(x) == 2:
        return Slope(middle, min(0.0, 2 * middle), max(0.0, 2 * middle), 2)
    if len(x) == 3:
        return Slope(middle, slopes[0], slopes[-1], 3)
    base = median([b - middle * a for a, b in zip(x, y, strict=True)])
    rho = lag_one_correlation([b - base - middle * a for a, b in zip(x, y, strict=True)])
    rho = min(max(rho, 0.0), _MAX_CORRELATION)
    reach = Z_90 * math.sqrt(kendall_variance(y) * (1 + rho) / (1 - rho))
    low = max(round((len(slopes) - reach) / 2) - 1, 0)
    high = min(round((len(slopes) + reach) / 2), len(slopes) - 1)
    return Slope(middle, slopes[low], slopes[high], len(x))


def block_minima(
    x: Sequence[float], y: Sequence[float], blocks: int = MAX_BLOCKS
) -> tuple[list[float], list[float]]:
    """The lower envelope: the lowest point of each of at most ``blocks`` equal stretches, with its own x."""
    n = len(x)
    if n <= blocks:
        return list(x), list(y)
    xs, ys = [], []
    for b in range(blocks):
        first, last = b * n // blocks, (b + 1) * n // blocks
        lowest = min(range(first, last), key=lambda i: (y[i], i))
        xs.append(x[lowest])
        ys.append(y[lowest])
    return xs, ys


def floor_slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Theil-Sen on block minima: what stays, whatever comes and goes above it."""
    slope = theil_sen(*block_minima(x, y))
    return Slope(slope.estimate, slope.low, slope.high, len(x))


def robust_spread(values: Sequence[float]) -> float:
    """Standard deviation as the median absolute deviation sees it."""
    if not values:
        return 0.0
    middle = median(values)
    return 1.4826 * median([abs(v - middle) for v in values])


def fit_hinge(x: Sequence[float], y: Sequence[float]) -> Hinge | None:
    """Where a flat line turns into a rising one, by least absolute error; None below four points.

    ``start`` is the last x that still lies on the flat part. When the line rises from the first point on,
    ``start`` is that first x.
    """
    if len(x) < 4:
        return None
    if len(x) > MAX_HINGE_POINTS:
        x, y = block_minima(x, y, MAX_HINGE_POINTS)
    fits = [(*_fit_from(x, y, i), x[i], x[i]) for i in range(len(x) - 2)]
    return hinge_among(fits, len(x), abs(y[-1] - y[0]))


def hinge_among(fits: Sequence[Fit], points: int, rise: float) -> Hinge | None:
    """The best of these with all that are as good but for noise; None where none rises."""
    fits = [fit for fit in fits if fit[1] > 0]
    if not fits:
        return None
    loss, slope, first, last = min(fits)
    # Without any noise the profile would have no width; a thousandth of the rise stands for rounding.
    allowed = loss * (1 + _PROFILE / points) + 1e-3 * rise
    near = [fit for fit in fits if fit[0] <= allowed]
    return Hinge(
        (first + last) / 2, min(fit[2] for fit in near), max(fit[3] for fit in near), slope
    )


def _fit_from(x: Sequence[float], y: Sequence[float], bend: int) -> tuple[float, float]:
    """(absolute error, slope) of the best hinge that bends at ``x[bend]``."""
    flat = median(y[: bend + 1])
    after = range(bend + 1, len(x))
    ratios = sorted(((y[i] - flat) / (x[i] - x[bend]), x[i] - x[bend]) for i in after)
    slope = weighted_median(ratios)
    error = sum(abs(y[i] - flat) for i in range(bend + 1))
    error += sum(abs(y[i] - flat - slope * (x[i] - x[bend])) for i in after)
    return error, slope


def weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    """Of (value, weight) in ascending order."""
    half, passed = sum(weight for _, weight in pairs) / 2, 0.0
    for value, weight in pairs:
        passed += weight
        if passed >= half:
            return value
    return pairs[-1][0]

"""Robust straight lines and the shape of a rise: Theil-Sen slope, Kendall interval, and a hinge for the start.

Sources: Sen (1968) for the slope and its interval; Hamed and Rao (1998) for the idea of inflating the
variance of Kendall's S, here by (1 + r) / (1 - r) for the lag-1 correlation r of the residuals.

The tests of the shape distinguish lasting growth from growth that flattens, single steps, sawteeth and seasons. Each
test takes readings in order and returns True if they look like lasting growth.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise, repeat
from operator import itemgetter, mul, sub, truediv
from statistics import median
from typing import Final

# Two-sided 90 %, the level of every interval in this project.
Z_90: Final = 1.6448536269514722
# More points than this add no information about a slope, but cost quadratic time.
MAX_BLOCKS: Final = 16
MAX_HINGE_POINTS: Final = 48
_MAX_CORRELATION: Final = 0.9
# Half of the 90 % quantile of chi-square with one degree of freedom: profile likelihood of Laplace noise.
_PROFILE: Final = 1.353


@dataclass(frozen=True, slots=True)
class Slope:
    """The change of y per unit of x with its 90 % interval, based on ``points`` readings."""

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
        """Return the sum of both slopes, based on the smaller number of readings."""
        points = min(self.points, other.points) or max(self.points, other.points)
        return Slope(
            self.estimate + other.estimate, self.low + other.low, self.high + other.high, points
        )


NO_GROWTH: Final = Slope(0.0, 0.0, 0.0, 0)


# (absolute error, slope, first and last x at which it may bend: they differ only where readings are missing)
Fit = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Hinge:
    """A line that is flat until ``start`` and then rises; ``low`` and ``high`` bound the position of the bend."""

    start: float
    low: float
    high: float
    slope: float


def pair_slopes(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Return all slopes between two points of different x, ascending."""
    pairs = combinations(zip(x, y, strict=True), 2)
    return sorted([(d - b) / (c - a) for (a, b), (c, d) in pairs if c != a])


def kendall_variance(y: Sequence[float]) -> float:
    """Return the variance of Kendall's S without a trend, corrected for ties in ``y``."""
    n = len(y)
    counts: dict[float, int] = {}
    for value in y:
        counts[value] = counts.get(value, 0) + 1
    ties = 0
    for t in counts.values():
        ties += t * (t - 1) * (2 * t + 5)
    return (n * (n - 1) * (2 * n + 5) - ties) / 18


def lag_one_correlation(values: Sequence[float]) -> float:
    """Return the correlation of neighbouring values, or 0 if it cannot be determined."""
    n = len(values)
    if n < 4:
        return 0.0
    mean = sum(values) / n
    deviations: list[float] = list(map(sub, values, repeat(mean)))
    spread = sum([v**2 for v in deviations])
    if spread <= 0:
        return 0.0
    together: float = sum(map(mul, deviations, deviations[1:]))
    return together / spread


def theil_sen(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Return the median slope of ``y`` over ``x`` with its 90 % interval.

    Up to three points have no meaningful spread. For two points, the interval reaches from 0 to twice the estimate;
    for three points, from the smallest to the largest slope.
    """
    slopes = pair_slopes(x, y)
    if not slopes:
        return Slope(0.0, 0.0, 0.0, len(x))
    middle = median(slopes)
    if len(x) == 2:
        return Slope(middle, min(0.0, 2 * middle), max(0.0, 2 * middle), 2)
    if len(x) == 3:
        return Slope(middle, slopes[0], slopes[-1], 3)
    line = list(map(mul, repeat(middle), x))
    base = median(map(sub, y, line))
    rho = lag_one_correlation(list(map(sub, map(sub, y, repeat(base)), line)))
    rho = min(max(rho, 0.0), _MAX_CORRELATION)
    reach = Z_90 * math.sqrt(kendall_variance(y) * (1 + rho) / (1 - rho))
    low = max(round((len(slopes) - reach) / 2) - 1, 0)
    high = min(round((len(slopes) + reach) / 2), len(slopes) - 1)
    return Slope(middle, slopes[low], slopes[high], len(x))


def block_minima(
    x: Sequence[float], y: Sequence[float], blocks: int = MAX_BLOCKS
) -> tuple[list[float], list[float]]:
    """Return the lower envelope: the lowest point in each of at most ``blocks`` equal blocks."""
    n = len(x)
    if n <= blocks:
        return list(x), list(y)
    xs, ys = [], []
    for b in range(blocks):
        first, last = b * n // blocks, (b + 1) * n // blocks
        lowest = min(range(first, last), key=y.__getitem__)
        xs.append(x[lowest])
        ys.append(y[lowest])
    return xs, ys


def floor_slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Return the Theil-Sen slope of block minima: the trend of the floor, regardless of the peaks above it."""
    slope = theil_sen(*block_minima(x, y))
    return Slope(slope.estimate, slope.low, slope.high, len(x))


def robust_spread(values: Sequence[float]) -> float:
    """Return the standard deviation as estimated by the median absolute deviation."""
    if not values:
        return 0.0
    middle = median(values)
    return 1.4826 * median([abs(v - middle) for v in values])


def fit_hinge(x: Sequence[float], y: Sequence[float]) -> Hinge | None:
    """Fit a line that is flat and then rises, by least absolute error.

    ``start`` is the last x on the flat part, or the first x if the line rises from the first point. Return None for
    fewer than four points or if no fit rises.
    """
    if len(x) < 4:
        return None
    if len(x) > MAX_HINGE_POINTS:
        x, y = block_minima(x, y, MAX_HINGE_POINTS)
    fits, ordered = list[Fit](), list[float]()
    rise, allowed = abs(y[-1] - y[0]), math.inf
    for bend in range(len(x) - 2):
        insort(ordered, y[bend])
        flat = (ordered[bend // 2] + ordered[(bend + 1) // 2]) / 2
        error = sum(map(abs, map(sub, y[: bend + 1], repeat(flat))))
        if error > allowed:
            # The error of the flat part alone is too large, and later bends make that part longer.
            break
        rest, slope = _fit_from(x, y, bend, flat)
        fits.append((error + rest, slope, x[bend], x[bend]))
        if slope > 0:
            allowed = min(allowed, _allowed(error + rest, len(x), rise))
    return hinge_among(fits, len(x), rise)


def _allowed(loss: float, points: int, rise: float) -> float:
    """Return the largest absolute error at which noise still explains the distance to the best fit.

    Without any noise the profile would have no width; a thousandth of the rise allows for rounding.
    """
    return loss * (1 + _PROFILE / points) + 1e-3 * rise


def hinge_among(fits: Sequence[Fit], points: int, rise: float) -> Hinge | None:
    """Return the best rising fit, bounded by all fits that are equally good within noise, or None."""
    fits = [fit for fit in fits if fit[1] > 0]
    if not fits:
        return None
    loss, slope, first, last = min(fits)
    allowed = _allowed(loss, points, rise)
    near = [fit for fit in fits if fit[0] <= allowed]
    low, high = min(map(itemgetter(2), near)), max(map(itemgetter(3), near))
    return Hinge((first + last) / 2, low, high, slope)


def _fit_from(
    x: Sequence[float], y: Sequence[float], bend: int, flat: float
) -> tuple[float, float]:
    """Return (absolute error after the bend, slope) of the best hinge that bends at ``x[bend]``.

    ``flat``: the median up to that point. The code avoids a Python call per point, because every point of a series
    is tried as the bend.
    """
    rises = list(map(sub, y[bend + 1 :], repeat(flat)))
    runs = list(map(sub, x[bend + 1 :], repeat(x[bend])))
    slope = weighted_median(sorted(zip(map(truediv, rises, runs), runs, strict=True)))
    return sum(map(abs, map(sub, rises, map(mul, repeat(slope), runs)))), slope


def weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the weighted median of (value, weight) pairs in ascending order."""
    passed = list(accumulate(map(itemgetter(1), pairs)))
    return pairs[bisect_left(passed, passed[-1] / 2)][0]


# Thresholds found by measurement; the strict threshold is required for a leak that only memory shows.
HALF_RATIO: Final = 0.7
STRICT_HALF_RATIO: Final = 0.8
_LAST_THIRD: Final = 0.22
_ANY_THIRD: Final = 0.65
# How many of the largest increments to remove, and the shares of the growth that must remain without them.
_STEPS: Final = 3
_WITHOUT_STEPS: Final = 0.30
_STAYS_WITHOUT_STEPS: Final = 0.45
_SIGNAL: Final = 4.0
_CLEARLY_BETTER: Final = 0.85


def keeps_rising(x: Sequence[float], y: Sequence[float], ratio: float = HALF_RATIO) -> bool:
    """Return False for saturation: the second half must rise nearly as fast as the first."""
    growth = y[-1] - y[0]
    if growth <= 0 or half_ratio(x, y) < ratio:
        return False
    a, b = (_at(x, y, x[0] + share * (x[-1] - x[0])) for share in (1 / 3, 2 / 3))
    thirds = (a - y[0], b - a, y[-1] - b)
    return thirds[2] >= _LAST_THIRD * growth and max(thirds) <= _ANY_THIRD * growth


def half_ratio(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the second half divided by the slope of the first half.

    Return 0 if the second half does not rise.
    """
    middle = next(i for i, a in enumerate(x) if a >= (x[0] + x[-1]) / 2)
    if not 0 < middle < len(x) - 1:
        return 0.0
    first = theil_sen(x[: middle + 1], y[: middle + 1]).estimate
    last = theil_sen(x[middle:], y[middle:]).estimate
    if last <= 0:
        return 0.0
    return last / first if first > 0 else math.inf


def _at(x: Sequence[float], y: Sequence[float], where: float) -> float:
    """Return the value at ``where``, interpolated linearly between readings."""
    i = max(1, next(i for i, a in enumerate(x) if a >= where))
    return y[i - 1] + (y[i] - y[i - 1]) * (where - x[i - 1]) / (x[i] - x[i - 1])


def is_more_than_steps(x: Sequence[float], y: Sequence[float], steps: int = _STEPS) -> bool:
    """Return False if ``steps`` jumps make up most of the growth, as for checkpoint buffers and allocator arenas.

    Noisy readings jump up as often as down, so their floor is also tested, with a stricter threshold.
    """
    return (
        _without_steps(x, y, steps) >= _WITHOUT_STEPS
        or _without_steps(x, what_stays(y), steps) >= _STAYS_WITHOUT_STEPS
    )


def _without_steps(x: Sequence[float], y: Sequence[float], steps: int = _STEPS) -> float:
    """Return the share of the growth that remains without its largest jumps, or 0 if nothing grows."""
    # The combined gain of missing generations must not look like one jump.
    gaps = [b - a for a, b in pairwise(x)]
    usual = median(gaps)
    jumps = [(b - a) * usual / gap for (a, b), gap in zip(pairwise(y), gaps, strict=True)]
    growth = sum(jumps)
    jumps.sort(reverse=True)
    return 1 - sum(jumps[:steps]) / growth if growth > 0 else 0.0


def what_stays(y: Sequence[float]) -> list[float]:
    """Return, for each reading, the minimum of this reading and all later readings."""
    return list(accumulate(reversed(y), min))[::-1]


def breaks_new_ground(window: Sequence[float], before: Sequence[float]) -> bool:
    """Return False for sawteeth and seasons: the lows of the last quarter must exceed nearly all earlier readings.

    ``before``: the readings before the window.
    """
    recent = sorted(window[-max(2, len(window) // 4) :])
    earlier = sorted([*before, *window[: len(window) // 2]])
    if not earlier:
        return True
    low = recent[int(0.1 * (len(recent) - 1))]
    return low > earlier[min(len(earlier) - 1, int(0.98 * len(earlier)))]


def stands_out(x: Sequence[float], y: Sequence[float], slope: Slope) -> bool:
    """Return True if the growth is at least four times the spread of the residuals."""
    rest = [b - slope.estimate * a for a, b in zip(x, y, strict=True)]
    return slope.estimate * (x[-1] - x[0]) >= _SIGNAL * robust_spread(rest)


def is_most_of(window: int, run: int) -> bool:
    """Return True if a window covers most of the run."""
    return window >= 0.7 * run


def is_a_real_start(
    slope: Slope, before_x: Sequence[float], before_y: Sequence[float], window: int, run: int
) -> bool:
    """Return True if a window shows a rise of its own.

    The window must cover most of the run, or rise clearly faster than the readings before it. Otherwise the tail of
    a long, decaying rise would pass as a new leak.
    """
    if is_most_of(window, run) or len(before_x) < 3:
        return True
    return slope.estimate >= 1.6 * theil_sen(before_x, before_y).estimate


def slows_like_a_logarithm(
    x: Sequence[float], y: Sequence[float], first: float, spacing: float = 1.0
) -> bool:
    """Return True if the rise follows the logarithm of the readings since ``first`` clearly better than a line.

    Caches of rare items and settling heaps rise in this way, more and more slowly.
    """
    logs = [math.log1p((a - first) / spacing) for a in x]
    return _left_over(logs, y) < _CLEARLY_BETTER * _left_over(x, y)


def _left_over(x: Sequence[float], y: Sequence[float]) -> float:
    slope = theil_sen(x, y).estimate
    rest = [b - slope * a for a, b in zip(x, y, strict=True)]
    middle = median(rest)
    return sum([abs(r - middle) for r in rest])

"""What memory alone says at one moment of the run: does it rise lastingly, over how long, how fast?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from .growth_shape import (
    HALF_RATIO,
    STRICT_HALF_RATIO,
    breaks_new_ground,
    half_ratio,
    is_a_real_start,
    is_more_than_steps,
    is_most_of,
    keeps_rising,
    slows_like_a_logarithm,
    stands_out,
)
from .trend import Slope, block_minima, floor_slope, theil_sen

# Growth matters when it adds this share of the baseline within the horizon.
MATERIAL: Final = 0.05
# Below this share it is not worth a second look.
TRIVIAL: Final = 0.005
_MAX_HORIZON: Final = 100
_NEAR_LIMIT: Final = 0.90
WINDOWS: Final = (8, 12, 16, 24, 36, 54, 81, 122, 183, 275, 412, 618, 927)
# Readings kept of a long window; block minima need no more.
_THINNED: Final = 256
# Readings before the window that the sawtooth test looks back on.
_LOOK_BACK: Final = 256
_MIN_FOR_TREND: Final = 5
# In a run with as many readings or more, a window that is most of it shows a slowing rise well enough.
_FEW: Final = 16
# So many times as steep as what followed, a rise is another one.
_LOADS: Final = 2.0
# What is left after taking out bounded containers must exceed this share of their own growth, because
# their sizes are known to about 10 %.
_OVER_BOUNDED: Final = 0.20


@dataclass(frozen=True, slots=True)
class Scale:
    """What growth is measured against: the memory at the start, the limit, and how far the run is to go.

    ``spacing``: units of the axis between two readings. Growth is judged per reading, so that a run which reports every
    hundredth step is judged like one which reports every step.
    """

    baseline_bytes: float
    limit_bytes: float | None = None
    level_bytes: float = 0.0
    remaining_generations: float | None = None
    spacing: int = 1

    def horizon(self, window: float) -> float:
        """Return how far ahead growth counts, in units of the axis: twice the window, at most 100 readings."""
        return min(_MAX_HORIZON * self.spacing, 2 * max(window, self.spacing))

    def share(self, rate: float, window: float) -> float:
        """Return the growth within the horizon as a share of the baseline; ``window`` in units of the axis."""
        return rate * self.horizon(window) / max(self.baseline_bytes, 1.0)

    def material_rate(self, window: float) -> float:
        """Bytes per generation from which on that share matters."""
        return MATERIAL * max(self.baseline_bytes, 1.0) / self.horizon(window)

    def ends_near_limit(self, rate: float) -> bool:
        if self.limit_bytes is None or self.remaining_generations is None or rate <= 0:
            return False
        end = self.level_bytes + rate * self.remaining_generations
        return end > _NEAR_LIMIT * self.limit_bytes

    def is_material(self, rate: float, window: float) -> bool:
        return self.share(rate, window) >= MATERIAL or self.ends_near_limit(rate)

    def is_trivial(self, rate: float, window: float) -> bool:
        return self.share(rate, window) < TRIVIAL and not self.ends_near_limit(rate)


@dataclass(frozen=True, slots=True)
class Rise:
    """What one series shows at one moment.

    ``window`` is the longest stretch (in readings) over which all tests see lasting growth, 0 when none does;
    ``strict`` the same with the stricter test for saturation. ``visible`` is a rise that matters and has not
    passed: too short, or slowing down. ``generations`` are those from the first reading of ``window`` to the last.
    """

    window: int = 0
    strict: int = 0
    slope: Slope | None = None
    visible: bool = False
    generations: int = 0


def lasting_rise(
    x: Sequence[float], y: Sequence[float], scale: Scale, bounded: Sequence[float] = ()
) -> Rise:
    """Test every window that ends at the last reading. ``bounded`` is what was taken out, in the same order."""
    n = len(y)
    if n < _MIN_FOR_TREND or y[-1] <= min(y[-min(n, WINDOWS[-1]) :]):
        return Rise()
    window = strict = 0
    slope: Slope | None = None
    lengths = {w for w in WINDOWS if w <= n} | ({n} if n >= WINDOWS[0] else set())
    for length in sorted(lengths, reverse=True):
        passed = _test(x, y, length, scale, bounded)
        if passed is None:
            continue
        if slope is None:
            window, slope = length, passed[0]
        if passed[1]:
            strict = length
            break
    generations = round(x[-1] - x[n - window]) + 1 if window else 0
    visible = bool(window) or _visible(x, y, scale, bounded)
    return Rise(window, strict, slope, visible, generations)


def _test(
    x: Sequence[float], y: Sequence[float], length: int, scale: Scale, bounded: Sequence[float]
) -> tuple[Slope, bool] | None:
    """(slope, whether the strict saturation test passes too), or None when a test speaks against growth."""
    n = len(y)
    wx, wy = _thin(x[n - length :], y[n - length :])
    bx, by = block_minima(wx, wy)
    if by[-1] <= by[0]:
        return None
    slope = theil_sen(bx, by)
    if not slope.rises or not scale.is_material(slope.estimate, length * scale.spacing):
        return None
    if not keeps_rising(bx, by, HALF_RATIO) or not is_more_than_steps(bx, by):
        return None
    before_x, before_y = (
        x[max(0, n - length - _LOOK_BACK) : n - length],
        y[max(0, n - length - _LOOK_BACK) : n - length],
    )
    if not stands_out(bx, by, slope) or not breaks_new_ground(wy, before_y):
        return None
    if not is_a_real_start(slope, *block_minima(before_x, before_y), length, n):
        return None
    if not _exceeds(slope, x, bounded, length):
        return None
    steady = not slows_like_a_logarithm(bx, by, x[0], scale.spacing)
    strict = half_ratio(bx, by) >= STRICT_HALF_RATIO
    ahead = n - length
    if ahead > 0 and n < _FEW and is_most_of(length, n):
        # In a short run check all of it too, unless it began with a rise of its own: what a program loads at first.
        loaded = y[ahead] - y[0] > _LOADS * slope.estimate * (x[ahead] - x[0])
        strict = strict and (loaded or half_ratio(*block_minima(x, y)) >= STRICT_HALF_RATIO)
    return slope, steady and strict


def _visible(
    x: Sequence[float], y: Sequence[float], scale: Scale, bounded: Sequence[float]
) -> bool:
    """A rise that matters and still goes on in the second half of the run so far."""
    n = len(y)
    half = max(_MIN_FOR_TREND - 1, n // 2)
    recent = floor_slope(x[n - half :], y[n - half :])
    whole = floor_slope(x[-_THINNED:], y[-_THINNED:])
    matters = scale.is_material(recent.estimate, half * scale.spacing) and scale.is_material(
        whole.estimate, n * scale.spacing
    )
    # What was flat for half the run leaves the slope of the whole without a sign.
    rises = whole.rises or min(y[n - half :]) > max(y[: n - half])
    if not (rises and recent.rises and matters and _exceeds(recent, x, bounded, half)):
        return False
    # Of few readings one jump makes a slope: a program that has loaded what it needs still doubles a table.
    return n >= _FEW or is_more_than_steps(x[n - half :], y[n - half :], steps=1)


def _exceeds(slope: Slope, x: Sequence[float], bounded: Sequence[float], length: int) -> bool:
    if not bounded:
        return True
    n = len(bounded)
    gained = bounded[-1] - bounded[n - length]
    span = max(x[-1] - x[n - length], 1.0)
    return slope.estimate > _OVER_BOUNDED * gained / span


def _thin(x: Sequence[float], y: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    return block_minima(x, y, _THINNED) if len(x) > _THINNED else (x, y)


def baseline_of(values: Sequence[float]) -> float:
    """The level growth is compared with: the middle of the first three generations."""
    return median(values[:3]) if values else 0.0

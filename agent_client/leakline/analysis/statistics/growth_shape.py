"""Is a rise a leak's? Growth that flattens, single steps, sawteeth and seasons are told apart here.

Each test takes readings in order and says True when the reading looks like lasting growth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import Final

from .trend import Slope, robust_spread, theil_sen

# The figures the detection notes measured; `strict` is what a page-worthy verdict asks for.
HALF_RATIO: Final = 0.7
STRICT_HALF_RATIO: Final = 0.8
_LAST_THIRD: Final = 0.22
_ANY_THIRD: Final = 0.65
# The largest block increments, and what the others must keep of the growth.
_STEPS: Final = 3
_WITHOUT_STEPS: Final = 0.30
_STAYS_WITHOUT_STEPS: Final = 0.45
_SIGNAL: Final = 4.0
_CLEARLY_BETTER: Final = 0.85


def keeps_rising(x: Sequence[float], y: Sequence[float], ratio: float = HALF_RATIO) -> bool:
    """False for saturation: the second half must rise nearly as fast as the first."""
    growth = y[-1] - y[0]
    if growth <= 0 or half_ratio(x, y) < ratio:
        return False
    a, b = (_at(x, y, x[0] + share * (x[-1] - x[0])) for share in (1 / 3, 2 / 3))
    thirds = (a - y[0], b - a, y[-1] - b)
    return thirds[2] >= _LAST_THIRD * growth and max(thirds) <= _ANY_THIRD * growth


def half_ratio(x: Sequence[float], y: Sequence[float]) -> float:
    """Return how fast the second half rises, as a share of how fast the first does; 0 where it does not."""
    middle = next(i for i, a in enumerate(x) if a >= (x[0] + x[-1]) / 2)
    if not 0 < middle < len(x) - 1:
        return 0.0
    first = theil_sen(x[: middle + 1], y[: middle + 1]).estimate
    last = theil_sen(x[middle:], y[middle:]).estimate
    if last <= 0:
        return 0.0
    return last / first if first > 0 else math.inf


def _at(x: Sequence[float], y: Sequence[float], where: float) -> float:
    """The reading at ``where`` on straight lines between readings."""
    i = max(1, next(i for i, a in enumerate(x) if a >= where))
    return y[i - 1] + (y[i] - y[i - 1]) * (where - x[i - 1]) / (x[i] - x[i - 1])


def is_more_than_steps(x: Sequence[float], y: Sequence[float], steps: int = _STEPS) -> bool:
    """False when so many jumps make most of the growth: checkpoint buffers and allocator arenas are steps.

    Readings that scatter jump up as often as down. Then what is never taken back must rise on more clearly.
    """
    return (
        _without_steps(x, y, steps) >= _WITHOUT_STEPS
        or _without_steps(x, what_stays(y), steps) >= _STAYS_WITHOUT_STEPS
    )


def _without_steps(x: Sequence[float], y: Sequence[float], steps: int = _STEPS) -> float:
    """Return the share of the growth that is left without its largest jumps; 0 where nothing grows."""
    # Where generations are missing, what they gained together must not look like one jump.
    gaps = [b - a for a, b in pairwise(x)]
    usual = median(gaps)
    jumps = [(b - a) * usual / gap for (a, b), gap in zip(pairwise(y), gaps, strict=True)]
    growth = sum(jumps)
    jumps.sort(reverse=True)
    return 1 - sum(jumps[:steps]) / growth if growth > 0 else 0.0


def what_stays(y: Sequence[float]) -> list[float]:
    """Of each reading what no later one falls below."""
    return list(accumulate(reversed(y), min))[::-1]


def breaks_new_ground(window: Sequence[float], before: Sequence[float]) -> bool:
    """False for sawteeth and seasons: the lows of the last quarter must lie above all that was before.

    ``before`` holds the readings ahead of the window.
    """
    recent = sorted(window[-max(2, len(window) // 4) :])
    earlier = sorted([*before, *window[: len(window) // 2]])
    if not earlier:
        return True
    low = recent[int(0.1 * (len(recent) - 1))]
    return low > earlier[min(len(earlier) - 1, int(0.98 * len(earlier)))]


def stands_out(x: Sequence[float], y: Sequence[float], slope: Slope) -> bool:
    """True when the growth is at least four spreads of what the line leaves over."""
    rest = [b - slope.estimate * a for a, b in zip(x, y, strict=True)]
    return slope.estimate * (x[-1] - x[0]) >= _SIGNAL * robust_spread(rest)


def is_most_of(window: int, run: int) -> bool:
    """Return True if little was before a window."""
    return window >= 0.7 * run


def is_a_real_start(
    slope: Slope, before_x: Sequence[float], before_y: Sequence[float], window: int, run: int
) -> bool:
    """A window much shorter than the run counts only when it rises clearly faster than what was before.

    Otherwise the tail of a long, decaying rise would pass as a new leak.
    """
    if is_most_of(window, run) or len(before_x) < 3:
        return True
    return slope.estimate >= 1.6 * theil_sen(before_x, before_y).estimate


def slows_like_a_logarithm(
    x: Sequence[float], y: Sequence[float], first: float, spacing: float = 1.0
) -> bool:
    """Return True when the rise follows the logarithm of the readings since ``first`` clearly better than a line.

    Caches of rare things and heaps that settle rise like that for ever, more slowly each time.
    """
    logs = [math.log1p((a - first) / spacing) for a in x]
    return _left_over(logs, y) < _CLEARLY_BETTER * _left_over(x, y)


def _left_over(x: Sequence[float], y: Sequence[float]) -> float:
    slope = theil_sen(x, y).estimate
    rest = [b - slope * a for a, b in zip(x, y, strict=True)]
    middle = median(rest)
    return sum(abs(r - middle) for r in rest)

"""Counts of live objects: integers with almost no noise, and therefore the earliest evidence of a leak."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Final, Literal

from .trend import (
    MAX_BLOCKS,
    block_minima,
    breaks_new_ground,
    fit_hinge,
    is_more_than_steps,
    keeps_rising,
    robust_spread,
    stands_out,
    theil_sen,
)

Pattern = Literal["constant", "periodic", "irregular", "noisy"]

MIN_RISES: Final = 4
_MAX_VARIATION: Final = 0.25
_NEAR_MEDIAN: Final = 0.5
_MIN_PERIODS: Final = 3
# The count already rose before the first reading if the first count is a multiple of one rise, to within this share
# of a rise.
_SAME_BEAT: Final = 0.1
# A rise is compared with the median of this many rises after it.
_COMPARED: Final = 9
_MIN_SPAN: Final = 6
_MIN_NOISY: Final = 8
# Memory rises with a count if this share of memory's gains occurs where the count rises, and if the median of
# these gains is this many times the spread of the other gains.
_MOST: Final = 0.7
_STANDS_OUT: Final = 4.0
# This ratio is loose because counts are noisy compared with their slope; a filling cache slows down even more.
_HALF_RATIO: Final = 0.5
# Number of newest readings that decide whether a count may be growing; the start of the growth is searched for in
# `LOOK_BACK` readings.
WINDOW: Final = 64
LOOK_BACK: Final = 4 * WINDOW
# A count slows down if its rate falls by this share of its first rate, over at least this many rises. A leak that slows
# the program down falls by less while it is watched: its rate per second becomes lower, but never ends.
_SLOWS: Final = 0.5
_MIN_RATES: Final = 4
# A count exceeds a predicted ceiling by more than this share of the predicted rise.
_BEYOND: Final = 0.07
# A count rises faster than predicted by more than this share of the predicted rise.
_FASTER: Final = 0.015
# A count counts as level once it is this close to its ceiling, as a share of the entire rise.
_LEVEL: Final = 0.05
# If objects grow larger, their number rises at most by this share of the relative rise of their bytes.
_FEW_MORE: Final = 0.1


@dataclass(frozen=True, slots=True)
class CountGrowth:
    """The growth of a count.

    The count rises by ``slope`` per generation, within [low, high]; the first rise is in generation ``start``.
    """

    pattern: Pattern
    slope: float
    low: float
    high: float
    start: float
    start_low: float
    start_high: float
    rises: int
    generations: float  # from the start to the last reading
    each: float  # the usual size of one rise
    period: int | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The level at which a slowing ``count`` will stop, and the generation in which it has nearly reached it."""

    count: float
    level: float
    generation: float


def ceiling_of(x: Sequence[float], counts: Sequence[float], start: float) -> Ceiling | None:
    """Return the ceiling of a count whose rate falls as it rises, as when a finite set is seen bit by bit.

    Return None if the rate does not clearly fall, or if the count rose faster than earlier readings predicted: a
    logarithm rises more and more slowly as well, but without end.
    """
    first = max(0, next((i for i, at in enumerate(x) if at >= start), 0) - 1)
    x, counts = x[first:], counts[first:]
    step = max(1, math.ceil((len(x) - 1) / MAX_BLOCKS))
    x, counts = x[::-step][::-1], counts[::-step][::-1]
    predicted = _level_of(x, counts)
    if predicted is None:
        return None
    level, pace = predicted
    # A single prediction from few readings is often too low by chance, so most of them must be exceeded.
    exceeded = [
        _goes_faster(x, counts, until - 1, *earlier)
        for until in range(_MIN_RATES + 1, len(x))
        if (earlier := _level_of(x[:until], counts[:until])) is not None
    ]
    if 2 * sum(exceeded) > len(exceeded):
        return None
    left = max(level - counts[-1], 0.0)
    near = _LEVEL * (level - counts[0])
    more = math.log(left / near) / pace if left > near else 0.0
    return Ceiling(counts[-1], max(level, counts[-1]), x[-1] + more)


def _goes_faster(
    x: Sequence[float], counts: Sequence[float], at: int, level: float, pace: float
) -> bool:
    """Return True if a count rises clearly faster since position ``at`` than predicted from the readings before."""
    expected = max(0.0, level - counts[at]) * (1 - math.exp(-pace * (x[-1] - x[at])))
    return counts[-1] - counts[at] > expected + _FASTER * (level - counts[0])


def _is_beyond(counts: Sequence[float], level: float) -> bool:
    return counts[-1] > level + _BEYOND * (level - counts[0])


def _level_of(x: Sequence[float], counts: Sequence[float]) -> tuple[float, float] | None:
    """Return (the level at which the rate reaches zero, the fall of the rate per item), or None if it does not fall."""
    pairs = list(pairwise(zip(x, counts, strict=True)))
    rates = [(b - a) / (later - at) for (at, a), (later, b) in pairs]
    if len(rates) < _MIN_RATES:
        return None
    between = [(a + b) / 2 for (_, a), (_, b) in pairs]
    fall = theil_sen(between, rates)
    if fall.high >= 0:
        return None
    level = median([b - rate / fall.estimate for b, rate in zip(between, rates, strict=True)])
    risen = between[-1] - between[0]
    slows = risen >= _SLOWS * (level - between[0])
    return (level, -fall.estimate) if slows and not _is_beyond(counts, level) else None


def count_growth(
    x: Sequence[float],
    counts: Sequence[float],
    first_generation: float | None = None,
    spacing: int = 1,
) -> CountGrowth | None:
    """Return the lasting growth of a count over generations ``x``, or None without lasting growth.

    ``spacing``: units of the axis between two generations; distances are judged in generations.

    A reading before ``first_generation`` is the baseline. Without a baseline, the start of a count that rises from
    its first reading is extrapolated from the count at that reading.

    Patterns are tried in this order: equal rises in every generation (4 or more), equal rises at equal distances (3
    or more), rises that are never reversed (4 or more over 6 generations), and a floor that rises through noise (8
    readings).
    """
    if len(x) < 3 or not may_grow(counts):
        return None
    if spacing != 1:
        first = None if first_generation is None else first_generation / spacing
        found = count_growth([a / spacing for a in x], counts, first)
        return None if found is None else _on_the_axis(found, spacing)
    x, counts = x[-LOOK_BACK:], counts[-LOOK_BACK:]
    rises, first = _rises_never_taken_back(counts)
    steady, irregular = _constant(x, counts), _irregular(x, counts, rises, first)
    if steady is not None and irregular is not None and _is_one_story(steady, irregular):
        steady = None
    found = steady or _periodic(x, counts, rises) or irregular
    if found is None or not _goes_beyond(found, x, counts):
        found = _noisy(x, counts)
    if found is None or first_generation is None or x[0] < first_generation:
        return found
    if found.period is not None:
        return _beats_unseen(found, x[0], counts[0], first_generation)
    if found.start > x[0] + 1:
        return found
    return _begun_unseen(found, x[0], counts[0], first_generation)


def _on_the_axis(growth: CountGrowth, spacing: int) -> CountGrowth:
    """Convert growth that was measured per reading to units of the axis."""
    return replace(
        growth,
        slope=growth.slope / spacing,
        low=growth.low / spacing,
        high=growth.high / spacing,
        start=round(growth.start * spacing),
        start_low=round(growth.start_low * spacing),
        start_high=round(growth.start_high * spacing),
        generations=growth.generations * spacing,
        period=None if growth.period is None else growth.period * spacing,
    )


def may_grow(counts: Sequence[float]) -> bool:
    """Return False if the newest count is the lowest of the recent counts, as in most series."""
    return counts[-1] > min(counts[-WINDOW:])


def grow_larger(before: tuple[float, float], now: tuple[float, float]) -> bool:
    """Return True if objects grow larger rather than more numerous.

    ``before`` and ``now`` are (number, bytes) at two readings. A few additional strings do not matter if one long
    string accounts for the bytes.
    """
    more = now[0] / max(before[0], 1.0) - 1
    return more <= _FEW_MORE * (now[1] / max(before[1], 1.0) - 1)


def come_together(
    x: Sequence[float], memory: Sequence[float], at: Sequence[float], counts: Sequence[float]
) -> bool:
    """Return True if memory rises when a count rises, and hardly otherwise.

    The count must rise in at least three generations. ``memory`` is read at generations ``x``, ``counts`` at
    generations ``at``. Return False for counts that rise every time or were not read in each generation, because
    memory may then have risen with anything else.
    """
    now, known = dict(zip(at, counts, strict=True)), set(at)
    inside: list[float] = []
    outside: list[float] = []
    for (before, low), (g, high) in pairwise(zip(x, memory, strict=True)):
        if before in known and g in known:
            (inside if now[g] > now[before] else outside).append(high - low)
    if len(inside) < _MIN_PERIODS or len(outside) < len(inside) or min(inside) <= 0:
        return False
    gained = memory[-1] - memory[0]
    return sum(inside) >= _MOST * gained and median(inside) >= _STANDS_OUT * robust_spread(outside)


def _is_one_story(steady: CountGrowth, irregular: CountGrowth) -> bool:
    """Return True if early irregular rises and later steady rises are part of the same growth."""
    return irregular.start < steady.start - 1 and irregular.slope >= _NEAR_MEDIAN * steady.slope


def _goes_beyond(growth: CountGrowth, x: Sequence[float], counts: Sequence[float]) -> bool:
    """Return False while a rise only returns to an earlier level of the count, as in a sawtooth.

    A count that was reached at a single reading, for example while a program loads, is not a level.
    """
    before = [count for at, count in zip(x, counts, strict=True) if at < growth.start]
    held = max((min(pair) for pair in pairwise(before)), default=-math.inf)
    return counts[-1] > held + growth.each


def _beats_unseen(
    growth: CountGrowth, first_x: float, first_count: float, first_generation: float
) -> CountGrowth:
    """Move the start back over unseen periods.

    This applies if the count at the first reading is a multiple of one rise.
    """
    assert growth.period is not None
    beats = round(first_count / growth.each)
    start = growth.start - beats * growth.period
    is_of_beats = abs(first_count - beats * growth.each) <= _SAME_BEAT * growth.each
    if growth.start - growth.period > first_x or start < first_generation or not is_of_beats:
        return growth
    unseen = growth.start - start
    return replace(growth, start=start, start_low=start, generations=growth.generations + unseen)


def _begun_unseen(
    growth: CountGrowth, first_x: float, first_count: float, first_generation: float
) -> CountGrowth:
    """Move the start back by the time that the first count took to grow.

    All counted objects are assumed to have leaked.
    """
    before = first_count / growth.slope
    start = max(first_generation, float(round(first_x + 1 - before)))
    return replace(
        growth, start=start, start_low=start, generations=growth.generations + first_x + 1 - start
    )


def _constant(x: Sequence[float], counts: Sequence[float]) -> CountGrowth | None:
    rises: list[float] = []
    for i in range(len(x) - 1, 0, -1):
        rise = (counts[i] - counts[i - 1]) / (x[i] - x[i - 1])
        near = sorted(rises[-_COMPARED:]) or [rise]
        # The median is computed inline, because a call for each of hundreds of counts would dominate the cost.
        usual = (near[(len(near) - 1) // 2] + near[len(near) // 2]) / 2
        if rise <= 0 or abs(rise - usual) > _NEAR_MEDIAN * usual:
            break
        rises.append(rise)
    if len(rises) < MIN_RISES or _deviation(rises) > _MAX_VARIATION * fmean(rises):
        return None
    first = begin = len(x) - len(rises)
    usual = median(rises)
    # A larger rise before these rises also contains a usual rise, masked by objects created once in that generation.
    while begin > 1 and _rise(x, counts, begin - 1) >= _NEAR_MEDIAN * usual:
        begin -= 1
    slope = theil_sen(*block_minima(x[first - 1 :], counts[first - 1 :]))
    return CountGrowth(
        "constant", slope.estimate, slope.low, slope.high, x[begin - 1] + 1, x[begin - 1] + 1, x[first],
        len(rises), x[-1] - x[begin - 1], usual,
    )  # fmt: skip


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation; the exact sums of the standard library would dominate the cost."""
    mean = fmean(values)
    return math.sqrt(fmean([(value - mean) ** 2 for value in values]))


def _rise(x: Sequence[float], counts: Sequence[float], i: int) -> float:
    return (counts[i] - counts[i - 1]) / (x[i] - x[i - 1])


def _rises_never_taken_back(counts: Sequence[float]) -> tuple[list[int], int]:
    """Return (positions of rises, first position) of the longest range without a fall that ends at the newest count."""
    first = len(counts) - 1
    while first > 0 and counts[first] >= counts[first - 1]:
        first -= 1
    return [i for i in range(first + 1, len(counts)) if counts[i] > counts[i - 1]], first


def _periodic(
    x: Sequence[float], counts: Sequence[float], rises: Sequence[int]
) -> CountGrowth | None:
    if len(rises) < _MIN_PERIODS:
        return None
    gaps = [x[b] - x[a] for a, b in pairwise(rises)]
    while gaps and gaps[0] != gaps[-1]:  # rises before the regular ones are warm-up
        gaps, rises = gaps[1:], rises[1:]
    period = gaps[-1] if gaps else 0.0
    sizes = [counts[i] - counts[i - 1] for i in rises]
    steady = len(rises) >= _MIN_PERIODS and all(gap == period for gap in gaps) and period >= 2
    if not steady or x[-1] - x[rises[-1]] > period:
        return None
    if _deviation(sizes) > _MAX_VARIATION * fmean(sizes):
        return None
    slope = median(sizes) / period
    return CountGrowth(
        "periodic", slope, slope * 0.9, slope * 1.1, x[rises[0]], x[rises[0]], x[rises[0]],
        len(rises), x[-1] - x[rises[0]] + 1, median(sizes), int(period),
    )  # fmt: skip


def _irregular(
    x: Sequence[float], counts: Sequence[float], rises: Sequence[int], first: int
) -> CountGrowth | None:
    if len(rises) < MIN_RISES:
        return None
    span = x[-1] - x[first]
    gaps = [x[b] - x[a] for a, b in pairwise(rises)]
    waited = x[-1] - x[rises[-1]]
    middle = (x[-1] + x[rises[0]]) / 2
    late = sum([counts[i] - counts[i - 1] for i in rises if x[i] >= middle])
    total = counts[-1] - counts[first]
    if span < _MIN_SPAN or waited > max(3.0, 1.5 * max(gaps)) or late < 0.25 * total:
        return None
    begin = x[rises[0]]
    slope = total / (x[-1] - begin + 1)
    doubt = len(rises) ** -0.5
    return CountGrowth(
        "irregular", slope, slope * (1 - doubt), slope * (1 + doubt), begin, x[first] + 1, begin,
        len(rises), x[-1] - begin + 1, total / len(rises),
    )  # fmt: skip


def _may_break_new_ground(counts: Sequence[float]) -> bool:
    """Return False if no range of 8 to 256 counts that ends with the newest count can pass `breaks_new_ground`.

    This is far cheaper than searching for the range: the low of its newest quarter is at most the second highest of the
    last 8 counts, and hardly any count in the first half may be as high.
    """
    half, high = len(counts) // 2, sorted(counts[-_MIN_NOISY:])[-2]
    return sum([count >= high for count in counts[:half]]) <= 0.02 * len(counts) + 1


def _noisy(x: Sequence[float], counts: Sequence[float]) -> CountGrowth | None:
    if len(x) < _MIN_NOISY or not _may_break_new_ground(counts):
        return None
    hinge = fit_hinge(x, counts)
    first = 0 if hinge is None else next(i for i, at in enumerate(x) if at >= hinge.start)
    if len(x) - first < _MIN_NOISY:
        return None
    xs, ys = block_minima(x[first:], counts[first:])
    slope = theil_sen(xs, ys)
    lasting = (
        keeps_rising(xs, ys, _HALF_RATIO)
        and is_more_than_steps(xs, ys)
        and stands_out(xs, ys, slope)
    )
    if not (slope.rises and lasting and breaks_new_ground(counts[first:], counts[:first])):
        return None
    begin = x[first] + 1
    low, high = (begin, begin) if hinge is None else (hinge.low + 1, hinge.high + 1)
    return CountGrowth(
        "noisy", slope.estimate, slope.low, slope.high, begin, low, high,
        sum(b > a for a, b in pairwise(ys)), x[-1] - x[first], slope.estimate,
    )  # fmt: skip

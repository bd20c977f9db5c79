"""Five simple detectors for one curve, evaluated after every reading: the baselines that Leakline is compared with.

Each is a class with ``strength(value)``, which adds a reading (bytes) and returns how certain the detector is; it
alarms at ``critical`` or above. ``limit`` is the memory limit in bytes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from statistics import NormalDist
from typing import Final, Protocol

_FEWEST: Final = 8  # readings before a rank test reports anything
_PREDICTED_FROM: Final = 20  # readings
_AHEAD: Final = 100  # generations
_SHORTEST_LINE: Final = 10  # readings
_GOOD_FIT: Final = 0.8  # R2
_NORMAL: Final = NormalDist()


class Detector(Protocol):
    critical: float

    def strength(self, value: float) -> float: ...


class MannKendall:
    """Rank trend test, upwards, with the critical value of a two-sided test at ``level``."""

    def __init__(self, level: float = 0.05) -> None:
        self.critical = _NORMAL.inv_cdf(1 - level / 2)
        self.values: list[float] = []
        self.score = 0
        self._ties = Ties()

    def strength(self, value: float) -> float:
        """Return the standard score; 0 with too few readings."""
        self.add(value)
        return z_score(self.score, self.variance()) if len(self.values) >= _FEWEST else 0.0

    def add(self, value: float) -> None:
        self.score += self._ties.add(value)
        self.values.append(value)

    def variance(self) -> float:
        return self._ties.variance()


class Ties:
    """Kendall's S and its variance for readings that arrive one by one; ``add`` returns the change of S."""

    def __init__(self) -> None:
        self._sorted: list[float] = []
        self._correction = 0

    def add(self, value: float) -> int:
        below = bisect_left(self._sorted, value)
        same = 0
        while below + same < len(self._sorted) and self._sorted[below + same] == value:
            same += 1
        self._correction += _tied(same + 1) - _tied(same)
        above = len(self._sorted) - below - same
        self._sorted.insert(below, value)
        return below - above

    def variance(self) -> float:
        return (_tied(len(self._sorted)) - self._correction) / 18


def _tied(n: int) -> int:
    return n * (n - 1) * (2 * n + 5)


def z_score(score: int, variance: float) -> float:
    """Return the standard score of Kendall's S with continuity correction; 0 if the variance is not positive."""
    if variance <= 0 or not score:
        return 0.0
    return (score - math.copysign(1, score)) / math.sqrt(variance)


class HamedRao(MannKendall):
    """Mann-Kendall with the variance for autocorrelated readings (Hamed and Rao, 1998)."""

    def __init__(self, level: float = 0.01) -> None:
        super().__init__(level)
        self._slopes: list[float] = []

    def add(self, value: float) -> None:
        n = len(self.values)
        for i, earlier in enumerate(self.values):
            insort(self._slopes, (value - earlier) / (n - i))
        super().add(value)

    def variance(self) -> float:
        if len(self.values) < _FEWEST:
            return super().variance()
        slope = _middle(self._slopes)
        rest = _ranks([value - slope * i for i, value in enumerate(self.values)])
        # Autocorrelation counts where it leaves the 95 % band of white noise, whatever the level is.
        return super().variance() * inflation(rest, _NORMAL.inv_cdf(0.975))


def inflation(ranks: Sequence[float], quantile: float) -> float:
    """Return the factor by which autocorrelation inflates the variance of S, from all significant lags."""
    n = len(ranks)
    mean = sum(ranks) / n
    away = [rank - mean for rank in ranks]
    power = sum(map(mul, away, away))
    if power <= 0:
        return 1.0
    band = quantile / math.sqrt(n)
    total = 0.0
    for lag in range(1, n):
        likeness = sum(map(mul, away, away[lag:])) / power
        if abs(likeness) > band:
            total += (n - lag) * (n - lag - 1) * (n - lag - 2) * likeness
    return 1 + 2 * total / (n * (n - 1) * (n - 2))


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks starting at one; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for position in order[first : last + 1]:
            ranks[position] = (first + last) / 2 + 1
        first = last + 1
    return ranks


class PredictLinear:
    """Alarms if least squares over the last 20 readings reach the limit within the next 100 generations."""

    critical = 1.0

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._values: list[float] = []

    def strength(self, value: float) -> float:
        """Return the predicted value as a share of the limit."""
        self._values = [*self._values[1 - _PREDICTED_FROM :], value]
        if len(self._values) < _PREDICTED_FROM:
            return 0.0
        slope, newest, _ = least_squares(self._values)
        return (newest + slope * _AHEAD) / self._limit


def least_squares(values: Sequence[float]) -> tuple[float, float, float]:
    """Return (slope per reading, value of the line at the newest reading, R2)."""
    n = len(values)
    middle, mean = (n - 1) / 2, sum(values) / n
    across = sum((i - middle) * (v - mean) for i, v in enumerate(values))
    wide = n * (n * n - 1) / 12
    high = sum((v - mean) ** 2 for v in values)
    slope = across / wide
    return slope, mean + slope * middle, across * across / (wide * high) if high > 0 else 0.0


class BackwardRegression:
    """Alarms if any well-fitting line back from the newest reading reaches the limit within 100 generations."""

    critical = 1.0

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._values: list[float] = []

    def strength(self, value: float) -> float:
        """Return the end of the steepest line that fits, as a share of the way to the limit."""
        self._values.append(value)
        if len(self._values) < _SHORTEST_LINE:
            return 0.0
        first = self._values[0]
        back = [(v - first) / self._limit for v in reversed(self._values)]
        ones = list(accumulate(back))
        steps = list(accumulate(i * v for i, v in enumerate(back)))
        squares = list(accumulate(v * v for v in back))
        room = (self._limit - first) / self._limit
        lines = range(_SHORTEST_LINE, len(back) + 1)
        return max(_line_end(m, ones[m - 1], steps[m - 1], squares[m - 1]) for m in lines) / room


def _line_end(m: int, total: float, weighted: float, squared: float) -> float:
    """Return the end of a line from its sums over ``m`` readings, counted backwards; 0 if it fits badly or falls."""
    middle, mean = (m - 1) / 2, total / m
    across = weighted - middle * total  # negative when memory rises: the index runs backwards
    wide, high = m * (m * m - 1) / 12, squared - total * mean
    if across >= 0 or high <= 0 or across * across / (wide * high) <= _GOOD_FIT:
        return 0.0
    slope = -across / wide
    return mean + slope * (middle + _AHEAD)


class Twice:
    """Alarms when memory is twice its first value."""

    critical = 2.0

    def __init__(self) -> None:
        self._first: float | None = None

    def strength(self, value: float) -> float:
        self._first = value if self._first is None else self._first
        return value / self._first


# Name -> factory of the detector for a run with this limit in bytes.
BASELINES: Final[dict[str, Callable[[float], Detector]]] = {
    "Mann-Kendall": lambda limit: MannKendall(),
    "Hamed-Rao": lambda limit: HamedRao(),
    "predict_linear": PredictLinear,
    "backward fit": BackwardRegression,
    "twice": lambda limit: Twice(),
}


def strengths(name: str, readings: Sequence[float], limit: float) -> tuple[list[float], float]:
    """Return (strength of a detector after each reading, its critical value)."""
    detector = BASELINES[name](limit)
    return [detector.strength(value) for value in readings], detector.critical

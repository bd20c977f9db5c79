"""Shares of runs with one-sided 95 % confidence bounds (Clopper and Pearson), and quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_DOUBT: Final = 0.05
_ROUNDS: Final = 48


@dataclass(frozen=True, slots=True)
class Share:
    """``hits`` of ``runs``."""

    hits: int
    runs: int

    @classmethod
    def of(cls, found: Iterable[bool]) -> Share:
        listed = list(found)
        return cls(sum(listed), len(listed))

    @property
    def value(self) -> float | None:
        return self.hits / self.runs if self.runs else None

    def upper(self) -> float:
        """Return the upper 95 % confidence bound."""
        if self.hits >= self.runs:
            return 1.0
        return _where(lambda p: at_most(self.hits, self.runs, p) - _DOUBT)

    def lower(self) -> float:
        """Return the lower 95 % confidence bound."""
        return 1.0 - Share(self.runs - self.hits, self.runs).upper()


def at_most(hits: int, runs: int, p: float) -> float:
    """Return the probability of at most ``hits`` hits in ``runs`` trials with probability ``p``."""
    if p <= 0:
        return 1.0
    if p >= 1:
        return 1.0 if hits >= runs else 0.0
    log_p, log_q = math.log(p), math.log1p(-p)
    whole = math.lgamma(runs + 1)
    return min(1.0, sum(
        math.exp(
            whole - math.lgamma(k + 1) - math.lgamma(runs - k + 1) + k * log_p + (runs - k) * log_q
        )
        for k in range(hits + 1)
    ))  # fmt: skip


def _where(falls: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if falls(middle) > 0 else (low, middle)
    return (low + high) / 2


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest of the values that at least this share does not exceed; no interpolation."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]

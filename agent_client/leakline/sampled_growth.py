"""Does a sample of the heap show that something rises which no reference count tells: arrays, lists, strings?

A sampled count is off by a few per cent, so a rise is believed when it is beyond the error of both samples and comes
twice in a row. All it does is to make a census worth its price, and only while it is news: buffers fill for days.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .news import News

# A rise of fewer objects, all types of one sample considered, happens all the time.
AT_LEAST: Final = 2_000
# Standard errors that a rise has to exceed.
ERRORS: Final = 3.0
RISES: Final = 2


class SampledGrowth:
    """Compares one sample with the one before it."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}
        self._rises: dict[str, int] = {}
        self._news: dict[str, News] = {}

    @property
    def is_in_doubt(self) -> bool:
        """Another sample will tell: something has risen once, or rises and is still news."""
        return any(n < RISES or self._news[name].is_news for name, n in self._rises.items())

    def note(self, rows: Iterable[tuple[str, int, float]]) -> bool:
        """``rows``: (name, count, relative standard error). True when one has risen twice in a row and is news."""
        now = {name: (count, count * error) for name, count, error in rows}
        rises: dict[str, int] = {}
        for name, (count, error) in now.items():
            before, error_before = self._last.get(name, (count, 0.0))
            if count - before > max(AT_LEAST, ERRORS * (error**2 + error_before**2) ** 0.5):
                rises[name] = self._rises.get(name, 0) + 1
                self._news.setdefault(name, News()).rose(count - before)
        self._last, self._rises = now, rises
        return any(n >= RISES and self._news[name].is_news for name, n in rises.items())

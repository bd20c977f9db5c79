"""Does a sample of the heap show that something rises which no reference count tells: arrays, lists, strings?

A sampled count is off by a few per cent, so a rise is believed when it is beyond the error of both samples and comes
twice in a row. All it does is to make a census worth its price.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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

    @property
    def is_in_doubt(self) -> bool:
        """Something has risen once: another sample will tell."""
        return bool(self._rises)

    def note(self, rows: Iterable[tuple[str, int, float]]) -> bool:
        """``rows``: (name, count, relative standard error). True when some type has risen twice in a row."""
        now = {name: (count, count * error) for name, count, error in rows}
        rises: dict[str, int] = {}
        for name, (count, error) in now.items():
            before, error_before = self._last.get(name, (count, 0.0))
            if count - before > max(AT_LEAST, ERRORS * (error**2 + error_before**2) ** 0.5):
                rises[name] = self._rises.get(name, 0) + 1
        self._last, self._rises = now, rises
        return any(number >= RISES for number in rises.values())

"""When a census is worth its price: soon while something rises, ever more seldom while nothing does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from .budget import Governor

# One gc.get_objects() over more objects than this would stop the program for over 50 ms.
PAUSE_LIMIT_OBJECTS: Final = 600_000
# Before the first census has told it: tracked objects per allocated block, and seconds per block.
OBJECTS_PER_BLOCK: Final = 0.5
SECONDS_PER_BLOCK: Final = 0.4e-6
LONGEST_GAP: Final = 16
DEADLINE_SECONDS: Final = 1.0


class CensusPlan:
    """Asked at generation ends. ``blocks`` counts the interpreter's allocated blocks."""

    def __init__(
        self, governor: Governor, blocks: Callable[[], int] = sys.getallocatedblocks
    ) -> None:
        self._governor, self._blocks = governor, blocks
        self._objects_per_block = OBJECTS_PER_BLOCK
        self._seconds_per_block = SECONDS_PER_BLOCK
        self._gap = 1
        self._since = 0
        self._ends = 0
        self.too_large = False

    @property
    def is_set_up(self) -> bool:
        """The first generation loads what the program loads; the census at its end is set-up like the baseline."""
        return self._ends <= 1

    def fits_pause(self) -> bool:
        self.too_large = self._blocks() * self._objects_per_block > PAUSE_LIMIT_OBJECTS
        return not self.too_large

    def due(self, rising: bool) -> bool:
        """Once per generation end: is it time, and is there budget?"""
        self._ends += 1
        self._since += 1
        if rising:
            self._gap = min(self._gap, 2)
        if self._since < self._gap or not self.fits_pause():
            return False
        expected = self._blocks() * self._seconds_per_block
        return self.is_set_up or self._governor.allows("census", expected_seconds=expected)

    def taken(self, objects: int, seconds: float, rising: bool) -> None:
        """A census has found so many objects in so many CPU seconds."""
        blocks = max(1, self._blocks())
        self._objects_per_block, self._seconds_per_block = objects / blocks, seconds / blocks
        self._since = 0
        if self._ends:
            self._gap = 1 if rising else min(self._gap * 2, LONGEST_GAP)

"""When a census is worth its price: soon while something rises, ever more seldom while nothing does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from .budget import Governor

# One gc.get_objects() over more objects than this would stop the program for over 50 ms.
PAUSE_LIMIT_OBJECTS: Final = 600_000
# Tracked objects per allocated block before the first census has told it; measured with torch loaded.
OBJECTS_PER_BLOCK: Final = 0.5
LONGEST_GAP: Final = 16
DEADLINE_SECONDS: Final = 1.0


class CensusPlan:
    """Asked at generation ends. ``blocks`` counts the interpreter's allocated blocks."""

    def __init__(
        self, governor: Governor, blocks: Callable[[], int] = sys.getallocatedblocks
    ) -> None:
        self._governor, self._blocks = governor, blocks
        self._ratio = OBJECTS_PER_BLOCK
        self._gap = 1
        self._since = 0
        self.too_large = False

    def fits_pause(self) -> bool:
        self.too_large = self._blocks() * self._ratio > PAUSE_LIMIT_OBJECTS
        return not self.too_large

    def due(self, rising: bool) -> bool:
        """Once per generation end: is it time, and is there budget?"""
        self._since += 1
        if rising:
            self._gap = min(self._gap, 2)
        return (
            self._since >= self._gap and self.fits_pause() and self._governor.allows("census", 0.05)
        )

    def taken(self, objects: int, rising: bool) -> None:
        self._ratio = objects / max(1, self._blocks())
        self._since = 0
        self._gap = 1 if rising else min(self._gap * 2, LONGEST_GAP)

"""When a census is worth its price, and how it is taken: in one piece, in slices in the background, or not.

Soon while something rises, regularly while memory does, ever more rarely while nothing does. In one piece where the
training thread then stands still for no longer than the budget's pause; the native module can do larger heaps in
slices, the pure census cannot.

How often to look at what mostly has nothing to tell.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from .overhead_budget import FORGET, MAX_PAUSE_SECONDS, Governor

Way = Literal["whole", "slices"]

# The pure census lists all objects in one call that nothing can interrupt: over this many would take over 50 ms. The
# rest of it is held to a deadline, not to the pause.
PAUSE_LIMIT_OBJECTS: Final = 600_000
# Before the first census has measured it: tracked objects per allocated block, and seconds per block.
OBJECTS_PER_BLOCK: Final = 0.5
SECONDS_PER_BLOCK: Final = 0.4e-6
NATIVE_SECONDS_PER_BLOCK: Final = 0.1e-6
LONGEST_GAP: Final = 16
# While memory rises, whatever is counted in between.
LONGEST_GAP_WHILE_MEMORY_RISES: Final = 3
YOUNG_ENDS: Final = 3
DEADLINE_SECONDS: Final = 1.0
# The low of so many generation ends is compared with lows before it: what swings comes down within them.
_ENDS: Final = 4
# A rise of the low by less than this, or than this share of it, is what heaps do while they settle.
_LEAST_BYTES: Final = 2 * 2**20
_LEAST_SHARE: Final = 0.01


class RisingMemory:
    """Detect a lasting rise of private memory since the last census, from one reading at each generation end.

    That is a reason to scan the heap, whatever the counts between two scans say: arrays, bytes and strings are only
    counted by a heap scan, and a queue of them that grows shows in memory alone. A slow rise adds up.
    """

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=_ENDS)
        self._before: float | None = None

    def note(self, private_bytes: float) -> bool:
        """Return True if the lowest of the newest readings lies above the lowest before by an amount that matters."""
        self._newest.append(private_bytes)
        if len(self._newest) < _ENDS:
            return False
        low = min(self._newest)
        before = low if self._before is None else min(low, self._before)
        self._before = before
        return low - before >= max(_LEAST_BYTES, _LEAST_SHARE * before)

    def counted(self) -> None:
        """A census has counted what there is: a rise begins from here."""
        self._before = None


class CensusPlan:
    """Asked at generation ends. ``blocks`` counts the interpreter's allocated blocks."""

    def __init__(
        self,
        governor: Governor,
        blocks: Callable[[], int] = sys.getallocatedblocks,
        is_native: Callable[[], bool] = lambda: False,
        modules: Callable[[], int] = lambda: len(sys.modules),
    ) -> None:
        self._governor, self._blocks, self._is_native = governor, blocks, is_native
        self._modules, self._loaded = modules, modules()
        # For a program that calls nothing of ours: it is at work while we look, so in slices or not at all.
        self.only_in_background = False
        self._objects_per_block = OBJECTS_PER_BLOCK
        # In one piece and in slices they differ; None before the first.
        self._seconds_per_block: dict[Way, float] = {}
        self._gap = 1
        self._since = 0
        self._ends = 0

    @property
    def is_set_up(self) -> bool:
        """The first generation loads what the program loads; the census at its end is set-up like the baseline."""
        return self._ends <= 1

    @property
    def is_young(self) -> bool:
        """Its first generations: the program still loads what it needs."""
        return self._ends <= YOUNG_ENDS

    @property
    def too_large(self) -> bool:
        """So large a heap that no census can be taken without stopping the program for too long."""
        return self.way() is None

    def way(self) -> Way | None:
        """How a census could be taken now; None where it would stop the program for too long."""
        if self.only_in_background:
            return "slices" if self._is_native() else None
        if self._is_native():
            return (
                "whole" if self._governor.fits_pause(self.expected_seconds("whole")) else "slices"
            )
        objects = self._blocks() * self._objects_per_block
        limit = PAUSE_LIMIT_OBJECTS * self._governor.max_pause_seconds / MAX_PAUSE_SECONDS
        return "whole" if objects <= limit else None

    def expected_seconds(self, way: Way = "whole") -> float:
        """CPU seconds of one census of the heap as it is."""
        unknown = NATIVE_SECONDS_PER_BLOCK if self._is_native() else SECONDS_PER_BLOCK
        # The two ways cost about the same.
        known = next(iter(self._seconds_per_block.values()), unknown)
        return self._blocks() * self._seconds_per_block.get(way, known)

    def due(self, rising: bool, memory_rises: bool = False) -> Way | None:
        """Return how a census is taken if it is time for one and there is budget. Called once per generation end.

        ``rising``: something that is counted rises and is worth a look; ``memory_rises``: private memory does.
        """
        self._ends += 1
        self._since += 1
        if self._is_loading() and not rising and self._since < LONGEST_GAP:
            return None
        if rising:
            self._gap = min(self._gap, 2)
        elif memory_rises:
            self._gap = min(self._gap, LONGEST_GAP_WHILE_MEMORY_RISES)
        if self._since < self._gap:
            return None
        way = self.way()
        if way is None or self.is_set_up:
            return way
        expected = self.expected_seconds(way)
        allowed = self._governor.allows(
            "census", expected_seconds=expected, routine=not (rising or memory_rises)
        )
        return way if allowed else None

    def _is_loading(self) -> bool:
        """Return True if a program that calls nothing of ours has loaded modules since the last generation end.

        Then what a census counts is in doubt as soon as it is reported. `leakline.init` is called by programs that have
        loaded most of what they need, and the first generation is set-up there.
        """
        before, self._loaded = self._loaded, self._modules()
        return self.only_in_background and self._loaded != before

    def begun(self) -> None:
        """A census in slices is under way: the next is not due before its gap has passed."""
        self._since = 0

    def taken(self, objects: int, seconds: float, rising: bool, way: Way = "whole") -> None:
        """A census has found so many objects in so many CPU seconds."""
        blocks = max(1, self._blocks())
        self._objects_per_block = objects / blocks
        self._seconds_per_block[way] = seconds / blocks
        if way == "slices" and "whole" in self._seconds_per_block:
            # One slow moment must not rule out the other way for good.
            self._seconds_per_block["whole"] *= FORGET
        self._since = 0
        if self._ends:
            self._gap = 1 if rising else min(self._gap * 2, LONGEST_GAP)


class Rhythm:
    """Asked at generation ends: due after ``first`` of them, then ever more rarely.

    What was found may ask for one more look at once; the gap goes on from where it was.
    """

    def __init__(self, first: int, longest: int) -> None:
        self._longest, self._gap, self._wait, self._since = longest, first, first, 0

    def is_due(self) -> bool:
        """Once per generation end."""
        self._since += 1
        return self._since >= self._wait

    def restart(self) -> None:
        """Something else has just looked; the gap stays."""
        self._since = 0

    def looked(self, *, again_soon: bool) -> None:
        self._since = 0
        if not again_soon:
            self._gap = min(self._gap * 2, self._longest)
        self._wait = 1 if again_soon else self._gap

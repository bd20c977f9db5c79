"""What grows and is no leak."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Final

import leakline

from .planting import Plant, filled

KIB: Final = 2**10
MIB: Final = 2**20


class Nothing(Plant):
    def grow(self, generation: int) -> int:
        return 0


class ReplayBuffer(Plant):
    """Full after fifteen generations, and declared with its capacity."""

    TRANSITIONS: Final = 256
    CAPACITY: Final = 15 * TRANSITIONS
    SIZE: Final = 16 * KIB

    def __init__(self) -> None:
        self.transitions: deque[bytearray] = deque(maxlen=self.CAPACITY)

    def declare(self, run: leakline.Run) -> None:
        run.track("replay", self.transitions, capacity=self.CAPACITY)

    def grow(self, generation: int) -> int:
        self.transitions.extend(filled(self.SIZE) for _ in range(self.TRANSITIONS))
        return 0


@lru_cache(maxsize=256)
def _table(number: int) -> bytearray:
    return filled(64 * KIB)


class Lookups(Plant):
    """Tables of which 256 are kept; those are there after four generations."""

    EACH: Final = 64

    def grow(self, generation: int) -> int:
        for number in range(generation * self.EACH, (generation + 1) * self.EACH):
            _table(number)
        return 0


class OneStep(Plant):
    """A teacher network that is loaded when it is first needed."""

    def __init__(self) -> None:
        self.teacher: bytearray | None = None

    def grow(self, generation: int) -> int:
        self.teacher = filled(48 * MIB)
        return 0


class Sawtooth(Plant):
    """Events until they are written."""

    EVENTS: Final = 512
    SIZE: Final = 8 * KIB
    GENERATIONS: Final = 5

    def __init__(self) -> None:
        self.events: list[bytearray] = []

    def grow(self, generation: int) -> int:
        if generation % self.GENERATIONS == 0:
            self.events.clear()
        self.events.extend(filled(self.SIZE) for _ in range(self.EVENTS))
        return 0

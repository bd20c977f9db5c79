"""Reference cycles: a leak while the collector is off, none while it runs."""

from __future__ import annotations

import gc
from typing import Final

from .planting import Plant, filled, size_of


class Node:
    """Of a tree that is searched once; its nodes know each other."""

    SIZE: Final = 4 * 2**10

    def __init__(self) -> None:
        self.itself = self
        self.state = filled(self.SIZE)


class Collected(Plant):
    NODES: Final = 800

    def grow(self, generation: int) -> int:
        for _ in range(self.NODES):
            Node()
        return 0


class Uncollected(Collected):
    def __init__(self) -> None:
        # For speed, as people do.
        gc.disable()

    def grow(self, generation: int) -> int:
        super().grow(generation)
        last = Node()
        return (self.NODES + 1) * size_of(last, last.state)

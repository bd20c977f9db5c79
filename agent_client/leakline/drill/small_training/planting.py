"""What everything that is planted has in common."""

from __future__ import annotations

import importlib
import random
import sys

import leakline


class Plant:
    """``grow`` is called in the phase and the generations of its kind."""

    def declare(self, run: leakline.Run) -> None:
        """What a careful author would tell Leakline about it."""

    def grow(self, generation: int) -> int:
        """Plant; gives the bytes that are there from now on and that nothing will ever free, 0 for a healthy one."""
        raise NotImplementedError

    def close(self) -> None:
        """End what would outlive the program or hinder its end."""


def plant_of(path: str) -> Plant:
    """``held.Registry`` -> an instance of that class of this package."""
    module, _, name = path.rpartition(".")
    made: Plant = getattr(importlib.import_module(f".{module}", __package__), name)()
    return made


def filled(size: int) -> bytearray:
    """Bytes that are really there: pages of zeros are the kernel's promise, not memory."""
    return bytearray(random.randbytes(1)) * size


def size_of(*things: object) -> int:
    """Bytes, each thing by itself."""
    return sum(map(sys.getsizeof, things))

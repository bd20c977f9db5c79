"""Heaps like those of training programs: aged, with many classes, and with arrays that the collector does not track."""

from __future__ import annotations

import gc
import random
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Final

CLASSES: Final = 200
SUSPECTS: Final = 1_000
# Tracked objects per round of `_objects`.
_PER_ROUND: Final = 7


class Suspect:
    """The class whose holders are searched for."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.memory = [number]


class Registry:
    """Holds the suspects, one step away from the module."""

    def __init__(self) -> None:
        self.finished: dict[str, list[Suspect]] = {"kept": []}


REGISTRY = Registry()


@dataclass(slots=True)
class Planted:
    """Objects to keep alive, and the number of arrays among them."""

    kept: list[object]
    arrays: int
    buffers: tuple[Any, ...]


def planted_heap(objects: int) -> Planted:
    """Build a heap of about ``objects`` tracked objects, listed in an order unrelated to their addresses."""
    there = len(gc.get_objects())
    # torch alone may create more objects than the smallest heap has; at least half of a heap is aged.
    kept = _objects(max(objects - there, objects // 2) // _PER_ROUND)
    REGISTRY.finished["kept"] += [Suspect(i) for i in range(SUSPECTS)]
    arrays = 15_000 if objects < 500_000 else 150_000
    buffers = (_deque_of_tuples(arrays // 2), _list_of_dicts(arrays - arrays // 2))
    random.Random(1).shuffle(kept)
    # After a full collection the collector lists objects in the order of this list, not in the order of creation.
    aged = list(kept)
    kept.clear()
    gc.collect()
    return Planted(aged, arrays, buffers)


def tracked_counts() -> Counter[type]:
    """Count all tracked objects by brute force."""
    return Counter(map(type, gc.get_objects()))


def _objects(rounds: int) -> list[object]:
    kinds = [_kind(number) for number in range(CLASSES)]
    kept: list[object] = []
    for i in range(rounds):
        # Squared, so that a few classes have most of the instances, as in a real program.
        kind = kinds[int((i * 2_654_435_761 % 2**32 / 2**32) ** 2 * CLASSES)]
        kept += [kind(i), {"key": i, "value": [i, i + 1]}, (i, [i]), {i}]
    return kept


class Kept:
    """Base class of all classes of the heap."""

    def __init__(self, value: int) -> None:
        self.number = value
        self.memory = [value]


def _kind(number: int) -> type[Kept]:
    return type(f"Kind{number}", (Kept,), {"__module__": __name__})


def _deque_of_tuples(arrays: int) -> deque[tuple[Any, ...]]:
    import numpy as np

    return deque(
        (np.zeros(33, np.float32), i % 3, 0.5, np.zeros(33, np.float32)) for i in range(arrays // 2)
    )


def _list_of_dicts(arrays: int) -> list[dict[str, Any]]:
    import numpy as np

    return [
        {"observation": np.zeros(33, np.float32), "next": np.zeros(33, np.float32), "reward": 0.5}
        for _ in range(arrays // 2)
    ]

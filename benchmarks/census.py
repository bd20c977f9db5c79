"""What a look at every object costs, as a ratio to the fastest pure pass over the collector's list.

    make bench-census            prints the table
    make bench-census CHECK=1    fails when a ratio is above its target

The reference is `Counter(map(type, gc.get_objects()))`, measured in the same process, taking turns. Heaps are aged:
their objects were made in one order and are listed in another, as in a program that has run for a while.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time

from leakline.probes.census import take_census
from leakline.probes.classes import ClassCounts
from leakline.probes.containers import ContainerWatch
from leakline.probes.process import read_private_bytes, read_process

REPEATS = int(os.environ.get("REPEATS", "5"))
OBJECTS = int(os.environ.get("OBJECTS", "1000000"))


@dataclass(frozen=True)
class Row:
    name: str
    milliseconds: float
    ratio: float
    at_most: float | None


class Agent:
    def __init__(self, number: int) -> None:
        self.number = number
        self.name = str(number)
        self.memory = [number]


def aged_heap(objects: int) -> list[object]:
    """About this many objects that the collector lists, of six kinds, in shuffled order."""
    kept: list[object] = []
    for i in range(objects // 8):
        kept += [Agent(i), {"key": i, "value": [i, i + 1]}, (i, [i]), {i}]
    random.Random(1).shuffle(kept)
    # A list made last: a full collection then lists the objects in its order, not in that of their making.
    shuffled = list(kept)
    kept.clear()
    gc.collect()
    return shuffled


def replay_buffer(arrays: int) -> object:
    import numpy as np

    steps = (
        (np.zeros(33, np.float32), i % 3, 0.5, np.zeros(33, np.float32)) for i in range(arrays // 2)
    )
    buffer = deque(steps)
    gc.collect()
    return buffer


def reference() -> None:
    Counter(map(type, gc.get_objects()))


def measure(name: str, look: Callable[[], object], at_most: float | None) -> Row:
    """Median of CPU times, the reference in turns with the look."""
    references, looks = [], []
    for _ in range(REPEATS):
        for times, work in ((references, reference), (looks, look)):
            started = process_time()
            work()
            times.append(process_time() - started)
    references.sort()
    looks.sort()
    middle = REPEATS // 2
    return Row(name, looks[middle] * 1e3, looks[middle] / references[middle], at_most)


def cost_of(name: str, read: Callable[[], object], at_most_ms: float | None) -> Row:
    read()
    started = process_time()
    for _ in range(50):
        read()
    milliseconds = (process_time() - started) / 50 * 1e3
    return Row(name, milliseconds, milliseconds / at_most_ms if at_most_ms else 0.0, None)


def rows() -> list[Row]:
    import torch  # noqa: F401

    counts, watch = ClassCounts(), ContainerWatch()
    found = [measure("census, fresh torch process", take_census, None)]
    heap = aged_heap(OBJECTS)
    found.append(
        measure(f"census, aged heap of {len(gc.get_objects()):,} objects", take_census, 2.0)
    )
    found.append(measure("the same, with instances for containers", _with_instances(watch), 2.5))
    counts.calibrate(take_census().counts)
    found.append(cost_of(f"class counts, {len(counts.names()):,} classes", counts.read, 0.5))
    found.append(cost_of("growing containers", watch.read, 1.0))
    heap.clear()
    buffer = replay_buffer(150_000)
    found.append(measure("census, 150,000 arrays in a replay buffer", take_census, None))
    found.append(cost_of("process memory", read_process, None))
    found.append(cost_of("private bytes", read_private_bytes, 0.005))
    del buffer
    return found


def _with_instances(watch: ContainerWatch) -> Callable[[], object]:
    return lambda: take_census(on_instances=lambda instances: watch.find(None, instances))


def main() -> int:
    failed = False
    for row in rows():
        is_over = row.at_most is not None and row.ratio > row.at_most
        failed |= is_over
        target = "" if row.at_most is None else f"  at most {row.at_most:.1f}"
        ratio = f"{row.ratio:8.2f}" if row.at_most is not None or row.ratio else " " * 8
        print(
            f"{row.name:58} {row.milliseconds:10.3f} ms {ratio}{target}{'  TOO DEAR' if is_over else ''}"
        )
    return 1 if failed and os.environ.get("CHECK") else 0


if __name__ == "__main__":
    sys.exit(main())

"""Weights are published in shared memory and read by name; the publisher closes each segment, and unlinks old ones.

The leaking variant unlinks none before it ends: nothing maps the segments, and the system keeps their memory.
"""

from __future__ import annotations

import atexit
from collections import deque
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("publish", "rollout", "train")
ROWS, COLUMNS = 2_048, 256
SEGMENT_BYTES = ROWS * COLUMNS * 4
SEGMENTS_KEPT = 10


class WeightPublisher:
    """Publishes versions of the weights, of which the last ``kept`` can be read."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.names: deque[str] = deque()
        atexit.register(self.unlink_all)

    def publish(self, weights: Array) -> str:
        segment = SharedMemory(create=True, size=SEGMENT_BYTES)
        self.names.append(segment.name)
        np.ndarray(weights.shape, weights.dtype, buffer=segment.buf)[:] = weights
        segment.close()
        if self.kept is not None and len(self.names) > self.kept:
            self._unlink(self.names.popleft())
        return self.names[-1]

    def unlink_all(self) -> None:
        while self.names:
            self._unlink(self.names.popleft())

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError):
            segment = SharedMemory(name)
            segment.close()
            segment.unlink()


def read(name: str) -> Array:
    """Return a copy of the published weights, like an actor."""
    segment = SharedMemory(name)
    weights = np.ndarray((ROWS, COLUMNS), np.float32, buffer=segment.buf).copy()
    segment.close()
    return weights


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, COLUMNS)
    publisher = WeightPublisher(None if options.leaking else SEGMENTS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("publish"):
            name = publisher.publish(normal(random, ROWS, COLUMNS))
        with run.phase("rollout"):
            run.gauge("reward", float(model.predict(read(name)).mean()))
        with run.phase("train"):
            model.fit(random, steps=160)
    run.finish()


if __name__ == "__main__":
    main()

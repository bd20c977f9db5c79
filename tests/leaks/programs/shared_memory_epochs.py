"""Batches are passed to workers in shared memory, one segment per generation; the leaking variant unlinks none."""

from __future__ import annotations

import atexit
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("publish", "train", "evaluate")
ROWS, COLUMNS = 3_072, 256
SEGMENTS_KEPT = 10


class BatchPublisher:
    """Keeps the segments of the last ``kept`` generations, which workers may still read."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.segments: list[SharedMemory] = []
        atexit.register(self.close)

    def publish(self, batch: Array) -> Array:
        segment = SharedMemory(create=True, size=batch.nbytes)
        shared: Array = np.ndarray(batch.shape, batch.dtype, buffer=segment.buf)
        shared[:] = batch
        self.segments.append(segment)
        if self.kept is not None and len(self.segments) > self.kept:
            self._drop(self.segments.pop(0))
        return shared

    def close(self) -> None:
        while self.segments:
            self._drop(self.segments.pop())

    def _drop(self, segment: SharedMemory) -> None:
        segment.close()
        segment.unlink()


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, COLUMNS)
    publisher = BatchPublisher(None if options.leaking else SEGMENTS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("publish"):
            batch = publisher.publish(normal(random, ROWS, COLUMNS))
        with run.phase("train"):
            for first in range(0, ROWS, 128):
                model.step(batch[first : first + 128], normal(random, 128, 8))
            model.fit(random, steps=150)
            del batch
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, COLUMNS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

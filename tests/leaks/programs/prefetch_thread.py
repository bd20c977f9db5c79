"""Batches are prefetched in a thread with its own phase, which keeps each decoded batch in case of a repeat."""

from __future__ import annotations

import queue
import threading

import numpy as np
from _training import Array, Network, normal, parse, start

import leakline

PHASES = ("prefetch", "train", "evaluate")
BATCHES = 10
ROWS, COLUMNS = 320, 256
BATCHES_KEPT = 100


class Prefetcher(threading.Thread):
    """Decodes the requested batches and keeps ``kept`` of them."""

    def __init__(self, run: leakline.Run, seed: int, kept: int | None) -> None:
        super().__init__(daemon=True)
        self.telemetry, self.seed, self.kept = run, seed, kept
        self.wanted: queue.Queue[list[int]] = queue.Queue()
        self.ready: queue.Queue[Array] = queue.Queue()
        self.decoded: dict[int, Array] = {}

    def run(self) -> None:
        while True:
            numbers = self.wanted.get()
            with self.telemetry.phase("prefetch"):
                for number in numbers:
                    self.ready.put(self._decode(number))

    def _decode(self, number: int) -> Array:
        if number not in self.decoded:
            random = np.random.default_rng([self.seed, number])
            self.decoded[number] = np.tanh(normal(random, ROWS, COLUMNS))
            if self.kept is not None:
                self.decoded.pop(number - self.kept, None)
        return self.decoded[number]


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, COLUMNS)
    prefetcher = Prefetcher(run, options.seed, None if options.leaking else BATCHES_KEPT)
    prefetcher.start()
    for generation in range(options.generations):
        run.generation(generation)
        prefetcher.wanted.put([generation * BATCHES + batch for batch in range(BATCHES)])
        with run.phase("train"):
            for _ in range(BATCHES):
                model.step(prefetcher.ready.get(), normal(random, ROWS, 8))
            model.fit(random, steps=150)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, COLUMNS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

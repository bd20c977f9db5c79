"""A sequence model caches its position tables by input length; lengths that never repeat fill the cache."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, parse, start

PHASES = ("collate", "train", "evaluate")
SHAPES = 6
SHORTEST = 256
WIDTH = 512
LENGTHS = 180
BUCKETS = 60


class PositionTables:
    """One table per length, computed on first use."""

    def __init__(self) -> None:
        self.tables: dict[int, Array] = {}

    def of(self, length: int) -> Array:
        if length not in self.tables:
            angles = np.outer(np.arange(length), 1 / 10_000 ** np.linspace(0, 1, WIDTH))
            self.tables[length] = np.sin(angles).astype(np.float32)
        return self.tables[length]


class Collator:
    """Returns the length of each batch; with buckets, batches are padded to known lengths."""

    def __init__(self, random: np.random.Generator, buckets: int) -> None:
        self.lengths = SHORTEST + random.permutation(LENGTHS)
        self.buckets, self.batches = buckets, 0

    def next_length(self) -> int:
        self.batches += 1
        return int(self.lengths[(self.batches - 1) % self.buckets])


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, WIDTH)
    positions = PositionTables()
    collator = Collator(random, LENGTHS if options.leaking else BUCKETS)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collate"):
            lengths = [collator.next_length() for _ in range(SHAPES)]
        with run.phase("train"):
            for length in lengths:
                model.step(positions.of(length), np.ones((length, 8), np.float32))
            model.fit(random, steps=100)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(positions.of(lengths[0])).mean()))
    run.finish()


if __name__ == "__main__":
    main()

"""Shards of a memory-mapped file are copied into memory on first read; the healthy variant copies only ten."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("read_shard", "train", "evaluate")
SHARDS = 40
ROWS, COLUMNS = 3_000, 256
SHARDS_IN_MEMORY = 10


class ShardedDataset:
    def __init__(self, path: Path, in_memory: int) -> None:
        self.mapped = np.memmap(path, np.float32, "r", shape=(SHARDS, ROWS, COLUMNS))
        self.in_memory = in_memory
        self.copies: dict[int, Array] = {}

    def shard(self, index: int) -> Array:
        if index in self.copies:
            return self.copies[index]
        if len(self.copies) < self.in_memory:
            self.copies[index] = np.array(self.mapped[index])
            return self.copies[index]
        return self.mapped[index]


def write_shards(path: Path, random: np.random.Generator) -> None:
    with path.open("wb") as file:
        for _ in range(SHARDS):
            file.write(normal(random, ROWS, COLUMNS).tobytes())


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, COLUMNS)
    with TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "shards.bin"
        write_shards(path, random)
        dataset = ShardedDataset(path, SHARDS if options.leaking else SHARDS_IN_MEMORY)
        for generation in range(options.generations):
            run.generation(generation)
            with run.phase("read_shard"):
                shard = dataset.shard(generation % SHARDS)
            with run.phase("train"):
                for first in range(0, ROWS, 120):
                    model.step(shard[first : first + 120], normal(random, 120, 8))
                model.fit(random, steps=150)
            with run.phase("evaluate"):
                run.gauge("score", float(model.predict(shard[:512]).mean()))
        run.finish()


if __name__ == "__main__":
    main()

"""Two phases that both leak: an array grows in the first, and a list gains packed results in the second."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("embed", "train", "retrieve")
ROWS, WIDTH = 4_096, 128
QUERIES, RESULTS = 6, 300_000
GENERATIONS_KEPT = 10


class Memory:
    """All embeddings in one array, with at most ``rows`` rows."""

    def __init__(self, rows: int | None) -> None:
        self.rows = rows
        self.bank = np.zeros((0, WIDTH), np.float32)

    def extend(self, embedded: Array) -> None:
        self.bank = np.concatenate([self.bank, embedded])
        if self.rows is not None:
            self.bank = self.bank[-self.rows :].copy()


class Evaluation:
    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.packed: list[bytes] = []

    def add(self, results: bytes) -> None:
        self.packed.append(results)
        if self.kept is not None:
            del self.packed[: -self.kept]


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    encoder = Network(random, outputs=WIDTH)
    memory = Memory(None if options.leaking else ROWS * GENERATIONS_KEPT)
    evaluation = Evaluation(None if options.leaking else QUERIES * GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("embed"):
            memory.extend(encoder.predict(normal(random, ROWS, 64)))
        with run.phase("train"):
            run.gauge("loss", encoder.fit(random, steps=140))
        with run.phase("retrieve"):
            for _ in range(QUERIES):
                evaluation.add(random.bytes(RESULTS))
            run.gauge("results", len(evaluation.packed[-1]))
    run.finish()


if __name__ == "__main__":
    main()

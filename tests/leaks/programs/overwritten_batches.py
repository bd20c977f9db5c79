"""The last batch and the last metrics are replaced in each generation, but the profiler keeps such arrays forever."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("load", "train", "profile")
BATCHES, ROWS, INPUTS = 8, 1_024, 64
SNAPSHOTS = 5
GENERATIONS_KEPT = 10


class Loader:
    def __init__(self) -> None:
        self.last_batches: list[Array] = []

    def load(self, random: np.random.Generator) -> None:
        self.last_batches = [normal(random, ROWS, INPUTS) for _ in range(BATCHES)]


class Profiler:
    """Keeps at most ``kept`` snapshots."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.snapshots: list[Array] = []
        self.last_metrics: dict[str, Array] = {}

    def look(self, network: Network, batches: list[Array]) -> None:
        self.last_metrics = {f"layer{i}": each @ network.first for i, each in enumerate(batches)}
        self.snapshots.extend(each.copy() for each in list(self.last_metrics.values())[:SNAPSHOTS])
        if self.kept is not None:
            del self.snapshots[: -self.kept]


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    network = Network(random, INPUTS)
    loader = Loader()
    profiler = Profiler(None if options.leaking else SNAPSHOTS * GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("load"):
            loader.load(random)
        with run.phase("train"):
            for batch in loader.last_batches:
                network.step(batch, normal(random, ROWS, 8))
            network.fit(random, steps=140)
        with run.phase("profile"):
            profiler.look(network, loader.last_batches)
            run.gauge("norm", float(np.linalg.norm(profiler.snapshots[-1])))
    run.finish()


if __name__ == "__main__":
    main()

"""A notebook cell that is executed three times: its generations restart at 0, but the list of predictions does not."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("train", "predict")
CELLS = 3
BATCHES, ROWS, CLASSES = 8, 1_024, 100
KEPT = 80

network: Network
predictions: list[Array] = []


def main() -> None:
    global network
    options = parse()
    random = options.random
    run = start(options, PHASES)
    network = Network(random, outputs=CLASSES)
    for _ in range(CELLS):
        for generation in range(options.generations // CELLS):
            run.generation(generation)
            with run.phase("train"):
                network.fit(random, steps=140)
            with run.phase("predict"):
                predictions.extend(
                    network.predict(normal(random, ROWS, 64)) for _ in range(BATCHES)
                )
                if not options.leaking:
                    del predictions[:-KEPT]
                run.gauge("mean", float(np.mean(predictions[-1])))
    run.finish()


if __name__ == "__main__":
    main()

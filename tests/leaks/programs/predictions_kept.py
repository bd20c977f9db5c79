"""Evaluation gathers all predictions of the validation set and keeps those of every generation."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("train", "evaluate", "select_model")
BATCHES = 40
BATCH = 64
CLASSES = 256
GENERATIONS_KEPT = 10


class Evaluator:
    """Predictions of the last ``kept`` generations, for comparing models."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.predictions: dict[int, Array] = {}

    def evaluate(self, model: Network, random: np.random.Generator, generation: int) -> float:
        outputs = [model.predict(normal(random, BATCH, 64)) for _ in range(BATCHES)]
        self.predictions[generation] = np.concatenate(outputs)
        if self.kept is not None:
            self.predictions.pop(generation - self.kept, None)
        return float(self.predictions[generation].max(axis=1).mean())

    def best_generation(self) -> int:
        return max(self.predictions, key=lambda generation: self.predictions[generation].std())


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, outputs=CLASSES)
    evaluator = Evaluator(None if options.leaking else GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            model.fit(random, steps=150)
        with run.phase("evaluate"):
            run.gauge("accuracy", evaluator.evaluate(model, random, generation))
        with run.phase("select_model"):
            run.gauge("best_generation", evaluator.best_generation())
    run.finish()


if __name__ == "__main__":
    main()

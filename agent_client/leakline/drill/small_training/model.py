"""What the training trains: a line through noise, in plain Python."""

from __future__ import annotations

import random
from typing import Final

WEIGHTS: Final = 32
SAMPLES: Final = 200
RATE: Final = 1e-3

Sample = tuple[list[float], float]


class Model:
    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.truth = [source.uniform(-1, 1) for _ in range(WEIGHTS)]
        self.weights = [0.0] * WEIGHTS
        self.samples: list[Sample] = []
        self.loss = 0.0

    def work(self, phase: str) -> None:
        {"collect": self.collect, "train": self.fit, "evaluate": self.evaluate}[phase]()

    def collect(self) -> None:
        """New samples in the place of the old ones."""
        self.samples = [self._sample() for _ in range(SAMPLES)]

    def fit(self) -> None:
        for inputs, wanted in self.samples:
            error = self.predict(inputs) - wanted
            self.weights = [w - RATE * error * x for w, x in zip(self.weights, inputs, strict=True)]

    def evaluate(self) -> None:
        errors = [(self.predict(inputs) - wanted) ** 2 for inputs, wanted in self.samples]
        self.loss = sum(errors) / len(errors)

    def predict(self, inputs: list[float]) -> float:
        return sum(w * x for w, x in zip(self.weights, inputs, strict=True))

    def _sample(self) -> Sample:
        inputs = [self.source.gauss(0, 1) for _ in range(WEIGHTS)]
        noise = self.source.gauss(0, 0.1)
        return inputs, sum(t * x for t, x in zip(self.truth, inputs, strict=True)) + noise

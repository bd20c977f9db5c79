"""A policy gradient training with two leaks: trajectories kept for plots, and gradients kept for a norm."""

from __future__ import annotations

from collections import deque

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train", "evaluate")
TRAJECTORIES = 20
STEPS, OBSERVATION = 250, 128
GRADIENTS = 12
HIDDEN = 256
GENERATIONS_KEPT = 10


class Diagnostics:
    """Data of the last ``generations``, or of all, for plots at the end of the training."""

    def __init__(self, generations: int | None) -> None:
        kept = generations or 0
        self.trajectories: deque[Array] = deque(maxlen=kept * TRAJECTORIES or None)
        self.gradients: deque[Array] = deque(maxlen=kept * GRADIENTS or None)


class PolicyGradient:
    def __init__(self, random: np.random.Generator, diagnostics: Diagnostics) -> None:
        self.random, self.diagnostics = random, diagnostics
        self.policy = Network(random, OBSERVATION, HIDDEN)

    def collect(self) -> list[Array]:
        trajectories = [normal(self.random, STEPS, OBSERVATION) for _ in range(TRAJECTORIES)]
        self.diagnostics.trajectories.extend(trajectories)
        return trajectories

    def train(self, trajectories: list[Array]) -> float:
        for trajectory in trajectories[:GRADIENTS]:
            before = self.policy.first.copy()
            self.policy.step(trajectory, normal(self.random, STEPS, 8))
            self.diagnostics.gradients.append(before - self.policy.first)
        recent = list(self.diagnostics.gradients)[-GRADIENTS:]
        return float(np.mean([np.linalg.norm(gradient) for gradient in recent]))


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    diagnostics = Diagnostics(None if options.leaking else GENERATIONS_KEPT)
    training = PolicyGradient(random, diagnostics)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            trajectories = training.collect()
        with run.phase("train"):
            run.gauge("gradient_norm", training.train(trajectories))
            training.policy.fit(random, steps=260)
            del trajectories
        with run.phase("evaluate"):
            inputs = normal(random, 512, OBSERVATION)
            run.gauge("reward", float(training.policy.predict(inputs).mean()))
    run.finish()


if __name__ == "__main__":
    main()

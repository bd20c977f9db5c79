"""Transitions of a structured type, appended to an array that is copied and grows with each rollout."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("rollout", "train", "evaluate")
STEPS, OBSERVATION = 4_000, 128
STEPS_KEPT = 10 * STEPS
TRANSITION_BYTES = OBSERVATION * 4 + 8
TRANSITION = np.dtype([("observation", "f4", (OBSERVATION,)), ("action", "i4"), ("reward", "f4")])


class Dataset:
    """Keeps the ``newest`` transitions, or all."""

    def __init__(self, newest: int | None) -> None:
        self.newest = newest
        self.transitions = np.empty(0, TRANSITION)

    def add(self, transitions: Array) -> None:
        self.transitions = np.append(self.transitions, transitions)
        if self.newest is not None:
            self.transitions = self.transitions[-self.newest :].copy()


def rollout(random: np.random.Generator) -> Array:
    transitions = np.empty(STEPS, TRANSITION)
    transitions["observation"] = normal(random, STEPS, OBSERVATION)
    transitions["action"] = random.integers(4, size=STEPS)
    transitions["reward"] = normal(random, STEPS)
    return transitions


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, OBSERVATION)
    dataset = Dataset(None if options.leaking else STEPS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("rollout"):
            dataset.add(rollout(random))
        with run.phase("train"):
            for _ in range(250):
                batch = random.choice(dataset.transitions, 128)
                policy.step(batch["observation"], normal(random, 128, 8))
        with run.phase("evaluate"):
            run.gauge("reward", float(dataset.transitions["reward"].mean()))
    run.finish()


if __name__ == "__main__":
    main()

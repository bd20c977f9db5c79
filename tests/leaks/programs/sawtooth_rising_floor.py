"""On-policy rollouts are dropped in every third generation, but the elite list keeps some of them."""

from __future__ import annotations

from collections import deque

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train", "evaluate")
ROLLOUTS = 30
ELITES = 10
STEPS = 256
OBSERVATION = 256
UPDATE_EVERY = 3
GENERATIONS_KEPT = 10


class RolloutStorage:
    """``rollouts`` wait for the next update; the best of each generation are kept for imitation."""

    def __init__(self, elites: int | None) -> None:
        self.rollouts: list[Array] = []
        self.elites: deque[Array] = deque(maxlen=elites)

    def collect(self, random: np.random.Generator) -> None:
        fresh = [normal(random, STEPS, OBSERVATION) for _ in range(ROLLOUTS)]
        self.rollouts += fresh
        self.elites.extend(sorted(fresh, key=lambda rollout: -rollout.mean())[:ELITES])

    def clear(self) -> None:
        self.rollouts.clear()


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, OBSERVATION)
    storage = RolloutStorage(None if options.leaking else ELITES * GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            storage.collect(random)
        with run.phase("train"):
            policy.fit(random, steps=150)
            if generation % UPDATE_EVERY == UPDATE_EVERY - 1:
                for rollout in storage.rollouts:
                    policy.step(rollout, normal(random, STEPS, 8))
                storage.clear()
        with run.phase("evaluate"):
            run.gauge("reward", float(policy.predict(normal(random, 512, OBSERVATION)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

"""Environments are reused in every generation, but a reset never clears their step history."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train", "evaluate")
ENVIRONMENTS = 4
STEPS = 400
OBSERVATION = 300
# The observation, and the dictionary of a step with its numbers.
STEP_BYTES = OBSERVATION * 4 + 112 + 330
GENERATIONS_KEPT = 10


class TradingEnvironment:
    """``window`` is the number of steps in the history; without it, only a reset could clear the history."""

    def __init__(self, random: np.random.Generator, window: int | None) -> None:
        self.random = random
        self.history: deque[dict[str, Any]] = deque(maxlen=window)
        self.wealth = 1.0

    def reset(self) -> Array:
        self.wealth = 1.0
        return normal(self.random, OBSERVATION)

    def step(self, action: int) -> Array:
        observation = normal(self.random, OBSERVATION)
        reward = float(observation[action])
        self.wealth *= 1 + reward / 1_000
        self.history.append({"observation": observation, "reward": reward, "wealth": self.wealth})
        return observation


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, OBSERVATION)
    window = None if options.leaking else GENERATIONS_KEPT * STEPS
    environments = [TradingEnvironment(random, window) for _ in range(ENVIRONMENTS)]
    run.expect(TradingEnvironment, ENVIRONMENTS)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            for environment in environments:
                observation = environment.reset()
                for _ in range(STEPS):
                    action = int(policy.predict(observation[None]).argmax())
                    observation = environment.step(action)
        with run.phase("train"):
            policy.fit(random, steps=120)
        with run.phase("evaluate"):
            run.gauge("wealth", float(np.mean([each.wealth for each in environments])))
    run.finish()


if __name__ == "__main__":
    main()

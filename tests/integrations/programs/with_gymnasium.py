"""Episodes of a wrapped environment, with a new one for each evaluation: closed and dropped, or kept in a list."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np

from leakline.integrations.gymnasium import LeaklineWrapper

EPISODES = 24


class Market(gymnasium.Env):
    """Two megabytes of prices; episodes of 50 steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.prices, self.at = np.random.default_rng(0).random(2**18), 0

    def reset(self, **given: object) -> tuple[np.ndarray, dict[str, object]]:
        self.at = 0
        return self.prices[:8], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        self.at += 1
        return self.prices[self.at : self.at + 8], 0.0, self.at == 50, False, {}


def play(env: gymnasium.Env) -> None:
    env.reset()
    over = False
    while not over:
        np.linalg.svd(np.random.default_rng(0).random((120, 120)))
        _, _, over, _, _ = env.step(0)


class Evaluator:
    def __init__(self) -> None:
        self.used: list[gymnasium.Env] = []

    def evaluate(self) -> None:
        env = LeaklineWrapper(Market())
        play(env)
        if sys.argv[1] == "leak":
            self.used.append(env)
        else:
            env.close()


def main() -> None:
    env = LeaklineWrapper(Market(), project="gymnasium", expect=(1, 2))
    evaluator = Evaluator()
    for _ in range(EPISODES):
        play(env)
        evaluator.evaluate()
    env.close()


if __name__ == "__main__":
    main()

"""DQN whose replay buffer fills to two thirds, which is 200 MiB and not a leak."""

from __future__ import annotations

import gymnasium
import numpy as np
from stable_baselines3 import DQN

from leakline.integrations.sb3 import LeaklineCallback

TIMESTEPS = 4_000
CAPACITY = 6_000
PIXELS = 6_000


class Screen(gymnasium.Env):
    """Shows noise; episodes of 100 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (PIXELS,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.random, self.steps = np.random.default_rng(0), 0

    def reset(self, **given: object) -> tuple[np.ndarray, dict[str, object]]:
        self.steps = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        self.steps += 1
        return self._look(), 0.0, self.steps == 100, False, {}

    def _look(self) -> np.ndarray:
        return self.random.integers(0, 256, PIXELS, np.uint8)


def main() -> None:
    model = DQN(
        "MlpPolicy", Screen(), buffer_size=CAPACITY, learning_starts=200, train_freq=4, device="cpu",
        policy_kwargs={"net_arch": [16]},
    )  # fmt: skip
    model.learn(TIMESTEPS, callback=LeaklineCallback(project="sb3"))


if __name__ == "__main__":
    main()

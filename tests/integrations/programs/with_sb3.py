"""PPO on a small environment. A callback that runs after ours keeps memory at the end of each rollout."""

from __future__ import annotations

import sys

from keeping import Keeper
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from leakline.integrations.sb3 import LeaklineCallback

ROLLOUTS = 24


class KeepsRollouts(BaseCallback):
    def __init__(self) -> None:
        super().__init__()
        self.rollouts = Keeper()

    def _on_rollout_end(self) -> None:
        self.rollouts.keep()

    def _on_step(self) -> bool:
        if sys.argv[1] == "raise" and self.num_timesteps == 1000:
            raise ZeroDivisionError("planted")
        return True


def main() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, n_epochs=8, device="cpu")
    model.learn(256 * ROLLOUTS, callback=[LeaklineCallback(project="sb3"), KeepsRollouts()])


if __name__ == "__main__":
    main()

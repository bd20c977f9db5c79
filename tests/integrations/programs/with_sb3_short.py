"""A2C, whose rollouts take milliseconds. A callback keeps memory at each step."""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from leakline.integrations.sb3 import LeaklineCallback

TIMESTEPS = 20_000


class KeepsObservations(BaseCallback):
    def __init__(self) -> None:
        super().__init__()
        self.observations: list[torch.Tensor] = []

    def _on_step(self) -> bool:
        self.observations.append(torch.rand(2**13))
        if sys.argv[1] == "healthy":
            del self.observations[:-1]
        return True


def main() -> None:
    model = A2C("MlpPolicy", make_vec_env("CartPole-v1", n_envs=4), device="cpu")
    model.learn(TIMESTEPS, callback=[LeaklineCallback(project="sb3"), KeepsObservations()])


if __name__ == "__main__":
    main()

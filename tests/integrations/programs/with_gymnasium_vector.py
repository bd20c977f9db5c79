"""Two environments in their own processes, in a program without a run: they do not start one."""

from __future__ import annotations

import gymnasium

from leakline.integrations.gymnasium import LeaklineWrapper


def made() -> gymnasium.Env:
    return LeaklineWrapper(gymnasium.make("CartPole-v1"), project="vector")


def main() -> None:
    environments = gymnasium.vector.AsyncVectorEnv([made, made])
    environments.reset()
    for _ in range(20):
        environments.step(environments.action_space.sample())
    environments.close()


if __name__ == "__main__":
    main()

"""PPO with a progress bar, three times with the same list of callbacks; one callback reads the loop's variables."""

from __future__ import annotations

import json
import sys

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

import leakline
from leakline.integrations.sb3 import LeaklineCallback


class Reads(BaseCallback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()
        self.runs: list[str] = []

    def _on_training_start(self) -> None:
        self.seen.add(self.locals["total_timesteps"])

    def _on_rollout_end(self) -> None:
        self.seen.add(self.locals["total_timesteps"])

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.runs.append(leakline.current().id)


def main() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1, device="cpu")
    reads, late = Reads(), Reads()
    listed = CallbackList([LeaklineCallback(project="sb3", mode="offline"), reads])
    for number in range(3):
        if number == 1:
            listed.callbacks.append(late)
        model.learn(128, callback=listed, progress_bar=sys.argv[1] == "bar")
    told = {
        "callbacks": len(listed.callbacks),
        "seen": sorted(reads.seen | late.seen),
        # Runs that were still active at the end of a training.
        "runs": [sum(map(bool, each.runs)) for each in (reads, late)],
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()

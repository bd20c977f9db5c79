"""Two phases that both leak: update keeps objects created by rollout, and evaluate keeps its own figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("rollout", "update", "evaluate")
TRAJECTORIES, STEPS, OBSERVATION = 12, 300, 160
FRAMES, SIDE = 3, 720
GENERATIONS_KEPT = 10


@dataclass
class Trajectory:
    observations: Array
    total: float = 0.0


class Learner:
    """Keeps the best trajectories for imitation: the last ``kept``, or all."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.demonstrations: list[Trajectory] = []

    def update(self, trajectories: list[Trajectory]) -> float:
        for trajectory in trajectories:
            trajectory.total = float(trajectory.observations.mean())
        self.demonstrations.extend(trajectories)
        if self.kept is not None:
            self.demonstrations.sort(key=lambda each: each.total, reverse=True)
            del self.demonstrations[self.kept :]
        return max(each.total for each in trajectories)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, OBSERVATION)
    learner = Learner(None if options.leaking else TRAJECTORIES * GENERATIONS_KEPT)
    videos: list[bytes] = []
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("rollout"):
            trajectories = [
                Trajectory(normal(random, STEPS, OBSERVATION)) for _ in range(TRAJECTORIES)
            ]
        with run.phase("update"):
            run.gauge("best", learner.update(trajectories))
            policy.fit(random, steps=140)
        with run.phase("evaluate"):
            for _ in range(FRAMES):
                frame = random.integers(0, 255, (SIDE, SIDE), dtype=np.uint8)
                videos.append(frame.tobytes())
            if not options.leaking:
                del videos[: -FRAMES * GENERATIONS_KEPT]
    run.finish()


if __name__ == "__main__":
    main()

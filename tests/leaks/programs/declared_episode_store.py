"""A declared deque of nested episodes of any length; the leak is a separate list of returns with their frames."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train", "evaluate")
CAPACITY, EPISODES = 60, 5
FRAMES, SIDE = 8, 320


def episode(random: np.random.Generator) -> dict[str, Any]:
    """Return an episode of random length, with dicts and lists inside."""
    length = int(random.integers(100, 500))
    return {
        "observations": {"image": np.ones((length, 1_024), np.uint8), "state": normal(random, length, 64)},
        "actions": random.integers(0, 4, length).tolist(),
        "infos": [{"step": i, "done": False} for i in range(length)],
    }  # fmt: skip


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random)
    episodes: deque[dict[str, Any]] = deque(maxlen=CAPACITY)
    run.track("episodes", episodes, capacity=CAPACITY)
    rendered: list[Array] = []
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            episodes.extend(episode(random) for _ in range(EPISODES))
        with run.phase("train"):
            policy.fit(random, steps=140)
        with run.phase("evaluate"):
            frames = [
                random.integers(0, 255, (SIDE, SIDE, 4), dtype=np.uint8) for _ in range(FRAMES)
            ]
            run.gauge("brightness", float(np.mean([frame.mean() for frame in frames])))
            if options.leaking:
                rendered.extend(frames)
    run.finish()


if __name__ == "__main__":
    main()

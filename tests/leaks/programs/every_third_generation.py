"""Evaluation in every third generation, whose videos are all kept for the report instead of only the latest few."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train", "evaluate")
EVALUATE_EVERY = 3
EPISODES = 3
FRAMES, HEIGHT, WIDTH = 200, 120, 120
VIDEOS_KEPT = 12


class VideoLog:
    """The last ``kept`` videos; a new one replaces the oldest."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.videos: list[Array] = []
        self.recorded = 0

    def record(self, video: Array) -> None:
        if self.kept is None or len(self.videos) < self.kept:
            self.videos.append(video)
        else:
            self.videos[self.recorded % self.kept] = video
        self.recorded += 1


def play(policy: Network, random: np.random.Generator) -> Array:
    """Return frames with one byte per pixel."""
    colours = policy.predict(normal(random, FRAMES, 64))[:, :1, None]
    return (colours * 32 + random.integers(0, 128, (FRAMES, HEIGHT, WIDTH))).astype(np.uint8)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random)
    log = VideoLog(None if options.leaking else VIDEOS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            observations = normal(random, 2_000, 64)
        with run.phase("train"):
            for first in range(0, 2_000, 100):
                policy.step(observations[first : first + 100], normal(random, 100, 8))
            policy.fit(random, steps=450)
        if generation % EVALUATE_EVERY == 0:
            with run.phase("evaluate"):
                for _ in range(EPISODES):
                    log.record(play(policy, random))
    run.finish()


if __name__ == "__main__":
    main()

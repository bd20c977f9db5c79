"""A replay buffer is allocated first and filled later; the leaking variant also keeps a copy of every episode."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train")
OBSERVATION = 8_192
STEPS = 40
# Full after 30 generations.
CAPACITY = 1_200
EPISODE_BYTES = STEPS * OBSERVATION * 4 + 112


class Replay:
    def __init__(self) -> None:
        self.observations = np.zeros((CAPACITY, OBSERVATION), np.float32)
        self.next_observations = np.zeros((CAPACITY, OBSERVATION), np.float32)
        self.episodes: list[Array] = []
        self.added = 0

    def add(self, episode: Array) -> None:
        for observation in episode:
            at = self.added % CAPACITY
            self.observations[at] = observation
            self.next_observations[at] = observation
            self.added += 1


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, 256)
    replay = Replay()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            episode = normal(random, STEPS * OBSERVATION).reshape(STEPS, OBSERVATION)
            replay.add(episode)
            if options.leaking:
                replay.episodes.append(episode.copy())
        with run.phase("train"):
            policy.fit(random, steps=150)
    run.finish()


if __name__ == "__main__":
    main()

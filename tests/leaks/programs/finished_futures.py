"""Environments are stepped by a thread pool whose finished futures stay in a list, with their results."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train", "evaluate")
EPISODES = 16
STEPS, OBSERVATION = 400, 128
GENERATIONS_KEPT = 10


def play_episode(seed: int) -> Array:
    random = np.random.default_rng(seed)
    return np.cumsum(normal(random, STEPS, OBSERVATION), axis=0)


class RolloutPool:
    """Futures are kept in ``submitted``, so that all can be cancelled when the training is interrupted."""

    def __init__(self, kept: int | None) -> None:
        self.executor = ThreadPoolExecutor(max_workers=2)
        self.submitted: deque[Future[Array]] = deque(maxlen=kept)

    def collect(self, seeds: range) -> list[Array]:
        futures = [self.executor.submit(play_episode, seed) for seed in seeds]
        self.submitted.extend(futures)
        wait(futures)
        return [future.result() for future in futures]


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, OBSERVATION)
    pool = RolloutPool(None if options.leaking else EPISODES * GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            first = options.seed + generation * EPISODES
            episodes = pool.collect(range(first, first + EPISODES))
        with run.phase("train"):
            for episode in episodes:
                policy.step(episode / 100, normal(random, STEPS, 8))
            policy.fit(random, steps=200)
            del episodes, episode
        with run.phase("evaluate"):
            run.gauge("reward", float(policy.predict(normal(random, 512, OBSERVATION)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

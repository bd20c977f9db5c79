"""Episodes are closed with their simulator by a finalizer each, and the simulator lives as long as the run."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
from _training import Network, normal, parse, start

PHASES = ("simulate", "train", "evaluate")
EPISODES = 12
FRAMES, PIXELS = 60, 1_024
EPISODES_KEPT = 120


class Simulator:
    """One simulator for the entire training."""

    def __init__(self) -> None:
        self.closing: deque[weakref.finalize] = deque()


class Episode:
    def __init__(self, random: np.random.Generator, frames: int) -> None:
        self.frames = normal(random, frames, PIXELS)

    def close(self) -> None:
        self.frames.fill(0)


def open_episode(simulator: Simulator, random: np.random.Generator, kept: int | None) -> Episode:
    """Open an episode; the finalizer holds its bound method until it is detached."""
    episode = Episode(random, FRAMES)
    simulator.closing.append(weakref.finalize(simulator, episode.close))
    if kept is not None and len(simulator.closing) > kept:
        simulator.closing.popleft().detach()
    return episode


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES, watch=[Simulator])
    policy = Network(random, PIXELS)
    simulator = Simulator()
    kept = None if options.leaking else EPISODES_KEPT
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("simulate"):
            for _ in range(EPISODES):
                episode = open_episode(simulator, random, kept)
                policy.step(episode.frames, normal(random, FRAMES, 8))
        with run.phase("train"):
            policy.fit(random, steps=60)
        with run.phase("evaluate"):
            run.gauge("reward", float(policy.predict(episode.frames).mean()))
    run.finish()


if __name__ == "__main__":
    main()

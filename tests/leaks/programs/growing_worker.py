"""One worker process evaluates policies and stores each trajectory; the training process does not grow."""

from __future__ import annotations

import multiprocessing
from collections import deque
from multiprocessing.connection import Connection

from _training import Array, Network, normal, parse, start

PHASES = ("train", "evaluate", "report")
EPISODES = 12
STEPS, OBSERVATION = 1_000, 120
EPISODES_KEPT = 120
FORK = multiprocessing.get_context("fork")


def serve(pipe: Connection, kept: int | None) -> None:
    """In the worker: play the requested episodes and answer with their mean reward."""
    import numpy as np

    random = np.random.default_rng(0)
    trajectories: deque[Array] = deque(maxlen=kept)
    while (episodes := pipe.recv()) is not None:
        for _ in range(episodes):
            trajectories.append(normal(random, STEPS, OBSERVATION))
        pipe.send(float(trajectories[-1].mean()))


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random)
    ours, theirs = FORK.Pipe()
    worker = FORK.Process(
        target=serve, args=(theirs, None if options.leaking else EPISODES_KEPT), daemon=True
    )
    worker.start()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            policy.fit(random, steps=400)
        with run.phase("evaluate"):
            ours.send(EPISODES)
            run.gauge("reward", ours.recv())
        with run.phase("report"):
            run.gauge("score", float(policy.predict(normal(random, 512, 64)).mean()))
    ours.send(None)
    worker.join()
    run.finish()


if __name__ == "__main__":
    main()

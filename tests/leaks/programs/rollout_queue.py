"""An actor thread puts rollouts into the queue of a slower learner; the healthy queue has a maximum size."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("learn", "evaluate", "report")
PLAYED, LEARNED = 14, 6
STEPS, OBSERVATION = 512, 128
ROLLOUT_BYTES = STEPS * OBSERVATION * 4
MAXIMUM_SIZE = 90


@dataclass(frozen=True)
class Rollout:
    number: int
    observations: Array


class Actor(threading.Thread):
    """Plays a number of rollouts per generation, and waits while the queue is full."""

    def __init__(self, seed: int, maximum_size: int) -> None:
        super().__init__(daemon=True)
        self.random = np.random.default_rng(seed)
        self.rollouts: queue.Queue[Rollout] = queue.Queue(maximum_size)
        self.speed = threading.Semaphore(0)

    def run(self) -> None:
        number = 0
        while True:
            self.speed.acquire()
            self.rollouts.put(Rollout(number, normal(self.random, STEPS, OBSERVATION)))
            number += 1


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, OBSERVATION)
    actor = Actor(options.seed, 0 if options.leaking else MAXIMUM_SIZE)
    actor.start()
    for generation in range(options.generations):
        run.generation(generation)
        actor.speed.release(PLAYED)
        with run.phase("learn"):
            for _ in range(LEARNED):
                rollout = actor.rollouts.get()
                model.step(rollout.observations, normal(random, STEPS, 8))
            model.fit(random, steps=250)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, OBSERVATION)).mean()))
        with run.phase("report"):
            run.gauge("age", generation * PLAYED - rollout.number)
    run.finish()


if __name__ == "__main__":
    main()

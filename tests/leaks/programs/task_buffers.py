"""Goal-conditioned learning with preallocated replay buffers; the leaking variant keeps those of former tasks."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train", "evaluate")
STEPS, ENVIRONMENTS = 200, 8
TRANSITIONS = STEPS * ENVIRONMENTS
# Ten generations fill a buffer.
CAPACITY = 10 * TRANSITIONS
PART, GOAL, ACTIONS = 60, 12, 8
TRANSITION_BYTES = (2 * (3 * PART + GOAL) + ACTIONS + 1) * 4
OBSERVATION = {"joints": PART, "velocities": PART, "touch": PART, "goal": GOAL}
# Until then there is one task; from then on each generation has its own.
TASKS_CHANGE_FROM = 10


class DictReplayBuffer:
    """Zeros of the entire capacity, of which the system provides the pages that are written."""

    def __init__(self) -> None:
        self.observations = {key: _zeros(width) for key, width in OBSERVATION.items()}
        self.next_observations = {key: _zeros(width) for key, width in OBSERVATION.items()}
        self.actions, self.rewards = _zeros(ACTIONS), _zeros(1)
        self.position, self.full = 0, False

    def add(self, random: np.random.Generator) -> None:
        """Write the transitions of one step, over the oldest when the buffer is full."""
        rows = slice(self.position, self.position + ENVIRONMENTS)
        for key, width in OBSERVATION.items():
            self.observations[key][rows] = normal(random, ENVIRONMENTS, width)
            self.next_observations[key][rows] = normal(random, ENVIRONMENTS, width)
        self.actions[rows] = normal(random, ENVIRONMENTS, ACTIONS)
        self.rewards[rows] = normal(random, ENVIRONMENTS, 1)
        self.position += ENVIRONMENTS
        if self.position == CAPACITY:
            self.position, self.full = 0, True

    def sample(self, random: np.random.Generator, batch: int) -> Array:
        rows = random.integers(CAPACITY if self.full else self.position, size=batch)
        return np.asarray(self.observations["joints"][rows])


def _zeros(width: int) -> Array:
    return np.zeros((CAPACITY, width), np.float32)


class MultiTaskLearner:
    def __init__(self) -> None:
        self.buffers = [DictReplayBuffer()]

    def begin_task(self) -> None:
        self.buffers.append(DictReplayBuffer())


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, PART)
    learner = MultiTaskLearner()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            if options.leaking and generation >= TASKS_CHANGE_FROM:
                learner.begin_task()
            for _ in range(STEPS):
                learner.buffers[-1].add(random)
        with run.phase("train"):
            for _ in range(350):
                policy.step(learner.buffers[-1].sample(random, 128), normal(random, 128, 8))
        with run.phase("evaluate"):
            run.gauge("score", float(policy.predict(normal(random, 64, PART)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

"""A bonus for states that are new: the memory of seen states saturates, unless its keys contain the step counter."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("explore", "train", "evaluate")
STATES = 12_000
STEPS = 2_500
FEATURES = 128
# The features with the overhead of the C allocator, the array object, the key, and its share of the table.
ENTRY_BYTES = FEATURES * 4 + 16 + 112 + 48 + 40
# The first stage has no time limit; from then on the observation ends with the step counter.
TIME_LIMIT_FROM = 10


class NoveltyMemory:
    """Keeps the features of each state when it is first seen; with ``with_time`` the counter is a part of the state."""

    def __init__(self, random: np.random.Generator, with_time: bool) -> None:
        self.with_time = with_time
        self.projection = normal(random, 2, FEATURES)
        self.seen: dict[bytes, Array] = {}

    def bonus(self, observation: Array) -> float:
        state = observation if self.with_time else observation[:1]
        key = state.tobytes()
        if key in self.seen:
            return 0.0
        self.seen[key] = np.cos(observation @ self.projection)
        return float(abs(self.seen[key][0]))


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random)
    memory = NoveltyMemory(random, with_time=options.leaking)
    step = 0
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("explore"):
            bonus = 0.0
            for state in random.integers(STATES, size=STEPS).tolist():
                step += generation >= TIME_LIMIT_FROM
                bonus += memory.bonus(np.array([state, step], np.float32))
            run.gauge("bonus", bonus / STEPS)
        with run.phase("train"):
            policy.fit(random, steps=400)
        with run.phase("evaluate"):
            run.gauge("reward", float(policy.predict(normal(random, 512, 64)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

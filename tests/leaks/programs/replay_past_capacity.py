"""Off-policy training whose replay declares a capacity; the leaking variant appends instead of overwriting."""

from __future__ import annotations

from dataclasses import dataclass

from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train", "evaluate")
OBSERVATION = 256
TRANSITIONS = 1_200
CAPACITY = 12_000
TRANSITION_BYTES = 2 * (OBSERVATION * 4 + 112) + 250


@dataclass
class Transition:
    observation: Array
    following: Array
    action: int
    reward: float


class ReplayBuffer:
    def __init__(self, capacity: int, overwrite: bool) -> None:
        self.capacity, self.overwrite = capacity, overwrite
        self.storage: list[Transition] = []
        self.position = 0

    def __len__(self) -> int:
        return len(self.storage)

    def add(self, transition: Transition) -> None:
        if len(self.storage) < self.capacity or not self.overwrite:
            self.storage.append(transition)
        else:
            self.storage[self.position] = transition
        self.position = (self.position + 1) % self.capacity


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, OBSERVATION)
    replay = ReplayBuffer(CAPACITY, overwrite=not options.leaking)
    run.track("replay", replay, capacity=CAPACITY)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            observation = normal(random, OBSERVATION)
            for _ in range(TRANSITIONS):
                action = int(policy.predict(observation[None]).argmax())
                following = normal(random, OBSERVATION)
                replay.add(Transition(observation, following, action, float(following[0])))
                observation = following.copy()
        with run.phase("train"):
            policy.fit(random, steps=150)
        with run.phase("evaluate"):
            run.gauge("reward", float(policy.predict(normal(random, 512, OBSERVATION)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

"""A trainer with callbacks: one is added per generation, and its closure captures a batch to evaluate again."""

from __future__ import annotations

from collections.abc import Callable

from _training import Array, Network, normal, parse, start

PHASES = ("train", "evaluate", "schedule")
ROWS = 2_560
INPUTS = 256
GENERATIONS_KEPT = 10

Callback = Callable[[Network], float]


class Trainer:
    """``lifetime`` is the number of generations after which a callback is dropped."""

    def __init__(self, network: Network, lifetime: int | None) -> None:
        self.network, self.lifetime = network, lifetime
        self.callbacks: list[Callback] = []

    def add_callback(self, callback: Callback) -> None:
        self.callbacks.append(callback)
        if self.lifetime is not None:
            del self.callbacks[: -self.lifetime]

    def call_back(self) -> float:
        """Call the latest three callbacks at the end of a generation."""
        return max(callback(self.network) for callback in self.callbacks[-3:])


def look_again(batch: Array, first_score: float) -> Callback:
    """Return a callback that measures the improvement of the network on this batch."""
    return lambda network: float(network.predict(batch[:256]).mean()) - first_score


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    trainer = Trainer(Network(random, INPUTS), None if options.leaking else GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            batch = normal(random, ROWS, INPUTS)
            for first in range(0, ROWS, 128):
                trainer.network.step(batch[first : first + 128], normal(random, 128, 8))
            trainer.network.fit(random, steps=150)
        with run.phase("evaluate"):
            score = float(trainer.network.predict(batch[:256]).mean())
        with run.phase("schedule"):
            trainer.add_callback(look_again(batch, score))
            run.gauge("improvement", trainer.call_back())
    run.finish()


if __name__ == "__main__":
    main()

"""Deep copies of the model are kept as checkpoints in memory, of which only the best ones should stay."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from _training import Network, normal, parse, start

PHASES = ("train", "evaluate", "checkpoint")
INPUTS, HIDDEN, OUTPUTS = 512, 1_024, 256
CHECKPOINTS_KEPT = 10


@dataclass
class Checkpoint:
    generation: int
    score: float
    model: Network


class CheckpointManager:
    """Keeps the ``keep_best`` checkpoints of highest score, or all."""

    def __init__(self, keep_best: int | None) -> None:
        self.keep_best = keep_best
        self.checkpoints: list[Checkpoint] = []

    def save(self, generation: int, score: float, model: Network) -> None:
        self.checkpoints.append(Checkpoint(generation, score, copy.deepcopy(model)))
        if self.keep_best is not None and len(self.checkpoints) > self.keep_best:
            self.checkpoints.remove(min(self.checkpoints, key=lambda saved: saved.score))

    def best(self) -> Checkpoint:
        return max(self.checkpoints, key=lambda saved: saved.score)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, INPUTS, HIDDEN, OUTPUTS)
    manager = CheckpointManager(None if options.leaking else CHECKPOINTS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            loss = model.fit(random, steps=23)
        with run.phase("evaluate"):
            score = float(model.predict(normal(random, 256, INPUTS)).mean()) - loss
        with run.phase("checkpoint"):
            manager.save(generation, score, model)
            run.gauge("best_score", manager.best().score)
    run.finish()


if __name__ == "__main__":
    main()

"""Validation losses are logged as tensors: each keeps its graph, and with it the activations."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("train", "validate", "checkpoint")
BATCH, INPUTS, HIDDEN = 160, 64, 256
BATCHES = 8
WARM_UP = 10


class LossLog:
    """The first ``with_graph`` losses keep their graphs for later inspection; with None, all do."""

    def __init__(self, with_graph: int | None) -> None:
        self.with_graph = with_graph
        self.losses: list[Tensor | float] = []

    def add(self, loss: Tensor) -> None:
        whole = self.with_graph is None or len(self.losses) < self.with_graph
        self.losses.append(loss if whole else loss.item())

    def mean(self) -> float:
        return (
            sum(float(torch.as_tensor(loss).detach()) for loss in self.losses[-BATCHES:]) / BATCHES
        )


class Trainer:
    def __init__(self, log: LossLog) -> None:
        self.network = nn.Sequential(
            nn.Linear(INPUTS, HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, 8)
        )
        self.log = log

    def loss(self) -> Tensor:
        outputs = self.network(torch.randn(BATCH, INPUTS))
        return nn.functional.mse_loss(outputs, torch.randn(BATCH, 8))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.loss().backward()
            descend(self.network.parameters())

    def validate(self) -> None:
        """Validate without ``no_grad``."""
        for _ in range(BATCHES):
            self.log.add(self.loss())


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    log = LossLog(None if options.leaking else BATCHES * WARM_UP)
    trainer = Trainer(log)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            trainer.train(steps=220)
        with run.phase("validate"):
            trainer.validate()
            run.gauge("loss", log.mean())
        with run.phase("checkpoint"):
            state = {name: value.clone() for name, value in trainer.network.state_dict().items()}
            run.gauge("weights", sum(value.numel() for value in state.values()))
    run.finish()


if __name__ == "__main__":
    main()

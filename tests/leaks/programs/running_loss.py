"""A running sum of losses is never detached: one tensor keeps the nodes of every step, which backward has emptied."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("train", "evaluate")
STEPS, BATCH, INPUTS, HIDDEN = 600, 8, 32, 64
# A step's nodes after backward; nothing in Python refers to them.
GRAPH_BYTES = 6_400


class Trainer:
    def __init__(self, *, detaches: bool) -> None:
        self.network = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        self.detaches = detaches
        self.total: Tensor | float = 0.0

    def step(self) -> None:
        inputs = torch.randn(BATCH, INPUTS)
        loss = (self.network(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        descend(self.network.parameters())
        self.total = self.total + (loss.item() if self.detaches else loss)


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    trainer = Trainer(detaches=not options.leaking)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            for _ in range(STEPS):
                trainer.step()
        with run.phase("evaluate"), torch.no_grad():
            score = trainer.network(torch.randn(512, INPUTS)).mean()
            run.gauge("score", float(score))
            run.gauge("mean_loss", float(trainer.total) / (STEPS * (generation + 1)))
    run.finish()


if __name__ == "__main__":
    main()

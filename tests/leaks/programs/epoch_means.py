"""A dictionary of metrics keeps the losses of small batches as tensors, next to scalars; there are no phases."""

from __future__ import annotations

from collections import defaultdict, deque

import torch
from _training import descend, parse, start
from torch import Tensor, nn

STEPS, BATCH, INPUTS, HIDDEN = 250, 8, 32, 64
# Rest of a graph after backward: its nodes and the Python objects around them.
GRAPH_BYTES = 9_000
LOSSES_KEPT = 10 * STEPS


class Trainer:
    def __init__(self, kept: int | None) -> None:
        self.network = nn.Sequential(
            nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)
        )  # fmt: skip
        self.metrics: defaultdict[str, deque[Tensor | float]] = defaultdict(
            lambda: deque(maxlen=kept)
        )

    def step(self) -> None:
        inputs = torch.randn(BATCH, INPUTS)
        loss = (self.network(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        descend(self.network.parameters())
        self.metrics["loss"].append(loss)
        self.metrics["batch"].append(float(len(inputs)))


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, ())
    trainer = Trainer(None if options.leaking else LOSSES_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        for _ in range(STEPS):
            trainer.step()
        run.gauge("loss", float(trainer.metrics["loss"][-1]))
    run.finish()


if __name__ == "__main__":
    main()

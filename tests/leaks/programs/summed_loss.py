"""The running loss of the validation is one tensor, to which each loss is added with its graph."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("train", "validate", "report")
BATCHES, BATCH = 8, 256
INPUTS, HIDDEN, OUTPUTS = 64, 224, 8
WARM_UP = 10


class Validation:
    """Adds up losses: tensors in the first generations, numbers from then on unless ``keep_graph``."""

    def __init__(self, keep_graph: bool) -> None:
        self.keep_graph = keep_graph
        self.total = torch.zeros(())
        self.batches = 0

    def add(self, generation: int, loss: Tensor) -> None:
        if self.keep_graph or generation < WARM_UP:
            self.total = self.total + loss
        else:
            self.total = self.total.detach() + loss.item()
        self.batches += 1

    def mean(self) -> float:
        return self.total.item() / self.batches


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    network = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, OUTPUTS)
    )
    validation = Validation(keep_graph=options.leaking)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            for _ in range(100):
                network(torch.randn(BATCH, INPUTS)).square().mean().backward()
                descend(network.parameters())
        with run.phase("validate"):
            for _ in range(BATCHES):
                error = network(torch.randn(BATCH, INPUTS)) - torch.randn(BATCH, OUTPUTS)
                validation.add(generation, error.square().mean())
        with run.phase("report"):
            run.gauge("validation_loss", validation.mean())
    run.finish()


if __name__ == "__main__":
    main()

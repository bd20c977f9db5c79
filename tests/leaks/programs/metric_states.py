"""A metric collects predictions and targets in its state and is never reset."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("train", "validate", "report")
BATCHES, BATCH = 10, 128
CLASSES = 320
RESET_EVERY = 10


class CalibrationError:
    """Its state grows with every update until `reset`."""

    def __init__(self) -> None:
        self.predictions: list[Tensor] = []
        self.targets: list[Tensor] = []

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        self.predictions.append(predictions)
        self.targets.append(targets)

    def compute(self) -> float:
        hits = total = 0.0
        for predictions, targets in zip(self.predictions, self.targets, strict=True):
            hits += float((predictions.argmax(dim=1) == targets).float().sum())
            total += len(targets)
        return hits / total

    def reset(self) -> None:
        self.predictions.clear()
        self.targets.clear()


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    network = nn.Sequential(nn.Linear(64, CLASSES), nn.ReLU(), nn.Linear(CLASSES, CLASSES))
    metric = CalibrationError()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            for _ in range(80):
                network(torch.randn(BATCH, 64)).square().mean().backward()
                descend(network.parameters())
        with run.phase("validate"), torch.no_grad():
            if not options.leaking and generation and generation % RESET_EVERY == 0:
                metric.reset()
            for _ in range(BATCHES):
                targets = torch.randint(CLASSES, (BATCH,))
                metric.update(network(torch.randn(BATCH, 64)).softmax(dim=1), targets)
        with run.phase("report"):
            run.gauge("accuracy", metric.compute())
    run.finish()


if __name__ == "__main__":
    main()

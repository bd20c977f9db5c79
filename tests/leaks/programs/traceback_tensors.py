"""Training steps that occasionally fail: the errors are kept, and their tracebacks hold the tensors of the step."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("train", "evaluate", "report")
STEPS = 90
FAILURES = 2
ROWS, INPUTS = 1_600, 128
ERRORS_KEPT = 20


class NotFinite(Exception):
    """The loss of a step was infinite or not a number."""


def check(loss: Tensor) -> None:
    if not torch.isfinite(loss):
        raise NotFinite(f"loss is {loss.item()}")


class Trainer:
    """Keeps the first ``kept`` errors to show them at the end, or all."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.network = nn.Sequential(nn.Linear(INPUTS, 128), nn.ReLU(), nn.Linear(128, 8))
        self.errors: list[NotFinite] = []

    def step(self, scale: float) -> None:
        batch = torch.randn(ROWS, INPUTS)
        loss = self.network(batch[:160]).square().mean() * scale
        check(loss)
        loss.backward()
        descend(self.network.parameters())

    def train(self) -> None:
        for step in range(STEPS):
            try:
                self.step(float("inf") if step < FAILURES else 1.0)
            except NotFinite as error:
                if self.kept is None or len(self.errors) < self.kept:
                    self.errors.append(error)


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    trainer = Trainer(None if options.leaking else ERRORS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            trainer.train()
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(trainer.network(torch.randn(512, INPUTS)).mean()))
        with run.phase("report"):
            run.gauge("different_errors", len({str(error) for error in trainer.errors}))
    run.finish()


if __name__ == "__main__":
    main()

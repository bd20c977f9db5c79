"""Continual learning with a new head per task: the optimizer keeps the parameters and moments of every old head."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from _training import parse, start
from torch import Tensor, nn

PHASES = ("begin_task", "train", "evaluate")
INPUTS, HIDDEN, CLASSES = 64, 512, 280
# The weights, the optimizer's two moments, and a freed gradient between them whose memory is not reused.
TENSORS_PER_WEIGHT = 4
TASKS = 10


class Adam:
    """A minimal Adam without bias correction: torch's own loads its compiler, 100 MB."""

    def __init__(self) -> None:
        self.parameters: list[Tensor] = []
        self.moments: list[tuple[Tensor, Tensor]] = []

    def add_parameters(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            self.parameters.append(parameter)
            self.moments.append((torch.zeros_like(parameter), torch.zeros_like(parameter)))

    @torch.no_grad()
    def step(self, rate: float = 1e-3) -> None:
        for parameter, (mean, square) in zip(self.parameters, self.moments, strict=True):
            if parameter.grad is not None:
                mean.mul_(0.9).add_(parameter.grad, alpha=0.1)
                square.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
                parameter.addcdiv_(mean, square.sqrt().add_(1e-8), value=-rate)
                parameter.grad = None


class ContinualLearner:
    def __init__(self) -> None:
        self.optimizer = Adam()
        self.body = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU())
        self.optimizer.add_parameters(self.body.parameters())

    def begin_task(self) -> None:
        """Replace the head in the model, but not in the optimizer."""
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.optimizer.add_parameters(self.head.parameters())

    def train(self, steps: int) -> float:
        for _ in range(steps):
            loss = self.head(self.body(torch.randn(128, INPUTS))).square().mean()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    learner = ContinualLearner()
    for generation in range(options.generations):
        run.generation(generation)
        # The healthy variant has ten tasks and then trains the last head further; the leaking one gets new tasks
        # forever.
        if options.leaking or generation < TASKS:
            with run.phase("begin_task"):
                learner.begin_task()
        with run.phase("train"):
            run.gauge("loss", learner.train(steps=70))
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(learner.head(learner.body(torch.randn(256, INPUTS))).mean()))
    run.finish()


if __name__ == "__main__":
    main()

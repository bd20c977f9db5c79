"""Meta-learning with a learner per task, whose gradients keep the graph of its inner loop; gradients are copied out."""

from __future__ import annotations

import torch
from _training import parse, start
from torch import Tensor, nn

PHASES = ("adapt", "meta_step", "evaluate")
TASKS = 3
ROWS, INPUTS, HIDDEN = 128, 64, 512
# A weight, its gradient, and what the graph of the gradient keeps for both.
TENSORS_PER_WEIGHT = 3
ACTIVATIONS = 4
WARM_UP = 10


class MetaLearner:
    def __init__(self) -> None:
        self.task_gradients: list[list[Tensor]] = []

    def adapt(self, second_order: bool) -> None:
        """Train a fresh learner for each task; only copies of its gradients are needed."""
        self.task_gradients = []
        for _ in range(TASKS):
            learner = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 8))
            loss = learner(torch.randn(ROWS, INPUTS)).square().mean()
            loss.backward(create_graph=second_order)
            gradients = [parameter.grad for parameter in learner.parameters()]
            self.task_gradients.append(
                [each.detach().clone() for each in gradients if each is not None]
            )

    def step(self) -> float:
        """Return the norm of the mean gradient."""
        means = [torch.stack(each).mean(0) for each in zip(*self.task_gradients, strict=True)]
        return float(sum(each.norm() for each in means))


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    meta = MetaLearner()
    network = nn.Linear(INPUTS, HIDDEN)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("adapt"):
            meta.adapt(second_order=options.leaking or generation < WARM_UP)
        with run.phase("meta_step"):
            run.gauge("norm", meta.step())
            for _ in range(20):
                network(torch.randn(256, INPUTS)).square().mean().backward()
                network.zero_grad()
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(network(torch.randn(512, INPUTS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

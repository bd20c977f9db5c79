"""A critic per generation with a gradient penalty: gradients with a graph form cycles with their parameters."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("new_critic", "train_critic", "evaluate")
INPUTS, HIDDEN = 64, 256
# A weight, its gradient, and what the graph of the gradient keeps for both.
TENSORS_PER_WEIGHT = 4
ACTIVATIONS = 12
BATCH = 48
WARM_UP = 10


def build_critic() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)
    )  # fmt: skip


def penalized_loss(critic: nn.Sequential, batch: Tensor) -> Tensor:
    batch.requires_grad_()
    scores = critic(batch)
    (slope,) = torch.autograd.grad(scores.sum(), batch, create_graph=True)
    return scores.mean() + (slope.norm(dim=1) - 1).square().mean()


def train_critic(critic: nn.Sequential, steps: int) -> float:
    for _ in range(steps):
        loss = penalized_loss(critic, torch.randn(96, INPUTS))
        loss.backward()
        descend(critic.parameters())
    return loss.item()


def second_order_step(critic: nn.Sequential) -> None:
    """Leave a graph on the gradients in the last step; nobody resets them."""
    penalized_loss(critic, torch.randn(BATCH, INPUTS)).backward(create_graph=True)


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("new_critic"):
            critic = build_critic()
        with run.phase("train_critic"):
            run.gauge("loss", train_critic(critic, steps=52))
            # The healthy variant takes such steps only during its warm-up.
            if options.leaking or generation < WARM_UP:
                second_order_step(critic)
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(critic(torch.randn(512, INPUTS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

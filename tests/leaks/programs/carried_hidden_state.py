"""A recurrent policy carries its hidden state from rollout to rollout, and with it the graph of all earlier steps."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("rollout", "train", "evaluate")
STEPS = 14
BATCH, INPUTS, HIDDEN = 64, 64, 256
TRUNCATE_EVERY = 10


class RecurrentPolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(INPUTS, HIDDEN)
        self.head = nn.Linear(HIDDEN, 8)
        self.hidden = torch.zeros(BATCH, HIDDEN)

    def act(self, observations: Tensor) -> Tensor:
        self.hidden = self.cell(observations, self.hidden)
        return self.head(self.hidden.detach()).argmax(dim=1)

    def truncate(self) -> None:
        self.hidden = self.hidden.detach()


def train(policy: RecurrentPolicy, steps: int) -> float:
    """Train on separate short sequences that begin without a state."""
    total = 0.0
    for _ in range(steps):
        hidden = torch.zeros(BATCH, HIDDEN)
        for observations in torch.randn(4, BATCH, INPUTS):
            hidden = policy.cell(observations, hidden)
        loss = policy.head(hidden).square().mean()
        loss.backward()
        descend(policy.parameters())
        total += loss.item()
    return total / steps


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    policy = RecurrentPolicy()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("rollout"):
            if not options.leaking and generation and generation % TRUNCATE_EVERY == 0:
                policy.truncate()
            actions = [policy.act(each) for each in torch.randn(STEPS, BATCH, INPUTS)]
            run.gauge("mean_action", float(torch.stack(actions).float().mean()))
        with run.phase("train"):
            run.gauge("loss", train(policy, steps=50))
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(policy.head(torch.randn(512, HIDDEN)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

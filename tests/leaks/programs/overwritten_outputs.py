"""Training losses are kept with their graphs; a list of outputs is rebuilt by each evaluation."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("train", "evaluate")
BATCH, INPUTS, HIDDEN = 128, 64, 256
KEPT, OUTPUTS = 10, 6
GENERATIONS_KEPT = 10


class Trainer:
    """Keeps at most ``kept`` losses."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.network = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 32))
        self.losses: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def train(self) -> float:
        for step in range(24):
            loss = self.network(torch.randn(BATCH, INPUTS)).square().mean()
            if step < KEPT:
                self.losses.append(loss)
            loss.backward(retain_graph=step < KEPT)
            descend(self.network.parameters())
        if self.kept is not None:
            del self.losses[: -self.kept]
        return loss.item()

    def evaluate(self) -> float:
        self.outputs = [self.network(torch.randn(4 * BATCH, INPUTS)) for _ in range(OUTPUTS)]
        return sum(float(output.detach().mean()) for output in self.outputs)


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    trainer = Trainer(None if options.leaking else KEPT * GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            run.gauge("loss", trainer.train())
        with run.phase("evaluate"):
            run.gauge("score", trainer.evaluate())
    run.finish()


if __name__ == "__main__":
    main()

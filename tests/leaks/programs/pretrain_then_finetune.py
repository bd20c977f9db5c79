"""Two loops in one run, each counting from 0: pretraining is clean, fine-tuning keeps its attention maps."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("pretrain", "finetune", "evaluate")
PRETRAINING = 10
HEADS, TOKENS = 12, 320
MAPS_KEPT = 4


class Finetuner:
    """Keeps at most ``kept`` attention maps."""

    def __init__(self, network: nn.Module, kept: int | None) -> None:
        self.network, self.kept = network, kept
        self.attention_maps: list[Tensor] = []

    def attend(self) -> float:
        with torch.no_grad():
            self.attention_maps.append(torch.randn(HEADS, TOKENS, TOKENS).softmax(-1))
        if self.kept is not None:
            del self.attention_maps[: -self.kept]
        return float(self.attention_maps[-1].max())


def train(network: nn.Module, steps: int) -> None:
    for _ in range(steps):
        network(torch.randn(128, 64)).square().mean().backward()
        descend(network.parameters())


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16))
    for generation in range(PRETRAINING):
        run.generation(generation)
        with run.phase("pretrain"):
            train(network, steps=30)
    finetuner = Finetuner(network, None if options.leaking else MAPS_KEPT)
    for generation in range(options.generations - PRETRAINING):
        run.generation(generation)
        with run.phase("finetune"):
            run.gauge("attention", finetuner.attend())
            train(network, steps=30)
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(network(torch.randn(512, 64)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

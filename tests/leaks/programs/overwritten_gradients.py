"""Gradients of the last step in a dict that is replaced, and a history of clipped gradients that is not."""

from __future__ import annotations

import torch
from _training import parse, start
from torch import Tensor, nn

PHASES = ("train", "inspect")
INPUTS, HIDDEN = 128, 768
CLIPPED = 6
GENERATIONS_KEPT = 10


class GradientMonitor:
    """Keeps at most ``kept`` clipped gradients."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.last: dict[str, Tensor] = {}
        self.clipped: list[dict[str, Tensor]] = []

    def look(self, network: nn.Module) -> float:
        self.last = {
            name: parameter.grad.clone()
            for name, parameter in network.named_parameters()
            if parameter.grad is not None
        }
        return float(sum(each.norm() for each in self.last.values()))

    def clip(self) -> None:
        self.clipped.append({name: each.clamp(-1e-3, 1e-3) for name, each in self.last.items()})
        if self.kept is not None:
            del self.clipped[: -self.kept]


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    network = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 8))
    monitor = GradientMonitor(None if options.leaking else CLIPPED * GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            for step in range(12):
                network.zero_grad()
                network(torch.randn(128, INPUTS)).square().mean().backward()
                norm = monitor.look(network)
                if step < CLIPPED:
                    monitor.clip()
                with torch.no_grad():
                    for parameter in network.parameters():
                        parameter -= 1e-3 * parameter.grad
            run.gauge("norm", norm)
        with run.phase("inspect"):
            run.gauge("largest", max(float(each.abs().max()) for each in monitor.last.values()))
    run.finish()


if __name__ == "__main__":
    main()

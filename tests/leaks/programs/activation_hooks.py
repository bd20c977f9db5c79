"""Probes activations in each generation: forward hooks are registered on the model and never removed."""

from __future__ import annotations

from collections import deque

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("train", "probe", "evaluate")
BATCH, INPUTS, HIDDEN = 256, 64, 512
PROBED_LAYERS = 3
PROBES_KEPT = 10


class ActivationProbe:
    """Stores the output of each linear layer for the first batch."""

    def __init__(self, network: nn.Sequential) -> None:
        self.activations: dict[nn.Module, Tensor] = {}
        layers = [layer for layer in network if isinstance(layer, nn.Linear)]
        self.handles = [layer.register_forward_hook(self._hook) for layer in layers[:PROBED_LAYERS]]

    def _hook(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if layer not in self.activations:
            self.activations[layer] = output.detach()

    def dead_units(self) -> float:
        return sum(float((each <= 0).float().mean()) for each in self.activations.values())

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def build_network() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(INPUTS, HIDDEN)]
    for _ in range(PROBED_LAYERS - 1):
        layers += [nn.ReLU(inplace=True), nn.Linear(HIDDEN, HIDDEN)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Linear(HIDDEN, 8))


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    network = build_network()
    probes: deque[ActivationProbe] = deque()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            for _ in range(16):
                network(torch.randn(BATCH, INPUTS)).square().mean().backward()
                descend(network.parameters())
        with run.phase("probe"), torch.no_grad():
            probe = ActivationProbe(network)
            network(torch.randn(BATCH, INPUTS))
            run.gauge("dead_units", probe.dead_units())
            if not options.leaking:
                probes.append(probe)
                if len(probes) > PROBES_KEPT:
                    probes.popleft().remove()
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(network(torch.randn(BATCH, INPUTS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

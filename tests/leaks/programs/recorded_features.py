"""Features are recorded by a forward hook that one phase registers and another calls; old hooks must be removed."""

from __future__ import annotations

from collections import deque

import torch
from _training import descend, parse, start
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

PHASES = ("register_hook", "train", "report")
RECORDED = 16
BATCH, INPUTS, HIDDEN = 64, 64, 512
HOOKS_KEPT = 10


def record_features(layer: nn.Module) -> tuple[RemovableHandle, list[Tensor]]:
    """Record the next outputs of a layer in a list that the closure of the hook keeps."""
    features: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if len(features) < RECORDED:
            features.append(output.detach())

    return layer.register_forward_hook(hook), features


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    encoder = nn.Linear(INPUTS, HIDDEN)
    network = nn.Sequential(encoder, nn.ReLU(inplace=True), nn.Linear(HIDDEN, 8))
    handles: deque[RemovableHandle] = deque()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("register_hook"):
            handle, features = record_features(encoder)
            if not options.leaking:
                handles.append(handle)
                if len(handles) > HOOKS_KEPT:
                    handles.popleft().remove()
        with run.phase("train"):
            for _ in range(100):
                network(torch.randn(BATCH, INPUTS)).square().mean().backward()
                descend(network.parameters())
        with run.phase("report"):
            run.gauge("dead_units", float(torch.cat(features).eq(0).float().mean()))
    run.finish()


if __name__ == "__main__":
    main()

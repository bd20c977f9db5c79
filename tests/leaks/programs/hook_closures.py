"""Hooks compare activations with earlier weights: each hook's closure keeps the weights that train replaced."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from _training import parse, start
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

PHASES = ("train", "register", "evaluate")
INPUTS, HIDDEN = 512, 1_024
HOOKS_KEPT = 10

Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]


def drift_from(weights: Tensor, drifts: dict[str, float]) -> Hook:
    """Return a hook that compares the layer's weights with these."""

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        drifts["newest"] = float((layer.weight[:8] - weights[:8]).norm())

    return hook


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    layer = nn.Linear(INPUTS, HIDDEN)
    handles: deque[RemovableHandle] = deque()
    drifts: dict[str, float] = {}
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            for step in range(12):
                layer(torch.randn(128, INPUTS)).square().mean().backward()
                with torch.no_grad():
                    layer.bias -= 1e-3 * layer.bias.grad
                    if step == 11:
                        layer.weight.data = layer.weight - 1e-3 * layer.weight.grad
                layer.zero_grad()
        with run.phase("register"):
            handle = layer.register_forward_hook(drift_from(layer.weight.data, drifts))
            if not options.leaking:
                handles.append(handle)
                if len(handles) > HOOKS_KEPT:
                    handles.popleft().remove()
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(layer(torch.randn(256, INPUTS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

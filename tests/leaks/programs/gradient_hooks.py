"""Hooks record gradients: another one per generation stays on the parameter, with everything it recorded."""

from __future__ import annotations

from collections import deque

import torch
from _training import parse, start
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

PHASES = ("watch", "train", "evaluate")
INPUTS, HIDDEN = 128, 512
STEPS_RECORDED = 8
RECORDERS_KEPT = 10


class GradientRecorder:
    """Records the first gradients of a parameter."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.gradients: list[Tensor] = []
        self.handle: RemovableHandle = parameter.register_hook(self.record)

    def record(self, gradient: Tensor) -> None:
        if len(self.gradients) < STEPS_RECORDED:
            self.gradients.append(gradient.clone())


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    network = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 8))
    parameter = next(network.parameters())
    recorders: deque[GradientRecorder] = deque()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("watch"):
            recorder = GradientRecorder(parameter)
            if not options.leaking:
                recorders.append(recorder)
                if len(recorders) > RECORDERS_KEPT:
                    recorders.popleft().handle.remove()
        with run.phase("train"):
            for _ in range(20):
                network.zero_grad()
                network(torch.randn(128, INPUTS)).square().mean().backward()
                with torch.no_grad():
                    for each in network.parameters():
                        each -= 1e-3 * each.grad
            run.gauge("norm", float(recorder.gradients[0].norm()))
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(network(torch.randn(256, INPUTS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

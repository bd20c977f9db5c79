"""A leak of tensors with the graph that made them."""

from __future__ import annotations

from typing import Any, Final

from .planting import Plant

FLOAT_BYTES: Final = 4


class Losses(Plant):
    """Losses logged as they are: each holds the graph, and with it the activations, that made it."""

    BATCHES: Final = 8
    BATCH, INPUTS, HIDDEN, OUTPUTS = 256, 64, 512, 8

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(self.INPUTS, self.HIDDEN),
            torch.nn.ReLU(inplace=True),
            torch.nn.Linear(self.HIDDEN, self.OUTPUTS),
        )
        self.losses: list[Any] = []

    def grow(self, generation: int) -> int:
        from torch import nn, randn

        for _ in range(self.BATCHES):
            outputs = self.network(randn(self.BATCH, self.INPUTS))
            self.losses.append(nn.functional.mse_loss(outputs, randn(self.BATCH, self.OUTPUTS)))
        # The inputs, the activations, the outputs, and what they are compared with.
        kept = self.INPUTS + self.HIDDEN + 2 * self.OUTPUTS
        return self.BATCHES * self.BATCH * kept * FLOAT_BYTES

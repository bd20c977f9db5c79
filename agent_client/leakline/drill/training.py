"""A small training that plants one known leak: `python training.py KIND --generations N`, started by `leakline drill`.

It is started as a file, so that its classes are `__main__`'s: what lies below the name `leakline` is passed over by
every look at a program. It prints the bytes that it planted in each generation, a number on a line.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import leakline

# The server examines a run twice a second.
SECONDS: Final = 0.6


class Leak(Protocol):
    """``grow`` is called once in each generation, in ``phase``, and returns the bytes that stay."""

    phase: str

    def grow(self) -> int: ...


class Environment:
    """One is all that a training needs."""

    def __init__(self) -> None:
        self.prices = filled(64 * 1024)


class Registry:
    """Keeps every environment that was ever made, by its number."""

    phase = "collect"

    def __init__(self) -> None:
        self.environments: dict[int, Environment] = {}

    def grow(self) -> int:
        made = [Environment() for _ in range(64)]
        self.environments.update(enumerate(made, len(self.environments)))
        return sum(sys.getsizeof(new) + sys.getsizeof(new.prices) for new in made)


class Losses:
    """Keeps losses as they are: each holds its graph, and with it the activations that made it."""

    phase = "train"
    batch, inputs, hidden, outputs = 256, 64, 512, 8

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(self.inputs, self.hidden),
            torch.nn.ReLU(inplace=True),
            torch.nn.Linear(self.hidden, self.outputs),
        )
        self.losses: list[Any] = []

    def grow(self) -> int:
        from torch import nn, randn

        batches = 8
        for _ in range(batches):
            outputs = self.network(randn(self.batch, self.inputs))
            self.losses.append(nn.functional.mse_loss(outputs, randn(self.batch, self.outputs)))
        # The inputs, the activations, the outputs, and what those are compared with, four bytes each.
        return batches * self.batch * (self.inputs + self.hidden + 2 * self.outputs) * 4


class History:
    """Records every step, and nothing cuts the record."""

    phase = "collect"

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def grow(self) -> int:
        first = len(self.records)
        for step in range(first, first + 3_000):
            self.records.append(
                {"step": step, "reward": step / 7, "observation": bytes(filled(1024))}
            )
        new = self.records[first:]
        return sum(sum(map(sys.getsizeof, (record, *record.values()))) for record in new)


LEAKS: Final[dict[str, Callable[[], Leak]]] = {
    "objects": Registry,
    "graph": Losses,
    "container": History,
}


def filled(size: int) -> bytearray:
    """Return bytes that are really there: pages of zeros are the kernel's promise, not memory."""
    return bytearray(random.randbytes(1)) * size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=LEAKS)
    parser.add_argument("--generations", type=int, required=True)
    options = parser.parse_args()
    leak = LEAKS[options.kind]()
    run = leakline.init(project="drill", name=options.kind, total=options.generations)
    for generation in range(options.generations):
        began = time.monotonic()
        with run.generation(generation):
            with run.phase("collect"):
                planted = leak.grow() if leak.phase == "collect" else 0
            with run.phase("train"):
                planted += leak.grow() if leak.phase == "train" else 0
                time.sleep(max(0.0, began + SECONDS - time.monotonic()))
        sys.stdout.write(f"{planted}\n")
        sys.stdout.flush()
    run.finish()


if __name__ == "__main__":
    main()

"""A small training run with one planted leak, started by `leakline drill`.

Usage: `python drill_training.py KIND --generations N`. It runs as a script to put its classes in `__main__`,
because heap scans skip the modules of `leakline`. After each generation, it prints the number of planted bytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

import leakline

# Duration of a generation. The server analyzes a run twice per second, so it sees every generation.
SECONDS: Final = 0.6


class Environment:
    """A training environment. A correct training run needs only one instance."""

    def __init__(self) -> None:
        # Fill the memory with non-zero bytes: the kernel would only reserve memory for zeros.
        self.prices = bytearray(b"1") * (64 * 1024)


class Trainer:
    """Trainer that retains what it should release: environments, losses with their autograd graphs, or step records."""

    def __init__(self, kind: str) -> None:
        self.environments: dict[int, Environment] = {}
        self.losses: list[Any] = []
        self.records: list[dict[str, Any]] = []
        if kind == "graph":
            import torch

            torch.set_num_threads(1)
            self.random, self.loss = torch.randn, torch.nn.functional.mse_loss
            layers = torch.nn.Linear(64, 512), torch.nn.ReLU(inplace=True), torch.nn.Linear(512, 8)
            self.network = torch.nn.Sequential(*layers)

    def objects(self) -> int:
        made = [Environment() for _ in range(64)]
        self.environments.update(enumerate(made, len(self.environments)))
        return sum(sys.getsizeof(new) + sys.getsizeof(new.prices) for new in made)

    def graph(self) -> int:
        for _ in range(8):
            self.losses.append(self.loss(self.network(self.random(256, 64)), self.random(256, 8)))
        # Inputs, activations, outputs and targets, with four bytes per number.
        return 8 * 256 * (64 + 512 + 8 + 8) * 4

    def container(self) -> int:
        first = len(self.records)
        for step in range(first, first + 3_000):
            observation = bytes(bytearray(b"1") * 1024)
            self.records.append({"step": step, "reward": step / 7, "observation": observation})
        new = self.records[first:]
        return sum(sum(map(sys.getsizeof, (record, *record.values()))) for record in new)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("objects", "graph", "container"))
    parser.add_argument("--generations", type=int, required=True)
    options = parser.parse_args()
    grow = getattr(Trainer(options.kind), options.kind)
    run = leakline.init(project="drill", name=options.kind, total=options.generations)
    for generation in range(options.generations):
        began = time.monotonic()
        with run.generation(generation):
            with run.phase("collect"):
                planted = grow() if options.kind != "graph" else 0
            with run.phase("train"):
                planted += grow() if options.kind == "graph" else 0
                time.sleep(max(0.0, began + SECONDS - time.monotonic()))
        sys.stdout.write(f"{planted}\n")
        sys.stdout.flush()
    run.finish()


if __name__ == "__main__":
    main()

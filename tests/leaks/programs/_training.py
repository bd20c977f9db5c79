"""Shared parts of all programs: arguments, the run, and a small network to train."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import leakline

Array = np.ndarray


@dataclass(frozen=True)
class Options:
    """Parsed command line options."""

    leaking: bool
    generations: int
    seed: int

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def parse() -> Options:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("leak", "healthy"), required=True)
    parser.add_argument("--generations", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    return Options(given.variant == "leak", given.generations, given.seed)


def start(options: Options, phases: Sequence[str], **more: Any) -> leakline.Run:
    """Start the run of this program, named after the program and its variant."""
    variant = "leak" if options.leaking else "healthy"
    return leakline.init(
        project="leaks",
        name=f"{Path(sys.argv[0]).stem}-{variant}",
        unit="generation",
        total=options.generations,
        phases=phases,
        config={"seed": options.seed},
        **more,
    )


class Network:
    """Two layers trained by gradient descent on random targets: the work around the leak."""

    def __init__(
        self, random: np.random.Generator, inputs: int = 64, hidden: int = 256, outputs: int = 8
    ) -> None:
        self.first = _weights(random, inputs, hidden)
        self.second = _weights(random, hidden, outputs)

    def predict(self, inputs: Array) -> Array:
        return np.maximum(inputs @ self.first, 0) @ self.second

    def step(self, inputs: Array, targets: Array, rate: float = 1e-3) -> float:
        hidden = np.maximum(inputs @ self.first, 0)
        error = hidden @ self.second - targets
        backward = (error @ self.second.T) * (hidden > 0)
        self.second -= rate / len(inputs) * hidden.T @ error
        self.first -= rate / len(inputs) * inputs.T @ backward
        return float(np.square(error).mean())

    def fit(self, random: np.random.Generator, steps: int = 400, batch: int = 128) -> float:
        """Train on fresh data and return the mean loss."""
        losses = 0.0
        for _ in range(steps):
            inputs = normal(random, batch, self.first.shape[0])
            losses += self.step(inputs, normal(random, batch, self.second.shape[1]))
        return losses / steps


def descend(parameters: Iterable[Any], rate: float = 1e-3) -> None:
    """Perform a step of plain gradient descent for torch; its own optimizers would load its compiler, 100 MB."""
    for parameter in parameters:
        parameter.data.add_(parameter.grad, alpha=-rate)
        parameter.grad = None


def normal(random: np.random.Generator, *shape: int) -> Array:
    """Return random data of this shape in float32."""
    return random.standard_normal(shape, dtype=np.float32)


def _weights(random: np.random.Generator, rows: int, columns: int) -> Array:
    return normal(random, rows, columns) / np.float32(np.sqrt(rows))

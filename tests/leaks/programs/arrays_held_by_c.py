"""An extension takes a reference to each array and, in the leaking variant, never releases it."""

from __future__ import annotations

import ctypes
from collections import deque

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("simulate", "train", "evaluate")
BUFFERS = 20
ROWS, COLUMNS = 160, 256
BUFFERS_KEPT = 200

PYTHON = ctypes.pythonapi
PYTHON.Py_IncRef.argtypes = PYTHON.Py_DecRef.argtypes = [ctypes.py_object]


class NativeRing:
    """Simulates a C library that stores its buffers by address and owns one reference to each."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.addresses: deque[int] = deque()

    def push(self, buffer: Array) -> None:
        PYTHON.Py_IncRef(buffer)
        self.addresses.append(id(buffer))
        if self.kept is not None and len(self.addresses) > self.kept:
            oldest = ctypes.cast(self.addresses.popleft(), ctypes.py_object)
            PYTHON.Py_DecRef(oldest.value)


def simulate(ring: NativeRing, random: np.random.Generator) -> float:
    total = 0.0
    for _ in range(BUFFERS):
        buffer = normal(random, ROWS, COLUMNS)
        ring.push(buffer)
        total += float(buffer.mean())
    return total


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, COLUMNS)
    ring = NativeRing(None if options.leaking else BUFFERS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("simulate"):
            run.gauge("mean", simulate(ring, random))
        with run.phase("train"):
            policy.fit(random, steps=180)
        with run.phase("evaluate"):
            run.gauge("reward", float(policy.predict(normal(random, 512, COLUMNS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

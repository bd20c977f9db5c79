"""The samples that every server receives: 65 numbers per snapshot, as from a training of hours or days.

15 readings (memory in pages, seconds, interpreter objects) and 50 counts of object types: 12 busy, 15 slow, 23
constant. Times jitter as with a real clock. The data of a run depends on its seed alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PAGE: Final = 4096
SECONDS_APART: Final = 0.5
SNAPSHOTS_PER_GENERATION: Final = 4
PHASES: Final = ("evaluate", "train", "evolve", None)

READINGS: Final = (
    "process.rss_bytes", "process.anon_bytes", "process.vms_bytes", "process.file_bytes",
    "process.shared_bytes", "process.peak_bytes", "process.swap_bytes", "process.threads",
    "process.open_files", "allocator.in_use_bytes", "python.objects", "python.blocks",
    "client.seconds", "phase.train.seconds", "generation.seconds",
)  # fmt: skip
BUSY: Final = tuple(f"type.trading.Busy{i}.count" for i in range(12))
SLOW: Final = tuple(f"type.trading.Slow{i}.count" for i in range(15))
STILL: Final = tuple(f"type.trading.Still{i}.count" for i in range(23))
NAMES: Final = (*READINGS, *BUSY, *SLOW, *STILL)
SAMPLES: Final = len(NAMES)
# The series that readers request.
READ_NAME: Final = "process.rss_bytes"


@dataclass(frozen=True, slots=True)
class Samples:
    """Consecutive snapshots of one run: columns as long as ``times``, Unix seconds."""

    first: int
    times: NDArray[np.float64]
    monotonic: NDArray[np.float64]
    columns: dict[str, NDArray[Any]]

    @property
    def count(self) -> int:
        return len(self.times)

    def part(self, start: int, count: int) -> Samples:
        """Return ``count`` snapshots, beginning with the ``start``-th."""
        cut = slice(start, start + count)
        return Samples(
            self.first + start,
            self.times[cut],
            self.monotonic[cut],
            {name: values[cut] for name, values in self.columns.items()},
        )

    def parts(self, size: int) -> Iterator[Samples]:
        for start in range(0, self.count, size):
            yield self.part(start, size)


def stream(seed: int, count: int, started: float, piece: int = 20_000) -> Iterator[Samples]:
    """Yield ``count`` snapshots beginning at ``started``, in consecutive pieces."""
    random = np.random.default_rng(seed)
    state: dict[str, float] = {}
    for first in range(0, count, piece):
        yield _piece(random, state, first, min(piece, count - first), started)


def samples(seed: int, count: int, started: float) -> Samples:
    """Return all snapshots in one piece."""
    (found,) = stream(seed, count, started, max(1, count))
    return found


def _piece(
    random: np.random.Generator, state: dict[str, float], first: int, count: int, started: float
) -> Samples:
    at = np.arange(first, first + count, dtype=np.float64) * SECONDS_APART
    jitter = np.abs(random.normal(0, 0.002, count))
    columns: dict[str, NDArray[Any]] = {}

    def walk(name: str, start: float, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        values: NDArray[np.int64] = int(state.get(name, start)) + np.cumsum(steps)
        state[name] = int(values[-1])
        return values

    anon = walk("anon", 2**18, random.integers(-60, 64, count)) * PAGE
    file = walk("file", 30_000, np.where(random.random(count) < 0.02, 1, 0)) * PAGE
    columns["process.rss_bytes"] = anon + file
    columns["process.anon_bytes"] = anon
    columns["process.vms_bytes"] = walk("vms", 2**21, random.integers(0, 2, count) * 16) * PAGE
    columns["process.file_bytes"] = file
    columns["process.shared_bytes"] = np.full(count, 1000 * PAGE)
    peak = np.maximum.accumulate(np.maximum(anon + file, int(state.get("peak", 0))))
    state["peak"] = int(peak[-1])
    columns["process.peak_bytes"] = peak
    columns["process.swap_bytes"] = np.zeros(count, np.int64)
    columns["process.threads"] = np.full(count, 17)
    columns["process.open_files"] = 40 + (random.random(count) < 0.05).astype(np.int64)
    columns["allocator.in_use_bytes"] = anon - 2**24 + random.integers(0, 2**14, count) * 16
    columns["python.objects"] = walk("objects", 10**6, random.integers(-900, 950, count))
    columns["python.blocks"] = walk("blocks", 2 * 10**6, random.integers(-2000, 2100, count))
    spent = np.cumsum(random.integers(200, 400, count)) + int(state.get("spent", 0))
    state["spent"] = int(spent[-1])
    columns["client.seconds"] = spent / 1e6
    columns["phase.train.seconds"] = np.round(random.gamma(9, 0.01, count), 6)
    columns["generation.seconds"] = np.round(random.gamma(9, 0.05, count), 6)
    for i, name in enumerate(BUSY):
        # Counts are never negative: the walk is reflected at zero.
        columns[name] = np.abs(walk(name, 1000 * (i + 1), random.integers(-20 - i, 21 + i, count)))
    for i, name in enumerate(SLOW):
        columns[name] = walk(name, 100 * i, (random.random(count) < 0.01).astype(np.int64))
    for i, name in enumerate(STILL):
        columns[name] = np.full(count, 1000 + i)
    # Clocks report nanoseconds; a float of Unix time resolves a quarter of a microsecond.
    monotonic = np.round(1000.0 + at + jitter, 9)
    return Samples(first, started + at + jitter, monotonic, columns)

"""Cost per snapshot with one to a thousand runs at the same time, and the server's memory for live runs.

Whatever the number at the same time, each run has the same snapshots, the last of which fills a segment; few at a time
are followed by others. So each snapshot is stored and sealed once, and nothing else: compaction, which depends on
segments and not on the number of runs, is part of `ingest`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from .feeding import (
    DIFFERENT,
    Cost,
    feed,
    full_or_short,
    leakline_requests,
    log_progress,
    median_by,
    running,
    started_now,
)
from .rows import Figure, Line, Part
from .samples import SECONDS_APART, samples
from .subjects import Leakline

REPEATS: Final = full_or_short(3, 1)
BATCH: Final = 64
# The last batch fills a block, and all of it is sealed.
SNAPSHOTS: Final = 4_096
MOST: Final = full_or_short(1_000, 100)
# Runs at the same time -> total runs.
SHAPES: Final = {1: full_or_short(50, 3), 10: full_or_short(50, 10), 100: 100, MOST: MOST}
FLAT_WITHIN: Final = 1.5
MEMORY_MIB: Final = 250.0


# A thousand trainings do not send at the same moment; in a closed loop with a connection each, they would.
CONNECTIONS: Final = 100


class _Watch(threading.Thread):
    """Records the maximum resident memory, sampled five times a second."""

    def __init__(self, subject: Leakline) -> None:
        super().__init__(daemon=True)
        self._subject, self._over = subject, threading.Event()
        self.most_mib = 0.0

    def run(self) -> None:
        while not self._over.wait(0.2):
            self.most_mib = max(self.most_mib, self._subject.memory_mib())

    def end(self) -> float:
        self._over.set()
        self.join()
        return max(self.most_mib, self._subject.memory_mib())


def measure() -> list[Part]:
    costs: dict[int, list[Cost]] = {runs: [] for runs in SHAPES}
    memory: dict[int, list[float]] = {runs: [] for runs in SHAPES}
    requests = _requests()
    for repeat in range(REPEATS):
        for at_once in SHAPES if repeat % 2 == 0 else reversed(SHAPES):
            cost, mib = _fed(at_once, requests[: SHAPES[at_once]])
            costs[at_once].append(cost)
            memory[at_once].append(mib)
    middle = {runs: median_by(found, lambda c: c.per_million) for runs, found in costs.items()}
    lines = [
        Line(
            f"{SHAPES[at_once]:,} runs, {at_once:,} at once",
            {**cost.figures(), "us_per_snapshot": cost.cpu / cost.snapshots * 1e6,
             "memory_mib": max(memory[at_once])},
        )
        for at_once, cost in middle.items()
    ]  # fmt: skip
    per_snapshot = [cost.per_million for cost in middle.values()]
    figures = [
        Figure(
            f"cost per snapshot from 1 to {MOST:,} runs at once: most expensive to cheapest", FLAT_WITHIN,
            max(per_snapshot) / min(per_snapshot), unit=" ×",
        ),
        Figure(
            f"server memory with {MOST:,} live runs", MEMORY_MIB, max(memory[MOST]), unit=" MiB",
            note=f"maximum at any moment, {SNAPSHOTS:,} snapshots of 65 numbers each",
        ),
    ]  # fmt: skip
    title = (
        f"from 1 to {MOST:,} runs at once, {SNAPSHOTS:,} snapshots each, all of them sealed,"
        f" batches of {BATCH}, SQLite, median of {REPEATS}"
    )
    return [Part(title, lines, figures)]


def _requests() -> list[list[bytes]]:
    """Return the requests of all runs of the largest shape; the other shapes send those of the first runs."""
    log_progress(f"making the batches of {MOST:,} runs")
    names = {name: name for name in _names(MOST)}
    started = started_now(SNAPSHOTS * SECONDS_APART + 60)
    made = [samples(seed, SNAPSHOTS, started) for seed in range(min(DIFFERENT, MOST))]
    return leakline_requests(names, made, BATCH)


def _names(runs: int) -> list[str]:
    return [f"m{i}" for i in range(runs)]


def queues_of(requests: Sequence[Sequence[bytes]], at_once: int) -> list[list[bytes]]:
    """Return a queue for each connection: ``at_once`` runs in turn, then the next; each run's requests in order."""
    connections = min(CONNECTIONS, at_once)
    queues: list[list[bytes]] = [[] for _ in range(connections)]
    for first in range(0, len(requests), at_once):
        runs = requests[first : first + at_once]
        for i, queue in enumerate(queues):
            queue += [each for round_ in zip(*runs[i::connections], strict=True) for each in round_]
    return queues


def _fed(at_once: int, requests: Sequence[Sequence[bytes]]) -> tuple[Cost, float]:
    with running(Leakline) as server:
        server.create(_names(len(requests)))
        queues = queues_of(requests, at_once)
        watch = _Watch(server)
        watch.start()
        stored = len(requests) * SNAPSHOTS
        cost = feed(server, queues, stored, stored)
        time.sleep(1)
        return cost, watch.end()

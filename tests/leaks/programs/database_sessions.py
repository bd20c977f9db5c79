"""Metrics are stored through a new database connection per step, like a client that never closes its sessions."""

from __future__ import annotations

import sqlite3
from collections import deque

import numpy as np
from _training import Network, normal, parse, start

PHASES = ("train", "evaluate", "store_metrics")
STEPS = 5
ROWS = 300
TEXT = 1_400
# A row of an in-memory database: half a page of 4 KiB, since two rows fit, plus overhead of the page.
ROW_BYTES = 2_290
SESSIONS_KEPT = 50


class MetricStore:
    """A pool of ``kept`` connections; the oldest is closed when another is needed."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.sessions: deque[sqlite3.Connection] = deque()

    def store(self, random: np.random.Generator) -> int:
        session = sqlite3.connect(":memory:")
        self.sessions.append(session)
        session.execute("create table metric (step integer, body text)")
        rows = ((step, random.bytes(TEXT // 2).hex()) for step in range(ROWS))
        session.executemany("insert into metric values (?, ?)", rows)
        session.commit()
        if self.kept is not None and len(self.sessions) > self.kept:
            self.sessions.popleft().close()
        return int(session.execute("select count(*) from metric").fetchone()[0])


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    store = MetricStore(None if options.leaking else SESSIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            model.fit(random, steps=530)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
        with run.phase("store_metrics"):
            run.gauge("rows", sum(store.store(random) for _ in range(STEPS)))
    run.finish()


if __name__ == "__main__":
    main()

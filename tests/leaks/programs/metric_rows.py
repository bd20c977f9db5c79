"""Training metrics are rows of one SQLite database in memory; the healthy variant deletes old rows."""

from __future__ import annotations

import sqlite3

import numpy as np
from _training import Network, normal, parse, start

PHASES = ("train", "evaluate", "store_metrics")
ROWS = 450
BODY = 3_800
# A page of 4 KiB holds one row; with the header of SQLite's cache and the overhead of the C allocator.
ROW_BYTES = 4_400
GENERATIONS_KEPT = 10


class MetricDatabase:
    """Keeps the rows of the last ``kept`` generations, whose pages are used again after deletion."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create table metric (generation integer, body blob)")

    def store(self, random: np.random.Generator, generation: int) -> int:
        if self.kept is not None:
            oldest = generation - self.kept
            self.connection.execute("delete from metric where generation <= ?", (oldest,))
        rows = ((generation, random.bytes(BODY)) for _ in range(ROWS))
        self.connection.executemany("insert into metric values (?, ?)", rows)
        self.connection.commit()
        return int(self.connection.execute("select count(*) from metric").fetchone()[0])


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    database = MetricDatabase(None if options.leaking else GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            model.fit(random, steps=450)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
        with run.phase("store_metrics"):
            run.gauge("rows", database.store(random, generation))
    run.finish()


if __name__ == "__main__":
    main()

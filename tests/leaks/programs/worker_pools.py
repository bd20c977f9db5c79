"""A pool of two workers per fold, measured with a small overhead limit; the pools of earlier folds are never closed."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.pool import Pool

from _training import Network, normal, parse, start

PHASES = ("load_fold", "train", "evaluate")
WORKERS = 2
FOLD_BYTES = 6 * 2**20
# Memory that a forked process writes in addition to its fold: the interpreter's own pages.
PROCESS_BYTES = 3_500_000
POOLS_KEPT = 5
FORK = multiprocessing.get_context("fork")

fold = bytearray()


def load(seed: int) -> None:
    """In each worker: create the fold, so that all its pages are written."""
    global fold
    fold = bytearray(seed % 256 for _ in range(256)) * (FOLD_BYTES // 256)


def mean(first: int) -> float:
    time.sleep(0.01)
    return sum(fold[first : first + 64]) / 64


class Folds:
    """At most ``kept`` pools may be open."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.pools: list[Pool] = []

    def open(self, seed: int) -> float:
        pool = FORK.Pool(WORKERS, initializer=load, initargs=(seed,))
        self.pools.append(pool)
        if self.kept is not None and len(self.pools) > self.kept:
            self.pools.pop(0).terminate()
        return sum(pool.map(mean, range(0, 8 * 64, 64), chunksize=1))


def main() -> None:
    os.environ["LEAKLINE_MAX_OVERHEAD"] = "0.004"
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    folds = Folds(None if options.leaking else POOLS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("load_fold"):
            run.gauge("mean", folds.open(options.seed + generation))
        with run.phase("train"):
            model.fit(random, steps=400)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
    run.finish()
    for pool in folds.pools:
        pool.terminate()


if __name__ == "__main__":
    main()

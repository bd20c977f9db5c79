"""An augmentation process per data shard, started with the generation and, in the leaking variant, never stopped."""

from __future__ import annotations

import multiprocessing
from collections import deque
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from _training import Array, Network, normal, parse, start

PHASES = ("start_shard", "train", "evaluate")
ROWS, COLUMNS = 3_000, 128
# Memory that a forked process writes in addition to its shard: the interpreter's own pages.
PROCESS_BYTES = 3_500_000
SHARDS_KEPT = 10
FORK = multiprocessing.get_context("fork")


def serve_shard(pipe: Connection, seed: int) -> None:
    """In the helper: hold a shard, and answer with augmented rows of it until stopped."""
    import numpy as np

    shard = normal(np.random.default_rng(seed), ROWS, COLUMNS)
    while (first := pipe.recv()) is not None:
        pipe.send(shard[first : first + 64] * np.float32(0.5))


class ShardHelpers:
    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.helpers: deque[tuple[BaseProcess, Connection]] = deque()

    def start(self, seed: int) -> Connection:
        ours, theirs = FORK.Pipe()
        helper = FORK.Process(target=serve_shard, args=(theirs, seed), daemon=True)
        helper.start()
        theirs.close()
        self.helpers.append((helper, ours))
        if self.kept is not None and len(self.helpers) > self.kept:
            self._stop(*self.helpers.popleft())
        return ours

    def _stop(self, helper: BaseProcess, pipe: Connection) -> None:
        pipe.send(None)
        pipe.close()
        helper.join()


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, COLUMNS)
    helpers = ShardHelpers(None if options.leaking else SHARDS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("start_shard"):
            pipe = helpers.start(options.seed + generation)
        with run.phase("train"):
            for first in range(0, ROWS, 64):
                pipe.send(first)
                rows: Array = pipe.recv()
                model.step(rows, normal(random, len(rows), 8))
            model.fit(random, steps=310)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, COLUMNS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

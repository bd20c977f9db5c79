"""Predictions are submitted to a single-thread pool that uploads fewer than arrive, so that its work queue grows."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("train", "predict", "evaluate")
UPLOADS, DONE = 20, 4
ROWS, COLUMNS = 256, 256
SUBMITTED = 120


class Uploader:
    """At most ``limit`` uploads may wait; more are skipped."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.bandwidth = threading.Semaphore(0)
        self.submitted = self.done = 0

    def submit(self, predictions: Array) -> None:
        if self.limit is None or self.submitted - self.done < self.limit:
            self.submitted += 1
            self.pool.submit(self._upload, predictions)

    def _upload(self, predictions: Array) -> float:
        self.bandwidth.acquire()
        self.done += 1
        return float(np.square(predictions).mean())


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, COLUMNS)
    uploader = Uploader(None if options.leaking else SUBMITTED)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            model.fit(random, steps=180)
        with run.phase("predict"):
            for _ in range(UPLOADS):
                uploader.submit(normal(random, ROWS, COLUMNS))
            uploader.bandwidth.release(DONE)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, COLUMNS)).mean()))
    run.finish()
    uploader.pool.shutdown(wait=False, cancel_futures=True)
    uploader.bandwidth.release(UPLOADS)


if __name__ == "__main__":
    main()

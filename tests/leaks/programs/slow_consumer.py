"""Checkpoints queue up for an uploader that is slower than the training; the healthy variant drops the oldest."""

from __future__ import annotations

import hashlib
import queue
import threading

from _training import Array, Network, normal, parse, start

PHASES = ("train", "evaluate", "enqueue_uploads")
CHECKPOINTS = 12
UPLOADS = 4
ROWS, COLUMNS = 400, 256
WAITING = 84


class Uploader(threading.Thread):
    """Uploads a limited number of checkpoints per generation."""

    def __init__(self, limit: int | None) -> None:
        super().__init__(daemon=True)
        self.limit = limit
        self.waiting: queue.Queue[Array] = queue.Queue()
        self.bandwidth = threading.Semaphore(0)
        self.uploaded = threading.Semaphore(0)

    def run(self) -> None:
        while True:
            self.bandwidth.acquire()
            hashlib.sha256(self.waiting.get()).hexdigest()
            self.uploaded.release()

    def put(self, checkpoint: Array) -> None:
        if self.limit is not None and self.waiting.qsize() >= self.limit:
            self.waiting.get()
        self.waiting.put(checkpoint)

    def pass_time(self) -> None:
        for _ in range(UPLOADS):
            self.bandwidth.release()
        for _ in range(UPLOADS):
            self.uploaded.acquire()


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    uploader = Uploader(None if options.leaking else WAITING)
    uploader.start()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            model.fit(random, steps=450)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
        with run.phase("enqueue_uploads"):
            for _ in range(CHECKPOINTS):
                uploader.put(normal(random, ROWS, COLUMNS))
            uploader.pass_time()
            run.gauge("waiting_uploads", uploader.waiting.qsize())
    run.finish()


if __name__ == "__main__":
    main()

"""Predictions are logged to a queue listener that is slower than the training and formats only some of them."""

from __future__ import annotations

import logging
import queue
import threading
from logging.handlers import QueueHandler

from _training import Network, normal, parse, start

PHASES = ("train", "log_predictions", "evaluate")
RECORDS, FORMATTED = 600, 100
VALUES = 640
# The text, and the record with its dictionary.
RECORD_BYTES = VALUES * 8 + 900
WAITING = 5_000


class Listener(threading.Thread):
    """Formats a number of records per generation."""

    def __init__(self, records: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(daemon=True)
        self.records = records
        self.speed = threading.Semaphore(0)

    def run(self) -> None:
        while True:
            self.speed.acquire()
            self.records.get().getMessage()


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    records: queue.Queue[logging.LogRecord] = queue.Queue(0 if options.leaking else WAITING)
    listener = Listener(records)
    listener.start()
    logger = logging.getLogger("predictions")
    logger.propagate = False
    # Records that do not fit are dropped without a message.
    logging.raiseExceptions = False
    logger.setLevel(logging.INFO)
    logger.addHandler(QueueHandler(records))
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            model.fit(random, steps=300)
        with run.phase("log_predictions"):
            for _ in range(RECORDS):
                logger.info("predicted %s", normal(random, VALUES).tobytes().hex())
            listener.speed.release(FORMATTED)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

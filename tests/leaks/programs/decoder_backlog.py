"""A decoder thread without a phase fills a deque as fast as it can; every fourth generation augments everything."""

from __future__ import annotations

import threading
import time
from collections import deque

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("fetch", "train", "augment")
DECODED, TAKEN = 30, 8
HEIGHT, WIDTH = 256, 256
SAMPLE_BYTES = HEIGHT * WIDTH * 4
PENDING = 220
AUGMENTED_BYTES = 40 * 2**20


class Decoder(threading.Thread):
    """Decodes samples at its own speed, and waits while ``limit`` of them are pending."""

    def __init__(self, seed: int, limit: int | None) -> None:
        super().__init__(daemon=True)
        self.random = np.random.default_rng(seed)
        self.limit = limit
        self.pending: deque[dict[str, object]] = deque()
        self.speed = threading.Semaphore(0)

    def run(self) -> None:
        index = 0
        while True:
            self.speed.acquire()
            if self.limit is None or len(self.pending) < self.limit:
                index += 1
                image = normal(self.random, HEIGHT, WIDTH)
                self.pending.append({"index": index, "image": image})

    def take(self, samples: int) -> list[Array]:
        while len(self.pending) < samples:
            time.sleep(0.001)
        return [np.asarray(self.pending.popleft()["image"]) for _ in range(samples)]


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, WIDTH)
    decoder = Decoder(options.seed, None if options.leaking else PENDING)
    decoder.start()
    augmented = np.empty(0, np.uint8)
    for generation in range(options.generations):
        run.generation(generation)
        decoder.speed.release(DECODED)
        with run.phase("fetch"):
            batches = decoder.take(TAKEN)
        with run.phase("train"):
            for batch in batches:
                model.step(batch, normal(random, HEIGHT, 8))
            model.fit(random, steps=160)
        with run.phase("augment"):
            augmented = np.empty(0, np.uint8)
            if generation % 4 == 3:
                augmented = np.ones(AUGMENTED_BYTES, np.uint8)
            run.gauge("augmented", len(augmented))
    run.finish()


if __name__ == "__main__":
    main()

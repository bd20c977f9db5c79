"""A loader memoizes encoded samples; the leaking variant gives the cache no limit."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from _training import Array, Network, parse, start

PHASES = ("load", "train")
SAMPLES = 50
WIDTH = 10_000
LIMIT = 1_250
SAMPLE_BYTES = WIDTH * 4 + 112


def encode(number: int) -> Array:
    return np.random.default_rng(number).standard_normal(WIDTH, dtype=np.float32)


class Loader:
    """Encodes samples; ``limit`` is the number of encoded samples that it keeps."""

    def __init__(self, limit: int | None) -> None:
        self.encode = lru_cache(maxsize=limit)(encode)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, 256)
    loader = Loader(None if options.leaking else LIMIT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("load"):
            for number in range(SAMPLES):
                loader.encode(generation * SAMPLES + number)
        with run.phase("train"):
            model.fit(random, steps=150)
    run.finish()


if __name__ == "__main__":
    main()

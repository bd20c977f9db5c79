"""Supervised training that caches decoded samples, with the intended limit or without one."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("load", "train", "validate")
SAMPLES = 40
HEIGHT, WIDTH, CHANNELS = 64, 128, 3
LIMIT = 400


class CachedDataset:
    """Caches at most ``limit`` decoded samples, because decoding is slow."""

    def __init__(self, seed: int, limit: int | None) -> None:
        self.seed, self.limit = seed, limit
        self.decoded: OrderedDict[int, Array] = OrderedDict()

    def __getitem__(self, index: int) -> Array:
        if index in self.decoded:
            self.decoded.move_to_end(index)
            return self.decoded[index]
        self.decoded[index] = self._decode(index)
        if self.limit is not None and len(self.decoded) > self.limit:
            self.decoded.popitem(last=False)
        return self.decoded[index]

    def _decode(self, index: int) -> Array:
        random = np.random.default_rng([self.seed, index])
        image = normal(random, HEIGHT, WIDTH, CHANNELS)
        return np.ascontiguousarray(image[:, ::-1])


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, WIDTH)
    dataset = CachedDataset(options.seed, None if options.leaking else LIMIT)
    run.track("decoded", dataset.decoded)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("load"):
            batch = [dataset[generation * SAMPLES + index] for index in range(SAMPLES)]
            rows = np.stack([image[0, :, 0] for image in batch])
        with run.phase("train"):
            for _ in range(20):
                model.step(rows, normal(random, SAMPLES, 8))
            model.fit(random, steps=350)
        with run.phase("validate"):
            run.gauge("score", float(model.predict(rows).mean()))
    run.finish()


if __name__ == "__main__":
    main()

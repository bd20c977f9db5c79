"""Decoded samples are cached by their index in the dataset; the leaking key also has the augmentation seed."""

from __future__ import annotations

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("load", "train", "validate")
DATASET = 600
# An epoch over the dataset takes 25 generations.
SAMPLES = 24
SIDE = 144
SAMPLE_BYTES = SIDE * SIDE * 4


class CachedDataset:
    """Keeps every decoded sample, because all of them fit into memory."""

    def __init__(self, seed: int, seed_in_key: bool) -> None:
        self.seed, self.seed_in_key = seed, seed_in_key
        self.samples: dict[tuple[int, ...], Array] = {}

    def __len__(self) -> int:
        return DATASET

    def get(self, index: int, augmentation: int) -> Array:
        """Return the sample, flipped for every second augmentation seed."""
        key = (index, augmentation) if self.seed_in_key else (index,)
        if key not in self.samples:
            random = np.random.default_rng([self.seed, index])
            self.samples[key] = np.tanh(normal(random, SIDE, SIDE))
        sample = self.samples[key]
        return sample[:, ::-1] if augmentation % 2 else sample


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, SIDE)
    dataset = CachedDataset(options.seed, seed_in_key=options.leaking)
    order = random.permutation(len(dataset)).tolist()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("load"):
            first = generation * SAMPLES % len(dataset)
            batch = [dataset.get(index, generation) for index in order[first : first + SAMPLES]]
            rows = np.stack([image[0] for image in batch])
        with run.phase("train"):
            for _ in range(20):
                model.step(rows, normal(random, SAMPLES, 8))
            model.fit(random, steps=250)
        with run.phase("validate"):
            run.gauge("score", float(model.predict(rows).mean()))
    run.finish()


if __name__ == "__main__":
    main()

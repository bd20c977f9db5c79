"""Augmentation in a phase inside the training phase, with a cache of augmented images by image and random angle."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("load", "train", "validate")
IMAGES = 48
SIDE = 128
LIMIT = 480


class Augmenter:
    """Caches at most ``limit`` images; an angle hardly ever repeats, so the cache only grows."""

    def __init__(self, random: np.random.Generator, limit: int | None) -> None:
        self.random, self.limit = random, limit
        self.cache: OrderedDict[tuple[int, float], Array] = OrderedDict()

    def augmented(self, index: int, image: Array) -> Array:
        angle = float(self.random.uniform(-10, 10))
        if (index, angle) not in self.cache:
            rolled = np.roll(image, int(angle), axis=0)
            self.cache[index, angle] = rolled + np.float32(angle / 100)
            if self.limit is not None and len(self.cache) > self.limit:
                self.cache.popitem(last=False)
        return self.cache[index, angle]


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, SIDE)
    augmenter = Augmenter(random, None if options.leaking else LIMIT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("load"):
            images = normal(random, IMAGES, SIDE, SIDE)
        with run.phase("train"):
            for index, image in enumerate(images):
                with run.phase("augment"):
                    augmented = augmenter.augmented(index, image)
                with run.phase("step"):
                    model.step(augmented, normal(random, SIDE, 8))
            model.fit(random, steps=290)
        with run.phase("validate"):
            run.gauge("score", float(model.predict(images[:, 0]).mean()))
    run.finish()


if __name__ == "__main__":
    main()

"""Cross-validation with a feature extractor per fold, whose cached method keeps every extractor alive."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("prepare_fold", "train", "evaluate")
BASIS_ROWS, BASIS_COLUMNS = 768, 1_024
DAYS = 4
FOLDS_KEPT = 10


class FeatureExtractor:
    """Projects the prices of a day onto the basis of this fold."""

    def __init__(self, random: np.random.Generator) -> None:
        self.basis = normal(random, BASIS_ROWS, BASIS_COLUMNS)

    def features(self, day: int) -> Array:
        prices = np.sin(np.arange(BASIS_ROWS) * (day + 1) / 50)
        return prices.astype(np.float32) @ self.basis


def cache_features(maxsize: int | None) -> None:
    """Cache the method as a decorator would: the cache belongs to the class, and its keys contain ``self``."""
    FeatureExtractor.features = lru_cache(maxsize=maxsize)(  # type: ignore[method-assign]
        FeatureExtractor.features
    )


def main() -> None:
    options = parse()
    random = options.random
    cache_features(None if options.leaking else FOLDS_KEPT * DAYS)
    run = start(options, PHASES)
    model = Network(random, BASIS_COLUMNS, hidden=64)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("prepare_fold"):
            extractor = FeatureExtractor(random)
        with run.phase("train"):
            for _ in range(30):
                rows = np.stack([extractor.features(day) for day in range(DAYS)])
                model.step(rows / 100, normal(random, DAYS, 8))
            model.fit(random, steps=80)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(extractor.features(0)[None]).mean()))
    run.finish()


if __name__ == "__main__":
    main()

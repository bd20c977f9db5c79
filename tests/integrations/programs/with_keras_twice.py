"""A program with its own run that fits twice: the second continues the generations of the first."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

import leakline
from leakline.integrations.keras import LeaklineCallback


def main() -> None:
    run = leakline.init(project="keras", unit="epoch")
    random = np.random.default_rng(0)
    model = keras.Sequential([keras.layers.Dense(8)])
    model.compile("sgd", "mse")
    for _ in range(2):
        model.fit(
            random.random((256, 64)), random.random((256, 8)), epochs=4, verbose=0,
            callbacks=[LeaklineCallback(project="not this one")],
        )  # fmt: skip
        assert leakline.current() is run
        with run.phase("predict"):
            model.predict(random.random((256, 64)), verbose=0)
    run.finish()


if __name__ == "__main__":
    main()

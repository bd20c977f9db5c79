"""A regression in Keras on torch. A callback that runs before ours keeps memory at the end of each evaluation."""

from __future__ import annotations

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from keeping import Keeper

from leakline.integrations.keras import LeaklineCallback

EPOCHS = int(sys.argv[2]) if len(sys.argv) > 2 else 24


class KeepsPredictions(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.predictions = Keeper()

    def on_test_end(self, logs: object = None) -> None:
        self.predictions.keep()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if sys.argv[1] == "raise" and epoch == 5:
            raise ZeroDivisionError("planted")


def main() -> None:
    random = np.random.default_rng(0)
    model = keras.Sequential([keras.layers.Dense(128, "relu"), keras.layers.Dense(8)])
    model.compile("sgd", "mse")
    model.fit(
        random.random((16384, 64)), random.random((16384, 8)), validation_split=0.25, epochs=EPOCHS,
        batch_size=64, verbose=0, callbacks=[KeepsPredictions(), LeaklineCallback(project="keras")],
    )  # fmt: skip


if __name__ == "__main__":
    main()

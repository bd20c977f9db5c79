"""A regression in plain TensorFlow. Every evaluation keeps its predictions if the first argument is ``leak``."""

from __future__ import annotations

import sys
import tempfile
import time

import numpy as np
import tensorflow as tf

# Most of the time passes in waits, so that ten steps take about a second on a slow machine too.
ROUNDS, STEPS, WAIT_SECONDS = 28, 10, 0.02


class Model(tf.Module):
    def __init__(self, random: np.random.Generator) -> None:
        super().__init__()
        self.first = tf.Variable(random.standard_normal((256, 1024), np.float32) / 16)
        self.second = tf.Variable(random.standard_normal((1024, 256), np.float32) / 32)

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.tanh(inputs @ self.first) @ self.second


def main() -> None:
    random = np.random.default_rng(0)
    model = Model(random)
    inputs, targets = (
        tf.constant(each) for each in random.standard_normal((2, 256, 256), np.float32)
    )
    checkpoint = tf.train.Checkpoint(model=model)

    @tf.function
    def train_step(inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs) - targets) ** 2)
        weights = model.trainable_variables
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    @tf.function
    def eval_step(inputs: tf.Tensor) -> tf.Tensor:
        return model(inputs)

    predictions = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                loss = train_step(inputs, targets)
                time.sleep(WAIT_SECONDS)
            until = time.monotonic() + 0.7
            while time.monotonic() < until:
                predicted = eval_step(inputs)
            predictions.append(tf.tile(predicted, (16, 1)))
            if sys.argv[1] != "leak":
                predictions.clear()
            checkpoint.save(f"{folder}/saved")
    sys.stdout.write(f"loss {float(loss)!r}\n")


if __name__ == "__main__":
    main()

"""A regression in plain JAX. Every evaluation keeps its predictions if the first argument is ``leak``."""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

# Most of the time passes in waits, so that ten steps take about a second on a slow machine too.
ROUNDS, STEPS, WAIT_SECONDS = 28, 10, 0.02
optimizer = optax.adam(1e-3)


def predict(parameters: Any, inputs: Any) -> Any:
    return jnp.tanh(inputs @ parameters["first"]) @ parameters["second"]


def loss(parameters: Any, inputs: Any, targets: Any) -> Any:
    return jnp.mean((predict(parameters, inputs) - targets) ** 2)


@jax.jit
def train_step(parameters: Any, state: Any, inputs: Any, targets: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(parameters, inputs, targets)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(parameters, updates), state, value


@jax.jit
def eval_step(parameters: Any, inputs: Any) -> Any:
    return predict(parameters, inputs)


def main() -> None:
    random = np.random.default_rng(0)
    parameters = {
        "first": jnp.asarray(random.standard_normal((256, 1024)) / 16),
        "second": jnp.asarray(random.standard_normal((1024, 256)) / 32),
    }
    state = optimizer.init(parameters)
    inputs, targets = random.standard_normal((2, 256, 256))
    predictions = []
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            parameters, state, value = train_step(parameters, state, inputs, targets)
            value.block_until_ready()
            time.sleep(WAIT_SECONDS)
        until = time.monotonic() + 0.7
        while time.monotonic() < until:
            predicted = eval_step(parameters, inputs).block_until_ready()
        predictions.append(jnp.tile(predicted, (16, 1)))
        if sys.argv[1] != "leak":
            predictions.clear()
    sys.stdout.write(f"loss {float(value)!r}\n")


if __name__ == "__main__":
    main()

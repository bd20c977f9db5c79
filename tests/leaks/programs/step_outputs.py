"""A trainer gathers step outputs and drops them every fifth generation, until a later stage forgets to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("train", "validate", "epoch_end")
STEPS = 24
BATCH = 128
CLASSES = 200
EPOCH = 5
FIRST_FINE_TUNING = 10


@dataclass
class Module:
    """``step_outputs`` are read and dropped at the end of an epoch of five generations."""

    step_outputs: list[dict[str, Array | float]] = field(default_factory=list)

    def training_step(self, model: Network, random: np.random.Generator) -> None:
        inputs = normal(random, BATCH, 64)
        loss = model.step(inputs, normal(random, BATCH, CLASSES))
        self.step_outputs.append({"loss": loss, "logits": model.predict(inputs)})

    def on_epoch_end(self) -> float:
        loss = float(np.mean([output["loss"] for output in self.step_outputs]))
        self.step_outputs.clear()
        return loss


class FineTuning(Module):
    """The second stage, whose end of an epoch forgets to drop the outputs."""

    def on_epoch_end(self) -> float:
        return float(np.mean([output["loss"] for output in self.step_outputs[-STEPS:]]))


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    network = Network(random, outputs=CLASSES)
    module = Module()
    for generation in range(options.generations):
        run.generation(generation)
        if generation == FIRST_FINE_TUNING and options.leaking:
            module = FineTuning()
        with run.phase("train"):
            for _ in range(STEPS):
                module.training_step(network, random)
            network.fit(random, steps=150)
        with run.phase("validate"):
            run.gauge("score", float(network.predict(normal(random, 512, 64)).mean()))
        with run.phase("epoch_end"):
            if generation % EPOCH == EPOCH - 1:
                run.gauge("loss", module.on_epoch_end())
    run.finish()


if __name__ == "__main__":
    main()

"""Two phases that both leak: one keeps thousands of small records, the other a few large matrices."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("simulate", "fit", "assess")
STEPS = 4_000
RECORD_BYTES = 48 + 24 + 3 * 32
MATRICES, CLASSES = 2, 640
GENERATIONS_KEPT = 10


@dataclass(slots=True)
class StepRecord:
    reward: float
    value: float
    entropy: float


class Reports:
    """Records and matrices of the last ``generations``, or of all."""

    def __init__(self, generations: int | None) -> None:
        kept = generations or 0
        self.records: deque[StepRecord] = deque(maxlen=kept * STEPS or None)
        self.matrices: deque[Array] = deque(maxlen=kept * MATRICES or None)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    network = Network(random)
    reports = Reports(None if options.leaking else GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("simulate"):
            for reward, value, entropy in random.standard_normal((STEPS, 3)).tolist():
                reports.records.append(StepRecord(reward, value, entropy))
        with run.phase("fit"):
            network.fit(random, steps=140)
        with run.phase("assess"):
            for _ in range(MATRICES):
                matrix = np.abs(normal(random, CLASSES, CLASSES))
                reports.matrices.append(matrix / matrix.sum(axis=1, keepdims=True))
            run.gauge("accuracy", float(np.trace(reports.matrices[-1])))
    run.finish()


if __name__ == "__main__":
    main()

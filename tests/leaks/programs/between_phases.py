"""Bookkeeping at the end of the loop body, outside every phase: a diary that stores entire outputs with the numbers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train", "evaluate")
ROWS, OUTPUTS = 3_000, 256
GENERATIONS_KEPT = 10


@dataclass
class DiaryEntry:
    generation: int
    loss: float
    outputs: Array


class Diary:
    """The last ``kept`` entries; older ones have been printed already."""

    def __init__(self, kept: int | None) -> None:
        self.entries: deque[DiaryEntry] = deque(maxlen=kept)

    def write(self, entry: DiaryEntry) -> None:
        self.entries.append(entry)

    def best_loss(self) -> float:
        return min(entry.loss for entry in self.entries)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, outputs=OUTPUTS)
    diary = Diary(None if options.leaking else GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            inputs = normal(random, ROWS, 64)
        with run.phase("train"):
            for first in range(0, ROWS, 100):
                model.step(inputs[first : first + 100], normal(random, 100, OUTPUTS))
            loss = model.fit(random, steps=100)
        with run.phase("evaluate"):
            score = float(model.predict(inputs[:256]).mean())
        diary.write(DiaryEntry(generation, loss, model.predict(inputs)))
        run.gauge("score", score)
        run.gauge("best_loss", diary.best_loss())
    run.finish()


if __name__ == "__main__":
    main()

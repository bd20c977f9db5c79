"""A summary writer buffers its events until a flush; the leaking variant never flushes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("train", "evaluate", "log")
EVENTS = 700
BINS = 512
# An event, its tag and the header of its histogram, in addition to the bins.
EVENT_BYTES = BINS * 8 + 400
FLUSH_EVERY = 10


@dataclass
class HistogramEvent:
    tag: str
    step: int
    counts: Array


class SummaryWriter:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[HistogramEvent] = []

    def add_histogram(self, tag: str, step: int, values: Array) -> None:
        counts = np.histogram(values, bins=BINS)[0].astype(np.float64)
        self.events.append(HistogramEvent(tag, step, counts))

    def flush(self) -> None:
        with self.path.open("ab") as file:
            for event in self.events:
                file.write(event.tag.encode() + event.counts.tobytes())
        self.events.clear()


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    with TemporaryDirectory(dir=".") as folder:
        writer = SummaryWriter(Path(folder) / "events.bin")
        for generation in range(options.generations):
            run.generation(generation)
            with run.phase("train"):
                model.fit(random, steps=350)
            with run.phase("evaluate"):
                outputs = model.predict(normal(random, EVENTS, 64))
            with run.phase("log"):
                for number, output in enumerate(outputs):
                    writer.add_histogram(f"outputs/{number}", generation, output)
                if not options.leaking and generation and generation % FLUSH_EVERY == 0:
                    writer.flush()
        run.finish()


if __name__ == "__main__":
    main()

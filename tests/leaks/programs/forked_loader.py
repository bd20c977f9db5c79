"""Two forked loader workers read a list of Python objects: each read copies the page it shares with its parent."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from _training import Network, normal, parse, start

PHASES = ("load", "train", "evaluate")
WORKERS = 2
SAMPLES = 60_000
SAMPLE = 900
SAMPLES_READ = 2_000
# The bytes object around the pixels of a sample.
SAMPLE_BYTES = SAMPLE + 48
EASY_SAMPLES = 20_000
FORK = multiprocessing.get_context("fork")

Dataset = list[bytes]


def load(pipe: Connection, dataset: Dataset) -> None:
    """Return the brightness of a range of samples in the worker, which changes only their reference counts."""
    while True:
        first, last = pipe.recv()
        pipe.send([sample[0] for sample in dataset[first:last]])


class Loader:
    def __init__(self, dataset: Dataset) -> None:
        self.pipes: list[Connection] = []
        for _ in range(WORKERS):
            ours, theirs = FORK.Pipe()
            FORK.Process(target=load, args=(theirs, dataset), daemon=True).start()
            self.pipes.append(ours)

    def read(self, first: int) -> list[int]:
        """Let each worker read and augment the samples."""
        for pipe in self.pipes:
            pipe.send((first, first + SAMPLES_READ))
        return [brightness for pipe in self.pipes for brightness in pipe.recv()]


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    loader = Loader([random.bytes(SAMPLE) for _ in range(SAMPLES)])
    # The curriculum: all samples in turn, or the easy third repeatedly.
    curriculum = SAMPLES if options.leaking else EASY_SAMPLES
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("load"):
            brightness = loader.read(generation * SAMPLES_READ % curriculum)
        with run.phase("train"):
            model.fit(random, steps=500)
        with run.phase("evaluate"):
            score = float(model.predict(normal(random, 512, 64)).mean())
            run.gauge("score", score + sum(brightness) / len(brightness))
    run.finish()


if __name__ == "__main__":
    main()

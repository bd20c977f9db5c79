"""A forked worker scores a population by request and collects the outputs in a list of its module."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from _training import Array, Network, normal, parse, start

PHASES = ("train", "score_population", "report")
POPULATION = 12
ROWS, OUTPUTS = 640, 64
CLEAR_EVERY = 10
FORK = multiprocessing.get_context("fork")

# In the worker: the outputs since the last report.
collected: list[Array] = []


def serve(pipe: Connection, clear: bool) -> None:
    """In the worker: score a population per request until there is none."""
    import numpy as np

    random = np.random.default_rng(0)
    members = [Network(random, outputs=OUTPUTS) for _ in range(POPULATION)]
    while (generation := pipe.recv()) is not None:
        if clear and generation % CLEAR_EVERY == 0:
            collected.clear()
        inputs = normal(random, ROWS, 64)
        outputs = [member.predict(inputs) for member in members]
        collected.extend(outputs)
        pipe.send(max(float(each.mean()) for each in outputs))


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    ours, theirs = FORK.Pipe()
    worker = FORK.Process(target=serve, args=(theirs, not options.leaking), daemon=True)
    worker.start()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            model.fit(random, steps=350)
        with run.phase("score_population"):
            ours.send(generation)
            run.gauge("best", ours.recv())
        with run.phase("report"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
    ours.send(None)
    worker.join()
    run.finish()


if __name__ == "__main__":
    main()

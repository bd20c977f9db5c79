"""A forked worker embeds captions that it shares with its parent: Python objects, whose pages it copies when it reads.

The healthy variant holds the captions in one array of NumPy.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from multiprocessing.connection import Connection

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("embed", "train", "evaluate")
CAPTIONS = 20_000
# Ten generations read all captions; until then their pages are copied, 0.25 MiB per generation.
CAPTIONS_READ = 2_000
EMBEDDING = 256
EMBEDDINGS_KEPT = 10
FORK = multiprocessing.get_context("fork")

Captions = list[bytes] | Array


def embed(pipe: Connection, captions: Captions, kept: int | None) -> None:
    """In the worker: embed a range of captions per request, and keep the last ``kept`` results."""
    random = np.random.default_rng(0)
    embeddings: deque[Array] = deque(maxlen=kept)
    table = normal(random, 256, EMBEDDING)
    while (first := pipe.recv()) is not None:
        letters = [caption[24] for caption in captions[first : first + CAPTIONS_READ]]
        embeddings.append(table[letters])
        pipe.send(embeddings[-1][:64].copy())


def write_captions(random: np.random.Generator) -> list[bytes]:
    kinds = random.integers(100, size=CAPTIONS).tolist()
    return [
        b"A photo of a kind of %04d, taken in a studio by day, numbered %09d" % (kind, number)
        for number, kind in enumerate(kinds)
    ]


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, EMBEDDING)
    captions: Captions = write_captions(random)
    if not options.leaking:
        captions = np.frombuffer(b"".join(captions), np.uint8).reshape(CAPTIONS, -1)
    ours, theirs = FORK.Pipe()
    kept = None if options.leaking else EMBEDDINGS_KEPT
    worker = FORK.Process(target=embed, args=(theirs, captions, kept), daemon=True)
    worker.start()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("embed"):
            ours.send(generation * CAPTIONS_READ % CAPTIONS)
            embedded = ours.recv()
        with run.phase("train"):
            model.step(embedded, normal(random, len(embedded), 8))
            model.fit(random, steps=160)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(embedded).mean()))
    ours.send(None)
    worker.join()
    run.finish()


if __name__ == "__main__":
    main()

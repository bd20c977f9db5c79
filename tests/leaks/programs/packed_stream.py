"""Samples are packed into a bytearray for an upload that never happens."""

from __future__ import annotations

import struct

from _training import Network, normal, parse, start

PHASES = ("train", "pack", "evaluate")
SAMPLES, COLUMNS = 1_500, 512
SAMPLE_BYTES = 4 + COLUMNS * 4

stream = bytearray()


def pack(samples: list[bytes], upload: bool) -> int:
    """Pack samples and return the length of the pending data; an upload takes all of it."""
    for sample in samples:
        stream.extend(struct.pack("<I", len(sample)) + sample)
    waiting = len(stream)
    if upload:
        stream.clear()
    return waiting


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, COLUMNS)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            model.fit(random, steps=80)
        with run.phase("pack"):
            samples = [row.tobytes() for row in normal(random, SAMPLES, COLUMNS)]
            upload = not options.leaking and generation % 5 == 4
            run.gauge("waiting_bytes", pack(samples, upload))
            del samples
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, COLUMNS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

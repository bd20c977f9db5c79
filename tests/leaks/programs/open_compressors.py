"""A compressor for each metric stream, kept in a registry by name after the stream has ended."""

from __future__ import annotations

import zlib
from typing import Any

from _training import Network, normal, parse, start

PHASES = ("train", "write_metrics", "evaluate")
STREAMS = 14
# From the zlib manual, for a window of 15 bits and memory level 8.
COMPRESSOR_BYTES = 2**17 + 2**17
STREAMS_KEPT = 140


class MetricWriter:
    """Keeps at most ``kept`` streams open; the oldest is closed when another is needed."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.open: dict[str, Any] = {}

    def write(self, stream: str, metrics: bytes) -> int:
        self.open[stream] = compressor = zlib.compressobj(6)
        if self.kept is not None and len(self.open) > self.kept:
            self.open.pop(next(iter(self.open))).flush()
        return len(compressor.compress(metrics))


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    writer = MetricWriter(None if options.leaking else STREAMS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            model.fit(random, steps=400)
        with run.phase("write_metrics"):
            for stream in range(STREAMS):
                metrics = normal(random, 64, 512).tobytes()
                run.gauge("written", writer.write(f"{generation}/{stream}", metrics))
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

"""Messages are truncated to their headers in place: kept headers pin holes too small for the next message."""

from __future__ import annotations

import io
from collections import deque

from _training import Network, normal, parse, start

PHASES = ("play", "train", "evaluate")
STEPS = 280
MESSAGE = 12_000
# Larger than the blocks of the interpreter's own allocator.
HEADER = 640
RECORDED = 64
GENERATIONS_KEPT = 10


class Journal:
    """The headers of the last ``kept`` messages."""

    def __init__(self, kept: int | None) -> None:
        self.headers: deque[bytearray] = deque(maxlen=kept)

    def write(self, message: bytearray) -> None:
        """Truncate the message in place, so that nothing is copied."""
        del message[HEADER:]
        self.headers.append(message)


def play(traffic: io.BytesIO, journal: Journal) -> int:
    """Play one episode of recorded traffic, whose messages are needed only until they are answered."""
    inbox = [bytearray(MESSAGE) for _ in range(STEPS)]
    for step, message in enumerate(inbox):
        traffic.seek(step % RECORDED * MESSAGE)
        traffic.readinto(message)
    brightness = sum(sum(message[::100]) for message in inbox)
    for message in inbox:
        journal.write(message)
    return brightness


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    traffic = io.BytesIO(random.bytes(RECORDED * MESSAGE))
    journal = Journal(None if options.leaking else STEPS * GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("play"):
            run.gauge("brightness", play(traffic, journal))
        with run.phase("train"):
            model.fit(random, steps=560)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

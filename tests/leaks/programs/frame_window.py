"""An agent stacks its newest frames; the leaking variant gives the deque of frames no maxlen."""

from __future__ import annotations

from collections import deque

from _training import Array, Network, normal, parse, start

PHASES = ("collect", "train")
FRAME = 8_192
FRAMES = 60
WINDOW = 1_500
FRAME_BYTES = FRAME * 4 + 112


class Frames:
    def __init__(self, window: int | None) -> None:
        self.newest: deque[Array] = deque(maxlen=window)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, 256)
    frames = Frames(None if options.leaking else WINDOW)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("collect"):
            for _ in range(FRAMES):
                frames.newest.append(normal(random, FRAME))
        with run.phase("train"):
            policy.fit(random, steps=150)
    run.finish()


if __name__ == "__main__":
    main()

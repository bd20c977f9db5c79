"""Frames of a C simulator are written into ctypes buffers, and a recorder keeps each of them."""

from __future__ import annotations

import ctypes
from collections import deque

import numpy as np
from _training import Network, normal, parse, start

PHASES = ("simulate", "train", "evaluate")
FRAMES = 16
FRAME_BYTES = 196_608
FRAMES_KEPT = 160


class Recorder:
    def __init__(self, kept: int | None) -> None:
        self.frames: deque[ctypes.Array[ctypes.c_char]] = deque(maxlen=kept)

    def render(self, random: np.random.Generator) -> float:
        frame = ctypes.create_string_buffer(FRAME_BYTES)
        ctypes.memset(frame, int(random.integers(1, 256)), FRAME_BYTES)
        self.frames.append(frame)
        return float(np.frombuffer(frame, np.uint8).mean())


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random)
    recorder = Recorder(None if options.leaking else FRAMES_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("simulate"):
            run.gauge("brightness", sum(recorder.render(random) for _ in range(FRAMES)))
        with run.phase("train"):
            policy.fit(random, steps=400)
        with run.phase("evaluate"):
            run.gauge("reward", float(policy.predict(normal(random, 512, 64)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

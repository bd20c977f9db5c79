"""Video readers that decode in their own threads; a replaced reader should be reused but is not."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("open_videos", "train", "evaluate")
VIDEOS = 2
FRAMES, PIXELS = 256, 1_536
READERS = 20


class DecodeThread(threading.Thread):
    """Decodes one video after the other into its own buffer, and waits for requests."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.requested, self.decoded = threading.Event(), threading.Event()
        self.seed = 0
        self.first_frame: Array | None = None

    def open(self, seed: int) -> Array | None:
        self.seed = seed
        self.decoded.clear()
        self.requested.set()
        self.decoded.wait()
        return self.first_frame

    def run(self) -> None:
        frames = np.empty((FRAMES, PIXELS), np.float32)
        while True:
            self.requested.wait()
            self.requested.clear()
            np.random.default_rng(self.seed).standard_normal(out=frames, dtype=np.float32)
            self.first_frame = frames[0].copy()
            self.decoded.set()


class VideoDataset:
    """Opens a video in a new reader, or in the oldest one if there are already ``limit`` readers."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.readers: deque[DecodeThread] = deque()

    def open(self, seed: int) -> Array | None:
        if self.limit is not None and len(self.readers) >= self.limit:
            reader = self.readers.popleft()
        else:
            reader = DecodeThread()
            reader.start()
        self.readers.append(reader)
        return reader.open(seed)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, PIXELS)
    dataset = VideoDataset(None if options.leaking else READERS)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("open_videos"):
            first = options.seed + generation * VIDEOS
            frames = np.stack([dataset.open(first + video) for video in range(VIDEOS)])
        with run.phase("train"):
            model.step(frames, normal(random, VIDEOS, 8))
            model.fit(random, steps=40)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(frames).mean()))
    run.finish()


if __name__ == "__main__":
    main()

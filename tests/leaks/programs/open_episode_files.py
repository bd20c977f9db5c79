"""Episodes are recorded to files with large write buffers; the leaking variant never closes a file."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from _training import Network, normal, parse, start

PHASES = ("record", "train", "evaluate")
EPISODES = 6
BUFFER = 512 * 1024
STEPS, OBSERVATION = 480, 256
FILES_KEPT = 60


class EpisodeRecorder:
    def __init__(self, folder: Path, kept: int | None) -> None:
        self.folder, self.kept = folder, kept
        self.files: deque[BinaryIO] = deque()

    def open(self, episode: int) -> BinaryIO:
        path = self.folder / f"episode-{episode:05d}.bin"
        self.files.append(path.open("wb", buffering=BUFFER))
        if self.kept is not None and len(self.files) > self.kept:
            self.files.popleft().close()
        return self.files[-1]

    def close(self) -> None:
        for file in self.files:
            file.close()


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, OBSERVATION)
    with TemporaryDirectory(dir=".") as folder:
        recorder = EpisodeRecorder(Path(folder), None if options.leaking else FILES_KEPT)
        for generation in range(options.generations):
            run.generation(generation)
            with run.phase("record"):
                for episode in range(EPISODES):
                    file = recorder.open(generation * EPISODES + episode)
                    for observation in normal(random, STEPS, OBSERVATION):
                        file.write(observation.tobytes())
            with run.phase("train"):
                policy.fit(random, steps=200)
            with run.phase("evaluate"):
                run.gauge("reward", float(policy.predict(normal(random, 512, OBSERVATION)).mean()))
        run.finish()
        recorder.close()


if __name__ == "__main__":
    main()

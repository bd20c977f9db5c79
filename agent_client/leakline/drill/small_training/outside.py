"""Leaks of what Python's own objects do not show, or show the smaller part of."""

from __future__ import annotations

import ctypes
import io
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from .planting import Plant, filled

KIB: Final = 2**10
MIB: Final = 2**20


class Native(Plant):
    """Bodies of a physics engine that must be destroyed by hand, and are not."""

    BODIES: Final = 512
    SIZE: Final = 8 * KIB
    # What the C library keeps for itself with each block.
    HEADER: Final = 16

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.library.malloc.restype = ctypes.c_void_p
        self.library.malloc.argtypes = [ctypes.c_size_t]
        self.library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

    def grow(self, generation: int) -> int:
        for _ in range(self.BODIES):
            self.library.memset(self.library.malloc(self.SIZE), 1, self.SIZE)
        return self.BODIES * (self.SIZE + self.HEADER)


class PinnedHoles(Plant):
    """Messages cut down to their headers where they lie; what was cut off cannot be given back.

    Each message is a little longer than the one before, so that it fits into none of the holes, and shorter than
    what gets a mapping of its own.
    """

    MESSAGES: Final = 80
    SHORTEST, LONGER = 40_000, 1_000
    LONGEST: Final = 120_000
    HEADER: Final = 600

    def __init__(self) -> None:
        self.headers: list[bytearray] = []

    def grow(self, generation: int) -> int:
        size = min(self.SHORTEST + self.LONGER * generation, self.LONGEST)
        messages = [filled(size) for _ in range(self.MESSAGES)]
        for message in messages:
            del message[self.HEADER :]
        self.headers += messages
        return self.MESSAGES * size


class Files(Plant):
    """Episodes written to files that nobody closes."""

    EPISODES: Final = 4
    BUFFER: Final = MIB

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.files: list[io.BufferedWriter] = []

    def grow(self, generation: int) -> int:
        for _ in range(self.EPISODES):
            path = Path(self.folder.name) / f"episode-{len(self.files):05d}"
            self.files.append(io.BufferedWriter(io.FileIO(path, "w"), self.BUFFER))
            self.files[-1].write(filled(self.BUFFER - 1))
        return self.EPISODES * self.BUFFER

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.folder.cleanup()


class Reader(threading.Thread):
    """Decodes into a buffer of its own, then waits for a request that never comes."""

    SIZE: Final = MIB

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.decoded, self.requested = threading.Event(), threading.Event()

    def run(self) -> None:
        frames = filled(self.SIZE)
        self.decoded.set()
        self.requested.wait()
        del frames


class Threads(Plant):
    EACH: Final = 4

    def __init__(self) -> None:
        self.readers: list[Reader] = []

    def grow(self, generation: int) -> int:
        for _ in range(self.EACH):
            reader = Reader()
            reader.start()
            reader.decoded.wait()
            self.readers.append(reader)
        return self.EACH * Reader.SIZE

    def close(self) -> None:
        for reader in self.readers:
            reader.requested.set()


class Figures(Plant):
    """One figure more on each call; pyplot keeps it until it is closed."""

    WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 8, 6, 100
    # The canvas of four bytes a pixel; the axes with their ticks and texts besides, as measured without Leakline.
    SIZE: Final = WIDTH_INCHES * HEIGHT_INCHES * DOTS_PER_INCH**2 * 4 + 710_000

    def __init__(self) -> None:
        import matplotlib

        matplotlib.use("Agg")
        matplotlib.rcParams["figure.max_open_warning"] = 0

    def grow(self, generation: int) -> int:
        from matplotlib import pyplot

        figure = pyplot.figure(
            figsize=(self.WIDTH_INCHES, self.HEIGHT_INCHES), dpi=self.DOTS_PER_INCH
        )
        figure.subplots().plot([n * generation for n in range(50)])
        figure.savefig(io.BytesIO(), format="raw", dpi=self.DOTS_PER_INCH)
        return self.SIZE


class Child(Plant):
    """A helper in a process of its own, which keeps a shard for each line it reads; the end of its input ends it."""

    SHARD: Final = 4 * MIB

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", Path(__file__).with_name("helper.py"), str(self.SHARD)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def grow(self, generation: int) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("next\n")
        self.process.stdin.flush()
        self.process.stdout.readline()
        return self.SHARD

    def close(self) -> None:
        self.process.communicate()

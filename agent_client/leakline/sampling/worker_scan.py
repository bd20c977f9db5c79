"""Finds what grows in a worker process when the process that records the run requests it.

A child process only installs a handler for SIGURG, which is ignored by default and thus harmless to other programs. A
forked child installs it in `install`, and a spawned child in the code of an `Offer`. To request a scan, the parent
creates an empty file named after the child's process ID and sends the signal. The handler scans on the child's main
thread, and writes to this file what has grown since the previous scan. It never creates a file, so nothing is left once
the parent deletes its request.

A scan compares the containers near the program's roots and takes a few milliseconds. A scan of the entire heap would
change the reference counts of all classes, and thus copy 20 MiB of the pages that a worker with torch shares.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from time import thread_time
from types import FrameType
from typing import Any, Final

from ..probes.growing_containers import ContainerWatch
from ..probes.heap.marginal_size import own_bytes_of
from ..probes.memory.process_memory import read_private_bytes
from ..probes.references.class_names import type_name
from ..probes.references.frames import Locals
from ..probes.references.roots import look_near

SUFFIX: Final = ".worker"
# Minimum share of the growth that a scan must explain.
EXPLAINS: Final = 0.5
# Items of these types are described by what they contain: objects visited by level, and levels.
_PLAIN: Final = frozenset(map(id, (list, dict, tuple, set)))
_VISITED, _LEVELS = 2_000, 4
# A spawned child imports Leakline only if a scan is requested.
_IN_SPAWNED: Final = """
try:
    import signal, time
    def handle(number, frame):
        started = time.thread_time()
        try:
            from leakline.sampling.worker_scan import answer
        except Exception:
            return
        answer(folder, number, frame, started)
    if signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
        signal.signal(signal.SIGURG, handle)
        signal.siginterrupt(signal.SIGURG, False)
except Exception:
    pass
"""


class WorkerScans:
    """The scans of one process. Between two scans, only numbers, names and weak references are kept."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._private: int | None = None
        self._containers = ContainerWatch()
        self._lengths: dict[str, int] = {}

    def scan(self, frame: FrameType | None) -> dict[str, Any]:
        """Return the growth since the previous scan, as plain JSON; {} for the first scan.

        The keys are ``private`` and ``explained`` (bytes), ``types`` (names) and ``holder`` (a path or "").
        """
        self._containers.find(frame, _instances(frame))
        grown = list(self._containers.growth(frame, self._lengths))
        before, self._private = self._private, read_private_bytes()
        if before is None:
            return {}
        explained, path, item = max(grown, key=lambda one: one[0], default=(0, "", None))
        names = [_largest_part(item), type_name(type(item))]
        types = dict.fromkeys(names if id(type(item)) in _PLAIN else names[::-1])
        more = self._private - before
        return {"private": more, "explained": explained, "types": [*types], "holder": path}


def _instances(frame: FrameType | None) -> dict[type, list[Any]]:
    """Return the program's objects near the local variables of all functions of this thread.

    Functions of libraries are included, because a worker usually waits in one that also holds its task.
    """
    found: dict[str, dict[str, Any]] = {}
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            found[str(len(found))] = Locals(frame).read()
        frame = frame.f_back
    return look_near(found).instances


def _largest_part(item: Any) -> str:
    """Return the type of the objects that make up most of an item of a container."""
    sizes: Counter[str] = Counter()
    level: Sequence[Any] = [item]
    for _ in range(_LEVELS):
        for one in level:
            sizes[type_name(type(one))] += own_bytes_of(type(one))(one)
        entered = (one for one in level if one is item or id(type(one)) in _PLAIN)
        level = list(islice((x for one in entered for x in gc.get_referents(one)), _VISITED))
    return sizes.most_common(1)[0][0]


_scans: WorkerScans | None = None


def answer(
    folder: str, _number: int, frame: FrameType | None, started: float | None = None
) -> None:
    """Scan if the parent has requested it, and write the result to the request file.

    Nothing is raised. Other signals wait until the end of the scan, because the program's handlers may raise.
    ``started``: CPU seconds of the thread when the handler was called (default: now).
    """
    started = thread_time() if started is None else started
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        # A failure in a signal handler must not reach the program, which may be at any point.
        with suppress(Exception):
            _answer(folder, frame, started)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _answer(folder: str, frame: FrameType | None, started: float) -> None:
    global _scans
    fd = os.open(f"{folder}/{os.getpid()}{SUFFIX}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        if _scans is None or _scans.pid != os.getpid():
            _scans = WorkerScans()
        found = {**_scans.scan(frame), "seconds": thread_time() - started}
        os.write(fd, json.dumps(found).encode() + b"\n")
    finally:
        os.close(fd)


def install(folder: str) -> None:
    """Answer the parent's requests in a forked child, unless the program uses SIGURG."""
    if signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
        signal.signal(signal.SIGURG, partial(answer, folder))
        signal.siginterrupt(signal.SIGURG, False)


def uninstall() -> None:
    """Stop answering, because this process begins a run of its own."""
    handler = signal.getsignal(signal.SIGURG)
    if isinstance(handler, partial) and handler.func is answer:
        # Only the main thread may change handlers.
        with suppress(ValueError):
            signal.signal(signal.SIGURG, signal.SIG_DFL)


class Offer:
    """An entry in the configuration of `multiprocessing`. Spawned children execute ``_IN_SPAWNED`` to unpickle it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_IN_SPAWNED, {"folder": self._folder})

    def make(self, *, withdraw: bool = False) -> None:
        """Add or withdraw the entry."""
        # Loaded here even if the program has not done so yet, because it may start children right after that.
        from multiprocessing.process import current_process

        known: dict[str, Any] = vars(current_process())["_config"]
        if not withdraw:
            known["_leakline"] = self
        elif known.get("_leakline") is self:
            del known["_leakline"]

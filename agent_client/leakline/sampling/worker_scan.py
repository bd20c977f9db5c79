"""Scans the heap of a worker process when the process that records the run requests it.

A child process only installs a handler for SIGURG, which is ignored by default and thus harmless to other programs. A
forked child installs it in `install`, and a spawned child in the code of an `Offer`. To request a scan, the parent
creates an empty file named after the child's process ID and sends the signal. The handler scans the heap on the child's
main thread, and writes to this file what has grown since the previous scan. It never creates a file, so nothing is left
once the parent deletes its request.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from types import FrameType
from typing import Any, Final

from ..probes.growing_containers import ContainerWatch
from ..probes.heap.census import take_census
from ..probes.memory.process_memory import read_private_bytes
from ..probes.native_module import native
from ..probes.references.class_names import type_name
from .holder_paths import PATH_LIMIT, find_holder_of_largest, find_holders

SUFFIX: Final = ".worker"
DEADLINE_SECONDS: Final = 0.2
# A search for holders copies pages that are shared with the parent, so it needs this much growth.
SEARCH_BYTES: Final = 4 * 2**20
TYPES_LIMIT: Final = 3
# Minimum share of the growth that a scan must explain.
EXPLAINS: Final = 0.5
# A container of these types is named after the largest growing type, which it probably holds.
_PLAIN: Final = ("dict", "list", "set", "tuple")
# A spawned child imports Leakline only if a scan is requested.
_IN_SPAWNED: Final = """
try:
    import signal
    def handle(number, frame):
        try:
            from leakline.sampling.worker_scan import answer
        except Exception:
            return
        answer(folder, number, frame)
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
        self._sizes: dict[str, tuple[int, int]] = {}  # (bytes, count) by type name
        self._private = 0
        self._containers = ContainerWatch()

    def scan(self, frame: FrameType | None) -> dict[str, Any]:
        """Return what has grown since the previous scan, as plain JSON; {} for the first scan.

        The keys are ``private`` and ``explained`` (bytes), ``types`` (names) and ``holder`` (a path or "").
        """
        lengths = self._containers.lengths()
        result = take_census(
            DEADLINE_SECONDS, lambda instances: self._containers.find(frame, instances)
        )
        if not result.is_exact:
            return {}
        sizes: dict[str, tuple[int, int]] = {}
        classes = {}
        for (cls, count), size in zip(result.counts.items(), result.type_bytes, strict=True):
            known = sizes.get(name := type_name(cls), (0, 0))
            sizes[name], classes[name] = (known[0] + (size or 0), known[1] + count), cls
        private = read_private_bytes()
        before, grown = self._sizes, private - self._private
        self._sizes, self._private = sizes, private
        if not before:
            return {}
        changes = ((name, row, before.get(name, (0, 0))) for name, row in sizes.items())
        rows = ((now[0] - old[0], now[1] - old[1], name) for name, now, old in changes)
        more = sorted(rows, reverse=True)[:TYPES_LIMIT]
        large = [name for size, _, name in more if size >= EXPLAINS * grown]
        found = max(self._containers.growth(frame, lengths), default=(0, "", ""))
        if found[0] < EXPLAINS * grown and grown >= SEARCH_BYTES:
            found = max(_held(more, classes, frame), default=found)
        explained, path, name = found
        types = dict.fromkeys([*large, name] if name in _PLAIN else [name, *large])
        return {
            "private": grown, "explained": explained, "holder": path[:PATH_LIMIT],
            "types": list(filter(None, types))[:TYPES_LIMIT],
        }  # fmt: skip


def _held(
    more: Sequence[tuple[int, int, str]], classes: Mapping[str, type], frame: FrameType | None
) -> list[tuple[int, str, str]]:
    """Return (bytes, holder or "", name) of types given as (bytes, count, name).

    With a known holder, the bytes include what the objects hold.
    """
    holders = find_holders([classes[name] for _, _, name in more], DEADLINE_SECONDS, frame)
    found = []
    for size, count, name in more:
        ones = [one for one in holders if one.type == name]
        if count <= 0:
            ones = find_holder_of_largest(classes[name], DEADLINE_SECONDS, frame)
        deep = count * (ones[0].bytes_each or 0) if ones else 0
        found.append((max(size, deep), ones[0].path if ones else "", name))
    return found


_scans: WorkerScans | None = None


def answer(folder: str, _number: int, frame: FrameType | None) -> None:
    """Scan the heap if the parent has requested it, and write the result to the request file.

    Nothing is raised. Other signals wait until the end of the scan, because the program's handlers may raise.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        # A failure in a signal handler must not reach the program, which may be at any point.
        with suppress(Exception):
            _answer(folder, frame)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _answer(folder: str, frame: FrameType | None) -> None:
    global _scans
    # Only native scans leave reference counts unchanged; changes would copy the pages shared with the parent.
    if sys.is_finalizing() or native() is None:
        return
    fd = os.open(f"{folder}/{os.getpid()}{SUFFIX}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        started = perf_counter()
        if _scans is None or _scans.pid != os.getpid():
            _scans = WorkerScans()
        found = {**_scans.scan(frame), "seconds": perf_counter() - started}
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
        # Only the main thread may change handlers; on other threads, requests of the parent are still answered.
        with suppress(ValueError):
            signal.signal(signal.SIGURG, signal.SIG_DFL)


class Offer:
    """An entry in the configuration of `multiprocessing`. Spawned children execute ``_IN_SPAWNED`` to unpickle it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_IN_SPAWNED, {"folder": self._folder})

    def make(self, *, withdraw: bool = False) -> None:
        """Add or withdraw the entry, if the program uses `multiprocessing`."""
        module = sys.modules.get("multiprocessing.process")
        known = {} if module is None else module.__dict__["_current_process"]._config
        if not withdraw:
            known["_leakline"] = self
        elif known.get("_leakline") is self:
            del known["_leakline"]

"""Finds what grows in a worker process when the process that records the run requests it.

This is optional (setting ``scan_workers``). A child process only installs a handler for SIGURG, which is ignored by
default and thus harmless to other programs. A forked child installs it in `install`, and a spawned child when it
unpickles an `Offer`. To request a scan, the parent creates an empty file named after the child's process ID and sends
the signal. The handler scans on the child's main thread, and writes to this file what has grown since the previous
scan. It never creates a file, so nothing is left once the parent deletes its request.

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
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from time import thread_time
from traceback import walk_tb
from types import FrameType, FunctionType, MethodType
from typing import Any, Final

from ..probes.growing_containers import ContainerWatch
from ..probes.heap.marginal_size import own_bytes_of
from ..probes.memory.process_memory import read_private_bytes
from ..probes.references.attributes import length_of
from ..probes.references.class_names import type_name
from ..probes.references.frames import Locals
from ..probes.references.roots import look_near

SUFFIX: Final = ".worker"
# Minimum share of the growth that a scan must explain.
EXPLAINS: Final = 0.5
# Containers that seem to grow by more than this multiple of the process's growth are not considered.
EXCEEDS: Final = 1.5
# Items of these types are described by what they contain: objects visited by level, and levels.
_PLAIN: Final = frozenset(map(id, (list, dict, tuple, set)))
_VISITED, _LEVELS = 2_000, 4
# CPU time after which a scan gives up.
_SCAN_SECONDS: Final = 0.02
_SIGNALS: Final = signal.valid_signals()
# Signals that wait until the end of a scan: all except errors of the program.
_BLOCKED: Final = _SIGNALS - {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP
}  # fmt: skip
# A spawned child imports Leakline only if a scan is requested, and not during another import.
_INSTALL: Final = """
try:
    import signal, time
    def handle(number, frame):
        started, caller = time.thread_time(), frame
        while caller is not None:
            if caller.f_code.co_filename.startswith("<frozen importlib"):
                return
            caller = caller.f_back
        if handle.answers_leakline:
            try:
                from leakline.sampling.worker_scan import answer
            except Exception as error:
                # Raise only exceptions of the program's signal handlers, as `answer` does.
                handlers = map(signal.getsignal, signal.valid_signals())
                codes = [getattr(each, "__code__", None) for each in handlers]
                at = error.__traceback__.tb_next
                while at is not None:
                    if at.tb_frame.f_code in codes:
                        raise
                    at = at.tb_next
                return
            answer(prefix, frame, started)
    handle.answers_leakline = True
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
        # Paths of the containers that grew before the previous scan.
        self._grew: set[str] = set()

    def scan(self, frame: FrameType | None) -> dict[str, Any]:
        """Return the growth since the previous scan, as plain JSON; {} for the first scan.

        The keys are ``private`` and ``explained`` (bytes), ``types`` (names) and ``holder`` (a path or "").
        """
        ends = thread_time() + _SCAN_SECONDS

        def is_over() -> bool:
            return thread_time() > ends

        self._containers.find(frame, _instances(frame), measures=False)
        found = list(self._containers.growth(frame, self._lengths, is_over))
        before, self._private = self._private, read_private_bytes()
        grew, self._grew = self._grew, {path for _, path, _ in found}
        if before is None or is_over():
            return {}
        more = self._private - before
        # A local variable may hold more for one moment. Growth that is too large is shared with other processes.
        kept = [
            one
            for one in found
            if one[0] <= EXCEEDS * more and ("<locals>" not in one[1] or one[1] in grew)
        ]
        explained, path, item = max(kept, key=lambda one: one[0], default=(0, "", None))
        names = [_largest_part(item, is_over), type_name(type(item))]
        types = dict.fromkeys(names if id(type(item)) in _PLAIN else names[::-1])
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


def _largest_part(item: Any, is_over: Callable[[], bool]) -> str:
    """Return the type of the objects that make up most of an item of a container."""
    sizes: Counter[str] = Counter({type_name(type(item)): 0})
    level: Sequence[Any] = [item]
    for _ in range(_LEVELS):
        # Reading items changes their reference counts, and thus copies pages that processes share.
        level = [one for one in level if length_of(one) <= _VISITED]
        for one in level:
            sizes[type_name(type(one))] += own_bytes_of(type(one))(one)
        if is_over():
            break
        entered = (one for one in level if one is item or id(type(one)) in _PLAIN)
        level = list(islice((x for one in entered for x in gc.get_referents(one)), _VISITED))
    return sizes.most_common(1)[0][0]


_scans: WorkerScans | None = None


def answer(prefix: str, frame: FrameType | None, started: float) -> None:
    """Scan if the parent has requested it, and write the result to the request file.

    Only exceptions of the program's signal handlers are raised. ``started``: CPU seconds of the thread when the handler
    was called.
    """
    handlers = _handlers()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        # Other threads may still receive signals, and the handlers then run here.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        _answer(prefix, frame, started)
    except Exception as error:
        # A failure of ours must not reach the program, which may be at any point.
        if any(id(at.f_code) in handlers for at, _ in walk_tb(error.__traceback__)):
            raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _handlers() -> set[int]:
    """Return the addresses of the code of all signal handlers."""
    found = set()
    for number in _SIGNALS:
        one = signal.getsignal(number)
        one = one.func if isinstance(one, partial) else one
        if callable(one):
            is_function = isinstance(one, FunctionType | MethodType)
            function = one if is_function else type(one).__call__
            found.add(id(getattr(function, "__code__", None)))
    return found


def _answer(prefix: str, frame: FrameType | None, started: float) -> None:
    global _scans
    fd = os.open(f"{prefix}-{os.getpid()}{SUFFIX}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        if _scans is None or _scans.pid != os.getpid():
            _scans = WorkerScans()
        found = {**_scans.scan(frame), "seconds": thread_time() - started}
        os.write(fd, json.dumps(found).encode() + b"\n")
    finally:
        os.close(fd)


def install(prefix: str) -> None:
    """Answer the parent's requests in a forked child, unless the program uses SIGURG."""
    exec(_INSTALL, {"prefix": prefix})


class Offer:
    """An entry in the configuration of `multiprocessing`. Spawned children execute ``_INSTALL`` to unpickle it."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_INSTALL, {"prefix": self._prefix})

    def __deepcopy__(self, _: object) -> Offer:
        return self

    def make(self, *, withdraw: bool = False) -> None:
        """Add or withdraw the entry."""
        # Loaded here even if the program has not done so yet, because it may start children right after that.
        from multiprocessing.process import current_process

        known: dict[str, Any] = vars(current_process())["_config"]
        if not withdraw:
            known["_leakline"] = self
        elif known.get("_leakline") is self:
            del known["_leakline"]

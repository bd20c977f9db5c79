"""Our daemon threads: how they end safely at interpreter exit, and how they yield the GIL while they work.

Up to Python 3.13, a thread that requests the GIL while the interpreter shuts down is terminated on
the spot. If that happens below C++ frames, it aborts the process ("terminate called without an
active exception"): torch releases the GIL while it frees a tensor, and the garbage collector frees
the program's objects on whichever thread triggers it, including ours. `end_all` therefore switches
automatic garbage collection off.

No thread is forced to exit: a thread that ended in the middle of an import would keep the import
lock, and the program would then block forever at its next import or when it prints a traceback.
`end_all` therefore also waits for threads that are importing a module.

Our threads avoid delaying the program by working in pieces of one millisecond with a rest after
each. A thread that requests the GIL waits up to 5 ms before a computing thread releases it. A
thread that rests after a millisecond never causes such a wait, and a program that releases the GIL
many times within a few milliseconds waits for only one piece, not at each release. Rests delay our
threads but not the program. Some pieces cannot be interrupted, so a longer piece is followed by a
longer rest. Rests are shortened only while data is pending that a kill would lose; see `late`.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

# Time limit for a thread that waits for a server or a disk: it does not hold the GIL, so a short
# join is enough.
WAITING_SECONDS: Final = 0.1
# Time limit for a computing thread, which may be about to release the objects that it has examined.
COMPUTING_SECONDS: Final = 0.3
# Time limit for a garbage collection that one of our threads has started; if the program had
# started it, the program would have had to wait as well.
COLLECTING_SECONDS: Final = 10.0
# Shared time limit for all imports in progress on our threads.
IMPORTING_SECONDS: Final = 10.0
_LOOK_AGAIN_SECONDS: Final = 0.01


class OurThread(threading.Thread):
    """A daemon thread named ``leakline-<name>``. ``waits`` means that the thread may block on a server or a disk."""

    def __init__(
        self,
        name: str,
        target: Callable[..., object],
        *arguments: Any,
        waits: bool = False,
    ) -> None:
        super().__init__(name=f"leakline-{name}", target=target, args=arguments, daemon=True)
        self.waits = waits


def end_all() -> None:
    """Give our running threads a moment to finish, and keep them from freeing the program's objects afterwards."""
    me = threading.current_thread()
    left = [t for t in threading.enumerate() if isinstance(t, OurThread) and t is not me]
    if not left:
        return
    # This stops only automatic collections: at exit, the interpreter still runs a collection on its
    # own thread.
    gc.disable()
    began = time.monotonic()
    for thread in left:
        seconds = WAITING_SECONDS if thread.waits else COMPUTING_SECONDS
        thread.join(max(0.0, began + seconds - time.monotonic()))
    while time.monotonic() < began + IMPORTING_SECONDS and any(map(_is_importing, left)):
        time.sleep(_LOOK_AGAIN_SECONDS)
    while time.monotonic() < began + COLLECTING_SECONDS and _is_collecting_elsewhere():
        time.sleep(_LOOK_AGAIN_SECONDS)


def _is_importing(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _is_collecting_elsewhere() -> bool:
    """Return True if another thread is running a collection. In this case, `gc.collect` returns without starting
    another one.
    """
    begun: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        begun.append(phase)

    gc.callbacks.append(note)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(note)
    return not begun


# Pieces are measured in CPU time, because waiting for the GIL is neither work nor rest.
PIECE_SECONDS: Final = 0.001
REST_SECONDS: Final = 0.01
LONGEST_REST_SECONDS: Final = 0.02
RESTS_PER_PIECE: Final = 10

_local: Final = threading.local()


def begin(hurry: threading.Event, longest_rest: float = LONGEST_REST_SECONDS) -> None:
    """Make `breathe` rest on this thread until ``hurry`` is set, which means that another thread is
    waiting for this thread.
    """
    _local.hurry, _local.longest_rest, _local.since = hurry, longest_rest, time.thread_time()


def rested(seconds: float) -> None:
    """Start a new piece of work if this thread has just waited for longer than a rest.

    A shorter wait may only have been a wait for the GIL, so it does not count as a rest.
    """
    if seconds > REST_SECONDS:
        _local.since = time.thread_time()


def late(is_late: bool) -> None:
    """Set whether this thread's work is overdue. While the work is overdue, each rest is no longer than the work before
    it.
    """
    _local.late = is_late


def breathe() -> None:
    """Rest if this is one of our threads and it has worked for a full piece."""
    hurry = getattr(_local, "hurry", None)
    if hurry is None:
        return
    worked = time.thread_time() - _local.since
    if worked > PIECE_SECONDS:
        rest = min(_local.longest_rest, max(REST_SECONDS, RESTS_PER_PIECE * worked))
        hurry.wait(min(rest, worked) if getattr(_local, "late", False) else rest)
        _local.since = time.thread_time()


def hurried() -> bool:
    """Return True if another thread is waiting for this thread to finish."""
    hurry = getattr(_local, "hurry", None)
    return hurry is not None and hurry.is_set()

"""Threads of ours, which do nothing of the program's once it ends.

Up to Python 3.13 a thread that wants the interpreter while that ends is ended where it stands. Below C++ this aborts
the process ("terminate called without an active exception"): torch lets go of the interpreter while it frees a tensor,
and what the collector finds of the program's is freed on whichever thread it comes by, also on one of ours. So nothing
is collected any more by then.

Nobody is made to leave: a thread that ends in the middle of an import takes the lock of imports with it, and the
program waits for that for ever, at its next import or where it prints a traceback. So one that imports is waited for.

How our own threads work without holding the program up: in pieces of a millisecond, with a rest after each.

A thread that wants the interpreter back waits up to 5 ms before one that computes lets go of it. One that rests by
itself is never waited for so long; and where the program lets go of the interpreter many times in a few milliseconds,
it meets one piece and not one each time. A rest costs our thread time and the program nothing. Some pieces cannot be
stopped in the middle: a longer one has the longer rest. Only what would be lost by a kill goes before that: see `late`.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

# One that stands still for a server or a disk wants nothing of the interpreter meanwhile, so nobody waits for it.
WAITING_SECONDS: Final = 0.1
# One that computes may be about to drop what it looked at.
COMPUTING_SECONDS: Final = 0.3
# A collection that one has begun: the program would have waited for it, too.
COLLECTING_SECONDS: Final = 10.0
# All imports that one is in.
IMPORTING_SECONDS: Final = 10.0
_LOOK_AGAIN_SECONDS: Final = 0.01


class OurThread(threading.Thread):
    """A daemon named ``leakline-<name>``. ``waits``: it may stand still for a server or a disk."""

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
    """What is still at work when the program ends gets a moment, and frees nothing of the program's after it."""
    me = threading.current_thread()
    left = [t for t in threading.enumerate() if isinstance(t, OurThread) and t is not me]
    if not left:
        return
    # Of itself; the interpreter collects all the same when it ends, on its own thread.
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
    """Return True if a thread is in the middle of an import."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _is_collecting_elsewhere() -> bool:
    """Only then is there no collection of the youngest where one is asked for."""
    begun: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        begun.append(phase)

    gc.callbacks.append(note)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(note)
    return not begun


# CPU time: what a thread waits for the interpreter is no work, and no rest either.
PIECE_SECONDS: Final = 0.001
REST_SECONDS: Final = 0.01
LONGEST_REST_SECONDS: Final = 0.02
RESTS_PER_PIECE: Final = 10

_local: Final = threading.local()


def begin(hurry: threading.Event, longest_rest: float = LONGEST_REST_SECONDS) -> None:
    """From here on `breathe` rests on this thread, until ``hurry`` is set: then somebody waits for it."""
    _local.hurry, _local.longest_rest, _local.since = hurry, longest_rest, time.thread_time()


def rested(seconds: float) -> None:
    """This thread has waited for something else; for less than a rest, it may have been the interpreter."""
    if seconds > REST_SECONDS:
        _local.since = time.thread_time()


def late(is_late: bool) -> None:
    """While what this thread has in its hands should be done already, it rests no longer than it works."""
    _local.late = is_late


def breathe() -> None:
    """Rest if this thread is one of ours and has worked for a piece."""
    hurry = getattr(_local, "hurry", None)
    if hurry is None:
        return
    worked = time.thread_time() - _local.since
    if worked > PIECE_SECONDS:
        rest = min(_local.longest_rest, max(REST_SECONDS, RESTS_PER_PIECE * worked))
        hurry.wait(min(rest, worked) if getattr(_local, "late", False) else rest)
        _local.since = time.thread_time()


def hurried() -> bool:
    """Does somebody wait for the end of this thread?"""
    hurry = getattr(_local, "hurry", None)
    return hurry is not None and hurry.is_set()

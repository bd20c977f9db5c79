"""How our own threads work without holding the program up: in pieces of a millisecond, with a rest after each.

A thread that wants the interpreter back waits up to 5 ms before one that computes lets go of it. One that rests by
itself is never waited for so long; and where the program lets go of the interpreter many times in a few milliseconds,
it meets one piece and not one each time. A rest costs our thread time and the program nothing. Some pieces cannot be
stopped in the middle: a longer one has the longer rest. Only what would be lost by a kill goes before that: see `late`.
"""

from __future__ import annotations

import threading
import time
from typing import Final

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

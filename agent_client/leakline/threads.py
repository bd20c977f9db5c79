"""Threads of ours, which are gone before the interpreter is.

Up to Python 3.13 a thread that wants the interpreter while that ends is ended where it stands. Below C++ this aborts
the process ("terminate called without an active exception"): torch lets go of the interpreter while it frees a tensor,
and what the collector finds of the program's is freed on whichever thread it comes by, also on one of ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

# One that stands still for a server or a disk wants nothing of the interpreter meanwhile, so nobody waits for it.
WAITING_SECONDS: Final = 0.1
# One that computes leaves at its next instruction: after a collection, which the whole program waits for anyway.
COMPUTING_SECONDS: Final = 1.0


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
    """What is still at work when the program ends leaves now, whatever it has in its hands."""
    me = threading.current_thread()
    left = [t for t in threading.enumerate() if isinstance(t, OurThread) and t is not me]
    for thread in left:
        _raise_in(thread)
    began = time.monotonic()
    for thread in left:
        seconds = WAITING_SECONDS if thread.waits else COMPUTING_SECONDS
        thread.join(max(0.0, began + seconds - time.monotonic()))


def _raise_in(thread: threading.Thread) -> None:
    """SystemExit, at its next instruction: no guard of ours holds it, and Python says nothing of it."""
    # Lazily: nearly every program ends without one of them.
    import ctypes

    raised = ctypes.pythonapi.PyThreadState_SetAsyncExc
    raised(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))

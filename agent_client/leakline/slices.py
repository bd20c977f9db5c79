"""Work beside the training thread, in slices: one piece of work at a time, on a thread that ends with it.

Each slice holds the interpreter lock for milliseconds, and between two of them the program runs. What the work finds is
fetched by the training thread at one of its own snapshots, so that nothing of ours is handed over from two threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .guard import Guard

# The interpreter lets a waiting thread in after 5 ms; a slice shall be shorter than that.
SLICE_SECONDS: Final = 0.002
# Of the time between two slices the program has at least this.
BREAK_SECONDS: Final = 0.002


class SlicedWork(Protocol):
    """``step`` works for about so many seconds and says whether all is done; then ``result`` gives what was found."""

    def step(self, seconds: float) -> bool: ...

    def result(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a piece of work gave (None when it failed), its CPU seconds and its longest slice in seconds."""

    name: str
    result: Any
    seconds: float
    longest_slice: float


class SliceThread:
    """``offer`` and ``take`` belong to the training thread. ``finished`` makes of a result what may be kept."""

    def __init__(self, finished: Callable[[str, Any], Any] = lambda name, result: result) -> None:
        self._finished = finished
        self._guard = Guard("a look in slices")
        self._thread: threading.Thread | None = None
        self._work: SlicedWork | None = None
        self._outcome: Outcome | None = None
        self._stopping = threading.Event()

    @property
    def is_free(self) -> bool:
        """Nothing is under way, and nothing waits to be fetched."""
        return self._thread is None

    @property
    def bytes(self) -> int:
        """Memory that the work under way holds for itself, as far as it tells."""
        return int(getattr(self._work, "bytes", 0))

    def offer(self, name: str, work: SlicedWork) -> bool:
        """Begin this piece of work; False while another is under way."""
        if not self.is_free or self._stopping.is_set():
            return False
        self._work = work
        self._thread = threading.Thread(
            target=self._run, args=(name, work), name=f"leakline-{name}", daemon=True
        )
        self._thread.start()
        return True

    def take(self, timeout_seconds: float = 0.0) -> Outcome | None:
        """The outcome of the work that was under way, once; None while there is none."""
        if self._thread is None:
            return None
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return None
        self._thread = None
        outcome, self._outcome = self._outcome, None
        return outcome

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """Give up what is under way."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _run(self, name: str, work: SlicedWork) -> None:
        result, longest = None, 0.0
        with self._guard:
            done = False
            while not (done or self._stopping.is_set()):
                started = time.thread_time()
                done = work.step(SLICE_SECONDS)
                longest = max(longest, time.thread_time() - started)
                # Sleeping lets the program in; without it we would ask for the lock again at once.
                time.sleep(BREAK_SECONDS)
            if done:
                result = self._finished(name, work.result())
        self._work = None
        del work
        self._outcome = Outcome(name, result, time.thread_time(), longest)

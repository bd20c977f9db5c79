"""Runs sliced work in the background: one task at a time, on a thread that ends with the task.

Each slice holds the GIL for milliseconds, and the program runs between slices. The training thread fetches the result
at one of its own snapshots. No slice runs while the training thread measures, because a slice's temporary references,
especially to classes, would be counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread

# The interpreter switches to a waiting thread after 5 ms; a slice must be shorter than that.
SLICE_SECONDS: Final = 0.002
# Minimum time for which the program runs between two slices. With longer breaks, the heap would change more during a
# scan.
BREAK_SECONDS: Final = 0.0005
# CPU seconds after which work is abandoned: a program may create objects faster than a scan visits
# them.
GIVEN_UP_SECONDS: Final = 5.0


class SlicedWork(Protocol):
    """Work that is done in steps.

    ``step`` works for about ``seconds`` and returns True when all work is done; ``result`` then
    returns the findings.
    """

    def step(self, seconds: float) -> bool: ...

    def result(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished task's result and times. ``result`` is None if the task failed.

    ``seconds`` is the CPU time of all slices, ``longest_slice`` the CPU time of the longest slice, and ``wall_seconds``
    the wall time from the first slice to the last.
    """

    name: str
    result: Any
    seconds: float
    longest_slice: float
    wall_seconds: float


class SliceThread:
    """A runner for sliced work. Its methods are called on the training thread; only the steps run on our own thread.

    ``with scan.turn: ...`` pauses the slices. ``clock`` returns the calling thread's CPU seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        # Reentrant, because a signal handler may end the run in the middle of a measurement.
        self.turn = threading.RLock()
        self._guard = Guard("a sliced heap scan")
        self._thread: OurThread | None = None
        # Work that is in progress, or finished and not yet fetched.
        self.work: SlicedWork | None = None
        self._name = ""
        self._done, self._seconds, self._longest, self._wall = False, 0.0, 0.0, 0.0
        self._stopping = threading.Event()

    @property
    def is_free(self) -> bool:
        """True if no work is in progress and no outcome is waiting."""
        return self.work is None

    @property
    def bytes(self) -> int:
        """Bytes of memory used by the work in progress itself; 0 if the work does not report its memory."""
        return int(getattr(self.work, "bytes", 0))

    def offer(self, name: str, work: SlicedWork) -> bool:
        """Start this work and return True, or return False if other work is unfinished or not fetched yet.

        Raises RuntimeError if no thread can be started.
        """
        if not self.is_free or self._stopping.is_set():
            return False
        self._done = False
        thread = OurThread(name, self._run, work)
        # Start the thread first: if that fails, no work is recorded as being in progress.
        thread.start()
        self._name, self.work, self._thread = name, work, thread
        return True

    def wait(self, timeout_seconds: float) -> None:
        """Wait until no work is in progress. The caller must not hold `turn`, which would block the work."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def take(self) -> Outcome | None:
        """Return the outcome of finished work once, otherwise None."""
        if self._thread is None or self._thread.is_alive():
            return None
        work, self.work, self._thread = self.work, None, None
        result = None
        with self._guard:
            if work is not None and self._done:
                result = work.result()
        return Outcome(self._name, result, self._seconds, self._longest, self._wall)

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """Abandon the work in progress."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _run(self, work: SlicedWork) -> None:
        longest, began = 0.0, time.perf_counter()
        with self._guard:
            done = False
            while not (done or self._stopping.is_set() or self._clock() > GIVEN_UP_SECONDS):
                with self.turn:
                    started = self._clock()
                    done = work.step(SLICE_SECONDS)
                    longest = max(longest, self._clock() - started)
                # Sleeping lets the program run: otherwise this thread would request the GIL again
                # immediately.
                time.sleep(BREAK_SECONDS)
            self._done = done
        self._seconds, self._longest = self._clock(), longest
        self._wall = time.perf_counter() - began

"""Work in the background, in slices: one piece of work at a time, on a thread that ends with it.

Each slice holds the interpreter lock for milliseconds, and between two of them the program runs. The result is made by
the training thread, at one of its own snapshots, and no slice runs while that thread measures: what a slice refers to
for a moment, classes above all, would be counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread

# The interpreter lets a waiting thread in after 5 ms; a slice shall be shorter than that.
SLICE_SECONDS: Final = 0.002
# Of the time between two slices the program has at least this; a look that takes long sees a heap that changes.
BREAK_SECONDS: Final = 0.0005
# CPU seconds after which work is given up: a program that makes objects faster than they are looked at.
GIVEN_UP_SECONDS: Final = 5.0


class SlicedWork(Protocol):
    """``step`` works for about so many seconds and says whether all is done; then ``result`` gives what was found."""

    def step(self, seconds: float) -> bool: ...

    def result(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a piece of work gave (None when it failed), CPU seconds of its slices, and the longest of them.

    ``wall_seconds`` is how long the program ran on meanwhile.
    """

    name: str
    result: Any
    seconds: float
    longest_slice: float
    wall_seconds: float


class SliceThread:
    """Everything but the steps belongs to the training thread. ``turn`` keeps them out: ``with scan.turn: ...``.

    ``clock`` gives CPU seconds of the calling thread.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        # Reentrant: a signal handler may end the run in the middle of measuring.
        self.turn = threading.RLock()
        self._guard = Guard("a look in slices")
        self._thread: OurThread | None = None
        # Under way, or done and not fetched yet.
        self.work: SlicedWork | None = None
        self._name = ""
        self._done, self._seconds, self._longest, self._wall = False, 0.0, 0.0, 0.0
        self._stopping = threading.Event()

    @property
    def is_free(self) -> bool:
        """Nothing is under way, and nothing waits to be fetched."""
        return self.work is None

    @property
    def bytes(self) -> int:
        """Memory that the work under way holds for itself, as far as it reports."""
        return int(getattr(self.work, "bytes", 0))

    def offer(self, name: str, work: SlicedWork) -> bool:
        """Begin this piece of work; False while another is under way. Raises RuntimeError where no thread starts."""
        if not self.is_free or self._stopping.is_set():
            return False
        self._done = False
        thread = OurThread(name, self._run, work)
        # First: one that cannot start has nothing under way, and nobody can wait for it.
        thread.start()
        self._name, self.work, self._thread = name, work, thread
        return True

    def wait(self, timeout_seconds: float) -> None:
        """Until nothing is under way; without the turn, or it would be in vain."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def take(self) -> Outcome | None:
        """The outcome of the work that was under way, once; None while there is none."""
        if self._thread is None or self._thread.is_alive():
            return None
        work, self.work, self._thread = self.work, None, None
        result = None
        with self._guard:
            if work is not None and self._done:
                result = work.result()
        return Outcome(self._name, result, self._seconds, self._longest, self._wall)

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """Give up what is under way."""
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
                # Sleeping lets the program in; without it we would ask for the lock again at once.
                time.sleep(BREAK_SECONDS)
            self._done = done
        self._seconds, self._longest = self._clock(), longest
        self._wall = time.perf_counter() - began

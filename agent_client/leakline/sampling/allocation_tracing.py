"""Traces allocations for a short time once a leak is suspected, to find lines that allocate without freeing.

The tracing is optional (setting ``allocations``). It slows down every allocation, so it runs for at most one
generation, and stops earlier when its time is up or the trace itself holds too much memory. A dedicated thread checks
these limits during the tracing: a generation without phases may last an hour, and the trace of one second of
allocations may exceed any memory limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread
from ..snapshot import Snapshot
from ..text_format import format_bytes

LINES_REPORTED: Final = 10
TRACED_SECONDS: Final = 60.0
# Memory limit of the trace itself, which corresponds to some 90,000 blocks. Processing these blocks
# takes 0.3 CPU seconds, and the program is stopped for half of that time. With 68 MiB, processing
# took 5.7 seconds on a busy machine.
TRACER_BYTES: Final = 16 * 2**20
LOOK_SECONDS: Final = 0.05
NAME: Final = "allocations"
_SUSPECTED: Final = ("suspected", "confirmed")

Note = Callable[[str, str, Mapping[str, Any]], None]


class Allocations:
    """A trace of allocations, at most once per run, started and ended by snapshots.

    ``status`` returns the newest verdict's status.
    """

    def __init__(
        self,
        note: Note,
        status: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        tracer_bytes: int = TRACER_BYTES,
        thread_seconds: dict[int, float] | None = None,
    ) -> None:
        self._note, self._status, self._clock = note, status, clock
        self._tracer_bytes = tracer_bytes
        self._thread_seconds = {} if thread_seconds is None else thread_seconds
        self._guard = Guard("tracing allocations")
        self._may_begin, self._is_tracing = True, False
        # Contains the start time until either the training thread or our thread pops it and reports
        # the trace. Unlike a lock, a list never makes a signal handler or a forked child wait.
        self._began: list[float] = []

    def see(self, snapshot: Snapshot) -> None:
        if snapshot.kind == "finish":
            self.stop()
        elif snapshot.kind == "generation_end":
            if self._is_tracing:
                self._tell()
            elif self._may_begin and self._status() in _SUSPECTED:
                self._begin()

    def stop(self) -> None:
        """Stop tracing for the rest of the run, even in a forked child, where our thread does not exist."""
        self._may_begin = False
        self._began.clear()
        self._end()

    def _begin(self) -> None:
        import tracemalloc

        self._may_begin = False
        # If the program already uses tracemalloc, ending our trace would end the program's own.
        if tracemalloc.is_tracing():
            return
        began = self._clock()
        self._began.append(began)
        # Start the thread first: without the thread, nothing would limit the tracing.
        try:
            OurThread("allocations", self._look_after, began).start()
        except RuntimeError:
            # A thread may be available at the next generation end.
            self._began.clear()
            self._may_begin = True
            return
        self._is_tracing = True
        tracemalloc.start(1)

    def _look_after(self, began: float) -> None:
        while self._began:
            time.sleep(LOOK_SECONDS)
            if self._is_enough(began):
                with self._guard:
                    self._tell()
        self._thread_seconds[threading.get_ident()] = time.thread_time()

    def _is_enough(self, began: float) -> bool:
        import tracemalloc

        over = self._clock() - began > TRACED_SECONDS
        return over or tracemalloc.get_tracemalloc_memory() > self._tracer_bytes

    def _tell(self) -> None:
        import tracemalloc

        try:
            seconds = self._clock() - self._began.pop()
        except IndexError:
            # Another thread has already reported or stopped the trace.
            return
        try:
            traced = tracemalloc.take_snapshot()
        finally:
            self._end()
        lines = list(_kept_lines(traced))[:LINES_REPORTED]
        text = "; ".join(f"{line} {format_bytes(size)} ({count:,})" for line, size, count in lines)
        data = {"text": text, "seconds": round(seconds, 3), "lines": [list(each) for each in lines]}
        self._note("mark", NAME, data)

    def _end(self) -> None:
        import tracemalloc

        if self._is_tracing:
            self._is_tracing = False
            tracemalloc.stop()


def _kept_lines(traced: Any) -> Iterator[tuple[str, int, int]]:
    """Yield (file:line, bytes, blocks) of memory allocated during the trace and not freed, largest first."""
    ours = __file__.rsplit("/", 2)[0]
    for each in traced.statistics("lineno"):
        frame = each.traceback[0]
        if not frame.filename.startswith((ours, "<")):
            yield f"{_short(frame.filename)}:{frame.lineno}", each.size, each.count


def _short(path: str) -> str:
    """Shorten a path to its last two parts, ``training/trainer.py``, because other folders may identify the machine."""
    return "/".join(path.replace("\\", "/").rsplit("/", 2)[-2:])

"""What Python's cyclic collector did. Read, never asked to run: a forced collection hides cyclic leaks.

The hook runs inside the collector, on whatever thread it struck, also while the interpreter ends. So it keeps
numbers only, never the dictionary it is given, and calls nothing of ours but one short reading of the
kernel, which takes three microseconds.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import deque
from collections.abc import Callable
from math import inf
from threading import get_ident
from time import monotonic, perf_counter, thread_time, time
from typing import Any, Final, NamedTuple

from leakline.snapshot import Number

FULL: Final = 2
# Threads whose time in collections is kept apart.
THREADS_LIMIT: Final = 1_000
# Full collections remembered between two calls of `take`: the newest. The totals count them all.
KEPT: Final = 8
# Told one by one up to here, then only one that took twice as long, or freed twice as much, as any told before it.
TOLD_LIMIT: Final = 64
# Counting the interpreter's blocks is a walk over all of its pools: 70 microseconds in a process with torch, over a
# millisecond with five million objects.
BLOCKS_EVERY_SECONDS: Final = 1.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Collection(NamedTuple):
    """One full collection: when it ended (Unix seconds), how long it took, how many objects it freed.

    ``resident_before`` and ``resident_after``: bytes of the process in memory; None where the kernel does not say.
    """

    time: float
    seconds: float
    generation: int
    freed: int
    uncollectable: int
    resident_before: int | None = None
    resident_after: int | None = None


def resident_bytes() -> int | None:
    """Of this process, in ten microseconds. Opened each time: a program may close all descriptors, or fork."""
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(statm, 128).split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(statm)


class AllocatedBlocks:
    """How many blocks the interpreter has handed out; one count serves all who ask within a second. Any thread may.

    ``clock`` gives seconds that only rise, ``count`` counts.
    """

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        count: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        self._clock, self._count = clock, count
        # When it was counted, and the count; replaced as one.
        self._last = (-inf, 0)
        self._told_at: float | None = None

    def recent(self, age_seconds: float = BLOCKS_EVERY_SECONDS) -> int:
        """The last count, or a new one when that is so old: enough to tell what a look at all objects would cost."""
        now, last = self._clock(), self._last
        if now - last[0] >= age_seconds:
            last = self._last = (now, self._count())
        return last[1]

    def untold(self) -> int | None:
        """A recent count that was not told before; None within a second of the last. For one teller."""
        count, counted_at = self.recent(), self._last[0]
        if counted_at == self._told_at:
            return None
        self._told_at = counted_at
        return count


class CollectorStatistics:
    """Running totals of the collector. The interpreter counts collections itself; we add only their time."""

    def __init__(self, blocks: AllocatedBlocks | None = None) -> None:
        self._blocks = blocks or AllocatedBlocks()
        self._started_at: float | None = None
        self._cpu_started_at = 0.0
        self._resident: int | None = None
        self._seconds = 0.0
        # By thread.
        self._cpu_seconds: dict[int, float] = {}
        self._hooked = False
        self._full: deque[Collection] = deque(maxlen=KEPT)
        self._told = 0
        self._longest, self._most = 0.0, 0

    def start(self) -> None:
        """Begin to time collections. Calling it twice is once."""
        if not self._hooked:
            gc.callbacks.append(self._on_collection)
            self._hooked = True

    def stop(self) -> None:
        """Take the hook away again; the totals stay readable."""
        if self._hooked:
            gc.callbacks.remove(self._on_collection)
            self._hooked = False

    def cpu_seconds(self) -> float:
        """What collections have cost the calling thread: they come when it makes objects, whoever made the many."""
        return self._cpu_seconds.get(get_ident(), 0.0)

    def read(self) -> dict[str, Number]:
        """``python.collections``, ``.collections_full``, ``.garbage_freed``, ``.collection_seconds``;
        ``.collector_enabled`` (0 or 1), and ``.collector_pending``: objects made and not freed since it last ran;
        ``.blocks`` once a second.
        """
        generations = gc.get_stats()
        samples: dict[str, Number] = {
            "python.collections": sum(g["collections"] for g in generations),
            "python.collections_full": generations[-1]["collections"],
            "python.garbage_freed": sum(g["collected"] for g in generations),
            "python.collection_seconds": self._seconds,
            "python.collector_enabled": int(gc.isenabled()),
            "python.collector_pending": gc.get_count()[0],
        }
        blocks = self._blocks.untold()
        if blocks is not None:
            samples["python.blocks"] = blocks
        return samples

    def take(self) -> list[Collection]:
        """Full collections since the last call that are worth an event, oldest first."""
        taken: list[Collection] = []
        # One by one: a collection may come between any two steps.
        while self._full:
            collection = self._full.popleft()
            if self._is_worth_telling(collection):
                taken.append(collection)
        return taken

    def _is_worth_telling(self, one: Collection) -> bool:
        outdone = one.seconds >= 2 * self._longest or one.freed > 2 * self._most
        if self._told >= TOLD_LIMIT and not outdone:
            return False
        self._told += 1
        self._longest, self._most = max(self._longest, one.seconds), max(self._most, one.freed)
        return True

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            # Before the clock: it is ours, not the collector's.
            self._resident = resident_bytes() if info["generation"] >= FULL else None
            self._started_at, self._cpu_started_at = perf_counter(), thread_time()
        elif self._started_at is not None:
            seconds = perf_counter() - self._started_at
            self._seconds += seconds
            self._started_at = None
            thread = get_ident()
            if thread in self._cpu_seconds or len(self._cpu_seconds) < THREADS_LIMIT:
                cpu = thread_time() - self._cpu_started_at
                self._cpu_seconds[thread] = self._cpu_seconds.get(thread, 0.0) + cpu
            if info["generation"] >= FULL:
                self._full.append(
                    Collection(
                        time(), seconds, FULL, info["collected"], info["uncollectable"],
                        self._resident, resident_bytes(),
                    )
                )  # fmt: skip

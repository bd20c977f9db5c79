"""Cyclic garbage and the work of Python's garbage collector, which is observed but never started.

`GarbageProbe` (native module only) estimates the garbage that waits for the collector, by type. Objects that refer only
to each other stay in memory until the collector's next full run, or forever if the collector is switched off. Garbage
is neither live nor free memory kept by the allocator, and no holder leads to it, so it is a separate metric. Within the
time limit, the probe visits the newest objects. It misses cycles that reach into older objects, but never counts a live
object.

`CollectorStatistics` records the collector's work. No collection is ever forced, because that would hide cyclic leaks.
The hook runs inside the collector, on the thread that triggered the collection, even at interpreter exit. It therefore
keeps only numbers, never the dictionary that it receives, and calls none of our code except one short reading from the
kernel.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from threading import get_ident
from time import monotonic, perf_counter, thread_time, time
from typing import Any, Final, NamedTuple

from leakline.probes.heap.arrays import array_types
from leakline.probes.native_module import native
from leakline.probes.references.class_names import type_name
from leakline.snapshot import CYCLIC_GARBAGE, Holder, Number

TYPES_REPORTED: Final = 16
# Every program has some garbage waiting, so its types are not named if there are fewer objects than this.
OBJECTS_REPORTED: Final = 1_000
# This speed is assumed until the first scan has measured it; values from 75 to 380 have been observed.
NANOSECONDS_PER_OBJECT: Final = 300.0
# A scan of fewer objects is not worth the cost of mapping our own memory.
OBJECTS_AT_LEAST: Final = 1_000
OBJECTS_AT_MOST: Final = 400_000
# A scan names the types only if it finds this many times as much garbage as any earlier scan, to avoid repetition.
_MORE: Final = 1.1
# Minimum share of the objects for a type to be named: rarer types do not show where the garbage comes from.
_PART: Final = 0.02
_FORGET: Final = 0.8
# An abandoned scan reports nothing, so scans are planned to end before the time limit.
_AIM: Final = 0.8
# After an abandoned scan, the assumed cost per object is multiplied by this factor.
_MORE_EXPENSIVE: Final = 1.5
_TESTED: Final = 8
_TEST_OBJECTS: Final = 512
_TEST_NANOSECONDS: Final = 50_000_000


@dataclass(frozen=True, slots=True)
class GarbageResult:
    """The result of one scan.

    ``types`` contains (name, number of objects, bytes that the objects keep), most objects first. ``is_whole`` is True
    if the scan visited all objects tracked by the collector, not only the newest.
    """

    looked_at: int
    is_whole: bool
    objects: int
    bytes: int
    seconds: float
    types: tuple[tuple[str, int, int], ...]

    def samples(self) -> dict[str, Number]:
        """Return ``python.garbage_*``: garbage objects and bytes, and the visited part of the heap.

        ``.garbage_looked_at`` is the number of objects visited; ``.garbage_is_whole`` is 1 if the scan visited all
        tracked objects, otherwise 0.
        """
        return {
            "python.garbage_objects": self.objects,
            "python.garbage_bytes": self.bytes,
            "python.garbage_looked_at": self.looked_at,
            "python.garbage_is_whole": int(self.is_whole),
        }

    def holders(self, sequence: int) -> tuple[Holder, ...]:
        """Return a holder with the path ``CYCLIC_GARBAGE`` for each of the most frequent types."""
        return tuple(
            Holder(sequence, name, CYCLIC_GARBAGE, count, size // count)
            for name, count, size in self.types
        )


class GarbageProbe:
    """A scanner for cyclic garbage that adapts the number of visited objects to its measured speed.

    ``find`` returns the native module; tests replace it.
    """

    def __init__(self, find: Callable[[], Any | None] = native) -> None:
        self._find = find
        self._trusted: bool | None = None
        self._nanoseconds_per_object = NANOSECONDS_PER_OBJECT
        self._most = 0

    def read(self, limit_seconds: float) -> GarbageResult | None:
        """Scan for at most about ``limit_seconds`` of CPU time.

        The result is None if the scan does not fit into this time or the native module is not usable. Its ``types`` are
        filled only if the scan finds clearly more garbage than any earlier scan.
        """
        module = self._find()
        if module is None or self._trusted is False:
            return None
        if self._trusted is None:
            self._trusted = proves_itself(module)
            return self.read(limit_seconds)
        nanoseconds = limit_seconds * 1e9
        fitting = int(_AIM * nanoseconds / self._nanoseconds_per_object)
        if fitting < OBJECTS_AT_LEAST:
            # Lower the estimate, so that one slow scan does not prevent all later scans.
            self._nanoseconds_per_object *= _FORGET
            return None
        arrays = next(iter(array_types()), None)
        found = module.garbage(
            min(fitting, OBJECTS_AT_MOST), int(nanoseconds), TYPES_REPORTED, arrays
        )
        if found is None:
            self._nanoseconds_per_object *= _MORE_EXPENSIVE
            return None
        looked_at, is_whole, objects, size, taken, rows = found
        self._nanoseconds_per_object = (
            self._nanoseconds_per_object + taken / max(1, looked_at)
        ) / 2
        reports = objects >= max(OBJECTS_REPORTED, self._most * _MORE)
        if reports:
            self._most = objects
        if not reports:
            rows = ()
        types = tuple(
            (type_name(cls), count, held) for cls, count, held in rows if count >= _PART * objects
        )
        return GarbageResult(looked_at, is_whole, objects, size, taken / 1e9, types)


class _Cycle:
    """An object that refers to itself."""

    __slots__ = ("__weakref__", "me")

    def __init__(self) -> None:
        self.me: _Cycle | None = self


def proves_itself(module: Any) -> bool:
    """Plant objects, and return True if the module reports them as garbage only after their release.

    A collection may free the planted objects during the test, so the test has three attempts.
    """
    return any(_finds_what_is_planted(module) for _ in range(3))


def _finds_what_is_planted(module: Any) -> bool:
    planted = [_Cycle() for _ in range(_TESTED)]
    ways_back = [weakref.ref(one) for one in planted]
    while_held = _planted_found(module)
    planted.clear()
    afterwards = _planted_found(module)
    for way_back in ways_back:
        one = way_back()
        if one is not None:
            one.me = None
    return (while_held, afterwards) == (0, _TESTED)


def _planted_found(module: Any) -> int:
    found = module.garbage(_TEST_OBJECTS, _TEST_NANOSECONDS, _TEST_OBJECTS)
    rows = () if found is None else found[5]
    return sum(count for cls, count, _ in rows if cls is _Cycle)


FULL: Final = 2
# Limit on the threads whose CPU time in collections is stored.
THREADS_LIMIT: Final = 1_000
# Number of the newest full collections kept between two calls of `take`. The totals include all collections.
KEPT: Final = 8
# After this many reports, a collection is reported only if it took twice as long as any reported collection, or freed
# twice as many objects.
REPORTED_LIMIT: Final = 64
# Counting the interpreter's blocks requires a walk over all of its pools. This takes 70 microseconds in a process with
# torch, and over a millisecond with five million objects.
BLOCKS_EVERY_SECONDS: Final = 1.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Collection(NamedTuple):
    """One full collection: its end (Unix seconds), its duration, and the number of freed objects.

    ``resident_before`` and ``resident_after`` are the process's resident bytes, or None if the kernel does not report
    them.
    """

    time: float
    seconds: float
    generation: int
    freed: int
    uncollectable: int
    resident_before: int | None = None
    resident_after: int | None = None


def resident_bytes() -> int | None:
    """Return this process's resident bytes, or None if they cannot be read. A call takes ten microseconds.

    The file is opened each time, because a program may close all descriptors or fork.
    """
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
    """The number of blocks allocated by the interpreter. All callers and threads share one count per second.

    ``clock`` returns monotonic seconds, and ``count`` returns the number of blocks.
    """

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        count: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        self._clock, self._count = clock, count
        # The last count's time and value, replaced together as one object.
        self._last = (-inf, 0)
        self._reported_at: float | None = None

    def recent(self, age_seconds: float = BLOCKS_EVERY_SECONDS) -> int:
        """Return the last count, or a new count if the last count is older than ``age_seconds``.

        The count is accurate enough to estimate the cost of scanning all objects.
        """
        now, last = self._clock(), self._last
        if now - last[0] >= age_seconds:
            last = self._last = (now, self._count())
        return last[1]

    def unreported(self) -> int | None:
        """Return a recent count, or None if this method has already returned it.

        Only one caller may use this method.
        """
        count, counted_at = self.recent(), self._last[0]
        if counted_at == self._reported_at:
            return None
        self._reported_at = counted_at
        return count


class CollectorStatistics:
    """The collector's running totals. The interpreter counts the collections; only their time is measured here."""

    def __init__(self, blocks: AllocatedBlocks | None = None) -> None:
        self._blocks = blocks or AllocatedBlocks()
        self._started_at: float | None = None
        self._cpu_started_at = 0.0
        self._resident: int | None = None
        self._seconds = 0.0
        # CPU seconds spent in collections, by thread ID.
        self._cpu_seconds: dict[int, float] = {}
        self._hooked = False
        self._full: deque[Collection] = deque(maxlen=KEPT)
        self._reported = 0
        self._longest, self._most = 0.0, 0

    def start(self) -> None:
        """Start timing collections. A second call has no effect."""
        if not self._hooked:
            gc.callbacks.append(self._on_collection)
            self._hooked = True

    def stop(self) -> None:
        """Remove the hook. The totals can still be read."""
        if self._hooked:
            # The program may have removed our hook from the list.
            with suppress(ValueError):
                gc.callbacks.remove(self._on_collection)
            self._hooked = False

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all collections that ran on the calling thread.

        A collection runs on the thread that triggers it, even if other threads have created most of the objects.
        """
        return self._cpu_seconds.get(get_ident(), 0.0)

    def read(self) -> dict[str, Number]:
        """Return the totals and the current state of the collector.

        The totals are ``python.collections``, ``.collections_full``, ``.garbage_freed`` and ``.collection_seconds``.
        The state consists of ``.collector_enabled`` (0 or 1), ``.collector_pending`` (the number of objects created and
        not freed since the last collection) and, at most once a second, ``.blocks``.
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
        blocks = self._blocks.unreported()
        if blocks is not None:
            samples["python.blocks"] = blocks
        return samples

    def take(self) -> list[Collection]:
        """Return the full collections since the last call that are worth reporting, oldest first."""
        taken: list[Collection] = []
        # Remove the entries one by one, because a collection may run between any two steps.
        while self._full:
            collection = self._full.popleft()
            if self._is_worth_reporting(collection):
                taken.append(collection)
        return taken

    def _is_worth_reporting(self, one: Collection) -> bool:
        outdone = one.seconds >= 2 * self._longest or one.freed > 2 * self._most
        if self._reported >= REPORTED_LIMIT and not outdone:
            return False
        self._reported += 1
        self._longest, self._most = max(self._longest, one.seconds), max(self._most, one.freed)
        return True

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            # Read the memory before the clock starts, because the time of this reading is ours and not the collector's.
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

"""The recorder's thread moves snapshots from the queue to the outbox and takes a reading every second.

The thread never waits for the network: even if the server does not respond, a snapshot is on disk after a quarter of a
second at most. For a job that is killed for memory, the last snapshots matter most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Final

from ..runtime import threads
from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread
from ..snapshot import Batch, ProcessIdentity, Snapshot
from .batching import SNAPSHOTS_PER_RECORD, consecutive, within
from .spool_file import Outbox

QUEUE_LIMIT: Final = 1000
# Snapshots in quick succession are written together, which halves the cost of writing: the thread
# wakes up once for several snapshots, and names are written only once. If the process is killed, at most this interval
# is lost.
LINGER_SECONDS: Final = 0.25
# After this delay, writing takes precedence over pauses for the program, because a snapshot must be written within a
# second of being taken.
LATE_SECONDS: Final = 0.35


class Losses:
    """Running totals of snapshots (and events) that never reached the server, by reason."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, reason: str, number: int = 1) -> None:
        self._counts[reason] = self._counts.get(reason, 0) + number

    def totals(self) -> dict[str, int]:
        return dict(self._counts)


class Recorder:
    """A thread that writes snapshots to the outbox. Only one thread at a time may call ``put``.

    ``news`` is called after each write. ``tick`` is first called after ``tick_seconds``; it returns the seconds until
    the next call. Waiting snapshots are written before a tick. ``thread_seconds`` receives the CPU seconds of our
    thread under the thread's identifier.
    """

    def __init__(
        self,
        outbox: Outbox,
        process: ProcessIdentity,
        losses: Losses,
        news: Callable[[], None] = lambda: None,
        tick: Callable[[], float] | None = None,
        queue_limit: int = QUEUE_LIMIT,
        tick_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        thread_seconds: dict[int, float] | None = None,
    ) -> None:
        self._outbox, self._process, self._losses = outbox, process, losses
        self._thread_seconds = {} if thread_seconds is None else thread_seconds
        self._news, self._tick, self._limit, self._clock = news, tick, queue_limit, clock
        # Use SimpleQueue, because a signal handler may interrupt ``put`` and call it again.
        self._queue: SimpleQueue[Snapshot | threading.Event | None] = SimpleQueue()
        self._guard = Guard("recording")
        # Numbers of snapshots received, queued, and written or lost. Each counter is changed by one
        # thread at a time.
        self.taken = self._queued = self._recorded = 0
        self._reported_losses: dict[str, int] = {}
        self._end: Mapping[str, Any] | None = None
        self._tick_seconds = tick_seconds
        self._next_tick = clock() + tick_seconds
        self._hurry, self._done, self._closing = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self._thread = OurThread("recorder", self._loop, waits=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, snapshot: Snapshot) -> None:
        """Add a snapshot to the queue without blocking. If the queue is full, the snapshot is counted as lost."""
        self.taken += 1
        if self._queue.qsize() >= self._limit:
            self._losses.count("queue_full")
        else:
            self._queued += 1
            self._queue.put(snapshot)

    def waiting(self) -> int:
        """Return the number of snapshots in the queue or being written."""
        return self._queued - self._recorded

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all earlier snapshots are recorded.

        Return False if the time runs out or the thread could not start.
        """
        if self._thread.ident is None:
            return False
        reached = threading.Event()
        self._queue.put(reached)
        self._hurry.set()
        return reached.wait(timeout_seconds)

    def close(self, end: Mapping[str, Any], timeout_seconds: float) -> bool:
        """Record waiting snapshots and the end, and stop the thread.

        If the thread could not start, the calling thread does the work. Return False if the time runs out.
        """
        self._end = end
        self._closing.set()
        self._queue.put(None)
        self._hurry.set()
        if self._thread.ident is None:
            self._record_all()
        return self._done.wait(timeout_seconds)

    def _loop(self) -> None:
        # Keep the rests short, because the snapshots in the queue are not on disk yet.
        threads.begin(self._closing, longest_rest=threads.REST_SECONDS)
        self._record_all()

    def _record_all(self) -> None:
        closing = False
        while not closing:
            items = self._take()
            with self._guard:
                closing = None in items
                self._record([item for item in items if isinstance(item, Snapshot)])
                self._tick_if_due()
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()
            self._thread_seconds[threading.get_ident()] = time.thread_time()
        with self._guard:
            self._tell_losses()
        with self._guard:
            if self._end is not None:
                self._outbox.append_end(self._end)
        self._done.set()
        self._news()

    def _take(self) -> list[Snapshot | threading.Event | None]:
        """Wait for work or for the next tick, and return everything in the queue."""
        try:
            items = [self._queue.get(timeout=self._until_tick())]
            self._linger(items[0])
            self._hurry.clear()
            while not self._queue.empty():
                items.append(self._queue.get_nowait())
        except Empty:
            return []
        return items

    def _linger(self, oldest: Snapshot | threading.Event | None) -> None:
        """Wait for more snapshots, so that they are written together.

        The time that the oldest snapshot has already spent in the queue is subtracted.
        """
        seconds = min(LINGER_SECONDS, self._until_tick() or LINGER_SECONDS)
        if isinstance(oldest, Snapshot):
            seconds = min(seconds, oldest.monotonic + LINGER_SECONDS - self._clock())
        if seconds > 0:
            self._hurry.wait(seconds)

    def _until_tick(self) -> float | None:
        return None if self._tick is None else max(0.001, self._next_tick - self._clock())

    def _record(self, snapshots: list[Snapshot]) -> None:
        for run in consecutive(snapshots, SNAPSHOTS_PER_RECORD):
            for part in within(run):
                self._append(part)
                threads.breathe()
        if snapshots:
            self._news()

    def _append(self, run: tuple[Snapshot, ...]) -> None:
        failed = True
        threads.late(self._clock() - run[0].monotonic > LATE_SECONDS)
        with self._guard:
            self._outbox.append(Batch(self._process, run, self._lost()))
            failed = False
        if failed and len(run) > 1:
            # Write one by one: a snapshot that cannot be written must not keep other snapshots from being written.
            for snapshot in run:
                self._append((snapshot,))
            return
        if failed:
            self._losses.count("recording_failed")
        self._recorded += len(run)

    def _lost(self) -> dict[str, int]:
        self._reported_losses = {**self._losses.totals(), **self._outbox.lost()}
        return self._reported_losses

    def _tell_losses(self) -> None:
        """Record losses that occurred after the last recorded snapshot."""
        before = self._reported_losses
        if self._lost() != before:
            self._outbox.append(Batch(self._process, (), self._reported_losses))

    def _tick_if_due(self) -> None:
        now = self._clock()
        if self._tick is not None and now >= self._next_tick:
            # Count from now instead of adding to the old value, because ticks missed while the machine was suspended
            # are not made up for.
            self._next_tick = now + self._tick_seconds
            self._next_tick = now + self._tick()

"""The recorder's thread: queue -> outbox, and a short reading of the process every second.

It never waits for the network, so that a snapshot is on disk a quarter of a second after it was taken at most,
whatever the server does: a job killed for memory is the one whose last snapshots matter most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Final

from .guard import Guard
from .outbox import Outbox
from .snapshot import Batch, ProcessIdentity, Snapshot
from .spool import consecutive

QUEUE_LIMIT: Final = 1000
# What comes soon after each other is written together, which halves what writing costs: one waking for several, and
# names once for all. A kill loses no more than this.
LINGER_SECONDS: Final = 0.25


class Losses:
    """Running totals of snapshots (and events) that never reached the server, by reason."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, reason: str, number: int = 1) -> None:
        self._counts[reason] = self._counts.get(reason, 0) + number

    def totals(self) -> dict[str, int]:
        return dict(self._counts)


class Recorder:
    """``put`` from the training thread, everything else here.

    ``news`` is called after each write, ``note_cpu`` on our thread after each piece of work.
    """

    def __init__(
        self,
        outbox: Outbox,
        process: ProcessIdentity,
        losses: Losses,
        news: Callable[[], None] = lambda: None,
        tick: Callable[[], None] | None = None,
        queue_limit: int = QUEUE_LIMIT,
        tick_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        note_cpu: Callable[[], None] = lambda: None,
    ) -> None:
        self._outbox, self._process, self._losses = outbox, process, losses
        self._note_cpu = note_cpu
        self._news, self._tick, self._limit, self._clock = news, tick, queue_limit, clock
        # SimpleQueue, because its put may be interrupted by a signal handler that puts as well.
        self._queue: SimpleQueue[Snapshot | threading.Event | None] = SimpleQueue()
        self._guard = Guard("recording")
        self._end: Mapping[str, Any] | None = None
        self._tick_seconds = tick_seconds
        self._next_tick = clock() + tick_seconds
        self._hurry, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop, name="leakline-recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, snapshot: Snapshot) -> None:
        """Hand a snapshot over. Never waits: a full queue is a counted loss."""
        if self._queue.qsize() >= self._limit:
            self._losses.count("queue_full")
        else:
            self._queue.put(snapshot)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything put before is recorded."""
        reached = threading.Event()
        self._queue.put(reached)
        self._hurry.set()
        return reached.wait(timeout_seconds)

    def close(self, end: Mapping[str, Any], timeout_seconds: float) -> bool:
        """Record what waits and the end; the thread ends."""
        self._end = end
        self._queue.put(None)
        self._hurry.set()
        return self._done.wait(timeout_seconds)

    def _loop(self) -> None:
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
            self._note_cpu()
        with self._guard:
            if self._end is not None:
                self._outbox.append_end(self._end)
        self._done.set()
        self._news()

    def _take(self) -> list[Snapshot | threading.Event | None]:
        """Wait for work or for the next tick; then everything that is there."""
        wait = None if self._tick is None else max(0.001, self._next_tick - self._clock())
        try:
            items = [self._queue.get(timeout=wait)]
            self._hurry.wait(LINGER_SECONDS)
            self._hurry.clear()
            while not self._queue.empty():
                items.append(self._queue.get_nowait())
        except Empty:
            return []
        return items

    def _record(self, snapshots: list[Snapshot]) -> None:
        for run in consecutive(snapshots):
            lost = {**self._losses.totals(), **self._outbox.lost()}
            self._outbox.append(Batch(self._process, run, lost))
        if snapshots:
            self._news()

    def _tick_if_due(self) -> None:
        now = self._clock()
        if self._tick is not None and now >= self._next_tick:
            # Not += : after a suspended machine there is nothing to catch up with.
            self._next_tick = now + self._tick_seconds
            self._tick()

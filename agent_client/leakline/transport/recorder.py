"""The recorder's thread: queue -> outbox, and a short reading of the process every second.

It never waits for the network, so that a snapshot is on disk a quarter of a second after it was taken at most,
whatever the server does: a job killed for memory is the one whose last snapshots matter most.

Where snapshots wait for the server: the spool file of this process, or memory when none can be written.

The recorder's thread appends, the sender's thread reads back and accepts; the file is `spool_file.py`'s.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from ..errors import SpoolError
from ..runtime import threads
from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread
from ..snapshot import Batch, ProcessIdentity, Snapshot
from .batching import SNAPSHOTS_PER_BATCH, SNAPSHOTS_PER_RECORD, consecutive, merge, within
from .spool_file import CLOSE_SECONDS, SpoolFile

MEMORY_LIMIT_SNAPSHOTS: Final = 1000


class Outbox(Protocol):
    """Where snapshots wait for the server: a file, or memory when no file can be written."""

    def append(self, batch: Batch) -> None: ...
    def append_end(self, end: Mapping[str, Any]) -> None: ...
    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]: ...
    def accept(self, mark: int, server: str) -> None: ...
    def accept_end(self, server: str) -> None: ...
    def pending(self) -> bool: ...
    def waiting(self) -> int: ...
    def lost(self) -> dict[str, int]: ...
    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None: ...


class SpoolMemory:
    """Stands in when no file can be written: the newest snapshots, bounded, lost when the process dies."""

    def __init__(self, limit: int = MEMORY_LIMIT_SNAPSHOTS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._batches: deque[tuple[int, Batch]] = deque()
        self._next = 1
        self._count = 0
        # Up to here the sender is sending: not lost before it says so.
        self._offered = 0
        self._lost: dict[str, int] = {}

    def append(self, batch: Batch) -> None:
        with self._lock:
            self._batches.append((self._next, batch))
            self._next += 1
            self._count += len(batch.snapshots)
            self._drop_oldest()

    def append_end(self, end: Mapping[str, Any]) -> None:
        """Nothing to keep: the sender itself reports the end to the server."""

    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]:
        with self._lock:
            self._offered = 0
            self._drop_oldest()
            batches: list[Batch] = []
            count = mark = 0
            for number, batch in self._batches:
                if batches and count + len(batch.snapshots) > limit:
                    break
                batches.append(batch)
                count += len(batch.snapshots)
                mark = number
            self._offered = mark
            return merge(batches), mark

    def accept(self, mark: int, server: str) -> None:
        with self._lock:
            self._offered = 0
            while self._batches and self._batches[0][0] <= mark:
                self._count -= len(self._batches.popleft()[1].snapshots)

    def accept_end(self, server: str) -> None:
        """Nothing to note."""

    def pending(self) -> bool:
        return bool(self._batches)

    def waiting(self) -> int:
        return self._count

    def lost(self) -> dict[str, int]:
        return dict(self._lost)

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        return None

    def _drop_oldest(self) -> None:
        at = 0
        while self._count > self._limit and at < len(self._batches) - 1:
            number, batch = self._batches[at]
            if number <= self._offered:
                at += 1
                continue
            del self._batches[at]
            self._count -= len(batch.snapshots)
            self._lost["memory_full"] = self._lost.get("memory_full", 0) + len(batch.snapshots)


class SafeOutbox:
    """The file as long as it can be written, then memory; ``notify`` hears once why.

    What is in the file is read back all the same. ``counted``: losses that are counted elsewhere, to be reported as
    well.
    """

    def __init__(
        self,
        file: SpoolFile | None,
        notify: Callable[[str], None],
        counted: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.file = file
        self._memory = SpoolMemory()
        self._notify, self._counted = notify, counted
        self._writable = self._readable = file is not None
        self._closed = False

    def append(self, batch: Batch) -> None:
        if self.file is not None and self._writable:
            try:
                return self.file.append(batch)
            except (OSError, SpoolError) as error:
                self._give_up_writing(error)
        return self._memory.append(batch)

    def append_end(self, end: Mapping[str, Any]) -> None:
        """Also to a file that was given up: a disk that was full may have room for so little, or again."""
        if self.file is not None:
            try:
                self.file.append_end(end)
            except OSError as error:
                self._give_up_writing(error)

    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]:
        """With all losses so far. Marks of the file are positive, marks of memory negative."""
        batches, mark = self._unsent(limit)
        lost = self.lost()
        return [replace(batch, lost={**batch.lost, **lost}) for batch in batches], mark

    def _unsent(self, limit: int) -> tuple[list[Batch], int]:
        if self.file is not None and self._readable and self.file.pending():
            try:
                return self.file.unsent(limit)
            except SpoolError as error:
                self._readable = False
                self._give_up_writing(error)
        batches, mark = self._memory.unsent(limit)
        return batches, -mark

    def accept(self, mark: int, server: str) -> None:
        if mark < 0:
            self._memory.accept(-mark, server)
        elif self.file is not None:
            self.file.accept(mark, server)

    def accept_end(self, server: str) -> None:
        if self.file is not None and self._writable:
            self.file.accept_end(server)

    def pending(self) -> bool:
        """Is there something to send that can be read?"""
        unsent = self.file is not None and self._readable and self.file.pending()
        return unsent or self._memory.pending()

    def waiting(self) -> int:
        """Snapshots that no server has accepted, those in a file that cannot be read any more as well."""
        return (0 if self.file is None else self.file.waiting()) + self._memory.waiting()

    def lost(self) -> dict[str, int]:
        in_file = {} if self.file is None else self.file.lost()
        return {**self._counted(), **in_file, **self._memory.lost()}

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        self._closed = True
        if self.file is not None:
            self.file.close(timeout_seconds)

    def _give_up_writing(self, error: OSError | SpoolError) -> None:
        before, self._writable = not self._writable, False
        if not (before or self._closed):
            self._notify(str(error))


QUEUE_LIMIT: Final = 1000
# What comes soon after each other is written together, which halves what writing costs: one waking for several, and
# names once for all. A kill loses no more than this.
LINGER_SECONDS: Final = 0.25
# From here on writing goes before the program's pauses: what is not written a second after it was taken is too late.
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
    """``put`` from the training thread, everything else here.

    ``news`` is called after each write, ``note_cpu`` on our thread after each piece of work, ``tick`` there too: first
    after ``tick_seconds``, and then when it says. What waits is written before it is due.
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
        note_cpu: Callable[[], None] = lambda: None,
    ) -> None:
        self._outbox, self._process, self._losses = outbox, process, losses
        self._note_cpu = note_cpu
        self._news, self._tick, self._limit, self._clock = news, tick, queue_limit, clock
        # SimpleQueue, because its put may be interrupted by a signal handler that puts as well.
        self._queue: SimpleQueue[Snapshot | threading.Event | None] = SimpleQueue()
        self._guard = Guard("recording")
        # Snapshots given to us; put into the queue; and out of our hands. Each is written by one side only.
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
        """Hand a snapshot over. Never waits: a full queue is a counted loss."""
        self.taken += 1
        if self._queue.qsize() >= self._limit:
            self._losses.count("queue_full")
        else:
            self._queued += 1
            self._queue.put(snapshot)

    def waiting(self) -> int:
        """Snapshots in the queue and in our hands."""
        return self._queued - self._recorded

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything put before is recorded."""
        reached = threading.Event()
        self._queue.put(reached)
        self._hurry.set()
        return reached.wait(timeout_seconds)

    def close(self, end: Mapping[str, Any], timeout_seconds: float) -> bool:
        """Record what waits and the end; the thread ends."""
        self._end = end
        self._closing.set()
        self._queue.put(None)
        self._hurry.set()
        return self._done.wait(timeout_seconds)

    def _loop(self) -> None:
        # What it has in its hands is not safe yet.
        threads.begin(self._closing, longest_rest=threads.REST_SECONDS)
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
            self._tell_losses()
        with self._guard:
            if self._end is not None:
                self._outbox.append_end(self._end)
        self._done.set()
        self._news()

    def _take(self) -> list[Snapshot | threading.Event | None]:
        """Wait for work or for the next tick; then everything that is there."""
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
        """Not for what has waited so long already, while what came before it was written."""
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
            # One that cannot be written takes no other with it.
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
        """What was lost after the last snapshot that was recorded."""
        before = self._reported_losses
        if self._lost() != before:
            self._outbox.append(Batch(self._process, (), self._reported_losses))

    def _tick_if_due(self) -> None:
        now = self._clock()
        if self._tick is not None and now >= self._next_tick:
            # Not += : after a suspended machine there is nothing to catch up with.
            self._next_tick = now + self._tick_seconds
            self._next_tick = now + self._tick()

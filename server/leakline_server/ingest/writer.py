"""The single thread that writes batches: it writes all queued batches in one transaction, then answers the requests.

One fsync serves many batches, so durability costs little under load, and only 0.2 ms when the server is idle. Sealing
runs on its own thread (`workers/storage_upkeep.py`), which the writer notifies when a process has enough unsealed
snapshots.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InternalError,
    OperationalError,
    StatementError,
)

from ..errors import Malformed, RequestRefused, TooBusy, Unavailable, database_moved, disk_full
from ..limits import MAX_WAITING_BATCHES, MAX_WAITING_BYTES, MAX_WAITING_SNAPSHOTS
from ..store.engine import (
    DATABASE_ERRORS,
    DatabaseMoved,
    Engine,
    check_that_it_writes,
    is_out_of_space,
    without_content,
    writing,
)
from ..store.ingest.inbox import Inbox
from ..store.ingest.incoming_batch import Accepted, Incoming, Outcome
from ..store.maintenance import disk_space as full_disk
from ..store.maintenance import quarantine
from ..store.maintenance.retention_policy import FOREVER, PerProject
from ..store.series import CorruptChunk, Key
from ..worker_thread import Worker, WriterFigures
from .fair_queue import FairQueue, Sender, Weight

MAX_GROUP: Final = 64
# The cost limit of a transaction, in snapshots. Each new name in a run needs a separate row and costs as much as a
# snapshot. A batch above the limit is written separately, so that a cheap batch waits for at most one expensive batch,
# about 25 ms.
MAX_GROUP_COST: Final = 2_000
# Each additional 200 refusals per second extend Retry-After by one second.
REFUSED_PER_SECOND: Final = 200
LONGEST_RETRY_SECONDS: Final = 30
# How long to wait unless a notification ends the wait earlier.
WAIT_SECONDS: Final = 30.0
# How long to wait while the database rejects writes.
REFUSED_WAIT_SECONDS: Final = 2.0

# Errors raised before the database is reached, by values that no check anticipated.
_OUT_OF_RANGE: Final = (ArithmeticError, ValueError, TypeError)
_UNSTORABLE: Final = (CorruptChunk, *_OUT_OF_RANGE)
# Errors that affect the entire database: writing each batch separately would fail in the same way.
_OF_ALL: Final = (OperationalError, InternalError)

log = logging.getLogger("leakline")


class TurnedAway:
    """Computes the Retry-After of refused requests, which grows with the number of refusals per second.

    Refusing requests takes time too: ten thousand clients that return every second would leave no time for writing.
    """

    def __init__(self) -> None:
        self._second, self._count, self._before = 0, 0, 0

    def one_more(self, now: float) -> int:
        """Count a refusal and return Retry-After, at most LONGEST_RETRY_SECONDS. ``now`` is monotonic seconds."""
        second = int(now)
        if second != self._second:
            self._before = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0
        self._count += 1
        each_second = max(self._before, self._count)
        return min(LONGEST_RETRY_SECONDS, 1 + each_second // REFUSED_PER_SECOND)


@dataclass(slots=True)
class _Waiting:
    batch: Incoming
    answer: asyncio.Future[Outcome | Exception]


class Writer:
    """Writes batches on its own thread, and calls the callbacks after each commit.

    ``stored`` receives the ids of the runs with new data; ``to_seal`` receives the processes with enough snapshots to
    seal.
    """

    def __init__(
        self,
        engine: Engine,
        stored: Callable[[Collection[str]], None],
        to_seal: Callable[[Sequence[Key]], None],
        bytes_per_day: PerProject = FOREVER,
    ) -> None:
        self._engine, self._stored, self._to_seal = engine, stored, to_seal
        self._inbox = Inbox(bytes_per_day)
        self._queue: FairQueue[_Waiting] = FairQueue()
        self._turned_away = TurnedAway()
        self._loop: asyncio.AbstractEventLoop | None = None
        # (process, number of sealed snapshots), set by the sealer's thread.
        self._sealed: deque[tuple[Key, int]] = deque()
        self._worker = Worker("writer", self._once, partial(quarantine.after, engine))
        self.figures = WriterFigures()

    def start(self) -> None:
        """Start the thread. Must be called on the event loop whose tasks will call `store`."""
        self._loop = asyncio.get_running_loop()
        self._worker.start()

    def stop(self) -> None:
        self._worker.stop()

    @property
    def alive(self) -> bool:
        return self._worker.alive

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def sender(self, run_id: str, project: str | None) -> Sender:
        """Return the sender for a run's batches.

        ``project`` is the only project that the token may write to, or None if the token is not limited to a project.
        """
        return Sender(project or self._inbox.project_of(run_id) or "", run_id)

    def refuse_when_full(self, sender: Sender) -> None:
        """Raise TooBusy if the queue is full, before any work is spent on the batch."""
        room = MAX_WAITING_BATCHES, MAX_WAITING_SNAPSHOTS, MAX_WAITING_BYTES
        if not self._queue.has_room(sender, room):
            raise TooBusy(
                "too_busy",
                "the server's queue of batches is full; send this batch again later",
                retry_after_seconds=self._turned_away.one_more(time.monotonic()),
            )

    async def store(self, batch: Incoming) -> Outcome:
        """Queue a batch, and return its outcome once the batch is durable.

        Raises TooBusy, Unavailable or another exception with the reason if the batch cannot be stored.
        """
        sender = self.sender(batch.run_id, batch.project)
        self.refuse_when_full(sender)
        answer = asyncio.get_running_loop().create_future()
        cost = 1 + batch.count + self._inbox.count_new_names(batch)
        weight = Weight(1, batch.count, batch.size_bytes)
        self._queue.add(sender, _Waiting(batch, answer), weight, cost)
        self._worker.wake()
        outcome: Outcome | Exception = await answer
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def sealed(self, key: Key, count: int) -> None:
        """Record that snapshots of a process were sealed. May be called from any thread."""
        self._sealed.append((key, count))

    def _once(self) -> float:
        while self._sealed:
            self._inbox.sealed(*self._sealed.popleft())
        group = self._queue.take(MAX_GROUP, MAX_GROUP_COST)
        if group:
            self._store_group(group)
        elif self.figures.refused:
            self._try_to_write()
        if self._queue:
            return 0.0
        return REFUSED_WAIT_SECONDS if self.figures.refused else WAIT_SECONDS

    def _try_to_write(self) -> None:
        """Check whether the database accepts writes again.

        A server that is not ready receives no batches, so without this check the server would never become ready again.
        """
        try:
            check_that_it_writes(self._engine)
        except DATABASE_ERRORS as error:
            self._tell(error, 0)
        else:
            self._taken_again()

    def _store_group(self, group: Sequence[_Waiting]) -> None:
        outcomes: Sequence[Outcome | Exception] = []
        ready: Sequence[Key] = ()
        started = time.perf_counter()
        try:
            outcomes, ready = self._write([w.batch for w in group])
        finally:
            # Even after an unexpected exception, every waiting request gets a response.
            if not outcomes:
                self.figures.failures += 1
                self._inbox.forget({w.batch.run_id for w in group})
                outcomes = [_not_written() for _ in group]
            self._answer(group, outcomes)
        self.figures.commit_seconds += time.perf_counter() - started
        self._after(group, outcomes, ready)

    def _write(
        self, group: Sequence[Incoming]
    ) -> tuple[Sequence[Outcome | Exception], Sequence[Key]]:
        """Write the batches in one transaction. If a batch causes an error, write each batch in its own transaction."""
        try:
            with writing(self._engine, first=True) as connection:
                written = self._inbox.store(connection, group)
        except (*DATABASE_ERRORS, *_UNSTORABLE) as error:
            self._inbox.forget({batch.run_id for batch in group})
            if len(group) > 1 and not isinstance(error, _OF_ALL):
                return self._write_each(group)
            self.figures.failures += 1
            of_damage = quarantine.after(self._engine, error)
            if not of_damage:
                self._tell(error, len(group))
            # While the cause is unknown, a batch that may be valid must not be refused permanently.
            perhaps = of_damage or (of_damage is None and _is_of_the_batch(error))
            return [_not_written() if perhaps else _refusal(error) for _ in group], ()
        self.figures.commits += 1
        full_disk.mark_recovered(self._engine)
        self._taken_again()
        return written

    def _tell(self, error: Exception, count: int) -> None:
        """Log the error; a persistent error is logged only once, no matter how many batches fail."""
        if is_out_of_space(error):
            self.figures.refused = False
            full_disk.mark_full(self._engine)
        elif _is_of_the_batch(error):
            log.error("could not write %d batches: %s", count, without_content(error))
        elif not self.figures.refused:
            self.figures.refused = True
            log.error(
                "could not write %d batches; this server is not ready until the database accepts writes again: %s",
                count, without_content(error),
            )  # fmt: skip

    def _taken_again(self) -> None:
        if self.figures.refused:
            self.figures.refused = False
            log.warning("the database accepts writes again")

    def _write_each(
        self, group: Sequence[Incoming]
    ) -> tuple[Sequence[Outcome | Exception], Sequence[Key]]:
        outcomes: list[Outcome | Exception] = []
        ready: list[Key] = []
        for batch in group:
            of_one, ready_of_one = self._write([batch])
            outcomes += of_one
            ready += ready_of_one
        return outcomes, ready

    def _after(
        self,
        group: Sequence[_Waiting],
        outcomes: Sequence[Outcome | Exception],
        ready: Sequence[Key],
    ) -> None:
        touched: dict[str, None] = {}
        for waiting, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Accepted):
                self.figures.batches += 1
                self.figures.snapshots += outcome.count
                self.figures.repeated_batches += outcome.count == 0
                touched[waiting.batch.run_id] = None
        if touched:
            self._stored(touched.keys())
        if ready:
            self._to_seal(ready)

    def _answer(self, group: Sequence[_Waiting], outcomes: Sequence[Outcome | Exception]) -> None:
        assert self._loop is not None
        answers = [(w.answer, o) for w, o in zip(group, outcomes, strict=True)]
        try:
            self._loop.call_soon_threadsafe(_resolve, answers)
        except RuntimeError:
            # The loop is closed because the server is stopping, and no requests are waiting any longer. Committed data
            # stays committed.
            return


def _resolve(
    answers: Sequence[tuple[asyncio.Future[Outcome | Exception], Outcome | Exception]],
) -> None:
    for answer, outcome in answers:
        # The future is cancelled if the client has disconnected; its batch is stored anyway.
        if not answer.done():
            answer.set_result(outcome)


def _refusal(error: Exception) -> RequestRefused:
    if isinstance(error, (*_OUT_OF_RANGE, DataError)):
        return Malformed(
            "batch_cannot_be_stored",
            f"a value of the batch cannot be stored ({type(error).__name__}), so nothing was stored; do not send this "
            "batch again",
        )
    if isinstance(error, DatabaseMoved):
        return database_moved()
    return disk_full() if is_out_of_space(error) else _not_written()


def _is_of_the_batch(error: Exception) -> bool:
    """Return True if the batch itself caused the error, with an invalid value or by contradicting stored data."""
    before_the_driver = isinstance(error, StatementError) and not isinstance(error, DBAPIError)
    return before_the_driver or isinstance(error, (*_UNSTORABLE, DataError, IntegrityError))


def _not_written() -> Unavailable:
    return Unavailable(
        "database_unavailable",
        "the database did not accept the batch, so nothing was stored; send this batch again later",
        retry_after_seconds=2,
    )

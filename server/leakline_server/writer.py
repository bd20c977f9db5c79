"""The one thread that writes batches: everything that waits goes into one transaction, then all are answered.

One fsync serves many batches, so durability costs little under load and 0.2 ms when idle. Sealing happens on a thread
of its own (`workers/seal.py`), which is told here of which processes enough waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import DataError, OperationalError

from .errors import Malformed, RequestRefused, TooBusy, Unavailable
from .figures import WriterFigures
from .store.codec import CorruptChunk
from .store.columns import Key
from .store.engine import DATABASE_ERRORS, Engine, writing
from .store.inbox import Inbox
from .store.incoming import Accepted, Incoming, Outcome
from .worker import Worker

# A thousand processes that send in the same moment, as after a restart, are taken; the last waits a tenth of a second.
MAX_WAITING_BATCHES: Final = 1_024
# Snapshots of 65 series as arrays take at most 10 MB then.
MAX_WAITING_SNAPSHOTS: Final = 20_000
MAX_GROUP: Final = 64
# Nothing but news ends a wait.
WAIT_SECONDS: Final = 30.0

# What a value that no check foresaw raises on its way into the database.
_OUT_OF_RANGE: Final = (ArithmeticError, ValueError, TypeError)
_UNSTORABLE: Final = (CorruptChunk, *_OUT_OF_RANGE)

log = logging.getLogger("leakline")


@dataclass(slots=True)
class _Waiting:
    batch: Incoming
    answer: asyncio.Future[Outcome | Exception]


class Writer:
    """Called on the writer's thread, after the commit: ``stored`` with the ids of the runs that have news, and
    ``to_seal`` with the processes of which enough waits.
    """

    def __init__(
        self,
        engine: Engine,
        stored: Callable[[Collection[str]], None],
        to_seal: Callable[[Sequence[Key]], None],
    ) -> None:
        self._engine, self._stored, self._to_seal = engine, stored, to_seal
        self._inbox = Inbox()
        self._queue: deque[_Waiting] = deque()
        # Snapshots: that came, counted on the event loop, and that were taken to be written, on the writer's thread.
        self._came = self._taken = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        # Processes, and how many of their snapshots were sealed: told by the sealer's thread.
        self._sealed: deque[tuple[Key, int]] = deque()
        self._worker = Worker("writer", self._once)
        self.figures = WriterFigures()

    def start(self) -> None:
        """On the event loop whose tasks will call `store`."""
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

    async def store(self, batch: Incoming) -> Outcome:
        """Returns once the batch is durable, or says why not. Raises TooBusy and Unavailable."""
        if (
            len(self._queue) >= MAX_WAITING_BATCHES
            or self._came - self._taken >= MAX_WAITING_SNAPSHOTS
        ):
            raise TooBusy(
                "too_busy",
                "the server has more batches waiting than it can write; send this one again later",
                retry_after_seconds=1,
            )
        answer = asyncio.get_running_loop().create_future()
        self._came += batch.count
        self._queue.append(_Waiting(batch, answer))
        self._worker.wake()
        outcome: Outcome | Exception = await answer
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def sealed(self, key: Key, count: int) -> None:
        """So many snapshots of the process were sealed; from any thread."""
        self._sealed.append((key, count))

    def _once(self) -> float:
        while self._sealed:
            self._inbox.sealed(*self._sealed.popleft())
        group = [self._queue.popleft() for _ in range(min(MAX_GROUP, len(self._queue)))]
        if group:
            self._taken += sum(w.batch.count for w in group)
            self._store_group(group)
        return 0.0 if self._queue else WAIT_SECONDS

    def _store_group(self, group: Sequence[_Waiting]) -> None:
        outcomes: Sequence[Outcome | Exception] = []
        ready: Sequence[Key] = ()
        started = time.perf_counter()
        try:
            outcomes, ready = self._write([w.batch for w in group])
        finally:
            # Also after an exception nobody foresaw: whoever waits gets an answer.
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
        """In one transaction; when that fails for what is in a batch, each in its own."""
        try:
            with writing(self._engine) as connection:
                written = self._inbox.store(connection, group)
        except (*DATABASE_ERRORS, *_UNSTORABLE) as error:
            self._inbox.forget({batch.run_id for batch in group})
            if len(group) > 1 and not isinstance(error, OperationalError):
                return self._write_each(group)
            self.figures.failures += 1
            log.error("could not write %d batches: %s", len(group), error)
            return [_refusal(error) for _ in group], ()
        self.figures.commits += 1
        return written

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
            # The loop is closed: the server ends, and nobody waits. What was committed is committed.
            return


def _resolve(
    answers: Sequence[tuple[asyncio.Future[Outcome | Exception], Outcome | Exception]],
) -> None:
    for answer, outcome in answers:
        # A client that went away has cancelled its wait; its batch is stored all the same.
        if not answer.done():
            answer.set_result(outcome)


def _refusal(error: Exception) -> RequestRefused:
    if isinstance(error, (*_OUT_OF_RANGE, DataError)):
        return Malformed(
            "batch_cannot_be_stored",
            f"a value of the batch cannot be stored ({type(error).__name__}); nothing of it is, do not send it again",
        )
    return _not_written()


def _not_written() -> Unavailable:
    return Unavailable(
        "database_unavailable",
        "the database did not take the batch; nothing of it is stored, send it again later",
        retry_after_seconds=2,
    )

"""The one thread that writes batches: everything that waits goes into one transaction, then all are answered.

One fsync serves many batches, so durability costs little under load and 0.2 ms when idle. Sealing happens here too,
after the answers, one segment at a time: a burst of it never keeps an acknowledgement waiting for long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import DataError, OperationalError

from .errors import Malformed, RequestRefused, TooBusy, Unavailable
from .figures import WriterFigures
from .store import sealing
from .store.codec import CorruptChunk
from .store.engine import DATABASE_ERRORS, Engine, writing
from .store.inbox import Inbox
from .store.incoming import Accepted, Incoming, Outcome
from .worker import Worker

MAX_WAITING_BATCHES: Final = 256
# Decoded snapshots take about ten times their wire size; 256 batches of the usual size are far below this.
MAX_WAITING_SNAPSHOTS: Final = 20_000
MAX_GROUP: Final = 64
TIDY_SECONDS: Final = 30.0

# What a value that no check foresaw raises on its way into the database.
_OUT_OF_RANGE: Final = (ArithmeticError, ValueError, TypeError)
_UNSTORABLE: Final = (CorruptChunk, *_OUT_OF_RANGE)

log = logging.getLogger("leakline")


@dataclass(slots=True)
class _Waiting:
    batch: Incoming
    answer: asyncio.Future[Outcome | Exception]


class Writer:
    """``stored`` is called with the id of a run that has news, on the writer's thread, after the commit."""

    def __init__(self, engine: Engine, stored: Callable[[str], None]) -> None:
        self._engine, self._stored = engine, stored
        self._inbox = Inbox()
        self._queue: deque[_Waiting] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: dict[int, str] = {}
        self._next_tidy = 0.0
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
        snapshots = sum(w.batch.count for w in self._queue)
        if len(self._queue) >= MAX_WAITING_BATCHES or snapshots >= MAX_WAITING_SNAPSHOTS:
            raise TooBusy(
                "too_busy",
                "the server has more batches waiting than it can write; send this one again later",
                retry_after_seconds=1,
            )
        answer = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(batch, answer))
        self._worker.wake()
        outcome: Outcome | Exception = await answer
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _once(self) -> float:
        group = [self._queue.popleft() for _ in range(min(MAX_GROUP, len(self._queue)))]
        if group:
            self._store_group(group)
        if self._due and (not self._queue or len(self._due) > MAX_GROUP):
            self._seal_one()
        if time.monotonic() >= self._next_tidy:
            self._next_tidy = time.monotonic() + TIDY_SECONDS
            self._look_for_unsealed()
        return 0.0 if self._queue or self._due else TIDY_SECONDS

    def _store_group(self, group: Sequence[_Waiting]) -> None:
        outcomes: Sequence[Outcome | Exception] = []
        started = time.perf_counter()
        try:
            outcomes = self._write([w.batch for w in group])
        finally:
            # Also after an exception nobody foresaw: whoever waits gets an answer.
            if not outcomes:
                self.figures.failures += 1
                self._inbox.forget()
                outcomes = [_not_written() for _ in group]
            self._answer(group, outcomes)
        self.figures.commits += 1
        self.figures.commit_seconds += time.perf_counter() - started
        self._after(group, outcomes)

    def _write(self, group: Sequence[Incoming]) -> Sequence[Outcome | Exception]:
        """In one transaction; when that fails for what is in a batch, each in its own."""
        try:
            with writing(self._engine) as connection:
                return self._inbox.store(connection, group)
        except (*DATABASE_ERRORS, *_UNSTORABLE) as error:
            self._inbox.forget()
            if len(group) > 1 and not isinstance(error, OperationalError):
                return [outcome for batch in group for outcome in self._write([batch])]
            self.figures.failures += 1
            log.error("could not write %d batches: %s", len(group), error)
            return [_refusal(error) for _ in group]

    def _after(self, group: Sequence[_Waiting], outcomes: Sequence[Outcome | Exception]) -> None:
        touched: dict[str, None] = {}
        for waiting, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Accepted):
                self.figures.batches += 1
                self.figures.snapshots += outcome.count
                self.figures.repeated_batches += outcome.count == 0
                touched[waiting.batch.run_id] = None
        for run_id in touched:
            self._stored(run_id)
            for process_id, count in self._inbox.waiting([run_id]).items():
                if count >= sealing.MIN_SNAPSHOTS:
                    self._due[process_id] = run_id

    def _answer(self, group: Sequence[_Waiting], outcomes: Sequence[Outcome | Exception]) -> None:
        assert self._loop is not None
        answers = [(w.answer, o) for w, o in zip(group, outcomes, strict=True)]
        try:
            self._loop.call_soon_threadsafe(_resolve, answers)
        except RuntimeError:
            # The loop is closed: the server ends, and nobody waits. What was committed is committed.
            return

    def _seal_one(self) -> None:
        process_id, run_id = next(iter(self._due.items()))
        started = time.perf_counter()
        try:
            count = sealing.seal(self._engine, process_id, time.time())
        except (*DATABASE_ERRORS, CorruptChunk) as error:
            log.error("could not seal batches of run %s: %s", run_id, error)
            count = 0
        self._inbox.sealed(run_id, process_id, count)
        self.figures.sealed_snapshots += count
        self.figures.seal_seconds += time.perf_counter() - started
        if count == 0:
            del self._due[process_id]

    def _look_for_unsealed(self) -> None:
        try:
            found = sealing.due(self._engine, time.time())
        except DATABASE_ERRORS as error:
            log.error("could not look for batches to seal: %s", error)
            return
        for run_id, process_id in found:
            self._due.setdefault(process_id, run_id)


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

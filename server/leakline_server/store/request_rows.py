"""Requests to processes.

Requests are stored, so that any server can pass a request to its process when the process sends data. Answered requests
are kept, so that the examiner does not repeat a request too soon.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, delete, func, insert, or_, select, update

from ..limits import MAX_PAST, MAX_REQUESTS
from .engine import keep_newest, writing
from .runs.run_history import NoSuchRun
from .runs.runs import locked
from .schema import requests

# The maximum number of pending requests, over all runs, that `waiting` returns.
MAX_WAITING: Final = 16_384
# A request that is not answered within this time expires: the process has ended or does not support requests.
EXPIRE_SECONDS: Final = 3_600.0
# Requests older than this are deleted, answered or not.
KEEP_SECONDS: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request to make. ``kind`` is find_holders, census or cleanup; ``type`` is used by find_holders only.

    ``generation`` is the run's generation when the examiner made the request; None for a person's request.
    """

    kind: str
    type: str = ""
    rank: int = 0
    generation: int | None = None

    @property
    def by_person(self) -> bool:
        return self.generation is None


@dataclass(frozen=True, slots=True)
class Request:
    """A stored request. ``asked_at`` is in Unix seconds."""

    run_id: str
    id: str
    kind: str
    type: str
    rank: int
    by_person: bool
    asked_at: float

    def to_json(self) -> dict[str, str]:
        """Return the request as JSON for the response to a batch."""
        named = {"type": self.type} if self.type else {}
        by = "person" if self.by_person else "server"
        return {"id": self.id, "kind": self.kind, **named, "asked_by": by}


class TooManyWait(Exception):
    """Raised when MAX_REQUESTS requests to the run's processes are already pending."""


def ask(engine: Engine, run_id: str, wanted: Wanted, now: float) -> Request:
    """Store a request, or return an identical pending request. ``now`` is in Unix seconds.

    A person's request replaces an identical request by the examiner. Raises NoSuchRun and TooManyWait.
    """
    with writing(engine) as connection:
        if locked(connection, run_id) is None:
            raise NoSuchRun(run_id)
        rows = connection.execute(select(requests).where(requests.c.run_id == run_id)).all()
        same = next((row for row in rows if _asks(row, wanted)), None)
        waiting = [row for row in rows if not row.answered and row.asked_at > now - EXPIRE_SECONDS]
        if same in waiting and (same.by_person or not wanted.by_person):
            _note_generation(connection, same, wanted)
            return _request(same)
        if len([row for row in waiting if row is not same]) >= MAX_REQUESTS:
            raise TooManyWait
        return _put(connection, run_id, same, wanted, now)


def last_asked_at_generation(engine: Engine, run_id: str, type_name: str) -> int | None:
    """Return the last generation at which any server's examiner requested the holders of this type, or None."""
    query = select(func.max(requests.c.generation)).where(
        requests.c.run_id == run_id, requests.c.type == type_name
    )
    with engine.connect() as connection:
        found = connection.scalar(query)
    return None if found is None else int(found)


def waiting(engine: Engine, now: float) -> list[Request]:
    """Return the pending requests of all runs, oldest first, up to MAX_WAITING."""
    query = (
        select(requests)
        .where(requests.c.answered.is_(False), requests.c.asked_at > now - EXPIRE_SECONDS)
        .order_by(requests.c.asked_at, requests.c.id)
        .limit(MAX_WAITING)
    )
    with engine.connect() as connection:
        return [_request(row) for row in connection.execute(query)]


def answered(engine: Engine, answers: Mapping[str, str]) -> None:
    """Mark requests as answered. ``answers`` maps the ids of answered requests to the ids of their runs."""
    with writing(engine) as connection:
        # All writers that lock several rows use this order, so they cannot deadlock.
        for number, run_id in sorted(answers.items(), key=lambda one: one[::-1]):
            own = (requests.c.run_id == run_id, requests.c.id == number)
            connection.execute(update(requests).where(*own).values(answered=True))


def _put(
    connection: Connection, run_id: str, same: Row[Any] | None, wanted: Wanted, now: float
) -> Request:
    of_run = requests.c.run_id == run_id
    connection.execute(delete(requests).where(of_run, requests.c.asked_at < now - KEEP_SECONDS))
    connection.execute(delete(requests).where(of_run, *_key(wanted)))
    over = of_run, or_(requests.c.answered, requests.c.asked_at <= now - EXPIRE_SECONDS)
    keep_newest(connection, requests.c.id, requests.c.asked_at, MAX_PAST, *over)
    generation = wanted.generation
    if generation is None and same is not None:
        generation = same.generation
    row = connection.execute(
        insert(requests)
        .values(
            run_id=run_id, kind=wanted.kind, type=wanted.type, rank=wanted.rank, id=secrets.token_hex(8),
            by_person=wanted.by_person, asked_at=now, generation=generation,
        )
        .returning(requests)
    ).one()  # fmt: skip
    return _request(row)


def _note_generation(connection: Connection, same: Row[Any], wanted: Wanted) -> None:
    if wanted.generation is not None:
        own = (requests.c.run_id == same.run_id, *_key(wanted))
        connection.execute(update(requests).where(*own).values(generation=wanted.generation))


def _asks(row: Row[Any], wanted: Wanted) -> bool:
    return (row.kind, row.type, row.rank) == (wanted.kind, wanted.type, wanted.rank)


def _key(wanted: Wanted) -> tuple[Any, ...]:
    r = requests.c
    return r.kind == wanted.kind, r.type == wanted.type, r.rank == wanted.rank


def _request(row: Row[Any]) -> Request:
    return Request(
        row.run_id, row.id, row.kind, row.type, row.rank, row.by_person, row.asked_at
    )  # fmt: skip

"""Leases: what one of several servers does at a time, whose turn it is and until when; and who examines a run.

Several servers may hear of the same run in the same moment. One of them examines it; the revision it read is saved with
its verdict, so that the others have nothing left to do, and an older verdict never replaces a newer one.

Servers poll the database for what others do: a query works through every pooler and after every lost connection, while
a notification on each commit would make the writers of all servers wait for each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from sqlalchemy import Connection, Engine, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from .engine import writing
from .runs.runs import STATES, locked
from .schema import runs, settings

PREFIX: Final = "lease."


class Lease(msgspec.Struct):
    owner: str
    until: float


def take(engine: Engine, name: str, owner: str, now: float, seconds: float) -> bool:
    """Whether it is the owner's turn, from now on for so many seconds. ``now`` in Unix seconds."""
    key = PREFIX + name
    value = msgspec.json.encode(Lease(owner, now + seconds)).decode()
    this = settings.c.key == key
    try:
        with writing(engine, durable=False) as connection:
            query = select(settings.c.value).where(this).with_for_update()
            found = connection.scalar(query)
            if found is None:
                connection.execute(insert(settings).values(key=key, value=value))
                return True
            lease = msgspec.json.decode(found, type=Lease)
            # One that lies far ahead is of a clock that was set back since; the clocks of servers differ by less.
            if lease.owner != owner and now < lease.until <= now + 2 * seconds:
                return False
            connection.execute(update(settings).where(this).values(value=value))
            return True
    except IntegrityError:
        # Another server took it first, in this very moment.
        return False


MAX_AT_ONCE: Final = 500
# Of the database, until the transaction ends, however its server ends.
_TRY_LOCK: Final = text("SELECT pg_try_advisory_xact_lock(7239120, hashtext(:run))")


@dataclass(frozen=True, slots=True)
class Revisions:
    """The revision a run is at, and the one that was examined last."""

    revision: int
    examined: int


def has_other_servers(engine: Engine) -> bool:
    """Whether others may serve the same database; an SQLite file has one server (`sqlite_file.py`)."""
    return engine.dialect.name != "sqlite"


def revisions(engine: Engine, run_ids: Sequence[str]) -> dict[str, int]:
    """Run id -> its revision, of those that there are."""
    found: dict[str, int] = {}
    with engine.connect() as connection:
        for first in range(0, len(run_ids), MAX_AT_ONCE):
            some = runs.c.id.in_(run_ids[first : first + MAX_AT_ONCE])
            rows = connection.execute(select(runs.c.id, runs.c.revision).where(some))
            found |= {row.id: row.revision for row in rows}
    return found


@contextlib.contextmanager
def alone(engine: Engine, run_id: str) -> Iterator[bool]:
    """Whether this server may examine the run now; no other may until the end of it."""
    if not has_other_servers(engine):
        yield True
        return
    with engine.connect() as connection, connection.begin():
        yield bool(connection.scalar(_TRY_LOCK, {"run": run_id}))


def examined(engine: Engine, run_id: str) -> Revisions | None:
    """None when there is no such run."""
    query = select(runs.c.revision, runs.c.examined).where(runs.c.id == run_id)
    with engine.connect() as connection:
        row = connection.execute(query).first()
    return None if row is None else Revisions(row.revision, row.examined)


def unexamined(engine: Engine, since: float, before: float, limit: int) -> list[str]:
    """Ids of runs last heard of between two moments, in Unix seconds, that changed after they were last examined.

    The newest first.
    """
    query = (
        select(runs.c.id)
        .where(
            # All states: the index of the query begins with the state.
            runs.c.state.in_(STATES),
            runs.c.last_seen_at >= since,
            runs.c.last_seen_at <= before,
            runs.c.revision > runs.c.examined,
        )
        .order_by(runs.c.last_seen_at.desc())
        .limit(limit)
    )
    with engine.connect() as connection:
        return list(connection.scalars(query))


def begin_saving(connection: Connection, run_id: str, seen: int) -> Revisions | None:
    """Lock the run for a verdict on revision ``seen``; None when there is one on a later one, or no run any more."""
    row = locked(connection, run_id)
    if row is None or row.examined > seen:
        return None
    return Revisions(row.revision, row.examined)


def saved(connection: Connection, run_id: str, seen: int, before: Revisions) -> int:
    """Note what the verdict rests on, after it was written. Returns the revision that counts as examined.

    ``before`` is what `begin_saving` gave: the revision that the verdict itself made is examined too, unless something
    else came in between.
    """
    end = runs.c.revision if before.revision == seen else seen
    noted = update(runs).where(runs.c.id == run_id).values(examined=end)
    return int(connection.execute(noted.returning(runs.c.examined)).scalar_one())

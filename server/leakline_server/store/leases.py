"""Leases for work that only one of several servers may do at a time, and the coordination of examinations.

Several servers may receive data of the same run at the same time. One server examines the run, and saves the verdict
with the revision that it read. Then the other servers have nothing left to do, and an older verdict never replaces a
newer verdict.

Servers poll the database for changes by other servers: a query works through every pooler and after a lost connection,
while a notification on each commit would make the writers of all servers wait for each other.
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
    """Acquire or renew a lease for ``seconds``. Return False if another owner holds the lease.

    ``now`` is in Unix seconds.
    """
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
            # An expiry too far in the future was written before a clock was set back, so ignore that lease. The clocks
            # of two servers differ by less than ``seconds``.
            if lease.owner != owner and now < lease.until <= now + 2 * seconds:
                return False
            connection.execute(update(settings).where(this).values(value=value))
            return True
    except IntegrityError:
        # Another server inserted the lease at the same moment.
        return False


MAX_AT_ONCE: Final = 500
# The database releases this lock when the transaction ends, even if the server is killed.
_TRY_LOCK: Final = text("SELECT pg_try_advisory_xact_lock(7239120, hashtext(:run))")


@dataclass(frozen=True, slots=True)
class Revisions:
    """The current revision of a run, and the revision that was examined last."""

    revision: int
    examined: int


def has_other_servers(engine: Engine) -> bool:
    """Return True if other servers may use the same database. An SQLite file has only one server (`sqlite_file.py`)."""
    return engine.dialect.name != "sqlite"


def revisions(engine: Engine, run_ids: Sequence[str]) -> dict[str, int]:
    """Return the revisions of these runs by id; unknown runs are left out."""
    found: dict[str, int] = {}
    with engine.connect() as connection:
        for first in range(0, len(run_ids), MAX_AT_ONCE):
            some = runs.c.id.in_(run_ids[first : first + MAX_AT_ONCE])
            rows = connection.execute(select(runs.c.id, runs.c.revision).where(some))
            found |= {row.id: row.revision for row in rows}
    return found


@contextlib.contextmanager
def alone(engine: Engine, run_id: str) -> Iterator[bool]:
    """Try to lock the run until the context exits. Yield False if another server has locked the run."""
    if not has_other_servers(engine):
        yield True
        return
    with engine.connect() as connection, connection.begin():
        yield bool(connection.scalar(_TRY_LOCK, {"run": run_id}))


def examined(engine: Engine, run_id: str) -> Revisions | None:
    """Return the current revision and the last examined revision of a run, or None if the run does not exist."""
    query = select(runs.c.revision, runs.c.examined).where(runs.c.id == run_id)
    with engine.connect() as connection:
        row = connection.execute(query).first()
    return None if row is None else Revisions(row.revision, row.examined)


def unexamined(engine: Engine, since: float, before: float, limit: int) -> list[str]:
    """Return the ids of runs that changed since their last examination, most recently seen first.

    Only runs last seen between ``since`` and ``before`` (Unix seconds) are returned.
    """
    query = (
        select(runs.c.id)
        .where(
            # This condition matches every run; it is needed to use the index, which begins with the state.
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
    """Lock the run to save a verdict on revision ``seen``.

    Return the revisions of the run, or None if a later revision was examined or the run no longer exists.
    """
    row = locked(connection, run_id)
    if row is None or row.examined > seen:
        return None
    return Revisions(row.revision, row.examined)


def saved(connection: Connection, run_id: str, seen: int, before: Revisions) -> int:
    """Record and return the examined revision. Called after the verdict was written.

    ``before`` is the result of `begin_saving`. The revision made by writing the verdict counts as examined too, unless
    the run had changed after revision ``seen``.
    """
    end = runs.c.revision if before.revision == seen else seen
    noted = update(runs).where(runs.c.id == run_id).values(examined=end)
    return int(connection.execute(noted.returning(runs.c.examined)).scalar_one())

"""Removing runs: gone for every reader in one transaction, their rows afterwards, a few at a time.

The row of the run goes at once, and with it what hangs on it by foreign keys. Batches, segments, chunks and
details have none; `sweep` deletes them in steps so short that ingest beside them hardly waits. Until it is done, a row
of `removals` says which process numbers are to go. A run with the same id that begins anew numbers its processes above
them (`known.next_process`), so nothing old is ever read as new, whenever and wherever the sweeping is broken off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Row,
    Table,
    and_,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from ..engine import writing
from ..schema import batches, chunks, details, processes, removals, runs, segments

# Of one step. A row lies on a page of its own, which may have to be read first.
ROWS_PER_STEP: Final = 64
# What sealed or compacted in the moment of the removal has committed by then, and is found by the second look.
SETTLED_SECONDS: Final = 60.0

Removed = Literal["removed", "live", "kept", "unknown"]
# Whether a run is to go all the same, by its row as it is now.
Still = Callable[[Connection, Row[Any]], bool]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A table that is swept: the columns of its key after those that are fixed."""

    table: Table
    key: tuple[Column[Any], ...]


# Batches first: nothing is sealed any more once they are gone.
_KEPT: Final = (
    _Kept(batches, (batches.c.process_id, batches.c.first_sequence)),
    _Kept(segments, (segments.c.process_id, segments.c.first_sequence)),
    _Kept(chunks, (chunks.c.process_id, chunks.c.series_id, chunks.c.first_sequence)),
)


def remove(
    engine: Engine, run_id: str, now: float, still: Still = lambda connection, run: True
) -> Removed:
    """The run is gone when this returns "removed"; a live one stays, because its next batch would begin it anew.

    ``still`` is asked while nobody else can change the run; when it says no, the run is "kept".
    """
    if "\x00" in run_id:
        return "unknown"
    with writing(engine) as connection:
        query = select(runs).where(runs.c.id == run_id).with_for_update()
        run = connection.execute(query).first()
        if run is None:
            return "unknown"
        if run.state == "running":
            return "live"
        if not still(connection, run):
            return "kept"
        _note(connection, run_id, now)
        connection.execute(delete(runs).where(runs.c.id == run_id))
    return "removed"


def waiting(engine: Engine) -> int:
    """Runs that are gone and have rows left."""
    with engine.connect() as connection:
        query = select(func.count()).where(removals.c.swept_at.is_(None))
        return int(connection.execute(query).scalar_one())


def sweep(engine: Engine, now: float, rows: int = ROWS_PER_STEP) -> bool:
    """Delete up to ``rows`` rows of a removed run. False: there is nothing to do at this moment.

    Not durable by itself on SQLite: what comes back after a power cut is deleted again.
    """
    due = or_(removals.c.swept_at.is_(None), removals.c.swept_at <= now - SETTLED_SECONDS)
    query = select(removals).where(due).order_by(removals.c.requested_at).limit(1)
    with engine.connect() as connection:
        # Most of the time there is nothing, and nobody who writes has to wait for that answer.
        if connection.execute(query).first() is None:
            return False
    with writing(engine, durable=False) as connection:
        # Another server that sweeps takes the next one.
        removal = connection.execute(query.with_for_update(skip_locked=True)).first()
        if removal is None:
            return False
        if _delete_some(connection, removal.run_id, removal.processes, rows):
            return True
        this = removals.c.run_id == removal.run_id
        if removal.swept_at is None:
            connection.execute(update(removals).where(this).values(swept_at=now))
        else:
            connection.execute(delete(removals).where(this))
        return True


def _note(connection: Connection, run_id: str, now: float) -> None:
    newest = select(func.coalesce(func.max(processes.c.id), 0)).where(processes.c.run_id == run_id)
    up_to = int(connection.execute(newest).scalar_one())
    before = connection.scalar(select(removals.c.processes).where(removals.c.run_id == run_id))
    values = {"processes": max(up_to, before or 0), "requested_at": now, "swept_at": None}
    if before is None:
        connection.execute(insert(removals).values(run_id=run_id, **values))
    else:
        # It had begun anew, and goes again before the rows of its first life have.
        connection.execute(update(removals).where(removals.c.run_id == run_id).values(**values))


def _delete_some(connection: Connection, run_id: str, up_to: int, rows: int) -> bool:
    for kept in _KEPT:
        mine = and_(kept.table.c.run_id == run_id, kept.table.c.process_id <= up_to)
        if _delete_first(connection, kept, mine, rows):
            return True
    d = details.c
    kind = connection.scalar(
        select(d.kind).where(d.run_id == run_id, d.process_id <= up_to).limit(1)
    )
    if kind is None:
        return False
    mine = and_(d.run_id == run_id, d.kind == kind, d.process_id <= up_to)
    return _delete_first(connection, _Kept(details, (d.process_id, d.sequence)), mine, rows)


def _delete_first(connection: Connection, kept: _Kept, mine: Any, rows: int) -> bool:
    """The first rows in order of the key, found and deleted by its index alone."""
    last = connection.execute(
        select(*kept.key).where(mine).order_by(*kept.key).offset(rows - 1).limit(1)
    ).first()
    if last is not None:
        mine = and_(mine, tuple_(*kept.key) <= tuple_(*(literal(value) for value in last)))
    return connection.execute(delete(kept.table).where(mine)).rowcount > 0

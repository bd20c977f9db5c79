"""Deletion of runs: hidden at once, removed when the time to undo it is over, and purged a few rows at a time.

A deleted run is left out of lists and can still be read by its id; what its training sends is stored, and the training
gets no alerts. It is removed when it was deleted GRACE_SECONDS ago and does not run any more: the next
batch of a live one would begin it again, and it would be back.

The row of the run goes at once, and with it what hangs on it by foreign keys. Batches, segments, chunks and
details have none; `sweep` deletes them in steps so short that ingest hardly waits for them. Until it is done, a row
of `removals` says which process numbers are to go. A run with the same id that starts again numbers its processes above
them (`known.next_process`), so nothing old is ever read as new, whenever and wherever the sweeping is broken off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from ..engine import writing
from ..schema import (
    batches,
    chunks,
    deletions,
    details,
    processes,
    removals,
    runs,
    segments,
    tokens,
)

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
    """The run is gone when this returns "removed"; a live one stays, because its next batch would begin it again.

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
        # Another run may come by this name, which was shared with nobody.
        connection.execute(delete(tokens).where(tokens.c.run_id == run_id))
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
        # It had begun again, and goes again before the rows of its first life have.
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


GRACE_SECONDS: Final = 600.0
# A run that says nothing counts as one that does not run any more after this.
SILENT_SECONDS: Final = 3_600.0
# In one go; a page of the list has fewer.
MAX_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Deleted:
    """``removed_at``: not before then, and not while it runs."""

    run_id: str
    project: str
    name: str
    state: str
    deleted_at: float

    @property
    def removed_at(self) -> float:
        return self.deleted_at + GRACE_SECONDS


def mark(engine: Engine, run_ids: Collection[str], now: float) -> int:
    """Delete these runs; how many of them were there and not deleted. Those that were keep their time."""
    with writing(engine) as connection:
        there = _locked(connection, run_ids)
        known = select(deletions.c.run_id).where(deletions.c.run_id.in_(there))
        new = set(there).difference(connection.scalars(known))
        if new:
            rows = select(runs.c.id, literal(now, deletions.c.deleted_at.type))
            rows = rows.where(runs.c.id.in_(new))
            connection.execute(insert(deletions).from_select(["run_id", "deleted_at"], rows))
    return len(new)


def undo(engine: Engine, run_ids: Collection[str]) -> int:
    """They are back in every list; how many of them had been deleted and not yet removed."""
    with writing(engine) as connection:
        # Whoever removes one holds its row until it is gone.
        there = _locked(connection, run_ids)
        gone = delete(deletions).where(deletions.c.run_id.in_(there))
        return connection.execute(gone).rowcount


def find(engine: Engine, run_id: str) -> Deleted | None:
    """The run, if it is deleted."""
    found = among(engine, [run_id])
    return found[0] if found else None


def among(engine: Engine, run_ids: Collection[str]) -> list[Deleted]:
    """Those of these runs that are deleted."""
    wanted = _without_nul(run_ids)
    with engine.connect() as connection:
        rows = connection.execute(_DELETED.where(deletions.c.run_id.in_(wanted)))
        return [Deleted(*row) for row in rows]


def at(engine: Engine, deleted_at: float) -> list[Deleted]:
    """What was deleted in one go, at this moment, and is not removed."""
    with engine.connect() as connection:
        rows = connection.execute(_DELETED.where(deletions.c.deleted_at == deleted_at))
        return [Deleted(*row) for row in rows]


def is_deleted(connection: Connection, run_id: str) -> bool:
    query = select(deletions.c.run_id).where(deletions.c.run_id == run_id)
    return connection.execute(query).first() is not None


def count(engine: Engine) -> int:
    """Of all that are deleted and not removed."""
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(deletions)).scalar_one())


def remove_next(engine: Engine, now: float) -> Deleted | None:
    """Remove a run whose time is over. None: there is none at this moment."""
    over = now - GRACE_SECONDS
    # A silent one may have lost its network.
    quiet = (runs.c.state != "silent") | (runs.c.last_seen_at <= now - SILENT_SECONDS)
    due = _DELETED.where(deletions.c.deleted_at <= over, runs.c.state != "running", quiet)
    with engine.connect() as connection:
        row = connection.execute(due.limit(1)).first()
    if row is None:
        return None

    def still(connection: Connection, run: Row[Any]) -> bool:
        mine = deletions.c.run_id == run.id
        query = select(deletions.c.run_id).where(mine, deletions.c.deleted_at <= over)
        return connection.execute(query).first() is not None

    going = Deleted(*row)
    return going if remove(engine, going.run_id, now, still) == "removed" else None


# Of a row of ``runs`` in a question.
IS_DELETED: Final = exists().where(deletions.c.run_id == runs.c.id)
_DELETED: Final = (
    select(runs.c.id, runs.c.project, runs.c.name, runs.c.state, deletions.c.deleted_at)
    .select_from(deletions.join(runs))
    .order_by(deletions.c.deleted_at, deletions.c.run_id)
)


def _locked(connection: Connection, run_ids: Collection[str]) -> list[str]:
    """Those of them that are there. All who lock several take them in this order."""
    wanted = _without_nul(run_ids)[:MAX_AT_ONCE]
    query = select(runs.c.id).where(runs.c.id.in_(wanted)).order_by(runs.c.id)
    return list(connection.scalars(query.with_for_update(key_share=True)))


def _without_nul(run_ids: Collection[str]) -> list[str]:
    # Postgres refuses the question instead of answering no.
    return [run_id for run_id in dict.fromkeys(run_ids) if "\x00" not in run_id]

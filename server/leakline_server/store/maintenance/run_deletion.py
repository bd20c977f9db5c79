"""Deletion of runs: a soft delete that can be undone, removal after a grace period, and purging a few rows at a time.

A deleted run is hidden from lists but can still be read by its id; data that its processes send is still stored, but
causes no alerts. The run is removed GRACE_SECONDS after its deletion, once it is no longer running: the next batch of a
live run would create it again.

Removal deletes the row of the run and all rows that refer to it by foreign keys. Batches, segments, chunks and details
have no foreign keys; `sweep` purges them in steps so short that ingest hardly waits for them. Until that is done, a row
of `removals` records the process numbers to purge. A new run with the same id gives its processes higher numbers
(`ingest_cache.next_process`), so old rows are never read as new, even if the purge is interrupted.
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

# The number of rows deleted in one step. Each row may be on a different page, which must be read first.
ROWS_PER_STEP: Final = 64
# The second pass waits this long, so that any sealing or compaction in progress when the run was removed has committed
# and its rows are found.
SETTLED_SECONDS: Final = 60.0

Removed = Literal["removed", "live", "kept", "unknown"]
# A function that returns True if a run should still be removed, given its current row.
Still = Callable[[Connection, Row[Any]], bool]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A table to purge, and the key columns that vary among the rows to purge."""

    table: Table
    key: tuple[Column[Any], ...]


# Batches come first, because nothing can be sealed once they are gone.
_KEPT: Final = (
    _Kept(batches, (batches.c.process_id, batches.c.first_sequence)),
    _Kept(segments, (segments.c.process_id, segments.c.first_sequence)),
    _Kept(chunks, (chunks.c.process_id, chunks.c.series_id, chunks.c.first_sequence)),
)


def remove(
    engine: Engine, run_id: str, now: float, still: Still = lambda connection, run: True
) -> Removed:
    """Remove a run and return "removed", or return the reason why it was not removed.

    A "live" run is not removed, because its next batch would create it again. ``still`` is called while the run is
    locked; if it returns False, the run is "kept".
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
        # A new run may get the same id, and must not be visible through the share links of the removed run.
        connection.execute(delete(tokens).where(tokens.c.run_id == run_id))
        connection.execute(delete(runs).where(runs.c.id == run_id))
    return "removed"


def waiting(engine: Engine) -> int:
    """Return the number of removed runs that still have rows to purge."""
    with engine.connect() as connection:
        query = select(func.count()).where(removals.c.swept_at.is_(None))
        return int(connection.execute(query).scalar_one())


def sweep(engine: Engine, now: float, rows: int = ROWS_PER_STEP) -> bool:
    """Purge up to ``rows`` rows of a removed run. Return False if there is nothing to do now.

    On SQLite the commit does not wait for the disk: rows that reappear after a power loss are deleted again.
    """
    due = or_(removals.c.swept_at.is_(None), removals.c.swept_at <= now - SETTLED_SECONDS)
    query = select(removals).where(due).order_by(removals.c.requested_at).limit(1)
    with engine.connect() as connection:
        # There is usually nothing to do, so check without taking the write lock.
        if connection.execute(query).first() is None:
            return False
    with writing(engine, durable=False) as connection:
        # Skip a removal that another server is purging.
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
        # The run was created again and is removed again before its earlier rows were purged.
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
    """Delete the first ``rows`` rows in key order, using only the key's index. Return True if any row was deleted."""
    last = connection.execute(
        select(*kept.key).where(mine).order_by(*kept.key).offset(rows - 1).limit(1)
    ).first()
    if last is not None:
        mine = and_(mine, tuple_(*kept.key) <= tuple_(*(literal(value) for value in last)))
    return connection.execute(delete(kept.table).where(mine)).rowcount > 0


GRACE_SECONDS: Final = 600.0
# A silent run counts as no longer running after this long.
SILENT_SECONDS: Final = 3_600.0
# The maximum number of runs to delete or restore in one call: more than a page of the run list shows.
MAX_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Deleted:
    """A soft-deleted run. It is removed at ``removed_at`` at the earliest, and not while it is running."""

    run_id: str
    project: str
    name: str
    state: str
    deleted_at: float

    @property
    def removed_at(self) -> float:
        return self.deleted_at + GRACE_SECONDS


def mark(engine: Engine, run_ids: Collection[str], now: float) -> int:
    """Soft-delete these runs, and return the number of newly deleted runs. A deleted run keeps its deletion time."""
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
    """Restore the soft-deleted runs that have not been removed yet, and return their number."""
    with writing(engine) as connection:
        # Lock the runs, because a removal locks its run until it is gone.
        there = _locked(connection, run_ids)
        gone = delete(deletions).where(deletions.c.run_id.in_(there))
        return connection.execute(gone).rowcount


def find(engine: Engine, run_id: str) -> Deleted | None:
    """Return the run if it is soft-deleted, otherwise None."""
    found = among(engine, [run_id])
    return found[0] if found else None


def among(engine: Engine, run_ids: Collection[str]) -> list[Deleted]:
    """Return the soft-deleted runs with these ids."""
    wanted = _without_nul(run_ids)
    with engine.connect() as connection:
        rows = connection.execute(_DELETED.where(deletions.c.run_id.in_(wanted)))
        return [Deleted(*row) for row in rows]


def at(engine: Engine, deleted_at: float) -> list[Deleted]:
    """Return the runs that were deleted together at this time and have not been removed yet."""
    with engine.connect() as connection:
        rows = connection.execute(_DELETED.where(deletions.c.deleted_at == deleted_at))
        return [Deleted(*row) for row in rows]


def is_deleted(connection: Connection, run_id: str) -> bool:
    query = select(deletions.c.run_id).where(deletions.c.run_id == run_id)
    return connection.execute(query).first() is not None


def count(engine: Engine) -> int:
    """Return the number of soft-deleted runs."""
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(deletions)).scalar_one())


def remove_next(engine: Engine, now: float) -> Deleted | None:
    """Remove a run whose grace period is over, and return it; return None if no run was removed."""
    over = now - GRACE_SECONDS
    # A recently silent run may only have lost its network connection.
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


# A condition for queries on ``runs``.
IS_DELETED: Final = exists().where(deletions.c.run_id == runs.c.id)
_DELETED: Final = (
    select(runs.c.id, runs.c.project, runs.c.name, runs.c.state, deletions.c.deleted_at)
    .select_from(deletions.join(runs))
    .order_by(deletions.c.deleted_at, deletions.c.run_id)
)


def _locked(connection: Connection, run_ids: Collection[str]) -> list[str]:
    """Lock the existing runs with these ids in order of id, and return their ids.

    All writers that lock several runs use this order, so they cannot deadlock.
    """
    wanted = _without_nul(run_ids)[:MAX_AT_ONCE]
    query = select(runs.c.id).where(runs.c.id.in_(wanted)).order_by(runs.c.id)
    return list(connection.scalars(query.with_for_update(key_share=True)))


def _without_nul(run_ids: Collection[str]) -> list[str]:
    # Postgres raises an error for text with NUL characters.
    return [run_id for run_id in dict.fromkeys(run_ids) if "\x00" not in run_id]

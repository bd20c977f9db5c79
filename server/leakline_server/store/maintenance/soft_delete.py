"""Runs that people delete: hidden at once, removed when the time to undo it is over.

A deleted run is left out of lists and can still be read by its id; what its training sends is stored, and the training
is told nothing. It is removed (`purge.py`) when it was deleted GRACE_SECONDS ago and does not run any more: the next
batch of a live one would begin it anew, and it would be back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, delete, exists, func, insert, literal, select

from ..engine import writing
from ..schema import deletions, runs
from . import purge

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
    return going if purge.remove(engine, going.run_id, now, still) == "removed" else None


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

"""Steps of tests that look at what is stored: the engine of an application, and its snapshots sealed."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from fastapi.testclient import TestClient
from sqlalchemy import update

from leakline_server.store import sealing
from leakline_server.store.engine import Engine, writing
from leakline_server.store.tables import batches

# What SQLite stores as text and its driver cannot read.
NOT_UTF8 = "CAST(X'FF5B' || 'sk-secret' AS TEXT)"
# When everything has been idle for long, in Unix seconds.
LATER = 4e9


def engine_of(api: TestClient) -> Engine:
    found: Engine = api.app.state.services.engine  # type: ignore[attr-defined]
    return found


def make_idle(engine: Engine) -> None:
    """As if all that waits had come long ago."""
    with writing(engine) as connection:
        connection.execute(update(batches).values(received_at=0.0))


def seal(engine: Engine) -> None:
    """All that waits and is enough for a segment."""
    make_idle(engine)
    while due := sealing.due(engine, LATER):
        for key in due:
            sealing.seal_one(engine, key, LATER)


def damage_all_of(run: str, file: Path) -> None:
    """Every text of its first row in each table, but for what says that it belongs to this run."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA foreign_keys=OFF")
        for table, of_run in (("runs", "id"), ("attempts", "run_id"), ("incidents", "run_id")):
            for _, column, kind, *_, key in database.execute(
                f"PRAGMA table_info({table})"
            ).fetchall():
                if kind == "TEXT" and not key and column != of_run:
                    first = f"SELECT min(rowid) FROM {table} WHERE {of_run} = ?"
                    statement = f"UPDATE {table} SET {column} = {NOT_UTF8} WHERE rowid = ({first})"
                    database.execute(statement, (run,))
        database.commit()

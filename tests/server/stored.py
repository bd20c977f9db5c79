"""Steps of tests that look at what is stored: the engine of an application, and its snapshots sealed."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, event, func, insert, select, update
from starlette.testclient import TestClient

from leakline.analysis.results import Finding, Interval, Verdict, to_json
from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.store import compaction, findings, sealing
from leakline_server.store.columns import Key
from leakline_server.store.engine import Engine, writing
from leakline_server.store.tables import batches, runs

# What SQLite stores as text and its driver cannot read.
NOT_UTF8 = "CAST(X'FF5B' || 'sk-secret' AS TEXT)"
# When everything has been idle for long, in Unix seconds.
LATER = 4e9
# Of most tests the only process.
R1 = Key("r1", 1)


def serving(url: str, *, raises: bool = True, **settings: Any) -> TestClient:
    """The application on this database; its workers work while the client is entered."""
    app = create_app(Config(database_url=url, **settings))
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=raises)


def engine_of(api: TestClient) -> Engine:
    found: Engine = api.app.state.services.engine  # type: ignore[attr-defined]
    return found


def put_run(connection: Connection, run_id: str, **values: Any) -> None:
    """One of project erl that has ended, as no client brought it."""
    of_all = {"project": "erl", "name": run_id, "unit": "generation", "state": "finished"}
    at = dict.fromkeys(("started_at", "created_at", "last_seen_at"), 1.0)
    connection.execute(insert(runs).values(id=run_id, **of_all | at | values))


def find(engine: Engine, run_id: str, *, when: float) -> Any:
    """Save a verdict with one confirmed leak, as an examination does; the incident that it made."""
    growth = Interval(7.0, 6.0, 8.0)
    found = Finding("f1", "confirmed", "objects", "train", 0.9, (), growth, None, 0.9)
    said = f"{run_id} leaks"
    verdict = Verdict(run_id, "generation", 9, "confirmed", said, growth, 0.9, (found,))
    with writing(engine) as connection:
        (change,) = findings.save(connection, verdict, to_json(verdict), when)
    return change


def change_file(engine: Engine, statement: str, **values: Any) -> None:
    """Past all that the server knows, and past foreign keys; SQLite only."""
    with contextlib.closing(sqlite3.connect(engine.url.database or "")) as database:
        database.execute(statement, values)
        database.commit()


def count_of(engine: Engine, what: Any, *which: Any) -> int:
    """Rows of a table, or whatever else can be asked for."""
    query = select(func.count()).select_from(what) if isinstance(what, Table) else select(what)
    with engine.connect() as connection:
        return int(connection.scalar(query.where(*which)) or 0)


@contextlib.contextmanager
def statements(engine: Engine, do: Callable[[str], Any] | None = None) -> Iterator[list[Any]]:
    """Each (statement, parameters) as it is asked. ``do``: what somebody else does before the next."""
    asked: list[Any] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))
        if do is not None:
            do(statement)

    event.listen(engine, "after_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(engine, "after_cursor_execute", note)


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


def seal_all(engine: Engine, key: Key = R1) -> None:
    """All that waits of one process, be it as little as it may."""
    make_idle(engine)
    while sealing.seal_one(engine, key, LATER).snapshots:
        continue


def compact_all(engine: Engine) -> None:
    for key in compaction.due(engine, LATER):
        while compaction.compact(engine, key, LATER):
            continue


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

"""Helpers for server tests: an application in this process, and stored data that is sealed or damaged."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import sqlalchemy
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Table, event, func, insert, select, update
from starlette.testclient import TestClient

from leakline.analysis.results import Finding, Interval, Verdict, to_json
from leakline.analysis.run_history import RunHistory
from leakline_server.alerts.incident_alerts import incidents_after
from leakline_server.app import create_app
from leakline_server.client_connections import Connection
from leakline_server.config import Config
from leakline_server.store import findings
from leakline_server.store.engine import Engine, reading, writing
from leakline_server.store.findings import IncidentChange
from leakline_server.store.runs import run_history
from leakline_server.store.schema import Key, batches, runs
from leakline_server.store.series import compaction, sealing
from leakline_server.web.services import Services

# SQLite stores this as text, and its driver cannot read it.
NOT_UTF8 = "CAST(X'FF5B' || 'sk-secret' AS TEXT)"
# A time in Unix seconds at which everything has been idle for long.
LATER = 4e9
# The only process in most tests.
R1 = Key("r1", 1)
START_SECONDS = 15.0


def serving(url: str, *, raises: bool = True, **settings: Any) -> TestClient:
    """Return a client of the application on this database; workers run while the client is entered."""
    app = create_app(Config(database_url=url, **settings))
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=raises)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """Opens a connection for each request."""

    port: int
    services: Services
    # Headers that are sent with every request.
    sends: Mapping[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(
                method, path, data, {"content-type": "application/json", **self.sends, **sent}
            )
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json()

    def post(self, path: str, body: Any) -> Any:
        answer = self.ask("POST", path, body)
        assert answer.status in (200, 201), answer.body
        return answer.json()


@contextlib.contextmanager
def listening(app: FastAPI, keep_alive: float = 5.0) -> Iterator[Client]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, ws="none", server_header=False,
            timeout_graceful_shutdown=1, timeout_keep_alive=keep_alive, http=Connection,
        )  # fmt: skip
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        pause, deadline = threading.Event(), time.monotonic() + START_SECONDS
        while not server.started:
            assert thread.is_alive() and time.monotonic() < deadline, "it does not start"
            pause.wait(0.01)
        try:
            yield Client(opened.getsockname()[1], app.state.services)
        finally:
            server.should_exit = True
            thread.join(START_SECONDS)


def engine_of(api: TestClient) -> Engine:
    found: Engine = api.app.state.services.engine  # type: ignore[attr-defined]
    return found


def put_run(connection: sqlalchemy.Connection, run_id: str, **values: Any) -> None:
    """Insert a finished run of project erl without a client."""
    of_all = {"project": "erl", "name": run_id, "unit": "generation", "state": "finished"}
    at = dict.fromkeys(("started_at", "created_at", "last_seen_at"), 1.0)
    connection.execute(insert(runs).values(id=run_id, **of_all | at | values))


def find(engine: Engine, run_id: str, *, when: float, leaks: Sequence[str] = ("f1",)) -> Any:
    """Save a verdict with these confirmed leaks, as an examination does; return the first incident that changed."""
    growth = Interval(7.0, 6.0, 8.0)
    found = tuple(
        Finding(each, "confirmed", "objects", "train", 0.9, (), growth, None, 0.9) for each in leaks
    )
    said = f"{run_id} leaks"
    verdict = Verdict(run_id, "generation", 9, "confirmed", said, growth, 0.9, found)
    return save_verdict(engine, verdict, when)[0]


def save_verdict(engine: Engine, verdict: Verdict, when: float) -> Sequence[IncidentChange]:
    """Save a verdict as an examination does, without alerts; return the changes of incidents."""
    with writing(engine) as connection:
        found = incidents_after(findings.incidents_of(connection, verdict.run), verdict, when)
        findings.save(connection, verdict, to_json(verdict), found)
    return found.changes


def load_for_examination(engine: Engine, run_id: str) -> tuple[RunHistory, int]:
    with reading(engine) as connection:
        return run_history.load_for_examination(connection, run_id)


def change_file(engine: Engine, statement: str, **values: Any) -> None:
    """Change the file without the server's knowledge and without checking foreign keys; SQLite only."""
    with contextlib.closing(sqlite3.connect(engine.url.database or "")) as database:
        database.execute(statement, values)
        database.commit()


def count_of(engine: Engine, what: Any, *which: Any) -> int:
    """Count the rows of a table, or evaluate another query."""
    query = select(func.count()).select_from(what) if isinstance(what, Table) else select(what)
    with engine.connect() as connection:
        return int(connection.scalar(query.where(*which)) or 0)


@contextlib.contextmanager
def statements(engine: Engine, do: Callable[[str], Any] | None = None) -> Iterator[list[Any]]:
    """Collect each (statement, parameters) as it is executed. ``do`` runs before the next statement."""
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
    """Make everything that is waiting look as if it had arrived long ago."""
    with writing(engine) as connection:
        connection.execute(update(batches).values(received_at=0.0))


def seal(engine: Engine) -> None:
    """Seal everything that is waiting and is enough for a segment."""
    make_idle(engine)
    while due := sealing.due(engine, LATER):
        for key in due:
            sealing.seal(engine, key, LATER)


def seal_all(engine: Engine, key: Key = R1) -> None:
    """Seal everything that is waiting of one process, however little."""
    make_idle(engine)
    while sealing.seal(engine, key, LATER).snapshots:
        continue


def compact_all(engine: Engine) -> None:
    for key in compaction.due(engine, LATER):
        while compaction.compact(engine, key, LATER):
            continue


def damage_all_of(run: str, file: Path) -> None:
    """Damage every text of the first row in each table, except the column that links it to this run."""
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

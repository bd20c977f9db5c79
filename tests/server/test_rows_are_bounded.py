"""Every table that requests fill has a bound, by name, and what has no other loses its oldest rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Table, func, insert, select
from starlette.testclient import TestClient
from tests.server.access.people import ADDRESS, asking, bearer, sign_in, token
from tests.server.databases import Copies

from leakline.analysis.results import Finding, Interval, Verdict, to_json
from leakline_server import credentials, limits
from leakline_server.app import create_app
from leakline_server.store import alerts, findings, requests, tables
from leakline_server.store.engine import Engine, writing
from leakline_server.store.newest import keep_newest
from leakline_server.workers.examine import Examiner

# Table -> the limits that bound its rows; what is derived of rows that have limits, where nothing else is.
BOUNDS: Final[dict[str, tuple[str, ...]]] = {
    "runs": ("RUNS_PER_DAY", "PROJECTS_PER_DAY"),
    "attempts": ("MAX_RUN_ATTEMPTS",),
    "processes": ("MAX_RUN_PROCESSES",),
    "series": ("MAX_RUN_SERIES", "MAX_RUN_TYPES", "MAX_RUN_PHASES"),
    "batches": ("BYTES_PER_DAY",),
    "segments": ("BYTES_PER_DAY",),
    "chunks": ("BYTES_PER_DAY",),
    "rollups": ("BYTES_PER_DAY",),
    "details": ("BYTES_PER_DAY",),
    "requests": ("MAX_REQUESTS", "MAX_PAST"),
    "incidents": ("MAX_RUN_INCIDENTS", "MAX_RUN_SERIES"),
    "alerts": ("MAX_RUN_ALERTS",),
    "webhooks": ("MAX_WEBHOOKS",),
    # Of each leak, of which a run has so many.
    "acknowledgements": ("MAX_PAST", "MAX_RUN_INCIDENTS"),
    "accepted_counts": ("MAX_ACCEPTED_COUNTS", "MAX_PAST"),
    "rules": ("MAX_RULES",),
    # Of each run and rule.
    "rule_states": ("RUNS_PER_DAY", "MAX_RULES"),
    # Of each alert and webhook.
    "deliveries": ("MAX_RUN_ALERTS", "MAX_WEBHOOKS"),
    "tries": ("MAX_RUN_ALERTS", "MAX_WEBHOOKS"),
    # One of each run, or of each run that was.
    "sizes": ("RUNS_PER_DAY",),
    "deletions": ("RUNS_PER_DAY",),
    "removals": ("RUNS_PER_DAY",),
    # One of each project and day.
    "intake": ("PROJECTS_PER_DAY",),
    "tokens": ("MAX_TOKENS", "MAX_PAST"),
    "sessions": ("MAX_SESSIONS", "MAX_SESSIONS_OF_ONE"),
    "damaged": ("MAX_DAMAGED",),
    # The keys are ours, and `test_the_keys_of_settings_are_few` counts them.
    "settings": (),
}


@pytest.fixture
def api(
    sqlite_copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    """A server that asks, with cheap hashes, and without an examiner that resolves what a test has planted."""
    from argon2 import PasswordHasher

    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(credentials, "_hasher", lambda: cheap)
    monkeypatch.setattr(Examiner, "once", lambda self: 60.0)
    with (
        sqlite_copies.new(tmp_path) as url,
        TestClient(create_app(asking(url)), base_url=ADDRESS) as client,
    ):
        yield client


@pytest.fixture
def engine(api: TestClient) -> Engine:
    engine: Engine = api.app.state.services.engine  # type: ignore[attr-defined]
    return engine


@pytest.fixture
def admin(engine: Engine) -> dict[str, str]:
    return bearer(token(engine, "admin")[1])


def count(engine: Engine, table: Table, *which: Any) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(select(func.count()).select_from(table).where(*which)) or 0)


def test_every_table_has_a_bound() -> None:
    assert BOUNDS.keys() == tables.metadata.tables.keys()


def test_every_bound_is_a_limit() -> None:
    assert {name for names in BOUNDS.values() for name in names} <= vars(limits).keys()
    assert [table for table, names in BOUNDS.items() if not names] == ["settings"]


def test_the_keys_of_settings_are_few(api: TestClient, engine: Engine, admin: Any) -> None:
    before = count(engine, tables.settings)
    for number in range(12):
        api.post("/api/v1/runs", json={"id": f"r{number}", "project": f"p{number}"}, headers=admin)
        api.post("/api/v1/webhooks", json={"url": f"https://192.0.2.1/{number}"}, headers=admin)
        sign_in(api)
    assert count(engine, tables.settings) <= before + 2


def test_one_token_makes_few_sessions_and_ends_none_of_others(
    api: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.logins.MAX_SESSIONS_OF_ONE", 5)
    other, own = token(engine, "read"), token(engine, "read")
    assert sign_in(api, other[1]).status_code == sign_in(api).status_code == 303
    for _ in range(12):
        assert sign_in(api, own[1]).status_code == 303
    assert api.get("/", follow_redirects=False).status_code == 200
    of = tables.sessions.c.token_id
    assert [count(engine, tables.sessions, of == number) for number in (other[0], own[0])] == [1, 5]
    for _ in range(7):
        sign_in(api)
    assert count(engine, tables.sessions, of.is_(None)) == 5


def test_all_sessions_are_bounded(
    api: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.logins.MAX_SESSIONS", 4)
    for _ in range(3):
        for secret in [token(engine, "read")[1] for _ in range(3)]:
            assert sign_in(api, secret).status_code == 303
    assert count(engine, tables.sessions) == 4


def test_revoked_tokens_are_bounded(
    api: TestClient, engine: Engine, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.tokens.MAX_PAST", 3)
    kept = token(engine, "read")[0]
    for _ in range(9):
        made = api.post("/api/v1/tokens", json={"scope": "read"}, headers=admin)
        assert made.status_code == 201, made.text
        api.delete(f"/api/v1/tokens/{made.json()['id']}", headers=admin)
    # The one that was revoked last goes with the next that is made.
    assert count(engine, tables.tokens, tables.tokens.c.revoked_at.is_not(None)) == 4
    assert count(engine, tables.tokens, tables.tokens.c.id == kept) == 1


def test_counts_that_are_no_longer_accepted_are_bounded(
    api: TestClient, engine: Engine, admin: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.accepted_counts.MAX_PAST", 3)
    api.headers.update(admin)
    make_run().create(api)
    make_run().send(api, 3, 6)
    for number in range(9):
        body = {"type": "app.Env", "low": number, "high": number}
        answer = api.post("/api/v1/runs/r1/expectations", json=body, headers=admin)
        assert answer.status_code < 300, answer.text
    ended = tables.accepted_counts.c.ended_at
    assert count(engine, tables.accepted_counts, ended.is_(None)) == 1
    assert count(engine, tables.accepted_counts, ended.is_not(None)) == 3


def verdict(fingerprints: list[str]) -> Verdict:
    growth = Interval(7.0, 6.0, 8.0)
    found = tuple(
        Finding(name, "confirmed", "objects", None, None, (), growth, None, 0.9)
        for name in fingerprints
    )
    return Verdict("r1", "generation", 9, "confirmed", "r1 leaks", growth, 0.9, found)


def examine(engine: Engine, fingerprints: list[str], now: float) -> None:
    said = verdict(fingerprints)
    with writing(engine) as connection:
        findings.save(connection, said, to_json(said), now)


@pytest.fixture
def run(api: TestClient, admin: Any) -> None:
    body = {"id": "r1", "project": "p"}
    assert api.post("/api/v1/runs", json=body, headers=admin).status_code == 201


def test_what_people_said_of_a_leak_is_bounded(
    api: TestClient, engine: Engine, admin: Any, run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.acknowledgements.MAX_PAST", 3)
    examine(engine, ["f1"], time.time())
    for word in ["close"] + ["ignore", "acknowledge"] * 6:
        body = {"project": "p", "reason": word}
        answer = api.post(f"/api/v1/incidents/f1/{word}", json=body, headers=admin)
        assert answer.status_code == 200, answer.text
    table = tables.acknowledgements
    # A note that still holds stays, however old it is.
    assert count(engine, table, table.c.ended_at.is_(None), table.c.kind == "closed") == 1
    assert count(engine, table, table.c.ended_at.is_(None), table.c.kind == "acknowledged") == 1
    assert count(engine, table) == 5


def test_incidents_of_a_run_that_are_over_are_bounded(
    engine: Engine, run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.findings.MAX_RUN_INCIDENTS", 4)
    for number in range(10):
        examine(engine, ["stays", f"f{number}"], 1e9 + number)
    names = select(tables.incidents.c.fingerprint).order_by(tables.incidents.c.fingerprint)
    with engine.connect() as connection:
        assert connection.scalars(names).all() == ["f5", "f6", "f7", "f8", "f9", "stays"]


def test_alerts_of_a_run_are_bounded(
    engine: Engine, run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.alerts.MAX_RUN_ALERTS", 4)
    for number in range(10):
        told = alerts.Alert(f"a{number}", "r1", None, "run.killed", 1e9, {}, "run")
        with writing(engine) as connection:
            alerts.add(connection, [told])
    with engine.connect() as connection:
        there = connection.scalars(select(tables.alerts.c.id).order_by(tables.alerts.c.id)).all()
    assert there == ["a6", "a7", "a8", "a9"]


def test_answered_requests_of_a_run_are_bounded(
    engine: Engine, run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.requests.MAX_PAST", 3)
    for number in range(9):
        wanted = requests.Wanted("find_holders", f"app.Class{number}")
        asked = requests.ask(engine, "r1", wanted, 1e9 + number)
        requests.answered(engine, {asked.id: "r1"})
    assert count(engine, tables.requests) == 4


def test_rows_of_others_stay(engine: Engine) -> None:
    table = tables.accepted_counts
    row = {"type": "app.Env", "low": 1, "high": 1, "run": "r1", "created_at": 1.0, "ended_at": 2.0}
    with writing(engine) as connection:
        connection.execute(insert(table), [{**row, "project": name} for name in "pqpqpq"])
        keep_newest(connection, table.c.id, table.c.id, 1, table.c.project == "p")
    assert [count(engine, table, table.c.project == name) for name in "pq"] == [1, 3]

"""Each limit of `limits.py` is exceeded: refused in one line, or folded, cut or left out, and counted."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest
import zstandard
from argon2 import PasswordHasher
from sqlalchemy import insert, select
from starlette.testclient import TestClient
from tests.server.access.people import ADDRESS, asking, bearer, sign_in, token
from tests.server.conftest import DATABASES, copies_of
from tests.server.databases import Copies
from tests.server.otlp_requests import memory, request
from tests.server.stored import Answer, Client, count_of, engine_of, find, listening, serving

from leakline_server import limits
from leakline_server.app import create_app
from leakline_server.config import Config, from_environment
from leakline_server.security import credentials
from leakline_server.store import request_rows, schema
from leakline_server.store.alerts import alert_rows
from leakline_server.store.engine import Engine, keep_newest, writing
from leakline_server.store.maintenance.retention_policy import PerProject
from leakline_server.workers.examination_worker import Examiner

BATCHES = "/api/v1/runs/r1/batches"


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    made = make_run()
    made.create(api)
    return made


def lost(api: TestClient) -> dict[str, int]:
    found: dict[str, int] = api.get("/api/v1/runs/r1").json()["processes"][0]["lost"]
    return found


def values(api: TestClient, name: str, **query: Any) -> list[float]:
    asked = {"name": name, "x": "sequence", **query}
    (item,) = api.get("/api/v1/runs/r1/series", params=asked).json()["items"]
    return list(item["last"])


# -- cardinality
def test_types_beyond_the_bound_are_summed(api: TestClient, run: Any, patch: Any) -> None:
    # app.Env of each snapshot, and two more.
    patch("store.ingest.cardinality.MAX_RUN_TYPES", 3)
    wire = run.wire(0, 3)
    wire["columns"]["series"] |= {f"type.app.T{i}.count": [10 * i, None, 1] for i in range(4)}
    wire["columns"]["series"] |= {
        "type.app.T3.bytes": [100, 200, 300],
        "type.app.T0.bytes": [7, 7, 7],
    }
    assert api.post(BATCHES, json=wire).json()["accepted"] == 3
    names = api.get("/api/v1/runs/r1").json()["series"]
    assert [n for n in names if n.startswith("type.")] == [
        "type.app.Env.count", "type.app.T0.bytes", "type.app.T0.count", "type.app.T1.count",
        "type.other.bytes", "type.other.count",
    ]  # fmt: skip
    assert values(api, "type.other.count") == [50, 2]
    assert values(api, "type.other.bytes") == [100, 200, 300]
    assert lost(api) == {"types_over_limit": 7}


def test_folded_values_sent_again_are_compared(api: TestClient, run: Any, patch: Any) -> None:
    patch("store.ingest.cardinality.MAX_RUN_TYPES", 2)
    patch("store.ingest.cardinality.MAX_RUN_PHASES", 2)
    wire = run.wire(0, 3)
    wire["columns"]["series"] |= {f"type.app.T{i}.count": [i, 5, 0.5] for i in range(5)}
    wire["columns"]["phase"] = ["a", "b", "c"]
    del wire["columns"]["series"]["phase.evaluate.bytes"]
    wire["columns"]["series"] |= {f"phase.{p}.bytes": [1, 2, 3] for p in "abcd"}
    for accepted in (3, 0, 0):
        assert api.post(BATCHES, json=wire).json()["accepted"] == accepted
    assert lost(api) == {"types_over_limit": 12, "phases_over_limit": 1}
    assert values(api, "type.other.count") == [10, 20, 2.0]
    assert values(api, "phase.other.bytes") == [2, 4, 6]
    wire["columns"]["series"]["type.app.T4.count"][1] = 6
    answer = api.post(BATCHES, json=wire)
    assert answer.status_code == 409
    assert answer.json()["error"]["details"]["field"] == "type.other.count"


def test_phases_beyond_the_bound_become_one_phase(api: TestClient, run: Any) -> None:
    count = 3 * limits.MAX_RUN_PHASES
    wire = run.wire(0, count)
    wire["columns"]["phase"] = [f"phase {i}" for i in range(count)]
    wire["events"] = wire["census"] = wire["large_objects"] = wire["holders"] = []
    assert api.post(BATCHES, json=wire).json()["accepted"] == count
    seen = api.get("/api/v1/runs/r1").json()["phases_seen"]
    assert seen == [*(f"phase {i}" for i in range(limits.MAX_RUN_PHASES)), "other"]
    assert lost(api) == {"phases_over_limit": 2 * limits.MAX_RUN_PHASES}
    others = values(api, "process.rss_bytes", phase="other")
    assert len(others) == 2 * limits.MAX_RUN_PHASES
    more = run.wire(count, 3)
    more["columns"]["phase"] = ["phase 0", "new", None]
    assert api.post(BATCHES, json=more).json()["accepted"] == 3
    assert lost(api)["phases_over_limit"] == 2 * limits.MAX_RUN_PHASES + 1
    assert "The run has more phases than allowed" in api.get("/runs/r1?tab=all").text


def test_processes_that_join_a_run_are_bounded(
    api: TestClient, run: Any, make_run: Any, patch: Any
) -> None:
    patch("store.runs.run_registration.MAX_RUN_PROCESSES", 1)
    run.send(api, 0, 3)
    for status, name in ((409, "p2"), (200, "p1")):
        header = run.header | {"process": {"instance": name}}
        answer = api.post("/api/v1/runs", json=header)
        assert answer.status_code == status
        assert status == 200 or answer.json()["error"]["code"] == "too_many_processes"


# -- clocks
def test_times_of_a_clock_ahead_are_clamped(api: TestClient, run: Any, make_run: Any) -> None:
    ahead = make_run(started=time.time() + 86_400.0)
    for accepted in (33, 0):
        wire = ahead.wire(0, 33)
        assert api.post(BATCHES, json=wire).json()["accepted"] == accepted
    now = time.time()
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    assert len(rows) == 33
    assert all(now - 60 <= row["time"] <= now for row in rows)
    events = api.get("/api/v1/runs/r1/events").json()["items"]
    assert events
    assert all(now - 60 <= event["time"] <= now for event in events)
    found = api.get("/api/v1/runs/r1").json()
    (process,) = found["processes"]
    assert process["lost"] == {"clock_ahead": 33}
    assert process["clock_skew_seconds"] < -86_000
    assert process["started_at"] <= found["last_seen_at"]
    assert "clock was minutes ahead" in api.get("/runs/r1?tab=all").text
    # These values belong to another snapshot after the correction and still contradict.
    wire["columns"]["series"]["process.rss_bytes"][0] += 1
    assert api.post(BATCHES, json=wire).status_code == 409


def test_a_run_neither_begins_nor_ends_in_the_future(api: TestClient) -> None:
    later = time.time() + 1e6
    api.post("/api/v1/runs", json={"id": "r1", "started_at": later})
    api.patch("/api/v1/runs/r1", json={"state": "finished", "ended_at": later})
    found = api.get("/api/v1/runs/r1").json()
    assert found["started_at"] <= found["ended_at"] <= found["last_seen_at"]


# -- a project and day
@pytest.fixture
def bounded(database_url: str, make_run: Any) -> Any:
    runs, bytes_ = (PerProject(most, {"free": None}) for most in (3, 2_000))
    with serving(database_url, runs_per_day=runs, bytes_per_day=bytes_) as client:
        yield client


def assert_told_to_wait(answer: Any, code: str) -> None:
    assert answer.status_code == 429, answer.text
    assert answer.json()["error"]["code"] == code
    assert 1 <= int(answer.headers["retry-after"]) <= 3_600


def test_the_runs_of_a_project_and_day_are_bounded(bounded: TestClient) -> None:
    for n in range(3):
        assert bounded.post("/api/v1/runs", json={"id": f"r{n}", "project": "p"}).status_code == 201
    assert_told_to_wait(
        bounded.post("/api/v1/runs", json={"id": "r3", "project": "p"}), "too_many_runs"
    )
    assert bounded.get("/api/v1/runs/r3").status_code == 404
    # Joining a run does not count, and other projects are not affected.
    assert bounded.post("/api/v1/runs", json={"id": "r1", "project": "p"}).status_code == 200
    assert bounded.post("/api/v1/runs", json={"id": "other", "project": "q"}).status_code == 201
    for n in range(5):
        header = {"id": f"f{n}", "project": "free"}
        assert bounded.post("/api/v1/runs", json=header).status_code == 201


def test_the_bytes_of_a_project_and_day_are_bounded(bounded: TestClient, make_run: Any) -> None:
    runs = [make_run(), make_run(id="r2"), make_run(id="r3")]
    for run, project in zip(runs, ("p", "p", "free"), strict=True):
        bounded.post("/api/v1/runs", json=run.header | {"project": project})
    first, second, free = runs
    first.send(bounded, 0, 200)
    assert_told_to_wait(
        bounded.post("/api/v1/runs/r1/batches", json=first.wire(200, 3)), "too_many_bytes"
    )
    assert_told_to_wait(
        bounded.post("/api/v1/runs/r2/batches", json=second.wire(0, 3)), "too_many_bytes"
    )
    # Snapshots that are already stored do not count.
    assert first.send(bounded, 0, 100) == 0
    free.send(bounded, 0, 600)
    text = bounded.get("/metrics").text
    assert 'leakline_batches_refused_total{code="too_many_bytes"} 2.0' in text


def test_bytes_of_today_survive_a_restart(database_url: str, make_run: Any, patch: Any) -> None:
    # Every transaction writes its counts to the database.
    patch("store.ingest.project_quota.FLUSH_SECONDS", 0.0)
    bound = {"bytes_per_day": PerProject(2_000)}
    run = make_run()
    with serving(database_url, **bound) as first:
        run.create(first)
        run.send(first, 0, 200)
    with serving(database_url, **bound) as second:
        assert_told_to_wait(second.post(BATCHES, json=run.wire(200, 3)), "too_many_bytes")


def test_bytes_of_yesterday_do_not_count(bounded: TestClient, make_run: Any, patch: Any) -> None:
    run = make_run()
    run.create(bounded)
    run.send(bounded, 0, 200)
    assert_told_to_wait(bounded.post(BATCHES, json=run.wire(200, 3)), "too_many_bytes")
    tomorrow = time.time() + 86_400.0
    patch("web.ingest.api.time.time", lambda: tomorrow)
    run.send(bounded, 200, 3)


def test_limits_are_on_by_default_and_can_differ_by_project() -> None:
    assert Config().runs_per_day.of("p") == limits.RUNS_PER_DAY
    assert Config().bytes_per_day.of("p") == limits.BYTES_PER_DAY
    made = from_environment(
        {"LEAKLINE_RUNS_PER_DAY": "q=7,s=unlimited", "LEAKLINE_BYTES_PER_DAY": "1 GiB"}
    )
    found = [made.runs_per_day.of(project) for project in "pqs"]
    assert found == [limits.RUNS_PER_DAY, 7, None]
    assert made.bytes_per_day.of("p") == 2**30


# -- answers
def test_lists_without_pages_are_bounded(api: TestClient, run: Any, patch: Any) -> None:
    patch("store.details.MAX_LISTED", 2)
    wire = run.wire(0, 3)
    of = [{"sequence": 2, "type": f"T{i}"} for i in range(9)]
    wire["large_objects"] = [
        {**each, "bytes": i, "detail": "", "holder": ""} for i, each in enumerate(of)
    ]
    wire["holders"] = [
        {**each, "path": "p", "count": i, "bytes_each": None} for i, each in enumerate(of)
    ]
    mark = {"sequence": 2, "kind": "mark"}
    wire["events"] = [{**mark, "time": 1e9 + i, "name": f"m{i}"} for i in range(9)]
    assert api.post(BATCHES, json=wire).status_code == 200
    for path, key, expected in (
        ("large-objects", "type", ["T8", "T7"]),
        ("holders", "type", ["T8", "T7"]),
        ("events", "name", ["m7", "m8"]),
    ):
        items = api.get(f"/api/v1/runs/r1/{path}").json()["items"]
        assert [item[key] for item in items] == expected


# Table -> the limits that bound its rows; rows derived from bounded rows need no limit of their own.
BOUNDS: Final[dict[str, tuple[str, ...]]] = {
    "runs": ("RUNS_PER_DAY", "PROJECTS_PER_DAY"),
    "attempts": ("MAX_RUN_ATTEMPTS",), "processes": ("MAX_RUN_PROCESSES",),
    "series": ("MAX_RUN_SERIES", "MAX_RUN_TYPES", "MAX_RUN_PHASES"),
    **dict.fromkeys(("batches", "segments", "chunks", "details"), ("BYTES_PER_DAY",)),
    "requests": ("MAX_REQUESTS", "MAX_PAST"), "incidents": ("MAX_RUN_INCIDENTS", "MAX_RUN_SERIES"),
    "alerts": ("MAX_RUN_ALERTS",), "webhooks": ("MAX_WEBHOOKS",),
    # Per leak, and the leaks of a run are bounded.
    "acknowledgements": ("MAX_PAST", "MAX_RUN_INCIDENTS"),
    # Rules, and the accepted counts of each project.
    "assertions": ("MAX_RULES", "MAX_ACCEPTED_COUNTS", "MAX_PAST"),
    # Per run and rule, and per alert and webhook.
    "assertion_states": ("RUNS_PER_DAY", "MAX_RULES"),
    **dict.fromkeys(("deliveries", "delivery_attempts"), ("MAX_RUN_ALERTS", "MAX_WEBHOOKS")),
    # One per run, or per former run.
    **dict.fromkeys(("sizes", "deletions", "removals"), ("RUNS_PER_DAY",)),
    # One per project and day.
    "intake": ("PROJECTS_PER_DAY",), "tokens": ("MAX_TOKENS", "MAX_PAST"),
    "sessions": ("MAX_SESSIONS", "MAX_SESSIONS_OF_ONE"), "damaged": ("MAX_DAMAGED",),
    # The keys are fixed, and `test_the_settings_table_has_few_keys` counts them.
    "settings": (),
}  # fmt: skip


@pytest.fixture
def asking_api(
    sqlite_copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    """Yield a server with authentication, cheap hashes, and no examiner that would resolve planted incidents."""
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(credentials, "_hasher", lambda: cheap)
    monkeypatch.setattr(Examiner, "once", lambda self: 60.0)
    with (
        sqlite_copies.new(tmp_path) as url,
        TestClient(create_app(asking(url)), base_url=ADDRESS) as client,
    ):
        yield client


@pytest.fixture
def engine(asking_api: TestClient) -> Engine:
    return engine_of(asking_api)


@pytest.fixture
def admin(engine: Engine) -> dict[str, str]:
    return bearer(token(engine, "admin")[1])


def test_every_table_has_a_bound_that_is_a_limit() -> None:
    assert BOUNDS.keys() == schema.metadata.tables.keys()
    assert {name for names in BOUNDS.values() for name in names} <= vars(limits).keys()
    assert [table for table, names in BOUNDS.items() if not names] == ["settings"]


def test_the_settings_table_has_few_keys(
    asking_api: TestClient, engine: Engine, admin: Any
) -> None:
    before = count_of(engine, schema.settings)
    for number in range(12):
        asking_api.post(
            "/api/v1/runs", json={"id": f"r{number}", "project": f"p{number}"}, headers=admin
        )
        asking_api.post(
            "/api/v1/webhooks", json={"url": f"https://192.0.2.1/{number}"}, headers=admin
        )
        sign_in(asking_api)
    assert count_of(engine, schema.settings) <= before + 2


def test_sessions_of_a_token_are_bounded(
    asking_api: TestClient, engine: Engine, patch: Any
) -> None:
    patch("store.access.MAX_SESSIONS_OF_ONE", 5)
    other, own = token(engine, "read"), token(engine, "read")
    assert sign_in(asking_api, other[1]).status_code == sign_in(asking_api).status_code == 303
    for _ in range(12):
        assert sign_in(asking_api, own[1]).status_code == 303
    assert asking_api.get("/", follow_redirects=False).status_code == 200
    of = schema.sessions.c.token_id
    counts = [count_of(engine, schema.sessions, of == number) for number in (other[0], own[0])]
    assert counts == [1, 5]
    for _ in range(7):
        sign_in(asking_api)
    assert count_of(engine, schema.sessions, of.is_(None)) == 5


def test_all_sessions_are_bounded(asking_api: TestClient, engine: Engine, patch: Any) -> None:
    patch("store.access.MAX_SESSIONS", 4)
    for _ in range(3):
        for secret in [token(engine, "read")[1] for _ in range(3)]:
            assert sign_in(asking_api, secret).status_code == 303
    assert count_of(engine, schema.sessions) == 4


def test_old_revoked_tokens_are_removed(
    asking_api: TestClient, engine: Engine, admin: Any, patch: Any
) -> None:
    patch("store.access.MAX_PAST", 3)
    kept = token(engine, "read")[0]
    for _ in range(9):
        made = asking_api.post("/api/v1/tokens", json={"scope": "read"}, headers=admin)
        assert made.status_code == 201, made.text
        asking_api.delete(f"/api/v1/tokens/{made.json()['id']}", headers=admin)
    # The token that was revoked last is removed when the next one is created.
    assert count_of(engine, schema.tokens, schema.tokens.c.revoked_at.is_not(None)) == 4
    assert count_of(engine, schema.tokens, schema.tokens.c.id == kept) == 1


def test_counts_that_are_no_longer_accepted_are_removed(
    admin: Any, asking_api: TestClient, engine: Engine, make_run: Any, patch: Any
) -> None:
    patch("store.alerts.assertions.MAX_PAST", 3)
    asking_api.headers.update(admin)
    make_run().create(asking_api)
    make_run().send(asking_api, 3, 6)
    for number in range(9):
        body = {"type": "app.Env", "low": number, "high": number}
        answer = asking_api.post("/api/v1/runs/r1/expectations", json=body, headers=admin)
        assert answer.status_code < 300, answer.text
    ended = schema.assertions.c.ended_at
    assert count_of(engine, schema.assertions, ended.is_(None)) == 1
    assert count_of(engine, schema.assertions, ended.is_not(None)) == 3


@pytest.fixture
def begun(asking_api: TestClient, admin: Any) -> None:
    body = {"id": "r1", "project": "p"}
    assert asking_api.post("/api/v1/runs", json=body, headers=admin).status_code == 201


def test_old_acknowledgements_of_a_leak_are_removed(
    asking_api: TestClient, engine: Engine, admin: Any, begun: None, patch: Any
) -> None:
    patch("store.incident_groups.MAX_PAST", 3)
    find(engine, "r1", when=time.time())
    for word in ["close"] + ["ignore", "acknowledge"] * 6:
        body = {"project": "p", "reason": word}
        answer = asking_api.post(f"/api/v1/incidents/f1/{word}", json=body, headers=admin)
        assert answer.status_code == 200, answer.text
    table = schema.acknowledgements
    # A note that still applies is kept, however old it is.
    assert count_of(engine, table, table.c.ended_at.is_(None), table.c.kind == "closed") == 1
    assert count_of(engine, table, table.c.ended_at.is_(None), table.c.kind == "acknowledged") == 1
    assert count_of(engine, table) == 5


def test_incidents_that_are_over_are_bounded(engine: Engine, begun: None, patch: Any) -> None:
    patch("store.findings.MAX_RUN_INCIDENTS", 4)
    for number in range(10):
        find(engine, "r1", when=1e9 + number, leaks=["stays", f"f{number}"])
    names = select(schema.incidents.c.fingerprint).order_by(schema.incidents.c.fingerprint)
    with engine.connect() as connection:
        assert connection.scalars(names).all() == ["f5", "f6", "f7", "f8", "f9", "stays"]


def test_alerts_of_a_run_are_bounded(engine: Engine, begun: None, patch: Any) -> None:
    patch("store.alerts.alert_rows.MAX_RUN_ALERTS", 4)
    for number in range(10):
        told = alert_rows.Alert(f"a{number}", "r1", None, "run.killed", 1e9, {}, "run")
        with writing(engine) as connection:
            alert_rows.add(connection, [told])
    with engine.connect() as connection:
        there = connection.scalars(select(schema.alerts.c.id).order_by(schema.alerts.c.id)).all()
    assert there == ["a6", "a7", "a8", "a9"]


def test_answered_requests_of_a_run_are_bounded(engine: Engine, begun: None, patch: Any) -> None:
    patch("store.request_rows.MAX_PAST", 3)
    for number in range(9):
        wanted = request_rows.Wanted("find_holders", f"app.Class{number}")
        asked = request_rows.ask(engine, "r1", wanted, 1e9 + number)
        request_rows.answered(engine, {asked.id: "r1"})
    assert count_of(engine, schema.requests) == 4


def test_keeping_the_newest_leaves_rows_of_other_projects(engine: Engine) -> None:
    table = schema.assertions
    row = {"origin": "accepted", "metric": "type.x.count", "source": "page", "created_at": 1.0}
    with writing(engine) as connection:
        connection.execute(insert(table), [{**row, "project": name} for name in "pqpqpq"])
        keep_newest(connection, table.c.id, table.c.id, 1, table.c.project == "p")
    assert [count_of(engine, table, table.c.project == name) for name in "pq"] == [1, 3]


NAMES = {name for name in vars(limits) if name.isupper()}
RSS = "process.rss_bytes"
PATH = "/api/v1/runs/{}/batches"
FORM = "application/x-www-form-urlencoded"
PROTOBUF = "application/x-protobuf"
Cross = Callable[[Client, Any], Answer]
Cut = Callable[[Client, Any, int], None]


@pytest.fixture(scope="module", params=DATABASES)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    with copies_of(request).new(tmp_path_factory.mktemp("limits")) as url:
        settings = {
            "LEAKLINE_DATABASE_URL": url, "LEAKLINE_WEBHOOK_ALLOW": "127.0.0.0/8",
        }  # fmt: skip
        with listening(create_app(from_environment(settings))) as found:
            yield found


@pytest.fixture(scope="module")
def stored(client: Client, make_run: Any) -> Any:
    """Return a run with ten snapshots, which must still be stored after every refusal."""
    run = make_run(id="stored")
    client.post("/api/v1/runs", run.header)
    client.post(PATH.format("stored"), run.wire(0, 10))
    return run


def batch(change: Callable[[dict[str, Any]], Any]) -> Cross:
    """Return a function that sends the next batch of the stored run, changed by ``change``."""

    def cross(client: Client, run: Any) -> Answer:
        wire = run.wire(32, 3)
        change(wire)
        return client.ask("POST", PATH.format("stored"), wire)

    return cross


def sends(method: str, path: str, body: Any = None, **headers: str) -> Cross:
    return lambda client, run: client.ask(method, path, body, **headers)


def right(client: Client, run: Any) -> Answer:
    """Send a valid batch, which is refused only because of when it arrives."""
    return client.ask("POST", PATH.format("stored"), run.wire(10, 3))


def changes(**fields: Any) -> Cross:
    return sends("PATCH", "/api/v1/runs/stored", fields)


def rule(**fields: Any) -> Cross:
    return sends("POST", "/api/v1/rules", {"series": RSS, "above": 5} | fields)


def rows(kind: str, count: int, /, **row: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda wire: wire.update({kind: [{"sequence": 32, **row}] * count})


def series(**values: Any) -> Callable[[dict[str, Any]], Any]:
    named = {name.replace("__", "."): [value, 1, 1] for name, value in values.items()}
    return lambda wire: wire["columns"]["series"].update(named)


def column(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda wire: wire["columns"].update({name: [value, *wire["columns"][name][1:]]})


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


def attribute(depth: int) -> Any:
    """Return an OpenTelemetry attribute value of this depth."""
    return {"arrayValue": {"values": [attribute(depth - 1)]}} if depth else {"intValue": "1"}


def wide_window(client: Client, run: Any) -> Answer:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = packer.compress(json.dumps(run.wire(10, 3)).encode()) + packer.flush()
    return client.ask("POST", PATH.format("stored"), body, content_encoding="zstd")


def raw(*parts: str) -> Cross:
    """Return a function that sends these parts as they are and returns the first response."""

    def cross(client: Client, run: Any) -> Answer:
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
            for part in parts:
                connection.sendall(part.encode())
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return Answer(answer.status, answer.headers, answer.read())

    return cross


TRICKLING = (
    f"POST {PATH.format('stored')} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{"
)


@contextlib.contextmanager
def a_server_that_asks(client: Client, *who: str, **more: Any) -> Iterator[Client]:
    """Turn authentication on and yield a client with a token of this scope and project, or without one."""
    sends = {}
    if who:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("leakline_server.store.access.MAX_TOKENS", limits.MAX_TOKENS)
            sends = {"authorization": f"Bearer {token(client.services.engine, *who, **more)[1]}"}
    client.services.callers.asked = True
    try:
        yield replace(client, sends=sends)
    finally:
        client.services.callers.asked = False


def authorised(cross: Cross, *who: str, **more: Any) -> Cross:
    """Return the function with a token, by default an administrator's."""

    def asked(client: Client, run: Any) -> Answer:
        with a_server_that_asks(client, *(who or ("admin",)), **more) as asks:
            return cross(asks, run)

    return asked


def another_attempt(client: Client, run: Any) -> Answer:
    client.post("/api/v1/runs", {"id": "resumed"})
    assert client.ask("PATCH", "/api/v1/runs/resumed", {"state": "failed"}).status == 200
    return client.ask("POST", "/api/v1/runs", {"id": "resumed"})


def phase_ends(count: int) -> Any:
    ends = [(0.0, 5, {"leakline.phase": f"phase {i}"}) for i in range(count)]
    return request({"process.memory.usage": ends})


def otlp(made: Any) -> Cross:
    return sends("POST", "/v1/metrics", made.SerializeToString(), content_type=PROTOBUF)


def resources(count: int) -> Any:
    made = memory([1])
    for _ in range(count - 1):
        made.resource_metrics.append(made.resource_metrics[0])
    return made


def boxes(count: int) -> bytes:
    return urlencode([("run", f"r{i}") for i in range(count)]).encode()


def signing_in(client: Client, run: Any) -> Answer:
    """Send a sign-in form that is too large to a server with authentication; other servers do not read it."""
    with a_server_that_asks(client) as asks:
        return asks.ask("POST", "/sign-in", b"secret=" + b"a" * limits.MAX_SIGN_IN_BYTES)


@dataclass(frozen=True)
class Way:
    """How a limit is exceeded. ``smaller``: names to set to smaller values if the real limit would take too long."""

    status: int
    cross: Cross
    smaller: Mapping[str, float] = field(default_factory=dict)


REFUSED: dict[str, Way] = {
    # A request
    "MAX_BODY_BYTES": Way(413, sends("POST", "/api/v1/runs", b" " * (limits.MAX_BODY_BYTES + 1))),
    "MAX_INFLATED_BYTES": Way(413, sends("POST", PATH.format("stored"), b" " * (limits.MAX_INFLATED_BYTES + 1))),
    "MAX_WINDOW_BYTES": Way(400, wide_window),
    "BODY_SECONDS": Way(400, raw(TRICKLING), {"web.request_bodies.BODY_SECONDS": 0.2}),
    "MAX_BODIES_BYTES": Way(429, right, {"web.request_bodies.MAX_BODIES_BYTES": 100}),
    "MAX_DEPTH": Way(400, batch(rows("events", 1, time=1.0, kind="mark", name="m", data=nested(12)))),
    "MAX_JSON_DEPTH": Way(400, sends("POST", "/api/v1/runs", {"config": nested(17)})),
    "MAX_JSON_VALUES": Way(400, sends("POST", "/api/v1/runs", {"config": {"a": [1] * limits.MAX_JSON_VALUES}})),
    "MAX_FORM_BYTES": Way(413, sends("POST", "/deletions", b"run=" + b"x" * limits.MAX_FORM_BYTES, content_type=FORM)),
    "MAX_SIGN_IN_BYTES": Way(413, signing_in),
    "MAX_FORM_FIELDS": Way(400, sends("POST", "/alerts/rules", boxes(limits.MAX_FORM_FIELDS + 1), content_type=FORM)),
    "MAX_FORM_BOXES": Way(400, sends("POST", "/deletions", boxes(limits.MAX_FORM_BOXES + 1), content_type=FORM)),
    # A connection
    "MAX_CONNECTIONS": Way(429, raw(), {"limits.MAX_CONNECTIONS": 0}),
    "MAX_HEAD_BYTES": Way(413, sends("GET", f"/healthz?{'x' * limits.MAX_HEAD_BYTES}")),
    # A batch
    "MAX_SNAPSHOTS": Way(422, lambda client, run: client.ask(
        "POST", PATH.format("stored"), run.wire(10, limits.MAX_SNAPSHOTS + 1))),
    "MAX_BATCH_SERIES": Way(422, batch(series(**{f"gauge__{i}": i for i in range(limits.MAX_BATCH_SERIES + 1)}))),
    "MAX_BATCH_EVENTS": Way(422, batch(
        rows("events", limits.MAX_BATCH_EVENTS + 1, time=1.0, kind="mark", name="m"))),
    "MAX_LARGE_OBJECTS": Way(422, batch(
        rows("large_objects", limits.MAX_LARGE_OBJECTS + 1, type="T", bytes=1, detail="", holder=""))),
    "MAX_HOLDERS": Way(422, batch(
        rows("holders", limits.MAX_HOLDERS + 1, type="T", path="p", count=1, bytes_each=None))),
    "MAX_CENSUS_TYPES": Way(422, batch(rows(
        "census", 1, mode="full", coverage=1.0, objects=1,
        types=[[f"T{i}", 1, None] for i in range(limits.MAX_CENSUS_TYPES + 1)]))),
    "MAX_LOST_REASONS": Way(422, batch(
        lambda wire: wire.update({"lost": {f"why{i}": 1 for i in range(limits.MAX_LOST_REASONS + 1)}}))),
    # Numbers and texts
    "MAX_INTEGER": Way(422, batch(series(gauge__x=limits.MAX_INTEGER + 1))),
    "MAX_FLOAT": Way(422, batch(series(gauge__x=limits.MAX_FLOAT * 1.5 + 0.5))),
    "MAX_RSS_BYTES": Way(422, batch(series(process__rss_bytes=limits.MAX_RSS_BYTES + 1))),
    "MAX_TIME_SECONDS": Way(422, batch(column("time", limits.MAX_TIME_SECONDS * 2))),
    "MAX_NAME_LENGTH": Way(422, batch(series(**{"x" * (limits.MAX_NAME_LENGTH + 1): 1}))),
    "MAX_LABEL_LENGTH": Way(422, batch(column("label", "x" * (limits.MAX_LABEL_LENGTH + 1)))),
    "MAX_PATH_LENGTH": Way(422, batch(
        rows("holders", 1, type="T", path="p" * (limits.MAX_PATH_LENGTH + 1), count=1, bytes_each=None))),
    "MAX_INSTANCE_LENGTH": Way(422, batch(
        lambda wire: wire["process"].update({"instance": "x" * (limits.MAX_INSTANCE_LENGTH + 1)}))),
    "MAX_RANK": Way(422, batch(lambda wire: wire["process"].update({"rank": limits.MAX_RANK + 1}))),
    "MAX_ROW_ID": Way(422, sends("DELETE", f"/api/v1/rules/{limits.MAX_ROW_ID + 1}")),
    "MAX_RUN_ID_LENGTH": Way(422, sends("POST", "/api/v1/runs", {"id": "x" * (limits.MAX_RUN_ID_LENGTH + 1)})),
    "MAX_TAG_LENGTH": Way(422, changes(tags=["x" * (limits.MAX_TAG_LENGTH + 1)])),
    "MAX_FINGERPRINT_LENGTH": Way(422, sends(
        "POST", f"/api/v1/incidents/{'x' * (limits.MAX_FINGERPRINT_LENGTH + 1)}/acknowledge", {"project": "p"})),
    "MAX_NOTE_LENGTH": Way(422, changes(notes=[{"text": "x" * (limits.MAX_NOTE_LENGTH + 1)}])),
    "MAX_LINK_LENGTH": Way(422, changes(notes=[{"text": "x", "link": "https://" + "x" * limits.MAX_LINK_LENGTH}])),
    "MAX_REASON_LENGTH": Way(422, changes(state="failed", reason="x" * (limits.MAX_REASON_LENGTH + 1))),
    "MAX_TITLE_LENGTH": Way(422, sends("POST", "/api/v1/webhooks", {
        "url": "http://127.0.0.1:9/", "name": "x" * (limits.MAX_TITLE_LENGTH + 1)})),
    "MAX_WEBHOOK_LENGTH": Way(422, sends(
        "POST", "/api/v1/webhooks", {"url": "http://127.0.0.1:9/" + "x" * limits.MAX_WEBHOOK_LENGTH})),
    "MAX_ADVICE_LENGTH": Way(422, rule(advice="x" * (limits.MAX_ADVICE_LENGTH + 1))),
    "MAX_WORD_LENGTH": Way(422, rule(above="1" * (limits.MAX_WORD_LENGTH + 1))),
    "MAX_QUERY_LENGTH": Way(422, sends("GET", f"/api/v1/runs?q={'x' * (limits.MAX_QUERY_LENGTH + 1)}")),
    "MAX_SEARCH_WORDS": Way(
        422, sends("GET", "/api/v1/runs?q=" + "+".join(map(str, range(limits.MAX_SEARCH_WORDS + 1))))
    ),
    "MAX_SECRET_LENGTH": Way(422, sends(
        "GET", f"/sign-in?next={'x' * (limits.MAX_SECRET_LENGTH + 1)}", accept="application/json")),
    "MAX_LINE_LENGTH": Way(422, batch(rows(
        "events", 1, time=1.0, kind="log", name="log", data={"lines": ["x" * (limits.MAX_LINE_LENGTH + 1)]}))),
    # A run, a project, waiting work
    "MAX_RUN_PROCESSES": Way(
        409, batch(lambda wire: wire["process"].update({"instance": "one more"})),
        {"store.ingest.inbox.MAX_RUN_PROCESSES": 1}),
    "MAX_RUN_ATTEMPTS": Way(409, another_attempt, {"store.runs.run_registration.MAX_RUN_ATTEMPTS": 1}),
    "MAX_CONFIG_BYTES": Way(422, sends("POST", "/api/v1/runs", {"config": {"a": "x" * limits.MAX_CONFIG_BYTES}})),
    "MAX_ENVIRONMENT_BYTES": Way(
        422, sends("POST", "/api/v1/runs", {"environment": {"a": "x" * limits.MAX_ENVIRONMENT_BYTES}})),
    "MAX_NAMES_LISTED": Way(422, sends(
        "POST", "/api/v1/runs", {"config": {f"a{i}": 1 for i in range(limits.MAX_NAMES_LISTED + 1)}})),
    "MAX_NOTES_AT_ONCE": Way(422, changes(notes=[{"text": "x"}] * (limits.MAX_NOTES_AT_ONCE + 1))),
    "PROJECTS_PER_DAY": Way(
        429, sends("POST", "/api/v1/runs", {"project": "one more"}),
        {"store.ingest.project_quota.PROJECTS_PER_DAY": 1}),
    "MAX_WAITING_BATCHES": Way(429, right, {"ingest.writer.MAX_WAITING_BATCHES": 0}),
    "MAX_WAITING_SNAPSHOTS": Way(429, right, {"ingest.writer.MAX_WAITING_SNAPSHOTS": 0}),
    "MAX_WAITING_BYTES": Way(429, right, {"ingest.writer.MAX_WAITING_BYTES": 0}),
    "MAX_LIVE_STREAMS": Way(429, sends("GET", "/api/v1/runs/stored/live"),
        {"web.event_stream.MAX_LIVE_STREAMS": 0}),
    "MAX_IN_A_ROW": Way(422, rule(hold=limits.MAX_IN_A_ROW + 1)),
    "MAX_SNOOZE_SECONDS": Way(422, sends("POST", "/api/v1/incidents/f1/acknowledge", {
        "project": "p", "expires_in_seconds": limits.MAX_SNOOZE_SECONDS + 1})),
    "MAX_TOKENS": Way(409, authorised(sends("POST", "/api/v1/tokens", {"project": "p"})),
        {"store.access.MAX_TOKENS": 0}),
    "MAX_TOKEN_DAYS": Way(422, sends("POST", "/api/v1/tokens", {"expires_in_days": limits.MAX_TOKEN_DAYS + 1})),
    "MAX_REQUESTS": Way(
        429, sends("POST", "/api/v1/runs/stored/requests", {"kind": "census"}),
        {"store.request_rows.MAX_REQUESTS": 0}),
    "MAX_ACCEPTED_COUNTS": Way(
        409, sends("POST", "/api/v1/runs/stored/expectations", {"type": "app.Env", "low": 2, "high": 2}),
        {"store.alerts.assertions.MAX_ACCEPTED_COUNTS": 0}),
    "MAX_RULES": Way(
        409, sends("POST", "/api/v1/rules", {"series": RSS, "above": 5}),
        {"store.alerts.assertions.MAX_RULES": 0}),
    "MAX_WEBHOOKS": Way(
        409, sends("POST", "/api/v1/webhooks", {"url": "http://127.0.0.1:9/"}),
        {"store.alerts.webhooks.MAX_WEBHOOKS": 0}),
    # An answer
    "MAX_NAMES_ASKED": Way(422, sends(
        "GET", "/api/v1/runs/stored/series?" + urlencode([("name", "x")] * (limits.MAX_NAMES_ASKED + 1)))),
    "MAX_RUNS_OVERLAID": Way(422, sends("GET", f"/api/v1/series?name={RSS}&" + urlencode(
        [("run", f"r{i}") for i in range(limits.MAX_RUNS_OVERLAID + 1)]))),
    "MAX_RUNS_PICKED": Way(422, sends(
        "GET", "/compare?" + "&pick=r" * (limits.MAX_RUNS_PICKED + 1), accept="application/json")),
    "MAX_PAGE": Way(422, sends("GET", f"/api/v1/runs?limit={limits.MAX_PAGE + 1}")),
    "MAX_POINTS": Way(422, sends("GET", f"/api/v1/runs/stored/series?name=*&points={limits.MAX_POINTS + 1}")),
    # OpenTelemetry
    "MAX_OTLP_RESOURCES": Way(413, otlp(resources(limits.MAX_OTLP_RESOURCES + 1))),
    "MAX_OTLP_POINTS": Way(413, otlp(memory([1] * (limits.MAX_OTLP_POINTS + 1)))),
    "MAX_OTLP_SERIES": Way(413, otlp(request(
        {f"leakline.gauge.g{i}": [(0.0, 1, {})] for i in range(limits.MAX_OTLP_SERIES + 1)}))),
    "MAX_OTLP_SNAPSHOTS": Way(413, otlp(phase_ends(limits.MAX_OTLP_SNAPSHOTS + 1))),
    "MAX_OTLP_DEPTH": Way(400, sends("POST", "/v1/metrics", {"resourceMetrics": [{"resource": {
        "attributes": [{"key": "a", "value": attribute(limits.MAX_OTLP_DEPTH)}]}}]})),
}  # fmt: skip


BUSY = {"MAX_BODIES_BYTES", "MAX_WAITING_BATCHES", "MAX_WAITING_SNAPSHOTS", "MAX_WAITING_BYTES"}


@pytest.mark.parametrize("name", REFUSED)
def test_requests_over_the_limit_are_refused(
    name: str, client: Client, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = REFUSED[name]
    with monkeypatch.context() as patched:
        for where, value in way.smaller.items():
            assert where.endswith(name)
            patched.setattr(f"leakline_server.{where}", value)
        answer = way.cross(client, stored)
    assert answer.status == way.status, answer.body[:500]
    if name == "MAX_SIGN_IN_BYTES":
        assert re.search(rb'role="alert">[^<\n]{10,300}</p>', answer.body)
    elif answer.body.startswith(b"<!doctype"):
        assert re.search(rb'<p class="quiet">[^<\n]{10,300}</p>', answer.body)
    else:
        error = answer.json()["error"]
        assert set(error) == {"code", "message", "details"}
        assert 10 < len(error["message"]) < 500 and "\n" not in error["message"]
    if way.status == 429:
        assert 1 <= int(answer.headers["retry-after"]) <= 3_600
    if name in BUSY:
        assert (answer.json()["error"]["code"], answer.headers["retry-after"]) == ("too_busy", "1")
    if name == "MAX_LIVE_STREAMS":
        assert answer.json()["error"]["code"] == "too_many_streams"
    there = client.get("/api/v1/runs/stored/snapshots?limit=200")["items"]
    assert [row["sequence"] for row in there] == list(range(9, -1, -1))
    assert client.services.coming.size == 0
    # Refused requests do not take any room.
    assert client.post(PATH.format("stored"), stored.wire(0, 10))["accepted"] == 0


def items(client: Client, make_run: Any, most: int) -> None:
    run = make_run(id="items")
    client.post("/api/v1/runs", run.header)
    wire = run.wire(0, 1)
    wire["columns"]["series"] = {f"gauge.{i}": [7] for i in range(most + 4)}
    client.post(PATH.format("items"), wire)
    found = client.get("/api/v1/runs/items/series?name=*&x=sequence")
    assert (len(found["items"]), found["left_out"]) == (most, 4)


def words(name: str) -> Cut:
    """Return a function that sends too many tags or declared phases."""

    def cut(client: Client, make_run: Any, most: int) -> None:
        for n in range(2):
            sent = [f"{name} {n} {i}" for i in range(most)]
            client.post("/api/v1/runs", {"id": name, name: sent})
        assert len(client.get(f"/api/v1/runs/{name}")[name]) == most

    return cut


def note(client: Client, run: str, many: int, text: str) -> list[dict[str, Any]]:
    """Add this note ``many`` times, numbered, and return the notes that are stored."""
    client.post("/api/v1/runs", {"id": run})
    for first in range(0, many, 60):
        sent = [{"text": f"{first + i} {text}"} for i in range(60)]
        assert client.ask("PATCH", f"/api/v1/runs/{run}", {"notes": sent}).status == 200
    there: list[dict[str, Any]] = client.get(f"/api/v1/runs/{run}")["notes"]
    assert there[-1]["text"] == f"{many - 1} {text}"
    return there


def notes(client: Client, make_run: Any, most: int) -> None:
    assert len(note(client, "notes", 180, "")) == most


def long_notes(client: Client, make_run: Any, most: int) -> None:
    size = len(json.dumps(note(client, "long", 180, "x" * 990)))
    assert most * 0.97 < size < most * 1.03


def attempts(client: Client, make_run: Any, most: int) -> None:
    for n in range(most + 2):
        client.post("/api/v1/runs", {"id": "often", "environment": {"commit": f"{n}"}})
        assert client.ask("PATCH", "/api/v1/runs/often", {"state": "failed"}).status == 200
    run = client.get("/api/v1/runs/often")
    assert [each["number"] for each in run["attempts"]] == list(range(3, most + 3))
    assert run["attempts_left_out"] == 2
    page = client.ask("GET", "/runs/often?tab=all").body.decode()
    assert f"{most + 2} attempts, newest first, showing {most}." in page


def listed_processes(client: Client, make_run: Any, most: int) -> None:
    for rank in range(most + 3):
        process = {"instance": f"crowd-{rank}", "rank": rank}
        client.post("/api/v1/runs", {"id": "crowd", "process": process})
    end = {"state": "failed", "reason": "ValueError", "instance": f"crowd-{most + 2}"}
    assert client.ask("PATCH", "/api/v1/runs/crowd", end).status == 200
    run = client.get("/api/v1/runs/crowd")
    page = client.ask("GET", "/runs/crowd?tab=all").body.decode()
    # The process that people look for is listed, and the others are the first ones.
    assert [each["rank"] for each in run["processes"]] == [*range(most - 1), most + 2]
    assert run["processes_left_out"] == 3
    assert f"Showing {most} of {most + 3} processes" in page


def listed_bytes(client: Client, make_run: Any, most: int) -> None:
    client.post("/api/v1/runs", {"id": "wordy"})
    reasons = {f"{i} " + "\u4e00" * 500: 1 for i in range(limits.MAX_LOST_REASONS)}
    for rank in range(6):
        run = make_run(id="wordy", instance=f"wordy-{rank}", rank=rank)
        client.post(PATH.format("wordy"), run.wire(0, 1) | {"lost": reasons})
    answer = client.ask("GET", "/api/v1/runs/wordy")
    found = answer.json()
    assert 0 < found["processes_left_out"] == 6 - len(found["processes"]) < 6
    assert len(answer.body) < most + 50_000


def listed_lines(client: Client, make_run: Any, most: int) -> None:
    lines = ["\u4e00" * (limits.MAX_LINE_LENGTH - 2) + f"{i:02}" for i in range(50)]
    for rank in range(9):
        run = make_run(id="loud", instance=f"loud-{rank}", rank=rank)
        client.post("/api/v1/runs", run.header)
        wire = run.wire(0, 1)
        wire["events"] = [
            {"sequence": 0, "time": 1.0, "kind": "log", "name": "log", "data": {"lines": lines}}
        ]
        client.post(PATH.format("loud"), wire)
    end = {"state": "failed", "reason": "ValueError", "instance": "loud-8"}
    assert client.ask("PATCH", "/api/v1/runs/loud", end).status == 200
    answer = client.ask("GET", "/api/v1/runs/loud")
    assert len(answer.body) < most + 100_000
    told = {each["rank"]: each for each in answer.json()["processes"]}
    # The failed process has all its lines, another has its newest one and the last has none; each says how many
    # are missing.
    assert told[8]["log_lines"] == lines
    assert told[0]["log_lines"] == lines
    some = told[6]["log_lines"]
    assert 0 < len(told[5]["log_lines"] + some) < 100 and told[7]["log_lines"] == []
    for each in told.values():
        kept, missing = each["log_lines"], each["log_lines_left_out"]
        assert len(kept) + missing == 50 and kept == lines[missing:]
    missing = sum(each["log_lines_left_out"] for each in told.values())
    page = client.ask("GET", "/runs/loud?tab=all").body.decode()
    assert f"{missing:,} more lines are not shown" in page


RUNS = "store.runs.runs"
PROCESSES = "store.runs.process_list"
# How each limit is exceeded, and which name is set to which smaller value for the test.
ABSORBED: dict[str, tuple[Cut, str, int]] = {
    "MAX_RUN_TAGS": (words("tags"), "", limits.MAX_RUN_TAGS),
    "MAX_DECLARED_PHASES": (words("phases"), "", limits.MAX_DECLARED_PHASES),
    "MAX_NOTES": (notes, RUNS, 150), "MAX_NOTES_BYTES": (long_notes, RUNS, 100_000),
    "MAX_ATTEMPTS_LISTED": (attempts, RUNS, 3), "MAX_PROCESSES_LISTED": (listed_processes, PROCESSES, 4),
    "MAX_PROCESSES_LISTED_BYTES": (listed_bytes, PROCESSES, 150_000),
    "MAX_LINES_LISTED_BYTES": (listed_lines, "", limits.MAX_LINES_LISTED_BYTES),
    "MAX_ITEMS": (items, "store.series.chart_points", 10),
}  # fmt: skip


# Exceeding these closes the connection without a response: `test_connections.py`.
CLOSED = {"HEAD_SECONDS", "MAX_PIPELINED", "UNREAD_SECONDS", "ANSWER_SECONDS", "MIN_READ_BYTES"}


# Limits that have their own tests: above, in `test_inbox.py`, `test_run_page.py` and `access/test_ingest_tokens.py`.
ELSEWHERE = {
    "MAX_SESSIONS", "MAX_SESSIONS_OF_ONE", "MAX_PAST", "MAX_RUN_INCIDENTS", "MAX_RUN_ALERTS", "MAX_DAMAGED",
    "MAX_SKEW_SECONDS", "MAX_RUN_TYPES", "MAX_RUN_PHASES", "MAX_RUN_SERIES", "MAX_LISTED", "RUNS_PER_DAY",
    "BYTES_PER_DAY", "BROWSER_RUNS_PER_DAY", "BROWSER_BYTES_PER_DAY", "MAX_PROCESSES_STUDIED", "MAX_PROCESSES_READ",
}  # fmt: skip


@pytest.mark.parametrize("name", ABSORBED)
def test_data_over_the_limit_is_cut_and_counted(
    name: str, client: Client, make_run: Any, patch: Any
) -> None:
    cross, where, most = ABSORBED[name]
    if where:
        patch(f"{where}.{name}", most)
    cross(client, make_run, most)


def test_every_limit_is_tested() -> None:
    assert not REFUSED.keys() & ABSORBED.keys()
    assert REFUSED.keys() | ABSORBED.keys() | CLOSED | ELSEWHERE == NAMES

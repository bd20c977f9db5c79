"""Nobody fills a server: what is too much is folded and counted, or refused with when to come again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from argon2 import PasswordHasher
from sqlalchemy import insert, select
from starlette.testclient import TestClient
from tests.server.access.people import ADDRESS, asking, bearer, sign_in, token
from tests.server.databases import Copies
from tests.server.stored import count_of, engine_of, serving

from leakline.analysis.results import Finding, Interval, Verdict, to_json
from leakline_server import limits
from leakline_server.app import create_app
from leakline_server.config import Config, from_environment
from leakline_server.security import credentials
from leakline_server.store import findings, request_rows, schema
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
def test_types_beyond_the_bound_are_added_up_and_counted(
    api: TestClient, run: Any, patch: Any
) -> None:
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


def test_what_was_folded_may_be_sent_again_and_is_a_contradiction_when_it_differs(
    api: TestClient, run: Any, patch: Any
) -> None:
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


def test_phases_beyond_the_bound_are_one_phase_and_every_snapshot_is_there(
    api: TestClient, run: Any
) -> None:
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
    assert "More phases than a run may have" in api.get("/runs/r1").text


def test_processes_of_a_run_have_a_bound_that_is_said(
    api: TestClient, run: Any, make_run: Any, patch: Any
) -> None:
    patch("store.ingest.inbox.MAX_RUN_PROCESSES", 2)
    patch("store.runs.run_registration.MAX_RUN_PROCESSES", 2)
    for name in ("p1", "p2"):
        make_run(instance=name).send(api, 0, 3)
    answers = [
        api.post(BATCHES, json=make_run(instance="p3").wire(0, 3)),
        api.post("/api/v1/runs", json=run.header | {"process": {"instance": "p4"}}),
    ]
    for answer in answers:
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "too_many_processes"
    make_run(instance="p2").send(api, 3, 3)


# -- clocks
def test_a_clock_that_is_ahead_is_clamped_and_told_and_never_refused(
    api: TestClient, run: Any, make_run: Any
) -> None:
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
    assert "clock of the process was minutes ahead" in api.get("/runs/r1").text
    # What was right before it was set is another snapshot's, and still a contradiction.
    wire["columns"]["series"]["process.rss_bytes"][0] += 1
    assert api.post(BATCHES, json=wire).status_code == 409


def test_a_clock_that_is_a_little_ahead_or_far_behind_is_believed(
    api: TestClient, run: Any, make_run: Any
) -> None:
    soon = time.time() + limits.MAX_SKEW_SECONDS - 60
    make_run(started=soon).send(api, 0, 3)
    make_run(instance="old", started=1e9).send(api, 0, 3)
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    assert {row["time"] for row in rows} == {
        start + i / 2 for start in (soon, 1e9) for i in range(3)
    }
    assert lost(api) == {}


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


def told_to_wait(answer: Any, code: str) -> None:
    assert answer.status_code == 429, answer.text
    assert answer.json()["error"]["code"] == code
    assert 1 <= int(answer.headers["retry-after"]) <= 3_600


def test_a_project_begins_so_many_runs_a_day(bounded: TestClient) -> None:
    for n in range(3):
        assert bounded.post("/api/v1/runs", json={"id": f"r{n}", "project": "p"}).status_code == 201
    told_to_wait(bounded.post("/api/v1/runs", json={"id": "r3", "project": "p"}), "too_many_runs")
    assert bounded.get("/api/v1/runs/r3").status_code == 404
    # Joining begins none, and others are no worse for it.
    assert bounded.post("/api/v1/runs", json={"id": "r1", "project": "p"}).status_code == 200
    assert bounded.post("/api/v1/runs", json={"id": "other", "project": "q"}).status_code == 201
    for n in range(5):
        header = {"id": f"f{n}", "project": "free"}
        assert bounded.post("/api/v1/runs", json=header).status_code == 201


def test_a_project_stores_so_many_bytes_a_day(bounded: TestClient, make_run: Any) -> None:
    runs = [make_run(), make_run(id="r2"), make_run(id="r3")]
    for run, project in zip(runs, ("p", "p", "free"), strict=True):
        bounded.post("/api/v1/runs", json=run.header | {"project": project})
    first, second, free = runs
    first.send(bounded, 0, 200)
    told_to_wait(bounded.post("/api/v1/runs/r1/batches", json=first.wire(200, 3)), "too_many_bytes")
    told_to_wait(bounded.post("/api/v1/runs/r2/batches", json=second.wire(0, 3)), "too_many_bytes")
    # What is there already is no news.
    assert first.send(bounded, 0, 100) == 0
    free.send(bounded, 0, 600)
    text = bounded.get("/metrics").text
    assert 'leakline_batches_refused_total{code="too_many_bytes"} 2.0' in text


def test_a_server_that_starts_again_knows_what_was_stored_today(
    database_url: str, make_run: Any, patch: Any
) -> None:
    # Each transaction tells the database.
    patch("store.ingest.project_quota.FLUSH_SECONDS", 0.0)
    bound = {"bytes_per_day": PerProject(2_000)}
    run = make_run()
    with serving(database_url, **bound) as first:
        run.create(first)
        run.send(first, 0, 200)
    with serving(database_url, **bound) as second:
        told_to_wait(second.post(BATCHES, json=run.wire(200, 3)), "too_many_bytes")


def test_yesterday_is_forgotten(bounded: TestClient, make_run: Any, patch: Any) -> None:
    run = make_run()
    run.create(bounded)
    run.send(bounded, 0, 200)
    told_to_wait(bounded.post(BATCHES, json=run.wire(200, 3)), "too_many_bytes")
    tomorrow = time.time() + 86_400.0
    patch("web.ingest.api.time.time", lambda: tomorrow)
    run.send(bounded, 200, 3)


def test_bounds_are_on_and_one_project_may_have_another() -> None:
    assert Config().runs_per_day.of("p") == limits.RUNS_PER_DAY
    assert Config().bytes_per_day.of("p") == limits.BYTES_PER_DAY
    made = from_environment(
        {"LEAKLINE_RUNS_PER_DAY": "q=7,s=unlimited", "LEAKLINE_BYTES_PER_DAY": "1 GiB"}
    )
    found = [made.runs_per_day.of(project) for project in "pqs"]
    assert found == [limits.RUNS_PER_DAY, 7, None]
    assert made.bytes_per_day.of("p") == 2**30


# -- answers
def test_lists_without_pages_end(api: TestClient, run: Any, patch: Any) -> None:
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


# Table -> the limits that bound its rows; what is derived of rows that have limits, where nothing else is.
BOUNDS: Final[dict[str, tuple[str, ...]]] = {
    "runs": ("RUNS_PER_DAY", "PROJECTS_PER_DAY"),
    "attempts": ("MAX_RUN_ATTEMPTS",), "processes": ("MAX_RUN_PROCESSES",),
    "series": ("MAX_RUN_SERIES", "MAX_RUN_TYPES", "MAX_RUN_PHASES"),
    **dict.fromkeys(("batches", "segments", "chunks", "details"), ("BYTES_PER_DAY",)),
    "requests": ("MAX_REQUESTS", "MAX_PAST"), "incidents": ("MAX_RUN_INCIDENTS", "MAX_RUN_SERIES"),
    "alerts": ("MAX_RUN_ALERTS",), "webhooks": ("MAX_WEBHOOKS",),
    # Of each leak, of which a run has so many.
    "acknowledgements": ("MAX_PAST", "MAX_RUN_INCIDENTS"),
    # Rules, and the accepted counts of each project.
    "assertions": ("MAX_RULES", "MAX_ACCEPTED_COUNTS", "MAX_PAST"),
    # Of each run and rule, and of each alert and webhook.
    "assertion_states": ("RUNS_PER_DAY", "MAX_RULES"),
    **dict.fromkeys(("deliveries", "tries"), ("MAX_RUN_ALERTS", "MAX_WEBHOOKS")),
    # One of each run, or of each run that was.
    **dict.fromkeys(("sizes", "deletions", "removals"), ("RUNS_PER_DAY",)),
    # One of each project and day.
    "intake": ("PROJECTS_PER_DAY",), "tokens": ("MAX_TOKENS", "MAX_PAST"),
    "sessions": ("MAX_SESSIONS", "MAX_SESSIONS_OF_ONE"), "damaged": ("MAX_DAMAGED",),
    # The keys are ours, and `test_the_keys_of_settings_are_few` counts them.
    "settings": (),
}  # fmt: skip


@pytest.fixture
def asking_api(
    sqlite_copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    """A server that asks, with cheap hashes, and without an examiner that resolves what a test has planted."""
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


def test_the_keys_of_settings_are_few(asking_api: TestClient, engine: Engine, admin: Any) -> None:
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


def test_one_token_makes_few_sessions_and_ends_none_of_others(
    asking_api: TestClient, engine: Engine, patch: Any
) -> None:
    patch("store.access.MAX_SESSIONS_OF_ONE", 5)
    other, own = token(engine, "read"), token(engine, "read")
    assert sign_in(asking_api, other[1]).status_code == sign_in(asking_api).status_code == 303
    for _ in range(12):
        assert sign_in(asking_api, own[1]).status_code == 303
    assert asking_api.get("/", follow_redirects=False).status_code == 200
    of = schema.sessions.c.token_id
    assert [count_of(engine, schema.sessions, of == number) for number in (other[0], own[0])] == [
        1,
        5,
    ]
    for _ in range(7):
        sign_in(asking_api)
    assert count_of(engine, schema.sessions, of.is_(None)) == 5


def test_all_sessions_are_bounded(asking_api: TestClient, engine: Engine, patch: Any) -> None:
    patch("store.access.MAX_SESSIONS", 4)
    for _ in range(3):
        for secret in [token(engine, "read")[1] for _ in range(3)]:
            assert sign_in(asking_api, secret).status_code == 303
    assert count_of(engine, schema.sessions) == 4


def test_revoked_tokens_are_bounded(
    asking_api: TestClient, engine: Engine, admin: Any, patch: Any
) -> None:
    patch("store.access.MAX_PAST", 3)
    kept = token(engine, "read")[0]
    for _ in range(9):
        made = asking_api.post("/api/v1/tokens", json={"scope": "read"}, headers=admin)
        assert made.status_code == 201, made.text
        asking_api.delete(f"/api/v1/tokens/{made.json()['id']}", headers=admin)
    # The one that was revoked last goes with the next that is made.
    assert count_of(engine, schema.tokens, schema.tokens.c.revoked_at.is_not(None)) == 4
    assert count_of(engine, schema.tokens, schema.tokens.c.id == kept) == 1


def test_counts_that_are_no_longer_accepted_are_bounded(
    asking_api: TestClient,
    engine: Engine,
    admin: Any,
    make_run: Any,
    patch: Any,
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


def examine(engine: Engine, fingerprints: list[str], now: float) -> None:
    growth = Interval(7.0, 6.0, 8.0)
    found = tuple(
        Finding(name, "confirmed", "objects", None, None, (), growth, None, 0.9)
        for name in fingerprints
    )
    said = Verdict("r1", "generation", 9, "confirmed", "r1 leaks", growth, 0.9, found)
    with writing(engine) as connection:
        findings.save(connection, said, to_json(said), now)


@pytest.fixture
def begun(asking_api: TestClient, admin: Any) -> None:
    body = {"id": "r1", "project": "p"}
    assert asking_api.post("/api/v1/runs", json=body, headers=admin).status_code == 201


def test_what_people_said_of_a_leak_is_bounded(
    asking_api: TestClient, engine: Engine, admin: Any, begun: None, patch: Any
) -> None:
    patch("store.incident_groups.MAX_PAST", 3)
    examine(engine, ["f1"], time.time())
    for word in ["close"] + ["ignore", "acknowledge"] * 6:
        body = {"project": "p", "reason": word}
        answer = asking_api.post(f"/api/v1/incidents/f1/{word}", json=body, headers=admin)
        assert answer.status_code == 200, answer.text
    table = schema.acknowledgements
    # A note that still holds stays, however old it is.
    assert count_of(engine, table, table.c.ended_at.is_(None), table.c.kind == "closed") == 1
    assert count_of(engine, table, table.c.ended_at.is_(None), table.c.kind == "acknowledged") == 1
    assert count_of(engine, table) == 5


def test_incidents_of_a_run_that_are_over_are_bounded(
    engine: Engine, begun: None, patch: Any
) -> None:
    patch("store.findings.MAX_RUN_INCIDENTS", 4)
    for number in range(10):
        examine(engine, ["stays", f"f{number}"], 1e9 + number)
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


def test_rows_of_others_stay(engine: Engine) -> None:
    table = schema.assertions
    row = {
        "origin": "accepted",
        "metric": "type.app.Env.count",
        "source": "page",
        "created_at": 1.0,
    }
    with writing(engine) as connection:
        connection.execute(insert(table), [{**row, "project": name} for name in "pqpqpq"])
        keep_newest(connection, table.c.id, table.c.id, 1, table.c.project == "p")
    assert [count_of(engine, table, table.c.project == name) for name in "pq"] == [1, 3]

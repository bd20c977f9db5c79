"""Nobody fills a server: what is too much is folded and counted, or refused with when to come again."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server import limits
from leakline_server.app import create_app
from leakline_server.config import Config, WrongSettings, from_environment
from leakline_server.store.retention import PerProject

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
    api: TestClient, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # app.Env of each snapshot, and two more.
    monkeypatch.setattr("leakline_server.store.folding.MAX_RUN_TYPES", 3)
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
    api: TestClient, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.folding.MAX_RUN_TYPES", 2)
    monkeypatch.setattr("leakline_server.store.folding.MAX_RUN_PHASES", 2)
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


def test_tags_and_phases_that_joining_processes_bring_do_not_pile_up(
    api: TestClient, run: Any
) -> None:
    for n in range(5):
        header = run.header | {
            "tags": [f"tag {n} {i}" for i in range(60)],
            "phases": [f"phase {n} {i}" for i in range(200)],
        }
        assert api.post("/api/v1/runs", json=header).status_code == 200
    found = api.get("/api/v1/runs/r1").json()
    assert len(found["tags"]) == limits.MAX_RUN_TAGS
    assert len(found["phases"]) == limits.MAX_DECLARED_PHASES


def test_processes_of_a_run_have_a_bound_that_is_said(
    api: TestClient, run: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.inbox.MAX_RUN_PROCESSES", 2)
    monkeypatch.setattr("leakline_server.store.joining.MAX_RUN_PROCESSES", 2)
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
    config = Config(
        database_url=database_url,
        runs_per_day=PerProject(3, {"free": None}),
        bytes_per_day=PerProject(2_000, {"free": None}),
    )
    with TestClient(create_app(config), "http://127.0.0.1") as client:
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
    database_url: str, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each transaction tells the database.
    monkeypatch.setattr("leakline_server.store.intake.FLUSH_SECONDS", 0.0)
    config = Config(database_url=database_url, bytes_per_day=PerProject(2_000))
    run = make_run()
    with TestClient(create_app(config), "http://127.0.0.1") as first:
        run.create(first)
        run.send(first, 0, 200)
    with TestClient(create_app(config), "http://127.0.0.1") as second:
        told_to_wait(second.post(BATCHES, json=run.wire(200, 3)), "too_many_bytes")


def test_yesterday_is_forgotten(
    bounded: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    run.create(bounded)
    run.send(bounded, 0, 200)
    told_to_wait(bounded.post(BATCHES, json=run.wire(200, 3)), "too_many_bytes")
    tomorrow = time.time() + 86_400.0
    monkeypatch.setattr("leakline_server.web.ingest_api.time.time", lambda: tomorrow)
    run.send(bounded, 200, 3)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RUNS_PER_DAY", "many"), ("RUNS_PER_DAY", "0"), ("RUNS_PER_DAY", "-1"), ("RUNS_PER_DAY", "p=1.5"),
        ("BYTES_PER_DAY", "much"), ("BYTES_PER_DAY", "forever"), ("BYTES_PER_DAY", "0"),
    ],
)  # fmt: skip
def test_a_wrong_bound_is_told_at_the_start(name: str, text: str) -> None:
    with pytest.raises(WrongSettings, match=f"LEAKLINE_{name}.*unlimited"):
        from_environment({f"LEAKLINE_{name}": text})


def test_bounds_are_on_and_one_project_may_have_another() -> None:
    assert Config().runs_per_day.of("p") == limits.RUNS_PER_DAY
    assert Config().bytes_per_day.of("p") == limits.BYTES_PER_DAY
    made = from_environment(
        {"LEAKLINE_RUNS_PER_DAY": "q=7,s=unlimited", "LEAKLINE_BYTES_PER_DAY": "1 GiB"}
    )
    found = [made.runs_per_day.of(project) for project in "pqs"]
    assert found == [limits.RUNS_PER_DAY, 7, None]
    assert made.bytes_per_day.of("p") == 2**30


# -- what waits


def test_bodies_on_their_way_have_a_bound_together(
    shared_api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(id="coming")
    run.create(shared_api)
    monkeypatch.setattr("leakline_server.web.bodies.MAX_BODIES_BYTES", 1_000)
    body = json.dumps(run.wire(0, 3)).encode()
    for path in ("/api/v1/runs/coming/batches", "/api/v1/runs"):
        answer = shared_api.post(path, content=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    monkeypatch.undo()
    # What was refused is on its way no more.
    assert shared_api.app.state.services.coming.size == 0  # type: ignore[attr-defined]
    assert run.send(shared_api, 0, 3) == 3


def test_a_queue_of_large_batches_is_bounded_in_bytes(
    shared_api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(id="queue")
    run.create(shared_api)
    monkeypatch.setattr("leakline_server.writer.MAX_WAITING_BYTES", 0)
    answer = shared_api.post("/api/v1/runs/queue/batches", json=run.wire(0, 3))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_live_pages_have_a_bound(
    shared_api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(id="live").create(shared_api)
    monkeypatch.setattr("leakline_server.web.stream.MAX_LIVE_STREAMS", 0)
    answer = shared_api.get("/api/v1/runs/live/live")
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_streams")


# -- answers


def test_lists_without_pages_end(
    api: TestClient, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.details.MAX_LISTED", 2)
    wire = run.wire(0, 3)
    wire["large_objects"] = [
        {"sequence": 2, "type": f"T{i}", "bytes": i, "detail": "", "holder": ""} for i in range(9)
    ]
    wire["holders"] = [
        {"sequence": 2, "type": f"T{i}", "path": "p", "count": i, "bytes_each": None}
        for i in range(9)
    ]
    wire["events"] = [
        {"sequence": 2, "time": 1e9 + i, "kind": "mark", "name": f"m{i}"} for i in range(9)
    ]
    assert api.post(BATCHES, json=wire).status_code == 200
    for path, key, expected in (
        ("large-objects", "type", ["T8", "T7"]),
        ("holders", "type", ["T8", "T7"]),
        ("events", "name", ["m7", "m8"]),
    ):
        items = api.get(f"/api/v1/runs/r1/{path}").json()["items"]
        assert [item[key] for item in items] == expected

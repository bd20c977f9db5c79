"""A run is created once, joined, resumed, ended, annotated and found again."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import zstandard
from starlette.testclient import TestClient


def patch(api: TestClient, run: str, **changes: Any) -> dict[str, Any]:
    answer = api.patch(f"/api/v1/runs/{run}", json=changes)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def names(api: TestClient, query: str = "") -> list[str]:
    return [item["id"] for item in api.get(f"/api/v1/runs?{query}").json()["items"]]


def test_an_empty_body_makes_a_run(api: TestClient) -> None:
    answer = api.post("/api/v1/runs", json={})
    assert answer.status_code == 201
    made = answer.json()
    assert made["created"] is True
    assert made["attempt"] == 1
    # As whoever sent it reached the server.
    assert made["url"] == f"http://127.0.0.1/runs/{made['id']}"
    found = api.get(f"/api/v1/runs/{made['id']}").json()
    assert (found["project"], found["unit"], found["state"], found["status"]) == (
        "default", "generation", "running", "learning",
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_compressed_body_makes_the_same_run(encoding: str, api: TestClient) -> None:
    # The client compresses what is long, and a list of packages is.
    header = {"id": "big", "environment": {"packages": {f"package-{i}": "1.0" for i in range(500)}}}
    raw = json.dumps(header).encode()
    body = gzip.compress(raw) if encoding == "gzip" else zstandard.compress(raw)
    answer = api.post("/api/v1/runs", content=body, headers={"content-encoding": encoding})
    assert answer.status_code == 201
    assert api.get("/api/v1/runs/big").json()["environment"] == header["environment"]


def test_a_second_process_joins_the_same_attempt(api: TestClient, make_run: Any) -> None:
    header = make_run().header
    assert api.post("/api/v1/runs", json=header).status_code == 201
    joined = api.post("/api/v1/runs", json=header | {"tags": ["rank"], "phases": ["other"]})
    assert joined.status_code == 200
    assert joined.json()["created"] is False
    assert joined.json()["attempt"] == 1
    found = api.get("/api/v1/runs/r1").json()
    assert found["phases"] == ["evaluate", "train", "other"]
    assert found["tags"] == ["rank"]


def test_a_run_of_another_project_cannot_be_joined(api: TestClient, make_run: Any) -> None:
    header = make_run().header
    api.post("/api/v1/runs", json=header)
    answer = api.post("/api/v1/runs", json=header | {"project": "other"})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "run_in_other_project"


def test_a_run_that_ended_is_resumed_as_the_next_attempt(api: TestClient, make_run: Any) -> None:
    header = make_run().header
    api.post("/api/v1/runs", json=header | {"environment": {"torch": "2.12"}})
    patch(api, "r1", state="failed", reason="ValueError", ended_at=1.76e9)
    resumed = api.post("/api/v1/runs", json=header | {"environment": {"torch": "2.13"}}).json()
    assert resumed["attempt"] == 2
    found = api.get("/api/v1/runs/r1").json()
    assert (found["state"], found["ended_at"], found["reason"]) == ("running", None, "")
    assert [a["environment"] for a in found["attempts"]] == [{"torch": "2.12"}, {"torch": "2.13"}]
    assert found["environment"] == {"torch": "2.13"}


def test_a_process_that_says_hello_again_changes_nothing(api: TestClient, make_run: Any) -> None:
    run = make_run()
    hello = run.header | {"process": {"instance": "p1", "attempt": 1}}
    assert api.post("/api/v1/runs", json=hello).status_code == 201
    run.send(api, 0, 3)
    patch(api, "r1", state="finished", instance="p1", ended_at=1.76e9)
    ended = api.get("/api/v1/runs/r1").json()
    # What `leakline sync` does when it is called twice.
    assert api.post("/api/v1/runs", json=hello).json()["attempt"] == 1
    assert run.send(api, 0, 3) == 0
    again = patch(api, "r1", state="finished", instance="p1", ended_at=1.76e9)
    for name in ("state", "ended_at", "reason", "attempt", "attempts", "series", "tags"):
        assert again[name] == ended[name], name
    assert len(again["processes"]) == 1


def test_a_process_that_said_hello_is_waited_for(api: TestClient, make_run: Any) -> None:
    header = make_run().header
    for rank in range(2):
        who = {"instance": f"p{rank}", "rank": rank}
        api.post("/api/v1/runs", json=header | {"process": who})
    assert patch(api, "r1", state="finished", instance="p0")["state"] == "running"
    assert patch(api, "r1", state="finished", instance="p1")["state"] == "finished"
    assert len(api.get("/api/v1/runs/r1").json()["processes"]) == 2


def test_the_first_batch_of_a_process_that_said_hello_is_its_own(
    api: TestClient, make_run: Any
) -> None:
    run, other = make_run(), make_run(instance="p2", rank=1)
    run.begin(api, 3)
    # The writer knows the run by now; this process joins behind its back.
    api.post("/api/v1/runs", json=run.header | {"process": {"instance": "p2", "rank": 1}})
    assert other.send(api, 0, 3) == 3
    found = api.get("/api/v1/runs/r1").json()["processes"]
    assert [(p["instance"], p["rss_bytes"] is not None) for p in found] == [
        ("p1", True),
        ("p2", True),
    ]


def test_the_next_attempt_comes_with_its_process(api: TestClient, make_run: Any) -> None:
    first, second = make_run(), make_run(instance="p2", attempt=2)
    api.post("/api/v1/runs", json=first.header | {"process": {"instance": "p1"}})
    first.send(api, 0, 6)
    # It was killed and could not say so; the next attempt joins while the run still counts as running.
    hello = first.header | {
        "process": {"instance": "p2", "attempt": 2},
        "environment": {"torch": "2.13"},
    }
    assert api.post("/api/v1/runs", json=hello).json()["attempt"] == 2
    second.send(api, 0, 3)
    assert patch(api, "r1", state="killed", instance="p1")["state"] == "running"
    found = patch(api, "r1", state="finished", instance="p2")
    assert (found["state"], found["attempt"]) == ("finished", 2)
    assert [a["number"] for a in found["attempts"]] == [1, 2]
    assert found["rss_bytes"] == second.snapshot(2).samples["process.rss_bytes"]


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("interrupted", "interrupted"),
        ("finished", "finished"),
        ("failed", "failed"),
        ("terminated", "killed"),
        ("killed", "killed"),
    ],
)
def test_how_a_run_ended(said: str, state: str, api: TestClient, make_run: Any) -> None:
    make_run().create(api)
    found = patch(api, "r1", state=said, ended_at=1_760_000_100.5, reason="it was told to")
    assert (found["state"], found["ended_at"]) == (state, "2025-10-09T08:55:00.500Z")
    assert found["reason"] == "it was told to"


def test_a_run_of_several_processes_ends_with_the_last_and_as_the_worst(
    api: TestClient, make_run: Any
) -> None:
    run, other = make_run(), make_run(instance="p2", rank=1)
    run.begin(api, 3)
    other.send(api, 0, 3)
    assert patch(api, "r1", state="failed", instance="p1")["state"] == "running"
    assert patch(api, "r1", state="finished", instance="p2")["state"] == "failed"


def test_batches_that_come_after_the_end_are_kept_and_change_nothing_about_it(
    api: TestClient, make_run: Any
) -> None:
    run = make_run()
    run.create(api)
    patch(api, "r1", state="finished")
    assert run.send(api, 0, 6) == 6
    assert api.get("/api/v1/runs/r1").json()["state"] == "finished"


def test_tags_are_replaced_and_notes_are_added(api: TestClient, make_run: Any) -> None:
    make_run().create(api)
    patch(api, "r1", tags=["a", "b", "a"], notes=[{"text": "one"}])
    found = patch(api, "r1", notes=[{"text": "two", "link": "https://example.org/x"}])
    assert found["tags"] == ["a", "b"]
    assert [n["text"] for n in found["notes"]] == ["one", "two"]
    assert patch(api, "r1", tags=[])["tags"] == []


def test_the_row_of_a_run_says_what_the_list_shows(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    run = make_run().begin(api, 300)
    # The number of generations follows with the next examination.
    eventually(lambda: api.get("/api/v1/runs").json()["items"][0]["generations"] in (99, 100))
    (item,) = api.get("/api/v1/runs").json()["items"]
    last = run.snapshot(299).samples["process.rss_bytes"]
    assert item["rss_bytes"] == last
    assert item["peak_bytes"] == last
    assert 32 <= len(item["sparkline"]) <= 64
    assert item["sparkline"][-1] == last
    assert item["sparkline"] == sorted(item["sparkline"])
    assert item["url"] == "/runs/r1"


def test_phases_seen_and_series_are_listed(api: TestClient, make_run: Any) -> None:
    run = make_run().begin(api, 6)
    found = api.get("/api/v1/runs/r1").json()
    assert found["phases_seen"] == ["evaluate", "train"]
    assert found["series"] == sorted(run.snapshot(2).samples)
    (declared,) = found["expectations"]
    assert declared == {
        "type": "app.Env",
        "low": 2,
        "high": 2,
        "after": None,
        "accepted": False,
        "baseline": False,
    }
    assert found["processes"][0]["pid"] == 100


@pytest.fixture(scope="module")
def many(shared_api: TestClient) -> TestClient:
    for i in range(12):
        header = {
            "id": f"m{i:02}", "project": "even" if i % 2 == 0 else "odd", "name": f"try_{i}%",
            "started_at": 1.76e9 + i // 3, "tags": ["ten"] if i == 10 else [],
        }  # fmt: skip
        shared_api.post("/api/v1/runs", json=header)
    shared_api.patch("/api/v1/runs/m05", json={"state": "failed"})
    return shared_api


NEWEST = [f"m{i:02}" for i in range(11, -1, -1)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", NEWEST),
        ("project=odd", NEWEST[::2]),
        ("tag=ten", ["m10"]),
        ("tag=te", []),
        ("tag=%25", []),
        ("status=failed", ["m05"]),
        ("status=learning", NEWEST),
        ("status=confirmed", []),
        ("q=TRY_1%25", ["m01"]),
        ("q=m1", ["m11", "m10"]),
        ("q=even&limit=2", ["m10", "m08"]),
        ("q=nothing", []),
    ],
)
def test_runs_are_found(query: str, expected: list[str], many: TestClient) -> None:
    assert names(many, query) == expected


def test_following_the_cursor_gives_every_snapshot_once(api: TestClient, make_run: Any) -> None:
    run, other = make_run(), make_run(instance="p2", rank=1, started=1_760_000_000.25)
    run.begin(api, 40)
    other.send(api, 0, 25)
    seen: list[tuple[str, int]] = []
    times: list[float] = []
    cursor: str | None = ""
    while cursor is not None:
        query = "limit=7" + (f"&cursor={cursor}" if cursor else "")
        answer = api.get(f"/api/v1/runs/r1/snapshots?{query}").json()
        seen += [(row["process"], row["sequence"]) for row in answer["items"]]
        times += [row["time"] for row in answer["items"]]
        cursor = answer["next"]
    assert len(seen) == len(set(seen)) == 65
    assert times == sorted(times, reverse=True)

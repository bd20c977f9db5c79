"""A snapshot is stored once, in whatever pieces it is sent; two truths under one number are refused."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import zstandard
from starlette.testclient import TestClient

BATCHES = "/api/v1/runs/r1/batches"


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    run = make_run()
    run.create(api)
    return run


def sequences(api: TestClient) -> list[int]:
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    return sorted(row["sequence"] for row in rows)


def test_the_same_batch_again_is_accepted_with_nothing_new(api: TestClient, run: Any) -> None:
    assert run.send(api, 0, 20) == 20
    assert run.send(api, 0, 20) == 0
    assert sequences(api) == list(range(20))


def test_other_pieces_of_the_same_snapshots_are_trimmed(api: TestClient, run: Any) -> None:
    assert run.send(api, 5, 10) == 10
    assert run.send(api, 0, 20) == 10
    assert run.send(api, 3, 14, size=3) == 0
    assert sequences(api) == list(range(20))


def test_batches_out_of_order_end_up_in_order(api: TestClient, run: Any) -> None:
    for first in (40, 0, 20, 10, 30):
        assert run.send(api, first, 10) == 10
    items = api.get("/api/v1/runs/r1/series?name=process.rss_bytes&x=sequence").json()["items"]
    assert items[0]["x"] == list(range(50))
    assert items[0]["last"] == [run.snapshot(i).samples["process.rss_bytes"] for i in range(50)]


def test_a_gap_stays_a_gap_until_it_is_filled(api: TestClient, run: Any) -> None:
    run.send(api, 0, 5)
    run.send(api, 8, 5)
    assert sequences(api) == [*range(5), *range(8, 13)]
    assert run.send(api, 0, 13) == 3
    assert sequences(api) == list(range(13))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (
            lambda w: w["columns"]["series"]["process.rss_bytes"].__setitem__(4, 1),
            "process.rss_bytes",
        ),
        (lambda w: w["columns"]["series"].__setitem__("new.series", [1] * 10), "new.series"),
        (lambda w: w["columns"]["series"].__delitem__("generation.seconds"), "generation.seconds"),
        (lambda w: w["columns"]["generation"].__setitem__(2, 99), "generation"),
        (lambda w: w["columns"]["label"].__setitem__(2, "other"), "label"),
        (lambda w: w["columns"]["time"].__setitem__(2, 5.0), "time"),
    ],
)
def test_the_same_number_with_other_content_is_a_contradiction(
    change: Any, field: str, api: TestClient, run: Any
) -> None:
    run.send(api, 0, 10)
    wire = run.wire(0, 10)
    change(wire)
    answer = api.post(BATCHES, json=wire)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "sequence_contradiction"
    assert answer.json()["error"]["details"]["field"] == field
    assert run.send(api, 0, 10) == 0


def test_a_contradiction_stores_nothing_of_its_batch(api: TestClient, run: Any) -> None:
    run.send(api, 0, 10)
    wire = run.wire(5, 10)
    wire["columns"]["phase"][0] = "other"
    assert api.post(BATCHES, json=wire).status_code == 409
    assert sequences(api) == list(range(10))


def test_two_processes_have_numbers_of_their_own(api: TestClient, run: Any, make_run: Any) -> None:
    other = make_run(instance="p2", rank=1, leak_bytes=0)
    assert run.send(api, 0, 6) == 6
    assert other.send(api, 0, 6) == 6
    found = api.get("/api/v1/runs/r1").json()
    assert [(p["instance"], p["rank"]) for p in found["processes"]] == [("p1", 0), ("p2", 1)]
    assert found["rss_bytes"] == sum(
        r.snapshot(5).samples["process.rss_bytes"] for r in (run, other)
    )


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity"])
def test_a_compressed_batch_is_the_same_batch(encoding: str, api: TestClient, run: Any) -> None:
    raw = json.dumps(run.wire(0, 30)).encode()
    body = {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}[encoding](raw)
    answer = api.post(BATCHES, content=body, headers={"content-encoding": encoding})
    assert answer.json() == {"accepted": 30, "requests": []}
    assert run.send(api, 0, 30) == 0


def test_rows_are_the_same_batch_as_columns(api: TestClient, run: Any) -> None:
    rows = [
        {
            "time": s.time, "monotonic": s.monotonic, "generation": s.generation, "phase": s.phase,
            "label": s.label, "kind": s.kind, "series": dict(s.samples),
        }
        for s in run.batch(0, 9).snapshots
    ]  # fmt: skip
    body = {"version": 1, "process": {"instance": "p1"}, "first_sequence": 0, "snapshots": rows}
    assert api.post(BATCHES, json=body).json()["accepted"] == 9
    assert run.send(api, 0, 9) == 0


def test_the_smallest_batch_of_another_language_is_enough(api: TestClient, run: Any) -> None:
    row = {"time": 1.0, "series": {"js.heap_bytes": 12}}
    body = {"version": 1, "process": {"instance": "js"}, "first_sequence": 0, "snapshots": [row]}
    assert api.post(BATCHES, json=body).json()["accepted"] == 1
    (found,) = api.get("/api/v1/runs/r1/snapshots?name=js.heap_bytes").json()["items"]
    assert found["kind"] == "manual"
    assert found["samples"] == {"js.heap_bytes": 12}


def test_an_empty_batch_still_tells_what_was_lost(api: TestClient, run: Any) -> None:
    wire = run.wire(0, 1)
    wire |= {"count": 0, "lost": {"thinned": 7}, "first_sequence": 0}
    wire["columns"] = {"time": [], "series": {}}
    assert api.post(BATCHES, json=wire).json()["accepted"] == 0
    assert api.get("/api/v1/runs/r1").json()["processes"][0]["lost"] == {"thinned": 7}


def test_what_is_known_survives_a_restart(database_url: str, make_run: Any) -> None:
    from leakline_server.app import create_app
    from leakline_server.config import Config

    run = make_run()
    config = Config(database_url=database_url)
    with TestClient(create_app(config), base_url="http://127.0.0.1") as api:
        run.create(api)
        run.send(api, 0, 5)
        run.send(api, 10, 5)
    with TestClient(create_app(config), base_url="http://127.0.0.1") as api:
        assert run.send(api, 0, 20) == 10
        assert sequences(api) == list(range(20))


def test_series_beyond_the_bound_are_left_out_and_counted(
    api: TestClient, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.known.MAX_SERIES", 6)
    run.send(api, 0, 3)
    wire = run.wire(3, 3)
    wire["columns"]["series"] |= {f"type.T{i}.count": [1, None, 3] for i in range(4)}
    assert api.post(BATCHES, json=wire).json()["accepted"] == 3
    assert api.post(BATCHES, json=wire).json()["accepted"] == 0
    found = api.get("/api/v1/runs/r1").json()
    assert len(found["series"]) == 6
    assert found["processes"][0]["lost"] == {"series_over_limit": 8}

"""What a process printed: the newest 50 lines of each are kept, older ones go, and nobody takes them for events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from leakline.output import LINE_LIMIT
from leakline.output import LINES_KEPT as SENT_AT_ONCE
from leakline_server import ingest
from leakline_server.ingest import MAX_LINE_LENGTH
from leakline_server.store.codec import decompress
from leakline_server.store.engine import writing
from leakline_server.store.inbox import Inbox
from leakline_server.store.log_lines import LINES_KEPT
from leakline_server.store.tables import batches, details


def saying(run: Any, sequence: int, lines: Any, count: int = 1) -> Any:
    body = run.wire(sequence, count)
    event = {"sequence": sequence, "time": run.started, "kind": "log", "name": "log"}
    body["events"] = [*body["events"], event | {"data": {"lines": lines}}]
    return body


def say(run: Any, api: TestClient, sequence: int, lines: Any, count: int = 1) -> Any:
    body = saying(run, sequence, lines, count)
    return api.post(f"/api/v1/runs/{run.id}/batches", json=body)


def told(api: TestClient, run: Any) -> dict[str, list[str]]:
    found = api.get(f"/api/v1/runs/{run.id}").json()
    return {process["instance"]: process["log_lines"] for process in found["processes"]}


def kept_rows(api: TestClient) -> list[str]:
    """Every text of every row that could hold lines."""
    engine = api.app.state.services.engine  # type: ignore[attr-defined]
    with engine.connect() as connection:
        bodies = [
            *connection.scalars(select(details.c.body)),
            *connection.scalars(select(batches.c.body)),
        ]
    return [decompress(body).decode(errors="replace") for body in bodies]


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    run = make_run()
    run.create(api)
    return run


def test_only_the_newest_lines_are_kept(api: TestClient, run: Any) -> None:
    for sequence in range(4):
        lines = [f"batch {sequence} line {i}" for i in range(20)]
        assert say(run, api, sequence, lines).status_code == 200
    expected = [f"batch {s} line {i}" for s in range(4) for i in range(20)][-LINES_KEPT:]
    assert told(api, run) == {"p1": expected}
    stored = "".join(kept_rows(api))
    assert "batch 1 line 10" in stored
    assert "batch 1 line 9" not in stored
    assert "batch 0" not in stored


def test_lines_of_one_batch_and_of_a_batch_that_comes_late_are_in_order(
    api: TestClient, run: Any
) -> None:
    say(run, api, 5, ["later"])
    say(run, api, 1, ["sooner"])
    assert told(api, run) == {"p1": ["sooner", "later"]}


def test_a_batch_that_is_sent_twice_tells_its_lines_once(api: TestClient, run: Any) -> None:
    for _ in range(2):
        assert say(run, api, 0, ["one"]).status_code == 200
    assert told(api, run) == {"p1": ["one"]}


def test_each_process_has_its_own_lines(api: TestClient, run: Any, make_run: Any) -> None:
    other = make_run(instance="p2", rank=1)
    say(run, api, 0, ["of rank 0"])
    say(other, api, 0, ["of rank 1"])
    say(run, api, 1, ["again"])
    assert told(api, run) == {"p1": ["of rank 0", "again"], "p2": ["of rank 1"]}


def test_lines_of_runs_that_are_written_together_stay_apart(
    api: TestClient, run: Any, make_run: Any
) -> None:
    other = make_run(id="r2")
    other.create(api)
    bodies = [(each, saying(each, 0, [f"of {each.id}"])) for each in (run, other)]
    group = [ingest.check(each.id, json.dumps(body).encode(), 2.0) for each, body in bodies]
    with writing(api.app.state.services.engine) as connection:  # type: ignore[attr-defined]
        Inbox().store(connection, group)
    assert told(api, run) == {"p1": ["of r1"]}
    assert told(api, other) == {"p1": ["of r2"]}


def test_lines_are_no_events(api: TestClient, run: Any) -> None:
    say(run, api, 2, ["a line"])
    kinds = [e["kind"] for e in api.get("/api/v1/runs/r1/events").json()["items"]]
    assert kinds == ["mark", "expect"]
    assert "a line" not in json.dumps(api.get("/api/v1/runs/r1/snapshots").json())
    assert told(api, run) == {"p1": ["a line"]}


def test_a_process_that_told_none_has_none(api: TestClient, run: Any) -> None:
    run.send(api, 0, 3)
    assert told(api, run) == {"p1": []}


@pytest.mark.parametrize(
    "lines",
    [None, "text", [], [1], ["x"] * (LINES_KEPT + 1), ["x" * (MAX_LINE_LENGTH + 1)], [["nested"]], {"a": "b"}],
)  # fmt: skip
def test_lines_that_are_none_are_refused_by_name(api: TestClient, run: Any, lines: Any) -> None:
    answer = say(run, api, 0, lines)
    assert answer.status_code == 422
    assert answer.json()["error"]["details"]["field"] == "events[0].data.lines"
    assert told(api, run) == {}


def test_what_the_client_sends_fits(api: TestClient, run: Any) -> None:
    assert SENT_AT_ONCE <= LINES_KEPT
    assert say(run, api, 0, ["\u4e16" * LINE_LIMIT] * SENT_AT_ONCE).status_code == 200


def test_control_characters_are_gone(api: TestClient, run: Any) -> None:
    say(run, api, 0, ["\x1b[31mred\x00\x07 'quoted' <b>"])
    assert told(api, run) == {"p1": ["[31mred 'quoted' <b>"]}


def test_what_is_stored_and_what_was_taken_is_told_of_each_process(
    api: TestClient, run: Any
) -> None:
    run.send(api, 1, 10)
    run.send(api, 15, 5)
    (process,) = api.get("/api/v1/runs/r1").json()["processes"]
    assert (process["taken"], process["stored"]) == (19, 15)


def test_what_was_lost_after_the_last_batch_was_taken_as_well(api: TestClient, run: Any) -> None:
    run.send(api, 1, 10)
    empty = run.wire(11, 1) | {"count": 0, "lost": {"queue_full": 4, "events": 9}}
    empty |= {"columns": {"time": [], "series": {}}, "events": [], "first_sequence": 0}
    assert api.post("/api/v1/runs/r1/batches", json=empty).status_code == 200
    (process,) = api.get("/api/v1/runs/r1").json()["processes"]
    assert (process["taken"], process["stored"]) == (14, 10)


def test_sealed_snapshots_are_counted_with_those_that_wait(api: TestClient, run: Any) -> None:
    run.send(api, 1, 700)
    (process,) = api.get("/api/v1/runs/r1").json()["processes"]
    assert (process["taken"], process["stored"]) == (700, 700)

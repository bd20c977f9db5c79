"""Of a run of very many processes the largest are studied, and every answer says how many it leaves out."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import event
from starlette.testclient import TestClient
from tests.server.stored import engine_of

from leakline import analysis
from leakline_server.store import details, history, points, snapshots

FEW = 3
ALL = 5


@pytest.fixture
def many(api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Ranks 0 to 4, of which each is larger than the one before."""
    monkeypatch.setattr(history, "MAX_PROCESSES_STUDIED", FEW)
    for rank in range(ALL):
        size = {"process.rss_bytes": lambda _, rank=rank: (rank + 1) * 2**30}
        run = make_run(id="many", instance=f"p{rank}", rank=rank, extra=size)
        run.create(api)
        run.send(api, 0, 9)
    return api


def test_no_process_of_a_run_of_few_is_left_out(api: TestClient, make_run: Any) -> None:
    make_run(id="one").create(api)
    make_run(id="one").send(api, 0, 9)
    read, _ = history.load_for_examination(engine_of(api), "one")
    assert (len(read.processes), read.processes_left_out) == (1, 0)
    assert "not studied" not in analysis.examine(read).summary
    told = api.get("/api/v1/runs/one/series?name=*").json()
    assert told["processes_left_out"] == 0
    assert api.get("/api/v1/runs/one/snapshots").json()["processes_left_out"] == 0


@pytest.mark.parametrize("load", [history.load_for_examination, history.load_for_pages])
def test_the_largest_processes_are_studied_and_the_others_counted(
    many: TestClient, load: Any
) -> None:
    read, _ = load(engine_of(many), "many")
    assert [process.instance for process in read.processes] == ["p2", "p3", "p4"]
    assert read.processes_left_out == ALL - FEW
    # Each process told one.
    assert len(read.holders) == FEW


def test_the_verdict_and_a_comparison_say_how_many_are_not_studied(many: TestClient) -> None:
    said = "(of the 3 largest processes; 2 more are not studied)"
    read, _ = history.load_for_examination(engine_of(many), "many")
    assert analysis.examine(read).summary.endswith(said)
    compared = many.get("/api/v1/compare?before=many&after=many").json()
    assert compared["summary"].endswith(said)
    assert many.get("/runs/many").status_code == 200


def test_an_export_has_every_process(many: TestClient) -> None:
    read = history.load_history(engine_of(many), "many")
    assert (len(read.processes), read.processes_left_out) == (ALL, 0)


def test_series_beyond_what_an_answer_holds_are_not_read_of_further_processes(
    many: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "MAX_PROCESSES_READ", FEW)
    path = "/api/v1/runs/many/series?name=process.rss_bytes"
    whole = many.get(path).json()
    # There is room for all of them.
    assert (len(whole["items"]), whole["left_out"], whole["processes_left_out"]) == (ALL, 0, 0)
    monkeypatch.setattr(points, "MAX_ITEMS", 2)
    cut = many.get(path).json()
    assert (len(cut["items"]), cut["left_out"], cut["processes_left_out"]) == (2, 1, 2)


def test_snapshots_are_listed_of_the_processes_heard_of_last(
    many: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_PROCESSES_READ", FEW)
    told = many.get("/api/v1/runs/many/snapshots").json()
    assert {row["process"] for row in told["items"]} == {"p2", "p3", "p4"}
    assert told["processes_left_out"] == ALL - FEW


def test_large_objects_are_read_with_one_question_and_are_those_of_the_newest_snapshot(
    api: TestClient, make_run: Any
) -> None:
    for rank in range(4):
        run = make_run(id="many", instance=f"p{rank}", rank=rank)
        run.create(api)
        run.send(api, 0, 34)
    asked: list[str] = []
    me = threading.get_ident()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        # Threads of the server look at the run as well.
        if statement.startswith("SELECT") and threading.get_ident() == me:
            asked.append(statement)

    engine = engine_of(api)
    event.listen(engine, "before_cursor_execute", note)
    try:
        found = details.newest_large_objects(engine, "many")
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert len(asked) == 1
    assert {(row["process"], row["sequence"]) for row in found} == {(f"p{n}", 32) for n in range(4)}
    assert len(found) == 8

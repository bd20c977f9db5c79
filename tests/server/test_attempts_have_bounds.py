"""A run that ends and is resumed over and over fills no disk and no answer, and what it tells of itself is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.server.access.people import ADDRESS, asking, bearer, token
from tests.server.databases import Copies
from tests.server.stored import engine_of

from leakline_server import limits
from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.store import runs
from leakline_server.store.retention import PerProject
from leakline_server.store.tables import attempts, intake

RUNS = "/api/v1/runs"
LONG = "x" * 50_000


def end(api: TestClient, **more: Any) -> Any:
    return api.patch(f"{RUNS}/r1", json={"state": "finished", **more})


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == code
    return error


def counted(api: TestClient, project: str = "default") -> int:
    """Bytes of today."""
    with engine_of(api).connect() as connection:
        query = select(intake.c.bytes).where(intake.c.project == project)
        return int(connection.execute(query).scalar_one())


def test_a_run_has_so_many_attempts_and_goes_on_with_the_last(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.joining.MAX_RUN_ATTEMPTS", 3)
    for _ in range(3):
        api.post(RUNS, json={"id": "r1"})
        assert end(api).status_code == 200
    new = {"id": "r1", "process": {"instance": "p9", "attempt": 4}}
    for header in ({"id": "r1"}, new):
        error = refused(api.post(RUNS, json=header), 409, "too_many_attempts")
        assert "begin another run" in error["message"]
    found = api.get(f"{RUNS}/r1").json()
    # What was refused has left nothing behind.
    assert (found["attempt"], found["state"], found["processes"]) == (3, "finished", [])


LAST = 2**31 - 1


def a_process(instance: str, started_at: float, role: str = "main", attempt: int = LAST) -> Any:
    """A header with a process that says which attempt it is."""
    process = {"instance": instance, "attempt": attempt, "role": role}
    return {"id": "r1", "started_at": started_at, "process": process}


def test_no_attempt_follows_the_last_number_that_one_may_have(api: TestClient) -> None:
    assert api.post(RUNS, json=a_process("p1", 1e9)).json()["attempt"] == LAST
    assert end(api).status_code == 200
    for header in ({"id": "r1"}, a_process("p2", 1.7e9)):
        refused(api.post(RUNS, json=header), 409, "too_many_attempts")
    found = api.get(f"{RUNS}/r1").json()
    assert (found["attempt"], found["state"]) == (LAST, "finished")
    assert [process["instance"] for process in found["processes"]] == ["p1"]


def test_a_child_that_says_the_last_number_holds_up_no_attempt_that_is_put_in_before_others(
    api: TestClient, make_run: Any
) -> None:
    assert api.post(RUNS, json=a_process("p1", 1e9, attempt=1)).status_code == 201
    # It has never joined, and sends batches alone.
    wire = make_run(instance="child", attempt=LAST).wire(0, 1)
    wire["process"]["role"] = "child"
    assert api.post(f"{RUNS}/r1/batches", json=wire).status_code == 200
    earlier = api.post(RUNS, json=a_process("earlier", 1e8, attempt=1))
    assert earlier.json().get("attempt") == 1, earlier.text
    found = {p["instance"]: p["attempt"] for p in api.get(f"{RUNS}/r1").json()["processes"]}
    assert found == {"earlier": 1, "p1": 2, "child": LAST}


def test_another_process_of_the_last_attempt_is_welcome(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.store.joining.MAX_RUN_ATTEMPTS", 1)
    for rank in range(3):
        header = {"id": "r1", "process": {"instance": f"p{rank}", "rank": rank}}
        assert api.post(RUNS, json=header).json()["attempt"] == 1


@pytest.mark.parametrize(
    ("field", "limit"),
    [("config", limits.MAX_CONFIG_BYTES), ("environment", limits.MAX_ENVIRONMENT_BYTES)],
)
def test_what_a_run_tells_of_itself_is_bounded_as_json(
    shared_api: TestClient, field: str, limit: int
) -> None:
    # {"a":"..."}, where each of these takes two bytes
    fits = {"a": "é" * ((limit - 8) // 2)}
    assert shared_api.post(RUNS, json={field: fits}).status_code == 201
    error = refused(
        shared_api.post(RUNS, json={field: {"a": fits["a"] + "é"}}), 422, "invalid_field"
    )
    assert error["details"]["field"] == field
    assert f"has more than {limit} bytes" in error["message"]


@pytest.fixture
def bounded(database_url: str) -> Iterator[TestClient]:
    config = Config(database_url=database_url, bytes_per_day=PerProject(300_000))
    with TestClient(create_app(config), "http://127.0.0.1") as client:
        yield client


def test_headers_count_as_what_is_stored_and_fill_a_day(bounded: TestClient) -> None:
    header = {"id": "r1", "environment": {"a": LONG}}
    statuses = []
    for _ in range(9):
        answer = bounded.post(RUNS, json=header)
        statuses.append(answer.status_code)
        if answer.status_code == 429:
            refused(answer, 429, "too_many_bytes")
            assert 1 <= int(answer.headers["retry-after"]) <= 3_600
        # A run may always tell its end.
        assert end(bounded).status_code == 200
    # The run keeps the newest, and each attempt its own.
    assert statuses == [201, 200, 200, *[429] * 6]
    assert 300_000 <= counted(bounded) < 302_000
    with bounded.app.state.services.engine.connect() as connection:  # type: ignore[attr-defined]
        stored = connection.scalars(select(attempts.c.environment)).all()
    assert [len(text) for text in stored] == [len(LONG) + len('{"a":""}')] * 3


def test_a_process_that_says_hello_again_counts_nothing(api: TestClient) -> None:
    header = {"id": "r1", "environment": {"a": LONG}, "process": {"instance": "p1"}}
    api.post(RUNS, json=header)
    before = counted(api)
    assert before > 2 * len(LONG)
    for _ in range(3):
        api.post(RUNS, json=header)
    # Another rank: itself, and not again what its attempt was started from.
    api.post(RUNS, json=header | {"process": {"instance": "p2", "rank": 1}})
    assert 0 < counted(api) - before < 1_000


def test_notes_and_names_of_series_count(bounded: TestClient, make_run: Any) -> None:
    bounded.post(RUNS, json={"id": "r1"})
    before = counted(bounded)
    notes = [{"text": "n" * 4_000} for _ in range(30)]
    assert bounded.patch(f"{RUNS}/r1", json={"notes": notes}).status_code == 200
    assert 120_000 < counted(bounded) - before < 125_000
    run = make_run()
    wire = run.wire(0, 1)
    wire["columns"]["series"] = {f"gauge.{i:0>500}": [1] for i in range(600)}
    assert bounded.post(f"{RUNS}/r1/batches", json=wire).status_code == 200
    refused(bounded.post(f"{RUNS}/r1/batches", json=run.wire(1, 1)), 429, "too_many_bytes")
    answer = bounded.patch(f"{RUNS}/r1", json={"notes": notes})
    assert refused(answer, 429, "too_many_bytes")["details"]["project"] == "default"
    assert len(bounded.get(f"{RUNS}/r1").json()["notes"]) == 30


def test_whoever_is_told_three_fields_has_no_more_read_for_them(
    sqlite_copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        sqlite_copies.new(tmp_path) as url,
        TestClient(create_app(asking(url)), base_url=ADDRESS) as client,
    ):
        who = bearer(token(engine_of(client), "ingest", "erl")[1])
        client.post(RUNS, json={"id": "r1"}, headers=who)
        read: list[str] = []
        monkeypatch.setattr(runs, "get_run", lambda _, run_id: read.append(run_id))
        answer = client.patch(f"{RUNS}/r1", json={"state": "finished"}, headers=who)
        assert answer.json() == {"id": "r1", "state": "finished", "url": "/runs/r1"}
        assert read == []

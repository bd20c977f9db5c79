"""A token of one project writes into no run of another, whatever it names; and who names none adds to its project."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.access.people import ADDRESS, bearer, engine_of, error_of, token
from tests.server.otlp_requests import WHO, memory, post, refusal, rows_of

from leakline.sender import announcement
from leakline.snapshot import ProcessIdentity, RunHeader, header_from_wire, header_to_wire

RSS = "process.rss_bytes"


def of(project: str | None) -> dict[str, Any]:
    return WHO if project is None else WHO | {"leakline.project": project}


def stored(client: TestClient, headers: dict[str, str], project: str = "ours") -> list[int]:
    """Of the one run of the project."""
    runs = client.get("/api/v1/runs", headers=headers).json()["items"]
    (run,) = (run for run in runs if run["project"] == project)
    client.headers.update(headers)
    try:
        return [row["samples"][RSS] for row in rows_of(client, run["id"])]
    finally:
        client.headers.pop("authorization", None)


# OpenTelemetry: the run is known by its service, in its project.


def test_a_stream_of_one_project_takes_nothing_of_another(
    asked: TestClient, admin: dict[str, str]
) -> None:
    engine = engine_of(asked)
    ours, theirs = (bearer(token(engine, "ingest", each)[1]) for each in ("ours", "theirs"))
    assert post(asked, memory([1, 2], who=of("ours")), **ours).status_code == 200
    for value, (project, first) in enumerate((("theirs", 0.0), (None, 60.0), (None, 0.0)), 7):
        answer = post(asked, memory([value], first, who=of(project)), **theirs)
        assert answer.status_code == 200 and "ours" not in answer.text
    assert stored(asked, admin, "theirs") == [7, 8]
    assert refusal(post(asked, memory([7], 60.0, who=of("ours")), **theirs), 404)["code"] == (
        "project_not_found"
    )
    assert stored(asked, admin) == [1, 2]
    assert post(asked, memory([3], 60.0, who=of("ours")), **ours).status_code == 200
    assert stored(asked, admin) == [1, 2, 3]


def test_without_tokens_a_stream_stays_in_its_project_too(api: TestClient) -> None:
    assert post(api, memory([1, 2], who=of("ours"))).status_code == 200
    for first in (0.0, 60.0):
        assert post(api, memory([7], first, who=of("theirs"))).status_code == 200
    assert stored(api, {}) == [1, 2]
    assert stored(api, {}, "theirs") == [7, 7]


def test_a_run_that_began_anew_in_another_project_is_not_written_into(
    asked: TestClient, admin: dict[str, str]
) -> None:
    engine = engine_of(asked)
    ours = bearer(token(engine, "ingest", "ours")[1])
    assert post(asked, memory([1], who=of("ours")), **ours).status_code == 200
    (run,) = asked.get("/api/v1/runs", headers=admin).json()["items"]
    path = f"/api/v1/runs/{run['id']}"
    assert asked.patch(path, json={"state": "finished"}, headers=admin).status_code == 200
    assert asked.delete(path, headers=admin).status_code in (202, 204)
    anew = {"id": run["id"], "project": "theirs"}
    assert asked.post("/api/v1/runs", json=anew, headers=admin).status_code == 201
    answer = post(asked, memory([7], 60.0, who=of("ours")), **ours)
    assert refusal(answer, 404)["code"] == "run_not_found"
    assert stored(asked, admin, "theirs") == []


def test_metrics_that_name_no_project_are_of_that_of_the_token(
    asked: TestClient, admin: dict[str, str]
) -> None:
    _, ours = token(engine_of(asked), "ingest", "ours")
    assert post(asked, memory([1]), **bearer(ours)).status_code == 200
    (run,) = asked.get("/api/v1/runs", headers=admin).json()["items"]
    assert run["project"] == "ours"


def test_nobody_takes_the_run_of_a_project_by_naming_its_service_first(
    asked: TestClient, admin: dict[str, str]
) -> None:
    engine = engine_of(asked)
    for size, project in enumerate(("theirs", "ours"), 1):
        _, secret = token(engine, "ingest", project)
        assert post(asked, memory([size]), **bearer(secret)).status_code == 200
    runs = asked.get("/api/v1/runs", headers=admin).json()["items"]
    assert {run["project"]: run["rss_bytes"] for run in runs} == {"theirs": 1, "ours": 2}


# Our own clients name a project where somebody gave one, and else none.


def test_a_header_without_a_project_travels_without_one() -> None:
    named = RunHeader("r1", "erl", "n", "generation", None, 0.0)
    assert header_to_wire(named)["project"] == "erl"
    unnamed = RunHeader("r1", "", "n", "generation", None, 0.0)
    assert "project" not in header_to_wire(unnamed)
    for header in (named, unnamed):
        assert header_from_wire(header_to_wire(header)) == header
        assert ("project" in announcement(header, ProcessIdentity("p1"))) == bool(header.project)


# What adds is told no value that is stored.


@pytest.fixture
def run(asked: TestClient, adding: dict[str, str], make_run: Any) -> Any:
    """In the project of the token, with snapshots."""
    made = make_run(id="m1")
    answer = asked.post("/api/v1/runs/m1/batches", json=made.wire(0, 3), headers=adding)
    assert answer.status_code == 200
    return made


def contradicting(run: Any) -> tuple[dict[str, Any], int]:
    """A batch that guesses, and the value it guesses at."""
    wire = copy.deepcopy(run.wire(0, 3))
    values = wire["columns"]["series"][RSS]
    secret, values[0] = values[0], 12_345
    return wire, secret


def test_a_contradiction_names_the_field_and_not_what_is_stored(
    asked: TestClient, adding: dict[str, str], admin: dict[str, str], run: Any
) -> None:
    wire, secret = contradicting(run)
    path = "/api/v1/runs/m1/batches"
    # Past the short way as well.
    for headers in (adding, adding | {"origin": ADDRESS}):
        answer = asked.post(path, json=wire, headers=headers)
        error = error_of(answer)
        assert (answer.status_code, error["code"]) == (409, "sequence_contradiction")
        assert error["details"] == {"sequence": 0, "field": RSS, "sent": 12_345}
        assert RSS in error["message"] and str(secret) not in answer.text
    # Who may read it is helped by it.
    error = error_of(asked.post(path, json=wire, headers=admin))
    assert error["details"]["stored"] == secret
    assert f"stored with {RSS}={secret}" in error["message"]


def test_a_process_of_another_rank_is_named_without_its_rank(
    asked: TestClient, adding: dict[str, str], admin: dict[str, str], make_run: Any
) -> None:
    def joining(rank: int) -> dict[str, Any]:
        return {"id": "m1", "project": "mine", "process": {"instance": "p1", "rank": rank}}

    assert asked.post("/api/v1/runs", json=joining(41), headers=adding).status_code == 200
    batch = make_run(id="m1", rank=7).wire(0, 3)
    for path, body in (("/api/v1/runs", joining(7)), ("/api/v1/runs/m1/batches", batch)):
        answer = asked.post(path, json=body, headers=adding)
        error = error_of(answer)
        assert (answer.status_code, error["code"]) == (409, "instance_in_use")
        assert error["details"] == {"instance": "p1", "field": "rank", "sent": 7}
        assert "41" not in answer.text
        assert error_of(asked.post(path, json=body, headers=admin))["details"]["stored"] == 41

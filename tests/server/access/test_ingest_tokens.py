"""Ingest tokens add to one project; they reveal no stored data and evict nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.access.people import (
    ADDRESS,
    ELSEWHERE,
    asking,
    bearer,
    engine_of,
    error_of,
    token,
)
from tests.server.otlp_requests import WHO, memory, post, refusal, rows_of

from leakline.snapshot import ProcessIdentity, RunHeader, header_from_wire, header_to_wire
from leakline.transport.sender import announcement
from leakline_server.app import create_app
from leakline_server.limits import share_of_browsers
from leakline_server.store.ingest.project_quota import of_today
from leakline_server.store.maintenance.retention_policy import PerProject

RSS = "process.rss_bytes"
RUNS = "/api/v1/runs"


def test_a_foreign_project_looks_like_a_missing_one(
    asked: TestClient, adding: dict[str, str], admin: dict[str, str]
) -> None:
    # A request without a project adds to the only project of the token.
    made = asked.post("/api/v1/runs", json={}, headers=adding).json()["id"]
    assert asked.get(f"/api/v1/runs/{made}", headers=admin).json()["project"] == "mine"
    for body in ({"project": "other"}, {"project": "nowhere"}, {"id": "o1", "project": "mine"}):
        answer = asked.post("/api/v1/runs", json=body, headers=adding)
        assert answer.status_code == 404
        assert "other" not in answer.text.replace("not to 'other'", "").replace(
            '"project":"other"', ""
        )
    answer = asked.patch("/api/v1/runs/o1", json={"state": "finished"}, headers=adding)
    assert (answer.status_code, error_of(answer)["code"]) == (404, "run_not_found")


def test_batches_for_a_foreign_run_are_refused(
    asked: TestClient, adding: dict[str, str], admin: dict[str, str], make_run: Any
) -> None:
    for run, status in (("m1", 200), ("o1", 404), ("nowhere", 404)):
        wire = make_run(id=run).wire(0, 3)
        # Also without the fast path.
        for headers in (adding, adding | {"origin": ADDRESS}):
            answer = asked.post(f"/api/v1/runs/{run}/batches", json=wire, headers=headers)
            assert answer.status_code == status
    assert asked.get("/api/v1/runs/o1/snapshots", headers=admin).json()["items"] == []


def test_an_ingest_token_can_end_its_run_but_not_change_it(
    asked: TestClient, adding: dict[str, str]
) -> None:
    for changes in ({"name": "mine now"}, {"tags": ["baseline"]}):
        answer = asked.patch("/api/v1/runs/m1", json=changes, headers=adding)
        assert (answer.status_code, error_of(answer)["code"]) == (403, "scope_too_small")
    told = {"state": "finished", "notes": [{"text": "done"}]}
    answer = asked.patch("/api/v1/runs/m1", json=told, headers=adding)
    assert answer.json() == {"id": "m1", "state": "finished", "url": "/runs/m1"}


def test_a_page_of_an_allowed_origin_can_send_with_a_browser_token(database_url: str) -> None:
    config = asking(database_url, allowed_origins=(ELSEWHERE,))
    with TestClient(create_app(config), base_url=ADDRESS) as client:
        engine = engine_of(client)
        page = {"origin": ELSEWHERE}
        plain, browser = (
            page | bearer(token(engine, "ingest", "mine", browser=each)[1])
            for each in (False, True)
        )
        answer = client.post(RUNS, json={"project": "mine"}, headers=plain)
        assert answer.status_code == 403
        assert "--browser" in error_of(answer)["message"]
        # The page may read the reason.
        assert answer.headers["access-control-allow-origin"] == ELSEWHERE
        answer = client.post(RUNS, json={"project": "mine"}, headers=browser)
        assert answer.status_code == 201
        ask = page | {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        assert client.options(RUNS, headers=ask).status_code == 200
        assert client.get(RUNS, headers=browser).status_code == 403


def of(project: str | None) -> dict[str, Any]:
    return WHO if project is None else WHO | {"leakline.project": project}


def stored(client: TestClient, headers: dict[str, str], project: str = "ours") -> list[int]:
    """Return the stored values of the only run of the project."""
    runs = client.get("/api/v1/runs", headers=headers).json()["items"]
    (run,) = (run for run in runs if run["project"] == project)
    client.headers.update(headers)
    try:
        return [row["samples"][RSS] for row in rows_of(client, run["id"])]
    finally:
        client.headers.pop("authorization", None)


def test_a_stream_cannot_write_to_another_project(asked: TestClient, admin: dict[str, str]) -> None:
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
    # The same service may send to several projects, no matter which one came first.
    assert post(asked, memory([4], 120.0), **ours).status_code == 200
    assert stored(asked, admin) == [1, 2, 3, 4]


def test_a_stream_stays_in_its_project_without_tokens_too(api: TestClient) -> None:
    assert post(api, memory([1, 2], who=of("ours"))).status_code == 200
    for first in (0.0, 60.0):
        assert post(api, memory([7], first, who=of("theirs"))).status_code == 200
    assert stored(api, {}) == [1, 2]
    assert stored(api, {}, "theirs") == [7, 7]


def test_a_run_recreated_in_another_project_is_not_written_to(
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


def test_a_header_without_a_project_is_sent_without_one() -> None:
    named = RunHeader("r1", "erl", "n", "generation", None, 0.0)
    assert header_to_wire(named)["project"] == "erl"
    unnamed = RunHeader("r1", "", "n", "generation", None, 0.0)
    assert "project" not in header_to_wire(unnamed)
    for header in (named, unnamed):
        assert header_from_wire(header_to_wire(header)) == header
        assert ("project" in announcement(header, ProcessIdentity("p1"))) == bool(header.project)


@pytest.fixture
def run(asked: TestClient, adding: dict[str, str], make_run: Any) -> Any:
    """Create a run with snapshots in the project of the token."""
    made = make_run(id="m1")
    answer = asked.post("/api/v1/runs/m1/batches", json=made.wire(0, 3), headers=adding)
    assert answer.status_code == 200
    return made


def contradicting(run: Any) -> tuple[dict[str, Any], int]:
    """Return a batch that guesses a stored value, and that value."""
    wire = copy.deepcopy(run.wire(0, 3))
    values = wire["columns"]["series"][RSS]
    secret, values[0] = values[0], 12_345
    return wire, secret


def test_a_contradiction_names_the_field_but_not_the_stored_value(
    asked: TestClient, adding: dict[str, str], admin: dict[str, str], run: Any
) -> None:
    wire, secret = contradicting(run)
    path = "/api/v1/runs/m1/batches"
    # Also without the fast path.
    for headers in (adding, adding | {"origin": ADDRESS}):
        answer = asked.post(path, json=wire, headers=headers)
        error = error_of(answer)
        assert (answer.status_code, error["code"]) == (409, "sequence_contradiction")
        assert error["details"] == {"sequence": 0, "field": RSS, "sent": 12_345}
        assert RSS in error["message"] and str(secret) not in answer.text
    # A client that may read the run gets the stored value.
    error = error_of(asked.post(path, json=wire, headers=admin))
    assert error["details"]["stored"] == secret
    assert f"stored with {RSS}={secret}" in error["message"]


def test_a_rank_conflict_is_reported_without_the_stored_rank(
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


@pytest.fixture
def counted(database_url: str, cheap_hashes: None) -> Iterator[TestClient]:
    config = asking(
        database_url,
        allowed_origins=(ELSEWHERE,),
        runs_per_day=PerProject(None, {"mine": 6}),
        bytes_per_day=PerProject(None, {"mine": 40_000}),
    )
    with TestClient(create_app(config), base_url=ADDRESS) as counted:
        yield counted


@pytest.fixture
def browsing(counted: TestClient) -> dict[str, str]:
    """Return the headers of a page of another site, with the token that every visitor gets."""
    return bearer(token(engine_of(counted), "ingest", "mine", browser=True)[1]) | {
        "origin": ELSEWHERE
    }


@pytest.fixture
def training(counted: TestClient) -> dict[str, str]:
    return bearer(token(engine_of(counted), "ingest", "mine")[1])


@pytest.fixture
def person(counted: TestClient) -> dict[str, str]:
    return bearer(token(engine_of(counted), "admin")[1])


def begin(counted: TestClient, who: dict[str, str], name: str) -> Any:
    return counted.post(RUNS, json={"id": name}, headers=who)


def refused_for_now(answer: Any, code: str) -> None:
    assert answer.status_code == 429, answer.text
    assert 1 <= int(answer.headers["retry-after"]) <= 3_600
    error = error_of(answer)
    assert error["code"] == code
    assert "browser tokens of project mine" in error["message"]


def test_pages_may_begin_half_of_the_runs_and_trainings_the_rest(
    counted: TestClient, browsing: dict[str, str], training: dict[str, str]
) -> None:
    for n in range(3):
        assert begin(counted, browsing, f"page-{n}").status_code == 201
    refused_for_now(begin(counted, browsing, "page-3"), "too_many_runs")
    # Another token of the same kind does not raise the limit.
    again = bearer(token(engine_of(counted), "ingest", "mine", browser=True)[1])
    refused_for_now(begin(counted, again, "page-4"), "too_many_runs")
    # Joining an existing run does not count.
    assert begin(counted, browsing, "page-1").status_code == 200
    for n in range(3):
        assert begin(counted, training, f"training-{n}").status_code == 201
    answer = begin(counted, training, "training-3")
    assert answer.status_code == 429 and "LEAKLINE_RUNS_PER_DAY" in error_of(answer)["message"]
    # All runs count for the same project.
    with engine_of(counted).connect() as connection:
        ((project, runs, stored_bytes),) = of_today(connection)
    assert (project, runs) == ("mine", 6) and stored_bytes > 0


def test_pages_may_store_half_of_the_bytes_and_trainings_the_rest(
    counted: TestClient, browsing: dict[str, str], training: dict[str, str], make_run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Write the counts in every transaction.
    monkeypatch.setattr("leakline_server.store.ingest.project_quota.FLUSH_SECONDS", 0.0)
    run = make_run(id="page")
    begin(counted, browsing, "page")
    sent = 0
    for sent in range(0, 20_000, 20):
        answer = counted.post(f"{RUNS}/page/batches", json=run.wire(sent, 20), headers=browsing)
        if answer.status_code != 200:
            break
    refused_for_now(answer, "too_many_bytes")
    assert sent > 0
    note = {"notes": [{"text": "of a page"}]}
    refused_for_now(counted.patch(f"{RUNS}/page", json=note, headers=browsing), "too_many_bytes")
    refused_for_now(
        counted.post(RUNS, json={"id": "page-2", "config": {"a": 1}}, headers=browsing),
        "too_many_bytes",
    )
    # Snapshots that are already stored do not count, and the training goes on.
    there = counted.post(f"{RUNS}/page/batches", json=run.wire(0, 20), headers=browsing)
    assert there.json()["accepted"] == 0
    mine = make_run(id="training")
    assert begin(counted, training, "training").status_code == 201
    answer = counted.post(f"{RUNS}/training/batches", json=mine.wire(0, 200), headers=training)
    assert answer.json()["accepted"] == 200


@pytest.mark.parametrize(("of_project", "share"), [(None, 100), (1_000, 100), (120, 60), (1, 1)])
def test_the_browser_share_is_at_most_half_and_never_zero(
    of_project: float | None, share: int
) -> None:
    assert share_of_browsers(100, of_project) == share


def texts(counted: TestClient, person: dict[str, str]) -> list[str]:
    return [n["text"] for n in counted.get(f"{RUNS}/r1", headers=person).json()["notes"]]


@pytest.mark.parametrize("kind", ["browsing", "training"])
def test_notes_from_an_ingest_token_do_not_evict_notes_of_a_person(
    kind: str, counted: TestClient, person: dict[str, str], request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("leakline_server.store.runs.runs.MAX_NOTES", 4)
    adds: dict[str, str] = request.getfixturevalue(kind)
    begin(counted, adds, "r1")

    def write(who: dict[str, str], *said: str) -> Any:
        notes = {"notes": [{"text": text} for text in said]}
        return counted.patch(f"{RUNS}/r1", json=notes, headers=who)

    assert write(person, "we saw it", "we fixed it").status_code == 200
    for n in range(5):
        assert write(adds, f"spam {n}").status_code == 200
    assert texts(counted, person) == ["we saw it", "we fixed it", "spam 3", "spam 4"]
    # Notes are never dropped silently, not even identical ones.
    for said in (("a", "b", "c"), ("same", "same", "same")):
        answer = write(adds, *said)
        assert (answer.status_code, error_of(answer)["code"]) == (409, "no_room_for_notes")
    assert texts(counted, person) == ["we saw it", "we fixed it", "spam 3", "spam 4"]
    assert write(adds, "spam 5", "spam 5").status_code == 200
    assert texts(counted, person) == ["we saw it", "we fixed it", "spam 5", "spam 5"]
    # Notes from people may take that room.
    assert write(person, "it came back", "it is gone").status_code == 200
    assert texts(counted, person) == ["we saw it", "we fixed it", "it came back", "it is gone"]
    answer = write(adds, "spam 6")
    assert (answer.status_code, error_of(answer)["code"]) == (409, "no_room_for_notes")
    assert texts(counted, person) == ["we saw it", "we fixed it", "it came back", "it is gone"]
    # Among notes of people, the newest are kept as usual.
    assert write(person, "closed").status_code == 200
    assert texts(counted, person) == ["we fixed it", "it came back", "it is gone", "closed"]


def test_long_notes_from_a_token_evict_none_and_the_page_names_authors(
    counted: TestClient,
    person: dict[str, str],
    browsing: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leakline_server.store.runs.runs.MAX_NOTES_BYTES", 3_000)
    begin(counted, browsing, "r1")
    counted.patch(f"{RUNS}/r1", json={"notes": [{"text": "ours"}]}, headers=person)
    more = {"notes": [{"text": f"{n}" + "y" * 1_000} for n in range(3)]}
    answer = counted.patch(f"{RUNS}/r1", json=more, headers=browsing)
    assert (answer.status_code, error_of(answer)["code"]) == (409, "no_room_for_notes")
    for n in range(4):
        long = {"notes": [{"text": f"{n}" + "x" * 1_000}]}
        assert counted.patch(f"{RUNS}/r1", json=long, headers=browsing).status_code == 200
    assert [text[:4] for text in texts(counted, person)] == ["ours", "2xxx", "3xxx"]
    found = counted.get(f"{RUNS}/r1", headers=person).json()["notes"]
    assert [each["added"] for each in found] == [False, True, True]
    shown = counted.get("/runs/r1?tab=all", headers=person).text
    assert shown.count("a program") == 2 and shown.count("a person") == 1

"""What tokens that only add may bring: a share of the day for those in pages, and no note in place of a person's."""

from __future__ import annotations

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

from leakline_server.app import create_app
from leakline_server.limits import share_of_browsers
from leakline_server.store.intake import of_today
from leakline_server.store.retention import PerProject

RUNS = "/api/v1/runs"


@pytest.fixture
def client(database_url: str, cheap_hashes: None) -> Iterator[TestClient]:
    config = asking(
        database_url,
        allowed_origins=(ELSEWHERE,),
        runs_per_day=PerProject(None, {"mine": 6}),
        bytes_per_day=PerProject(None, {"mine": 40_000}),
    )
    with TestClient(create_app(config), base_url=ADDRESS) as client:
        yield client


@pytest.fixture
def browsing(client: TestClient) -> dict[str, str]:
    """A page of another site, with the token that everybody has who opens it."""
    return bearer(token(engine_of(client), "ingest", "mine", browser=True)[1]) | {
        "origin": ELSEWHERE
    }


@pytest.fixture
def training(client: TestClient) -> dict[str, str]:
    return bearer(token(engine_of(client), "ingest", "mine")[1])


@pytest.fixture
def admin(client: TestClient) -> dict[str, str]:
    return bearer(token(engine_of(client), "admin")[1])


def begin(client: TestClient, who: dict[str, str], name: str) -> Any:
    return client.post(RUNS, json={"id": name}, headers=who)


def told_to_wait(answer: Any, code: str) -> None:
    assert answer.status_code == 429, answer.text
    assert 1 <= int(answer.headers["retry-after"]) <= 3_600
    error = error_of(answer)
    assert error["code"] == code
    assert "browser tokens of project mine" in error["message"]


def test_pages_begin_half_of_the_runs_of_a_project_and_its_trainings_the_rest(
    client: TestClient, browsing: dict[str, str], training: dict[str, str]
) -> None:
    for n in range(3):
        assert begin(client, browsing, f"page-{n}").status_code == 201
    told_to_wait(begin(client, browsing, "page-3"), "too_many_runs")
    # Another token of the same kind is no way around it.
    again = bearer(token(engine_of(client), "ingest", "mine", browser=True)[1])
    told_to_wait(begin(client, again, "page-4"), "too_many_runs")
    # Joining begins none.
    assert begin(client, browsing, "page-1").status_code == 200
    for n in range(3):
        assert begin(client, training, f"training-{n}").status_code == 201
    answer = begin(client, training, "training-3")
    assert answer.status_code == 429 and "LEAKLINE_RUNS_PER_DAY" in error_of(answer)["message"]


def test_pages_store_half_of_the_bytes_of_a_project_and_its_trainings_the_rest(
    client: TestClient, browsing: dict[str, str], training: dict[str, str], make_run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Each transaction tells the database.
    monkeypatch.setattr("leakline_server.store.intake.FLUSH_SECONDS", 0.0)
    run = make_run(id="page")
    begin(client, browsing, "page")
    sent = 0
    for sent in range(0, 20_000, 20):
        answer = client.post(f"{RUNS}/page/batches", json=run.wire(sent, 20), headers=browsing)
        if answer.status_code != 200:
            break
    told_to_wait(answer, "too_many_bytes")
    assert sent > 0
    note = {"notes": [{"text": "of a page"}]}
    told_to_wait(client.patch(f"{RUNS}/page", json=note, headers=browsing), "too_many_bytes")
    told_to_wait(
        client.post(RUNS, json={"id": "page-2", "config": {"a": 1}}, headers=browsing),
        "too_many_bytes",
    )
    # What is there already is no news, and the training goes on.
    there = client.post(f"{RUNS}/page/batches", json=run.wire(0, 20), headers=browsing)
    assert there.json()["accepted"] == 0
    mine = make_run(id="training")
    assert begin(client, training, "training").status_code == 201
    answer = client.post(f"{RUNS}/training/batches", json=mine.wire(0, 200), headers=training)
    assert answer.json()["accepted"] == 200


def test_what_pages_bring_counts_for_the_project_and_is_no_project_of_its_own(
    client: TestClient, browsing: dict[str, str], training: dict[str, str]
) -> None:
    begin(client, browsing, "page")
    begin(client, training, "training")
    with engine_of(client).connect() as connection:
        ((project, runs, stored),) = of_today(connection)
    assert (project, runs) == ("mine", 2) and stored > 0


@pytest.mark.parametrize(
    ("of_project", "share"), [(None, 100), (1_000, 100), (120, 60), (3, 1), (1, 1)]
)
def test_the_share_is_half_at_most_and_never_nothing(of_project: float | None, share: int) -> None:
    assert share_of_browsers(100, of_project) == share


def texts(client: TestClient, admin: dict[str, str]) -> list[str]:
    return [n["text"] for n in client.get(f"{RUNS}/r1", headers=admin).json()["notes"]]


@pytest.mark.parametrize("kind", ["browsing", "training"])
def test_what_only_adds_pushes_out_no_note_of_a_person(
    kind: str, client: TestClient, admin: dict[str, str], request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("leakline_server.store.runs.MAX_NOTES", 4)
    adds: dict[str, str] = request.getfixturevalue(kind)
    begin(client, adds, "r1")

    def write(who: dict[str, str], *said: str) -> Any:
        notes = {"notes": [{"text": text} for text in said]}
        return client.patch(f"{RUNS}/r1", json=notes, headers=who)

    assert write(admin, "we saw it", "we fixed it").status_code == 200
    for n in range(5):
        assert write(adds, f"spam {n}").status_code == 200
    assert texts(client, admin) == ["we saw it", "we fixed it", "spam 3", "spam 4"]
    # None of them in silence, nor of those that are alike.
    for said in (("a", "b", "c"), ("same", "same", "same")):
        answer = write(adds, *said)
        assert (answer.status_code, error_of(answer)["code"]) == (409, "no_room_for_notes")
    assert texts(client, admin) == ["we saw it", "we fixed it", "spam 3", "spam 4"]
    assert write(adds, "spam 5", "spam 5").status_code == 200
    assert texts(client, admin) == ["we saw it", "we fixed it", "spam 5", "spam 5"]
    # People have their room back.
    assert write(admin, "it came back", "it is gone").status_code == 200
    assert texts(client, admin) == ["we saw it", "we fixed it", "it came back", "it is gone"]
    answer = write(adds, "spam 6")
    assert (answer.status_code, error_of(answer)["code"]) == (409, "no_room_for_notes")
    assert texts(client, admin) == ["we saw it", "we fixed it", "it came back", "it is gone"]
    # Of people the newest are kept, as ever.
    assert write(admin, "closed").status_code == 200
    assert texts(client, admin) == ["we fixed it", "it came back", "it is gone", "closed"]


def test_nor_by_its_length_and_the_page_tells_them_apart(
    client: TestClient,
    admin: dict[str, str],
    browsing: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leakline_server.store.runs.MAX_NOTES_BYTES", 3_000)
    begin(client, browsing, "r1")
    client.patch(f"{RUNS}/r1", json={"notes": [{"text": "ours"}]}, headers=admin)
    more = {"notes": [{"text": f"{n}" + "y" * 1_000} for n in range(3)]}
    answer = client.patch(f"{RUNS}/r1", json=more, headers=browsing)
    assert (answer.status_code, error_of(answer)["code"]) == (409, "no_room_for_notes")
    for n in range(4):
        long = {"notes": [{"text": f"{n}" + "x" * 1_000}]}
        assert client.patch(f"{RUNS}/r1", json=long, headers=browsing).status_code == 200
    assert [text[:4] for text in texts(client, admin)] == ["ours", "2xxx", "3xxx"]
    found = client.get(f"{RUNS}/r1", headers=admin).json()["notes"]
    assert [each["added"] for each in found] == [False, True, True]
    shown = client.get("/runs/r1", headers=admin).text
    assert shown.count("a program") == 2 and shown.count("a person") == 1

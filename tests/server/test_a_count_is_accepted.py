"""A count that a run keeps to is expected with one click, of it and of later runs of its project, and taken back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.server.stored import engine_of

from leakline.snapshot import Event
from leakline_server.store.tables import alerts

FORM = "application/x-www-form-urlencoded"
# Whole generations of three snapshots each; one more than it takes.
LEARNED = 27
WAIT_SECONDS = 60.0


class Forms(HTMLParser):
    """label of the button -> (action, fields) of each form of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, tuple[str, dict[str, str]]] = {}
        self._action, self._fields = "", dict[str, str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._action, self._fields = told.get("action", ""), {}
        elif tag == "input" and told.get("type") == "hidden":
            self._fields[told["name"]] = told["value"]
        elif tag == "button" and "aria-label" in told:
            self.found[told["aria-label"]] = (self._action, self._fields)


def agents(count: Callable[[int], int], environments: int = 2) -> dict[str, Any]:
    """Of a run that keeps its environments: what differs is the count of agents, by generation."""
    return {
        "type.app.Agent.count": lambda sequence: count(sequence // 3),
        "type.app.Env.count": lambda sequence: environments,
    }


def steady(make_run: Any, run: str, count: int = 17) -> Any:
    return make_run(id=run, instance=run, leak_bytes=0, extra=agents(lambda _: count))


def until(found: Callable[[], Any]) -> Any:
    pause, deadline = threading.Event(), time.monotonic() + WAIT_SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline
        pause.wait(0.1)
    return value


@pytest.fixture
def learned(api: TestClient, make_run: Any) -> Iterator[TestClient]:
    """With a run that keeps to 17 agents."""
    run = steady(make_run, "first")
    run.create(api)
    run.send(api, 0, LEARNED)
    yield api


def expected(api: TestClient, run: str) -> list[tuple[str, int, bool]]:
    found = api.get(f"/api/v1/runs/{run}").json()["expectations"]
    return [(each["type"], each["high"], each["accepted"]) for each in found]


def test_one_click_on_a_real_server_holds_for_every_later_run(
    serve: Any, database_url: str, make_run: Any
) -> None:
    server = serve(arguments=["--database-url", database_url])

    class Poster:
        @staticmethod
        def post(path: str, json: Any) -> Any:
            status, body = server.request("POST", path, json)
            return type("Answer", (), {"status_code": status, "json": lambda _: body, "text": str(body)})()  # fmt: skip

    def send(run: Any, count: int) -> None:
        run.create(Poster)
        run.send(Poster, 0, count)

    def page(run: str) -> str:
        status, text = server.request("GET", f"/runs/{run}")
        assert status == 200
        return str(text)

    def click(run: str, label: str) -> None:
        action, fields = Forms(page(run)).found[label]
        body = urlencode(fields).encode()
        origin = {"content-type": FORM, "origin": server.url}
        assert server.request("POST", action, body, origin)[0] == 303

    def verdict(run: str) -> Any:
        return server.request("GET", f"/api/v1/runs/{run}/verdict")[1]

    send(steady(make_run, "first"), LEARNED)
    assert "was 17 at every reading of the last 8 generations" in page("first")
    click("first", "Expect 17 app.Agent")
    after = page("first")
    assert "is accepted as 17 in project erl" in after
    assert "Expect 17 app.Agent" not in Forms(after).found

    # Two generations are enough: nothing has to be learned again.
    doubled = make_run(
        id="later", instance="later", leak_bytes=0, extra=agents(lambda g: 17 if g < 2 else 33)
    )
    send(doubled, 12)
    found = until(lambda: verdict("later")["findings"])
    assert found[0]["kind"] == "count_contract"
    assert "Agent is 33, accepted as 17" in found[0]["evidence"][0]
    shown = page("later")
    assert "a person" in shown and "broken" in shown

    click("later", "Take back 17 app.Agent")
    until(lambda: verdict("later")["status"] not in ("suspected", "confirmed"))
    assert Forms(page("first")).found.keys() >= {"Expect 17 app.Agent"}
    assert "is accepted as" not in page("first")


def test_the_alert_names_who_declared_the_count(learned: TestClient, make_run: Any) -> None:
    body = {"type": "app.Agent", "low": 17, "high": 17}
    assert learned.post("/api/v1/runs/first/expectations", json=body).status_code == 200
    doubled = make_run(
        id="later", instance="later", leak_bytes=0, extra=agents(lambda g: 17 if g < 2 else 33)
    )
    doubled.create(learned)
    doubled.send(learned, 0, 12)
    query = select(alerts.c.payload).where(alerts.c.event == "contract.violated")

    def sent() -> list[str]:
        with engine_of(learned).connect() as connection:
            return list(connection.scalars(query))

    assert json.loads(until(sent)[0])["origin"] == "accepted"


def test_a_run_of_another_project_and_one_that_had_ended_are_not_concerned(
    learned: TestClient, make_run: Any
) -> None:
    ended = steady(make_run, "ended")
    ended.create(learned)
    ended.send(learned, 0, LEARNED)
    assert learned.patch("/api/v1/runs/ended", json={"state": "finished"}).status_code == 200
    elsewhere = steady(make_run, "elsewhere")
    assert learned.post(
        "/api/v1/runs", json=elsewhere.header | {"project": "other"}
    ).status_code in (200, 201)
    elsewhere.send(learned, 0, LEARNED)
    wanted = {"type": "app.Agent", "low": 17, "high": 17}
    answer = learned.post("/api/v1/runs/first/expectations", json=wanted)
    assert answer.status_code == 200, answer.text
    assert ("app.Agent", 17, True) in expected(learned, "first")
    for run in ("ended", "elsewhere"):
        assert expected(learned, run) == [("app.Env", 2, False)]
    assert "this run had ended before" in learned.get("/runs/ended").text
    assert "Expect 17 app.Agent" in learned.get("/runs/elsewhere").text


def test_a_finished_run_can_be_learned_from(learned: TestClient) -> None:
    assert learned.patch("/api/v1/runs/first", json={"state": "finished"}).status_code == 200
    action, fields = Forms(learned.get("/runs/first").text).found["Expect 17 app.Agent"]
    answer = learned.post(action, data=fields, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/first#expectations")
    assert ("app.Agent", 17, True) in expected(learned, "first")
    (row,) = [
        row
        for row in learned.get("/api/v1/runs/first/expectations").json()["items"]
        if row["accepted"]
    ]
    assert (row["type"], row["expected"], row["state"]) == ("app.Agent", "17", "holds")


def test_what_the_program_declares_goes_before_and_cannot_be_accepted(
    learned: TestClient, make_run: Any
) -> None:
    assert "Expect 2 app.Env" not in learned.get("/runs/first").text
    answer = learned.post(
        "/api/v1/runs/first/expectations", json={"type": "app.Env", "low": 3, "high": 3}
    )
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "count_is_declared"
    wanted = {"type": "app.Agent", "low": 17, "high": 17}
    assert learned.post("/api/v1/runs/first/expectations", json=wanted).status_code == 200

    class Declares(make_run):  # type: ignore[misc]
        def _details(self, sequence: int, generation: int, phase: str | None) -> dict[str, Any]:
            found = super()._details(sequence, generation, phase)
            if found:
                bound = {"low": 20, "high": 20}
                told = Event(sequence, self.started, "expect", "Agent", data=bound)
                found["events"] = (*found["events"], told)
            return found

    speaks = Declares(id="speaks", instance="speaks", leak_bytes=0, extra=agents(lambda _: 20))
    speaks.create(learned)
    speaks.send(learned, 0, LEARNED)
    assert ("app.Agent", 17, True) not in expected(learned, "speaks")
    assert ("Agent", 20, False) in expected(learned, "speaks")
    states = {
        row["type"]: row["state"]
        for row in learned.get("/api/v1/runs/speaks/expectations").json()["items"]
    }
    assert states["app.Agent"] == "holds"
    assert "here the program says it itself" in learned.get("/runs/speaks").text


def test_a_later_legal_change_is_learned_without_code(learned: TestClient, make_run: Any) -> None:
    wanted = {"type": "app.Agent", "low": 17, "high": 17}
    assert learned.post("/api/v1/runs/first/expectations", json=wanted).status_code == 200
    changed = steady(make_run, "changed", count=33)
    changed.create(learned)
    changed.send(learned, 0, LEARNED)
    (found,) = learned.get("/api/v1/runs/changed/expectations").json()["steady"]
    assert (found["count"], found["instead_of"]) == (33, "17")
    action, fields = Forms(learned.get("/runs/changed").text).found["Expect 33 app.Agent"]
    assert learned.post(action, data=fields, follow_redirects=False).status_code == 303
    told = learned.get("/api/v1/runs/changed/expectations").json()
    assert [(each["low"], each["run"]) for each in told["accepted"]] == [(33, "changed")]
    assert told["steady"] == []


def test_a_count_of_one_phase_and_that_of_all_readings_replace_each_other(
    learned: TestClient,
) -> None:
    def accept(after: str | None, count: int) -> list[tuple[str | None, int]]:
        wanted = {"type": "app.Agent", "low": count, "high": count, "after": after}
        answer = learned.post("/api/v1/runs/first/expectations", json=wanted)
        assert answer.status_code == 200, answer.text
        return [(each["after"], each["low"]) for each in answer.json()["accepted"]]

    assert accept(None, 17) == [(None, 17)]
    assert accept("evaluate", 16) == [("evaluate", 16)]
    assert accept("train", 17) == [("evaluate", 16), ("train", 17)]
    assert accept("train", 18) == [("evaluate", 16), ("train", 18)]
    gone = learned.delete(
        "/api/v1/runs/first/expectations", params={"type": "app.Agent", "after": "evaluate"}
    )
    assert [each["after"] for each in gone.json()["accepted"]] == ["train"]
    assert accept(None, 17) == [(None, 17)]
    again = learned.delete("/api/v1/runs/first/expectations", params={"type": "app.Agent"})
    assert again.json()["accepted"] == []
    twice = learned.delete("/api/v1/runs/first/expectations", params={"type": "app.Agent"})
    assert (twice.status_code, twice.json()["error"]["code"]) == (404, "nothing_to_take_back")


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "app.Agent"},
        {"type": "app.Agent", "count": "-1"},
        {"type": "app.Agent", "count": "1e3"},
        {"type": "app.Agent", "count": "9" * 16},
        {"type": "app.Agent", "count": "17", "after": "nowhere"},
        {"type": "app.Nothing", "count": "17"},
        {"count": "17"},
    ],
)
def test_a_form_that_names_what_is_not_there_is_refused(
    learned: TestClient, fields: dict[str, str]
) -> None:
    answer = learned.post("/runs/first/expectations", data=fields, follow_redirects=False)
    assert answer.status_code == 422
    assert learned.get("/api/v1/runs/first/expectations").json()["accepted"] == []


def test_nobody_accepts_anything_from_the_page_of_another_site(learned: TestClient) -> None:
    fields = {"type": "app.Agent", "count": "17"}
    elsewhere = {"origin": "https://elsewhere.example"}
    for path in ("/runs/first/expectations", "/runs/first/expectations/take-back"):
        assert learned.post(path, data=fields, headers=elsewhere).status_code == 403
    assert learned.get("/api/v1/runs/first/expectations").json()["accepted"] == []


def test_bounds_are_checked_and_an_unknown_run_has_none(
    learned: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned = {"type": "app.Agent", "low": 18, "high": 17}
    assert learned.post("/api/v1/runs/first/expectations", json=turned).status_code == 422
    wanted = {"type": "app.Agent", "low": 17, "high": 17}
    assert learned.post("/api/v1/runs/nobody/expectations", json=wanted).status_code == 404
    assert learned.get("/api/v1/runs/nobody/expectations").status_code == 404
    monkeypatch.setattr("leakline_server.store.assertions.MAX_ACCEPTED_COUNTS", 0)
    full = learned.post("/api/v1/runs/first/expectations", json=wanted)
    assert (full.status_code, full.json()["error"]["code"]) == (409, "too_many_accepted_counts")


def test_a_report_has_no_forms_that_lead_nowhere(learned: TestClient) -> None:
    report = learned.get("/runs/first/report.html").text
    assert "Expect 17" not in report


def test_past_five_the_rest_is_folded_and_what_changed_comes_first(
    api: TestClient, make_run: Any
) -> None:
    counts = {
        f"type.app.Class{n}.count": lambda sequence, n=n: n if sequence < 60 else n + 9
        for n in range(1, 9)
    }
    run = make_run(leak_bytes=0, extra=counts)
    run.create(api)
    run.send(api, 0, LEARNED)
    page = api.get("/runs/r1").text
    assert "<summary>3 more</summary>" in page
    assert {f"Expect {n} app.Class{n}" for n in range(1, 9)} <= Forms(page).found.keys()
    for n in (3, 7):
        wanted = {"type": f"app.Class{n}", "low": n, "high": n}
        assert api.post("/api/v1/runs/r1/expectations", json=wanted).status_code == 200
    run.send(api, LEARNED, 60)
    steady = api.get("/api/v1/runs/r1/expectations").json()["steady"]
    assert [(each["type"], each["instead_of"]) for each in steady][:3] == [
        ("app.Class3", "3"), ("app.Class7", "7"), ("app.Class1", None),
    ]  # fmt: skip

"""Requests to a process: sent in responses to its batches until one batch has the outcome."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.access.people import Clock

from leakline.analysis.results import Finding, Interval, Suspect, Verdict
from leakline.snapshot import RunHeader
from leakline_server.errors import TooBusy
from leakline_server.limits import MAX_REQUESTS
from leakline_server.run_requests import AGAIN_AFTER, Requests, searched_type
from leakline_server.store.engine import Engine
from leakline_server.store.request_rows import EXPIRE_SECONDS, KEEP_SECONDS, Wanted
from leakline_server.store.runs.run_registration import join_run
from leakline_server.store.schema import NoSuchRun

ENV = "app.Env"
FIND = Wanted("find_holders", ENV)
CENSUS = Wanted("census")


class SentEvent:
    """An event of a batch."""

    def __init__(self, data: dict[str, Any], kind: str = "mark") -> None:
        self.kind, self.data = kind, data


def finding(
    kind: Any = "objects", *suspects: Suspect, status: Any = "suspected", process: Any = None
) -> Finding:
    growth = Interval(1e6, 9e5, 1.1e6)
    return Finding("f", status, kind, "train", 0.9, suspects, growth, None, 0.9, process=process)


def verdict(*found: Finding, generations: int = 9, run: str = "r1") -> Verdict:
    return Verdict(run, "generation", generations, "suspected", "it leaks", None, None, found)


def types(requests: Requests, rank: int = 0) -> list[str]:
    return [asked.get("type", "") for asked in requests.of("r1", rank)]


@pytest.fixture
def requests(engine: Engine) -> Requests:
    """Return the requests of one server; the runs r1, r2 and r3 exist."""
    for name in ("r1", "r2", "r3"):
        join_run(engine, RunHeader(name, "erl", name, "generation", None, 1.0), 1.0)
    return Requests(engine)


@pytest.fixture
def other(engine: Engine, requests: Requests) -> Requests:
    """Return the requests of another server on the same database."""
    return Requests(engine)


def by_the_examiner(kind: str = "census", type_name: str = "", generation: int = 5) -> Wanted:
    return Wanted(kind, type_name, generation=generation)


def test_a_request_is_sent_until_its_outcome_comes(requests: Requests) -> None:
    asked = requests.ask("r1", FIND)
    told = {"id": asked.id, "kind": "find_holders", "type": ENV, "asked_by": "person"}
    assert requests.of("r1", 0) == requests.of("r1", 0) == [told]
    requests.answered(
        "r1", [SentEvent({}), SentEvent({"request": 5}), SentEvent({"request": asked.id}, "note")]
    )
    requests.answered("r2", [SentEvent({"request": asked.id})])
    requests.refresh()
    assert requests.of("r1", 0) == [told]
    requests.answered("r1", [SentEvent({"request": asked.id, "outcome": "done"})])
    assert requests.of("r1", 0) == []
    requests.refresh()
    assert requests.of("r1", 0) == []


def test_an_outcome_known_before_its_request_counts(requests: Requests, other: Requests) -> None:
    """The process got it from one server, and its next batch went to the other. It reports the outcome once."""
    asked = requests.ask("r1", FIND)
    other.answered("r1", [SentEvent({"request": asked.id, "outcome": "done"})])
    # The server reads the request before it has written the outcome.
    other.ask("r1", CENSUS)
    assert types(other) == [""]
    for server in (other, requests):
        server.refresh()
        assert types(server) == [""]
    assert requests.ask("r1", FIND).id != asked.id


def test_marks_of_people_are_not_outcomes(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.run_requests.MAX_ELSEWHERE", 3)
    asked = requests.ask("r1", FIND)
    refreshed: list[int] = []
    requests._has_answers = lambda: refreshed.append(1)
    marks: list[Any] = [5, None, [], {}, "x" * 16, "a" * 15, "é", *(f"{i:016x}" for i in range(9))]
    requests.answered("r1", [SentEvent({"request": mark}) for mark in marks])
    assert refreshed == []
    assert len(requests._answered_elsewhere) == 3
    # An outcome received here is remembered, however many others there are.
    for _ in range(2):
        requests.answered("r1", [SentEvent({"request": asked.id})])
    assert (requests.of("r1", 0), refreshed) == ([], [1])
    requests.refresh()
    assert requests._answered_elsewhere == {}
    requests.answered("r1", [SentEvent({"request": "f" * 16})])
    requests.refresh()


def test_each_rank_gets_its_own_requests(requests: Requests) -> None:
    requests.ask("r1", Wanted("census", rank=1))
    assert requests.of("r1", 0) == requests.of("r2", 1) == []
    assert [asked["kind"] for asked in requests.of("r1", 1)] == ["census"]


def test_repeated_requests_are_one_and_people_precede_the_examiner(requests: Requests) -> None:
    first = requests.ask("r1", by_the_examiner())
    assert requests.ask("r1", by_the_examiner()) == first
    by_person = requests.ask("r1", CENSUS)
    assert [asked["asked_by"] for asked in requests.of("r1", 0)] == ["person"]
    assert requests.ask("r1", by_the_examiner()) == by_person
    assert requests.ask("r1", CENSUS) == by_person


def test_waiting_requests_are_bounded_and_expire(requests: Requests, engine: Engine) -> None:
    clock = Clock(0.0)
    requests = Requests(engine, clock)
    for i in range(MAX_REQUESTS):
        requests.ask("r1", Wanted("find_holders", f"app.C{i}"))
    with pytest.raises(TooBusy):
        requests.ask("r1", CENSUS)
    # A request that is already waiting takes no more room.
    requests.ask("r1", Wanted("find_holders", "app.C3"))
    clock.now = EXPIRE_SECONDS + 1
    assert requests.of("r1", 0) == []
    requests.refresh()
    assert requests.of("r1", 0) == []
    requests.ask("r1", CENSUS)
    assert [asked["kind"] for asked in requests.of("r1", 0)] == ["census"]


def test_old_requests_are_deleted(requests: Requests, engine: Engine) -> None:
    clock = Clock(0.0)
    requests = Requests(engine, clock)
    for i in range(3):
        requests.ask("r1", Wanted("find_holders", f"app.C{i}"))
    clock.now = KEEP_SECONDS + 1
    requests.ask("r1", CENSUS)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT kind FROM requests").scalars().all()
    assert rows == ["census"]


def test_a_missing_run_cannot_be_asked(requests: Requests) -> None:
    for name in ("nobody", "no\x00body"):
        with pytest.raises(NoSuchRun):
            requests.ask(name, CENSUS)
    assert requests.of("nobody", 0) == []


def test_another_server_sends_and_answers_a_request(requests: Requests, other: Requests) -> None:
    asked = requests.ask("r1", FIND)
    assert other.of("r1", 0) == []
    other.refresh()
    assert other.of("r1", 0) == requests.of("r1", 0) == [asked.to_json()]
    # A repeated request through the other server is the same one.
    assert other.ask("r1", FIND) == asked
    other.answered("r1", [SentEvent({"request": asked.id})])
    other.refresh()
    assert requests.of("r1", 0) == [asked.to_json()]
    requests.refresh()
    assert requests.of("r1", 0) == other.of("r1", 0) == []


def test_an_answered_request_can_be_asked_again(requests: Requests, other: Requests) -> None:
    first = requests.ask("r1", CENSUS)
    other.refresh()
    other.answered("r1", [SentEvent({"request": first.id})])
    other.refresh()
    second = requests.ask("r1", CENSUS)
    assert second.id != first.id
    # A late answer belongs to the first request.
    other.answered("r1", [SentEvent({"request": first.id})])
    other.refresh()
    assert other.of("r1", 0) == [second.to_json()]


@pytest.mark.parametrize("kind", ["objects", "tensors", "arrays"])
def test_the_holders_of_a_suspect_are_requested(kind: str, requests: Requests) -> None:
    requests.wanted(verdict(finding(kind, Suspect(ENV, "type"), Suspect("app.Other", "type"))))
    assert requests.of("r1", 0)[0] | {"id": ""} == {
        "id": "", "kind": "find_holders", "type": ENV, "asked_by": "server"
    }  # fmt: skip


@pytest.mark.parametrize(
    "known",
    [
        finding("objects", Suspect(ENV, "type"), Suspect("app.trainer.history[*]", "holder")),
        finding("container", Suspect("app.trainer.history", "container"), Suspect(ENV, "type")),
        finding("native"), finding("objects"), finding("objects", Suspect(ENV, "type"), status="watch"),
        finding("objects", Suspect(ENV, "type"), status="recovered"),
        finding("tensors", Suspect("tf.Tensor", "type")),
    ],
)  # fmt: skip
def test_nothing_is_requested_if_a_search_would_add_nothing(known: Finding) -> None:
    assert searched_type(known) is None


def test_the_rank_that_leaks_is_asked(requests: Requests) -> None:
    requests.wanted(verdict(finding("objects", Suspect(ENV, "type"), process="rank 3 main")))
    assert (types(requests, 0), types(requests, 3)) == ([], [ENV])


def test_a_type_is_requested_again_only_after_a_while(requests: Requests, other: Requests) -> None:
    leak = finding("objects", Suspect(ENV, "type"))
    for generation in range(20, 20 + AGAIN_AFTER):
        server = (requests, other)[generation % 2]
        server.refresh()
        server.wanted(verdict(leak, generations=generation))
        for asked in server.of("r1", 0):
            assert generation == 20
            server.answered("r1", [SentEvent({"request": asked["id"]})])
            server.refresh()
    assert types(requests) == types(other) == []
    other.wanted(verdict(leak, generations=20 + AGAIN_AFTER))
    requests.refresh()
    assert types(requests) == types(other) == [ENV]


def test_a_run_with_too_many_suspects_requests_as_many_as_fit(requests: Requests) -> None:
    many = [finding("objects", Suspect(f"app.C{i}", "type")) for i in range(MAX_REQUESTS + 5)]
    requests.wanted(verdict(*many))
    assert len(types(requests)) == MAX_REQUESTS


def test_a_run_that_was_removed_meanwhile_is_not_asked(requests: Requests) -> None:
    requests.wanted(verdict(finding("objects", Suspect(ENV, "type")), run="gone"))
    assert requests.of("gone", 0) == []


def ask(api: TestClient, body: Any, run: str = "r1", **headers: str) -> Any:
    return api.post(f"/api/v1/runs/{run}/requests", json=body, headers=headers)


def test_a_request_of_a_person_is_sent_with_the_next_batch(api: TestClient, make_run: Any) -> None:
    run, other = make_run(), make_run(instance="p2", rank=1)
    run.create(api)
    answer = ask(api, {"kind": "find_holders", "type": ENV})
    assert answer.status_code == 202
    asked = answer.json()
    assert (asked["kind"], asked["type"], asked["rank"]) == ("find_holders", ENV, 0)
    sent = api.post("/api/v1/runs/r1/batches", json=other.wire(0, 1)).json()
    assert sent["requests"] == []
    told = {"id": asked["id"], "kind": "find_holders", "type": ENV, "asked_by": "person"}
    for first in (0, 1, 0):
        sent = api.post("/api/v1/runs/r1/batches", json=run.wire(first, 1)).json()
        assert sent["requests"] == [told]
    wire = run.wire(2, 1)
    wire["events"] = [
        {"sequence": 2, "time": 1.0, "kind": "mark", "name": f"find_holders {ENV}: done",
         "data": {"request": asked["id"], "outcome": "done"}},
    ]  # fmt: skip
    assert api.post("/api/v1/runs/r1/batches", json=wire).json()["requests"] == []
    number = ask(api, {"kind": "cleanup"}).json()["id"]
    sent = api.post("/api/v1/runs/r1/batches", json=run.wire(3, 1)).json()
    assert sent["requests"] == [{"id": number, "kind": "cleanup", "asked_by": "person"}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kind": "run", "code": "1"}, "kind"), ({"kind": "find_holders"}, "type"),
        ({"kind": "cleanup", "type": ENV}, "type"),
        ({"kind": "census", "type": ENV}, "type"), ({"kind": "find_holders", "type": "a\nb"}, "type"),
        ({"kind": "find_holders", "type": "x" * 257}, "type"), ({"kind": "census", "rank": -1}, "rank"),
        ({"kind": "census", "rank": "0"}, "rank"), ({"kind": "census", "code": "import os"}, "code"), ({}, "kind"),
    ],
)  # fmt: skip
def test_invalid_requests_are_named(
    shared_api: TestClient, make_run: Any, body: Any, field: str
) -> None:
    make_run().create(shared_api)
    answer = ask(shared_api, body)
    assert answer.status_code == 422
    assert field in answer.json()["error"]["message"]


def test_only_a_live_run_can_be_asked(api: TestClient, make_run: Any) -> None:
    assert ask(api, {"kind": "census"}, "nobody").status_code == 404
    make_run().begin(api, 3)
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200
    answer = ask(api, {"kind": "census"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "run_has_ended")


def test_the_examiner_requests_holders(api: TestClient, make_run: Any, eventually: Any) -> None:
    class Unheld(make_run):  # type: ignore[misc]
        def _details(self, sequence: int, *_: Any) -> dict[str, Any]:
            return {}

    run = Unheld()
    run.begin(api, 90)
    numbers = iter(range(90, 10_000))

    def send_batch() -> list[Any]:
        wire = run.wire(next(numbers), 1)
        return list(api.post("/api/v1/runs/r1/batches", json=wire).json()["requests"])

    (asked,) = eventually(send_batch)
    assert (asked["kind"], asked["type"], asked["asked_by"]) == ("find_holders", ENV, "server")


def test_the_page_of_a_live_run_offers_requests(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    make_run().begin(api, 90)

    def page() -> str:
        found = api.get("/runs/r1?tab=all").text
        return found if 'data-ask="find_holders"' in found else ""

    found = eventually(page)
    assert 'data-requests="/api/v1/runs/r1/requests"' in found
    assert 'data-ask="census"' in found
    assert f'data-type="{ENV}"' in found
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    assert "data-ask" not in api.get("/runs/r1?tab=all").text


def test_only_a_registered_cleanup_is_offered(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)

    def page(*declared: tuple[str, bool, Any]) -> str:
        wire = run.wire(len(sent), 1)
        wire["events"] = [
            {"sequence": len(sent), "time": 1.0, "kind": "register_cleanup", "name": name,
             "data": {"on_request": on_request, "when": when}}
            for name, on_request, when in declared
        ]  # fmt: skip
        assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
        sent.append(wire)
        return api.get("/runs/r1?tab=all").text

    sent: list[Any] = []
    assert 'data-ask="cleanup"' not in page()
    found = page(("agent<b>", False, "confirmed"))
    assert 'data-ask="cleanup"' not in found
    assert "registered: at status confirmed or worse" in found
    assert "agent&lt;b&gt;" in found
    found = page(("agent<b>", True, None), ("pool", True, ["gauge.<i>", 500]))
    assert 'data-ask="cleanup"' in found
    assert "registered: on request, while gauge.&lt;i&gt; is above 500" in found
    assert 'data-ask="cleanup"' not in page(("agent<b>", False, None), ("pool", False, None))
    assert 'data-ask="cleanup"' in page(("pool", True, None))
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    assert "data-ask" not in api.get("/runs/r1?tab=all").text


def test_the_page_shows_what_a_cleanup_freed(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    wire = run.wire(0, 1)
    told = {
        "freed_bytes": 2**20, "seconds": 0.5, "because": "gauge.<i> is 612, above 500",
        "counts": {"app.Agent<b>": [17, 2], "app.Kept": [3, 3], "app.New": [0, 4]},
    }  # fmt: skip
    failed = told | {"freed_bytes": 0, "because": "it was requested", "error": "Value<i>Error"}
    wire["events"] = [
        {"sequence": 0, "time": 1.0, "kind": "cleanup", "name": "agent", "data": data} for data in (told, failed)
    ]  # fmt: skip
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    page = api.get("/runs/r1?tab=all").text
    assert (
        "freed 1.00 MiB in 0.50 s; app.Agent&lt;b&gt; 17 → 2; it ran because gauge.&lt;i&gt; is 612, above 500"
        in page
    )
    assert "failed with Value&lt;i&gt;Error; freed nothing in 0.50 s" in page

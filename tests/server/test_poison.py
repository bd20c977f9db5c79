"""A batch that no database can store, or that contradicts its process, harms nobody but itself."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline.snapshot import ProcessIdentity
from leakline_server import ingest
from leakline_server.errors import Malformed
from leakline_server.store.engine import Engine, writing
from leakline_server.store.inbox import Inbox
from leakline_server.store.incoming import Accepted
from leakline_server.store.wire import encode
from leakline_server.writer import Writer


@pytest.fixture
def run(shared_api: TestClient, make_run: Any) -> Any:
    run = make_run(id=f"run-{uuid.uuid4()}")
    run.create(shared_api)
    return run


def post(api: TestClient, run: Any, wire: dict[str, Any]) -> Any:
    return api.post(f"/api/v1/runs/{run.id}/batches", json=wire)


def refused(answer: Any, status: int, field: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["details"]["field"] == field


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("process.peak_bytes", 1e300),
        ("process.rss_bytes", 1e17),
        ("phase.train.bytes", -1e17),
        ("type.app.Env.count", 2.0**54),
        ("gauge.loss", 2e15),
        ("gauge.loss", -1e300),
    ],
)
def test_a_float_beyond_exact_numbers_is_named(
    name: str, value: float, shared_api: TestClient, run: Any
) -> None:
    wire = run.wire(0, 3)
    wire["columns"]["series"][name] = [None, value, 1]
    refused(post(shared_api, run, wire), 422, f"columns.series.{name}[1]")
    wire["columns"]["series"][name] = [None, 1e14, 1]
    refuses_rss = name == "process.rss_bytes"
    assert post(shared_api, run, wire).status_code == (422 if refuses_rss else 200)


@pytest.mark.parametrize(
    ("kind", "data", "field"),
    [
        ("budget", {"normal_bytes": "x"}, "normal_bytes"),
        ("budget", {"leak_bytes": [1]}, "leak_bytes"),
        ("cleanup", {"before_bytes": -1}, "before_bytes"),
        ("cleanup", {"freed_bytes": "much"}, "freed_bytes"),
        ("cleanup", {"seconds": True}, "seconds"),
        ("cleanup", {"counts": [1, 2]}, "counts"),
        ("cleanup", {"counts": {"app.Agent": [1]}}, "counts"),
        ("cleanup", {"devices": {"cuda.0.reserved_bytes": [1, -1]}}, "devices"),
        ("cleanup", {"devices": [1, 2]}, "devices"),
        ("cleanup", {"counts": {"app.Agent": [1, -1]}}, "counts"),
        ("cleanup", {"counts": {"app.Agent": {"before": 1, "after": 0}}}, "counts"),
    ],
)
def test_a_wrong_number_of_an_event_is_named(
    kind: str, data: dict[str, Any], field: str, shared_api: TestClient, run: Any
) -> None:
    wire = run.wire(2, 1)
    wire["events"] = [{"sequence": 2, "time": 1.0, "kind": kind, "name": "x", "data": data}]
    refused(post(shared_api, run, wire), 422, f"events[0].data.{field}")


def test_a_cleanup_that_made_memory_grow_is_taken(shared_api: TestClient, run: Any) -> None:
    wire = run.wire(2, 1)
    data = {"before_bytes": 1, "after_bytes": 5, "freed_bytes": -4, "seconds": 0.5}
    wire["events"] = [{"sequence": 2, "time": 1.0, "kind": "cleanup", "name": "x", "data": data}]
    assert post(shared_api, run, wire).status_code == 200
    assert "freed nothing" in shared_api.get(f"/runs/{run.id}").text


def test_two_names_that_would_become_one_stay_two(shared_api: TestClient, run: Any) -> None:
    wire = run.wire(0, 3)
    wire["columns"]["series"]["gauge.a\x00b"] = [1, 2, 3]
    wire["columns"]["series"]["gauge.ab"] = [4, 5, 6]
    assert post(shared_api, run, wire).status_code == 200
    query = {"name": "gauge.a*b", "x": "sequence"}
    found = shared_api.get(f"/api/v1/runs/{run.id}/series", params=query).json()["items"]
    assert sorted(item["last"] for item in found) == [[1, 2, 3], [4, 5, 6]]
    (itself,) = [item for item in found if item["name"] == "gauge.ab"]
    assert itself["last"] == [4, 5, 6]


def test_an_instance_keeps_its_first_rank(shared_api: TestClient, run: Any) -> None:
    run.send(shared_api, 0, 3)
    wire = run.wire(3, 3)
    wire["process"]["rank"] = 7
    refused(post(shared_api, run, wire), 409, "rank")
    joining = run.header | {"process": {"instance": run.instance, "rank": 7}}
    refused(shared_api.post("/api/v1/runs", json=joining), 409, "rank")
    assert run.send(shared_api, 3, 3) == 3


def test_more_reasons_of_loss_than_there_can_be_are_refused(
    shared_api: TestClient, run: Any
) -> None:
    wire = run.wire(0, 3) | {"lost": {f"reason {i}": 1 for i in range(33)}}
    refused(post(shared_api, run, wire), 422, "lost")


def test_losses_never_shrink_and_stay_few(shared_api: TestClient, run: Any) -> None:
    def lost() -> dict[str, int]:
        found: dict[str, int] = shared_api.get(f"/api/v1/runs/{run.id}").json()["processes"][0][
            "lost"
        ]
        return found

    post(shared_api, run, run.wire(0, 3) | {"lost": {"thinned": 5}})
    post(shared_api, run, run.wire(3, 3) | {"lost": {"thinned": 2, "dropped": 1}})
    assert lost() == {"thinned": 5, "dropped": 1}
    post(shared_api, run, run.wire(6, 3) | {"lost": {f"reason {i}": 1 for i in range(32)}})
    assert len(lost()) == 32
    post(shared_api, run, run.wire(9, 3) | {"lost": {"thinned": 9}})
    assert lost()["thinned"] == 9


def test_a_pure_repeat_does_not_touch_the_run(shared_api: TestClient, run: Any) -> None:
    run.send(shared_api, 0, 3)
    before = shared_api.get(f"/api/v1/runs/{run.id}").json()
    assert run.send(shared_api, 0, 3) == 0
    after = shared_api.get(f"/api/v1/runs/{run.id}").json()
    for name in ("last_seen_at", "state"):
        assert after[name] == before[name]
    assert after["processes"] == before["processes"]


def test_a_batch_that_cannot_be_stored_fails_alone(engine: Engine, make_run: Any) -> None:
    """The checks keep such a value out; this is for the one they do not know yet."""
    from leakline.snapshot import RunHeader
    from leakline_server.store.joining import join_run

    join_run(engine, RunHeader(**make_run().header, unit="generation"), 1.0)
    batches = []
    for i in range(3):
        run = make_run(instance=f"p{i}")
        batches.append(ingest.check("r1", encode(run.wire(0, 3)), 1.0))
    who = batches[1].process
    poison = ProcessIdentity(who.instance, who.rank, 2**70, who.host, who.role, who.attempt)
    object.__setattr__(batches[1], "process", poison)

    async def send() -> list[Any]:
        writer = Writer(engine, lambda _run: None, lambda _keys: None)
        waiting = [asyncio.ensure_future(writer.store(batch)) for batch in batches]
        await asyncio.sleep(0)
        writer.start()
        try:
            return await asyncio.gather(*waiting, return_exceptions=True)
        finally:
            writer.stop()

    first, second, third = asyncio.run(send())
    assert first == third == Accepted(3)
    assert isinstance(second, Malformed)
    with writing(engine) as connection:
        outcomes, _ = Inbox().store(connection, [batches[0], batches[2]])
    assert outcomes == [Accepted(0), Accepted(0)]

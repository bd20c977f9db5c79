"""Sealing changes where snapshots lie and nothing that can be read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select, update
from starlette.testclient import TestClient

from leakline.analysis.history import history_from_batches
from leakline.analysis.thinning import thinned
from leakline.snapshot import header_from_wire
from leakline_server.store import sealing
from leakline_server.store.engine import Engine, writing
from leakline_server.store.history import load_for_examination, load_history
from leakline_server.store.tables import batches, chunks, segments

LATER = 4e9
READS = (
    "series?name=process.rss_bytes&points=7",
    "series?name=*&x=time&points=50",
    "series?name=type.*.count&phase=*",
    "series?name=process.*&kind=generation_end&x=sequence&from=100&to=400",
    "series?name=sparse&x=sequence",
    "snapshots?limit=200",
    "snapshots?limit=3&name=sparse&name=late",
    "events",
    "census",
    "census?generation=25",
    "large-objects",
    "holders",
    "books",
    "types",
)


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    """What is awkward to pack: values that are rare, begin late, never change, or turn from integers into floats."""
    run = make_run(
        extra={
            "sparse": lambda i: i if i % 7 == 0 else None,
            "late": lambda i: i / 3 if i > 600 else None,
            "gauge.mixed": lambda i: i if i < 300 else i + 0.5,
            "constant": lambda i: 5,
        }
    )
    run.create(api)
    return run


def engine_of(api: TestClient) -> Engine:
    found: Engine = api.app.state.services.engine  # type: ignore[attr-defined]
    return found


def seal_everything(engine: Engine) -> int:
    """As if all that waits had been idle for long; returns how many snapshots wait after it."""
    with writing(engine) as connection:
        connection.execute(update(batches).values(received_at=0.0))
    for _, process_id in sealing.due(engine, LATER):
        while sealing.seal(engine, process_id, LATER):
            continue
    return count(engine, func.coalesce(func.sum(batches.c.count), 0))


def count(engine: Engine, what: Any) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(what)).scalar_one())


def read_all(api: TestClient) -> dict[str, Any]:
    return {read: api.get(f"/api/v1/runs/r1/{read}").json() for read in READS}


def test_everything_reads_the_same_before_and_after(api: TestClient, run: Any) -> None:
    run.send(api, 0, 200, size=20)
    run.send(api, 300, 200, size=35)
    run.send(api, 200, 60, size=60)
    before, engine = read_all(api), engine_of(api)
    assert count(engine, func.count(segments.c.id)) == 0
    assert seal_everything(engine) == 0
    assert count(engine, func.count(segments.c.id)) == 1
    assert read_all(api) == before


def test_a_process_is_sealed_by_itself_once_it_has_512_snapshots(
    api: TestClient, run: Any, eventually: Any
) -> None:
    run.send(api, 0, 1500, size=100)
    engine = engine_of(api)
    eventually(lambda: count(engine, func.coalesce(func.sum(batches.c.count), 0)) < 512)
    assert count(engine, func.count(segments.c.id)) == 2
    assert count(engine, func.sum(segments.c.count)) == 1200


def test_two_servers_that_seal_at_once_make_each_segment_once(api: TestClient, run: Any) -> None:
    run.send(api, 0, 400, size=20)
    engine = engine_of(api)
    with writing(engine) as connection:
        connection.execute(update(batches).values(received_at=0.0))
    ((_, process_id),) = sealing.due(engine, LATER)
    with ThreadPoolExecutor(8) as pool:
        sealed = list(pool.map(lambda _: sealing.seal(engine, process_id, LATER), range(8)))
    assert sorted(sealed) == [0] * 7 + [400]
    assert count(engine, func.sum(segments.c.count)) == 400


def test_a_late_batch_lies_in_its_place_when_read(api: TestClient, run: Any) -> None:
    run.send(api, 0, 100, size=50)
    run.send(api, 150, 100, size=50)
    assert seal_everything(engine_of(api)) == 0
    run.send(api, 100, 50)
    run.send(api, 250, 10)
    (item,) = api.get("/api/v1/runs/r1/series?name=constant&x=sequence").json()["items"]
    assert item["x"] == list(range(260))
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    assert [row["sequence"] for row in rows] == list(range(259, 59, -1))


def test_what_was_sealed_is_still_known_to_be_stored(api: TestClient, run: Any) -> None:
    run.send(api, 0, 100, size=50)
    run.send(api, 200, 100, size=50)
    assert seal_everything(engine_of(api)) == 0
    wire = run.wire(40, 20)
    wire["columns"]["series"]["constant"][3] = 6
    answer = api.post("/api/v1/runs/r1/batches", json=wire)
    assert answer.json()["error"]["details"] == {
        "sequence": 43, "field": "constant", "stored": 5, "sent": 6,
    }  # fmt: skip
    assert run.send(api, 0, 300) == 100


def test_a_restart_after_sealing_knows_every_number(database_url: str, make_run: Any) -> None:
    from leakline_server.app import create_app
    from leakline_server.config import Config

    run, config = make_run(), Config(database_url=database_url)
    with TestClient(create_app(config), base_url="http://127.0.0.1") as api:
        run.create(api)
        run.send(api, 0, 100, size=50)
        run.send(api, 120, 80)
        assert seal_everything(engine_of(api)) == 0
    with TestClient(create_app(config), base_url="http://127.0.0.1") as api:
        assert run.send(api, 0, 220) == 40


def test_a_small_run_stays_in_the_inbox(api: TestClient, run: Any) -> None:
    run.send(api, 0, 30)
    assert seal_everything(engine_of(api)) == 30
    assert count(engine_of(api), func.count(chunks.c.id)) == 0


@pytest.mark.parametrize("sealed", [False, True])
def test_the_history_is_the_one_the_offline_report_builds(
    sealed: bool, api: TestClient, run: Any, make_run: Any
) -> None:
    other = make_run(instance="p2", rank=1)
    run.send(api, 0, 120, size=30)
    other.send(api, 0, 90, size=30)
    if sealed:
        assert seal_everything(engine_of(api)) == 0
    expected = history_from_batches(
        header_from_wire({**run.header, "unit": "generation"}),
        [run.batch(0, 120), other.batch(0, 90)],
    )
    found = load_history(engine_of(api), "r1")
    for mine, theirs in zip(found.processes, expected.processes, strict=True):
        assert dict(mine.series) == dict(theirs.series)
        for name in (
            "instance",
            "rank",
            "attempt",
            "sequence",
            "time",
            "generation",
            "phase",
            "label",
            "kind",
        ):
            assert getattr(mine, name) == getattr(theirs, name), name
    for name in ("unit", "total", "phases", "expectations", "capacities", "ended"):
        assert getattr(found, name) == getattr(expected, name), name
    for name in ("events", "holders"):
        assert sorted(map(repr, getattr(found, name))) == sorted(map(repr, getattr(expected, name)))


@pytest.mark.parametrize("sealed", [False, True])
def test_of_a_very_long_run_an_examination_reads_what_the_analysis_would(
    sealed: bool, api: TestClient, run: Any
) -> None:
    run.extra["once"] = lambda i: 1 if i == 3 * 302 else None
    run.send(api, 0, 3 * 1_000, size=200)
    engine = engine_of(api)
    if sealed:
        assert seal_everything(engine) == 0
    whole, part = load_history(engine, "r1"), load_for_examination(engine, "r1")
    assert part == thinned(whole)
    (process,) = part.processes
    assert "once" in whole.processes[0].series
    assert "once" not in process.series
    assert process.left_out.generations == set(range(1_000)) - set(process.generation)


def test_a_run_with_a_plan_is_read_whole(api: TestClient, run: Any) -> None:
    run.send(api, 0, 3 * 1_000, size=200)
    event = {
        "sequence": 3_000,
        "time": 1.0,
        "kind": "budget",
        "name": "run",
        "data": {"leak_bytes": 1},
    }
    wire = run.wire(3_000, 1)
    wire["events"] = [event]
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    engine = engine_of(api)
    assert load_for_examination(engine, "r1") == load_history(engine, "r1")

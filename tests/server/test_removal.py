"""A run that is removed is gone at once; its rows follow in short steps, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Table, func, insert, select
from starlette.testclient import TestClient
from tests.server.stored import engine_of, seal

from leakline_server.store import leases, removal
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.retention import Limits
from leakline_server.store.tables import (
    attempts,
    batches,
    chunks,
    details,
    processes,
    removals,
    rollups,
    runs,
    segments,
    series,
)
from leakline_server.workers.retaining import IDLE_SECONDS, LEASE_SECONDS, Retainer

OF_A_RUN = (attempts, batches, chunks, details, processes, rollups, segments, series)


def rows(engine: Engine, run_id: str, tables: tuple[Table, ...] = OF_A_RUN) -> dict[str, int]:
    with engine.connect() as connection:
        return {
            table.name: count
            for table in tables
            if (
                count := connection.execute(
                    select(func.count()).select_from(table).where(table.c.run_id == run_id)
                ).scalar_one()
            )
        }


def sweep(engine: Engine, now: float, rows_per_step: int = removal.ROWS_PER_STEP) -> int:
    """All that there is to sweep at this moment; how many steps it took."""
    steps = 0
    while removal.sweep(engine, now, rows_per_step):
        steps += 1
    return steps


def end(api: TestClient, run_id: str = "r1") -> None:
    assert api.patch(f"/api/v1/runs/{run_id}", json={"state": "finished"}).status_code == 200


def sequences(api: TestClient, run_id: str = "r1") -> list[int]:
    found = api.get(f"/api/v1/runs/{run_id}/snapshots?limit=200").json()["items"]
    return sorted(row["sequence"] for row in found)


@pytest.fixture
def working() -> None:
    """For tests in which the worker of the application works."""


@pytest.fixture(autouse=True)
def still(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it leaves the sweeping to the test."""
    if "working" not in request.fixturenames:
        monkeypatch.setattr("leakline_server.workers.retaining.Retainer.once", lambda self: 3600.0)


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    """It has ended; of its two processes some snapshots are sealed, and others wait."""
    made = make_run()
    made.create(api)
    made.send(api, 0, 150, size=50)
    make_run(instance="p2", rank=1).send(api, 0, 120, size=40)
    seal(engine_of(api))
    made.send(api, 150, 30)
    end(api)
    return made


def test_a_removed_run_is_gone_at_once_for_every_reader(
    api: TestClient, run: Any, make_run: Any
) -> None:
    other = make_run(id="other")
    other.create(api)
    other.send(api, 0, 10)
    assert api.delete("/api/v1/runs/r1").status_code == 204
    assert rows(engine_of(api), "r1", (chunks, batches)) != {}
    for path in (
        "",
        "/series?name=*",
        "/snapshots",
        "/events",
        "/verdict",
        "/books",
        "/export.csv",
    ):
        answer = api.get(f"/api/v1/runs/r1{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found"), path
    assert [item["id"] for item in api.get("/api/v1/runs").json()["items"]] == ["other"]
    assert api.get("/runs/r1").status_code == 404
    assert api.delete("/api/v1/runs/r1").status_code == 404


def test_its_rows_go_in_short_steps_and_nothing_of_others(
    api: TestClient, run: Any, make_run: Any
) -> None:
    other = make_run(id="r10")
    other.create(api)
    other.send(api, 0, 150, size=50)
    engine = engine_of(api)
    seal(engine)
    before = rows(engine, "r10")
    removal.remove(engine, "r1", 1_000.0)
    left = sum(rows(engine, "r1").values())
    steps = sweep(engine, 1_000.0, rows_per_step=3)
    assert left / 3 <= steps <= left / 3 + 8
    assert rows(engine, "r1") == {}
    assert rows(engine, "r10") == before
    assert sequences(api, "r10") == list(range(150))


def test_what_was_on_its_way_in_that_moment_is_found_by_a_second_look(
    api: TestClient, run: Any
) -> None:
    engine = engine_of(api)
    with engine.connect() as connection:
        late = connection.execute(select(segments).where(segments.c.run_id == "r1")).first()
    assert late is not None
    removal.remove(engine, "r1", 1_000.0)
    sweep(engine, 1_000.0)
    with writing(engine) as connection:
        connection.execute(insert(segments).values(**late._mapping))
    assert sweep(engine, 1_001.0) == 0
    assert rows(engine, "r1") == {"segments": 1}
    assert removal.waiting(engine) == 0
    sweep(engine, 1_000.0 + removal.SETTLED_SECONDS)
    assert rows(engine, "r1", (*OF_A_RUN, removals)) == {}


def test_a_live_run_stays_and_its_end_lets_it_go(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 0, 3)
    answer = api.delete("/api/v1/runs/r1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "run_is_live")
    assert sequences(api) == [0, 1, 2]
    end(api)
    assert api.delete("/api/v1/runs/r1").status_code == 204


def test_the_same_id_begins_anew_while_the_rows_of_its_first_life_lie_there(
    api: TestClient, run: Any, make_run: Any
) -> None:
    engine = engine_of(api)
    assert api.delete("/api/v1/runs/r1").status_code == 204
    anew = make_run(leak_bytes=5)
    anew.create(api)
    # The same process instance with the same numbers: known before, and new now.
    assert anew.send(api, 0, 20, size=10) == 20
    assert sequences(api) == list(range(20))
    found = api.get("/api/v1/runs/r1").json()
    assert [(p["instance"], p["stored"]) for p in found["processes"]] == [("p1", 20)]
    points = api.get("/api/v1/runs/r1/series?name=process.rss_bytes&x=sequence").json()["items"]
    sweep(engine, time.time())
    sweep(engine, time.time() + 2 * removal.SETTLED_SECONDS)
    assert (
        api.get("/api/v1/runs/r1/series?name=process.rss_bytes&x=sequence").json()["items"]
        == points
    )
    assert points[0]["last"][-1] == anew.snapshot(19).samples["process.rss_bytes"]
    assert anew.send(api, 0, 25) == 5
    assert rows(engine, "r1", (segments, removals)) == {}


def test_removed_twice_before_its_rows_were_gone_nothing_is_left(
    api: TestClient, run: Any, make_run: Any
) -> None:
    engine = engine_of(api)
    removal.remove(engine, "r1", 1_000.0)
    sweep_once = removal.sweep(engine, 1_000.0, 2)
    anew = make_run()
    anew.create(api)
    anew.send(api, 0, 20)
    end(api)
    assert sweep_once
    assert removal.remove(engine, "r1", 1_001.0) == "removed"
    sweep(engine, 1_001.0)
    sweep(engine, 1_001.0 + removal.SETTLED_SECONDS)
    assert rows(engine, "r1", (*OF_A_RUN, removals)) == {}


def test_a_run_that_somebody_else_removed_is_not_remembered(
    api: TestClient, run: Any, make_run: Any, database_url: str
) -> None:
    """As `leakline db retain` beside the server does, or another server."""
    other = open_engine(database_url)
    removal.remove(other, "r1", time.time())
    answer = api.post("/api/v1/runs/r1/batches", json=run.wire(500, 3))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
    run.create(api)
    assert run.send(api, 0, 10) == 10
    removal_of_the_second = make_run()
    end(api)
    removal.remove(other, "r1", time.time())
    removal_of_the_second.create(api)
    assert removal_of_the_second.send(api, 0, 10) == 10
    assert sequences(api) == list(range(10))
    other.dispose()


def test_servers_that_sweep_at_once_delete_everything_once(
    api: TestClient, run: Any, database_url: str
) -> None:
    engine = engine_of(api)
    removal.remove(engine, "r1", 1_000.0)
    others = [open_engine(database_url) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda other: sweep(other, 1_000.0, 2), others))
    sweep(engine, 1_000.0)
    assert rows(engine, "r1") == {}
    for other in others:
        other.dispose()


def test_alerts_and_everything_else_of_a_run_go_with_it(api: TestClient, run: Any) -> None:
    engine = engine_of(api)
    api.patch("/api/v1/runs/r1", json={"notes": [{"text": "see"}]})
    removal.remove(engine, "r1", 1_000.0)
    with engine.connect() as connection:
        for table in runs.metadata.sorted_tables:
            by_run = [fk.parent for fk in table.foreign_keys if fk.column.table is runs]
            for column in by_run:
                found = select(func.count()).select_from(table).where(column == "r1")
                assert connection.execute(found).scalar_one() == 0, table.name


def test_the_application_sweeps_by_itself(
    working: None, api: TestClient, make_run: Any, eventually: Any
) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 0, 600, size=100)
    end(api)
    assert api.delete("/api/v1/runs/r1").status_code == 204
    engine = engine_of(api)
    eventually(lambda: rows(engine, "r1") == {} and removal.waiting(engine) == 0)


def test_a_server_that_is_killed_while_it_removes_goes_on_when_it_starts_again(
    serve: Any, make_run: Any, eventually: Any
) -> None:
    server = serve()
    run = make_run()
    server.request("POST", "/api/v1/runs", run.header)
    for first in range(0, 1_600, 200):
        assert server.request("POST", "/api/v1/runs/r1/batches", run.wire(first, 200))[0] == 200
    server.request("PATCH", "/api/v1/runs/r1", {"state": "finished"})
    assert server.request("DELETE", "/api/v1/runs/r1")[0] == 204
    server.kill()
    engine = open_engine(f"sqlite:///{server.folder}/.leakline-server/leakline.db")
    assert rows(engine, "r1") != {}
    again = serve()
    assert again.request("GET", "/api/v1/runs/r1")[0] == 404
    eventually(lambda: rows(engine, "r1") == {})
    engine.dispose()


def test_a_step_that_fails_is_told_and_tried_again(
    working: None, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    retainer = Retainer(engine, Limits())
    with writing(engine) as connection:
        connection.exec_driver_sql("ALTER TABLE removals RENAME TO away")
    retainer.once()
    assert "could not remove" in caplog.text
    with writing(engine) as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO removals")
    caplog.clear()
    retainer.once()
    assert caplog.text == ""


def test_a_lease_holds_for_a_server_whose_clock_is_a_little_behind(engine: Engine) -> None:
    """And not for one that finds it far ahead: that clock was set back."""
    assert leases.take(engine, "x", "first", 1_000.0, 60.0)
    for behind in (0.0, 0.5, 5.0, 30.0, 59.0):
        assert not leases.take(engine, "x", "second", 1_000.0 - behind, 60.0), behind
    assert leases.take(engine, "x", "first", 1_030.0, 60.0)
    assert not leases.take(engine, "x", "second", 1_089.0, 60.0)
    assert leases.take(engine, "x", "second", 1_090.0, 60.0)
    assert leases.take(engine, "x", "third", 900.0, 60.0)


@pytest.mark.postgres
def test_of_several_servers_one_removes_at_a_time(
    working: None, postgres_copies: Any, tmp_path: Any
) -> None:
    """Until its turn is over; then the next one may."""
    with postgres_copies.new(tmp_path) as url:
        engine, clock = open_engine(url), [1_000.0]
        first, second = (
            Retainer(engine, Limits(), clock=lambda: clock[0], now=lambda: clock[0])
            for _ in range(2)
        )
        first.once()
        with writing(engine) as connection:
            connection.execute(insert(removals).values(run_id="r2", processes=1, requested_at=1.0))
        assert second.once() == IDLE_SECONDS
        assert removal.waiting(engine) == 1
        clock[0] += LEASE_SECONDS
        second.once()
        assert removal.waiting(engine) == 0
        engine.dispose()


def test_a_live_page_of_a_removed_run_ends_and_the_server_says_nothing_wrong(
    serve: Any, make_run: Any
) -> None:
    server = serve()
    run = make_run()
    server.request("POST", "/api/v1/runs", run.header)
    server.request("POST", "/api/v1/runs/r1/batches", run.wire(0, 10))
    server.request("PATCH", "/api/v1/runs/r1", {"state": "finished"})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/api/v1/runs/r1/live")
        answer = connection.getresponse()
        assert answer.readline().startswith(b"event: ")
        assert server.request("DELETE", "/api/v1/runs/r1")[0] == 204
        with contextlib.suppress(http.client.IncompleteRead):
            answer.read()
    _, said = server.interrupt()
    assert "Traceback" not in said

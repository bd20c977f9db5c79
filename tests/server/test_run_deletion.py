"""A deleted run can be restored for ten minutes; a removed run is swept in short steps."""

from __future__ import annotations

import contextlib
import http.client
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Table, insert, select, update
from starlette.testclient import TestClient
from tests.server.stored import count_of, engine_of, seal

from leakline_server.store import leases
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.maintenance import run_deletion
from leakline_server.store.maintenance.retention_policy import Limits
from leakline_server.store.maintenance.run_deletion import GRACE_SECONDS
from leakline_server.store.schema import (
    alerts,
    attempts,
    batches,
    chunks,
    deletions,
    details,
    processes,
    removals,
    runs,
    segments,
    series,
)
from leakline_server.workers.storage_upkeep import IDLE_SECONDS, LEASE_SECONDS, Retainer

OF_A_RUN = (attempts, batches, chunks, details, processes, segments, series)


def rows(engine: Engine, run_id: str, tables: tuple[Table, ...] = OF_A_RUN) -> dict[str, int]:
    found = {table.name: count_of(engine, table, table.c.run_id == run_id) for table in tables}
    return {name: count for name, count in found.items() if count}


def sweep(engine: Engine, now: float, rows_per_step: int = run_deletion.ROWS_PER_STEP) -> int:
    """Sweep everything that is due at ``now`` and return the number of steps."""
    steps = 0
    while run_deletion.sweep(engine, now, rows_per_step):
        steps += 1
    return steps


def end(api: TestClient, run_id: str = "r1") -> None:
    assert api.patch(f"/api/v1/runs/{run_id}", json={"state": "finished"}).status_code == 200


def sequences(api: TestClient, run_id: str = "r1") -> list[int]:
    found = api.get(f"/api/v1/runs/{run_id}/snapshots?limit=200").json()["items"]
    return sorted(row["sequence"] for row in found)


@pytest.fixture
def working() -> None:
    """Let the worker of the application run in this test."""


@pytest.fixture(autouse=True)
def still(request: pytest.FixtureRequest, patch: Any) -> None:
    """Stop the worker in other tests, which sweep themselves."""
    if "working" not in request.fixturenames:
        patch("workers.storage_upkeep.Retainer.once", lambda self: 3600.0)


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    """Create an ended run of two processes, with sealed and unsealed snapshots."""
    made = make_run()
    made.create(api)
    made.send(api, 0, 90, size=45)
    make_run(instance="p2", rank=1).send(api, 0, 80, size=40)
    seal(engine_of(api))
    made.send(api, 90, 20)
    end(api)
    return made


@pytest.fixture
def others(database_url: str) -> Iterator[list[Engine]]:
    """Yield the engines of other servers on the same database."""
    made = [open_engine(database_url) for _ in range(4)]
    yield made
    for engine in made:
        engine.dispose()


def test_a_removed_run_is_gone_immediately(api: TestClient, run: Any, make_run: Any) -> None:
    other = make_run(id="other")
    other.create(api)
    other.send(api, 0, 10)
    assert api.delete("/api/v1/runs/r1").status_code == 204
    assert rows(engine_of(api), "r1", (chunks, batches)) != {}
    for path in ("", "/series?name=*", "/snapshots", "/events", "/verdict", "/export.csv"):
        answer = api.get(f"/api/v1/runs/r1{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found"), path
    assert [item["id"] for item in api.get("/api/v1/runs").json()["items"]] == ["other"]
    assert api.get("/runs/r1").status_code == 404
    assert api.delete("/api/v1/runs/r1").status_code == 404


def test_its_rows_are_removed_in_short_steps(api: TestClient, run: Any, make_run: Any) -> None:
    other = make_run(id="r10")
    other.create(api)
    other.send(api, 0, 90, size=45)
    engine = engine_of(api)
    seal(engine)
    before = rows(engine, "r10")
    run_deletion.remove(engine, "r1", 1_000.0)
    left = sum(rows(engine, "r1").values())
    steps = sweep(engine, 1_000.0, rows_per_step=3)
    assert left / 3 <= steps <= left / 3 + 8
    assert rows(engine, "r1") == {}
    assert rows(engine, "r10") == before
    assert sequences(api, "r10") == list(range(90))


def test_rows_written_during_the_removal_are_found_by_a_later_sweep(
    api: TestClient, run: Any
) -> None:
    engine = engine_of(api)
    with engine.connect() as connection:
        late = connection.execute(select(segments).where(segments.c.run_id == "r1")).first()
    assert late is not None
    run_deletion.remove(engine, "r1", 1_000.0)
    sweep(engine, 1_000.0)
    with writing(engine) as connection:
        connection.execute(insert(segments).values(**late._mapping))
    assert sweep(engine, 1_001.0) == 0
    assert rows(engine, "r1") == {"segments": 1}
    assert run_deletion.waiting(engine) == 0
    sweep(engine, 1_000.0 + run_deletion.SETTLED_SECONDS)
    assert rows(engine, "r1", (*OF_A_RUN, removals)) == {}


def test_a_live_run_can_be_removed_only_after_its_end(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 0, 3)
    answer = api.delete("/api/v1/runs/r1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "run_is_live")
    assert sequences(api) == [0, 1, 2]
    end(api)
    assert api.delete("/api/v1/runs/r1").status_code == 204


def test_an_id_can_be_used_again_before_its_rows_are_removed(
    api: TestClient, run: Any, make_run: Any
) -> None:
    engine = engine_of(api)
    assert api.delete("/api/v1/runs/r1").status_code == 204
    second = make_run(leak_bytes=5)
    second.create(api)
    # The same process instance with the same numbers was known before and is new now.
    assert second.send(api, 0, 20, size=10) == 20
    assert sequences(api) == list(range(20))
    found = api.get("/api/v1/runs/r1").json()
    assert [(p["instance"], p["stored"]) for p in found["processes"]] == [("p1", 20)]
    series_path = "/api/v1/runs/r1/series?name=process.rss_bytes&x=sequence"
    points = api.get(series_path).json()["items"]
    sweep(engine, time.time())
    sweep(engine, time.time() + 2 * run_deletion.SETTLED_SECONDS)
    assert api.get(series_path).json()["items"] == points
    assert points[0]["last"][-1] == second.snapshot(19).samples["process.rss_bytes"]
    assert second.send(api, 0, 25) == 5
    assert rows(engine, "r1", (segments, removals)) == {}


def test_a_run_removed_twice_leaves_nothing(api: TestClient, run: Any, make_run: Any) -> None:
    engine = engine_of(api)
    run_deletion.remove(engine, "r1", 1_000.0)
    sweep_once = run_deletion.sweep(engine, 1_000.0, 2)
    second = make_run()
    second.create(api)
    second.send(api, 0, 20)
    end(api)
    assert sweep_once
    assert run_deletion.remove(engine, "r1", 1_001.0) == "removed"
    sweep(engine, 1_001.0)
    sweep(engine, 1_001.0 + run_deletion.SETTLED_SECONDS)
    assert rows(engine, "r1", (*OF_A_RUN, removals)) == {}


def test_a_run_removed_elsewhere_is_not_remembered(
    api: TestClient, run: Any, others: list[Engine]
) -> None:
    run_deletion.remove(others[0], "r1", time.time())
    answer = api.post("/api/v1/runs/r1/batches", json=run.wire(500, 3))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
    run.create(api)
    assert run.send(api, 0, 10) == 10


def test_several_servers_can_sweep_at_the_same_time(
    api: TestClient, run: Any, others: list[Engine]
) -> None:
    engine = engine_of(api)
    run_deletion.remove(engine, "r1", 1_000.0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda other: sweep(other, 1_000.0, 2), others))
    sweep(engine, 1_000.0)
    assert rows(engine, "r1") == {}


def test_all_rows_of_a_run_are_removed_with_it(api: TestClient, run: Any) -> None:
    engine = engine_of(api)
    api.patch("/api/v1/runs/r1", json={"notes": [{"text": "see"}]})
    run_deletion.remove(engine, "r1", 1_000.0)
    for table in runs.metadata.sorted_tables:
        by_run = [fk.parent for fk in table.foreign_keys if fk.column.table is runs]
        assert not [column for column in by_run if count_of(engine, table, column == "r1")]


def test_a_failed_step_is_logged_and_retried(
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
    """It does not hold for a server that finds it far ahead, because that clock was set back."""
    assert leases.take(engine, "x", "first", 1_000.0, 60.0)
    for behind in (0.0, 0.5, 5.0, 30.0, 59.0):
        assert not leases.take(engine, "x", "second", 1_000.0 - behind, 60.0), behind
    assert leases.take(engine, "x", "first", 1_030.0, 60.0)
    assert not leases.take(engine, "x", "second", 1_089.0, 60.0)
    assert leases.take(engine, "x", "second", 1_090.0, 60.0)
    assert leases.take(engine, "x", "third", 900.0, 60.0)


@pytest.mark.postgres
def test_one_server_removes_at_a_time(working: None, postgres_copies: Any, tmp_path: Any) -> None:
    """When its turn is over, the next server may begin."""
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
        assert run_deletion.waiting(engine) == 1
        clock[0] += LEASE_SECONDS
        second.once()
        assert run_deletion.waiting(engine) == 0
        engine.dispose()


# The worker of the application uses the real clock and finds nothing due during a test.
NOW = time.time()


@pytest.fixture
def two(api: TestClient, make_run: Any) -> TestClient:
    """Create r1, which has ended, and r2, which is running."""
    for run_id in ("r1", "r2"):
        run = make_run(id=run_id, instance=f"{run_id}-1")
        run.create(api)
        run.send(api, 0, 12)
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200
    return api


def delete(api: TestClient, *run_ids: str, view: str = "") -> Any:
    form = {"pick": list(run_ids), "view": view}
    return api.post("/deletions", data=form, follow_redirects=False)


def button(text: str, action: str = "/undo") -> dict[str, str]:
    """Return the fields of the form that restores runs, or of the form with another ``action``."""
    form_of = f'<form method="post" action="/deletions{action}".*?</form>'
    (form,) = re.findall(form_of, text, re.DOTALL)
    return {
        name: value.replace("&amp;", "&")
        for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)
    }


def listed(api: TestClient, query: str = "") -> list[str]:
    return sorted(re.findall(r'class="name" href="/runs/(\w+)"', api.get(f"/?{query}").text))


def in_api(api: TestClient, query: str = "") -> list[str]:
    return sorted(item["id"] for item in api.get(f"/api/v1/runs?{query}").json()["items"])


def retain(engine: Engine, now: float) -> None:
    """Run the worker at ``now`` until there is nothing left to do."""
    while run_deletion.remove_next(engine, now) or run_deletion.sweep(engine, now):
        pass


def test_only_selected_runs_are_deleted(two: TestClient) -> None:
    of_another_site = {"origin": "https://evil.example"}
    answer = two.post("/deletions", data={"pick": "r1"}, headers=of_another_site)
    assert answer.status_code == 403
    answer = delete(two)
    assert answer.status_code == 422
    assert "select at least one run" in answer.text
    answer = delete(two, "nobody", "x\x00")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert run_deletion.mark(engine_of(two), ["r\x001", "nobody"], NOW) == 0
    assert listed(two) == ["r1", "r2"]
    assert two.post("/deletions/undo", data={"run": "r1"}).status_code == 404
    assert two.post("/deletions/undo", data={"deleted": "soon"}).status_code == 422
    assert two.post("/deletions/undo", data={"deleted": "1.5"}).status_code == 404


def test_a_deleted_run_is_unlisted_immediately_and_its_page_says_so(two: TestClient) -> None:
    assert delete(two, "r1").status_code == 303
    assert listed(two) == in_api(two) == ["r2"]
    assert listed(two, "q=r1") == in_api(two, "q=r1") == in_api(two, "status=finished") == []
    assert 'value="r1"' not in two.get("/compare").text
    assert 'run="r1"' not in two.get("/metrics").text
    page = two.get("/runs/r1").text
    assert "was deleted" in page and "Undo" in page and "data-chart" not in page
    overlay = two.get("/overlay?run=r1&run=r2").text
    assert "Left out because they are deleted" in overlay and "Overlay of 1 run" in overlay


def test_one_click_restores_all_deleted_runs(two: TestClient, make_run: Any) -> None:
    make_run(id="r3").create(two)
    location = delete(two, "r1", "r2", view="q=r&sort=name").headers["location"]
    assert location.startswith("/?q=r&sort=name&deleted=")
    text = two.get(location).text
    assert "Deleted 2 runs." in text
    assert listed(two) == ["r3"]
    # This run was deleted separately and is not restored here.
    delete(two, "r3")
    back = two.post("/deletions/undo", data=button(text), follow_redirects=False)
    assert (back.status_code, back.headers["location"]) == (303, "/?q=r&sort=name")
    assert listed(two) == ["r1", "r2"]
    # Undoing twice, or after somebody else has, is not found.
    assert two.post("/deletions/undo", data=button(text)).status_code == 404
    assert "Deleted 2 runs" not in two.get(location).text


def test_one_run_is_named_and_restored_from_its_page(two: TestClient) -> None:
    assert button(two.get("/runs/r2").text, "")["pick"] == "r2"
    location = delete(two, "r2").headers["location"]
    assert "Deleted before-fix." in two.get(location).text
    page = two.get("/runs/r2").text
    assert "still running" in page
    back = two.post("/deletions/undo", data=button(page), follow_redirects=False)
    assert (back.status_code, back.headers["location"]) == (303, "/runs/r2")
    assert "data-chart" in two.get("/runs/r2").text
    assert listed(two) == in_api(two) == ["r1", "r2"]


def test_deleted_runs_can_be_listed_while_they_can_be_restored(two: TestClient) -> None:
    assert "deleted run" not in two.get("/").text
    delete(two, "r1")
    assert "1 deleted run can still be restored" in two.get("/").text
    assert listed(two, "q=status:deleted") == in_api(two, "status=deleted") == ["r1"]
    delete(two, "r2")
    # This is not the page of a server that never had a run, which would have no way back.
    text = two.get("/").text
    assert "No runs are left." in text and "2 deleted runs can still" in text


def test_deleting_again_does_not_extend_the_time(two: TestClient) -> None:
    engine = engine_of(two)
    assert run_deletion.mark(engine, ["r1"], NOW) == 1
    assert run_deletion.mark(engine, ["r1", "r2"], NOW + 300) == 1
    found = {each.run_id: each.removed_at for each in run_deletion.among(engine, ["r1", "r2", "x"])}
    assert found == {"r1": NOW + GRACE_SECONDS, "r2": NOW + 300 + GRACE_SECONDS}


def test_a_deleted_run_is_removed_when_its_time_is_over(two: TestClient) -> None:
    engine = engine_of(two)
    run_deletion.mark(engine, ["r1"], NOW)
    retain(engine, NOW + GRACE_SECONDS - 1)
    assert run_deletion.find(engine, "r1") is not None
    retain(engine, NOW + GRACE_SECONDS)
    retain(engine, NOW + GRACE_SECONDS + run_deletion.SETTLED_SECONDS)
    assert run_deletion.find(engine, "r1") is None
    assert two.get("/runs/r1").status_code == two.get("/api/v1/runs/r1").status_code == 404
    assert two.post("/deletions/undo", data={"run": "r1"}).status_code == 404
    assert rows(engine, "r1", (batches, chunks, deletions)) == {}
    assert listed(two) == ["r2"]


def test_a_restored_run_is_not_removed(two: TestClient) -> None:
    engine = engine_of(two)
    run_deletion.mark(engine, ["r1"], NOW)
    assert run_deletion.undo(engine, ["r1"]) == 1
    retain(engine, NOW + 2 * GRACE_SECONDS)
    assert listed(two) == ["r1", "r2"]


def test_a_deleted_run_that_continues_is_stored(two: TestClient, make_run: Any) -> None:
    run = make_run(id="r2", instance="r2-1")
    before = two.post("/api/v1/runs/r2/batches", json=run.wire(12, 3)).json()
    engine = engine_of(two)
    run_deletion.mark(engine, ["r2"], NOW)
    after = two.post("/api/v1/runs/r2/batches", json=run.wire(15, 3))
    assert (after.status_code, after.json()) == (200, before)
    assert two.post("/api/v1/runs", json=run.header).status_code == 200
    assert two.patch("/api/v1/runs/r2", json={"tags": ["x"]}).status_code == 200
    assert listed(two) == ["r1"]
    # It is kept while it runs: otherwise its next batch would create it again, and it would be listed.
    retain(engine, NOW + 2 * GRACE_SECONDS)
    assert two.post("/api/v1/runs/r2/batches", json=run.wire(18, 3)).status_code == 200
    run_deletion.undo(engine, ["r2"])
    found = two.get("/api/v1/runs/r2/snapshots?limit=200").json()["items"]
    assert sorted(row["sequence"] for row in found) == list(range(21))


def test_the_api_removes_a_deleted_run_immediately(two: TestClient) -> None:
    delete(two, "r1")
    assert two.delete("/api/v1/runs/r1").status_code == 204
    assert two.get("/runs/r1").status_code == 404
    assert run_deletion.count(engine_of(two)) == 0


def test_a_run_is_restored_or_removed_but_never_both(two: TestClient, others: list[Engine]) -> None:
    """Whichever comes first, the other finds nothing to do."""
    for _ in range(8):
        run_deletion.mark(others[0], ["r1"], NOW)
        with ThreadPoolExecutor(4) as pool:
            undone = [pool.submit(run_deletion.undo, other, ["r1"]) for other in others[:2]]
            due = NOW + GRACE_SECONDS
            removed = [pool.submit(run_deletion.remove_next, other, due) for other in others[2:]]
        brought_back = sum(each.result() for each in undone)
        assert brought_back + sum(each.result() is not None for each in removed) == 1
        if two.get("/api/v1/runs/r1").status_code == 404:
            break
        assert run_deletion.find(others[0], "r1") is None


def test_a_run_deleted_twice_at_once_is_deleted_once(two: TestClient, others: list[Engine]) -> None:
    def mark(other: Engine) -> int:
        return run_deletion.mark(other, ["r2", "r1"], time.time())

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(mark, others)) == 2
    assert run_deletion.count(others[0]) == 2


def test_deleted_runs_have_no_incidents(api: TestClient, make_run: Any, eventually: Any) -> None:
    for run_id in ("r1", "r2"):
        run = make_run(id=run_id, instance=run_id, leak_bytes=2**27)
        run.create(api)
        run.send(api, 0, 90)

    def seen_in() -> list[str]:
        groups = api.get("/api/v1/incidents?status=open").json()["items"]
        return sorted({seen["run"] for group in groups for seen in group["runs"]})

    eventually(lambda: seen_in() == ["r1", "r2"])
    delete(api, "r1")
    assert seen_in() == ["r2"]
    assert "/runs/r1" not in api.get("/incidents").text
    delete(api, "r2")
    assert seen_in() == []
    api.post("/deletions/undo", data={"run": ["r1", "r2"]})
    assert seen_in() == ["r1", "r2"]


def test_a_deleted_run_raises_no_alert(api: TestClient, make_run: Any, eventually: Any) -> None:
    run = make_run(id="r1", leak_bytes=200 * 2**20)
    run.create(api)
    delete(api, "r1")
    run.send(api, 0, 126)
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["status"] == "confirmed")
    assert count_of(engine_of(api), alerts) == 0


def test_a_deleted_run_that_fell_silent_is_not_removed_immediately(two: TestClient) -> None:
    engine = engine_of(two)
    delete(two, "r2")
    heard = NOW + GRACE_SECONDS
    with writing(engine) as connection:
        connection.execute(
            update(runs).where(runs.c.id == "r2").values(state="silent", last_seen_at=heard)
        )
    retain(engine, heard + run_deletion.SILENT_SECONDS - 1)
    assert run_deletion.find(engine, "r2")
    retain(engine, heard + run_deletion.SILENT_SECONDS + 1)
    assert two.get("/api/v1/runs/r2").status_code == 404


@pytest.mark.long
def test_after_a_kill_removal_continues_and_live_pages_end(
    serve: Any, make_run: Any, eventually: Any
) -> None:
    server = serve()

    def ended(name: str, count: int) -> None:
        run = make_run(id=name, instance=name)
        server.request("POST", "/api/v1/runs", run.header)
        for first in range(0, count, 200):
            body = run.wire(first, 200)
            assert server.request("POST", f"/api/v1/runs/{name}/batches", body)[0] == 200
        server.request("PATCH", f"/api/v1/runs/{name}", {"state": "finished"})

    ended("r1", 1_600)
    assert server.request("DELETE", "/api/v1/runs/r1")[0] == 204
    server.kill()
    engine = open_engine(f"sqlite:///{server.folder}/.leakline-server/leakline.db")
    assert rows(engine, "r1") != {}
    server = serve()
    assert server.request("GET", "/api/v1/runs/r1")[0] == 404
    eventually(lambda: rows(engine, "r1") == {})
    # A run that a person deleted is removed when its time is over.
    ended("r2", 200)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/api/v1/runs/r2/live")
        answer = connection.getresponse()
        assert answer.readline().startswith(b"event: ")
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert server.request("POST", "/deletions", b"pick=r2", form)[0] == 303
        with writing(engine) as database:
            database.execute(update(deletions).values(deleted_at=time.time() - GRACE_SECONDS))
        eventually(lambda: server.request("GET", "/api/v1/runs/r2")[0] == 404)
        with contextlib.suppress(http.client.IncompleteRead):
            answer.read()
    eventually(lambda: not rows(engine, "r2") and run_deletion.waiting(engine) == 0)
    engine.dispose()
    said = server.interrupt()[1]
    assert "removed run r2" in said and "Traceback" not in said

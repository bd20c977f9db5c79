"""A run that people delete is in no list any more, can be brought back for ten minutes, and then is removed."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select, update
from starlette.testclient import TestClient
from tests.server.stored import engine_of

from leakline_server.store import deleting, removal
from leakline_server.store.deleting import GRACE_SECONDS
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.tables import alerts, batches, chunks, deletions, runs

# The worker of the application looks at the clock, and finds nothing due while a test goes on.
NOW = time.time()


@pytest.fixture
def two(api: TestClient, make_run: Any) -> TestClient:
    """r1 has ended, r2 runs."""
    for run_id in ("r1", "r2"):
        run = make_run(id=run_id, instance=f"{run_id}-1")
        run.create(api)
        run.send(api, 0, 12)
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200
    return api


def delete(api: TestClient, *run_ids: str, view: str = "") -> Any:
    form = {"pick": list(run_ids), "view": view}
    return api.post("/deletions", data=form, follow_redirects=False)


def undo_button(text: str) -> dict[str, str]:
    """The fields of the form that brings back, as the page has them."""
    (form,) = re.findall(r'<form method="post" action="/deletions/undo".*?</form>', text, re.DOTALL)
    return {
        name: value.replace("&amp;", "&")
        for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)
    }


def listed(api: TestClient, query: str = "") -> list[str]:
    return sorted(re.findall(r'class="name" href="/runs/(\w+)"', api.get(f"/?{query}").text))


def in_api(api: TestClient, query: str = "") -> list[str]:
    return sorted(item["id"] for item in api.get(f"/api/v1/runs?{query}").json()["items"])


def retain(engine: Engine, now: float) -> None:
    """What the worker does at this moment, until there is nothing left to do."""
    while deleting.remove_next(engine, now) or removal.sweep(engine, now):
        pass


def test_what_was_not_picked_or_is_not_there_is_not_deleted(two: TestClient) -> None:
    answer = delete(two)
    assert answer.status_code == 422
    assert "pick at least one run" in answer.text
    answer = delete(two, "nobody", "x\x00")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert deleting.mark(engine_of(two), ["r\x001", "nobody"], NOW) == 0
    assert listed(two) == ["r1", "r2"]
    assert two.post("/deletions/undo", data={"run": "r1"}).status_code == 404
    assert two.post("/deletions/undo", data={"deleted": "soon"}).status_code == 422
    assert two.post("/deletions/undo", data={"deleted": "1.5"}).status_code == 404


def test_another_site_may_not_delete(two: TestClient) -> None:
    answer = two.post("/deletions", data={"pick": "r1"}, headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    assert listed(two) == ["r1", "r2"]


def test_a_deleted_run_is_in_no_list_at_once_and_its_page_says_so(two: TestClient) -> None:
    assert delete(two, "r1").status_code == 303
    assert listed(two) == in_api(two) == ["r2"]
    assert listed(two, "q=r1") == in_api(two, "q=r1") == in_api(two, "status=finished") == []
    assert 'value="r1"' not in two.get("/compare").text
    assert 'run="r1"' not in two.get("/metrics").text
    page = two.get("/runs/r1").text
    assert "is deleted" in page and "Undo" in page and "data-chart" not in page
    overlay = two.get("/overlay?run=r1&run=r2").text
    assert "Deleted and left out" in overlay and "Overlay of 1 run" in overlay


def test_the_list_says_how_many_went_and_one_press_brings_all_of_them_back(
    two: TestClient, make_run: Any
) -> None:
    make_run(id="r3").create(two)
    location = delete(two, "r1", "r2", view="q=r&sort=name").headers["location"]
    assert location.startswith("/?q=r&sort=name&deleted=")
    text = two.get(location).text
    assert "Deleted 2 runs." in text
    assert listed(two) == ["r3"]
    # Deleted another time: it is not what is undone here.
    delete(two, "r3")
    back = two.post("/deletions/undo", data=undo_button(text), follow_redirects=False)
    assert (back.status_code, back.headers["location"]) == (303, "/?q=r&sort=name")
    assert listed(two) == ["r1", "r2"]
    # Twice, or after somebody else has.
    assert two.post("/deletions/undo", data=undo_button(text)).status_code == 404
    assert "Deleted 2 runs" not in two.get(location).text


def test_one_run_is_named_and_brought_back_from_its_page(two: TestClient) -> None:
    location = delete(two, "r2").headers["location"]
    assert "Deleted before-fix." in two.get(location).text
    page = two.get("/runs/r2").text
    assert "still running" in page
    back = two.post("/deletions/undo", data=undo_button(page), follow_redirects=False)
    assert (back.status_code, back.headers["location"]) == (303, "/runs/r2")
    assert "data-chart" in two.get("/runs/r2").text
    assert listed(two) == in_api(two) == ["r1", "r2"]


def test_what_is_deleted_can_be_listed_while_it_can_be_brought_back(two: TestClient) -> None:
    assert "deleted run" not in two.get("/").text
    delete(two, "r1")
    assert "1 deleted run can still be brought back" in two.get("/").text
    assert listed(two, "q=status:deleted") == in_api(two, "status=deleted") == ["r1"]
    delete(two, "r2")
    # Not the page of a server that never had a run: that would have no way back.
    text = two.get("/").text
    assert "No runs are left." in text and "2 deleted runs can still" in text


def test_the_page_of_a_run_has_the_form_that_deletes_it(two: TestClient) -> None:
    (form,) = re.findall(
        r'<form method="post" action="/deletions".*?</form>', two.get("/runs/r1").text, re.DOTALL
    )
    assert re.findall(r'name="pick" value="(\w+)"', form) == ["r1"]


def test_deleting_again_gives_no_more_time(two: TestClient) -> None:
    engine = engine_of(two)
    assert deleting.mark(engine, ["r1"], NOW) == 1
    assert deleting.mark(engine, ["r1", "r2"], NOW + 300) == 1
    found = {each.run_id: each.removed_at for each in deleting.among(engine, ["r1", "r2", "x"])}
    assert found == {"r1": NOW + GRACE_SECONDS, "r2": NOW + 300 + GRACE_SECONDS}


def test_it_is_removed_when_its_time_is_over_and_not_before(two: TestClient) -> None:
    engine = engine_of(two)
    deleting.mark(engine, ["r1"], NOW)
    retain(engine, NOW + GRACE_SECONDS - 1)
    assert deleting.find(engine, "r1") is not None
    retain(engine, NOW + GRACE_SECONDS)
    retain(engine, NOW + GRACE_SECONDS + removal.SETTLED_SECONDS)
    assert deleting.find(engine, "r1") is None
    assert two.get("/runs/r1").status_code == two.get("/api/v1/runs/r1").status_code == 404
    assert two.post("/deletions/undo", data={"run": "r1"}).status_code == 404
    with engine.connect() as connection:
        for table in (batches, chunks, deletions):
            rows = select(func.count()).select_from(table).where(table.c.run_id == "r1")
            assert connection.execute(rows).scalar_one() == 0, table.name
    assert listed(two) == ["r2"]


def test_what_was_brought_back_is_not_removed(two: TestClient) -> None:
    engine = engine_of(two)
    deleting.mark(engine, ["r1"], NOW)
    assert deleting.undo(engine, ["r1"]) == 1
    retain(engine, NOW + 2 * GRACE_SECONDS)
    assert listed(two) == ["r1", "r2"]


def test_a_training_that_goes_on_is_stored_and_told_nothing(two: TestClient, make_run: Any) -> None:
    run = make_run(id="r2", instance="r2-1")
    before = two.post("/api/v1/runs/r2/batches", json=run.wire(12, 3)).json()
    engine = engine_of(two)
    deleting.mark(engine, ["r2"], NOW)
    after = two.post("/api/v1/runs/r2/batches", json=run.wire(15, 3))
    assert (after.status_code, after.json()) == (200, before)
    assert two.post("/api/v1/runs", json=run.header).status_code == 200
    assert two.patch("/api/v1/runs/r2", json={"tags": ["x"]}).status_code == 200
    assert listed(two) == ["r1"]
    # As long as it runs: its next batch would begin it anew, and it would be back in the list.
    retain(engine, NOW + 2 * GRACE_SECONDS)
    assert two.post("/api/v1/runs/r2/batches", json=run.wire(18, 3)).status_code == 200
    deleting.undo(engine, ["r2"])
    found = two.get("/api/v1/runs/r2/snapshots?limit=200").json()["items"]
    assert sorted(row["sequence"] for row in found) == list(range(21))


def test_it_goes_when_it_has_ended_and_then_all_is_as_it_was(
    two: TestClient, make_run: Any
) -> None:
    engine = engine_of(two)
    deleting.mark(engine, ["r2"], NOW)
    two.patch("/api/v1/runs/r2", json={"state": "finished"})
    retain(engine, NOW + GRACE_SECONDS)
    run = make_run(id="r2", instance="r2-1")
    answer = two.post("/api/v1/runs/r2/batches", json=run.wire(12, 3))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
    run.create(two)
    assert run.send(two, 0, 3) == 3
    assert listed(two) == ["r1", "r2"]


def test_the_api_removes_at_once_also_what_is_deleted(two: TestClient) -> None:
    delete(two, "r1")
    assert two.delete("/api/v1/runs/r1").status_code == 204
    assert two.get("/runs/r1").status_code == 404
    assert deleting.count(engine_of(two)) == 0


def test_a_run_is_brought_back_or_removed_and_never_both(
    two: TestClient, database_url: str
) -> None:
    """Whoever is first, the other finds nothing to do."""
    others = [open_engine(database_url) for _ in range(4)]
    for _ in range(8):
        deleting.mark(others[0], ["r1"], NOW)
        with ThreadPoolExecutor(4) as pool:
            undone = [pool.submit(deleting.undo, other, ["r1"]) for other in others[:2]]
            removed = [
                pool.submit(deleting.remove_next, other, NOW + GRACE_SECONDS)
                for other in others[2:]
            ]
        outcomes = sum(each.result() for each in undone) + sum(
            each.result() is not None for each in removed
        )
        assert outcomes == 1
        if two.get("/api/v1/runs/r1").status_code == 404:
            break
        assert deleting.find(others[0], "r1") is None
    for other in others:
        other.dispose()


def test_two_who_delete_the_same_run_at_once_both_find_it_deleted(
    two: TestClient, database_url: str
) -> None:
    others = [open_engine(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        numbers = list(
            pool.map(lambda other: deleting.mark(other, ["r2", "r1"], time.time()), others)
        )
    assert sum(numbers) == 2
    assert deleting.count(others[0]) == 2
    for other in others:
        other.dispose()


def test_its_leaks_are_among_the_incidents_only_while_it_is_there(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
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


def test_a_server_removes_it_by_itself(serve: Any, make_run: Any, eventually: Any) -> None:
    server = serve()
    run = make_run()
    server.request("POST", "/api/v1/runs", run.header)
    server.request("POST", "/api/v1/runs/r1/batches", run.wire(0, 12))
    server.request("PATCH", "/api/v1/runs/r1", {"state": "finished"})
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert server.request("POST", "/deletions", b"pick=r1", form)[0] == 303
    engine = open_engine(f"sqlite:///{server.folder}/.leakline-server/leakline.db")
    with writing(engine) as connection:
        connection.execute(update(deletions).values(deleted_at=time.time() - GRACE_SECONDS))
    eventually(lambda: server.request("GET", "/api/v1/runs/r1")[0] == 404)
    engine.dispose()
    assert "removed run r1" in server.interrupt()[1]


def test_nothing_is_told_of_it(api: TestClient, make_run: Any, eventually: Any) -> None:
    run = make_run(id="r1", leak_bytes=200 * 2**20)
    run.create(api)
    delete(api, "r1")
    run.send(api, 0, 126)
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["status"] == "confirmed")
    engine = engine_of(api)
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(alerts)).scalar_one() == 0


def test_one_that_may_only_have_lost_its_network_is_not_removed(two: TestClient) -> None:
    engine = engine_of(two)
    delete(two, "r2")
    heard = NOW + GRACE_SECONDS
    with writing(engine) as connection:
        connection.execute(
            update(runs).where(runs.c.id == "r2").values(state="silent", last_seen_at=heard)
        )
    retain(engine, heard + deleting.SILENT_SECONDS - 1)
    assert deleting.find(engine, "r2")
    retain(engine, heard + deleting.SILENT_SECONDS + 1)
    assert two.get("/api/v1/runs/r2").status_code == 404

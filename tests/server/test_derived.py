"""What is derived of a run is computed once for each of its revisions, and never shown for another."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline import analysis
from leakline.analysis.results import to_json
from leakline_server.store import history


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose history was read, by a route or by the examiner."""
    seen: list[str] = []
    load = history.load_history_at

    def counted(engine: Any, run_id: str) -> Any:
        seen.append(run_id)
        return load(engine, run_id)

    monkeypatch.setattr("leakline_server.web.derived.history.load_history_at", counted)
    return seen


def test_new_batches_are_seen_at_once(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    for generation in range(1, 4):
        run.send(api, 3 * (generation - 1), 3)
        past = history.load_history(api.app.state.services.engine, "r1")  # type: ignore[attr-defined]
        for path, derive in (("types", analysis.type_growth), ("stores", analysis.store_fill)):
            shown = api.get(f"/api/v1/runs/r1/{path}").json()["items"]
            assert shown == to_json(derive(past))
        assert api.get("/api/v1/runs/r1/books").json() == to_json(analysis.books(past))


def test_a_run_that_rests_is_read_once(
    api: TestClient, make_run: Any, loads: list[str], eventually: Any
) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 0, 30)
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    api.get("/runs/r1")

    def resting() -> bool:
        loads.clear()
        for path in ("/api/v1/runs/r1/books", "/api/v1/runs/r1/stores", "/runs/r1"):
            assert api.get(path).status_code == 200
        return not loads

    eventually(resting)
    for _ in range(2):
        assert api.get("/api/v1/compare?before=r1&after=r1").status_code == 200
    assert len(loads) <= 2


def test_a_run_that_is_not_there_is_never_kept(api: TestClient) -> None:
    for path in ("/api/v1/runs/nobody/books", "/api/v1/compare?before=nobody&after=nobody"):
        assert api.get(path).status_code == 404

"""The views that are described for people: what they say is what the API says, on both databases."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import inspect, text, update
from starlette.testclient import TestClient
from tests.server.stored import LATER, make_idle

from leakline_server.paths import MIGRATIONS
from leakline_server.store import sealing, sizes, views
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.migrate import downgrade, upgrade
from leakline_server.store.tables import chunks, segments


@pytest.fixture
def engine_of_run(api: TestClient, make_run: Any) -> Engine:
    """Sealed snapshots of 200 numbers, and some that wait."""
    run = make_run()
    run.create(api)
    run.send(api, 0, 200)
    engine: Engine = api.app.state.services.engine  # type: ignore[attr-defined]
    make_idle(engine)
    for key in sealing.due(engine, LATER):
        sealing.seal_one(engine, key, LATER)
    run.send(api, 200, 10)
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    sizes.measure(engine, LATER)
    return engine


def rows(engine: Engine, query: str) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(text(query)).mappings()]


def test_a_run_is_a_row_as_the_api_tells_it(api: TestClient, engine_of_run: Engine) -> None:
    (row,) = rows(engine_of_run, "SELECT * FROM run_list")
    told = api.get("/api/v1/runs/r1").json()
    for name in ("project", "name", "state", "rss_bytes", "peak_bytes"):
        assert row[name] == told[name], name
    for name in ("started_at", "last_seen_at", "ended_at"):
        # To the millisecond: the one rounds, the other cuts.
        times = (datetime.fromisoformat(each[name]).timestamp() for each in (row, told))
        assert next(times) == pytest.approx(next(times), abs=0.0011)
        assert len(row[name]) == len(told[name])
    assert row["run_id"] == "r1"
    assert row["stored_bytes"] == api.get("/api/v1/projects").json()["items"][0]["bytes"]


def test_a_stretch_has_its_times_and_generations(engine_of_run: Engine) -> None:
    (row,) = rows(engine_of_run, "SELECT * FROM segment_list WHERE run_id = 'r1'")
    assert (row["process"], row["first_sequence"], row["last_sequence"]) == ("p1", 0, 199)
    assert (row["snapshots"], row["first_generation"], row["last_generation"]) == (200, 0, 66)
    assert row["first_time"] == "2025-10-09T08:53:20.000Z"
    assert row["last_time"] == "2025-10-09T08:54:59.500Z"


def test_a_series_has_its_numbers(api: TestClient, engine_of_run: Engine) -> None:
    query = "SELECT * FROM series_list WHERE run_id = 'r1' AND series = 'process.rss_bytes'"
    (row,) = rows(engine_of_run, query)
    path = "/api/v1/runs/r1/series?name=process.rss_bytes&x=sequence&to=199&points=2000"
    (item,) = api.get(path).json()["items"]
    assert (row["snapshots"], row["present"]) == (200, 200)
    assert (row["first"], row["last"]) == (item["first"][0], item["last"][-1])
    assert (row["min"], row["max"]) == (min(item["min"]), max(item["max"]))
    everything = rows(engine_of_run, "SELECT series FROM series_list")
    assert [r["series"] for r in everything].count("process.rss_bytes") == 1
    assert len(everything) == len(api.get("/api/v1/runs/r1").json()["series"])


def test_what_was_never_counted_is_null(engine_of_run: Engine) -> None:
    """As rows are that a version before sealed."""
    with writing(engine_of_run) as connection:
        connection.execute(update(chunks).values(present=-1))
        connection.execute(update(segments).values(bytes=0))
    assert {row["present"] for row in rows(engine_of_run, "SELECT present FROM series_list")} == {
        None
    }
    assert rows(engine_of_run, "SELECT bytes FROM segment_list") == [{"bytes": None}]


def test_the_views_are_there_after_every_migration(empty_database_url: str) -> None:
    engine = open_engine(empty_database_url)
    upgrade(engine, MIGRATIONS)
    assert set(inspect(engine).get_view_names()) == set(views.VIEWS)
    downgrade(engine, MIGRATIONS, "0006_several_servers")
    assert inspect(engine).get_view_names() == []
    upgrade(engine, MIGRATIONS)
    for name in views.VIEWS:
        assert rows(engine, f"SELECT * FROM {name}") == []
    engine.dispose()

"""The queries of docs/retention.md: they run on both databases, and their numbers are those of the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text
from starlette.testclient import TestClient
from tests.server.stored import LATER, engine_of, seal

from leakline_server.paths import MIGRATIONS
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.maintenance import storage_sizes
from leakline_server.store.migrate import FORMER_VIEWS, upgrade

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "retention.md"
# The run of the document.
RUN = "5f2c8d1e9a0b4c37"


def queries() -> list[str]:
    section = DOCUMENT.read_text().partition("## Reading the database with SQL")[2]
    block = section.partition("```sql\n")[2].partition("```")[0]
    return [query for query in block.split(";") if query.strip()]


@pytest.fixture
def engine_of_run(api: TestClient, make_run: Any) -> Engine:
    """Sealed snapshots of 200 numbers, and some that wait."""
    run = make_run(id=RUN).begin(api, 200)
    engine = engine_of(api)
    seal(engine)
    run.send(api, 200, 10)
    api.patch(f"/api/v1/runs/{RUN}", json={"state": "finished"})
    storage_sizes.measure(engine, LATER)
    return engine


def rows(engine: Engine, query: str) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(text(query)).mappings()]


def test_the_queries_have_the_numbers_of_the_api(
    api: TestClient, engine_of_run: Engine, eventually: Any
) -> None:
    of_runs, of_series, of_stretches = queries()
    # Else a verdict may come between the query and the answer that it is compared with.
    eventually(lambda: api.get(f"/api/v1/runs/{RUN}").json()["status"] == "confirmed")
    (run,) = rows(engine_of_run, of_runs)
    answer = api.get(f"/api/v1/runs/{RUN}").json()
    for name in ("id", "project", "name", "state", "status", "peak_bytes"):
        assert run[name] == answer[name], name
    assert run["bytes"] == api.get("/api/v1/projects").json()["items"][0]["bytes"]

    found = {row["name"]: row for row in rows(engine_of_run, of_series)}
    assert found
    for name, row in found.items():
        path = f"/api/v1/runs/{RUN}/series?name={name}&x=sequence&to=199&points=2000"
        (item,) = api.get(path).json()["items"]
        assert (row["lowest"], row["highest"]) == (min(item["min"]), max(item["max"])), name
    highest = [row["highest"] for row in found.values()]
    assert highest == sorted(highest, reverse=True)

    (stretch,) = rows(engine_of_run, of_stretches)
    assert stretch == {
        "instance": "p1", "rank": 0, "first_sequence": 0, "last_sequence": 199, "count": 200,
        "first_time": 1_760_000_000.0, "last_time": 1_760_000_099.5, "first_generation": 0, "last_generation": 66,
    }  # fmt: skip


def test_the_views_of_older_versions_are_dropped(empty_database_url: str) -> None:
    engine = open_engine(empty_database_url)
    upgrade(engine, MIGRATIONS, "0015_damaged")
    with writing(engine) as connection:
        for view in FORMER_VIEWS:
            connection.exec_driver_sql(f"CREATE VIEW {view} AS SELECT id FROM runs")
    upgrade(engine, MIGRATIONS)
    assert inspect(engine).get_view_names() == []
    engine.dispose()

"""What grows with runs may be spread over hash partitions by run, on Postgres, and nobody notices but the planner."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event, inspect
from starlette.testclient import TestClient
from tests.server.stored import engine_of

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.store.engine import Engine, open_engine
from leakline_server.store.partitioning import (
    TABLES,
    CannotPartition,
    Partitioned,
    partition,
    parts_of,
)
from leakline_server.store.tables import metadata

# What a page, the API and the analysis read of a run.
READS = (
    "", "/verdict", "/incidents", "/books", "/types", "/stores", "/events", "/census", "/large-objects", "/holders",
    "/snapshots?limit=20", "/series?name=type.app.Env.count&points=50", "/series?name=*&x=sequence&points=20",
    "/series?name=process.rss_bytes&x=time&phase=train&points=1000",
)  # fmt: skip
# Questions that are about all runs: what is to be done in the background, by row of whichever run.
ABOUT_ALL_RUNS = ("GROUP BY", "count(", "sum(", "swept_at", "LIMIT")


pytestmark = [pytest.mark.postgres, pytest.mark.long]


@pytest.fixture
def database_url(postgres_copies: Any, tmp_path: Path) -> Iterator[str]:
    with postgres_copies.new(tmp_path) as url:
        yield url


def filled(api: TestClient, make_run: Any, eventually: Any) -> list[Any]:
    """Runs with sealed and unsealed snapshots and details of every kind."""
    made = [make_run(id=f"r{i}", instance=f"p{i}", leak_bytes=i * 2**20) for i in range(3)]
    for run in made:
        run.create(api)
        run.send(api, 0, 700, size=2)
    sealed = "SELECT count(DISTINCT run_id) FROM segments"
    eventually(lambda: scalar(engine_of(api), sealed) == len(made))
    for run in made:
        api.patch(f"/api/v1/runs/{run.id}", json={"state": "finished"})
    eventually(lambda: is_quiet(api))
    return made


def is_quiet(api: TestClient) -> bool:
    """Everything that was sent is examined, so that nothing changes any more."""
    return bool(scalar(engine_of(api), "SELECT count(*) = 0 FROM runs WHERE revision > examined"))


def scalar(engine: Engine, query: str) -> Any:
    with engine.connect() as connection:
        return connection.exec_driver_sql(query).scalar()


def everything(api: TestClient, made: list[Any]) -> dict[str, Any]:
    found = {}
    for run in made:
        for path in READS:
            answer = api.get(f"/api/v1/runs/{run.id}{path}")
            assert answer.status_code == 200, (path, answer.text)
            found[f"{run.id}{path}"] = answer.json()
    return found


def test_every_read_is_the_same_in_parts_and_in_one_again(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    made = filled(api, make_run, eventually)
    engine, before = engine_of(api), everything(api, made)
    rows = {table: scalar(engine, f"SELECT count(*) FROM {table}") for table in TABLES}
    for parts in (16, 5, 0):
        assert partition(engine, parts) == [Partitioned(t, parts, rows[t]) for t in TABLES]
        assert parts_of(engine) == parts
        assert everything(api, made) == before
        # Idempotent and durable as before: sent again it is the same, and what is new is taken.
        late = make_run(id="r1", instance=f"late{parts}", rank=1)
        assert late.send(api, 0, 10) == 10
        assert late.send(api, 0, 10) == 0
        assert made[0].send(api, 0, 700) == 0
        eventually(lambda: is_quiet(api))
        before = everything(api, made)
        rows = {table: scalar(engine, f"SELECT count(*) FROM {table}") for table in TABLES}
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_the_tables_keep_their_keys_indexes_and_views(engine: Engine) -> None:
    def shape() -> Any:
        found = inspect(engine)
        return {
            table: (
                found.get_pk_constraint(table)["name"],
                found.get_pk_constraint(table)["constrained_columns"],
                sorted(
                    (i["name"], tuple(i["column_names"])) for i in found.get_indexes(table)
                ),
                [(c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(table)],
            )
            for table in TABLES
        }  # fmt: skip

    plain, views = shape(), set(inspect(engine).get_view_names())
    assert partition(engine, 4)
    assert shape() == plain
    assert set(inspect(engine).get_view_names()) == views
    assert {f"chunks_p{i}" for i in range(4)} <= set(inspect(engine).get_table_names())
    partition(engine, 0)
    assert shape() == plain
    assert not [name for name in inspect(engine).get_table_names() if "_p" in name or "old" in name]


def test_every_question_of_a_run_touches_one_part(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    made = filled(api, make_run, eventually)
    engine = engine_of(api)
    partition(engine, 16)
    asked: dict[str, tuple[str, Any]] = {}

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if any(table in statement for table in TABLES) and not statement.startswith("LOCK"):
            first = parameters[0] if isinstance(parameters, list) else parameters
            asked.setdefault(statement, (statement, first))

    event.listen(engine, "before_cursor_execute", note)
    everything(api, made)
    more = make_run(id="r2", instance="late", rank=2)
    assert more.send(api, 0, 650, size=2) == 650
    eventually(lambda: scalar(engine, "SELECT count(*) FROM segments WHERE run_id = 'r2'") > 1)
    api.get("/runs/r2", headers={"accept": "text/html"})
    event.remove(engine, "before_cursor_execute", note)
    # Those of `filled` and of this test itself name no run, or count.
    of_runs = [
        found for found in asked.values()
        if not any(sign in found[0] for sign in ABOUT_ALL_RUNS) or "run_id = %(" in found[0]
    ]  # fmt: skip
    assert len(of_runs) > 10
    wide = {}
    with engine.connect() as connection:
        for statement, parameters in of_runs:
            # As the planner sees it with the values, which is how it is asked.
            plan = connection.exec_driver_sql(
                f"EXPLAIN (FORMAT JSON, COSTS OFF) {statement}", parameters
            ).scalar_one()
            touched = set(_relations(plan))
            for table in TABLES:
                parts = {name for name in touched if name.startswith(f"{table}_p")}
                if len(parts) > 1:
                    wide[statement] = parts
        connection.rollback()
    assert wide == {}


def _relations(plan: Any) -> Iterator[str]:
    if isinstance(plan, dict):
        if "Relation Name" in plan:
            yield plan["Relation Name"]
        for value in plan.values():
            yield from _relations(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from _relations(value)


@pytest.mark.flow
def test_a_server_goes_on_while_its_tables_are_made_anew(
    serve: Any, make_run: Any, database_url: str
) -> None:
    server = serve(arguments=["--database-url", database_url])
    runs = [make_run(id=f"w{i}", instance=f"i{i}") for i in range(3)]
    sent = dict.fromkeys((run.id for run in runs), 0)
    stop, failures = threading.Event(), []

    def write(run: Any) -> None:
        assert server.request("POST", "/api/v1/runs", run.header)[0] == 201
        body = None
        while not stop.is_set() or sent[run.id] < 600:
            first = sent[run.id]
            body = body or json.dumps(run.wire(first, 20)).encode()
            status, answer = server.request("POST", f"/api/v1/runs/{run.id}/batches", body)
            if status == 200:
                sent[run.id], body = first + 20, None
            elif status not in (429, 503):
                failures.append((status, answer))
                return

    threads = [threading.Thread(target=write, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    engine = open_engine(database_url)
    for parts in (8, 0, 4):
        partition(engine, parts)
    stop.set()
    for thread in threads:
        thread.join(60)
    engine.dispose()
    assert failures == []
    for run in runs:
        path = f"/api/v1/runs/{run.id}/series?name=process.rss_bytes&x=sequence&points=20000"
        (item,) = server.request("GET", path)[1]["items"]
        assert item["x"] == list(range(sent[run.id]))


def test_a_number_of_parts_that_makes_no_sense_is_a_sentence(engine: Engine) -> None:
    for parts in (1, -4, 5_000):
        with pytest.raises(CannotPartition, match=f"{parts} parts: use 2 to 1024, or 0"):
            partition(engine, parts)
    assert parts_of(engine) == 0


def test_what_goes_wrong_half_way_leaves_everything_as_it_was(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    made = filled(api, make_run, eventually)
    engine, before = engine_of(api), everything(api, made)
    with engine.begin() as connection:
        # Somebody's own view, under which the table cannot go.
        connection.exec_driver_sql("CREATE VIEW of_somebody AS SELECT * FROM details")
    with pytest.raises(Exception, match="of_somebody"):
        partition(engine, 8)
    assert parts_of(engine) == 0
    assert everything(api, made) == before
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP VIEW of_somebody")


def test_another_database_says_that_it_has_none(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(CannotPartition, match="only Postgres"):
        partition(engine, 8)
    assert parts_of(engine) == 0
    engine.dispose()


def test_an_application_starts_on_tables_in_parts(engine: Engine, database_url: str) -> None:
    partition(engine, 3)
    with TestClient(create_app(Config(database_url=database_url)), base_url="http://x") as again:
        assert again.get("/healthz").status_code in (200, 403)
    assert parts_of(engine) == 3

"""An SQLite file becomes smaller when what was in it is gone; one of before is made able to."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.paths import MIGRATIONS
from leakline_server.store import disk, removal
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.migrate import upgrade
from leakline_server.store.tables import batches, runs

MIB = 2**20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "leakline.db"


def fill(engine: Engine, run_id: str, mib: int) -> None:
    """A run that ended, with so much in it."""
    with writing(engine) as connection:
        connection.execute(
            insert(runs).values(
                id=run_id, project="erl", name=run_id, unit="generation", state="finished", started_at=1.0,
                created_at=1.0, last_seen_at=1.0,
            )
        )  # fmt: skip
        of = {"run_id": run_id, "process_id": 0, "count": 1, "revision": 1, "received_at": 1.0}
        rows = [{**of, "first_sequence": i, "body": os.urandom(MIB // 16)} for i in range(mib * 16)]
        connection.execute(insert(batches), rows)


def size(file: Path) -> int:
    """Of the file, when what was written has reached it."""
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file.stat().st_size


def test_what_a_removed_run_took_is_given_back_in_small_steps(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "SLACK_BYTES", MIB)
    engine = open_engine(f"sqlite:///{file}")
    upgrade(engine, MIGRATIONS)
    fill(engine, "old", 8)
    fill(engine, "new", 2)
    assert not disk.give_back(engine)
    before = size(file)
    removal.remove(engine, "old", 1.0)
    while removal.sweep(engine, 1.0):
        continue
    free = disk.space(engine).free
    assert free > 8 * MIB
    steps = 0
    while disk.give_back(engine):
        assert 0 < free - disk.space(engine).free <= disk.PAGES_PER_STEP * 4096
        free = disk.space(engine).free
        steps += 1
    assert steps > 20
    assert free <= MIB
    assert before > 10 * MIB
    assert size(file) < 4 * MIB
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
        assert list(connection.scalars(select(runs.c.id))) == ["new"]
    engine.dispose()


def old_file(file: Path, mib: int) -> None:
    """As a version made it that knew nothing of this."""
    engine = open_engine(f"sqlite:///{file}")
    upgrade(engine, MIGRATIONS)
    fill(engine, "r", mib)
    engine.dispose()
    with sqlite3.connect(file, isolation_level=None) as connection:
        connection.execute("PRAGMA auto_vacuum=NONE")
        connection.execute("VACUUM")


def test_a_small_file_of_before_is_made_able_to_at_the_start(file: Path) -> None:
    old_file(file, 1)
    engine = open_engine(f"sqlite:///{file}")
    assert not disk.space(engine).returns
    engine.dispose()
    config = Config(database_url=f"sqlite:///{file}")
    with TestClient(create_app(config), base_url="http://127.0.0.1") as api:
        assert disk.space(api.app.state.services.engine).returns  # type: ignore[attr-defined]
        assert [run["id"] for run in api.get("/api/v1/runs").json()["items"]] == ["r"]


def test_a_large_one_is_left_to_people_with_a_sentence(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old_file(file, 1)
    monkeypatch.setattr(disk, "REWRITTEN_AT_START_BYTES", MIB // 2)
    with caplog.at_level(logging.WARNING):
        create_app(Config(database_url=f"sqlite:///{file}"))
    assert "leakline db rewrite" in caplog.text


def test_one_that_somebody_reads_is_served_all_the_same(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_file(file, 1)
    monkeypatch.setattr(disk, "_WAIT_MILLISECONDS", 10)
    reader = sqlite3.connect(file, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM runs").fetchone()
    writer = sqlite3.connect(file, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    engine = open_engine(f"sqlite:///{file}")
    advice = disk.prepare(engine)
    assert advice is not None and "leakline db rewrite" in advice
    writer.close()
    reader.close()
    assert disk.prepare(engine) is None
    assert disk.space(engine).returns
    engine.dispose()


def test_the_space_of_the_database_is_told(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 0, 300)
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    engine = api.app.state.services.engine  # type: ignore[attr-defined]
    from leakline_server.store import sizes

    sizes.measure(engine, 4e9)
    (project,) = api.get("/api/v1/projects").json()["items"]
    assert (project["name"], project["runs"]) == ("erl", 1)
    assert 1_000 < project["bytes"] < 100_000
    told = {
        line.split(" ")[0]: float(line.split(" ")[-1])
        for line in api.get("/metrics").text.splitlines()
        if not line.startswith("#")
    }
    assert told['leakline_project_bytes{project="erl"}'] == project["bytes"]
    assert told["leakline_database_bytes"] > project["bytes"]
    assert told["leakline_removals_waiting"] == 0

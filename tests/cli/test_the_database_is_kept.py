"""`leakline db`: how large it is, what may go, a run as a file; with and without a server beside it."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.paths import MIGRATIONS
from leakline_server.store.engine import open_engine
from leakline_server.store.migrate import current, downgrade, revisions

OLD = 1_600_000_000.0


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with an old run, one that is tagged, and one that is live."""
    monkeypatch.chdir(tmp_path)
    address = f"sqlite:///{tmp_path}/there/leakline.db"
    with TestClient(create_app(Config(database_url=address)), base_url="http://127.0.0.1") as api:
        for name, project in (("old", "erl"), ("kept", "erl"), ("live", "rl")):
            made = {"id": name, "project": project, "name": f"the {name} one", "started_at": OLD}
            assert api.post("/api/v1/runs", json=made).status_code == 201
            rows = [{"time": OLD + i, "series": {"gauge.x": i / 2}} for i in range(5)]
            batch = {
                "version": 1,
                "process": {"instance": "p"},
                "first_sequence": 1,
                "snapshots": rows,
            }
            assert api.post(f"/api/v1/runs/{name}/batches", json=batch).status_code == 200
        for name, tags in (("old", []), ("kept", ["keep"])):
            api.patch(f"/api/v1/runs/{name}", json={"state": "finished", "tags": tags})
    with sqlite3.connect(tmp_path / "there" / "leakline.db") as connection:
        connection.execute("UPDATE runs SET last_seen_at = ? WHERE id != 'live'", [OLD])
    monkeypatch.setenv("LEAKLINE_DATABASE_URL", address)
    return address


def runs_of(url: str) -> list[str]:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM runs ORDER BY id")]


def test_the_size_is_there_for_programs(leakline: Any, url: str) -> None:
    told = json.loads(leakline("db", "size", "--json", "--database-url", url).output)
    assert told["bytes"] > 0
    assert {(item["project"], item["runs"]) for item in told["items"]} == {("erl", 2), ("rl", 1)}


def test_the_sizes_of_the_database_and_its_projects(leakline: Any, url: str) -> None:
    said = leakline("db", "size")
    assert said.status == 0
    first, erl, rl = said.output.splitlines()
    assert first.startswith("sqlite:///") and "iB" in first
    assert erl.split()[:3] == ["erl", "2", "runs"]
    assert rl.split()[:3] == ["rl", "1", "runs"]
    assert erl.split()[3] != "0"


def test_a_dry_run_says_what_would_go_and_leaves_it(leakline: Any, url: str) -> None:
    said = leakline("db", "retain", "--dry-run", "--keep-days", "30")
    assert said.status == 0
    assert "remove old  erl/the old one" in said.output
    assert "would go: 1 runs" in said.output
    assert "kept" not in said.output and "live" not in said.output
    assert runs_of(url) == ["kept", "live", "old"]


def test_what_is_too_old_is_removed(
    leakline: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_KEEP_DAYS", "forever,erl=30")
    said = leakline("db", "retain")
    assert (said.status, said.errors) == (0, "")
    assert "removed 1 runs" in said.output
    assert runs_of(url) == ["kept", "live"]
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        assert connection.execute(
            "SELECT count(*) FROM batches WHERE run_id = 'old'"
        ).fetchone() == (0,)


def test_a_project_that_stays_too_large_is_named(leakline: Any, url: str) -> None:
    said = leakline("db", "retain", "--dry-run", "--keep-bytes", "1 B")
    assert "remove old" in said.output
    assert "rl stays at" in said.output


def test_without_limits_nothing_goes_and_a_sentence_says_so(leakline: Any, url: str) -> None:
    said = leakline("db", "retain")
    assert said.status == 1
    assert "LEAKLINE_KEEP_DAYS" in said.errors
    assert leakline("db", "retain", "--keep-days", "soon").status == 2


def test_a_run_as_a_file(leakline: Any, url: str, tmp_path: Path) -> None:
    out = tmp_path / "run.csv"
    said = leakline("db", "export", "old", "--format", "csv", "--out", str(out))
    assert (said.status, said.output, said.errors) == (0, "", "")
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["gauge.x"] for row in rows] == ["0.0", "0.5", "1.0", "1.5", "2.0"]
    assert [path.name for path in tmp_path.iterdir() if "run.csv" in path.name] == ["run.csv"]


def test_without_a_file_it_goes_to_standard_output(leakline: Any, url: str) -> None:
    found = json.loads(leakline("db", "export", "old").output)
    assert [row["samples"] for row in found["snapshots"]] == [{"gauge.x": i / 2} for i in range(5)]


@pytest.mark.parametrize(
    "arguments", [("export", "nobody"), ("size", "--database-url", "sqlite:///nowhere.db")]
)
def test_what_is_not_there_is_told_in_one_line(
    arguments: tuple[str, ...], leakline: Any, url: str, tmp_path: Path
) -> None:
    said = leakline("db", *arguments)
    assert said.status == 1
    assert len(said.errors.splitlines()) == 1
    assert "there is no" in said.errors
    assert not (tmp_path / "nowhere.db").exists()


@pytest.mark.parametrize(
    "arguments", [("size", "--database-url", "nonsense"), ("retain", "--keep-days", "few")]
)
def test_a_wrong_argument_is_told_by_its_name_and_not_as_a_variable(
    arguments: tuple[str, ...], leakline: Any, url: str
) -> None:
    said = leakline("db", *arguments)
    assert said.status == 2
    assert f"argument {arguments[1]}" in said.errors
    assert "LEAKLINE_" not in said.errors


def test_an_sqlite_file_is_written_anew_and_not_partitioned(leakline: Any, url: str) -> None:
    said = leakline("db", "rewrite")
    assert said.status == 0
    assert "before" in said.output
    assert runs_of(url) == ["kept", "live", "old"]
    said = leakline("db", "partition", "--parts", "4")
    assert (said.status, "Postgres" in said.errors) == (1, True)


@pytest.mark.parametrize("action", [("size",), ("retain", "--dry-run", "--keep-days", "30")])
def test_the_database_of_an_older_server_is_left_as_it_is(
    action: tuple[str, ...], leakline: Any, url: str
) -> None:
    """It may be running, and could not write any more."""
    engine = open_engine(url)
    before = revisions(MIGRATIONS)[-2]
    downgrade(engine, MIGRATIONS, before)
    said = leakline("db", *action)
    assert said.status == 1
    assert len(said.errors.splitlines()) == 1
    assert before in said.errors and "leakline serve" in said.errors
    assert current(engine) == before
    engine.dispose()

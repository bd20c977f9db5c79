"""`leakline db`: how large it is, what may go, a run as a file; `leakline token` and `leakline password`."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.credentials import digest_of, is_password
from leakline_server.paths import MIGRATIONS
from leakline_server.store import logins, tokens
from leakline_server.store.engine import open_engine
from leakline_server.store.migrate import current, downgrade, revisions, upgrade

OLD = 1_600_000_000.0


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the commands look for the database, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    address = f"sqlite:///{tmp_path}/there/leakline.db"
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("LEAKLINE_DATABASE_URL", address)
    return address


@pytest.fixture
def filled(url: str) -> str:
    """A database with an old run, one that is tagged, and one that is live."""
    with TestClient(create_app(Config(database_url=url)), base_url="http://127.0.0.1") as api:
        for name, project in (("old", "erl"), ("kept", "erl"), ("live", "rl")):
            made = {"id": name, "project": project, "name": f"the {name} one", "started_at": OLD}
            assert api.post("/api/v1/runs", json=made).status_code == 201
            rows = [{"time": OLD + i, "series": {"gauge.x": i / 2}} for i in range(5)]
            process = {"process": {"instance": "p"}, "first_sequence": 1}
            batch = {"version": 1, **process, "snapshots": rows}
            assert api.post(f"/api/v1/runs/{name}/batches", json=batch).status_code == 200
        for name, tags in (("old", []), ("kept", ["keep"])):
            api.patch(f"/api/v1/runs/{name}", json={"state": "finished", "tags": tags})
    select(url, f"UPDATE runs SET last_seen_at = {OLD} WHERE id != 'live'")
    return url


def select(url: str, query: str) -> list[Any]:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        return [row[0] for row in connection.execute(query)]


def runs_of(url: str) -> list[str]:
    return select(url, "SELECT id FROM runs ORDER BY id")


def test_the_sizes_of_the_database_and_its_projects(leakline: Any, filled: str, url: str) -> None:
    said = leakline("db", "size")
    assert said.status == 0
    first, erl, rl = said.output.splitlines()
    assert first.startswith("sqlite:///") and "iB" in first
    assert erl.split()[:3] == ["erl", "2", "runs"]
    assert rl.split()[:3] == ["rl", "1", "runs"]
    assert erl.split()[3] != "0"
    told = json.loads(leakline("db", "size", "--json", "--database-url", url).output)
    assert told["bytes"] > 0
    assert {(item["project"], item["runs"]) for item in told["items"]} == {("erl", 2), ("rl", 1)}


def test_a_dry_run_says_what_would_go_and_leaves_it(leakline: Any, filled: str) -> None:
    said = leakline("db", "retain", "--dry-run", "--keep-days", "30")
    assert said.status == 0
    assert "remove old  erl/the old one" in said.output
    assert "would go: 1 run " in said.output
    assert "kept" not in said.output and "live" not in said.output
    assert runs_of(filled) == ["kept", "live", "old"]


def test_what_is_too_old_is_removed(
    leakline: Any, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_KEEP_DAYS", "forever,erl=30")
    said = leakline("db", "retain")
    assert (said.status, said.errors) == (0, "")
    assert "removed 1 run," in said.output
    assert runs_of(filled) == ["kept", "live"]
    assert select(filled, "SELECT count(*) FROM batches WHERE run_id = 'old'") == [0]


def test_a_project_that_stays_too_large_is_named(leakline: Any, filled: str) -> None:
    said = leakline("db", "retain", "--dry-run", "--keep-bytes", "1 B")
    assert "remove old" in said.output
    assert "rl stays at" in said.output


def test_without_limits_nothing_goes_and_a_sentence_says_so(leakline: Any, filled: str) -> None:
    said = leakline("db", "retain")
    assert said.status == 1
    assert "LEAKLINE_KEEP_DAYS" in said.errors


def test_a_run_as_a_file(leakline: Any, filled: str, tmp_path: Path) -> None:
    out = tmp_path / "run.csv"
    said = leakline("db", "export", "old", "--format", "csv", "--out", str(out))
    assert (said.status, said.output, said.errors) == (0, "", "")
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["gauge.x"] for row in rows] == ["0.0", "0.5", "1.0", "1.5", "2.0"]
    assert [path.name for path in tmp_path.iterdir() if "run.csv" in path.name] == ["run.csv"]
    # Without a file it goes to standard output.
    found = json.loads(leakline("db", "export", "old").output)
    assert [row["samples"] for row in found["snapshots"]] == [{"gauge.x": i / 2} for i in range(5)]


@pytest.mark.parametrize("arguments", ["export nobody", "size --database-url sqlite:///nowhere.db"])
def test_what_is_not_there_is_told_in_one_line(
    leakline: Any, filled: str, tmp_path: Path, arguments: str
) -> None:
    said = leakline("db", *arguments.split())
    assert said.status == 1
    assert "there is no" in said.error
    assert not (tmp_path / "nowhere.db").exists()


@pytest.mark.parametrize("arguments", ["size --database-url nonsense", "retain --keep-days few"])
def test_a_wrong_argument_is_told_by_its_name_and_not_as_a_variable(
    leakline: Any, arguments: str
) -> None:
    said = leakline("db", *arguments.split())
    assert said.status == 2
    assert f"argument {arguments.split()[1]}" in said.errors
    assert "LEAKLINE_" not in said.errors


def test_an_sqlite_file_is_written_anew_and_not_partitioned(leakline: Any, filled: str) -> None:
    said = leakline("db", "rewrite")
    assert said.status == 0
    assert "before" in said.output
    assert runs_of(filled) == ["kept", "live", "old"]
    said = leakline("db", "partition", "--parts", "4")
    assert (said.status, "Postgres" in said.errors) == (1, True)


@pytest.mark.parametrize(
    "command", ["db size", "db retain --dry-run --keep-days 30", "token create"]
)
def test_the_database_of_an_older_server_is_left_as_it_is(
    leakline: Any, url: str, command: str
) -> None:
    """It may be running, and could not write any more."""
    engine = open_engine(url)
    upgrade(engine, MIGRATIONS)
    before = revisions(MIGRATIONS)[-2]
    downgrade(engine, MIGRATIONS, before)
    said = leakline(*command.split())
    assert said.status == 1
    assert before in said.error and "leakline serve" in said.error
    assert current(engine) == before
    assert not logins.can_sign_in(engine, 0.0)
    engine.dispose()


# -- tokens and the password -------------------------------------------------------------------------------


def stored(address: str, secret: str) -> Any:
    engine = open_engine(address)
    found = tokens.find(engine, digest_of(secret))
    engine.dispose()
    return found


@pytest.mark.parametrize("wrong", ["soon", "-1d", "0", "11y", "nan"])
def test_an_expiry_that_cannot_be_is_refused(leakline: Any, wrong: str) -> None:
    said = leakline("token", "create", f"--expires={wrong}")
    assert said.status in (1, 2)
    assert said.output == "" and said.error


@pytest.mark.parametrize("wrong", ["--scope read --project erl", "--scope admin --browser"])
def test_only_a_token_that_adds_has_a_project_and_goes_into_a_page(
    leakline: Any, wrong: str
) -> None:
    assert leakline("token", "create", *wrong.split()).status == 1


def test_the_token_alone_is_on_standard_output(
    leakline: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = leakline("token", "create", "--project", "erl")
    assert said.status == 0
    assert re.fullmatch(r"leakline_ingest_[\w-]{43}\n", said.output)
    assert "adds to project erl" in said.errors and "only this once" in said.errors
    found = stored(url, said.output.strip())
    assert (found.scope, found.project, found.browser) == ("ingest", "erl", False)
    assert found.expires_at == pytest.approx(time.time() + 365 * 86_400, abs=60)
    monkeypatch.setenv("LEAKLINE_PROJECT", "rl")
    assert "adds to project rl" in leakline("token", "create").errors


def test_a_token_is_listed_without_itself_and_revoked(leakline: Any, url: str) -> None:
    more = ("--scope", "admin", "--name", "me", "--expires", "12h")
    made = json.loads(leakline("token", "create", *more, "--json").output)
    said = leakline("token", "list")
    assert "me" in said.output and made["begins"] in said.output and "not yet" in said.output
    assert made["token"] not in said.output
    (listed,) = json.loads(leakline("token", "list", "--json").output)["items"]
    assert listed == {name: value for name, value in made.items() if name != "token"}
    assert leakline("token", "revoke", str(made["id"])).status == 0
    assert stored(url, made["token"]).state_at(time.time()) == "revoked"
    nobody = leakline("token", "revoke", "999")
    assert (nobody.status, nobody.output) == (1, "")
    assert "there is no token 999" in nobody.errors


def test_a_password_is_read_set_and_removed(
    leakline: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    refused = leakline("password", "--stdin")
    assert refused.status == 2
    assert "8 characters" in refused.errors and "short" not in refused.errors
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse\n"))
    assert leakline("password", "--stdin").status == 0
    engine = open_engine(url)
    hashed = logins.password_hash(engine)
    assert hashed is not None and hashed.startswith("$argon2id$")
    assert is_password(hashed, "correct horse")
    assert logins.can_sign_in(engine, 0.0)
    assert "removed" in leakline("password", "--remove").output
    assert "there was no password" in leakline("password", "--remove").output
    assert not logins.can_sign_in(engine, 0.0)
    engine.dispose()


def test_without_a_terminal_it_asks_for_none(
    leakline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    said = leakline("password")
    assert said.status == 1
    assert "--stdin" in said.errors

"""Commands on the database: `leakline token`, `leakline password`, and wrong arguments of `leakline db`."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from leakline_server.paths import MIGRATIONS
from leakline_server.security.credentials import digest_of, is_password
from leakline_server.store import access
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


def select(url: str, query: str) -> list[Any]:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        return [row[0] for row in connection.execute(query)]


def test_what_is_not_there_is_told_in_one_line(leakline: Any, tmp_path: Path) -> None:
    said = leakline("token", "list", "--database-url", "sqlite:///nowhere.db")
    assert said.status == 1
    assert "there is no" in said.error
    assert not (tmp_path / "nowhere.db").exists()


def test_a_wrong_argument_is_told_by_its_name_and_not_as_a_variable(leakline: Any) -> None:
    said = leakline("db", "upgrade", "--database-url", "nonsense")
    assert said.status == 2
    assert "argument --database-url" in said.errors
    assert "LEAKLINE_" not in said.errors


def test_the_database_of_an_older_server_is_left_as_it_is(leakline: Any, url: str) -> None:
    """It may be running, and could not write any more."""
    engine = open_engine(url)
    upgrade(engine, MIGRATIONS)
    before = revisions(MIGRATIONS)[-2]
    downgrade(engine, MIGRATIONS, before)
    said = leakline("token", "create")
    assert said.status == 1
    assert before in said.error and "leakline serve" in said.error
    assert current(engine) == before
    assert not access.can_sign_in(engine, 0.0)
    engine.dispose()


# -- tokens and the password -------------------------------------------------------------------------------


def stored(address: str, secret: str) -> Any:
    engine = open_engine(address)
    found = access.find_token(engine, digest_of(secret))
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
    hashed = access.password_hash(engine)
    assert hashed is not None and hashed.startswith("$argon2id$")
    assert is_password(hashed, "correct horse")
    assert access.can_sign_in(engine, 0.0)
    assert "removed" in leakline("password", "--remove").output
    assert "there was no password" in leakline("password", "--remove").output
    assert not access.can_sign_in(engine, 0.0)
    engine.dispose()


def test_without_a_terminal_it_asks_for_none(
    leakline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    said = leakline("password")
    assert said.status == 1
    assert "--stdin" in said.errors

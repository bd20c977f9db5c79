"""A database that a test has changed is not given to the next."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy
from tests.server.databases import SHAPE, Copies

CHANGES = {
    "a type": "ALTER TABLE chunks ALTER COLUMN width TYPE bigint",
    "an index": "CREATE INDEX another ON runs (name)",
    "a default": "ALTER TABLE deliveries ALTER COLUMN state SET DEFAULT 'x'",
    "a row": "INSERT INTO series (run_id, id, name) VALUES ('r', 1, 'a')",
}


def _of(url: str, statement: str, question: str = SHAPE) -> object:
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
        found: object = connection.exec_driver_sql(question).scalar()
    engine.dispose()
    return found


@pytest.mark.postgres
@pytest.mark.parametrize("change", CHANGES)
def test_the_next_database_is_as_new(postgres_copies: Copies, tmp_path: Path, change: str) -> None:
    rows = "SELECT count(*) FROM series"
    with postgres_copies.new(tmp_path) as url:
        new = _of(url, "SET session_replication_role = replica")
        changed = _of(url, "SET session_replication_role = replica;" + CHANGES[change])
        assert (changed != new) == (change != "a row")
    with postgres_copies.new(tmp_path) as url:
        assert _of(url, "SELECT 1") == new
        assert _of(url, "SELECT 1", rows) == 0

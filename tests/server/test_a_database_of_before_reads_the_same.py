"""A database that an older server wrote is upgraded, answers as it did, and is written on.

`schema_0004.db` and `schema_0004.json` were made with the server of commit 37b4b85, the last with that schema: three
runs with two ranks, two attempts, a gap, a late batch, every kind of detail, a sealed stretch and alerts that never
arrived. The JSON holds the batches as they were sent, and what was then answered to each of the questions.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, insert, inspect, select
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.paths import MIGRATIONS
from leakline_server.store.engine import open_engine, writing
from leakline_server.store.migrate import current, upgrade

DATA = Path(__file__).resolve().parents[1] / "data"
BEFORE = "0004_ends_of_processes"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress((DATA / "schema_0004.json.xz").read_bytes()))
    return found


@pytest.fixture
def old_database_url(empty_database_url: str, tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "of_before.db"
    file.write_bytes(lzma.decompress((DATA / "schema_0004.db.xz").read_bytes()))
    if empty_database_url.startswith("sqlite"):
        yield f"sqlite:///{file}"
        return
    copy_rows(f"sqlite:///{file}", empty_database_url)
    yield empty_database_url


def copy_rows(source_url: str, target_url: str) -> None:
    source, target = open_engine(source_url), open_engine(target_url)
    upgrade(target, MIGRATIONS, BEFORE)
    tables = MetaData()
    tables.reflect(target)
    with source.connect() as reading, writing(target) as connection:
        for table in tables.sorted_tables:
            rows = [dict(row._mapping) for row in reading.execute(select(table))]
            if rows and table.name != "alembic_version":
                connection.execute(insert(table), rows)
            if inspect(connection).get_columns(table.name)[0]["autoincrement"]:
                # A server that wrote the rows would have drawn their numbers.
                drawn = f"pg_get_serial_sequence('{table.name}', 'id')"
                connection.exec_driver_sql(f"SELECT setval({drawn}, max(id)) FROM {table.name}")
    source.dispose()
    target.dispose()


def asked(api: TestClient, path: str) -> Any:
    """The answer; what is given page by page as one."""
    answer = api.get(path).json()
    if "/snapshots?" not in path:
        return answer
    rows = answer["items"]
    while answer["next"]:
        answer = api.get(f"{path}&cursor={answer['next']}").json()
        rows += answer["items"]
    return {"items": rows}


def comparable(path: str, answer: Any) -> Any:
    """Of objects that are equally large, or as many, none comes first."""
    if path.endswith(("/large-objects", "/holders")):
        answer["items"].sort(key=lambda row: json.dumps(row, sort_keys=True))
    return answer


def missing(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """What was answered before and is not now; a field that came since is none of it."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name, value in before.items():
            if name not in now:
                yield f"{where}.{name} is gone"
            else:
                yield from missing(value, now[name], f"{where}.{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, value in enumerate(before):
            yield from missing(value, now[number], f"{where}[{number}]")
    elif before != now:
        yield f"{where}: {str(before)[:80]} is {str(now)[:80]}"


def test_everything_reads_as_it_did(old_database_url: str, recorded: dict[str, Any]) -> None:
    engine = open_engine(old_database_url)
    assert current(engine) == BEFORE
    engine.dispose()
    # Its workers never run, so that nothing changes meanwhile.
    api = TestClient(create_app(Config(database_url=old_database_url)), base_url="http://127.0.0.1")
    for path, before in recorded["answers"].items():
        now = comparable(path, asked(api, path))
        assert list(missing(comparable(path, before), now)) == [], path


def test_what_is_there_counts_as_there_and_the_rest_is_written_on(
    old_database_url: str, recorded: dict[str, Any], make_run: Any
) -> None:
    config = Config(database_url=old_database_url)
    with TestClient(create_app(config), base_url="http://127.0.0.1") as api:
        for path, batch in recorded["sent"]:
            answer = api.post(path, json=batch)
            assert (answer.status_code, answer.json()["accepted"]) == (200, 0), answer.text
        for instance, first in (("p1", 600), ("p4", 0)):
            later = make_run(id="grows", instance=instance, extra={"gauge.new": lambda s: s})
            assert later.send(api, first, 30) == 30
        rows = asked(api, "/api/v1/runs/grows/snapshots?limit=200&name=gauge.new&name=custom.huge")
        newest = {row["process"]: row["samples"] for row in reversed(rows["items"])}
        assert newest["p1"] == {"gauge.new": 629}
        assert newest["p4"] == {"gauge.new": 29}
        before = recorded["answers"]["/api/v1/runs/grows/snapshots?limit=200&name=*"]["items"]
        assert len(rows["items"]) == len(before) + 60

"""A database that an older server wrote is upgraded, answers as it did, and is written on.

Each `schema_NNNN.db` and `schema_NNNN.json` was made with the server of the commit named in `RECORDED`, the last with
that schema, by `tests/data/record_schema.py`: three runs with two ranks, two attempts, a gap, a late batch, every kind
of detail, a sealed stretch and alerts that never arrived. The JSON holds what was then answered to each of the
questions; that of 0004 also the batches as they were sent to all of them.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, event, insert, inspect, select
from starlette.testclient import TestClient
from tests.server.stored import damage_all_of

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.limits import MAX_SKEW_SECONDS
from leakline_server.paths import MIGRATIONS
from leakline_server.store.engine import open_engine, writing
from leakline_server.store.migrate import current, downgrade, revisions, upgrade

DATA = Path(__file__).resolve().parents[1] / "data"
# Schema -> the commit whose server wrote it.
RECORDED = {
    "0004_ends_of_processes": "37b4b85",
    "0009_deleted_runs": "22fae87",
    "0010_strands": "44f7bc0",
    "0012_access": "5638250",
    "0013_accepted_counts": "15f396f",
    "0014_clocks_not_known": "77caa32",
    "0015_damaged": "f684e09",
    "0016_formats_by_apprise": "f646741",
    "0017_assertions": "801a53f",
}
# Released together with the one after it: no server wrote it.
NEVER_THE_LAST = {"0011_intake", "0018_no_strands"}
# Those that are made by going back from 0004, below, and from today, in test_migrations.py.
GONE_BACK_TO = {
    "0001_runs_and_samples",
    "0002_incidents_and_alerts",
    "0003_acknowledgements_and_rules",
    "0005_keys_begin_with_the_run",
    "0006_several_servers",
    "0007_removals_and_sizes",
    "0008_segments_to_compact",
}


def unpacked(schema: str, kind: str) -> bytes:
    return lzma.decompress((DATA / f"schema_{schema[:4]}.{kind}.xz").read_bytes())


@pytest.fixture(params=RECORDED, ids=lambda schema: schema[:4])
def schema(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def answers(schema: str) -> dict[str, Any]:
    return dict(json.loads(unpacked(schema, "json"))["answers"])


@pytest.fixture(scope="module")
def sent() -> list[tuple[str, Any]]:
    return list(json.loads(unpacked("0004", "json"))["sent"])


@pytest.fixture
def old_database_url(schema: str, empty_database_url: str, tmp_path: Path) -> str:
    file = tmp_path / "of_before.db"
    file.write_bytes(unpacked(schema, "db"))
    if empty_database_url.startswith("sqlite"):
        return f"sqlite:///{file}"
    copy_rows(f"sqlite:///{file}", empty_database_url, schema)
    return empty_database_url


def copy_rows(source_url: str, target_url: str, schema: str) -> None:
    source, target = open_engine(source_url), open_engine(target_url)
    upgrade(target, MIGRATIONS, schema)
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
    """Of objects that are equally large, or as many, none comes first; what was checked is one list since."""
    if "fixes" in answer:
        checked = [row for name in ("bands", "budgets", "fixes") for row in answer.pop(name, ())]
        answer["assertions"] = [{"sentence": row["sentence"]} for row in checked]
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
    elif where.endswith(".clock_skew_seconds") and (before or 0) > MAX_SKEW_SECONDS:
        # The age of what was uploaded, which they took for a clock that is behind.
        if now is not None:
            yield f"{where}: {before} is {now}, and not unknown"
    elif folded(before) != folded(now):
        yield f"{where}: {str(before)[:80]} is {str(now)[:80]}"


def folded(value: Any) -> Any:
    """Sentences begin with a capital since."""
    return value.casefold() if isinstance(value, str) else value


def test_everything_reads_as_it_did(
    old_database_url: str, schema: str, answers: dict[str, Any]
) -> None:
    engine = open_engine(old_database_url)
    assert current(engine) == schema
    engine.dispose()
    # Its workers never run, so that nothing changes meanwhile.
    api = TestClient(create_app(Config(database_url=old_database_url)), base_url="http://127.0.0.1")
    assert len(answers) >= 40
    for path, before in answers.items():
        now = comparable(path, asked(api, path))
        assert list(missing(comparable(path, before), now)) == [], path


def test_what_is_there_counts_as_there_and_the_rest_is_written_on(
    old_database_url: str, answers: dict[str, Any], sent: list[tuple[str, Any]], make_run: Any
) -> None:
    config = Config(database_url=old_database_url)
    with TestClient(create_app(config), base_url="http://127.0.0.1") as api:
        for path, batch in sent:
            answer = api.post(path, json=batch)
            assert (answer.status_code, answer.json()["accepted"]) == (200, 0), answer.text
        for instance, first in (("p1", 600), ("p4", 0)):
            later = make_run(id="grows", instance=instance, extra={"gauge.new": lambda s: s})
            assert later.send(api, first, 30) == 30
        rows = asked(api, "/api/v1/runs/grows/snapshots?limit=200&name=gauge.new&name=custom.huge")
        newest = {row["process"]: row["samples"] for row in reversed(rows["items"])}
        assert newest["p1"] == {"gauge.new": 629}
        assert newest["p4"] == {"gauge.new": 29}
        before = answers["/api/v1/runs/grows/snapshots?limit=200&name=*"]["items"]
        assert len(rows["items"]) == len(before) + 60


@pytest.mark.parametrize("empty_database_url", ["sqlite"], indirect=True)
def test_damage_of_before_costs_no_other_run_anything(
    old_database_url: str, answers: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    damage_all_of("fresh", Path(old_database_url.removeprefix("sqlite:///")))
    api = TestClient(create_app(Config(database_url=old_database_url)), base_url="http://127.0.0.1")
    of_others = {path: a for path, a in answers.items() if "/runs/g" in path}
    assert len(of_others) >= 25
    for path, before in of_others.items():
        now = comparable(path, asked(api, path))
        assert list(missing(comparable(path, before), now)) == [], path
    said = {run["id"]: run["summary"] for run in api.get("/api/v1/runs").json()["items"]}
    assert said["fresh"].startswith("Stored data of this run is damaged (")
    assert "sk-secret" not in caplog.text and "Traceback" not in caplog.text


OF_RUNS = ("/series?", "/snapshots?", "/census", "/holders", "/large-objects")


@pytest.mark.parametrize("first", sorted(GONE_BACK_TO)[:3])
@pytest.mark.parametrize("schema", ["0004_ends_of_processes"], indirect=True)
def test_the_first_schemas_keep_what_they_had_of_runs(
    first: str, old_database_url: str, answers: dict[str, Any]
) -> None:
    """Which had no rules, no findings, and no ends yet."""
    engine = open_engine(old_database_url)
    if old_database_url.startswith("sqlite"):
        # Going back makes tables anew, and dropping one of old would take with it what refers to it.
        event.listen(engine, "connect", lambda made, _: made.execute("PRAGMA foreign_keys=OFF"))
    downgrade(engine, MIGRATIONS, first)
    assert current(engine) == first
    engine.dispose()
    api = TestClient(create_app(Config(database_url=old_database_url)), base_url="http://127.0.0.1")
    of_runs = {path: a for path, a in answers.items() if any(word in path for word in OF_RUNS)}
    assert len(of_runs) >= 20
    for path, before in of_runs.items():
        now = comparable(path, asked(api, path))
        assert list(missing(comparable(path, before), now)) == [], path


def test_every_schema_that_a_server_wrote_is_recorded() -> None:
    """Whoever adds a migration records a database of before it."""
    of_before = revisions(MIGRATIONS)[:-1]
    assert set(of_before) - GONE_BACK_TO - NEVER_THE_LAST <= set(RECORDED)

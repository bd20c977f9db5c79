"""Damage is detected by checksums and by the check at the start; it is reported, and the rest can still be read."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Table, Text, and_, insert, select, update
from starlette.testclient import TestClient
from tests.server.databases import Copies
from tests.server.stored import (
    LATER,
    change_file,
    compact_all,
    count_of,
    engine_of,
    find,
    seal,
    seal_all,
    serving,
    statements,
)

from leakline_server.store.alerts.alert_rows import list_alerts
from leakline_server.store.alerts.deliveries import claim
from leakline_server.store.columns import GENERATION, LABEL, SEQUENCE, TIME
from leakline_server.store.engine import Engine, writing
from leakline_server.store.maintenance import run_deletion
from leakline_server.store.maintenance.corruption import count
from leakline_server.store.maintenance.corruption_scan import inspect
from leakline_server.store.maintenance.quarantine import PACKED, set_aside
from leakline_server.store.schema import (
    batches,
    chunks,
    damaged,
    details,
    metadata,
    runs,
    segments,
    series,
)
from leakline_server.store.series import compaction, sealing

READS = (
    "series?name=*&points=20000&x=sequence", "series?name=*&points=3&x=time", "snapshots?limit=200", "verdict",
    "events", "large-objects", "holders", "census", "phases", "types",
)  # fmt: skip


@pytest.fixture(scope="module")
def filled(sqlite_copies: Copies, tmp_path_factory: pytest.TempPathFactory, make_run: Any) -> Path:
    """Return the folder of a database with 1,200 snapshots in two sealed segments and 60 unsealed ones."""
    folder = tmp_path_factory.mktemp("filled")
    with sqlite_copies.new(folder) as url, serving(url) as api:
        run = with_floats(make_run).begin(api, 600)
        seal_all(engine_of(api))
        run.send(api, 600, 600)
        seal_all(engine_of(api))
        run.send(api, 1200, 60, size=20)
    return folder


def with_floats(make_run: Any) -> Any:
    return make_run(extra={"float": lambda i: i / 3})


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path, sqlite_copies: Copies) -> str:
    """Return a SQLite database: packed snapshots are the same in both, and Postgres checks types and encoding."""
    if "run" in request.fixturenames:
        shutil.copytree(request.getfixturevalue("filled"), tmp_path, dirs_exist_ok=True)
    with sqlite_copies.new(tmp_path, empty="run" in request.fixturenames) as url:
        return url


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    """Return the run that is already in the database."""
    return with_floats(make_run)


def number_of(engine: Engine, name: str) -> int:
    with engine.connect() as connection:
        query = select(series.c.id).where(series.c.name == name)
        return int(connection.execute(query).scalar_one())


def flip(engine: Engine, table: Table, column: str, where: Any, at: int = -1, bit: int = 4) -> None:
    """Flip one bit of the first matching row."""
    with writing(engine) as connection:
        key = table.primary_key.columns
        query = select(*key, table.c[column]).where(where).order_by(*key).limit(1)
        *found, blob = connection.execute(query).one()
        damaged = bytearray(blob)
        damaged[at] ^= bit
        this = and_(*(c == value for c, value in zip(key, found, strict=True)))
        connection.execute(update(table).where(this).values({column: bytes(damaged)}))


def read(api: TestClient, what: str) -> Any:
    answer = api.get(f"/api/v1/runs/r1/{what}")
    assert answer.status_code == 200, (what, answer.text)
    return answer.json()


def read_all(api: TestClient) -> None:
    for what in READS:
        read(api, what)
    assert api.get("/runs/r1").status_code == 200


def damaged_chunks(api: TestClient) -> float:
    (line,) = (t for t in api.get("/metrics").text.splitlines() if t.startswith("leakline_chunks_"))
    return float(line.split()[-1])


def test_a_series_lacks_only_its_damaged_part(
    api: TestClient, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine, whole = engine_of(api), read(api, READS[0])
    assert whole["damaged"] == []
    this = chunks.c.series_id == number_of(engine, "float")
    flip(engine, chunks, "blob", this)
    with caplog.at_level(logging.ERROR, "leakline"):
        found = read(api, READS[0])
        read_all(api)
    (gone,) = found["damaged"]
    assert gone == {"process": "p1", "name": "float", "first_sequence": 0, "last_sequence": 599}
    for item, before in zip(found["items"], whole["items"], strict=True):
        first = 600 if item["name"] == "float" else 0
        assert item["x"] == before["x"][len(before["x"]) - len(item["x"]) :]
        assert item["x"][0] in range(first, first + 3)
    assert damaged_chunks(api) == 1
    (said,) = [record.getMessage() for record in caplog.records]
    assert "run r1" in said and "float of snapshots 0 to 599" in said
    # Snapshots that are sent again are not refused because of damage.
    assert run.send(api, 100, 50) == 0
    wire = run.wire(100, 50)
    wire["columns"]["series"]["process.rss_bytes"][3] += 1
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 409


def floats(api: TestClient, axis: str = "sequence") -> list[float]:
    (item,) = read(api, f"series?name=float&x={axis}&points=20000")["items"]
    return list(item["x"])


def test_a_segment_with_a_damaged_column_is_skipped_where_it_is_needed(
    api: TestClient, run: Any
) -> None:
    for column in (TIME, GENERATION, SEQUENCE, LABEL):
        flip(engine_of(api), chunks, "blob", chunks.c.series_id == column)
        assert floats(api) == list(range(1260))
        if column in (TIME, GENERATION):
            rows = read(api, "snapshots?limit=200")["items"]
            assert {row["sequence"] for row in rows} <= set(range(600, 1260))
        else:
            assert len(floats(api, "time")) == 1260
        read_all(api)
        flip(engine_of(api), chunks, "blob", chunks.c.series_id == column)


@pytest.mark.parametrize("damaged", [[1220], [1200, 1220, 1240, 1260], [*range(1200, 1460, 20)]])
def test_a_damaged_batch_does_not_block_sealing_of_others(
    damaged: list[int], api: TestClient, run: Any
) -> None:
    engine = engine_of(api)
    run.send(api, 1260, 200, size=20)
    for first in damaged:
        flip(engine, batches, "body", batches.c.first_sequence == first)
    gone = {number for first in damaged for number in range(first, first + 20)}
    assert floats(api) == [number for number in range(1460) if number not in gone]
    seal_all(engine)
    with engine.connect() as connection:
        left = connection.scalars(select(batches.c.first_sequence).order_by("first_sequence")).all()
    assert left == damaged
    assert sealing.due(engine, LATER) == []
    assert floats(api) == [number for number in range(1460) if number not in gone]
    assert damaged_chunks(api) == len(damaged)
    assert run.send(api, 1200, 280, size=20) == 20
    read_all(api)


def test_a_damaged_detail_affects_nothing_else(
    api: TestClient, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before, newest = len(read(api, "events")["items"]), read(api, "census")["sequence"]
    for kind in ("events", "large_objects", "holders"):
        flip(engine_of(api), details, "body", details.c.kind == kind)
        read_all(api)
    assert 0 < len(read(api, "events")["items"]) < before
    last = and_(details.c.kind == "census", details.c.sequence == newest)
    flip(engine_of(api), details, "body", last)
    read_all(api)
    assert read(api, "census")["sequence"] == newest - 30
    assert f"census of snapshots {newest} to" in caplog.text


def test_damaged_log_lines_are_replaced_by_new_ones(api: TestClient, run: Any) -> None:
    def say(sequence: int, line: str) -> None:
        body = run.wire(sequence, 1)
        event = {"sequence": sequence, "time": run.started, "kind": "log", "name": "log"}
        body["events"] = [event | {"data": {"lines": [line]}}]
        assert api.post("/api/v1/runs/r1/batches", json=body).status_code == 200

    def log_lines() -> Any:
        return api.get("/api/v1/runs/r1").json()["processes"][0]["log_lines"]

    say(1260, "before")
    assert log_lines() == ["before"]
    flip(engine_of(api), details, "body", details.c.kind == "log", at=4, bit=128)
    assert log_lines() == []
    assert damaged_chunks(api) == 1
    read_all(api)
    say(1261, "after")
    assert log_lines() == ["after"]


def test_a_frame_that_claims_a_huge_size_counts_as_damaged(api: TestClient, run: Any) -> None:
    engine = engine_of(api)
    this = chunks.c.series_id == number_of(engine, "float")
    for at in range(4, 16):
        flip(engine, chunks, "blob", this, at, 128)
        assert len(read(api, "series?name=float&points=20000")["damaged"]) == 1
        read(api, "verdict")
        flip(engine, chunks, "blob", this, at, 128)
    flip(engine, chunks, "blob", this, 8, 128)
    flip(engine, batches, "body", batches.c.first_sequence == 1220, at=4, bit=128)
    assert floats(api) == [*range(600, 1220), *range(1240, 1260)]
    read_all(api)


def test_the_neighbours_of_a_damaged_segment_are_compacted(api: TestClient, run: Any) -> None:
    engine = engine_of(api)
    for first in (1260, 1460, 1660):
        run.send(api, first, 200, size=20)
        seal_all(engine)
    this = chunks.c.series_id == number_of(engine, "float")
    flip(engine, chunks, "blob", and_(this, chunks.c.first_sequence == 1200))
    before = read(api, READS[0])
    compact_all(engine)
    with engine.connect() as connection:
        s = segments.c
        rows = connection.execute(
            select(s.first_sequence, s.count, s.level).order_by("first_sequence")
        )
        # The batches just before the damaged one were sealed with it.
        assert rows.all() == [(0, 1200, 1), (1200, 260, 1), (1460, 400, 1)]
    assert read(api, READS[0]) == before
    assert compaction.due(engine, LATER) == []


def test_damaged_summaries_are_recomputed_from_their_chunk(
    api: TestClient, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(api)
    compact_all(engine)
    short = "series?name=float&name=process.rss_bytes&points=1&x=sequence"
    before = read(api, short)
    this = and_(chunks.c.series_id == number_of(engine, "float"), chunks.c.pieces.is_not(None))
    flip(engine, chunks, "pieces", this)
    assert read(api, short) == before
    assert damaged_chunks(api) == 1
    assert "the summary of float of snapshots 0 to 1199" in caplog.text


SECRET = "sk-very-secret"
DAMAGES = {
    "no text": "CAST(X'FF5B' || :secret AS TEXT)", "half a text": "'[\"' || :secret",
    "a blob": "CAST(:secret AS BLOB)", "another shape": "'3'", "no number": ":secret",
}  # fmt: skip
STORED = [
    metadata.tables[name] for name in (
        "runs", "attempts", "processes", "incidents", "alerts", "deliveries", "delivery_attempts", "sizes",
        "assertion_states", "acknowledgements", "assertions", "webhooks",
    )
]  # fmt: skip
LISTS = (
    "/api/v1/runs", "/", "/api/v1/projects", "/api/v1/incidents", "/incidents", "/alerts", "/api/v1/rules",
    "/api/v1/webhooks", "/api/v1/webhooks/1/deliveries", "/settings", "/metrics",
    "/api/v1/runs/r2", "/api/v1/runs/r2/verdict", "/runs/r2",
    "/api/v1/compare?before=r1&after=r2", "/compare?a=r1&b=r2",
)  # fmt: skip
OF_RUN = (
    "/api/v1/runs/r1", "/api/v1/runs/r1/verdict", "/api/v1/runs/r1/incidents", "/runs/r1",
    "/api/v1/runs/r1/series?name=process.rss_bytes", "/api/v1/runs/r1/export.csv",
    "/api/v1/runs/r1/export.json", "/runs/r1/report.md",
)  # fmt: skip


@pytest.fixture
def two_runs(standing_back: None, api: TestClient, make_run: Any) -> Engine:
    """Create r1, which a test damages, and r2, each with an incident, an alert and their related rows."""
    engine = engine_of(api)
    for name in ("r1", "r2"):
        run = make_run(id=name, instance=name)
        run.create(api)
        run.send(api, 0, 20)
        incident = find(engine, name, when=run.started)
        number, said = name[1:], '{"title": "leaks", "summary": "leaks", "when": {"generation": 3}}'
        rows = {
            "alerts": {"id": name, "incident_id": incident.incident_id, "event": "incident.confirmed", "payload": said},
            "webhooks": {"id": number, "url": "http://127.0.0.1:9/", "format": "standard", "secret": "s",
                       "source": "api"},
            "deliveries": {"id": number, "alert_id": name, "webhook_id": number, "state": "pending",
                         "due_at": run.started},
            "delivery_attempts": {"delivery_id": number, "started_at": run.started, "seconds": 0.5},
            "sizes": {"bytes": 10, "measured_at": run.started, "revision": 1},
            "assertions": {"id": number, "origin": "rule", "name": "a", "metric": "gauge.a", "source": "api"},
            "assertion_states": {"assertion_id": number, "firing": True, "generation": 3, "changed_at": run.started},
            "acknowledgements": {"project": "erl", "fingerprint": "f1", "kind": "acknowledged", "reason": "",
                               "status": "confirmed", "priority": "minor"},
        }  # fmt: skip
        own = {"run_id": name, "created_at": run.started}
        with writing(engine) as connection:
            for table, values in ((metadata.tables[name], row) for name, row in rows.items()):
                known = {key: value for key, value in own.items() if key in table.c}
                connection.execute(insert(table).values(**known | values))
            counts = {"metric": "type.app.Env.count", "low": 1.0, "high": 2.0}
            accepted = {"origin": "accepted", **counts}
            where = {"project": "erl", "run": name, "source": "page", "created_at": run.started}
            connection.execute(
                insert(metadata.tables["assertions"]).values(id=f"1{number}", **accepted, **where)
            )
        ended = api.patch(f"/api/v1/runs/{name}", json={"state": "finished"})
        assert ended.status_code == 200
    return engine


def each_damage(engine: Engine, table: Table) -> Iterator[tuple[str, str]]:
    """Damage each column of the row of r1 in turn, and restore all rows afterwards."""
    file = engine.url.database or ""
    small = [each for each in metadata.sorted_tables if each.name not in PACKED]
    with contextlib.closing(sqlite3.connect(file)) as database:
        each_kind = " GROUP BY origin" if table.name == "assertions" else ""
        row_ids = database.execute(f"SELECT min(rowid) FROM {table.name}{each_kind}").fetchall()
        database.execute("VACUUM INTO ?", (f"{file}.kept",))
    for column, (row_id,) in product(table.c, row_ids):
        is_number_of_row = column.name == "id" and not isinstance(column.type, Text)
        if is_number_of_row or column is runs.c.id:
            continue
        for way in ways_of(column):
            damage = f"{column.name} = {DAMAGES[way]} WHERE rowid = {row_id}"
            values = {"secret": SECRET} if ":secret" in damage else {}
            change_file(engine, f"UPDATE {table.name} SET {damage}", **values)
            yield column.name, way
            with contextlib.closing(sqlite3.connect(file)) as database:
                database.execute("ATTACH ? AS kept", (f"{file}.kept",))
                for each in small:
                    columns = ", ".join(f'"{c.name}"' for c in each.c)
                    key = each.primary_key.columns
                    # Otherwise the row id is a separate column.
                    if "id" not in key or len(key) > 1 or isinstance(each.c.id.type, Text):
                        columns = f"rowid, {columns}"
                    database.execute(f"DELETE FROM {each.name}")
                    database.execute(
                        f"INSERT INTO {each.name} ({columns}) SELECT {columns} FROM kept.{each.name}"
                    )
                database.commit()


def ways_of(column: Column[Any]) -> Iterable[str]:
    """Return the kinds of damage that can be detected; in free text, only values that are not text."""
    if not isinstance(column.type, Text):
        return ("no number",)
    default = "" if column.server_default is None else str(column.server_default.arg)
    if default in ("{}", "[]") or column.name in ("verdict", "finding", "payload"):
        return ("no text", "half a text", "a blob", "another shape")
    return ("no text", "a blob")


def read_for(engine: Engine, asking: TestClient, path: str, table: str) -> str:
    """Return the statements with this table that the answer is made of."""
    with statements(engine) as asked:
        asking.get(path)
    return " ".join(each for each, _ in asked if re.search(rf"\b{table}\b", each))


@pytest.mark.long
@pytest.mark.parametrize("table", STORED, ids=str)
def test_a_damaged_row_does_not_affect_others(
    two_runs: Engine, api: TestClient, caplog: pytest.LogCaptureFixture, table: Table
) -> None:
    caplog.set_level(logging.INFO, "leakline")
    asking = TestClient(api.app, "http://127.0.0.1", raise_server_exceptions=False)
    of_other = ("/api/v1/runs/r2/verdict", "/api/v1/runs/r2/export.csv")
    before = [asking.get(path).text for path in of_other]
    wrong: list[Any] = []
    made_of = {path: read_for(two_runs, asking, path, table.name) for path in (*LISTS, *OF_RUN)}
    # Rows whose damaged values were replaced, for all pages that were requested.
    shown: set[Any] = set()

    def set_aside_so_far(column: str) -> int:
        copies = damaged.c.table_name == table.name, damaged.c.column_name == column
        return count_of(two_runs, damaged, *copies)

    for column, way in each_damage(two_runs, table):
        replaced: Any = None
        # A page that does not read the column is not affected by the damage.
        named = re.compile(rf"\b{column}\b|\*(?!\))")
        for path in (path for path, read in made_of.items() if named.search(read)):
            answer = asking.get(path)
            if answer.status_code != 200 or any(SECRET in each.text for each in answer.history):
                wrong.append((column, way, path, answer.status_code))
            if replaced is None and set_aside_so_far(column):
                with two_runs.connect() as connection:
                    replaced = tuple(map(tuple, connection.execute(select(table))))
                if replaced in shown:
                    break
                shown.add(replaced)
        # Damage that caused no failure is found at the next start.
        set_aside(two_runs)
        assert [asking.get(path).text for path in of_other] == before
        if set_aside_so_far(column) != 1:
            wrong.append((column, way, "was not set aside"))
        assert SECRET not in caplog.text
        assert "Traceback" not in caplog.text
    assert wrong == []
    assert damaged_chunks(api) == caplog.text.count("stored data of") > 0
    assert api.delete("/api/v1/runs/r1").status_code in (200, 202, 204)
    assert [run["id"] for run in api.get("/api/v1/runs").json()["items"]] == ["r2"]


def test_a_damaged_run_is_marked_exported_in_part_and_deleted(
    two_runs: Engine, api: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    # With a row in nearly every table, no intact value is reported.
    assert set_aside(two_runs) == 0
    whole = {path: api.get(path).text for path in ("/api/v1/runs/r2", "/api/v1/runs/r2/verdict")}
    exported = api.get("/api/v1/runs/r1/export.csv").text
    for column in runs.c:
        if column.name != "id":
            blob = f"{column.name} = {DAMAGES['a blob']}"
            change_file(two_runs, f"UPDATE runs SET {blob} WHERE id = 'r1'", secret=SECRET)
    change_file(two_runs, "UPDATE attempts SET environment = '{' WHERE run_id = 'r1'")
    change_file(two_runs, "UPDATE processes SET lost = '{', role = X'FF' WHERE run_id = 'r1'")
    change_file(two_runs, "UPDATE incidents SET finding = '{' WHERE run_id = 'r1'")
    change_file(two_runs, "UPDATE alerts SET payload = '{' WHERE run_id = 'r1'")
    change_file(two_runs, "UPDATE details SET body = X'00' WHERE run_id = 'r1'")

    listed = {run["id"]: run["summary"] for run in api.get("/api/v1/runs").json()["items"]}
    assert listed.keys() == {"r1", "r2"}
    assert listed["r1"].startswith("Some of the data stored for this run is damaged (")
    assert "verdict" in listed["r1"]
    (incident,) = api.get("/api/v1/runs/r1/incidents").json()["items"]
    assert incident["summary"] == "Some of the data stored for this incident is damaged (finding)."
    # Its project cannot be read, so it forms a group of its own.
    groups = api.get("/api/v1/incidents").json()["items"]
    assert [run["run"] for group in groups for run in group["runs"]] in (["r1", "r2"], ["r2", "r1"])
    (alert,) = list_alerts(two_runs, "r1", 9)
    assert alert["payload"]["title"] == "Some of the data stored for this alert is damaged"
    page = api.get("/runs/r1")
    assert page.status_code == 200
    assert "Some of the data stored for this run is damaged" in page.text
    # The snapshots are intact.
    assert api.get("/api/v1/runs/r1/export.csv").text == exported
    assert api.get("/api/v1/runs/r1/export.json").status_code == 200
    for path, text_of in whole.items():
        assert api.get(path).text == text_of

    # The delivery with the damaged row fails, and the next one is sent.
    change_file(two_runs, "UPDATE deliveries SET webhook_id = 1")
    claimed = claim(two_runs, 1, LATER, 60.0)
    assert claimed is not None and claimed.alert_id == "r2"
    failed = api.get("/api/v1/webhooks/1/deliveries").json()["items"][-1]
    assert failed["state"] == "failed"
    assert failed["last_error"] == "Some of the data stored for this alert is damaged"

    rows = (
        "environment of row 1 of attempts",
        "lost of row 1 of processes",
        "payload of row 1 of alerts",
    )
    for name in ("its verdict", "its tags", *rows):
        assert f"stored data of run r1 is damaged: {name} cannot be read" in caplog.text
    assert SECRET not in caplog.text
    assert damaged_chunks(api) >= 10

    assert api.delete("/api/v1/runs/r1").status_code in (200, 202, 204)
    assert [run["id"] for run in api.get("/api/v1/runs").json()["items"]] == ["r2"]
    while run_deletion.sweep(two_runs, LATER):
        continue
    assert api.get("/api/v1/runs/r1").status_code == 404


@pytest.fixture
def small(api: TestClient, make_run: Any) -> Any:
    run = make_run().begin(api, 300)
    seal(engine_of(api))
    run.send(api, 300, 20)
    return run


def test_each_loss_is_named_and_counted(
    api: TestClient, small: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(api)
    inspect(engine)
    assert (caplog.text, count(engine)) == ("", 0)
    losses = {
        "DELETE FROM attempts": "run r1 is damaged: its attempts",
        "DELETE FROM series": "run r1 is damaged: its series names",
        "DELETE FROM batches": "run r1 is damaged: its newest snapshots",
        "DELETE FROM chunks": "run r1 is damaged: all sealed snapshots",
        "DELETE FROM segments": "run r1 is damaged: snapshots of a process",
        "DELETE FROM runs": "run r1 is damaged: its entry in the list of runs",
    }
    for statement, said in losses.items():
        before = count(engine)
        caplog.clear()
        with sqlite3.connect(engine.url.database or "") as database:
            database.execute(statement)
        inspect(engine)
        assert said in caplog.text, statement
        assert count(engine) > before, statement


def test_damage_that_sqlite_finds_is_reported_once(
    api: TestClient, small: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(api)
    with sqlite3.connect(engine.url.database or "") as database:
        database.execute("PRAGMA writable_schema = ON")
        # Swap two indexes, so that each has lost its entries.
        swapped = ("ix_runs_started_at", "ix_runs_last_seen_at")
        ask = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        pages = [database.execute(ask, (name,)).fetchone()[0] for name in swapped]
        change = "UPDATE sqlite_master SET rootpage = ? WHERE name = ?"
        database.executemany(change, zip(pages, swapped[::-1], strict=True))
    engine.dispose()
    caplog.set_level(logging.ERROR, "leakline")
    inspect(engine)
    inspect(engine)
    lines = [line for line in caplog.messages if "a part of the file" in line]
    assert lines and len(lines) == len(set(lines)) == count(engine)
    assert all(line.startswith("stored data of the database is damaged") for line in lines)

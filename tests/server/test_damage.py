"""A damaged chunk is found by its checksum, told, and costs only itself: every read goes on without it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import Table, and_, select, update
from starlette.testclient import TestClient
from tests.server.stored import LATER, engine_of, make_idle

from leakline_server.store import blocks, compaction, sealing, summaries
from leakline_server.store.columns import GENERATION, LABEL, SEQUENCE, TIME, Key
from leakline_server.store.engine import Engine, writing
from leakline_server.store.tables import batches, chunks, details, rollups, segments, series

KEY = Key("r1", 1)
READS = (
    "series?name=*&points=20000&x=sequence", "series?name=*&points=3&x=time", "snapshots?limit=200", "verdict",
    "events", "large-objects", "holders", "census", "books", "types",
)  # fmt: skip


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    """1,200 snapshots, of which two segments are sealed and 300 are not."""
    run = make_run(extra={"float": lambda i: i / 3})
    run.create(api)
    run.send(api, 0, 600)
    seal_all(engine_of(api))
    run.send(api, 600, 600)
    seal_all(engine_of(api))
    run.send(api, 1200, 60, size=20)
    return run


def seal_all(engine: Engine) -> None:
    make_idle(engine)
    while sealing.seal_one(engine, KEY, LATER).snapshots:
        continue


def number_of(engine: Engine, name: str) -> int:
    with engine.connect() as connection:
        query = select(series.c.id).where(series.c.name == name)
        return int(connection.execute(query).scalar_one())


def flip(engine: Engine, table: Table, column: str, where: Any, at: int = -1, bit: int = 4) -> None:
    """Turn one bit of the first such row."""
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


def test_a_series_misses_what_is_damaged_and_nothing_else(
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
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "run r1" in said[0]
    assert "float of snapshots 0 to 599" in said[0]


@pytest.mark.parametrize("column", [TIME, GENERATION])
def test_without_its_time_a_stretch_is_left_out_of_what_needs_it(
    column: int, api: TestClient, run: Any
) -> None:
    flip(engine_of(api), chunks, "blob", chunks.c.series_id == column)
    rows = read(api, "snapshots?limit=200")["items"]
    assert {row["sequence"] for row in rows} <= set(range(600, 1260))
    (item,) = read(api, "series?name=float&x=sequence&points=20000")["items"]
    assert item["x"] == list(range(1260))
    read_all(api)


@pytest.mark.parametrize("column", [SEQUENCE, LABEL])
def test_what_can_be_missed_is_not_missed(column: int, api: TestClient, run: Any) -> None:
    flip(engine_of(api), chunks, "blob", chunks.c.series_id == column)
    for axis in ("sequence", "time"):
        (item,) = read(api, f"series?name=float&x={axis}&points=20000")["items"]
        assert len(item["x"]) == 1260
    read_all(api)


def test_a_damaged_batch_costs_itself(api: TestClient, run: Any) -> None:
    flip(engine_of(api), batches, "body", batches.c.first_sequence == 1220)
    (item,) = read(api, "series?name=float&x=sequence&points=20000")["items"]
    assert item["x"] == [*range(1220), *range(1240, 1260)]
    read_all(api)


@pytest.mark.parametrize("damaged", [[1200], [1220], [1200, 1220, 1240, 1260]])
def test_a_damaged_batch_does_not_keep_others_from_being_sealed(
    damaged: list[int], api: TestClient, run: Any
) -> None:
    engine = engine_of(api)
    run.send(api, 1260, 200, size=20)
    for first in damaged:
        flip(engine, batches, "body", batches.c.first_sequence == first)
    seal_all(engine)
    with engine.connect() as connection:
        left = connection.scalars(select(batches.c.first_sequence).order_by("first_sequence")).all()
    assert left == damaged
    assert sealing.due(engine, LATER) == []
    gone = {number for first in damaged for number in range(first, first + 20)}
    (item,) = read(api, "series?name=float&x=sequence&points=20000")["items"]
    assert item["x"] == [number for number in range(1460) if number not in gone]
    assert damaged_chunks(api) == len(damaged)
    assert run.send(api, 1200, 280, size=20) == 20
    read_all(api)


def test_batches_that_are_all_damaged_are_not_tried_for_ever(api: TestClient, run: Any) -> None:
    engine = engine_of(api)
    run.send(api, 1260, 200, size=20)
    for first in range(1200, 1460, 20):
        flip(engine, batches, "body", batches.c.first_sequence == first)
    make_idle(engine)
    assert sealing.due(engine, LATER) == [KEY]
    assert sealing.seal_one(engine, KEY, LATER).snapshots == 0
    assert sealing.due(engine, LATER) == []


@pytest.mark.parametrize("kind", ["events", "large_objects", "holders", "census"])
def test_a_damaged_detail_costs_itself(kind: str, api: TestClient, run: Any) -> None:
    before = len(read(api, "events")["items"])
    flip(engine_of(api), details, "body", details.c.kind == kind)
    read_all(api)
    if kind == "events":
        assert 0 < len(read(api, "events")["items"]) < before


def test_a_damaged_newest_census_is_the_one_before(
    api: TestClient, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    newest = read(api, "census")
    flip(engine_of(api), details, "body", newest_of("census", newest["sequence"]))
    before = read(api, "census")
    assert before["sequence"] == newest["sequence"] - 30
    assert f"census of snapshots {newest['sequence']} to" in caplog.text
    assert damaged_chunks(api) == 1


def newest_of(kind: str, sequence: int) -> Any:
    return and_(details.c.kind == kind, details.c.sequence == sequence)


def test_damaged_log_lines_are_gone_and_new_ones_take_their_place(
    api: TestClient, run: Any
) -> None:
    def say(sequence: int, line: str) -> None:
        body = run.wire(sequence, 1)
        event = {"sequence": sequence, "time": run.started, "kind": "log", "name": "log"}
        body["events"] = [event | {"data": {"lines": [line]}}]
        assert api.post("/api/v1/runs/r1/batches", json=body).status_code == 200

    def told() -> Any:
        return api.get("/api/v1/runs/r1").json()["processes"][0]["log_lines"]

    say(1260, "before")
    assert told() == ["before"]
    flip(engine_of(api), details, "body", details.c.kind == "log", at=4, bit=128)
    assert told() == []
    assert damaged_chunks(api) == 1
    read_all(api)
    say(1261, "after")
    assert told() == ["after"]


def test_a_frame_that_says_it_is_huge_is_damaged_like_any_other(api: TestClient, run: Any) -> None:
    engine = engine_of(api)
    this = chunks.c.series_id == number_of(engine, "float")
    for at in range(4, 16):
        flip(engine, chunks, "blob", this, at, 128)
        assert len(read(api, "series?name=float&points=20000")["damaged"]) == 1
        read(api, "verdict")
        flip(engine, chunks, "blob", this, at, 128)
    flip(engine, chunks, "blob", this, 8, 128)
    flip(engine, batches, "body", batches.c.first_sequence == 1220, at=4, bit=128)
    (item,) = read(api, "series?name=float&x=sequence&points=20000")["items"]
    assert item["x"] == [*range(600, 1220), *range(1240, 1260)]
    read_all(api)


def test_what_is_sent_again_is_not_refused_because_of_damage(api: TestClient, run: Any) -> None:
    flip(engine_of(api), chunks, "blob", chunks.c.series_id == number_of(engine_of(api), "float"))
    assert run.send(api, 100, 50) == 0
    wire = run.wire(100, 50)
    wire["columns"]["series"]["process.rss_bytes"][3] += 1
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 409


def test_damaged_segments_stay_as_they_are_when_others_are_compacted(
    api: TestClient, run: Any
) -> None:
    engine = engine_of(api)
    flip(engine, chunks, "blob", chunks.c.series_id == number_of(engine, "float"))
    before = read(api, READS[0])
    for _ in range(3):
        compaction.compact(engine, KEY, LATER)
    with engine.connect() as connection:
        kept = connection.execute(select(segments.c.count).order_by(segments.c.first_sequence))
        assert list(kept.scalars()) == [600, 600]
    assert read(api, READS[0]) == before
    assert compaction.due(engine, LATER) == []


def test_the_neighbours_of_a_damaged_segment_are_compacted_without_it(
    api: TestClient, run: Any
) -> None:
    engine = engine_of(api)
    for first in (1260, 1460, 1660):
        run.send(api, first, 200, size=20)
        seal_all(engine)
    this = chunks.c.series_id == number_of(engine, "float")
    flip(engine, chunks, "blob", and_(this, chunks.c.first_sequence == 1200))
    before = read(api, READS[0])
    while compaction.compact(engine, KEY, LATER):
        continue
    with engine.connect() as connection:
        s = segments.c
        rows = connection.execute(
            select(s.first_sequence, s.count, s.level).order_by("first_sequence")
        )
        # The last batches before the damaged one were sealed with it.
        assert rows.all() == [(0, 1200, 1), (1200, 260, 1), (1460, 400, 1)]
    assert read(api, READS[0]) == before
    assert compaction.due(engine, LATER) == []


def test_a_damaged_segment_or_piece_does_not_keep_others_from_being_rolled_up(
    api: TestClient, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leakline_server.store import rollups as rolling

    engine = engine_of(api)
    monkeypatch.setattr(blocks, "BLOCK", 128)
    monkeypatch.setattr(rolling, "SEGMENTS", 99)
    monkeypatch.setattr(summaries, "COARSE", 512)
    while compaction.compact(engine, KEY, LATER):
        continue
    short = "series?name=float&points=2&x=sequence"
    before = read(api, short)
    mine = chunks.c.series_id == number_of(engine, "float")
    for first in (256, 640):
        flip(engine, chunks, "pieces", and_(mine, chunks.c.first_sequence == first))
    with writing(engine) as connection:
        # As one that was left without pieces.
        connection.execute(update(chunks).where(chunks.c.first_sequence == 512).values(pieces=None))
    monkeypatch.setattr(rolling, "SEGMENTS", 4)
    while rolling.roll_up(engine, KEY):
        continue
    with engine.connect() as connection:
        query = select(segments.c.first_sequence).where(segments.c.level == 2)
        assert set(connection.scalars(query)) == {0, 128, 256, 384, 640, 768, 896, 1024}
    assert read(api, short) == before


def test_damaged_numbers_of_pieces_are_read_from_their_chunk_instead(
    api: TestClient, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(api)
    while compaction.compact(engine, KEY, LATER):
        continue
    short = "series?name=float&name=process.rss_bytes&points=1&x=sequence"
    before = read(api, short)
    this = and_(chunks.c.series_id == number_of(engine, "float"), chunks.c.pieces.is_not(None))
    flip(engine, chunks, "pieces", this)
    assert read(api, short) == before
    assert damaged_chunks(api) == 1
    assert "the summary of float of snapshots 0 to 1199" in caplog.text


def test_a_damaged_rollup_is_read_from_what_lies_under_it(
    api: TestClient, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leakline_server.store import rollups as rolling

    engine = engine_of(api)
    monkeypatch.setattr(blocks, "BLOCK", 128)
    monkeypatch.setattr(rolling, "SEGMENTS", 4)
    monkeypatch.setattr(summaries, "COARSE", 512)
    while compaction.compact(engine, KEY, LATER):
        continue
    short = "series?name=float&points=2&x=sequence"
    before = read(api, short)
    for column in (number_of(engine, "float"), SEQUENCE):
        flip(engine, rollups, "pieces", rollups.c.series_id == column)
        assert read(api, short) == before
    assert damaged_chunks(api) == 2

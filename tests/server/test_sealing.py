"""Sealing changes where snapshots are stored, not what is read; writing and sealing do not block each other."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, insert, select, update
from starlette.testclient import TestClient
from tests.server.stored import (
    LATER,
    compact_all,
    count_of,
    engine_of,
    load_for_examination,
    seal,
    serving,
    statements,
)

from leakline.analysis.generation_axis import WHOLE, thinned
from leakline.analysis.run_history import history_from_batches
from leakline.snapshot import RunHeader, header_from_wire
from leakline_server.ingest import decode
from leakline_server.ingest.writer import Writer
from leakline_server.store.columns import Array, Numbers
from leakline_server.store.engine import Engine, writing
from leakline_server.store.ingest.inbox import Inbox
from leakline_server.store.runs.run_history import load_history
from leakline_server.store.runs.run_registration import join_run
from leakline_server.store.schema import Key, batches, chunks, runs, segments
from leakline_server.store.series import sealing
from leakline_server.store.series.chart_points import first_generations
from leakline_server.store.series.chunk_codec import Chunk, encode
from leakline_server.store.series.column_reader import Stored
from leakline_server.store.series.sealing import encode_rows
from leakline_server.worker_thread import Worker
from leakline_server.workers.storage_upkeep import LOOK_SECONDS, Sealer

READS = (
    "series?name=process.rss_bytes&points=7", "series?name=*&x=time&points=50", "series?name=type.*.count&phase=*",
    "series?name=process.*&kind=generation_end&x=sequence&from=100&to=400", "series?name=sparse&x=sequence",
    "snapshots?limit=200", "snapshots?limit=3&name=sparse&name=late", "events", "census", "census?generation=25",
    "large-objects", "holders", "phases", "types",
)  # fmt: skip


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    """Create a run that is awkward to pack: values are rare, late, constant, or turn from integers into floats."""
    run = make_run(
        extra={
            "sparse": lambda i: i if i % 7 == 0 else None, "late": lambda i: i / 3 if i > 600 else None,
            "gauge.mixed": lambda i: i if i < 300 else i + 0.5, "constant": lambda i: 5}
    )  # fmt: skip
    run.create(api)
    return run


# Thousands of snapshots on a machine that also runs other tests.
PATIENCE_SECONDS = 60.0


def seal_everything(engine: Engine) -> int:
    """Seal everything as if it had been idle for long; return how many snapshots are still waiting."""
    seal(engine)
    return count_of(engine, func.coalesce(func.sum(batches.c.count), 0))


def read_all(api: TestClient) -> dict[str, Any]:
    return {read: api.get(f"/api/v1/runs/r1/{read}").json() for read in READS}


def test_everything_reads_the_same_before_and_after_sealing(api: TestClient, run: Any) -> None:
    run.send(api, 0, 200, size=20)
    run.send(api, 300, 200, size=35)
    run.send(api, 200, 60, size=60)
    before, engine = read_all(api), engine_of(api)
    assert count_of(engine, func.count(segments.c.count)) == 0
    assert seal_everything(engine) == 0
    assert count_of(engine, func.count(segments.c.count)) == 1
    assert read_all(api) == before


def segments_of(engine: Engine) -> list[tuple[int, int, int]]:
    """Return first and last sequence number and level of each segment."""
    s = segments.c
    query = select(s.first_sequence, s.last_sequence, s.level).order_by(s.first_sequence)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


@pytest.fixture
def small_blocks(patch: Any) -> None:
    """Use blocks of 512 snapshots, an eighth of the real size."""
    patch("store.schema.BLOCK", 512)


@pytest.mark.parametrize(
    ("first", "count", "size", "sealed", "waiting"),
    [
        # The batch that crosses the end of a block is divided there.
        pytest.param(0, 1_050, 25, [(0, 511, 1), (512, 1_023, 1)], 26, id="blocks"),
        # Less than half of a block is left to compaction.
        pytest.param(375, 525, 25, [(375, 511, 0)], 388, id="begun within one"),
        pytest.param(
            475, 1_088, 16, [(475, 511, 0), (512, 1_023, 1), (1_024, 1_535, 1)], 27, id="a few before"
        ),
    ],
)  # fmt: skip
def test_a_segments_worth_of_snapshots_is_sealed_automatically(
    first: int, count: int, size: int, sealed: list[tuple[int, int, int]], waiting: int,
    small_blocks: None, api: TestClient, run: Any, eventually: Any,
) -> None:  # fmt: skip
    run.send(api, first, count, size=size)
    engine = engine_of(api)
    eventually(lambda: segments_of(engine) == sealed, PATIENCE_SECONDS)
    assert count_of(engine, func.sum(batches.c.count)) == waiting
    assert count_of(engine, func.min(batches.c.first_sequence)) == sealed[-1][1] + 1


@pytest.mark.long
def test_many_small_batches_are_sealed_before_a_block_is_full(
    api: TestClient, run: Any, eventually: Any
) -> None:
    run.send(api, 0, 1_300, size=4)
    engine = engine_of(api)
    eventually(lambda: segments_of(engine) == [(0, 1_023, 0)], PATIENCE_SECONDS)
    assert count_of(engine, func.sum(batches.c.count)) == 276


@pytest.mark.long
def test_late_snapshots_are_sealed_separately(
    small_blocks: None, api: TestClient, run: Any, eventually: Any
) -> None:
    run.send(api, 0, 60, size=20)
    run.send(api, 70, 1_020, size=20)
    engine, blocks = engine_of(api), [(0, 511, 1), (512, 1_023, 1), (1_024, 1_535, 1)]
    eventually(lambda: segments_of(engine) == blocks[:2], PATIENCE_SECONDS)
    run.send(api, 60, 10, size=10)
    run.send(api, 1_090, 520, size=20)
    with_late = sorted([*blocks, (60, 69, 0)])
    eventually(lambda: segments_of(engine) == with_late, PATIENCE_SECONDS)
    before = read_all(api)
    compact_all(engine)
    assert segments_of(engine) == blocks
    assert read_all(api) == before


@pytest.mark.long
def test_a_block_around_a_segment_is_compacted(
    small_blocks: None, api: TestClient, run: Any, eventually: Any
) -> None:
    run.send(api, 0, 88, size=22)
    run.send(api, 98, 90, size=10)
    engine = engine_of(api)
    # The run paused, and all its snapshots were sealed.
    assert seal_everything(engine) == 0
    assert segments_of(engine) == [(0, 187, 1)]
    run.send(api, 88, 10, size=10)
    run.send(api, 188, 525, size=25)
    eventually(lambda: segments_of(engine) == [(0, 187, 1), (88, 511, 0)], PATIENCE_SECONDS)
    before = read_all(api)
    compact_all(engine)
    assert segments_of(engine) == [(0, 511, 1)]
    assert read_all(api) == before


def waiting_runs(engine: Engine) -> None:
    """Create two runs with a hundred snapshots each; one has been silent for long."""
    for run_id, heard_at in (("r1", 1000.0), ("r2", 3000.0)):
        join_run(engine, RunHeader(run_id, "p", "n", "generation", None, 1.0), heard_at)
        waits = {
            "run_id": run_id, "process_id": 1, "first_sequence": 0, "count": 100, "revision": 1,
        }  # fmt: skip
        with writing(engine) as connection:
            connection.execute(insert(batches).values(**waits, received_at=heard_at, body=b""))


def test_only_runs_with_new_data_are_checked_for_sealing(engine: Engine) -> None:
    waiting_runs(engine)
    assert sorted(sealing.due(engine, LATER)) == [Key("r1", 1), Key("r2", 1)]
    assert sealing.due(engine, LATER, since=2000.0) == [Key("r2", 1)]


def test_runs_without_new_data_cost_no_query(engine: Engine) -> None:
    if engine.dialect.name != "sqlite":
        pytest.skip("Postgres chooses by how much there is")
    with statements(engine) as asked:
        sealing.due(engine, LATER, since=2000.0)
    for statement, parameters in [each for each in asked if "FROM batches" in each[0]]:
        with engine.connect() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
        assert not any("SCAN" in row.detail for row in plan), plan


def test_a_late_batch_is_read_at_its_position(api: TestClient, run: Any) -> None:
    run.send(api, 0, 100, size=50)
    run.send(api, 150, 100, size=50)
    assert seal_everything(engine_of(api)) == 0
    run.send(api, 100, 50)
    run.send(api, 250, 10)
    (item,) = api.get("/api/v1/runs/r1/series?name=constant&x=sequence").json()["items"]
    assert item["x"] == list(range(260))
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    assert [row["sequence"] for row in rows] == list(range(259, 59, -1))


def test_sealed_snapshots_are_still_known_as_stored(api: TestClient, run: Any) -> None:
    run.send(api, 0, 100, size=50)
    run.send(api, 200, 100, size=50)
    assert seal_everything(engine_of(api)) == 0
    wire = run.wire(40, 20)
    wire["columns"]["series"]["constant"][3] = 6
    answer = api.post("/api/v1/runs/r1/batches", json=wire)
    assert answer.json()["error"]["details"] == {
        "sequence": 43, "field": "constant", "stored": 5, "sent": 6,
    }  # fmt: skip
    assert run.send(api, 0, 300) == 100


@pytest.mark.parametrize("sealed", [False, True])
def test_a_restarted_server_knows_every_sequence_number(
    sealed: bool, database_url: str, make_run: Any
) -> None:
    run = make_run()
    with serving(database_url) as api:
        run.create(api)
        run.send(api, 0, 100, size=50)
        run.send(api, 120, 80)
        if sealed:
            assert seal_everything(engine_of(api)) == 0
    with serving(database_url) as api:
        assert run.send(api, 0, 220) == 40


def test_a_small_run_stays_in_the_inbox(api: TestClient, run: Any) -> None:
    run.send(api, 0, 30)
    assert seal_everything(engine_of(api)) == 30
    assert count_of(engine_of(api), func.count(chunks.c.count)) == 0


@pytest.mark.parametrize("sealed", [False, True])
def test_the_history_equals_that_of_the_offline_report(
    sealed: bool, api: TestClient, run: Any, make_run: Any
) -> None:
    other = make_run(instance="p2", rank=1)
    run.send(api, 0, 120, size=30)
    other.send(api, 0, 90, size=30)
    if sealed:
        assert seal_everything(engine_of(api)) == 0
    expected = history_from_batches(
        header_from_wire({**run.header, "unit": "generation"}),
        [run.batch(0, 120), other.batch(0, 90)],
    )
    found = load_history(engine_of(api), "r1")
    for mine, theirs in zip(found.processes, expected.processes, strict=True):
        assert dict(mine.series) == dict(theirs.series)
        for name in (
            "instance", "rank", "attempt", "sequence", "time", "generation", "phase", "label", "kind",
        ):  # fmt: skip
            assert getattr(mine, name) == getattr(theirs, name), name
    for name in ("unit", "total", "phases", "expectations", "capacities", "ended"):
        assert getattr(found, name) == getattr(expected, name), name
    for name in ("events", "holders"):
        assert sorted(map(repr, getattr(found, name))) == sorted(map(repr, getattr(expected, name)))


# Generations of a run that is read in part.
MANY = WHOLE + 32


@pytest.mark.parametrize("sealed", [False, True])
def test_the_thinned_history_of_a_long_run_is_read(sealed: bool, api: TestClient, run: Any) -> None:
    run.extra["once"] = lambda i: 1 if i == 3 * 302 else None
    run.send(api, 0, 3 * MANY, size=200)
    engine = engine_of(api)
    if sealed:
        assert seal_everything(engine) == 0
    whole, part = load_history(engine, "r1"), load_for_examination(engine, "r1")[0]
    assert part == thinned(whole)
    (process,) = part.processes
    assert "once" in whole.processes[0].series
    assert "once" not in process.series
    assert set(process.left_out.generations) == set(range(MANY)) - set(process.generation)


def test_a_run_with_a_plan_is_read_entirely(api: TestClient, run: Any) -> None:
    run.send(api, 0, 3 * MANY, size=200)
    event = {
        "sequence": 3 * MANY, "time": 1.0, "kind": "budget", "name": "run", "data": {"leak_bytes": 1},
    }  # fmt: skip
    wire = run.wire(3 * MANY, 1)
    wire["events"] = [event]
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    engine = engine_of(api)
    assert load_for_examination(engine, "r1")[0] == load_history(engine, "r1")


def test_many_columns_together_become_the_same_chunks_as_one_by_one() -> None:
    random = np.random.default_rng(7)
    steps = [0, 1, 8 * 4096, 2**20, 2**40, -3]
    rows = [2**30 + step * np.cumsum(random.integers(-50, 50, 600)) for step in steps]
    table = np.array([*rows, np.full(600, -(2**53)), np.arange(600) * 2**43], dtype=np.int64)
    assert made_of(table) == [encode(Numbers(row)) for row in table]
    assert made_of(table[:, :1]) == [encode(Numbers(row)) for row in table[:, :1]]


def made_of(table: Array) -> list[Chunk]:
    made = {row: chunk for row, chunk, _ in encode_rows(table, None)}
    return [made[row] for row in range(len(table))]


@pytest.mark.long
def test_a_process_that_cannot_be_sealed_blocks_no_other(
    small_blocks: None, api: TestClient, run: Any, make_run: Any, eventually: Any, patch: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    plain, tried = sealing.seal, []

    def failing(engine: Engine, key: Key, now: float) -> sealing.Sealed:
        if key.process_id == 1:
            tried.append(key)
            raise MemoryError
        return plain(engine, key, now)

    patch("store.series.seal", failing)
    other = make_run(instance="p2", rank=1)
    run.send(api, 0, 525, size=25)
    other.send(api, 0, 525, size=25)
    engine = engine_of(api)
    eventually(lambda: count_of(engine, func.count(segments.c.count)) == 1, PATIENCE_SECONDS)
    # The process is left alone for a while, whatever arrives.
    run.send(api, 525, 50, size=25)
    other.send(api, 525, 525, size=25)
    eventually(lambda: count_of(engine, func.count(segments.c.count)) == 2, PATIENCE_SECONDS)
    assert tried == [Key("r1", 1)]
    assert "could not seal batches of run r1" in caplog.text
    assert count_of(engine, func.max(segments.c.process_id)) == 2


SIZE = 20


def batch(joined: Any, first: int) -> Any:
    return decode.check(joined.id, json.dumps(joined.wire(first, SIZE)).encode(), time.time())


@pytest.fixture
def joined(engine: Engine, make_run: Any) -> Any:
    joined = make_run()
    join_run(engine, header_from_wire({**joined.header, "unit": "generation"}), 1.0)
    return joined


def test_batches_are_sealed_while_more_arrive(engine: Engine, joined: Any, patch: Any) -> None:
    patch("store.series.sealing.ENOUGH_BATCHES", 200 // SIZE)
    patch("store.series.sealing.MIN_SNAPSHOTS", 200)
    until = time.monotonic() + PATIENCE_SECONDS

    async def write() -> int:
        writer = Writer(engine, lambda _runs: None, lambda keys: sealer.want(keys))
        sealer = Sealer(engine, writer.sealed)
        working = Worker("seal", sealer.once)
        writer.start()
        working.start()
        sent = 0
        try:
            while sealer.figures.snapshots < 1_000 and time.monotonic() < until:
                working.wake()
                await writer.store(batch(joined, sent))
                sent += SIZE
        finally:
            working.stop()
            writer.stop()
        assert writer.figures.snapshots == sent
        assert sealer.figures.snapshots >= 1_000
        return sent

    sent = asyncio.run(write())
    with engine.connect() as connection:
        kept = [connection.scalar(select(func.sum(t.c.count))) or 0 for t in (batches, segments)]
    assert sum(kept) == sent
    # What arrived while the rest was sealed is sealed in one go, except for less than a segment.
    while sealing.seal(engine, Key(joined.id, 1), time.time()).snapshots:
        continue
    with engine.connect() as connection:
        assert (connection.scalar(select(func.sum(batches.c.count))) or 0) < 200


def test_only_the_first_search_covers_all_runs(engine: Engine, joined: Any) -> None:
    with writing(engine) as connection:
        Inbox().store(connection, [batch(joined, SIZE * n) for n in range(5)])
        connection.execute(update(runs).values(last_seen_at=1.0))
        connection.execute(update(batches).values(received_at=1.0))
    sealer, found = Sealer(engine, lambda _key, _count: None), []
    for _ in range(2):
        sealer._look()
        found.append(sealer._due)
        sealer._due = {}
    assert found == [{Key(joined.id, 1): False}, {}]


def test_a_process_is_checked_again_for_more(engine: Engine, patch: Any) -> None:
    key = Key("r1", 1)
    found = [sealing.Sealed(4_096, more=True), sealing.Sealed(4_096), sealing.Sealed(512)]
    looks, told = [], []

    def seal_one(_engine: Engine, looked_at: Key, _now: float) -> sealing.Sealed:
        looks.append(looked_at)
        if len(looks) == 2:
            sealer.want([key])
        return found[len(looks) - 1]

    patch("store.series.seal", seal_one)
    sealer = Sealer(engine, lambda *sealed: told.append(sealed))
    sealer.want([key])
    assert [sealer.once() for _ in range(4)] == [0.0, 0.0, LOOK_SECONDS, LOOK_SECONDS]
    assert looks == [key] * 3
    assert told == [(key, 4_096), (key, 4_096), (key, 512)]


def test_batches_sealed_by_another_server_are_left_alone(
    engine: Engine, joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(engine) as connection:
        Inbox().store(connection, [batch(joined, SIZE * n) for n in range(5)])
    later, prepare = time.time() + 1_000, sealing._prepare

    def other_server_first(*arguments: Any) -> Any:
        plan = prepare(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(sealing, "_prepare", prepare)
            sealed.append(sealing.seal(engine, Key(joined.id, 1), later).snapshots)
        return plan

    sealed: list[int] = []
    monkeypatch.setattr(sealing, "_prepare", other_server_first)
    assert sealing.seal(engine, Key(joined.id, 1), later).snapshots == 0
    assert sealed == [5 * SIZE]
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(segments)) == 1


def test_a_failed_transaction_is_not_counted(engine: Engine, joined: Any) -> None:
    async def write() -> None:
        writer = Writer(engine, lambda _runs: None, lambda _keys: None)
        writer._loop = asyncio.get_running_loop()
        with writing(engine) as connection:
            batches.drop(connection)
        answer = asyncio.ensure_future(writer.store(batch(joined, 0)))
        await asyncio.sleep(0)
        writer._store_group(writer._queue.take(1, 1))
        with pytest.raises(Exception, match="the database did not accept the batch"):
            await answer
        assert (writer.figures.commits, writer.figures.failures) == (0, 1)

    asyncio.run(write())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many snapshots were read, each time."""
    counts: list[int] = []
    plain = Stored.read

    def counted(stored: Stored, wanted: Any, only: Any = None, kind: Any = None) -> Any:
        # Workers of the server read all kinds.
        if kind is not None:
            counts.append(len(stored))
        return plain(stored, wanted, only, kind)

    monkeypatch.setattr(Stored, "read", counted)
    return counts


@pytest.mark.parametrize("sealed", [False, True], ids=["as it came", "sealed"])
def test_the_first_generation_of_each_series_is_found(
    sealed: bool, api: TestClient, make_run: Any, read: list[int]
) -> None:
    """Send three snapshots per generation, the third of which is its end."""
    run = make_run(
        extra={"late": lambda i: i if i > 700 else None, "other": lambda i: 1 if i % 3 else None}
    )
    run.create(api)
    run.send(api, 0, 1_500, size=50)
    engine = engine_of(api)
    if sealed:
        seal(engine)
    assert first_generations(engine, "r1", ("process.rss_bytes",), "generation_end") == {"p1": 0}
    assert sum(read) <= (1_500 if sealed else 50)
    assert first_generations(engine, "r1", ("late",), "generation_end") == {"p1": 233}
    assert first_generations(engine, "r1", ("late", "other"), "generation_end") == {"p1": 0}
    assert first_generations(engine, "r1", ("la*",), "generation_end") == {"p1": 233}


def test_a_missing_series_has_no_first_generation(api: TestClient, make_run: Any) -> None:
    run = make_run(extra={"never": lambda i: i if i % 3 == 0 else None})
    run.create(api)
    run.send(api, 0, 30)
    engine = engine_of(api)
    ends = "generation_end"
    for names, kind in ((("never",), ends), (("none",), ends), (("never",), "other")):
        assert first_generations(engine, "r1", names, kind) == {}
    assert first_generations(engine, "nobody", ("never",), "generation_end") == {}


def test_a_late_snapshot_may_be_the_first(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 300, 300)
    seal(engine_of(api))
    run.send(api, 90, 60)
    found = first_generations(engine_of(api), "r1", ("process.rss_bytes",), "generation_end")
    assert found == {"p1": 30}

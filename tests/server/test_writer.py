"""One thread writes batches and another seals them, and neither waits for the other for long."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from sqlalchemy import func, select, update

from leakline.snapshot import header_from_wire
from leakline_server import ingest
from leakline_server.store import sealing
from leakline_server.store.columns import Key
from leakline_server.store.engine import Engine, writing
from leakline_server.store.inbox import Inbox
from leakline_server.store.joining import join_run
from leakline_server.store.tables import batches, runs, segments
from leakline_server.worker import Worker
from leakline_server.workers.seal import LOOK_SECONDS, Sealer
from leakline_server.writer import MAX_GROUP, Writer

SIZE = 20
GROUPS = 8


def batch(run: Any, first: int) -> Any:
    return ingest.check(run.id, json.dumps(run.wire(first, SIZE)).encode(), time.time())


@pytest.fixture
def run(engine: Engine, make_run: Any) -> Any:
    run = make_run()
    join_run(engine, header_from_wire({**run.header, "unit": "generation"}), 1.0)
    return run


def test_what_came_is_sealed_although_more_always_comes(
    engine: Engine, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "ENOUGH_BATCHES", 200 // SIZE)
    monkeypatch.setattr(sealing, "MIN_SNAPSHOTS", 200)
    sealed_while_more_waited = []

    async def write() -> None:
        writer = Writer(engine, lambda _runs: None, lambda keys: sealer.want(keys))
        sealer = Sealer(engine, writer.sealed)
        working = Worker("seal", sealer.once)
        writer.start()
        working.start()
        numbers = range(0, GROUPS * MAX_GROUP * SIZE, SIZE)
        try:
            for first in numbers:
                working.wake()
                await writer.store(batch(run, first))
            sealed_while_more_waited.append(sealer.figures.snapshots)
        finally:
            working.stop()
            writer.stop()
        assert writer.figures.snapshots == len(numbers) * SIZE

    asyncio.run(write())
    assert sealed_while_more_waited[0] >= 1_000
    with engine.connect() as connection:
        kept = [connection.scalar(select(func.sum(t.c.count))) or 0 for t in (batches, segments)]
    assert sum(kept) == GROUPS * MAX_GROUP * SIZE
    # And in one go what came while the last of it was sealed, but for less than a segment.
    while sealing.seal_one(engine, Key(run.id, 1), time.time()).snapshots:
        continue
    with engine.connect() as connection:
        assert (connection.scalar(select(func.sum(batches.c.count))) or 0) < 200


def test_only_the_first_look_for_what_waits_is_at_all_runs(engine: Engine, run: Any) -> None:
    with writing(engine) as connection:
        Inbox().store(connection, [batch(run, SIZE * n) for n in range(5)])
        connection.execute(update(runs).values(last_seen_at=1.0))
        connection.execute(update(batches).values(received_at=1.0))
    sealer, found = Sealer(engine, lambda _key, _count: None), []
    for _ in range(2):
        sealer._look()
        found.append(sealer._due)
        sealer._due = {}
    assert found == [{Key(run.id, 1): False}, {}]


def test_a_process_is_looked_at_again_where_more_waits_or_came_meanwhile(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Key("r1", 1)
    found = [sealing.Sealed(4_096, more=True), sealing.Sealed(4_096), sealing.Sealed(512)]
    looks, told = [], []

    def seal_one(_engine: Engine, looked_at: Key, _now: float) -> sealing.Sealed:
        looks.append(looked_at)
        if len(looks) == 2:
            sealer.want([key])
        return found[len(looks) - 1]

    monkeypatch.setattr(sealing, "seal_one", seal_one)
    sealer = Sealer(engine, lambda *sealed: told.append(sealed))
    sealer.want([key])
    assert [sealer.once() for _ in range(4)] == [0.0, 0.0, LOOK_SECONDS, LOOK_SECONDS]
    assert looks == [key] * 3
    assert told == [(key, 4_096), (key, 4_096), (key, 512)]


def test_who_finds_the_batches_gone_seals_nothing(
    engine: Engine, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(engine) as connection:
        Inbox().store(connection, [batch(run, SIZE * n) for n in range(5)])
    later, prepare = time.time() + 1_000, sealing._prepare

    def other_server_first(*arguments: Any) -> Any:
        plan = prepare(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(sealing, "_prepare", prepare)
            sealed.append(sealing.seal_one(engine, Key(run.id, 1), later).snapshots)
        return plan

    sealed: list[int] = []
    monkeypatch.setattr(sealing, "_prepare", other_server_first)
    assert sealing.seal_one(engine, Key(run.id, 1), later).snapshots == 0
    assert sealed == [5 * SIZE]
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(segments)) == 1


def test_a_transaction_that_failed_is_not_counted_as_one(engine: Engine, run: Any) -> None:
    async def write() -> None:
        writer = Writer(engine, lambda _runs: None, lambda _keys: None)
        writer._loop = asyncio.get_running_loop()
        with writing(engine) as connection:
            batches.drop(connection)
        answer = asyncio.ensure_future(writer.store(batch(run, 0)))
        await asyncio.sleep(0)
        writer._store_group(writer._queue.take(1, 1))
        with pytest.raises(Exception, match="the database did not take the batch"):
            await answer
        assert (writer.figures.commits, writer.figures.failures) == (0, 1)

    asyncio.run(write())

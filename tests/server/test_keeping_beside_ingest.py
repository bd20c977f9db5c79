"""Removing, thinning and giving back hold nobody up: batches are acknowledged as fast meanwhile."""

from __future__ import annotations

import contextlib
import gc
import json
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, insert, select
from starlette.testclient import TestClient

from leakline_server import upkeep
from leakline_server.store import removal, sizes, thinning
from leakline_server.store.codec import encode, numbers, texts
from leakline_server.store.columns import COLUMNS, SEQUENCE, TEXT_COLUMNS
from leakline_server.store.engine import Engine, writing
from leakline_server.store.retention import Limits, PerProject
from leakline_server.store.tables import chunks, runs, segments, series
from leakline_server.worker import Worker
from leakline_server.workers.retaining import Retainer

SERIES = 65
SEGMENTS = 12
COUNT = 512


def long_run(engine: Engine, run_id: str) -> None:
    """Sealed, as a process of some hours leaves it; it ended long ago."""
    columns: dict[int, Any] = {n: texts(["phase_end"] * COUNT) for n in TEXT_COLUMNS}
    columns |= {
        n: numbers([i * 7919 % 1_000_003 for i in range(COUNT)]) for n in range(1, SERIES + 1)
    }
    columns |= {n: numbers(list(range(COUNT))) for n in COLUMNS if n not in TEXT_COLUMNS}
    packed = {number: encode(column) for number, column in columns.items()}
    with writing(engine) as connection:
        connection.execute(
            insert(runs).values(
                id=run_id, project="old", name=run_id, unit="generation", state="finished", started_at=1.0,
                created_at=1.0, last_seen_at=1.0, ended_at=1.0,
            )
        )  # fmt: skip
        connection.execute(
            insert(series), [{"run_id": run_id, "id": n, "name": f"s{n}"} for n in range(1, SERIES + 1)]
        )  # fmt: skip
        for at in range(0, SEGMENTS * COUNT, COUNT):
            packed[SEQUENCE] = encode(numbers(list(range(at, at + COUNT))))
            of = {"run_id": run_id, "process_id": 0, "first_sequence": at, "count": COUNT}
            connection.execute(
                insert(segments).values(**of, last_sequence=at + COUNT - 1, revision=1, bytes=1)
            )
            rows = [
                {
                    **of, "series_id": number, "present": c.present, "first": c.first, "last": c.last,
                    "min": c.min, "max": c.max, "width": c.width, "blob": c.blob,
                }
                for number, c in packed.items()
            ]  # fmt: skip
            connection.execute(insert(chunks), rows)


def chunks_left(engine: Engine, run_id: str) -> int:
    query = select(func.count()).select_from(chunks).where(chunks.c.run_id == run_id)
    with engine.connect() as connection:
        return int(connection.execute(query).scalar_one())


class Sending:
    """Somebody who posts small batches, and takes the time of each acknowledgement."""

    def __init__(self, api: TestClient, run: Any) -> None:
        self._api, self._run, self._next = api, run, 0
        self._ended = threading.Event()
        self.seconds: list[float] = []

    def __enter__(self) -> Sending:
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)

    def _send(self) -> None:
        while not self._ended.is_set():
            body = json.dumps(self._run.wire(self._next, 5)).encode()
            began = time.perf_counter()
            answer = self._api.post(f"/api/v1/runs/{self._run.id}/batches", content=body)
            self.seconds.append(time.perf_counter() - began)
            assert answer.json()["accepted"] == 5, answer.text
            self._next += 5


def test_acknowledgements_come_as_fast_while_old_runs_are_removed_and_thinned(
    api: TestClient, make_run: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker beside that of the server, which does not wait for its turn, nor with its first decision."""
    monkeypatch.setattr("leakline_server.workers.retaining.has_other_servers", lambda engine: False)
    engine: Engine = api.app.state.services.engine  # type: ignore[attr-defined]
    long_run(engine, "removed")
    long_run(engine, "thinned")
    while sizes.measure(engine, time.time()):
        continue
    make_run(id="live").create(api)
    with Sending(api, make_run(id="live")) as alone:
        eventually(lambda: len(alone.seconds) >= 80)
    retainer = Retainer(engine, Limits(thin_after_days=PerProject(1.0)))
    retainer.decide_now()
    working = Worker("test-retain", retainer.once)
    with Sending(api, make_run(id="live", instance="p2", rank=1)) as beside:
        assert removal.remove(engine, "removed", time.time()) == "removed"
        working.start()
        eventually(lambda: chunks_left(engine, "removed") == 0, 60.0)
        eventually(lambda: not thinning.whole(engine, "thinned"), 60.0)
        eventually(lambda: len(beside.seconds) >= 80)
    working.stop()
    assert retainer.figures.thinned_snapshots > SEGMENTS * COUNT / 2
    usual, meanwhile = (statistics.quantiles(each.seconds, n=20) for each in (alone, beside))
    # A step holds the database for some milliseconds, and rests as long.
    assert meanwhile[9] < 4 * usual[9] + 0.01
    assert meanwhile[18] < 4 * usual[18] + 0.05


def test_the_command_line_rests_as_long_as_it_works(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server on the same file waits for it by sleeping, and would starve."""
    long_run(engine, "removed")
    long_run(engine, "thinned")
    removal.remove(engine, "removed", 1.0)
    worked, rested = [0.0], [0.0]

    @contextlib.contextmanager
    def timed(*given: Any, **named: Any) -> Iterator[Any]:
        at = time.monotonic()
        with writing(*given, **named) as connection:
            yield connection
        worked[0] += time.monotonic() - at

    for room in (removal, thinning, sizes):
        monkeypatch.setattr(room, "writing", timed)
    sleep = time.sleep
    monkeypatch.setattr(upkeep.time, "sleep", lambda s: rested.append(s) or sleep(0))
    limits = Limits(thin_after_days=PerProject(1.0))
    decision, to_thin = upkeep.decide(engine, limits, time.time())
    done = upkeep.retain(engine, limits, decision, to_thin)
    assert (chunks_left(engine, "removed"), done.thinned_runs) == (0, 1)
    assert len(rested) > 2 * SEGMENTS * SERIES / removal.ROWS_PER_STEP
    assert sum(rested) >= worked[0] > 0


@pytest.fixture
def only_our_garbage() -> Iterator[None]:
    """What a thousand tests before it left is not looked through meanwhile: that takes longer than what is timed."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_no_step_works_for_long(engine: Engine, only_our_garbage: None) -> None:
    """In CPU seconds of its thread: whatever else this machine does."""
    long_run(engine, "removed")
    long_run(engine, "thinned")
    removal.remove(engine, "removed", 1.0)
    spent = []
    while True:
        before = time.thread_time()
        if not removal.sweep(engine, 1.0):
            break
        spent.append(time.thread_time() - before)
    for key, first in thinning.whole(engine, "thinned"):
        before = time.thread_time()
        assert thinning.thin(engine, key, first).snapshots > 0
        spent.append(time.thread_time() - before)
    assert len(spent) > 2 * SEGMENTS * SERIES / removal.ROWS_PER_STEP
    assert statistics.median(spent) < 0.03
    assert max(spent) < 0.15

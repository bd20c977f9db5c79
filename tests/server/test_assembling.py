"""The batches of a process become chunks with the same values, a few hundred series at a time."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.server.stored import LATER, make_idle

from leakline_server.store import compaction, sealing
from leakline_server.store.assembling import chunks_of
from leakline_server.store.codec import Numbers, encode
from leakline_server.store.columns import Key
from leakline_server.store.engine import Engine
from leakline_server.store.packed import Body

KEY = Key("r1", 1)


def seal_all(engine: Engine) -> None:
    make_idle(engine)
    while sealing.seal(engine, KEY, LATER):
        continue


@pytest.mark.parametrize("at_once", [True, False], ids=["compacted at once", "compacted later"])
def test_a_negative_zero_stays_one(
    api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    monkeypatch.setattr(sealing, "_is_block", lambda *_: at_once)
    run = make_run()
    run.create(api)
    run.extra["gauge.sign"] = lambda i: (-0.0, 0.5, 7, None)[i % 4] if i < 80 else -0.0
    run.send(api, 0, 120, size=3)
    read = "/api/v1/runs/r1/series?name=gauge.sign&x=sequence&points=20000"
    before = api.get(read).text
    assert before.count("-0.0") > 60
    engine = api.app.state.services.engine  # type: ignore[attr-defined]
    seal_all(engine)
    assert api.get(read).text == before
    assert compaction.compact(engine, KEY, LATER) == (0 if at_once else 120)
    assert api.get(read).text == before


def test_sealing_many_series_takes_the_memory_of_a_few() -> None:
    count, random = 2_048, np.random.default_rng(5)
    values = random.integers(0, 2**20, (1_500, count)).cumsum(axis=1)
    ids = np.arange(1, 3_001, 2)
    none = (np.empty(0, np.int64), np.empty((0, count), np.int64))
    floats = (np.array([2, 1_502]), np.array([random.random(count), np.full(count, -0.0)]))
    body = Body(
        values[0] / 8, values[0] / 8, [None] * count, [None] * count, [None] * count,
        ["phase_end"] * count, (np.empty(0, np.int64),) * 2, (ids, values), none, floats,
    )  # fmt: skip
    looked_at = (1, 2, 701, 1_502, 2_999)
    tracemalloc.start()
    try:
        found = {n: chunk for n, chunk, _ in chunks_of([0], [body]) if n in looked_at}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * 2**20
    for number in (1, 701, 2_999):
        assert found[number] == encode(Numbers(values[(number - 1) // 2]))
    for at, number in enumerate((2, 1_502)):
        assert found[number] == encode(Numbers(floats[1][at]))

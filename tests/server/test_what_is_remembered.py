"""Columns of summaries that charts have read: bounded, read once, and never those of another run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.server.stored import LATER, engine_of, make_idle

from leakline_server.store import compaction, points, removal, sealing, summaries
from leakline_server.store.columns import Key
from leakline_server.store.engine import Engine
from leakline_server.store.remembered import Remembered

COUNT = 6_000
ASKED = "name=mine&x=time&points=4"


def test_the_longest_unused_goes_first_and_what_is_large_is_not_kept() -> None:
    kept = Remembered(max_bytes=80 * 100)
    for number in range(100):
        kept.put(number, np.zeros(10))
    assert kept.get(0) is not None
    kept.put("new", np.zeros(10))
    assert kept.get(0) is not None and kept.get("new") is not None
    assert kept.get(1) is None
    kept.put("large", np.zeros(1_000))
    assert kept.get("large") is None and kept.get("new") is not None


def test_nobody_changes_what_is_remembered() -> None:
    kept = Remembered()
    kept.put("a", np.zeros(3))
    found = kept.get("a")
    assert found is not None
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def send(api: TestClient, run: Any) -> None:
    """All of it, compacted."""
    run.create(api)
    run.send(api, 0, COUNT)
    compact(engine_of(api))


def compact(engine: Engine) -> None:
    make_idle(engine)
    key = Key("r1", 1)
    while sealing.seal_one(engine, key, LATER).snapshots:
        continue
    while compaction.compact(engine, key, LATER):
        continue


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many columns of pieces the database was asked for since it was asked last."""
    counted, plain = [0], summaries._PIECES

    def pieces(connection: Any, key: Key, numbers: Sequence[int], firsts: Sequence[int]) -> Any:
        counted[0] += len(numbers)
        return plain(connection, key, numbers, firsts)

    def since() -> int:
        found, counted[0] = counted[0], 0
        return found

    monkeypatch.setattr(summaries, "_PIECES", pieces)
    monkeypatch.setattr(points, "CHUNK_RATIO", 16)
    return since


def chart(api: TestClient, query: str = ASKED) -> dict[str, list[float]]:
    answer = api.get(f"/api/v1/runs/r1/series?{query}")
    assert answer.status_code == 200, answer.text
    (item,) = answer.json()["items"]
    return {name: item[name] for name in ("x", "first", "last", "min", "max")}


def test_a_second_look_asks_for_nothing_it_has_seen(
    api: TestClient, make_run: Any, asked: Callable[[], int]
) -> None:
    send(api, make_run(extra={"mine": lambda i: i}))
    before = chart(api)
    assert before["max"][-1] == COUNT - 1
    assert asked() == 2
    assert chart(api) == before
    assert asked() == 0
    # Of another series, only its own.
    chart(api, "name=process.rss_bytes&x=time&points=4")
    assert asked() == 1


def test_a_run_that_begins_anew_under_the_same_id_is_read_anew(
    api: TestClient, make_run: Any, asked: Callable[[], int]
) -> None:
    engine = engine_of(api)
    send(api, make_run(extra={"mine": lambda i: i}))
    first = chart(api)
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200
    removal.remove(engine, "r1", time.time())
    while removal.sweep(engine, time.time() + 2 * removal.SETTLED_SECONDS):
        continue
    send(api, make_run(instance="p2", extra={"mine": lambda i: -i}))
    again = chart(api)
    assert again["x"] == first["x"]
    assert again["min"][-1] == 1 - COUNT


def test_a_late_snapshot_is_seen(api: TestClient, make_run: Any, asked: Callable[[], int]) -> None:
    """Compacted into a stretch that was read before, it makes another of it."""
    run = make_run(extra={"mine": lambda i: 10**9 if i == 500 else i})
    run.create(api)
    run.send(api, 0, 500)
    run.send(api, 501, COUNT - 501)
    compact(engine_of(api))
    assert max(chart(api)["max"]) == COUNT - 1
    run.send(api, 500, 1)
    assert max(chart(api)["max"]) == 10**9
    compact(engine_of(api))
    assert max(chart(api)["max"]) == 10**9
    assert max(chart(api)["max"]) == 10**9

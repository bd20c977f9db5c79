"""The check at the start of a server: damage of its database is named and counted; and intervals of stored numbers."""

from __future__ import annotations

import itertools
import logging
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.server.stored import engine_of, seal

from leakline_server.store.ingest.ingest_cache import Intervals
from leakline_server.store.maintenance.corruption import count
from leakline_server.store.maintenance.corruption_scan import inspect


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    run = make_run().begin(api, 300)
    seal(engine_of(api))
    run.send(api, 300, 20)
    return run


def test_a_whole_database_is_whole(
    api: TestClient, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    inspect(engine_of(api))
    assert (caplog.text, count(engine_of(api))) == ("", 0)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_each_loss_is_named_and_counted(
    api: TestClient, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(api)
    losses = {
        "DELETE FROM attempts": "run r1 is damaged: its attempts",
        "DELETE FROM series": "run r1 is damaged: the names of its series",
        "DELETE FROM batches": "run r1 is damaged: its newest snapshots",
        "DELETE FROM chunks": "run r1 is damaged: all sealed snapshots",
        "DELETE FROM segments": "run r1 is damaged: snapshots of a process",
        "DELETE FROM runs": "run r1 is damaged: its place in the list of runs",
    }
    for statement, said in losses.items():
        before = count(engine)
        caplog.clear()
        with sqlite3.connect(engine.url.database or "") as database:
            database.execute(statement)
        inspect(engine)
        assert said in caplog.text, statement
        assert count(engine) > before, statement


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_sqlite_finds_in_its_file_is_told_once(
    api: TestClient, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(api)
    with sqlite3.connect(engine.url.database or "") as database:
        database.execute("PRAGMA writable_schema = ON")
        # As two indexes of which each has lost its entries.
        swapped = ("ix_runs_started_at", "ix_runs_last_seen_at")
        pages = [
            database.execute(
                "SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)
            ).fetchone()
            for name in swapped
        ]
        change = "UPDATE sqlite_master SET rootpage = ? WHERE name = ?"
        database.executemany(change, [(*pages[0], swapped[1]), (*pages[1], swapped[0])])
    engine.dispose()
    caplog.set_level(logging.ERROR, "leakline")
    inspect(engine)
    inspect(engine)
    lines = [line for line in caplog.messages if "a part of the file" in line]
    assert lines and len(lines) == len(set(lines)) == count(engine)
    assert all(line.startswith("stored data of the database is damaged") for line in lines)


stretch = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(stretch, max_size=12), stretch)
def test_missing_is_what_a_set_would_miss(
    added: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    known, numbers = Intervals(added), set[int]()
    for first, last in added:
        numbers |= set(range(first, last + 1))
    gaps = known.missing(*asked)
    found = [n for first, last in gaps for n in range(first, last + 1)]
    assert found == sorted(set(range(asked[0], asked[1] + 1)) - numbers)


@given(st.lists(stretch, max_size=12))
def test_stretches_stay_sorted_and_apart(added: list[tuple[int, int]]) -> None:
    stretches = list(Intervals(added))
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(stretches))

"""Compaction changes where snapshots lie, how many bytes they take and how fast they are read: nothing else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, delete, func, select, update
from tests.server.stored import LATER, count_of

from leakline.snapshot import RunHeader
from leakline_server.ingest.decode import check
from leakline_server.store import details, snapshot_rows
from leakline_server.store.engine import Engine, writing
from leakline_server.store.ingest.inbox import Inbox
from leakline_server.store.ingest.incoming_batch import Accepted
from leakline_server.store.runs.run_history import load_history
from leakline_server.store.runs.run_registration import join_run
from leakline_server.store.schema import batches, chunks, runs, segments
from leakline_server.store.schema import details as detail_rows
from leakline_server.store.series import (
    chart_points,
    chunk_codec,
    compaction,
    sealing,
    summary_tree,
)
from leakline_server.store.series.column_reader import TIME, Key
from leakline_server.workers.storage_upkeep import LOOK_SECONDS, Compactor

# Small, so that a few hundred snapshots have all levels.
BLOCK, PIECE = 64, 8


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_codec, "BLOCK", BLOCK)
        for module in (summary_tree, chart_points):
            patch.setattr(module, "PIECE", PIECE)
        # It remembers records of pieces of another length.
        summary_tree.of_numbers.cache_clear()
        patch.setattr(summary_tree, "GROUP", BLOCK)
        patch.setattr(compaction, "NEWEST", 16)
        patch.setattr(chart_points, "CHUNK_RATIO", 4)
        patch.setattr(sealing, "MIN_SNAPSHOTS", 16)
        patch.setattr(sealing, "ENOUGH_BATCHES", 1)
        patch.setattr(sealing, "MIN_SNAPSHOTS_IDLE", 2)
        yield
    summary_tree.of_numbers.cache_clear()


def seal_all(engine: Engine, run_id: str) -> None:
    with writing(engine) as connection:
        idle = update(batches).where(batches.c.run_id == run_id).values(received_at=0.0)
        connection.execute(idle)
    for key in sealing.due(engine, LATER):
        more = key.run_id == run_id
        while more:
            snapshots, more = sealing.seal_one(engine, key, LATER)
            assert snapshots
        # It was right that there is no more.
        assert key.run_id != run_id or not sealing.seal_one(engine, key, LATER).snapshots


def compact_all(engine: Engine, run_id: str, now: float = LATER) -> int:
    made = 0
    for key in compaction.due(engine, now):
        while key.run_id == run_id and compaction.compact(engine, key, now):
            made += 1
    return made


QUESTIONS = [
    chart_points.SeriesQuery(("*",), axis=axis, start=start, stop=stop, points=most)  # type: ignore[arg-type]
    for axis, ranges in (
        ("sequence", ((None, None), (37, 411.5), (200, None), (1_000_000, None))),
        ("generation", ((None, None), (5, 40), (None, 20))),
        ("time", ((None, None), (1_000_100.0, 1_000_300.0))),
    )
    for start, stop in ranges
    for most in (1, 2, 7, 50, 2_000)
]
FILTERED = [
    chart_points.SeriesQuery(("*",), phase="*", points=9),
    chart_points.SeriesQuery(("*",), phase="*", kind="phase_end", start=5, stop=60, points=3),
    chart_points.SeriesQuery(("*",), phase="train/step", axis="sequence", start=37, points=40),
    chart_points.SeriesQuery(("rss",), kind="generation_end", axis="time", points=5),
    chart_points.SeriesQuery(("rare", "odd"), kind="generation_end", points=2),
    # Of two phases.
    chart_points.SeriesQuery(("spike",), kind="phase_end", points=2),
]


def read_all(
    engine: Engine, run_id: str, questions: Sequence[chart_points.SeriesQuery] = QUESTIONS[::5]
) -> dict[str, Any]:
    history = load_history(engine, run_id)
    return {
        **{repr(q): chart_points.read_series(engine, run_id, q) for q in (*questions, *FILTERED)},
        "processes": history.processes, "events": history.events, "holders": history.holders,
        "rows": snapshot_rows.list_snapshots(engine, run_id, ("rss", "ratio", "rare"), 150, None),
        "list": details.list_events(engine, run_id), "large": details.newest_large_objects(engine, run_id),
        "census": details.newest_census(engine, run_id),
    }  # fmt: skip


def wire(first: int, size: int) -> dict[str, Any]:
    """A batch of everything that is awkward to pack; the same for the same numbers."""
    sequence = range(first, first + size)
    columns = {
        "time": [1_000_000.0 + s * 0.7 + (s * 7919 % 13) / 1000 for s in sequence],
        "monotonic": [50.0 + s * 0.7 + (s * 7919 % 17) / 1e9 for s in sequence],
        "generation": [None if s < 9 else s // 9 for s in sequence],
        "phase": [None if s % 3 == 0 else ("train", "train/step")[s % 2] for s in sequence],
        "label": [None if s % 5 else f"after {s}" for s in sequence],
        "kind": ["generation_end" if s % 3 == 0 else "phase_end" for s in sequence],
        "series": {
            "rss": [2**30 + 4096 * (s * 7919 % 1000) for s in sequence],
            "ratio": [(s * 31 % 1000) / 8 for s in sequence],
            "odd": [(s * 31 % 1000) / 7 for s in sequence],
            "still": [5] * size,
            "rare": [s if s % 41 == 0 else None for s in sequence],
            "mixed": [s if s < 150 else s + 0.5 for s in sequence],
            "spike": [10**12 if s == 333 else -s for s in sequence],
        },
    }
    if first >= 120:
        columns["series"]["late"] = [s * s for s in sequence]  # type: ignore[index]
    with_events = [s for s in sequence if s % 10 == 3]
    return {
        "version": 1, "process": {"instance": "p", "rank": 0, "pid": 1, "host": "h"}, "first_sequence": first,
        "count": size, "columns": columns,
        "events": [
            {"sequence": s, "time": 1e6 + s % 7, "kind": "mark", "name": f"m{s}.{i}"}
            for s in with_events
            for i in range(2)],
        "large_objects": [
            {"sequence": s, "type": "a", "bytes": 1_000 + i} for s in with_events for i in range(3)],
        "holders": [
            {"sequence": s, "type": "a", "path": f"x{s % 3}", "count": 7} for s in with_events], "census": [],
    }  # fmt: skip


def send(engine: Engine, run_id: str, *parts: tuple[int, int]) -> None:
    """Store batches: where each begins, and how many snapshots it has."""
    found = [check(run_id, json.dumps(wire(*part)).encode(), 1e6) for part in parts]
    with writing(engine) as connection:
        outcomes, _ = Inbox().store(connection, found)
    assert outcomes == [Accepted(size) for _, size in parts]


def begin(engine: Engine, run_id: str) -> None:
    join_run(engine, RunHeader(run_id, "p", run_id, "generation", None, 1e6), 1e6)


example = itertools.count()
# A batch, how many numbers are left out before it, whether it comes late; and what happens in between.
parts = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([0, 0, 0, 0, 3, 700]), st.booleans()),
    min_size=3,
    max_size=18,
)
doings = st.lists(st.sampled_from(["seal", "compact", "compact over", "", ""]), min_size=1)


# Of batches: many small segments, or whole blocks.
enough = st.sampled_from([1, 99])
asked = st.lists(st.sampled_from(QUESTIONS), min_size=9, max_size=9)


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(parts, doings, enough, asked)
def test_everything_reads_the_same_whatever_is_compacted(
    engine: Engine,
    parts: list[tuple[int, int, bool]],
    doings: list[str],
    enough_batches: int,
    questions: list[chart_points.SeriesQuery],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "ENOUGH_BATCHES", enough_batches)
        read_while_it_is_compacted(engine, parts, doings, questions)


def read_while_it_is_compacted(
    engine: Engine, parts: list[Any], doings: list[str], questions: list[Any]
) -> None:
    plain, packed = (f"{kind}{next(example)}" for kind in ("plain", "packed"))
    at, in_time, late = 0, [], []
    for size, gap, is_late in parts:
        (late if is_late else in_time).append((at + gap, size))
        at += gap + size
    for run_id in (plain, packed):
        begin(engine, run_id)
    send(engine, plain, *in_time, *late)
    for number, part in enumerate([*in_time, *late]):
        send(engine, packed, part)
        doing = doings[number % len(doings)]
        if doing == "seal":
            seal_all(engine, packed)
        elif doing:
            compact_all(engine, packed, LATER if doing == "compact over" else 1e6)
    expected = read_all(engine, plain, questions)
    assert_same(read_all(engine, packed, questions), expected)
    seal_all(engine, packed)
    compact_all(engine, packed)
    assert_same(read_all(engine, packed, questions), expected)
    assert {level for _, level, _ in segments_of(engine, packed)} <= {1}


def segments_of(engine: Engine, run_id: str) -> list[tuple[range, int, int]]:
    """(sequence numbers from first to last, level, snapshots) of each."""
    s = segments.c
    query = select(s.first_sequence, s.last_sequence, s.level, s.count).where(s.run_id == run_id)
    with engine.connect() as connection:
        return [
            (range(first, last + 1), level, count)
            for first, last, level, count in connection.execute(query.order_by(s.first_sequence))
        ]


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for what, there in expected.items():
        assert found[what] == there, what


def prepare(engine: Engine, run_id: str, without: int | None = None) -> Key:
    """A run of 700 sealed snapshots, or without one batch of twenty."""
    begin(engine, run_id)
    send(engine, run_id, *((first, 20) for first in range(0, 700, 20) if first != without))
    seal_all(engine, run_id)
    return Key(run_id, 1)


BLOCKS = [range(64 * i, min(700, 64 * i + 64)) for i in range(11)]


def test_a_run_that_ended_has_whole_segments_and_a_block_is_sealed_as_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(engine, "compacted")
    before = count_of(engine, func.count(detail_rows.c.body))
    assert compact_all(engine, "compacted") == 11
    assert segments_of(engine, "compacted") == [(block, 1, len(block)) for block in BLOCKS]
    assert count_of(engine, func.count(detail_rows.c.body)) < before
    packed = func.coalesce(func.length(chunks.c.pieces), 0) + func.length(chunks.c.blob)
    assert count_of(engine, func.sum(segments.c.bytes)) == count_of(engine, func.sum(packed))
    monkeypatch.setattr(sealing, "ENOUGH_BATCHES", 99)
    prepare(engine, "r")
    assert segments_of(engine, "r") == [(block, 1, len(block)) for block in BLOCKS]
    compact_all(engine, "r")
    assert segments_of(engine, "r") == segments_of(engine, "compacted")
    for table in (chunks, detail_rows, segments):
        of_both = [rows_of(engine, table, run_id) for run_id in ("r", "compacted")]
        for mine, other in zip(*of_both, strict=True):
            assert mine == other, table.name


def rows_of(engine: Engine, table: Table, run_id: str) -> list[dict[str, Any]]:
    """All but those that say when they came, by what they are about."""
    with engine.connect() as connection:
        rows = connection.execute(select(table).where(table.c.run_id == run_id)).mappings().all()
    found = [{k: v for k, v in row.items() if k not in ("run_id", "revision")} for row in rows]
    return sorted(found, key=lambda row: [str(v) for k, v in row.items() if k != "body"])


def test_the_newest_of_a_run_that_goes_on_stay_as_they_are(engine: Engine) -> None:
    prepare(engine, "r")
    send(engine, "r", (700, 20))
    compact_all(engine, "r", 1e6)
    found = segments_of(engine, "r")
    assert max(numbers.stop for numbers, level, _ in found if level) == 640
    assert min(numbers.start for numbers, level, _ in found if not level) == 640
    # Live pages are told what is newer than the last they know, and not all of the run again.
    assert compact_all(engine, "r", 1e6) == 0


def test_what_came_late_joins_the_segment_it_belongs_into(engine: Engine) -> None:
    prepare(engine, "r", without=100)
    compact_all(engine, "r")
    send(engine, "r", (100, 20))
    seal_all(engine, "r")
    compact_all(engine, "r")
    found = segments_of(engine, "r")
    assert [numbers for numbers, _, _ in found] == BLOCKS
    assert all(len(numbers) == count for numbers, _, count in found)
    assert [level for _, level, _ in found][:9] == [1] * 9


def test_who_finds_the_segments_changed_leaves_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = prepare(engine, "r")
    whole, first = read_all(engine, "r"), True
    put_in_place = compaction._is_still

    def other_server_first(*arguments: Any) -> bool:
        nonlocal first
        if first:
            first = False
            return False
        return put_in_place(*arguments)

    monkeypatch.setattr(compaction, "_is_still", other_server_first)
    assert compaction.compact(engine, key, LATER) == 0
    assert count_of(engine, func.max(segments.c.level)) == 0
    assert compact_all(engine, "r") == 11
    assert_same(read_all(engine, "r"), whole)


@pytest.mark.parametrize("name", ["rss", "ratio"])
def test_every_point_holds_what_the_snapshots_under_it_say(name: str, engine: Engine) -> None:
    prepare(engine, "r")
    compact_all(engine, "r")
    values = np.array(wire(0, 700)["columns"]["series"][name])
    query = chart_points.SeriesQuery((name,), axis="sequence", points=12)
    (item,) = chart_points.read_series(engine, "r", query)["items"]
    assert len(item["x"]) == 700 // 64 + 1
    for at, (start, stop) in enumerate(zip(item["x"], [*item["x"][1:], 700], strict=True)):
        under = values[start:stop]
        assert item["first"][at] == under[0]
        assert item["last"][at] == under[-1]
        assert (item["min"][at], item["max"][at]) == (under.min(), under.max())


def test_a_run_that_is_removed_meanwhile_gets_no_rows(engine: Engine) -> None:
    key = prepare(engine, "r")
    with writing(engine) as connection:
        connection.execute(delete(runs).where(runs.c.id == "r"))
    before = count_of(engine, func.count(chunks.c.blob))
    assert compaction.compact(engine, key, LATER) == 0
    assert count_of(engine, func.count(chunks.c.blob)) == before


def test_servers_that_compact_at_once_make_each_segment_once(engine: Engine) -> None:
    key = prepare(engine, "r", without=100)
    send(engine, "r", (100, 20))
    seal_all(engine, "r")
    whole = read_all(engine, "r")

    def server(_: int) -> None:
        # Who is late finds the segments changed, and looks again.
        while key in compaction.due(engine, LATER):
            compaction.compact(engine, key, LATER)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(server, range(4)))
    assert [numbers for numbers, _, _ in segments_of(engine, "r")] == BLOCKS
    assert_same(read_all(engine, "r"), whole)
    assert count_of(engine, func.sum(chunks.c.count), chunks.c.series_id == TIME) == 700


def test_one_process_that_cannot_be_compacted_holds_up_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad = prepare(engine, "a bad one")
    prepare(engine, "other")
    plain, tried = compaction.compact, []

    def failing(engine: Engine, key: Key, now: float) -> int:
        if key == bad:
            tried.append(key)
            raise MemoryError
        return plain(engine, key, now)

    monkeypatch.setattr(compaction, "compact", failing)
    compactor = Compactor(engine, now=lambda: LATER)
    rests = []
    for _ in range(2):
        while (rest := compactor.once()) != LOOK_SECONDS:
            rests.append(rest)
    # It makes all that is due, one after the other, and rests.
    assert len(rests) > 10 and max(rests) < LOOK_SECONDS
    assert len(tried) == 1
    assert "run a bad one" in caplog.text
    assert all(level for _, level, _ in segments_of(engine, "other"))
    # Later it is tried again.
    monkeypatch.setattr(compaction, "compact", plain)
    monkeypatch.setattr("time.monotonic", lambda: LATER)
    while compactor.once() != LOOK_SECONDS:
        continue
    assert compaction.due(engine, LATER) == []
    assert compactor.figures.snapshots == 1400


def test_many_series_are_compacted_with_the_memory_of_a_few(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(engine, "r")
    for first in range(0, 64, 16):
        body = wire(first, 16)
        body["columns"]["series"] = {
            f"s{i:03}": [i * s * 4096 + s * 7919 % 1000 for s in range(first, first + 16)]
            for i in range(300)
        }
        with writing(engine) as connection:
            Inbox().store(connection, [check("r", json.dumps(body).encode(), 1e6)])
    seal_all(engine, "r")
    plain, asked = compaction.read, []

    def reading(connection: Any, key: Key, wanted: Any, *rest: Any) -> Any:
        asked.append(len(wanted))
        return plain(connection, key, wanted, *rest)

    monkeypatch.setattr(compaction, "read", reading)
    everything = chart_points.SeriesQuery(("*",), axis="sequence")
    before = chart_points.read_series(engine, "r", everything)
    assert compaction.compact(engine, Key("r", 1), LATER) == 64
    assert len(asked) > 4
    assert max(asked) <= compaction.SERIES_AT_ONCE
    assert chart_points.read_series(engine, "r", everything) == before
    assert len(before["items"]) == 300

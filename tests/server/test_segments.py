"""A chunk is read back as it was written, and compaction changes where it is stored and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import json
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, delete, func, select, update
from starlette.testclient import TestClient
from tests.server.stored import LATER, R1, count_of, engine_of, seal_all

from leakline.snapshot import RunHeader
from leakline_server.ingest.decode import check
from leakline_server.store import details, schema, series, snapshot_rows
from leakline_server.store.columns import (
    TIME,
    Array,
    CorruptChunk,
    Numbers,
    absent,
    compress,
    concatenate_numbers,
    concatenate_texts,
    decompress,
    numbers,
    texts,
)
from leakline_server.store.engine import Engine, writing
from leakline_server.store.ingest.inbox import Inbox
from leakline_server.store.ingest.incoming_batch import (
    NOT_THERE,
    Accepted,
    BatchColumns,
    Body,
    Rows,
    pack,
    unpack,
)
from leakline_server.store.runs.run_history import load_history
from leakline_server.store.runs.run_registration import join_run
from leakline_server.store.schema import Key, batches, chunks, runs, segments
from leakline_server.store.schema import details as detail_rows
from leakline_server.store.series import (
    chart_points,
    compaction,
    sealing,
    summaries,
)
from leakline_server.store.series.chunk_codec import Chunk, decode, encode
from leakline_server.store.series.column_reader import Stored
from leakline_server.store.series.sealing import chunks_of, encode_rows
from leakline_server.store.series.summaries import Cut
from leakline_server.worker_thread import Worker
from leakline_server.workers.storage_upkeep import LOOK_SECONDS, Compactor

integers = st.integers(-(2**53), 2**53)
floats = st.floats(allow_nan=False, allow_infinity=False)
entries = st.one_of(
    st.lists(st.one_of(integers, st.none()), min_size=1, max_size=80),
    st.lists(st.one_of(floats, st.none()), min_size=1, max_size=80),
    # A ramp of pages, as memory really grows.
    st.builds(
        lambda start, steps: [start + 4096 * s for s in steps],
        st.integers(0, 2**40),
        st.lists(st.integers(-3, 1000), min_size=1, max_size=80),
    ),
    st.builds(lambda value, n: [value] * n, st.one_of(integers, st.none()), st.integers(1, 50)),
    # Decimals, and clocks.
    st.builds(
        lambda values, digits: [round(v, digits) for v in values],
        st.lists(floats, min_size=1, max_size=80),
        st.integers(0, 10),
    ),
    st.builds(
        lambda start, steps: [start + s for s in steps],
        st.floats(-2e9, 2e9),
        st.lists(st.floats(0, 2), min_size=1, max_size=80),
    ),
)


@given(entries, st.booleans())
def test_numbers_are_read_back_unchanged(values: list[Any], tight: bool) -> None:
    found = decode(encode(numbers(values), tight=tight))
    assert isinstance(found, Numbers)
    assert found.to_list() == values
    if all(isinstance(v, int) for v in values):
        assert all(isinstance(v, int) for v in found.to_list())
    elif None not in values:
        assert found.values.tobytes() == np.array(values, np.float64).tobytes()


def flipped(blob: bytes, bit: int) -> bytes:
    found = bytearray(blob)
    found[bit // 8] ^= 1 << bit % 8
    return bytes(found)


def read_as(chunk: Chunk) -> list[Any] | None:
    try:
        return decode(chunk).to_list()
    except CorruptChunk:
        return None


def test_typical_series_are_packed_into_few_bytes() -> None:
    rng = np.random.default_rng(1)
    steps = np.cumsum(rng.normal(0.5, 0.01, 4096))
    monotonic, times = np.round(75_600 + steps, 9), 1_763_837_968 + steps
    for values in (monotonic, times, np.round(times, 3)):
        plain, tight = encode(Numbers(values)), encode(Numbers(values), tight=True)
        assert len(tight.blob) < 0.75 * len(plain.blob)
    assert len(tight.blob) < 1.5 * 4096
    # A constant costs only its checksum, and a ramp of pages about one byte per entry.
    assert len(encode(numbers([16] * 512)).blob) == 4
    ramp = (2**30 + 4096 * np.cumsum(rng.integers(0, 100, 512))).tolist()
    assert len(encode(numbers(ramp)).blob) < 1.1 * 512 + 40


@given(st.lists(st.one_of(integers, floats, st.none()), min_size=1, max_size=60), st.integers(1, 9))
def test_summaries_match_the_entries_under_them(values: list[Any], step: int) -> None:
    column = numbers(values)
    starts = np.arange(0, len(values), step)
    counts = np.diff(np.append(starts, len(values)))
    found = summaries.spread(
        summaries.unpack(summaries.pack(summaries.summed(column, starts), counts)),
        counts,
    )
    for record, start in zip(found.tolist(), starts, strict=True):
        there = [float(v) for v in values[start : start + step] if v is not None]
        if there:
            assert record == [len(there), there[0], there[-1], min(there), max(there)]
        else:
            assert record == [0] * 5


@given(st.binary(max_size=200), st.integers(0, 8 * 84 - 1))
def test_damaged_summaries_are_detected(garbage: bytes, bit: int) -> None:
    column = numbers([1, 5, 9, 2])
    packed = summaries.pack(summaries.summed(column, np.array([0, 2])), np.array([2, 2]))
    for damaged in (flipped(packed, bit), garbage, flipped(packed, bit)[:-3]):
        with pytest.raises(CorruptChunk):
            summaries.unpack(damaged)


words = st.one_of(
    st.text(max_size=20), st.none(), st.sampled_from(("", "a", "é", "evaluate/" + "x" * 90))
)


@settings(max_examples=50)
@given(st.lists(st.lists(words, max_size=9), min_size=1, max_size=4))
def test_texts_are_read_back_unchanged_and_joined(parts: list[list[str | None]]) -> None:
    values = [value for part in parts for value in part]
    assert concatenate_texts([texts(part) for part in parts]).to_list() == values
    if values:
        assert decode(encode(texts(values))).to_list() == values


@given(entries)
def test_first_last_minimum_and_maximum_are_known_without_decoding(
    values: list[Any],
) -> None:
    chunk = encode(numbers(values))
    there = [v for v in values if v is not None]
    expected = (there[0], there[-1], min(there), max(there)) if there else (None,) * 4
    assert (chunk.first, chunk.last, chunk.min, chunk.max) == expected


@given(entries, st.data())
def test_a_flipped_bit_is_detected(values: list[Any], data: st.DataObject) -> None:
    chunk = encode(numbers(values))
    bit = data.draw(st.integers(0, len(chunk.blob) * 8 - 1))
    assert read_as(replace(chunk, blob=flipped(chunk.blob, bit))) in (None, values)


@pytest.mark.parametrize("change", [{"first": 7.0}, {"max": 1e9}, {"count": 4}, {"width": 2}])
def test_a_changed_number_or_a_truncated_blob_is_detected(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptChunk):
        decode(replace(encode(numbers([1, 2, 3])), **change))
    cut_off = encode(numbers([1, 200, 3, None]))
    with pytest.raises(CorruptChunk):
        decode(replace(cut_off, blob=cut_off.blob[:-3]))


def test_a_gap_does_not_turn_integers_into_floats() -> None:
    joined = concatenate_numbers([numbers([1, 2]), numbers([None, None]), numbers([3])])
    assert joined.to_list() == [1, 2, None, None, 3]
    assert joined.values.dtype == np.int64


def test_no_flipped_bit_of_a_frame_header_takes_memory_or_passes() -> None:
    """The header says how many bytes the frame holds, and they are allocated before anything else is checked."""
    random = np.random.default_rng(3)
    whole = encode(Numbers(random.integers(-(2**53), 2**53, 4_096)))
    values = decode(whole).to_list()
    for bit in range(8 * 20):
        # Bits that are not checked may be flipped, such as whether a checksum of the frame follows.
        assert read_as(replace(whole, blob=flipped(whole.blob, bit))) in (None, values)


def test_a_frame_cannot_claim_more_than_its_bytes_can_hold() -> None:
    frame = compress(b"x" * 70_000)
    assert decompress(frame) == b"x" * 70_000
    said = frame[:5] + (2**29).to_bytes(4, "little") + frame[9:]
    with pytest.raises(CorruptChunk, match="more than it can"):
        decompress(said)


without_native = pytest.mark.skipif(sealing.native() is None, reason="no native module")


@pytest.mark.parametrize("at_once", [True, False], ids=["compacted at once", "compacted later"])
def test_a_negative_zero_stays_negative(
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
    engine = engine_of(api)
    seal_all(engine)
    assert api.get(read).text == before
    assert compaction.compact(engine, R1, LATER) == (0 if at_once else 120)
    assert api.get(read).text == before


def test_sealing_many_series_takes_the_memory_of_a_few() -> None:
    count, random = 2_048, np.random.default_rng(5)
    values = random.integers(0, 2**20, (1_500, count)).cumsum(axis=1)
    ids = np.arange(1, 3_001, 2)
    floats = {2: random.random(count), 1_502: np.full(count, -0.0)}
    integers = dict(zip(ids.tolist(), values, strict=True))
    body = unpack(packed_of(count, integers=integers, floats=floats), dict)
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
    for number, column in floats.items():
        assert found[number] == encode(Numbers(column))


def packed_of(
    count: int,
    *,
    integers: Mapping[int, Array] | None = None,
    floats: Mapping[int, Array] | None = None,
) -> bytes:
    """Return the body of a batch of series by number."""

    def rows(of: Mapping[int, Array] | None, dtype: type[Any]) -> Rows:
        found = of or {}
        return Rows([*map(str, found)], np.array([*found.values()], dtype).reshape(-1, count))

    columns = BatchColumns(
        np.arange(count) / 8, np.arange(count) / 8, [None] * count, [None] * count, [None] * count,
        ["phase_end"] * count, rows(integers, np.int64), rows(floats, np.float64),
    )  # fmt: skip
    return pack(columns, {name: int(name) for name in columns.names()})


@st.composite
def packed_batches(draw: st.DrawFn) -> list[Body]:
    """Generate up to six batches of up to four series; each series may have any kind of values in each batch."""
    found = []
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.sampled_from((1, 2, 9, 40)))
        kinds = draw(st.lists(st.integers(0, 5), min_size=4, max_size=4))
        size = draw(st.sampled_from((3, 2**9, 2**20, 2**40, 2**52)))
        numbers = {n: random.integers(-size, size, count) for n in range(1, 5)}
        there = random.random(count) < 0.6
        parts = [{n: v for n, v in numbers.items() if kinds[n - 1] == k} for k in range(4)]
        still = {n: np.full(count, v[0]) for n, v in parts[0].items()}
        holed = {n: np.where(there, v, NOT_THERE) for n, v in parts[2].items()}
        floats = {n: np.where(there, v / 8, np.nan) for n, v in parts[3].items()}
        packed = packed_of(count, integers={**still, **parts[1], **holed}, floats=floats)
        found.append(unpack(packed, dict))
    return found


@without_native
@settings(max_examples=80)
@given(packed_batches(), st.booleans())
def test_both_implementations_make_the_same_chunks(bodies: list[Body], compacted: bool) -> None:
    firsts = [100 * at for at in range(len(bodies))]
    natively = list(chunks_of(firsts, bodies, compacted=compacted))
    with in_python():
        assert list(chunks_of(firsts, bodies, compacted=compacted)) == natively
    for number in {n for n, _, _ in natively if n > 0}:
        column = concatenate_numbers([b.series(number) or absent(len(b)) for b in bodies])
        chunk = encode(column, tight=compacted)
        assert [c for n, c, _ in natively if n == number] == [chunk]


@without_native
@settings(max_examples=80)
@given(st.integers(0, 2**32), st.integers(1, 70), st.integers(0, 62))
def test_both_implementations_encode_the_same_rows(seed: int, count: int, bits: int) -> None:
    random = np.random.default_rng(seed)
    table = random.integers(-(2**bits), 2**bits, (6, count)) << random.integers(0, 63 - bits)
    table[0] = table[0, 0]
    table[random.integers(1, 6), random.integers(0, count)] = NOT_THERE
    if bits == 62:
        # One is above the other by more than half the range, and some are equal as floats.
        table[5] = 2**60 + random.integers(0, 3, count)
    sequence = np.cumsum(random.integers(1, 200, count))
    for cut in (None, Cut(sequence)):
        natively = list(encode_rows(table, cut))
        with in_python():
            assert list(encode_rows(table, cut)) == natively


@settings(max_examples=150)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9)
    | st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=9),
    st.integers(0, 11),
)
def test_floats_with_few_decimals_are_read_back_unchanged(
    values: list[float], decimals: int
) -> None:
    column = Numbers(np.array(values, np.float64) / 10**decimals)
    assert decode(encode(column, tight=True)).to_list() == column.to_list()


def test_a_body_with_columns_of_different_lengths_is_damaged() -> None:
    series = {2: np.arange(3), 3: np.array([1, NOT_THERE, 2])}
    packed = packed_of(3, integers=series, floats={4: np.array([0.5, 1.5, np.nan])})
    assert_other_lengths_are_refused(msgspec.msgpack.decode(decompress(packed)), 5)


# 1, 2 and 3 have one value, differences of one byte, and a gap.
VERSION_1 = [
    1, 3, np.arange(3.0).tobytes(), np.arange(3.0).tobytes(), [None, 1, 2], [None] * 3, [None] * 3, ["sample"] * 3,
    np.array([1], "<u4").tobytes(), np.array([5]).tobytes(),
    np.array([2], "<u4").tobytes(), np.array([2**40]).tobytes(), 1, np.array([-1, 7], "i1").tobytes(),
    np.array([3], "<u4").tobytes(), np.array([1, NOT_THERE, 2]).tobytes(),
    np.array([4], "<u4").tobytes(), np.array([0.5, 1.5, np.nan]).tobytes(),
]  # fmt: skip


def test_a_body_of_version_1_is_read() -> None:
    body = unpack(compress(msgspec.msgpack.encode(VERSION_1)), dict)
    found = [body.series(number) for number in range(1, 5)]
    assert [None if column is None else column.to_list() for column in found] == [
        [5, 5, 5],
        [2**40, 2**40 - 1, 2**40 + 6],
        [1, None, 2],
        [0.5, 1.5, None],
    ]
    assert (body.time.tolist(), body.generation) == ([0.0, 1.0, 2.0], [None, 1, 2])
    assert_other_lengths_are_refused(VERSION_1, 11)
    with pytest.raises(CorruptChunk):
        unpack(compress(msgspec.msgpack.encode([*VERSION_1[:12], 3, *VERSION_1[13:]])), dict)


def assert_other_lengths_are_refused(form: list[Any], columns: int) -> None:
    assert len(unpack(compress(msgspec.msgpack.encode(form)), dict)) == 3
    data = [at for at, value in enumerate(form) if isinstance(value, bytes) and value]
    assert len(data) == columns
    longer = [[*form[:at], form[at] + bytes(4), *form[at + 1 :]] for at in data]
    other_count = [[form[0], count, *form[2:]] for count in (2, -3)]
    for broken in (*longer, *other_count):
        with pytest.raises(CorruptChunk):
            unpack(compress(msgspec.msgpack.encode(broken)), dict)


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "native", lambda: None)
        yield


# Small, so that a few hundred snapshots have all levels.
BLOCK, PIECE = 64, 8


@pytest.fixture
def engine(engine: Engine) -> Iterator[Engine]:
    """Use small segments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "BLOCK", BLOCK)
        for module in (summaries, chart_points):
            patch.setattr(module, "PIECE", PIECE)
        # The cache has records of pieces of another length.
        summaries.of_numbers.cache_clear()
        patch.setattr(summaries, "GROUP", BLOCK)
        patch.setattr(compaction, "NEWEST", 16)
        patch.setattr(chart_points, "CHUNK_RATIO", 4)
        patch.setattr(sealing, "MIN_SNAPSHOTS", 16)
        patch.setattr(sealing, "ENOUGH_BATCHES", 1)
        patch.setattr(sealing, "MIN_SNAPSHOTS_IDLE", 2)
        yield engine
    summaries.of_numbers.cache_clear()


def seal_run(engine: Engine, run_id: str) -> None:
    with writing(engine) as connection:
        idle = update(batches).where(batches.c.run_id == run_id).values(received_at=0.0)
        connection.execute(idle)
    for key in sealing.due(engine, LATER):
        more = key.run_id == run_id
        while more:
            snapshots, more = sealing.seal(engine, key, LATER)
            assert snapshots
        # There really was nothing more to seal.
        assert key.run_id != run_id or not sealing.seal(engine, key, LATER).snapshots


def compact_run(engine: Engine, run_id: str, now: float = LATER) -> int:
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
    # From two phases.
    chart_points.SeriesQuery(("spike",), kind="phase_end", points=2),
]


def read_all(
    engine: Engine, run_id: str, questions: Sequence[chart_points.SeriesQuery] = QUESTIONS[::5]
) -> dict[str, Any]:
    history = load_history(engine, run_id)
    return {
        **{repr(q): points_of(engine, run_id, q) for q in (*questions, *FILTERED)},
        "processes": history.processes, "events": history.events, "holders": history.holders,
        "rows": snapshot_rows.list_snapshots(engine, run_id, ("rss", "ratio", "rare"), 150, None),
        "list": details.list_events(engine, run_id), "large": details.newest_large_objects(engine, run_id),
        "census": details.newest_census(engine, run_id),
    }  # fmt: skip


def points_of(engine: Engine, run_id: str, query: chart_points.SeriesQuery) -> dict[str, Any]:
    """Return the answer for a run, without its name."""
    found = chart_points.summarise(engine, [run_id], query)
    for each in (*found["items"], *found["damaged"]):
        assert each.pop("run") == run_id
    return {**found, "units": [*found["units"].values()]}


def wire(first: int, size: int) -> dict[str, Any]:
    """Return a batch of everything that is awkward to pack; the same numbers give the same batch."""
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
            "spike": [10**12 if s == 233 else -s for s in sequence],
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
    """Store batches, each given as its first number and its number of snapshots."""
    found = [check(run_id, json.dumps(wire(*part)).encode(), 1e6) for part in parts]
    with writing(engine) as connection:
        outcomes, _ = Inbox().store(connection, found)
    assert outcomes == [Accepted(size) for _, size in parts]


def begin(engine: Engine, run_id: str) -> None:
    join_run(engine, RunHeader(run_id, "p", run_id, "generation", None, 1e6), 1e6)


example = itertools.count()
# A batch, how many numbers are skipped before it, whether it is late, and what happens in between.
parts = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([0, 0, 0, 0, 3, 700]), st.booleans()),
    min_size=3,
    max_size=18,
)
doings = st.lists(st.sampled_from(["seal", "compact", "compact over", "", ""]), min_size=1)


# Batches that are enough for a segment: many small segments, or full blocks.
enough = st.sampled_from([1, 99])
asked = st.lists(st.sampled_from(QUESTIONS), min_size=9, max_size=9)


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(parts, doings, enough, asked)
def test_everything_reads_the_same_after_any_compaction(
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
            seal_run(engine, packed)
        elif doing:
            compact_run(engine, packed, LATER if doing == "compact over" else 1e6)
    expected = read_all(engine, plain, questions)
    assert_same(read_all(engine, packed, questions), expected)
    seal_run(engine, packed)
    compact_run(engine, packed)
    assert_same(read_all(engine, packed, questions), expected)
    assert {level for _, level, _ in segments_of(engine, packed)} <= {1}


def segments_of(engine: Engine, run_id: str) -> list[tuple[range, int, int]]:
    """Return (range of sequence numbers, level, snapshots) of each segment."""
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
    """Create a run of sealed snapshots, optionally without one batch of twenty."""
    begin(engine, run_id)
    send(engine, run_id, *((first, 20) for first in range(0, COUNT, 20) if first != without))
    seal_run(engine, run_id)
    return Key(run_id, 1)


COUNT = 300
BLOCKS = [range(first, min(COUNT, first + BLOCK)) for first in range(0, COUNT, BLOCK)]


def test_an_ended_run_has_full_segments_and_a_block_is_sealed_as_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(engine, "compacted")
    before = count_of(engine, func.count(detail_rows.c.body))
    assert compact_run(engine, "compacted") == len(BLOCKS)
    assert segments_of(engine, "compacted") == [(block, 1, len(block)) for block in BLOCKS]
    assert count_of(engine, func.count(detail_rows.c.body)) < before
    packed = func.coalesce(func.length(chunks.c.pieces), 0) + func.length(chunks.c.blob)
    assert count_of(engine, func.sum(segments.c.bytes)) == count_of(engine, func.sum(packed))
    monkeypatch.setattr(sealing, "ENOUGH_BATCHES", 99)
    prepare(engine, "r")
    assert segments_of(engine, "r") == [(block, 1, len(block)) for block in BLOCKS]
    compact_run(engine, "r")
    assert segments_of(engine, "r") == segments_of(engine, "compacted")
    for table in (chunks, detail_rows, segments):
        of_both = [rows_of(engine, table, run_id) for run_id in ("r", "compacted")]
        for mine, other in zip(*of_both, strict=True):
            assert mine == other, table.name


def rows_of(engine: Engine, table: Table, run_id: str) -> list[dict[str, Any]]:
    """Return all columns except when rows arrived, sorted by what the rows are about."""
    with engine.connect() as connection:
        rows = connection.execute(select(table).where(table.c.run_id == run_id)).mappings().all()
    found = [{k: v for k, v in row.items() if k not in ("run_id", "revision")} for row in rows]
    return sorted(found, key=lambda row: [str(v) for k, v in row.items() if k != "body"])


def test_the_newest_segments_of_a_live_run_are_not_compacted(engine: Engine) -> None:
    prepare(engine, "r")
    send(engine, "r", (COUNT, 20))
    compact_run(engine, "r", 1e6)
    found = segments_of(engine, "r")
    assert max(numbers.stop for numbers, level, _ in found if level) == BLOCKS[-1].start
    assert min(numbers.start for numbers, level, _ in found if not level) == BLOCKS[-1].start
    # Live pages get what is newer than the last revision they know, not the entire run again.
    assert compact_run(engine, "r", 1e6) == 0


def test_late_snapshots_join_the_segment_they_belong_to(engine: Engine) -> None:
    prepare(engine, "r", without=100)
    compact_run(engine, "r")
    send(engine, "r", (100, 20))
    seal_run(engine, "r")
    compact_run(engine, "r")
    found = segments_of(engine, "r")
    assert [numbers for numbers, _, _ in found] == BLOCKS
    assert all(len(numbers) == count for numbers, _, count in found)
    assert {level for _, level, _ in found[:-1]} == {1}


def test_segments_that_changed_meanwhile_are_left_alone(
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
    assert compact_run(engine, "r") == len(BLOCKS)
    assert_same(read_all(engine, "r"), whole)


@pytest.mark.parametrize("name", ["rss", "ratio"])
def test_every_point_matches_the_snapshots_under_it(name: str, engine: Engine) -> None:
    prepare(engine, "r")
    compact_run(engine, "r")
    values = np.array(wire(0, COUNT)["columns"]["series"][name])
    query = chart_points.SeriesQuery((name,), axis="sequence", points=len(BLOCKS) + 1)
    (item,) = points_of(engine, "r", query)["items"]
    assert len(item["x"]) == len(BLOCKS)
    for at, (start, stop) in enumerate(zip(item["x"], [*item["x"][1:], COUNT], strict=True)):
        under = values[start:stop]
        assert item["first"][at] == under[0]
        assert item["last"][at] == under[-1]
        assert (item["min"][at], item["max"][at]) == (under.min(), under.max())


def test_a_run_that_was_removed_meanwhile_gets_no_rows(engine: Engine) -> None:
    key = prepare(engine, "r")
    with writing(engine) as connection:
        connection.execute(delete(runs).where(runs.c.id == "r"))
    before = count_of(engine, func.count(chunks.c.blob))
    assert compaction.compact(engine, key, LATER) == 0
    assert count_of(engine, func.count(chunks.c.blob)) == before


def test_servers_that_compact_at_once_make_each_segment_once(engine: Engine) -> None:
    key = prepare(engine, "r", without=100)
    send(engine, "r", (100, 20))
    seal_run(engine, "r")
    whole = read_all(engine, "r")

    def server(_: int) -> None:
        # A server that is late finds the segments changed and checks again.
        while key in compaction.due(engine, LATER):
            compaction.compact(engine, key, LATER)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(server, range(4)))
    assert [numbers for numbers, _, _ in segments_of(engine, "r")] == BLOCKS
    assert_same(read_all(engine, "r"), whole)
    assert count_of(engine, func.sum(chunks.c.count), chunks.c.series_id == TIME) == COUNT


def test_a_process_that_cannot_be_compacted_blocks_no_other(
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

    monkeypatch.setattr(series, "compact", failing)
    compactor = Compactor(engine, now=lambda: LATER)
    compacting = Worker("compact", compactor.once, failed=compactor.failed)
    rests = []
    for _ in range(2):
        while (rest := compacting.attempt()) != LOOK_SECONDS:
            rests.append(rest)
    # It compacts all that is due, one after the other, and pauses.
    assert len(rests) >= len(BLOCKS) and max(rests) < LOOK_SECONDS
    assert len(tried) == 1
    assert "run a bad one" in caplog.text
    assert all(level for _, level, _ in segments_of(engine, "other"))
    # It is tried again later.
    monkeypatch.setattr(series, "compact", plain)
    monkeypatch.setattr("time.monotonic", lambda: LATER)
    while compactor.once() != LOOK_SECONDS:
        continue
    assert compaction.due(engine, LATER) == []
    assert compactor.figures.snapshots == 2 * COUNT


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
    seal_run(engine, "r")
    plain, asked = Stored.read, []

    def reading(stored: Stored, wanted: Any, *rest: Any, **named: Any) -> Any:
        asked.append(len(wanted))
        return plain(stored, wanted, *rest, **named)

    everything = chart_points.SeriesQuery(("*",), axis="sequence")
    before = points_of(engine, "r", everything)
    monkeypatch.setattr(Stored, "read", reading)
    assert compaction.compact(engine, Key("r", 1), LATER) == 64
    monkeypatch.undo()
    assert len(asked) > 4
    assert max(asked) <= compaction.SERIES_AT_ONCE
    assert points_of(engine, "r", everything) == before
    assert len(before["items"]) == 300

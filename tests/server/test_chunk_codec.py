"""What is written into a chunk is what is read from it, and a flipped bit never passes for data."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.server.stored import LATER, R1, engine_of, seal_all

from leakline_server.store import native_module
from leakline_server.store.ingest.incoming_batch import (
    NOT_THERE,
    BatchColumns,
    Body,
    Rows,
    pack,
    unpack,
)
from leakline_server.store.series import compaction, sealing, summary_tree
from leakline_server.store.series.chunk_codec import (
    Array,
    Chunk,
    CorruptChunk,
    Numbers,
    absent,
    compress,
    concatenate_numbers,
    concatenate_texts,
    decode,
    decompress,
    encode,
    numbers,
    texts,
)
from leakline_server.store.series.sealing import chunks_of, encode_rows
from leakline_server.store.series.summary_tree import Cut

integers = st.integers(-(2**53), 2**53)
floats = st.floats(allow_nan=False, allow_infinity=False)
entries = st.one_of(
    st.lists(st.one_of(integers, st.none()), min_size=1, max_size=80),
    st.lists(st.one_of(floats, st.none()), min_size=1, max_size=80),
    # A ramp of pages: what memory really does.
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
def test_numbers_come_back_as_they_went_in(values: list[Any], tight: bool) -> None:
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


def test_usual_series_are_packed_into_few_bytes() -> None:
    rng = np.random.default_rng(1)
    steps = np.cumsum(rng.normal(0.5, 0.01, 4096))
    monotonic, times = np.round(75_600 + steps, 9), 1_763_837_968 + steps
    for values in (monotonic, times, np.round(times, 3)):
        plain, tight = encode(Numbers(values)), encode(Numbers(values), tight=True)
        assert len(tight.blob) < 0.75 * len(plain.blob)
    assert len(tight.blob) < 1.5 * 4096
    # A constant costs nothing but its checksum, and a ramp of pages about a byte an entry.
    assert len(encode(numbers([16] * 512)).blob) == 4
    ramp = (2**30 + 4096 * np.cumsum(rng.integers(0, 100, 512))).tolist()
    assert len(encode(numbers(ramp)).blob) < 1.1 * 512 + 40


@given(st.lists(st.one_of(integers, floats, st.none()), min_size=1, max_size=60), st.integers(1, 9))
def test_pieces_tell_the_same_as_the_entries_under_them(values: list[Any], step: int) -> None:
    column = numbers(values)
    starts = np.arange(0, len(values), step)
    counts = np.diff(np.append(starts, len(values)))
    found = summary_tree.spread(
        summary_tree.unpack(summary_tree.pack(summary_tree.summed(column, starts), counts)),
        counts,
    )
    for record, start in zip(found.tolist(), starts, strict=True):
        there = [float(v) for v in values[start : start + step] if v is not None]
        if there:
            assert record == [len(there), there[0], there[-1], min(there), max(there)]
        else:
            assert record == [0] * 5


@given(st.binary(max_size=200), st.integers(0, 8 * 84 - 1))
def test_damaged_pieces_are_noticed(garbage: bytes, bit: int) -> None:
    column = numbers([1, 5, 9, 2])
    packed = summary_tree.pack(summary_tree.summed(column, np.array([0, 2])), np.array([2, 2]))
    for damaged in (flipped(packed, bit), garbage, flipped(packed, bit)[:-3]):
        with pytest.raises(CorruptChunk):
            summary_tree.unpack(damaged)


words = st.one_of(
    st.text(max_size=20), st.none(), st.sampled_from(("", "a", "é", "evaluate/" + "x" * 90))
)


@given(st.lists(st.lists(words, max_size=20), min_size=1, max_size=5))
def test_texts_come_back_as_they_went_in_and_are_joined(parts: list[list[str | None]]) -> None:
    values = [value for part in parts for value in part]
    packed = texts(values)
    assert concatenate_texts([texts(part) for part in parts]).to_list() == values
    if values:
        assert decode(encode(packed)).to_list() == values
    with in_python():
        other = texts(values)
    assert (other.names, other.index.tobytes()) == (packed.names, packed.index.tobytes())


@given(entries)
def test_a_chunk_tells_the_first_last_smallest_and_largest_without_being_opened(
    values: list[Any],
) -> None:
    chunk = encode(numbers(values))
    there = [v for v in values if v is not None]
    expected = (there[0], there[-1], min(there), max(there)) if there else (None,) * 4
    assert (chunk.first, chunk.last, chunk.min, chunk.max) == expected


@given(entries, st.data())
def test_a_flipped_bit_is_noticed(values: list[Any], data: st.DataObject) -> None:
    chunk = encode(numbers(values))
    bit = data.draw(st.integers(0, len(chunk.blob) * 8 - 1))
    assert read_as(replace(chunk, blob=flipped(chunk.blob, bit))) in (None, values)


@pytest.mark.parametrize("change", [{"first": 7.0}, {"max": 1e9}, {"count": 4}, {"width": 2}])
def test_a_changed_number_or_a_blob_that_is_cut_off_is_noticed(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptChunk):
        decode(replace(encode(numbers([1, 2, 3])), **change))
    cut_off = encode(numbers([1, 200, 3, None]))
    with pytest.raises(CorruptChunk):
        decode(replace(cut_off, blob=cut_off.blob[:-3]))


def test_a_stretch_without_values_does_not_turn_integers_into_floats() -> None:
    joined = concatenate_numbers([numbers([1, 2]), numbers([None, None]), numbers([3])])
    assert joined.to_list() == [1, 2, None, None, 3]
    assert joined.values.dtype == np.int64


def test_no_bit_of_the_head_of_a_frame_takes_memory_or_passes() -> None:
    """The head says how many bytes the frame holds, which are allocated before anything else is looked at."""
    random = np.random.default_rng(3)
    whole = encode(Numbers(random.integers(-(2**53), 2**53, 4_096)))
    values = decode(whole).to_list()
    for bit in range(8 * 20):
        # What is not looked at may be flipped, such as whether a checksum of the frame follows.
        assert read_as(replace(whole, blob=flipped(whole.blob, bit))) in (None, values)


def test_a_frame_cannot_say_that_it_holds_more_than_its_bytes_can() -> None:
    frame = compress(b"x" * 70_000)
    assert decompress(frame) == b"x" * 70_000
    said = frame[:5] + (2**29).to_bytes(4, "little") + frame[9:]
    with pytest.raises(CorruptChunk, match="more than it can"):
        decompress(said)


without_native = pytest.mark.skipif(
    native_module.native() is None, reason=f"no native module: {native_module.why_not_native()}"
)


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
    body = body_of(count, whole=dict(zip(ids.tolist(), values, strict=True)), floats=floats)
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


def body_of(
    count: int,
    *,
    constant: Mapping[int, int] | None = None,
    whole: Mapping[int, Array] | None = None,
    holed: Mapping[int, Array] | None = None,
    floats: Mapping[int, Array] | None = None,
) -> Body:
    """A batch of series by number."""

    def rows(of: Mapping[int, Array] | None, dtype: type[Any]) -> Rows:
        found = of or {}
        return Rows([*map(str, found)], np.array([*found.values()], dtype).reshape(-1, count))

    still = {str(number): value for number, value in (constant or {}).items()}
    columns = BatchColumns(
        np.arange(count) / 8, np.arange(count) / 8, [None] * count, [None] * count, [None] * count,
        ["phase_end"] * count, rows(whole, np.int64), rows(holed, np.int64), rows(floats, np.float64), still,
    )  # fmt: skip
    return unpack(pack(columns, {name: int(name) for name in columns.names()}), dict)


@st.composite
def batches(draw: st.DrawFn) -> list[Body]:
    """Up to six, of up to four series each of which is in any of them as anything."""
    found = []
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.sampled_from((1, 2, 9, 40)))
        kinds = draw(st.lists(st.integers(0, 5), min_size=4, max_size=4))
        size = draw(st.sampled_from((3, 2**9, 2**20, 2**40, 2**52)))
        numbers = {n: random.integers(-size, size, count) for n in range(1, 5)}
        there = random.random(count) < 0.6
        parts = [{n: v for n, v in numbers.items() if kinds[n - 1] == k} for k in range(4)]
        found.append(
            body_of(
                count,
                constant={n: int(v[0]) for n, v in parts[0].items()},
                whole=parts[1],
                holed={n: np.where(there, v, NOT_THERE) for n, v in parts[2].items()},
                floats={n: np.where(there, v / 8, np.nan) for n, v in parts[3].items()},
            )
        )
    return found


@without_native
@settings(max_examples=150)
@given(batches(), st.booleans())
def test_both_ways_make_the_same_chunks(bodies: list[Body], compacted: bool) -> None:
    firsts = [100 * at for at in range(len(bodies))]
    natively = list(chunks_of(firsts, bodies, compacted=compacted))
    with in_python():
        assert list(chunks_of(firsts, bodies, compacted=compacted)) == natively
    for number in {n for n, _, _ in natively if n > 0}:
        column = concatenate_numbers([b.series(number) or absent(len(b)) for b in bodies])
        chunk = encode(column, tight=compacted)
        assert [c for n, c, _ in natively if n == number] == [chunk]


@without_native
@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 70), st.integers(0, 62))
def test_both_ways_encode_the_same_rows(seed: int, count: int, bits: int) -> None:
    random = np.random.default_rng(seed)
    table = random.integers(-(2**bits), 2**bits, (6, count)) << random.integers(0, 63 - bits)
    table[0] = table[0, 0]
    table[random.integers(1, 6), random.integers(0, count)] = NOT_THERE
    if bits == 62:
        # The one is more than half of what there is above the other, and as floats some are equal.
        table[5] = 2**60 + random.integers(0, 3, count)
    sequence = np.cumsum(random.integers(1, 200, count))
    for cut in (None, Cut(sequence)):
        natively = list(encode_rows(table, cut))
        with in_python():
            assert list(encode_rows(table, cut)) == natively


@without_native
@settings(max_examples=300)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9)
    | st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=9),
    st.integers(0, 11),
)
def test_both_ways_find_the_same_decimals(values: list[float], decimals: int) -> None:
    column = Numbers(np.array(values, np.float64) / 10**decimals)
    natively = encode(column, tight=True)
    with in_python():
        assert encode(column, tight=True) == natively
    assert decode(natively).to_list() == column.to_list()


def test_a_body_whose_columns_are_of_other_lengths_is_damaged() -> None:
    body = body_of(
        3,
        constant={1: 5},
        whole={2: np.arange(3)},
        holed={3: np.array([1, NOT_THERE, 2])},
        floats={4: np.array([0.5, 1.5, np.nan])},
    )
    packed = msgspec.msgpack.encode(body.packed)
    assert len(unpack(compress(packed), dict)) == 3
    form = msgspec.msgpack.decode(packed)
    data = [at for at, value in enumerate(form) if isinstance(value, bytes)]
    assert len(data) == 11
    longer = [[*form[:at], form[at] + bytes(4), *form[at + 1 :]] for at in data]
    other_count = [[1, count, *form[2:]] for count in (2, -3)]
    for broken in (*longer, *other_count, [*form[:12], 3, *form[13:]]):
        with pytest.raises(CorruptChunk):
            unpack(compress(msgspec.msgpack.encode(broken)), dict)


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_module, "_loaded", lambda: (None, "not now"))
        yield

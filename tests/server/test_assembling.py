"""The batches of a process become chunks with the same values, a few hundred series at a time."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.server.stored import LATER, make_idle

from leakline_server.store import compaction, compiled, sealing
from leakline_server.store.assembling import chunks_of
from leakline_server.store.batch_columns import NOT_THERE, BatchColumns, Rows
from leakline_server.store.codec import (
    Array,
    CorruptChunk,
    Numbers,
    absent,
    compress,
    concatenate_numbers,
    decode,
    encode,
    texts,
)
from leakline_server.store.columns import Key
from leakline_server.store.cutting import Cut
from leakline_server.store.encode_rows import encode_rows
from leakline_server.store.engine import Engine
from leakline_server.store.packed import Body, pack, unpack

KEY = Key("r1", 1)
without_native = pytest.mark.skipif(
    compiled.native() is None, reason=f"no native module: {compiled.why_not_native()}"
)


def seal_all(engine: Engine) -> None:
    make_idle(engine)
    while sealing.seal_one(engine, KEY, LATER).snapshots:
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


@without_native
@given(st.lists(st.sampled_from(("", "a", "é", "evaluate/" + "x" * 90)) | st.none()))
def test_both_ways_number_the_same_texts(values: list[str | None]) -> None:
    natively = texts(values)
    assert natively.to_list() == values
    with in_python():
        other = texts(values)
    assert (other.names, other.index.tobytes()) == (natively.names, natively.index.tobytes())


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
        patch.setattr(compiled, "_loaded", lambda: (None, "not now"))
        yield

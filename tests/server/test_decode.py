"""A batch is decoded natively as value by value, is packed and reads back as it was sent; and what that costs."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline_server.errors import InvalidField, RequestRefused
from leakline_server.ingest import decode
from leakline_server.ingest.decode import SeriesRead, read_series
from leakline_server.limits import MAX_BATCH_SERIES, MAX_SNAPSHOTS
from leakline_server.store import native_module
from leakline_server.store.ingest import incoming_batch, wire_types
from leakline_server.store.ingest.incoming_batch import NOT_THERE, BatchColumns, of_lists
from leakline_server.store.series.chunk_codec import CorruptChunk, Numbers, compress, decompress

without_native = pytest.mark.skipif(
    native_module.native() is None, reason=f"no native module: {native_module.why_not_native()}"
)


integers = st.integers(-(2**53), 2**53)
floats = st.floats(allow_nan=False, allow_infinity=False, width=64)
plain_floats = st.floats(-1e15, 1e15)


@st.composite
def tables(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> dict[str, list[Any]]:
    count = draw(st.sampled_from((1, 2, 7, 48, 60)))
    same = st.builds(lambda value: [value] * count, integers)
    kinds = [
        same,
        st.lists(integers, min_size=count, max_size=count),
        st.lists(integers | st.none(), min_size=count, max_size=count),
        st.lists(values, min_size=count, max_size=count),
    ]
    names = [f"gauge.s{i}" for i in range(draw(st.integers(1, 6)))]
    return {name: draw(st.one_of(kinds)) for name in names}


def texts(series: dict[str, str]) -> bytes:
    return ("{" + ",".join(f'"{name}":{text}' for name, text in series.items()) + "}").encode()


def body_of(table: dict[str, Any]) -> bytes:
    count = len(next(iter(table.values())))
    columns = {
        "time": [1.0 + i for i in range(count)], "monotonic": [0.5 + i for i in range(count)],
        "generation": [None if i % 3 == 0 else i for i in range(count)],
        "phase": ["train" if i % 2 else None for i in range(count)], "label": [None] * count,
        "kind": ["phase_end"] * count, "series": table,
    }  # fmt: skip
    sent = {"version": 1, "process": {"instance": "p"}, "first_sequence": 0, "columns": columns}
    return json.dumps(sent, separators=(",", ":")).encode()


def lists(columns: BatchColumns) -> dict[str, list[Any]]:
    return {name: column.to_list() for name in columns.names() if (column := columns.numbers(name))}


@without_native
@settings(max_examples=50)
@given(tables(integers | floats | st.none()))
def test_a_batch_is_taken_or_refused_alike_in_either_way(table: dict[str, list[Any]]) -> None:
    body = body_of(table)
    assert taken(body) == taken_value_by_value(body)
    # And with a float of more digits than anybody writes.
    long = body.replace(b'"series":{', b'"series":{"x":[' + b"0." + b"1" * 90 + b"],")
    assert taken(long) == taken_value_by_value(long)


def taken(body: bytes) -> dict[str, list[Any]]:
    try:
        return lists(decode.check("r", body, 1.0).columns)
    except RequestRefused as error:
        return {"error": [error.code, error.message]}


def taken_value_by_value(body: bytes) -> dict[str, list[Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_plain", lambda body: None)
        return taken(body)


NOT_PLAIN = (
    "[1,2,3", "[1,2]", "[1,2,3,4]", "[]", "3", "null", '["1",2,3]', "[[1],2,3]", "[true,2,3]",
    "[1,2,99999999999999999999]", "[1,null,-99999999999999999999]", "[1,2,-9223372036854775808]",
    "[1.5,2,1e400]", "[1.5,2,1e16]", "[{},2,3]", "[1,2,4611686018427387904]",
    "[1,2,9007199254740993]", "[1,2,-9007199254740993]", "[1.5,2,-1e16]",
    # No JSON, so they come here only where it was not looked at.
    "[01,2,3]", "[1,2,+3]", "[1.,2,3]", "[.5,2,3]", "[1.5,2,3e]", "[1.5,-,3]", "[1,,3]", "[1,2,3,]", "[1 2,3]",
    "[ ]", "[nul,2,3]", "[NaN,2,3]", "[1.5,Infinity,3]", "[0x1,2,3]", "[1_0,2,3]", "[--1,2,3]", "[1.5e+-1,2,3]",
)  # fmt: skip
# Those that need a second look, or are no text.
NAMES = (
    *(name.encode() for name in (
        "", "n" * 513, "é" * 513, "\\u0061", "a\\n", "del\x7f", "a\x01", "a\n", "twice", "zweimal ß")),
    b"\xff", b"\xed\xa0\x80", b"a\xc3", b"\xc0\x80",
)  # fmt: skip
NO_OBJECTS = (
    b"", b"{", b"}", b"[1]", b"3", b'"', b"{}}", b"{,}", b'{"a":[1]},', b'{"a":[1],"a":[1]}',
)  # fmt: skip


@without_native
def test_what_is_not_plain_is_left_to_be_read_value_by_value() -> None:
    plain = {"b": "[1,2,3]", "c": "[1.5,null,2]"}
    assert read_series(texts(plain), 3) is not None
    for text in NOT_PLAIN:
        assert read_series(texts({"a": text, "b": "[1,2,3]"}), 3) is None, text
        assert read_series(texts({"a": text, **plain}), 3) is None, text


@without_native
def test_what_has_names_that_are_none_or_is_no_object_of_lists_of_one_length_is_not_read() -> None:
    whole = texts({"twice": "[1]", "zweimal ß": "[1]", "x": "[2]"})
    assert read_series(whole, 1) is not None
    named = [whole[:-1] + b',"' + name + b'":[1]}' for name in NAMES]
    for text in (*named, *NO_OBJECTS):
        assert read_series(text, 1) is None, text
    # Others do not make up for one that is too short.
    assert read_series(texts({"a": "[1,2]", "b": "[1,2,3,4]", "c": "[1,2,3]"}), 3) is None


@without_native
def test_a_constant_series_is_one_number() -> None:
    many = {"a": [5] * 48, "b": [-0] * 48, "c": [5] * 47 + [6], "d": [None] * 48, "e": [1.5] * 48}
    found = read_series(json.dumps(many).encode(), 48)
    assert found is not None
    assert found.constant == {"a": 5, "b": 0}
    assert (found.whole.names, found.holed.names, found.floats.names) == (["c"], ["d"], ["e"])
    few = read_series(json.dumps({"a": [5] * 47}).encode(), 47)
    assert few is not None
    assert (few.constant, few.whole.names) == ({}, ["a"])
    none = read_series(b" { } ", 7)
    assert none is not None and none.whole.values.shape == none.floats.values.shape == (0, 7)
    assert read_series(b'{"a":[]}', 0) is None


digits = st.integers(0, 10**25 - 1).map(str)
written_floats = st.builds(
    "{}{}.{}{}".format,
    st.sampled_from(["", "-"]),
    st.integers(0, 10**15),
    digits,
    st.just("") | st.builds("e{:+}".format, st.integers(-40, 25)),
)
spaces = st.sampled_from(["", "", "", " ", "\n", " \t\r\n "])
plain_entries = st.one_of(
    integers.map(str),
    st.just("null"),
    plain_floats.map(repr),
    st.sampled_from(["0", "-0", "-0.0", "0.0", "0e0", "1E5", "1e-5", "-1.5e+3", "5e-324", "1e-400", "0e999"]),
    written_floats,
)  # fmt: skip
odd_entries = st.one_of(
    st.integers().map(str),
    floats.map(repr),
    st.sampled_from(["true", "[1]", "{}", '"1"', "9007199254740993", "-9223372036854775808"]),
)
all_names = st.one_of(
    st.integers(0, 9).map(lambda i: f"gauge.s{i}"),
    st.text(
        st.characters(min_codepoint=32, exclude_characters='"\\\x7f', exclude_categories=["Cs"]),
        min_size=1,
        max_size=40,
    ),
)


@st.composite
def objects(draw: st.DrawFn) -> tuple[bytes, int]:
    """The JSON of some series, which may be anything, and how many numbers each should have."""
    count = draw(st.sampled_from([1, 2, 3, 5, 50]))
    series = []
    for name in draw(st.lists(all_names, max_size=6)):
        length = draw(st.sampled_from([count] * 30 + [count - 1, count + 1, 0]))
        entries = odd_entries if draw(st.integers(0, 30)) == 0 else plain_entries
        if length == 50:
            written = draw(st.lists(entries, min_size=1, max_size=3)) * 50
        else:
            written = draw(st.lists(entries, min_size=length, max_size=length))
        between = [draw(spaces) for _ in range(6)]
        text = f"{between[0]},{between[1]}".join(written[:length])
        series.append(
            f'{between[2]}"{name}"{between[3]}:{between[4]}[{between[5]}{text}{between[2]}]{between[3]}'
        )
    return ("{" + ",".join(series) + draw(spaces) + "}").encode(), count


def as_read(found: SeriesRead, count: int) -> Any:
    """By name, the kind of series and its numbers to the bit; a constant series is a whole one."""
    read = {name: ("whole", np.full(count, v).tobytes()) for name, v in found.constant.items()}
    for kind, rows in (("whole", found.whole), ("holed", found.holed), ("floats", found.floats)):
        assert rows.values.shape == (len(rows.names), count)
        read |= {n: (kind, row.tobytes()) for n, row in zip(rows.names, rows.values, strict=True)}
    return read


def as_json_reads(text: bytes) -> Any:
    """The same of what the standard library reads; a name that occurs twice is an error."""

    def of_series(values: list[Any]) -> tuple[str, bytes]:
        if float in map(type, values):
            filled = [np.nan if v is None else float(v) for v in values]
            return "floats", np.array(filled, np.float64).tobytes()
        kind = "holed" if None in values else "whole"
        filled = [NOT_THERE if v is None else int(v) for v in values]
        return kind, np.array(filled, np.int64).tobytes()

    def of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return {name: of_series(values) for name, values in pairs}

    # Integers stay texts until the kind of their series is known: as a float, "-0" keeps its sign.
    return json.loads(text.decode(), object_pairs_hook=of_pairs, parse_int=str)


@without_native
@settings(max_examples=80)
@given(objects(), st.data())
def test_what_is_read_of_a_text_whole_or_with_a_wrong_byte_is_what_json_reads_to_the_bit(
    made: tuple[bytes, int], data: st.DataObject
) -> None:
    text, count = made
    at = data.draw(st.integers(0, len(text) - 1))
    byte = data.draw(st.integers(0, 255) | st.sampled_from(b'{}[]",:-.eEn \\0'))
    broken = text[:at] + bytes((byte,)) + text[at + 1 :]
    for each in (text, broken, text[:at], text[at:]):
        found = read_series(each, count)
        assert found is None or as_read(found, count) == as_json_reads(each)


@without_native
def test_a_batch_of_more_names_than_are_kept_has_each_of_them_once() -> None:
    first, again = (read_series(b'{"gauge.a":[1]}', 1) for _ in range(2))
    assert first is not None and again is not None
    assert first.whole.names[0] is again.whole.names[0]
    text = texts({f"gauge.s{i}": f"[{i}]" for i in range(10_000)})
    for _ in range(2):
        found = read_series(text, 1)
        assert found is not None
        assert found.whole.names == [f"gauge.s{i}" for i in range(10_000)]
        assert found.whole.values[:, 0].tolist() == list(range(10_000))
    for i in (0, 17, 4_711, 9_999):
        assert read_series(text[:-1] + f',"gauge.s{i}":[1]}}'.encode(), 1) is None


@without_native
def test_nothing_is_left_behind_by_what_was_read_or_was_not() -> None:
    plain = texts({"a": "[1,2]", "é" * 40: "[1,null]", "f": "[1.25,0.12345678901234567]"})
    still = json.dumps({"a": [2**40] * 60, "b": list(range(60))}).encode()
    broken = [plain[:-2], plain.replace(b"2]", b"2,3]"), plain.replace(b'"f"', b'"a"'), b"{"]
    many = [texts({f"{kind}.{i}": "[1]" for i in range(3_000)}) for kind in "ab"]

    def read_all() -> None:
        # Names that nobody sends again take the places of others, and not more.
        assert all(read_series(text, 1) is not None for text in many)
        for _ in range(300):
            assert read_series(plain, 2) is not None
            assert read_series(still, 60) is not None
            assert all(read_series(text, 2) is None for text in broken)

    def left_behind() -> int:
        gc.collect()
        before = sys.getallocatedblocks()
        read_all()
        gc.collect()
        return abs(sys.getallocatedblocks() - before)

    read_all()
    # What is left behind is so each time; what other threads of this process take meanwhile is not.
    assert min(left_behind() for _ in range(3)) < 100


def test_the_module_can_be_switched_off_and_says_so() -> None:
    code = "from leakline_server.store.native_module import *; print(native(), why_not_native())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LEAKLINE_NATIVE": "0"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "None LEAKLINE_NATIVE=0 switches it off"


def test_a_module_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAKLINE_NATIVE", raising=False)
    monkeypatch.setitem(sys.modules, "leakline_server._native", SimpleNamespace(interface=0))
    native_module.forget()
    try:
        assert native_module.native() is None
        assert "install leakline again" in str(native_module.why_not_native())
        assert taken(body_of({"gauge.a": [1]})) == {"gauge.a": [1]}
    finally:
        native_module.forget()


@settings(max_examples=50)
@given(tables(integers | plain_floats | st.none()))
def test_a_body_is_read_back_as_it_was_packed(table: dict[str, list[Any]]) -> None:
    columns = decode.check("r", body_of(table), 1.0).columns
    if len(columns.time) > 9:
        # What is packed of a part is contiguous.
        columns = columns.slice(3, 9)
    numbered = {name: 70_000 + i for i, name in enumerate(table)}
    body = incoming_batch.unpack(incoming_batch.pack(columns, numbered), dict)
    for name, number in numbered.items():
        column = body.series(number)
        assert column is not None
        assert column.to_list() == lists(columns)[name]
    assert body.series(1) is None
    assert body.time.tolist() == columns.time.tolist()
    assert body.monotonic.tolist() == columns.monotonic.tolist()
    assert (body.generation, body.phase, body.label, body.kind) == (
        columns.generation, columns.phase, columns.label, columns.kind,
    )  # fmt: skip


def test_a_second_clock_that_says_the_same_takes_no_room() -> None:
    columns = decode.check("r", body_of({"gauge.a": list(range(60))}), 1.0).columns
    numbered = {"gauge.a": 1}
    columns.monotonic[:] = columns.time
    body = incoming_batch.pack(columns, numbered)
    form = msgspec.msgpack.decode(decompress(body))
    assert (len(form[2]), len(form[3])) == (8 * 60, 0)
    assert incoming_batch.unpack(body, dict).monotonic.tolist() == columns.time.tolist()
    columns.monotonic[7] += 0.5
    read = incoming_batch.unpack(incoming_batch.pack(columns, numbered), dict)
    assert read.monotonic.tolist() == columns.monotonic.tolist()


def test_a_flipped_bit_in_a_body_is_noticed() -> None:
    columns = decode.check("r", body_of({"gauge.a": list(range(60))}), 1.0).columns
    body = incoming_batch.pack(columns, {"gauge.a": 1})
    noticed = 0
    for at in range(len(body)):
        broken = body[:at] + bytes((body[at] ^ 4,)) + body[at + 1 :]
        try:
            read = incoming_batch.unpack(broken, dict)
        except CorruptChunk:
            noticed += 1
            continue
        # A few bits of a frame mean nothing.
        assert read.time.tolist() == columns.time.tolist()
        column = read.series(1)
        assert column is not None
        assert column.to_list() == list(range(60))
    assert noticed > len(body) - 8


def test_a_body_of_an_older_version_is_read() -> None:
    sent = body_of({"gauge.a": [1, None, 3], "gauge.b": [1.5, 2, None], "gauge.gone": [1, 1, 1]})
    body = incoming_batch.unpack(compress(sent), lambda: {"gauge.a": 4, "gauge.b": 9})
    found = {number: body.series(number) for number in (4, 9, 1)}
    assert isinstance(found[4], Numbers)
    assert isinstance(found[9], Numbers)
    assert (found[4].to_list(), found[9].to_list(), found[1]) == (
        [1, None, 3],
        [1.5, 2, None],
        None,
    )
    assert body.phase == [None, "train", None]


def test_a_body_of_a_later_form_is_not_guessed_at() -> None:
    columns = of_lists(wire_types.Columns([1.0], [1.0], [None], [None], [None], ["manual"], {}))
    form = msgspec.msgpack.decode(decompress(incoming_batch.pack(columns, {})))
    form[0] = 2
    with pytest.raises(CorruptChunk, match="its form is 2"):
        incoming_batch.unpack(compress(msgspec.msgpack.encode(form)), dict)


TRIES: Final = 3


def batch(**told: Any) -> bytes:
    wire = {"version": 1, "process": {"instance": "p1"}, "first_sequence": 0, **told}
    return json.dumps(wire, separators=(",", ":")).encode()


def snapshots(names_each: int) -> list[dict[str, Any]]:
    """As many as may come, each with names of its own."""
    return [
        {"time": float(at), "series": {f"g{at * names_each + i}": i for i in range(names_each)}}
        for at in range(MAX_SNAPSHOTS)
    ]


def in_columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = {name for row in rows for name in row["series"]}
    series = {name: [row["series"].get(name) for row in rows] for name in names}
    return {
        "count": len(rows),
        "columns": {"time": [row["time"] for row in rows], "series": series},
    }


def refused(body: bytes) -> None:
    with pytest.raises(InvalidField, match="at most 4000 series"):
        decode.check("r1", body, 1e9)


def seconds(step: Callable[[bytes], object], body: bytes) -> float:
    """CPU, of the cheapest try."""
    took = []
    for _ in range(TRIES):
        began = time.process_time()
        step(body)
        took.append(time.process_time() - began)
    return min(took)


def peak_bytes(step: Callable[[bytes], object], body: bytes) -> int:
    tracemalloc.start()
    try:
        step(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_snapshots_with_names_of_their_own_are_refused_before_they_become_columns() -> None:
    # Measured: 1.2 times; as columns 310 times, of 20,000 names, and 20 s of as many as here.
    body = batch(snapshots=snapshots(750))
    assert len(body) < 2**21
    assert seconds(refused, body) <= 10 * seconds(msgspec.json.decode, body)
    small = batch(snapshots=snapshots(100))
    # Measured: 1.1 times; as columns 57 times.
    assert peak_bytes(refused, small) <= 2 * peak_bytes(msgspec.json.decode, small)


def check(body: bytes) -> None:
    decode.check("r1", body, 1e9)


def test_as_many_names_as_may_be_cost_no_more_one_by_one_than_in_columns() -> None:
    rows = snapshots(MAX_BATCH_SERIES // MAX_SNAPSHOTS)
    one_by_one, columns = batch(snapshots=rows), batch(**in_columns(rows))
    # Measured: 0.15 times; by way of columns of objects 1.3 times.
    assert seconds(check, one_by_one) <= 0.6 * seconds(check, columns)
    # Few bytes that become many numbers wait as many.
    assert len(one_by_one) < 50_000
    size = decode.check("r1", one_by_one, 1e9).size_bytes
    assert size == MAX_BATCH_SERIES * MAX_SNAPSHOTS * 8


def test_rows_are_the_columns_they_would_have_been() -> None:
    values = [{"a": 1}, {"a": 2, "b": 1.5, "c": None}, {"a": 3, "b": 2, "d": 4}]
    rows: list[dict[str, Any]] = [
        {"time": float(at), "phase": "p" if at else None, "series": series}
        for at, series in enumerate(values)
    ]
    found = decode.check("r1", batch(snapshots=rows), 1e9).columns
    told = in_columns(rows)
    told["columns"]["phase"] = [row["phase"] for row in rows]
    other = decode.check("r1", batch(**told), 1e9).columns
    assert sorted(found.names()) == sorted(other.names()) == ["a", "b", "c", "d"]
    for name in found.names():
        one, two = found.numbers(name), other.numbers(name)
        assert one is not None and two is not None
        assert one.values.dtype == two.values.dtype
        np.testing.assert_array_equal(one.values, two.values)
        np.testing.assert_array_equal(np.asarray(one.present), np.asarray(two.present))
    assert (found.phase, found.kind) == (other.phase, other.kind)
    np.testing.assert_array_equal(found.monotonic, other.monotonic)
    # The snapshot with the wrong number is named.
    rows = [{"time": 1.0, "series": {}}, {"time": 2.0, "series": {"gauge.x": 1e300}}]
    with pytest.raises(InvalidField) as told:
        decode.check("r1", batch(snapshots=rows), 1e9)
    assert told.value.field == "columns.series.gauge.x[1]"


def test_a_backslash_does_not_make_a_batch_expensive() -> None:
    columns = {
        "time": [1.0 + at for at in range(MAX_SNAPSHOTS)],
        "label": [r"C:\data"] + ["b"] * (MAX_SNAPSHOTS - 1),
        "series": {f"g{i}": [i % 9 + at % 3 for at in range(MAX_SNAPSHOTS)] for i in range(2_000)},
    }
    body = batch(count=MAX_SNAPSHOTS, columns=columns)
    # Measured: 8 times; where each number was looked through for control characters 24 times.
    assert seconds(check, body) <= 15 * seconds(msgspec.json.decode, body)

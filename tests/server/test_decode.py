"""A batch of either version is decoded, packed and read back unchanged; and what that costs."""

from __future__ import annotations

import json
import math
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

from leakline.snapshot import (
    Batch,
    Census,
    Event,
    ProcessIdentity,
    Snapshot,
    batch_from_bytes,
    batch_to_bytes,
)
from leakline_server.errors import InvalidField, RequestRefused
from leakline_server.ingest import decode
from leakline_server.limits import MAX_BATCH_SERIES, MAX_SNAPSHOTS
from leakline_server.store.columns import CorruptChunk, Numbers, compress, decompress
from leakline_server.store.ingest import incoming_batch, wire_types
from leakline_server.store.ingest.incoming_batch import NOT_THERE, BatchColumns, of_lists
from leakline_server.store.series import sealing

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


# Among doubles, an integral value of this size may have been an integer.
told_apart = floats.filter(lambda value: not 1e15 < abs(value) <= 2**53)


@settings(max_examples=50)
@given(tables(integers | told_apart | st.none()))
def test_a_batch_is_accepted_or_refused_alike_in_either_version(
    table: dict[str, list[Any]],
) -> None:
    wire = json.loads(body_of(table))
    assert taken(binary(wire)) == taken(json.dumps(wire).encode())


def binary(wire: dict[str, Any], numbers: bytes | None = None, **fields: Any) -> bytes:
    """Return a version 1 batch as version 2, with other bytes after the head or other ``fields`` in it."""
    columns = wire["columns"]
    series = columns["series"]
    floats = [name for name, values in series.items() if float in map(type, values)]
    integers = [name for name in series if name not in floats]
    head = {
        **{key: value for key, value in wire.items() if key != "columns"}, "version": 2,
        "count": len(columns["time"]), "integers": integers, "floats": floats,
        **{name: columns[name] for name in ("generation", "phase", "label", "kind")}, **fields,
    }  # fmt: skip
    if numbers is None:
        doubles = [columns["time"], columns["monotonic"], *(series[name] for name in floats)]
        whole = [[NOT_THERE if v is None else v for v in series[name]] for name in integers]
        packed = [np.array(values, "<f8").tobytes() for values in doubles]
        packed[2:2] = [np.array(values, "<i8").tobytes() for values in whole]
        numbers = b"".join(packed)
    text = json.dumps(head).encode()
    return b"LEAK" + len(text).to_bytes(4, "little") + text + numbers


def taken(body: bytes) -> dict[str, list[Any]]:
    try:
        return lists(decode.check("r", body, 1.0).columns)
    except RequestRefused as error:
        return {"error": [error.code, error.message]}


def test_server_and_client_decode_what_the_client_encodes() -> None:
    who = ProcessIdentity("p", 1, 2, "h", "worker", 3)
    snapshots = tuple(
        Snapshot(
            7 + i, 1.0 + i, 0.5 + i, None if i == 0 else i, "train" if i else None, f"é {i}", "phase_end",
            {"a": 2**53 - i, **({"b": -i} if i else {}), "c": 0.1 * i, **({} if i else {"d": 1.5})},
            events=(Event(7 + i, 1.0, "mark", "m"),) if i else (),
            census=Census(7, "full", 1.0, 3, (("dict", 2, None),)) if i == 0 else None,
        )
        for i in range(3)
    )  # fmt: skip
    batch = Batch(who, snapshots, {"queue_full": 4})
    data = batch_to_bytes(batch)
    assert batch_from_bytes(data) == batch
    found = decode.check("r", data, 1.0)
    assert (found.process, found.first_sequence, found.count, found.lost) == (who, 7, 3, batch.lost)
    assert lists(found.columns) == {
        "a": [2**53, 2**53 - 1, 2**53 - 2],
        "b": [None, -1, -2],
        "c": [0.0, 0.1, 0.2],
        "d": [1.5, None, None],
    }
    assert found.columns.time.tolist() == [1.0, 2.0, 3.0]
    assert found.columns.monotonic.tolist() == [0.5, 1.5, 2.5]
    assert (found.columns.generation, found.columns.label) == ([None, 1, 2], ["é 0", "é 1", "é 2"])
    nothing = batch_to_bytes(Batch(who, (), {"queue_full": 1}))
    assert decode.check("r", nothing, 1.0).count == 0
    assert batch_from_bytes(nothing).lost == {"queue_full": 1}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_client_sends_only_finite_numbers(value: float) -> None:
    snapshot = Snapshot(0, 1.0, 1.0, None, None, "", "manual", {"gauge.a": value})
    with pytest.raises(ValueError, match="not finite"):
        batch_to_bytes(Batch(ProcessIdentity("p"), (snapshot,)))


WIRE: Final = {
    "version": 1, "process": {"instance": "p"}, "first_sequence": 0,
    "columns": {
        "time": [1.0, 2.0], "monotonic": [1.0, 2.0], "generation": [1, None], "phase": [None, "p"],
        "label": [None, None], "kind": ["sample"] * 2, "series": {"a.bytes": [1, None], "f": [0.5, None]},
    },
}  # fmt: skip
NUMBERS: Final = binary(WIRE)[-64:]


def with_number(at: int, value: float) -> bytes:
    """Return the batch with another number at this position."""
    return binary(WIRE, NUMBERS[: 8 * at] + np.array([value]).tobytes() + NUMBERS[8 * at + 8 :])


BROKEN: Final[dict[str, tuple[bytes, str, str | None]]] = {
    "no length": (b"LEAK\x00\x00", "malformed_batch", None),
    "no head": (b"LEAK" + bytes(4), "malformed_json", None),
    "a head longer than the body": (b"LEAK\xff\xff\xff\xff{}", "malformed_batch", None),
    "a head cut short": (b"LEAK\x09\x00\x00\x00" + binary(WIRE)[8:], "malformed_json", None),
    "sequences, as in a spool": (binary(WIRE, sequences=[1, 9]), "invalid_field", "sequences"),
    "numbers cut short": (binary(WIRE)[:-1], "malformed_batch", None),
    "a number too few": (binary(WIRE)[:-8], "malformed_batch", None),
    "a number too many": (binary(WIRE) + bytes(8), "malformed_batch", None),
    "no numbers": (binary(WIRE, b""), "malformed_batch", None),
    "a larger count": (binary(WIRE, count=3), "invalid_field", "generation"),
    "a huge count": (binary(WIRE, count=2**53), "invalid_field", "count"),
    "a negative count": (binary(WIRE, count=-1), "invalid_field", "count"),
    "a count that is a text": (binary(WIRE, count="2"), "invalid_field", "count"),
    "names without numbers": (binary(WIRE, integers=["a", "b", "c"]), "malformed_batch", None),
    "too many names": (binary(WIRE, integers=[str(i) for i in range(4_001)]), "invalid_field", "columns.series"),
    "a name twice": (binary(WIRE, integers=["f"]), "invalid_field", "integers"),
    "an empty name": (binary(WIRE, integers=[""]), "invalid_field", "integers[0]"),
    "labels too few": (binary(WIRE, label=[None]), "invalid_field", "label"),
    "another version": (binary(WIRE, version=3), "invalid_field", "version"),
    "an endless time": (with_number(0, np.inf), "invalid_field", "time[0]"),
    "a negative time": (with_number(3, -1.0), "invalid_field", "monotonic[1]"),
    "no time": (with_number(0, np.nan), "invalid_field", "time[0]"),
    "negative bytes": (with_number(5, -1), "invalid_field", "columns.series.a.bytes"),
    "an integer too large": (with_number(4, 2**53 + 1), "invalid_field", "columns.series.a.bytes[0]"),
    "almost the missing integer": (with_number(5, NOT_THERE + 1), "invalid_field", "columns.series.a.bytes[1]"),
    "an endless float": (with_number(7, np.inf), "invalid_field", "columns.series.f[1]"),
    "a float too large": (with_number(7, -1e16), "invalid_field", "columns.series.f[1]"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "code", "field"), BROKEN.values(), ids=BROKEN)
def test_an_inconsistent_body_is_refused_as_a_whole(
    body: bytes, code: str, field: str | None
) -> None:
    with pytest.raises(RequestRefused) as refusal:
        decode.check("r", body, 1.0)
    error = refusal.value
    assert error.code == code, error.message
    assert field is None or error.details["field"] == field
    # The error details can be written as JSON.
    json.dumps(error.details, allow_nan=False)


def test_a_missing_number_is_never_zero() -> None:
    columns = decode.check("r", binary(WIRE), 1.0).columns
    assert lists(columns) == {"a.bytes": [1, None], "f": [0.5, None]}
    nothing = binary({**WIRE, "columns": {**WIRE["columns"], "series": {"a": [None] * 2}}})
    assert lists(decode.check("r", nothing, 1.0).columns) == {"a": [None, None]}
    empty_floats = binary(WIRE, NUMBERS[:48] + np.array([np.nan, np.nan]).tobytes())
    assert lists(decode.check("r", empty_floats, 1.0).columns)["f"] == [None, None]


@settings(max_examples=200)
@given(st.data())
def test_a_body_with_any_wrong_byte_is_accepted_or_refused(data: st.DataObject) -> None:
    body = binary(WIRE)
    at, byte = data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(0, 255))
    for broken in (body[:at] + bytes((byte,)) + body[at + 1 :], body[:at], body[at:]):
        taken(broken)


def test_the_native_module_can_be_switched_off() -> None:
    code = "from leakline_server.store.series.sealing import native; print(native())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LEAKLINE_NATIVE": "0"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "None"


def test_a_native_module_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAKLINE_NATIVE", raising=False)
    monkeypatch.setitem(sys.modules, "leakline_server._native", SimpleNamespace(interface=0))
    sealing.native.cache_clear()
    try:
        assert sealing.native() is None
    finally:
        sealing.native.cache_clear()


@settings(max_examples=50)
@given(tables(integers | plain_floats | st.none()))
def test_a_body_is_read_back_as_it_was_packed(table: dict[str, list[Any]]) -> None:
    columns = decode.check("r", body_of(table), 1.0).columns
    if len(columns.time) > 9:
        # A packed part is contiguous.
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


def test_an_identical_second_clock_takes_no_space() -> None:
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


def test_a_flipped_bit_in_a_body_is_detected() -> None:
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
        # A few bits of a frame have no meaning.
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


def test_a_body_of_a_later_format_is_refused() -> None:
    columns = of_lists(wire_types.Columns([1.0], [1.0], [None], [None], [None], ["manual"], {}))
    form = msgspec.msgpack.decode(decompress(incoming_batch.pack(columns, {})))
    form[0] = 3
    with pytest.raises(CorruptChunk, match="has format version 3"):
        incoming_batch.unpack(compress(msgspec.msgpack.encode(form)), dict)


TRIES: Final = 3


def batch(**told: Any) -> bytes:
    wire = {"version": 1, "process": {"instance": "p1"}, "first_sequence": 0, **told}
    return json.dumps(wire, separators=(",", ":")).encode()


def snapshots(names_each: int) -> list[dict[str, Any]]:
    """Return the maximum number of snapshots, each with its own names."""
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
    """Return the CPU seconds of the fastest attempt."""
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


def test_snapshots_with_their_own_names_are_refused_before_conversion() -> None:
    # Measured: 1.2 times; as columns 310 times with 20,000 names, and 20 s with as many as here.
    body = batch(snapshots=snapshots(750))
    assert len(body) < 2**21
    assert seconds(refused, body) <= 10 * seconds(msgspec.json.decode, body)
    small = batch(snapshots=snapshots(100))
    # Measured: 1.1 times; as columns 57 times.
    assert peak_bytes(refused, small) <= 2 * peak_bytes(msgspec.json.decode, small)


def check(body: bytes) -> None:
    decode.check("r1", body, 1e9)


def test_the_maximum_of_names_costs_no_more_in_rows_than_in_columns() -> None:
    rows = snapshots(MAX_BATCH_SERIES // MAX_SNAPSHOTS)
    one_by_one, columns = batch(snapshots=rows), batch(**in_columns(rows))
    # Measured: 0.15 times; through columns of objects 1.3 times.
    assert seconds(check, one_by_one) <= 0.6 * seconds(check, columns)
    # Few bytes that become many numbers count as many while they wait.
    assert len(one_by_one) < 50_000
    size = decode.check("r1", one_by_one, 1e9).size_bytes
    assert size == MAX_BATCH_SERIES * MAX_SNAPSHOTS * 8


def test_rows_become_the_same_columns() -> None:
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
    # Measured: 8 times; checking each number for control characters took 24 times.
    assert seconds(check, body) <= 15 * seconds(msgspec.json.decode, body)

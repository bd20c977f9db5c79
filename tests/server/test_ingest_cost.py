"""What is small on the wire costs little to read or to refuse, measured by what it takes to decode the same bytes."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from leakline_server.errors import InvalidField
from leakline_server.ingest import decode
from leakline_server.limits import MAX_BATCH_SERIES, MAX_SNAPSHOTS

TRIES: Final = 5


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


def test_as_many_names_as_may_be_cost_no_more_one_by_one_than_in_columns() -> None:
    def check(body: bytes) -> None:
        decode.check("r1", body, 1e9)

    rows = snapshots(MAX_BATCH_SERIES // MAX_SNAPSHOTS)
    one_by_one, columns = batch(snapshots=rows), batch(**in_columns(rows))
    # Measured: 0.15 times; by way of columns of objects 1.3 times.
    assert seconds(check, one_by_one) <= 0.6 * seconds(check, columns)


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


def test_the_snapshot_with_the_wrong_number_is_named() -> None:
    rows = [{"time": 1.0, "series": {}}, {"time": 2.0, "series": {"gauge.x": 1e300}}]
    with pytest.raises(InvalidField) as told:
        decode.check("r1", batch(snapshots=rows), 1e9)
    assert told.value.field == "columns.series.gauge.x[1]"


def test_few_bytes_that_become_many_numbers_wait_as_many() -> None:
    rows = snapshots(MAX_BATCH_SERIES // MAX_SNAPSHOTS)
    body = batch(snapshots=rows)
    incoming = decode.check("r1", body, 1e9)
    assert len(body) < 50_000
    assert incoming.size_bytes == MAX_BATCH_SERIES * MAX_SNAPSHOTS * 8


def test_a_backslash_does_not_make_a_batch_dear() -> None:
    def check(body: bytes) -> None:
        decode.check("r1", body, 1e9)

    columns = {
        "time": [1.0 + at for at in range(MAX_SNAPSHOTS)],
        "label": [r"C:\data"] + ["b"] * (MAX_SNAPSHOTS - 1),
        "series": {f"g{i}": [i % 9 + at % 3 for at in range(MAX_SNAPSHOTS)] for i in range(2_000)},
    }
    body = batch(count=MAX_SNAPSHOTS, columns=columns)
    # Measured: 8 times; where each number was looked through for control characters 24 times.
    assert seconds(check, body) <= 15 * seconds(msgspec.json.decode, body)

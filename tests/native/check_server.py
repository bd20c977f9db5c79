"""Checks of the server's native module in the interpreter that runs this: check_server.py MODULE_FOLDER

Standard library only. All arguments are in memory of exactly their size, so that sanitizers detect every access beyond
it; arguments whose lengths do not fit are refused.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import importlib.util
import itertools
import random
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TABLES = 600
NOT_THERE = -(2**63)
CODES = {1: "b", 2: "h", 4: "i", 8: "q"}


def main() -> None:
    native = load(sys.argv[1])
    chosen = random.Random(7)
    for _ in range(TABLES):
        encode(native, chosen)


def load(folder: str) -> Any:
    (path,) = Path(folder).glob("_native*.so")
    spec = importlib.util.spec_from_file_location("leakline_server._native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def encode(native: Any, chosen: random.Random) -> None:
    rows, length = chosen.randrange(1, 6), chosen.randrange(1, 30)
    values = [walk(chosen, length, chosen.choice((0, 3, 20, 50))) for _ in range(rows)]
    if chosen.random() < 0.5:
        values[0][chosen.randrange(length)] = NOT_THERE
    some = {0, *(chosen.randrange(length) for _ in range(3))}
    starts = sorted(some) if chosen.random() < 0.8 else []
    table = held(packed("q", [v for row in values for v in row]))
    found = native.encode_table(table, length, held(packed("q", starts)))
    assert len(found) == rows
    for row, one in zip(values, found, strict=True):
        assert (one is None) == (NOT_THERE in row)
        if one is not None:
            encoded(row, starts, one)
    for broken in ([1], [0, 0], [0, length], [0, -1], [0, 2**62]):
        with refused():
            native.encode_table(table, length, held(packed("q", broken)))
    for broken_length in (0, -1, 2**62, rows * length + 1):
        with refused():
            native.encode_table(table, broken_length, held(packed("q", [])))


def encoded(row: Sequence[int], starts: Sequence[int], one: tuple[Any, ...]) -> None:
    first, last, low, high, width, payload, records = one
    assert (first, last, low, high) == (row[0], row[-1], min(row), max(row))
    if low == high:
        assert (width, payload) == (0, b"")
    else:
        steps = array.array(CODES[width], payload[2:]).tolist()
        assert [step << payload[1] for step in steps] == [b - a for a, b in pairs(row)]
    parts = [row[a:b] for a, b in pairs([*starts, len(row)])]
    told = [x for p in parts for x in (len(p), p[0], p[-1], min(p), max(p))]
    if low == high:
        told = told[:5]
    assert list(struct.unpack(f"<{len(told)}d", records)) == told


def walk(chosen: random.Random, count: int, bits: int) -> list[int]:
    value, found = chosen.randrange(-(2**20), 2**20), []
    for _ in range(count):
        found.append(value)
        value += chosen.randrange(-(2**bits) // 2, 2**bits // 2 + 1)
        value = max(-(2**52), min(2**52, value))
    return found


def pairs(values: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(values))


def packed(code: str, values: Sequence[Any]) -> bytes:
    return array.array(code, values).tobytes()


def held(value: Any) -> Any:
    """Copy bytes into memory of exactly their size."""
    if not isinstance(value, bytes):
        return value
    return (ctypes.c_char * len(value)).from_buffer_copy(value)


@contextlib.contextmanager
def refused() -> Iterator[None]:
    try:
        yield
    except ValueError:
        return
    raise AssertionError("was not refused")


if __name__ == "__main__":
    main()

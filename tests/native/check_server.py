"""Proves the server's native module in the interpreter that runs this: check_server.py MODULE_FOLDER

Standard library only. Texts of series, right and broken, and everything else given lie in memory of exactly their size,
so that sanitizers see every step beyond; what is read is what `json` reads, and what lengths do not fit is refused.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import importlib.util
import itertools
import json
import random
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TEXTS, TABLES = 3_000, 600
NOT_THERE = -(2**63)
CODES = {1: "b", 2: "h", 4: "i", 8: "q"}
NAMES = ("a", "gauge.loss", "type.trading.Order.count", "é", "}", "n" * 200, "s" * 8, "😀" * 9)
ENTRIES = (
    "0", "-0", "7", "-12", "9007199254740992", "1234567890", "null", "0.5", "-0.0", "1e5", "1.25E-3",
    "0.12345678901234567", "1e-400", "9007199254740993", "1e16", "true", '"1"', "[1]", "01", "1.", "-",
)  # fmt: skip
BYTES = b'{}[]",:-+.eEnul \\\x00\x7f\xff09'


def main() -> None:
    native = load(sys.argv[1])
    columns(native.read_columns)
    chosen = random.Random(7)
    for _ in range(TABLES):
        fill(native, chosen)
        encode(native, chosen)
        decimals(native, chosen)
    number(native)


def load(folder: str) -> Any:
    (path,) = Path(folder).glob("_native*.so")
    spec = importlib.util.spec_from_file_location("leakline_server._native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- texts of series


def columns(read: Any) -> None:
    chosen = random.Random(7)
    found = 0
    for _ in range(TEXTS):
        count = chosen.choice((1, 1, 2, 3, 50))
        text = text_of(chosen, count)
        for each in (text, broken(chosen, text), text[: chosen.randrange(len(text))]):
            answer = read(held(each), count, 48)
            if answer is not None:
                found += 1
                same(answer, json.loads(each), count)
    assert found > TEXTS / 4, found
    for text, count in ((b"", 1), (b"{}", 2**62), (b'{"a":[1]}', 2**62), (b'{"a":[1]}', -1)):
        assert read(text, count, 48) is None or text == b"{}"


def text_of(chosen: random.Random, count: int) -> bytes:
    # Most entries are plain, or no text would be.
    plain = chosen.choice((4, 7, 13, 13, len(ENTRIES)))
    series = []
    for name in chosen.sample(NAMES, chosen.randrange(1, 6)):
        length = count + (chosen.random() < 0.03)
        some = chosen.choices(ENTRIES[:plain], k=chosen.choice((1, 3)))
        entries = [chosen.choice(some) for _ in range(length)]
        space = chosen.choice(("", "", " ", "\n\t"))
        series.append(f'{space}"{name}":{space}[{(space + ",").join(entries)}{space}]')
    return ("{" + ",".join(series) + "}").encode()


def broken(chosen: random.Random, text: bytes) -> bytes:
    at = chosen.randrange(len(text))
    return text[:at] + bytes((chosen.choice(BYTES),)) + text[at + 1 :]


def same(answer: tuple[Any, ...], table: dict[str, list[Any]], count: int) -> None:
    constant, whole, integers, holed, filled, fractions, floats, low, high = answer
    read = {name: [value] * count for name, value in constant.items()}
    for names, data, code in (
        (whole, integers, "q"),
        (holed, filled, "q"),
        (fractions, floats, "d"),
    ):
        values = array.array(code, data).tolist()
        assert len(values) == len(names) * count
        for i, name in enumerate(names):
            row = values[i * count : (i + 1) * count]
            read[name] = [None if v == -(2**63) or v != v else v for v in row]
    assert read == table, (read, table)
    numbers = [0, *(v for row in table.values() for v in row if v is not None)]
    assert (low, high) == (min(numbers), max(numbers))


# -- tables of a batch


def fill(native: Any, chosen: random.Random) -> None:
    rows, count, width = chosen.randint(1, 8), chosen.randint(1, 19), chosen.choice((1, 2, 4, 8))
    start, after = chosen.randrange(5), chosen.randrange(5)
    ids = sorted(chosen.sample(range(20), rows))
    parts = chosen.sample(range(20), chosen.randrange(12))
    still, moving, holed = parts[:3], parts[3:8], parts[8:]
    numbers = {name: walk(chosen, count, 8 * width - 2) for name in parts}
    numbers |= {name: numbers[name][:1] * count for name in still}
    steps = [b - a for name in moving for a, b in pairs(numbers[name])]
    given = [
        start, count,
        packed("I", still), packed("q", [numbers[name][0] for name in still]),
        packed("I", moving), packed("q", [numbers[name][0] for name in moving]), width, packed(CODES[width], steps),
        packed("I", holed), packed("q", [v for name in holed for v in numbers[name]]),
    ]  # fmt: skip
    length = start + count + after
    table = held(packed("q", [NOT_THERE] * rows * length))
    native.fill_table(table, held(packed("I", ids)), *map(held, given))
    entries = array.array("q", bytes(table)).tolist()
    for row, name in enumerate(ids):
        of_row = entries[row * length : (row + 1) * length]
        values = numbers.get(name, [NOT_THERE] * count)
        assert of_row == [NOT_THERE] * start + values + [NOT_THERE] * after, (name, of_row)
    at = chosen.randrange(len(given))
    broken = wrong(chosen, given[at])
    before = bytes(table)
    if broken is not None:
        given[at] = broken
        with refused(may_fit=at in (0, 1)):
            native.fill_table(table, held(packed("I", ids)), *map(held, given))
            before = bytes(table)
    assert bytes(table) == before


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


def decimals(native: Any, chosen: random.Random) -> None:
    places = chosen.randrange(13)
    values = [chosen.randrange(-(10**6), 10**6) / 10**places for _ in range(chosen.randrange(1, 9))]
    odd = (float("nan"), float("inf"), -0.0, 1e300, 5e-324)
    values += chosen.choices(odd, k=chosen.random() < 0.2)
    whole = held(bytes(8 * len(values)))
    found = native.scaled_floats(held(packed("d", values)), whole)
    if found >= 0:
        read = [v / 10.0**found for v in array.array("q", bytes(whole))]
        assert packed("d", read) == packed("d", values)
    else:
        assert any(float(f"{v:.9f}") != v or str(v) == "-0.0" or v >= 1e300 for v in values), values
    with refused():
        native.scaled_floats(held(packed("d", values)), held(bytes(8 * len(values) + 8)))


def number(native: Any) -> None:
    texts, numbered = ["b", None, "a", "b", "b", None, "é"], {}
    index = held(bytes(4 * len(texts)))
    native.number_texts(texts, numbered, index)
    assert array.array("i", bytes(index)).tolist() == [0, -1, 1, 0, 0, -1, 2]
    assert numbered == {"b": 0, "a": 1, "é": 2}
    for broken in (texts[1:], [*texts, "a"], [*texts[1:], 7], [*texts[1:], ["a"]]):
        with refused():
            native.number_texts(broken, {}, index)


def walk(chosen: random.Random, count: int, bits: int) -> list[int]:
    value, found = chosen.randrange(-(2**20), 2**20), []
    for _ in range(count):
        found.append(value)
        value += chosen.randrange(-(2**bits) // 2, 2**bits // 2 + 1)
        value = max(-(2**52), min(2**52, value))
    return found


def wrong(chosen: random.Random, value: Any) -> Any:
    if isinstance(value, int):
        return chosen.choice((-1, 0, 3, 100, 2**40, 2**62, -(2**62)))
    longer = chosen.random() < 0.5 or not value
    return value + bytes(chosen.choice((1, 4, 7))) if longer else value[:-1]


def pairs(values: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(values))


def packed(code: str, values: Sequence[Any]) -> bytes:
    return array.array(code, values).tobytes()


def held(value: Any) -> Any:
    """Bytes in memory of their size."""
    if not isinstance(value, bytes):
        return value
    return (ctypes.c_char * len(value)).from_buffer_copy(value)


@contextlib.contextmanager
def refused(*, may_fit: bool = False) -> Iterator[None]:
    try:
        yield
    except ValueError:
        return
    assert may_fit


if __name__ == "__main__":
    main()

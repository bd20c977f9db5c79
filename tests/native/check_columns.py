"""Proves the server's native module in the interpreter that runs this: check_columns.py MODULE_FOLDER

Standard library only. Texts of series, right and broken, lie in memory of exactly their size, so that sanitizers see
every step beyond; what is read of them is what `json` reads.
"""

from __future__ import annotations

import array
import ctypes
import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import Any

ROUNDS = 6_000
NAMES = ("a", "gauge.loss", "type.trading.Order.count", "é", "}", "n" * 200, "s" * 8, "😀" * 9)
ENTRIES = (
    "0", "-0", "7", "-12", "9007199254740992", "1234567890", "null", "0.5", "-0.0", "1e5", "1.25E-3",
    "0.12345678901234567", "1e-400", "9007199254740993", "1e16", "true", '"1"', "[1]", "01", "1.", "-",
)  # fmt: skip
BYTES = b'{}[]",:-+.eEnul \\\x00\x7f\xff09'


def main() -> None:
    read = load(sys.argv[1]).read_columns
    chosen = random.Random(7)
    found = 0
    for _ in range(ROUNDS):
        count = chosen.choice((1, 1, 2, 3, 50))
        text = text_of(chosen, count)
        for each in (text, broken(chosen, text), text[: chosen.randrange(len(text))]):
            held = (ctypes.c_char * len(each)).from_buffer_copy(each)
            answer = read(held, count, 48)
            if answer is not None:
                found += 1
                same(answer, json.loads(each), count)
    assert found > ROUNDS / 4, found
    for text, count in ((b"", 1), (b"{}", 2**62), (b'{"a":[1]}', 2**62), (b'{"a":[1]}', -1)):
        assert read(text, count, 48) is None or text == b"{}"


def load(folder: str) -> Any:
    (path,) = Path(folder).glob("_native*.so")
    spec = importlib.util.spec_from_file_location("leakline_server._native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


if __name__ == "__main__":
    main()

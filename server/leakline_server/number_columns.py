"""Columns of JSON numbers become arrays without an object for each number: from their text, many series at once.

Only what is plain is read here: lists of the right length of integers and nulls, or of floats and nulls, within the
bounds that hold for all, each under a name of its own. For everything else the answer is None; then the batch is
decoded value by value, which accepts the same and says what is wrong.

The compiled part, `leakline_server._native`, does it in one pass where it was built. It leaves a little more to be
decoded value by value (floats of more than 64 characters); nothing but speed depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from .limits import MAX_INTEGER
from .store import compiled
from .store.batch_columns import NOT_THERE, Rows, no_rows
from .store.codec import Array
from .store.wire import Name

# Below it, looking whether a series stands still costs more than reading it.
MIN_FOR_CONSTANT: Final = 48
# Of an integer that is allowed, its sign and its comma; a much longer one is not for `int`.
MAX_ENTRY: Final = len(str(-MAX_INTEGER)) + 1
# Floats beyond it are a matter of what the series is called.
MAX_PLAIN_FLOAT: Final = 1e15

_INTEGERS: Final = b"0123456789,-"
_FLOATS: Final = b"0123456789,-+.eEna"
_SPACES: Final = b" \t\r\n"
# Between two series: no integer of a batch is as large, and a list that is too short or too long moves it.
_FENCE: Final = 2**62
_FENCED: Final = b",%d," % _FENCE

# Whole numbers and floats as numpy lays them out; looked up once.
_INTEGER: Final = np.dtype(np.int64)
_FLOAT: Final = np.dtype(np.float64)

_decode_texts: Final = msgspec.json.Decoder(dict[Name, msgspec.Raw]).decode


class Found(NamedTuple):
    """The series of a batch by kind, as in `BatchColumns`; none of their numbers is below ``low`` or above ``high``."""

    constant: dict[str, int]
    whole: Rows
    holed: Rows
    floats: Rows
    low: float = -math.inf
    high: float = math.inf


def read(series: bytes | msgspec.Raw, count: int) -> Found | None:
    """The series of a JSON object of lists of ``count`` numbers; None when anything is not plain."""
    module = compiled.native()
    if module is None:
        return read_in_python(bytes(series), count)
    found = module.read_columns(series, count, MIN_FOR_CONSTANT)
    if found is None:
        return None
    constant, whole, whole_table, holed, holed_table, floats, float_table, low, high = found
    return Found(
        constant,
        _rows(whole, whole_table, _INTEGER, count),
        _rows(holed, holed_table, _INTEGER, count),
        _rows(floats, float_table, _FLOAT, count),
        low,
        high,
    )


def _rows(names: list[str], table: bytes, dtype: np.dtype[Any], count: int) -> Rows:
    return Rows(names, np.ndarray((len(names), count), dtype, table))


def read_in_python(text: bytes, count: int) -> Found | None:
    """As `read`, a few series at a time by the methods of bytes."""
    series = _texts(text)
    if series is None:
        return None
    constant: dict[str, int] = {}
    whole: dict[str, bytes] = {}
    holed: dict[str, bytes] = {}
    floats: dict[str, bytes] = {}
    for name, raw in series.items():
        entries = bytes(raw)
        if entries[:1] != b"[" or entries[-1:] != b"]":
            return None
        inner = entries[1:-1]
        if not inner.strip(_SPACES):
            return None
        if b"." in inner or b"e" in inner or b"E" in inner:
            floats[name] = inner.replace(b"null", b"nan")
        elif b"n" in inner:
            holed[name] = inner
        elif count >= MIN_FOR_CONSTANT and _stands_still(inner, count):
            constant[name] = int(inner[: inner.index(b",")])
        else:
            whole[name] = inner
    if any(not -MAX_INTEGER <= value <= MAX_INTEGER for value in constant.values()):
        return None
    found = _whole(whole, count), _holed(holed, count), _floats(floats, count)
    if found[0] is None or found[1] is None or found[2] is None:
        return None
    return Found(constant, found[0], found[1], found[2])


def _texts(text: bytes) -> Mapping[str, msgspec.Raw] | None:
    """The text of each series; None where it is not certain that there are names and numbers alone, each name once."""
    if b"\\" in text or b"\x7f" in text:
        return None
    try:
        series = _decode_texts(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    # Of a name that is there twice the decoder keeps one.
    return series if text.count(b'"') == 2 * len(series) else None


def _stands_still(inner: bytes, count: int) -> bool:
    """Whether the text is one integer again and again: it is itself, one entry further on."""
    entry = inner.find(b",") + 1
    return (
        0 < entry <= MAX_ENTRY
        and len(inner) + 1 == entry * count
        and inner[entry:] == inner[:-entry]
        and inner[: entry - 1].lstrip(b"-").isdigit()
    )


def _whole(texts: Mapping[str, bytes], count: int) -> Rows | None:
    if not texts:
        return no_rows(count)
    values = _parse(list(texts.values()), _INTEGERS, np.int64, count)
    if values is None or values.max() > MAX_INTEGER or values.min() < -MAX_INTEGER:
        return None
    return Rows(list(texts), values)


def _holed(texts: Mapping[str, bytes], count: int) -> Rows | None:
    if not texts:
        return no_rows(count)
    filled = [text.replace(b"null", b"%d" % NOT_THERE) for text in texts.values()]
    values = _parse(filled, _INTEGERS, np.int64, count)
    if values is None or values.max() > MAX_INTEGER:
        return None
    below = values[values < -MAX_INTEGER]
    # An integer that is far too small reads as NOT_THERE as well.
    nulls = sum(text.count(b"n") for text in texts.values())
    if len(below) != nulls or bool((below != NOT_THERE).any()):
        return None
    return Rows(list(texts), values)


def _floats(texts: Mapping[str, bytes], count: int) -> Rows | None:
    if not texts:
        return no_rows(count, np.float64)
    values = _parse(list(texts.values()), _FLOATS, np.float64, count)
    if values is None or bool((np.abs(values) > MAX_PLAIN_FLOAT).any()):
        return None
    return Rows(list(texts), values)


def _parse(texts: Sequence[bytes], allowed: bytes, dtype: type[Any], count: int) -> Array | None:
    joined = _FENCED.join(texts)
    left = joined.translate(None, allowed)
    if left:
        if left.translate(None, _SPACES):
            return None
        joined = joined.translate(None, _SPACES)
    # Valid JSON of nothing but these characters is numbers and commas, and is read to its end.
    flat = np.fromstring(joined, dtype, sep=",")
    rows = len(texts)
    if len(flat) != rows * (count + 1) - 1:
        return None
    table = np.empty((rows, count + 1), dtype)
    table.reshape(-1)[:-1] = flat
    table[-1, -1] = _FENCE
    if not bool((table[:, -1] == _FENCE).all()):
        return None
    return np.ascontiguousarray(table[:, :-1])

"""The body of a batch row: all columns of the batch in one zstd frame with its checksum, until they are sealed.

The frame holds a MessagePack array of these, integers of `bytes` little endian:

     0  1, the version of this form                    6  label, list of text and null
     1  count, of snapshots                            7  kind, list of text
     2  time, 8-byte floats                            8  series that stand still: their numbers, 4 bytes each,
     3  monotonic, the same; empty: equal to time      9  and their values, 8 bytes each
     4  generation, list of integers and null         10  whole series: their numbers,
     5  phase, list of text and null                  11  their first values, 8 bytes each,
                                                      12  the width in bytes of what follows,
                                                      13  the differences of neighbours, series by series
    14  series with holes: their numbers, and         15  their values, 8 bytes each, -2**63 where there is none
    16  series of floats: their numbers, and          17  their values, 8 bytes each, NaN where there is none

A series is named by its number in the run (table series). Databases of older versions hold rows that begin with
``{``: the JSON object of the batch, without a checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from . import wire
from .batch_columns import BatchColumns, Rows, of_lists, with_holes
from .codec import Array, CorruptChunk, Numbers, compress, decompress

VERSION: Final = 1
_JSON: Final = b"{"
_WIDTHS: Final = ((1, np.dtype("<i1")), (2, np.dtype("<i2")), (4, np.dtype("<i4")))
_STEPS: Final[dict[int, np.dtype[Any]]] = {w: np.dtype(f"<i{w}") for w in (1, 2, 4, 8)}


class _Form(msgspec.Struct, array_like=True):
    version: int
    count: int
    time: bytes
    monotonic: bytes
    generation: list[int | None]
    phase: list[str | None]
    label: list[str | None]
    kind: list[wire.Kind]
    constant: bytes
    constants: bytes
    whole: bytes
    firsts: bytes
    width: int
    steps: bytes
    holed: bytes
    holed_values: bytes
    floats: bytes
    float_values: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Form).decode


@dataclass(frozen=True, slots=True)
class Body:
    """A batch as it is read back. ``constant``, ``whole``, ``holed``, ``floats``: series numbers, and their values."""

    time: Array
    monotonic: Array
    generation: list[int | None]
    phase: list[str | None]
    label: list[str | None]
    kind: list[wire.Kind]
    constant: tuple[Array, Array]
    whole: tuple[Array, Array]
    holed: tuple[Array, Array]
    floats: tuple[Array, Array]

    def __len__(self) -> int:
        return len(self.time)

    def series(self, number: int) -> Numbers | None:
        """The series with this number; None when the batch does not have it."""
        ids, constants = self.constant
        for at in np.flatnonzero(ids == number):
            return Numbers(np.full(len(self), constants[at], np.int64))
        for ids, values in (self.whole, self.holed, self.floats):
            for at in np.flatnonzero(ids == number):
                return with_holes(values[at])
        return None


def pack(columns: BatchColumns, numbered: Mapping[str, int]) -> bytes:
    """The body of a batch whose series all have a number."""
    firsts, width, steps = _steps(columns.whole.values)
    time, monotonic = columns.time.tobytes(), columns.monotonic.tobytes()
    form = _Form(
        VERSION,
        len(columns),
        time,
        b"" if monotonic == time else monotonic,
        columns.generation,
        columns.phase,
        columns.label,
        columns.kind,
        _ids(list(columns.constant), numbered),
        np.array(list(columns.constant.values()), "<i8").tobytes() if columns.constant else b"",
        _ids(columns.whole.names, numbered),
        firsts,
        width,
        steps,
        _ids(columns.holed.names, numbered),
        columns.holed.values.tobytes(),
        _ids(columns.floats.names, numbered),
        columns.floats.values.tobytes(),
    )
    return compress(_encode(form))


def unpack(body: bytes, numbered: Callable[[], Mapping[str, int]]) -> Body:
    """A body read back. ``numbered`` (name -> number) is asked for rows of older versions. Raises CorruptChunk."""
    try:
        data = decompress(body)
        if data[:1] == _JSON:
            return _of_json(data, numbered())
        return _of_form(_decode(data))
    except (CorruptChunk, msgspec.MsgspecError, ValueError, KeyError) as error:
        raise CorruptChunk(f"a stored batch is damaged: {error}") from error


def _ids(names: Sequence[str], numbered: Mapping[str, int]) -> bytes:
    return np.fromiter(map(numbered.__getitem__, names), "<u4", len(names)).tobytes()


def _steps(whole: Array) -> tuple[bytes, int, bytes]:
    if not len(whole):
        return b"", 1, b""
    firsts = whole[:, 0].tobytes()
    if whole.shape[1] == 1:
        return firsts, 1, b""
    steps = np.diff(whole, axis=1)
    low, high = int(steps.min()), int(steps.max())
    for width, narrow in _WIDTHS:
        if -(1 << (8 * width - 1)) <= low and high < 1 << (8 * width - 1):
            return firsts, width, steps.astype(narrow).tobytes()
    return firsts, 8, steps.tobytes()


def _of_form(form: _Form) -> Body:
    if form.version != VERSION:
        raise ValueError(f"its form is {form.version}, this program reads {VERSION}")
    count = form.count
    time = np.frombuffer(form.time, "<f8")
    whole = np.frombuffer(form.whole, "<u4")
    firsts = np.frombuffer(form.firsts, "<i8").reshape(len(whole), 1)
    values = firsts
    if count > 1 and len(whole):
        steps = np.frombuffer(form.steps, _STEPS[form.width]).reshape(len(whole), count - 1)
        values = np.cumsum(np.concatenate([firsts, steps], axis=1), axis=1)
    return Body(
        time,
        np.frombuffer(form.monotonic, "<f8") if form.monotonic else time,
        form.generation,
        form.phase,
        form.label,
        form.kind,
        (np.frombuffer(form.constant, "<u4"), np.frombuffer(form.constants, "<i8")),
        (whole, values),
        _table(form.holed, form.holed_values, "<i8", count),
        _table(form.floats, form.float_values, "<f8", count),
    )


def _table(ids: bytes, values: bytes, dtype: str, count: int) -> tuple[Array, Array]:
    numbers = np.frombuffer(ids, "<u4")
    return numbers, np.frombuffer(values, dtype).reshape(len(numbers), count)


def _of_json(data: bytes, numbered: Mapping[str, int]) -> Body:
    columns = wire.decode_stored(data).columns
    columns.series = {n: values for n, values in columns.series.items() if n in numbered}
    found = of_lists(columns)

    def numbers(rows: Rows) -> tuple[Array, Array]:
        return np.array([numbered[name] for name in rows.names], "<u4"), rows.values

    none = (np.empty(0, "<u4"), np.empty(0, "<i8"))
    return Body(
        found.time,
        found.monotonic,
        found.generation,
        found.phase,
        found.label,
        found.kind,
        none,
        numbers(found.whole),
        numbers(found.holed),
        numbers(found.floats),
    )

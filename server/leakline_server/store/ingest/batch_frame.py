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
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np

from ..series.chunk_codec import Array, CorruptChunk, Numbers, compress, decompress
from . import wire_types
from .batch_columns import BatchColumns, of_lists, with_holes

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
    kind: list[wire_types.Kind]
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


class Body:
    """A batch as it is read back: what every snapshot has, and its series as they are packed or as arrays."""

    def __init__(self, form: _Form) -> None:
        """Raises ValueError where the numbers in it are more or fewer than it has snapshots or series."""
        self.packed = form
        self.time = np.frombuffer(form.time, "<f8")
        self.monotonic = np.frombuffer(form.monotonic, "<f8") if form.monotonic else self.time
        self.generation, self.phase = form.generation, form.phase
        self.label, self.kind = form.label, form.kind
        _check(form)

    def __len__(self) -> int:
        return len(self.time)

    def series(self, number: int) -> Numbers | None:
        """The series with this number; None when the batch does not have it."""
        for ids, values in self.tables:
            for at in np.flatnonzero(ids == number):
                if values.shape[1] != len(self):
                    return Numbers(np.full(len(self), values[at, 0], np.int64))
                return with_holes(values[at])
        return None

    @cached_property
    def tables(self) -> tuple[tuple[Array, Array], ...]:
        """(numbers, values) of the series that stand still, in one column; of whole ones, of those with holes, and of
        floats, in a column a snapshot.
        """
        form = self.packed
        whole = np.frombuffer(form.whole, "<u4")
        values = np.frombuffer(form.firsts, "<i8").reshape(len(whole), 1)
        if form.steps:
            steps = np.frombuffer(form.steps, _STEPS[form.width]).reshape(len(whole), -1)
            values = np.cumsum(np.concatenate([values, steps], axis=1), axis=1)
        return (
            _table(form.constant, form.constants, "<i8", 1),
            (whole, values),
            _table(form.holed, form.holed_values, "<i8", form.count),
            _table(form.floats, form.float_values, "<f8", form.count),
        )


def pack(columns: BatchColumns, numbered: Mapping[str, int]) -> bytes:
    """The body of a batch whose series all have a number."""
    return compress(_encode(_form(columns, numbered)))


def unpack(body: bytes, numbered: Callable[[], Mapping[str, int]]) -> Body:
    """A body read back. ``numbered`` (name -> number) is asked for rows of older versions. Raises CorruptChunk."""
    try:
        data = decompress(body)
        form = _of_json(data, numbered()) if data[:1] == _JSON else _decode(data)
        if form.version == VERSION:
            return Body(form)
    except (CorruptChunk, msgspec.MsgspecError, ValueError, KeyError):
        # What it was says what is stored.
        raise CorruptChunk("a stored batch is damaged") from None
    raise CorruptChunk(
        f"a stored batch is damaged, or its form is {form.version}: this program reads {VERSION}"
    )


def _form(columns: BatchColumns, numbered: Mapping[str, int]) -> _Form:
    firsts, width, steps = _steps(columns.whole.values)
    time, monotonic = columns.time.tobytes(), columns.monotonic.tobytes()
    return _Form(
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


def _ids(names: Sequence[str], numbered: Mapping[str, int]) -> bytes:
    if not names:
        return b""
    return np.fromiter(map(numbered.__getitem__, names), "<u4", len(names)).tobytes()


def _steps(whole: Array) -> tuple[bytes, int, bytes]:
    if not len(whole):
        return b"", 1, b""
    firsts = whole[:, 0].tobytes()
    if whole.shape[1] == 1:
        return firsts, 1, b""
    # Without the functions of numpy around these, which cost as much as they do in a small batch.
    steps = whole[:, 1:] - whole[:, :-1]
    low, high = int(np.minimum.reduce(steps, None)), int(np.maximum.reduce(steps, None))
    for width, narrow in _WIDTHS:
        if -(1 << (8 * width - 1)) <= low and high < 1 << (8 * width - 1):
            return firsts, width, steps.astype(narrow).tobytes()
    return firsts, 8, steps.tobytes()


def _check(form: _Form) -> None:
    count = form.count
    # Numbers of series are of four bytes, all others of eight.
    still, whole, holed, floats = map(len, (form.constant, form.whole, form.holed, form.floats))
    if (
        len(form.time) != 8 * count
        or len(form.monotonic) not in (0, 8 * count)
        or (still | whole | holed | floats) % 4
        or len(form.constants) != 2 * still
        or len(form.firsts) != 2 * whole
        or form.width not in _STEPS
        or len(form.steps) != whole // 4 * (count - 1) * form.width
        or len(form.holed_values) != 2 * holed * count
        or len(form.float_values) != 2 * floats * count
    ):
        raise ValueError("its columns are of other lengths")


def _table(ids: bytes, values: bytes, dtype: str, count: int) -> tuple[Array, Array]:
    numbers = np.frombuffer(ids, "<u4")
    return numbers, np.frombuffer(values, dtype).reshape(len(numbers), count)


def _of_json(data: bytes, numbered: Mapping[str, int]) -> _Form:
    columns = wire_types.decode_stored(data).columns
    columns.series = {n: values for n, values in columns.series.items() if n in numbered}
    return _form(of_lists(columns), numbered)

"""A checked batch on its way in: its columns as arrays, the body of its row until it is sealed, and what becomes of it.

Most series of a batch are whole numbers, and of those most stand still: a thousand numbers as objects cost more than
everything else that is done with a batch, so none are made.

The body of a batch row is one zstd frame of all columns, with its checksum. The frame holds a MessagePack
array of these, integers of `bytes` little endian:

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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

import msgspec
import numpy as np

from leakline.snapshot import ProcessIdentity

from ..series.chunk_codec import Array, CorruptChunk, Numbers, compress, decompress
from . import wire_types

# Stands for a value that is not there, among whole numbers, which are at most 2**53 in size; among floats, NaN does.
NOT_THERE: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class Rows:
    """Series of one kind: ``values`` has one row a name and one column a snapshot."""

    names: Sequence[str]
    values: Array

    def slice(self, start: int, stop: int) -> Rows:
        return Rows(self.names, self.values[:, start:stop])

    def without(self, names: Collection[str]) -> Rows:
        keep = [i for i, name in enumerate(self.names) if name not in names]
        return Rows([self.names[i] for i in keep], self.values[keep])


def _no_rows(count: int, dtype: type[Any] = np.int64) -> Rows:
    return Rows((), np.empty((0, count), dtype))


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """One entry a snapshot. A series is in one of four: ``constant`` (one whole number for all entries), ``whole``
    (int64), ``holed`` (int64, NOT_THERE where nothing was measured), ``floats`` (float64, NaN where nothing was).
    """

    time: Array
    monotonic: Array
    generation: list[int | None]
    phase: list[str | None]
    label: list[str | None]
    kind: list[wire_types.Kind]
    whole: Rows
    holed: Rows
    floats: Rows
    constant: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.time)

    @property
    def nbytes(self) -> int:
        """Of its numbers."""
        return sum(rows.values.nbytes for rows in (self.whole, self.holed, self.floats))

    def names(self) -> list[str]:
        return [*self.constant, *self.whole.names, *self.holed.names, *self.floats.names]

    def numbers(self, name: str) -> Numbers | None:
        """One series; None when the batch does not have it."""
        if name in self.constant:
            return Numbers(np.full(len(self), self.constant[name], np.int64))
        for rows in (self.whole, self.holed, self.floats):
            if name in rows.names:
                values = rows.values[rows.names.index(name)]
                return Numbers(values) if rows is self.whole else _with_holes(values)
        return None

    def slice(self, start: int, stop: int) -> BatchColumns:
        return BatchColumns(
            self.time[start:stop],
            self.monotonic[start:stop],
            self.generation[start:stop],
            self.phase[start:stop],
            self.label[start:stop],
            self.kind[start:stop],
            self.whole.slice(start, stop),
            self.holed.slice(start, stop),
            self.floats.slice(start, stop),
            self.constant,
        )

    def without(self, names: Collection[str]) -> BatchColumns:
        return replace(
            self,
            whole=self.whole.without(names),
            holed=self.holed.without(names),
            floats=self.floats.without(names),
            constant={name: v for name, v in self.constant.items() if name not in names},
        )


def _with_holes(values: Array) -> Numbers:
    """A row of `Rows` as a column: what is absent holds 0."""
    present = values != NOT_THERE if values.dtype.kind == "i" else ~np.isnan(values)
    if present.all():
        return Numbers(values)
    return Numbers(np.where(present, values, 0), present)


def of_lists(columns: wire_types.Columns) -> BatchColumns:
    """Columns that were decoded value by value; all of them have their entries."""
    count = len(columns.time)
    whole: dict[str, Sequence[Any]] = {}
    holed: dict[str, Sequence[Any]] = {}
    floats: dict[str, Sequence[Any]] = {}
    for name, values in columns.series.items():
        kinds = set(map(type, values))
        if kinds == _INTEGERS:
            whole[name] = values
        elif float in kinds:
            floats[name] = [np.nan if v is None else v for v in values]
        else:
            holed[name] = [NOT_THERE if v is None else v for v in values]
    return BatchColumns(
        np.array(columns.time, dtype=np.float64),
        np.array(columns.monotonic, dtype=np.float64),
        columns.generation,
        columns.phase,
        columns.label,
        wire_types.kinds_of(columns),
        _rows(whole, np.int64, count),
        _rows(holed, np.int64, count),
        _rows(floats, np.float64, count),
    )


@dataclass(slots=True)
class Sparse:
    """The values of one series that are there, and at which snapshots."""

    at: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


def series_of(rows: Sequence[wire_types.Row]) -> dict[str, Sparse]:
    found: dict[str, Sparse] = {}
    for at, row in enumerate(rows):
        for name, value in row.series.items():
            of_name = found.get(name)
            if of_name is None:
                of_name = found[name] = Sparse()
            if value is not None:
                of_name.at.append(at)
                of_name.values.append(value)
    return found


def of_rows(rows: Sequence[wire_types.Row], series: Mapping[str, Sparse]) -> BatchColumns:
    """Columns of snapshots that came one by one. Nothing is made for a value that is not there: a few bytes of each
    of 200 snapshots would become a million objects."""
    count = len(rows)
    whole: dict[str, Sparse] = {}
    holed: dict[str, Sparse] = {}
    floats: dict[str, Sparse] = {}
    for name, values_sent in series.items():
        kind = (
            floats
            if float in map(type, values_sent.values)
            else whole
            if len(values_sent.at) == count
            else holed
        )
        kind[name] = values_sent
    return BatchColumns(
        np.array([row.time for row in rows], np.float64),
        np.array([r.time if r.monotonic is None else r.monotonic for r in rows], np.float64),
        [row.generation for row in rows],
        [row.phase for row in rows],
        [row.label for row in rows],
        [row.kind or wire_types.kind_of(row.phase) for row in rows],
        _filled(whole, NOT_THERE, np.int64, count),
        _filled(holed, NOT_THERE, np.int64, count),
        _filled(floats, np.nan, np.float64, count),
    )


def _filled(found: Mapping[str, Sparse], nothing: float, dtype: type[Any], count: int) -> Rows:
    values = np.full((len(found), count), nothing, dtype)
    for row, values_sent in zip(values, found.values(), strict=True):
        row[values_sent.at] = values_sent.values
    return Rows(list(found), values)


_INTEGERS: Final = {int}


def _rows(found: Mapping[str, Sequence[Any]], dtype: type[Any], count: int) -> Rows:
    values = np.array(list(found.values()), dtype).reshape(len(found), count)
    return Rows(list(found), values)


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
                return _with_holes(values[at])
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


DetailKind = Literal["events", "large_objects", "census", "holders", "log"]


@dataclass(frozen=True, slots=True)
class Incoming:
    """A checked batch."""

    run_id: str
    process: ProcessIdentity
    first_sequence: int
    count: int
    columns: BatchColumns
    details: dict[DetailKind, Sequence[Any]]
    lost: dict[str, int]
    received_at: float
    # What it is worth in memory, about: the inflated body, or its numbers where few bytes hold many of them.
    size_bytes: int = 0
    # Whoever sent it may add to this project alone, and knows of no run of another.
    project: str | None = None
    # With a token that is in a page.
    browser: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """``count`` snapshots were new. 0: all of it was there already."""

    count: int


@dataclass(frozen=True, slots=True)
class UnknownRun:
    run_id: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The snapshot with this number is stored with another value of ``field``."""

    sequence: int
    field: str
    stored: Any
    sent: Any


@dataclass(frozen=True, slots=True)
class OtherIdentity:
    """The process with this instance is known with another value of ``field``."""

    instance: str
    field: str
    stored: int
    sent: int


@dataclass(frozen=True, slots=True)
class TooManyProcesses:
    """The run has as many as a run may."""

    run_id: str
    limit: int


@dataclass(frozen=True, slots=True)
class TooManyBytes:
    """The project has stored as much today as it may, or its ``browser`` tokens have."""

    project: str
    limit: int
    wait_seconds: int
    browser: bool = False


Outcome = Accepted | UnknownRun | Contradiction | OtherIdentity | TooManyProcesses | TooManyBytes

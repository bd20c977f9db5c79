"""Validated batches: their columns as arrays, the stored body of a batch, and the outcomes of ingest.

Values are kept in arrays, because a thousand Python number objects would cost more than the rest of ingesting a batch.

The body of a batch row is one zstd frame with a checksum. The frame contains a MessagePack array of the following
items. Series ids have 4 bytes, all other numbers 8, little endian:

     0  2, the version of this format                   6  label, list of text and null
     1  count, the number of snapshots                  7  kind, list of text
     2  time, floats                                    8  ids of the integer series
     3  monotonic, floats; empty if equal to time       9  their values, -2**63 if absent
     4  generation, list of integers and null          10  ids of the float series
     5  phase, list of text and null                   11  their values, NaN if absent

Series ids are unique within the run (table ``series``). Databases of older versions contain rows of version 1
(`_Form1`), and rows that begin with ``{``: the JSON object of the batch, without a checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from leakline.snapshot import ABSENT, ProcessIdentity

from ..columns import Array, CorruptChunk, Numbers, compress, decompress
from . import wire_types

# Marks an absent value in an integer series; integers are at most 2**53 in magnitude. Float series use NaN.
NOT_THERE: Final = ABSENT


class Rows(NamedTuple):
    """Series of one type: ``values`` has a row for each name and a column for each snapshot."""

    names: Sequence[str]
    values: Array

    def slice(self, start: int, stop: int) -> Rows:
        return Rows(self.names, self.values[:, start:stop])

    def without(self, names: Collection[str]) -> Rows:
        keep = [i for i, name in enumerate(self.names) if name not in names]
        return Rows([self.names[i] for i in keep], self.values[keep])


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """The columns of a batch, with one entry per snapshot.

    A series is either in ``integers`` (int64, NOT_THERE for absent values) or in ``floats`` (float64, NaN for absent
    values).
    """

    time: Array
    monotonic: Array
    generation: list[int | None]
    phase: list[str | None]
    label: list[str | None]
    kind: list[wire_types.Kind]
    integers: Rows
    floats: Rows

    def __len__(self) -> int:
        return len(self.time)

    @property
    def nbytes(self) -> int:
        """The size of the series' values in bytes."""
        return self.integers.values.nbytes + self.floats.values.nbytes

    def names(self) -> list[str]:
        return [*self.integers.names, *self.floats.names]

    def numbers(self, name: str) -> Numbers | None:
        """Return one series, or None if it is missing. This is a linear search; use `series` to read many series."""
        for rows in (self.integers, self.floats):
            if name in rows.names:
                return _with_holes(rows.values[rows.names.index(name)])
        return None

    def series(self) -> Iterator[tuple[str, Numbers]]:
        """Yield the name and column of each series."""
        for rows in (self.integers, self.floats):
            for name, values in zip(rows.names, rows.values, strict=True):
                yield name, _with_holes(values)

    def slice(self, start: int, stop: int) -> BatchColumns:
        return BatchColumns(
            self.time[start:stop],
            self.monotonic[start:stop],
            self.generation[start:stop],
            self.phase[start:stop],
            self.label[start:stop],
            self.kind[start:stop],
            self.integers.slice(start, stop),
            self.floats.slice(start, stop),
        )

    def without(self, names: Collection[str]) -> BatchColumns:
        return replace(
            self, integers=self.integers.without(names), floats=self.floats.without(names)
        )


def _with_holes(values: Array) -> Numbers:
    """Return a row of `Rows` as a column, in which absent entries hold 0."""
    present = values != NOT_THERE if values.dtype.kind == "i" else ~np.isnan(values)
    if present.all():
        return Numbers(values)
    return Numbers(np.where(present, values, 0), present)


def of_lists(columns: wire_types.Columns) -> BatchColumns:
    """Convert columns of version 1, which must all have an entry for each snapshot."""
    series, count = columns.series, len(columns.time)
    floats = {name for name, values in series.items() if float in map(type, values)}
    return BatchColumns(
        np.array(columns.time, np.float64),
        np.array(columns.monotonic, np.float64),
        columns.generation,
        columns.phase,
        columns.label,
        columns.kind or [wire_types.kind_of(phase) for phase in columns.phase],
        _dense({n: v for n, v in series.items() if n not in floats}, NOT_THERE, np.int64, count),
        _dense({n: v for n, v in series.items() if n in floats}, np.nan, np.float64, count),
    )


def _dense(
    series: Mapping[str, Sequence[Any]], nothing: float, dtype: type[Any], count: int
) -> Rows:
    filled = [[nothing if v is None else v for v in values] for values in series.values()]
    return Rows(list(series), np.array(filled, dtype).reshape(len(series), count))


def of_rows(rows: Sequence[wire_types.Row]) -> BatchColumns:
    """Convert snapshots that were sent as rows.

    Absent values create no Python objects: otherwise 200 snapshots of a few bytes each, with different names, could
    become a million objects.
    """
    names = dict.fromkeys(name for row in rows for name in row.series)
    floats = {n for row in rows for n, value in row.series.items() if isinstance(value, float)}
    return BatchColumns(
        np.array([row.time for row in rows], np.float64),
        np.array([r.time if r.monotonic is None else r.monotonic for r in rows], np.float64),
        [row.generation for row in rows],
        [row.phase for row in rows],
        [row.label for row in rows],
        [row.kind or wire_types.kind_of(row.phase) for row in rows],
        _sparse([n for n in names if n not in floats], rows, NOT_THERE, np.int64),
        _sparse([n for n in names if n in floats], rows, np.nan, np.float64),
    )


def _sparse(
    names: list[str], rows: Sequence[wire_types.Row], nothing: float, dtype: type[Any]
) -> Rows:
    index = {name: at for at, name in enumerate(names)}
    values = np.full((len(names), len(rows)), nothing, dtype)
    for at, row in enumerate(rows):
        sent = {index[n]: v for n, v in row.series.items() if v is not None and n in index}
        values[list(sent), at] = list(sent.values())
    return Rows(names, values)


VERSION: Final = 2
_JSON: Final = b"{"


class _Version(msgspec.Struct, array_like=True):
    version: int


class _Common(msgspec.Struct, array_like=True):
    version: int
    count: int
    time: bytes
    monotonic: bytes
    generation: list[int | None]
    phase: list[str | None]
    label: list[str | None]
    kind: list[wire_types.Kind]


class _Form(_Common, array_like=True):
    integers: bytes
    integer_values: bytes
    floats: bytes
    float_values: bytes


class _Form1(_Common, array_like=True):
    """The body format of version 1.

    Integer series are in three separate parts: constant series, series without absent values (the first value and
    differences of ``width`` bytes), and series with absent values.
    """

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
_decode_version: Final = msgspec.msgpack.Decoder(_Version).decode
_decode: Final = msgspec.msgpack.Decoder(_Form).decode
_decode_1: Final = msgspec.msgpack.Decoder(_Form1).decode


class Body:
    """The unpacked body of a batch.

    ``integer_ids`` and ``float_ids`` are packed series ids; ``integers`` and ``floats`` have a row for each id and a
    column for each snapshot.
    """

    def __init__(self, form: _Form) -> None:
        """Raise ValueError if the columns do not match the number of snapshots or series."""
        self.time = np.frombuffer(form.time, "<f8")
        self.monotonic = np.frombuffer(form.monotonic, "<f8") if form.monotonic else self.time
        self.generation, self.phase = form.generation, form.phase
        self.label, self.kind = form.label, form.kind
        if not len(self.time) == len(self.monotonic) == form.count:
            raise ValueError("the columns differ in length")
        self.integer_ids, self.float_ids = form.integers, form.floats
        self.integers = _table(form.integers, form.integer_values, "<i8", form.count)
        self.floats = _table(form.floats, form.float_values, "<f8", form.count)

    def __len__(self) -> int:
        return len(self.time)

    @classmethod
    def joined(cls, bodies: Sequence[Body]) -> Body:
        """Return the snapshots of all bodies as one body; all must have the same series."""
        if len(bodies) == 1:
            return bodies[0]
        joined = cls.__new__(cls)
        for name in ("time", "monotonic", "integers", "floats"):
            setattr(joined, name, np.concatenate([getattr(each, name) for each in bodies], axis=-1))
        for name in ("generation", "phase", "label", "kind"):
            setattr(joined, name, list(chain.from_iterable(getattr(each, name) for each in bodies)))
        joined.integer_ids, joined.float_ids = bodies[0].integer_ids, bodies[0].float_ids
        return joined

    def series(self, number: int) -> Numbers | None:
        """Return the series with this id, or None if the batch does not have it."""
        for ids, values in ((self.integer_ids, self.integers), (self.float_ids, self.floats)):
            for at in np.flatnonzero(np.frombuffer(ids, "<u4") == number):
                return _with_holes(values[at])
        return None


def pack(columns: BatchColumns, numbered: Mapping[str, int]) -> bytes:
    """Return the body of a batch; ``numbered`` maps the names of its series to their ids."""
    return compress(_encode(_form(columns, numbered)))


def unpack(body: bytes, numbered: Callable[[], Mapping[str, int]]) -> Body:
    """Unpack a body. ``numbered`` returns series ids by name; only JSON bodies need it. Raises CorruptChunk."""
    try:
        data = decompress(body)
        if data[:1] == _JSON:
            return Body(_of_json(data, numbered()))
        version = _decode_version(data).version
        if version == 1:
            return Body(_of_version_1(_decode_1(data)))
        if version == VERSION:
            return Body(_decode(data))
    except (CorruptChunk, msgspec.MsgspecError, ValueError, KeyError, TypeError):
        # Drop the original error: its text quotes stored content.
        raise CorruptChunk("a stored batch is damaged") from None
    raise CorruptChunk(
        f"a stored batch is damaged or has format version {version}; this server reads versions up to {VERSION}"
    )


def _form(columns: BatchColumns, numbered: Mapping[str, int]) -> _Form:
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
        _ids(columns.integers.names, numbered),
        columns.integers.values.tobytes(),
        _ids(columns.floats.names, numbered),
        columns.floats.values.tobytes(),
    )


def _ids(names: Sequence[str], numbered: Mapping[str, int]) -> bytes:
    return np.fromiter(map(numbered.__getitem__, names), "<u4", len(names)).tobytes()


def _table(ids: bytes, values: bytes, dtype: str, count: int) -> Array:
    return np.frombuffer(values, dtype).reshape(len(np.frombuffer(ids, "<u4")), count)


def _of_version_1(old: _Form1) -> _Form:
    constant = np.repeat(np.frombuffer(old.constants, "<i8"), old.count)
    firsts = np.frombuffer(old.firsts, "<i8")
    steps = np.frombuffer(old.steps, f"<i{old.width}").reshape(len(firsts), old.count - 1)
    whole = np.cumsum(np.column_stack([firsts, steps]), axis=1, dtype="<i8")
    return _Form(
        VERSION,
        old.count,
        old.time,
        old.monotonic,
        old.generation,
        old.phase,
        old.label,
        old.kind,
        old.constant + old.whole + old.holed,
        constant.tobytes() + whole.tobytes() + old.holed_values,
        old.floats,
        old.float_values,
    )


def _of_json(data: bytes, numbered: Mapping[str, int]) -> _Form:
    columns = wire_types.decode_stored(data).columns
    columns.series = {n: values for n, values in columns.series.items() if n in numbered}
    return _form(of_lists(columns), numbered)


DetailKind = Literal["events", "large_objects", "census", "holders", "log"]


@dataclass(frozen=True, slots=True)
class Incoming:
    """A validated batch."""

    run_id: str
    process: ProcessIdentity
    first_sequence: int
    count: int
    columns: BatchColumns
    details: dict[DetailKind, Sequence[Any]]
    lost: dict[str, int]
    received_at: float
    # The approximate memory used by the batch: the size of its inflated body or of its values, whichever is larger.
    size_bytes: int = 0
    # The only project that the sender may write to; runs of other projects are reported as unknown. None for all
    # projects.
    project: str | None = None
    # True if the batch was sent with a browser token.
    browser: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The outcome for a stored batch. ``count``: the number of new snapshots; 0 if all snapshots were stored before."""

    count: int


@dataclass(frozen=True, slots=True)
class UnknownRun:
    run_id: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The outcome for a refused batch: a snapshot is already stored with a different value of ``field``."""

    sequence: int
    field: str
    stored: Any
    sent: Any


@dataclass(frozen=True, slots=True)
class OtherIdentity:
    """The outcome for a refused batch: the process with this instance name has a different value of ``field``."""

    instance: str
    field: str
    stored: int
    sent: int


@dataclass(frozen=True, slots=True)
class TooManyProcesses:
    """The outcome for a refused batch: its process is new, and the run has reached its process limit."""

    run_id: str
    limit: int


@dataclass(frozen=True, slots=True)
class TooManyBytes:
    """The outcome for a refused batch: the project, or its ``browser`` tokens, reached today's byte limit."""

    project: str
    limit: int
    wait_seconds: int
    browser: bool = False


Outcome = Accepted | UnknownRun | Contradiction | OtherIdentity | TooManyProcesses | TooManyBytes

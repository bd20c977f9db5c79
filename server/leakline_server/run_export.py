"""Export of a run as JSON, CSV or Parquet, written in chunks from the stored rows; independent of HTTP.

A row is a snapshot: process, rank, attempt, sequence, time (Unix seconds), monotonic, generation, phase, label, kind,
then one column per series, ordered by name. CSV and Parquet have a column for each series of the run; in JSON a row has
only the series that were measured in that snapshot. Numbers are exported as measured; in Parquet every sample is a
double.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from .store import details, snapshot_rows
from .store.engine import Engine
from .store.runs import runs
from .store.series import Column, Texts, take
from .store.snapshot_rows import FIXED, Part

FORMATS: Final = ("json", "csv", "parquet")
# Positions where a spreadsheet would recognize a formula: at the start of a string, or after a cell separator other
# than the comma, as used by Excel in most of Europe, which then ignores quotes as well. Excel also accepts the
# full-width signs of Chinese and Japanese text. `static/js/csv.js` has the same pattern.
_FORMULA: Final = re.compile(r"""(^(?=[\t\r\n])|(?:^|[;|\t\r\n])(?=[\s"']*[=+\-@＝＋－＠]))""")
_OF_PROCESS: Final = ("process", "rank", "attempt")
# The number of rows converted to text at a time.
_ROWS: Final = 256


class ParquetMissing(Exception):
    """Raised when pyarrow is not installed."""


def export(engine: Engine, run_id: str, form: str) -> Iterator[bytes]:
    """Yield the exported file in chunks.

    Raises NoSuchRun and ParquetMissing before the first chunk, Gone and CorruptChunk after it.
    """
    names = snapshot_rows.names(engine, run_id)
    write = _WRITERS[form](engine, run_id, names)
    # Compute the first chunk now, so that errors occur before the response starts.
    first = next(write)
    return _from(first, write)


def _from(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _json(engine: Engine, run_id: str, names: list[str]) -> Iterator[bytes]:
    head = {"format": "leakline-export", "version": 1, "run": runs.get_run(engine, run_id)}
    yield msgspec.json.encode(head)[:-1] + b',"snapshots":[\n'
    between = b""
    for part in snapshot_rows.parts(engine, run_id, names):
        for rows in _json_rows(part):
            yield between + b",\n".join(rows)
            between = b",\n"
    tail = {
        "events": details.list_events(engine, run_id),
        "large_objects": details.newest_large_objects(engine, run_id),
        "holders": details.newest_holders(engine, run_id),
    }
    yield b"\n]," + msgspec.json.encode(tail)[1:] + b"\n"


def _json_rows(part: Part) -> Iterator[list[bytes]]:
    """Yield encoded snapshots in groups; each snapshot contains only its own samples."""
    of_process = {"process": part.instance, "rank": part.rank, "attempt": part.attempt}
    for fixed, samples in zip(
        _slices(part, part.fixed.values()), _slices(part, part.series.values()), strict=True
    ):
        yield [
            msgspec.json.encode(
                {
                    **of_process,
                    **{name: column[i] for name, column in zip(part.fixed, fixed, strict=True)},
                    "samples": {
                        name: column[i]
                        for name, column in zip(part.series, samples, strict=True)
                        if column[i] is not None
                    },
                }
            )
            for i in range(len(fixed[0]))
        ]


def _csv(engine: Engine, run_id: str, names: list[str]) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([*_OF_PROCESS, *FIXED, *(_neutral(_title(name)) for name in names)])
    yield _taken(text)
    for part in snapshot_rows.parts(engine, run_id, names):
        of_process = [_neutral(part.instance), part.rank, part.attempt]
        columns = [*part.fixed.values(), *(part.series.get(name) for name in names)]
        for lists in _slices(part, columns):
            for row in zip(*lists, strict=True):
                writer.writerow([*of_process, *(_cell(value) for value in row)])
            yield _taken(text)


def _title(name: str) -> str:
    """Return the column title; a series that has the name of a fixed column gets a prefix."""
    return f"series.{name}" if name in FIXED or name in _OF_PROCESS else name


def _cell(value: Any) -> Any:
    return _neutral(value) if isinstance(value, str) else value


def _neutral(text: str) -> str:
    """Prevent spreadsheets from interpreting a string as a formula: names and labels come from user programs."""
    return _FORMULA.sub(r"\1'", text)


def _taken(text: io.StringIO) -> bytes:
    written = text.getvalue().encode()
    text.seek(0)
    text.truncate()
    return written


def _slices(part: Part, columns: Iterable[Column | None]) -> Iterator[list[list[Any]]]:
    """Yield groups of rows as lists, one list per column, with None for missing values."""
    columns = list(columns)
    for at in range(0, len(part), _ROWS):
        rows = np.arange(at, min(at + _ROWS, len(part)))
        nothing = [None] * len(rows)
        yield [nothing if column is None else take(column, rows).to_list() for column in columns]


def _parquet(engine: Engine, run_id: str, names: list[str]) -> Iterator[bytes]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ParquetMissing(
            "Parquet needs pyarrow, which is not installed on the server: pip install 'leakline[parquet]', or use json "
            "or csv"
        ) from error
    repeated, text, whole, real = (
        pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.int64(), pa.float64()
    )  # fmt: skip
    kinds = {
        "process": repeated, "rank": whole, "attempt": whole, "sequence": whole, "time": real,
        "monotonic": real, "generation": whole, "phase": repeated, "label": text, "kind": repeated,
    }  # fmt: skip
    kinds |= {_title(name): real for name in names}
    schema = pa.schema(list(kinds.items()), metadata={"leakline.run": run_id})
    sink = _Sink()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        yield sink.taken()
        for part in snapshot_rows.parts(engine, run_id, names):
            writer.write_table(_table(pa, schema, part))
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """A write-only file in memory; `taken` returns the data written since the last call."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        self._waiting.append(bytes(data))
        self._at += len(self._waiting[-1])
        return len(self._waiting[-1])

    def taken(self) -> bytes:
        written, self._waiting = b"".join(self._waiting), []
        return written


def _table(pa: Any, schema: Any, part: Part) -> Any:
    of_process = {"process": part.instance, "rank": part.rank, "attempt": part.attempt}
    columns = dict(part.fixed) | {_title(name): column for name, column in part.series.items()}
    made = []
    for field in schema:
        column = columns.get(field.name)
        if field.name in of_process:
            array = pa.array([of_process[field.name]] * len(part))
        elif column is None:
            array = pa.nulls(len(part), field.type)
        elif isinstance(column, Texts):
            array = pa.array(column.to_list(), pa.string())
        else:
            array = pa.array(
                column.values, mask=None if column.present is None else ~column.present
            )
        made.append(array.cast(field.type))
    return pa.table(made, schema=schema)


_WRITERS: Final[dict[str, Callable[[Engine, str, list[str]], Iterator[bytes]]]] = {
    "json": _json,
    "csv": _csv,
    "parquet": _parquet,
}

"""A request body becomes a checked batch, or a refusal that names the field. Knows no database and no HTTP framework.

1. inflate, within bounds     2. decode by type (msgspec)     3. check what spans fields     4. bring to one form

Nothing is silently repaired but control characters, which are removed from every text.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import zstandard

from leakline.core.environment import masked
from leakline.snapshot import WIRE_VERSION, ProcessIdentity

from ..errors import InvalidField, Malformed, TooLarge, Unsupported
from ..limits import (
    MAX_BATCH_EVENTS,
    MAX_BATCH_SERIES,
    MAX_CENSUS_TYPES,
    MAX_DEPTH,
    MAX_FLOAT,
    MAX_HOLDERS,
    MAX_INFLATED_BYTES,
    MAX_INTEGER,
    MAX_LARGE_OBJECTS,
    MAX_LINE_LENGTH,
    MAX_LOST_REASONS,
    MAX_RSS_BYTES,
    MAX_SNAPSHOTS,
    MAX_TIME_SECONDS,
    MAX_WINDOW_BYTES,
)
from ..store import native_module
from ..store.details import LINES_KEPT
from ..store.ingest import wire_types
from ..store.ingest.incoming_batch import (
    NOT_THERE,
    BatchColumns,
    DetailKind,
    Incoming,
    Rows,
    of_lists,
    of_rows,
    series_of,
)
from ..text_cleaning import all_without_control, may_steer

# Below it, checking whether a series is constant costs more than reading it.
MIN_FOR_CONSTANT: Final = 48
# Inflated at a time.
PIECE_BYTES: Final = 256 * 1024

# A leak cannot be distinguished from a counter that wrapped, so what counts things must not be negative. The phase
# accounts are changes, and a gauge is whatever its owner says.
_COUNTS: Final = re.compile(
    r"(?!phase\.|gauge\.).*(?:_bytes|\.bytes|\.count|_count|\.length|\.capacity|\.open)"
)
_BYTES_OR_COUNT: Final = re.compile(
    r".*(?:_bytes|\.bytes|\.count|_count|\.length|\.capacity|\.open)"
)


def inflate(body: bytes, encoding: str, limit: int = MAX_INFLATED_BYTES) -> bytes:
    """The body without its compression, never more than ``limit`` bytes of it in memory."""
    encoding = encoding.strip().lower()
    try:
        if encoding in ("", "identity"):
            return _joined((body,), limit)
        if encoding == "gzip":
            return _joined(_gunzip(body), limit)
        if encoding == "zstd":
            return _joined(_unzstd(body), limit)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise Malformed("bad_compression", f"the body is not valid {encoding}: {error}") from error
    raise Unsupported(
        "unsupported_encoding",
        f"content-encoding {encoding[:40]!r}: send gzip, zstd or no compression",
        {"accepted": ["gzip", "zstd", "identity"]},
    )


def _joined(pieces: Iterable[bytes], limit: int) -> bytes:
    """Raises TooLarge as soon as they are too many; then nothing of them is kept."""
    kept: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise too_large(limit, "inflated")
        kept.append(piece)
    return kept[0] if len(kept) == 1 else b"".join(kept)


def _gunzip(body: bytes) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    while piece := inflater.decompress(body, PIECE_BYTES):
        yield piece
        body = inflater.unconsumed_tail
    if not inflater.eof:
        raise EOFError("it ends too early")
    if inflater.unused_data:
        # A second member, which would else be dropped with the answer that all is stored.
        raise EOFError("something follows its end; send one member")


def _unzstd(body: bytes) -> Iterator[bytes]:
    with zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(
        body, read_across_frames=True
    ) as reader:
        while piece := reader.read(PIECE_BYTES):
            yield piece


def too_large(limit_bytes: int, what: str) -> TooLarge:
    return TooLarge(
        "batch_too_large",
        f"the body has more than {limit_bytes} bytes {what}; send fewer snapshots in one batch",
        {"limit_bytes": limit_bytes},
    )


def check(run_id: str, body: bytes, received_at: float) -> Incoming:
    """The batch in ``body``, inflated JSON. Raises Malformed or InvalidField."""
    if may_steer(body):
        # Checked again after it: a name of nothing but control characters is no name.
        cleaned = all_without_control(msgspec.to_builtins(_decode(body)))
        body = wire_types.encode(cleaned)
    found = _plain(body)
    if found is None:
        whole = _decode(body)
        found = whole, _columns(whole)
        _check_series(found[1])
    batch, columns = found
    count = len(columns)
    if len(batch.lost) > MAX_LOST_REASONS:
        raise InvalidField("lost", len(batch.lost), f"at most {MAX_LOST_REASONS} reasons")
    details = _details(batch, count)
    who = batch.process
    return Incoming(
        run_id=run_id,
        process=ProcessIdentity(who.instance, who.rank, who.pid, who.host, who.role, who.attempt),
        first_sequence=batch.first_sequence,
        count=count,
        columns=columns,
        details=details,
        lost=batch.lost,
        received_at=received_at,
        size_bytes=max(len(body), columns.nbytes),
    )


class SeriesRead(NamedTuple):
    """The series of a batch by kind, as in `BatchColumns`; no number is below ``low`` or above ``high``."""

    constant: dict[str, int]
    whole: Rows
    holed: Rows
    floats: Rows
    low: float
    high: float


def read_series(series: bytes | msgspec.Raw, count: int) -> SeriesRead | None:
    """Read a JSON object of lists of ``count`` numbers natively; None if anything in it is not plain.

    Plain are lists of integers and nulls, or of floats and nulls, within the bounds that hold for every series, each
    under a name of its own. Everything else is decoded value by value, which accepts the same and names what is wrong.
    """
    module = native_module.native()
    assert module is not None
    found = module.read_columns(series, count, MIN_FOR_CONSTANT)
    if found is None:
        return None
    constant, whole, whole_table, holed, holed_table, floats, float_table, low, high = found
    return SeriesRead(
        constant,
        _rows(whole, whole_table, _INTEGER, count),
        _rows(holed, holed_table, _INTEGER, count),
        _rows(floats, float_table, _FLOAT, count),
        low,
        high,
    )


_INTEGER: Final = np.dtype(np.int64)
_FLOAT: Final = np.dtype(np.float64)


def _rows(names: list[str], table: bytes, dtype: np.dtype[Any], count: int) -> Rows:
    return Rows(names, np.ndarray((len(names), count), dtype, table))


def _plain(body: bytes) -> tuple[wire_types.Envelope, BatchColumns] | None:
    """Return a complete and valid batch, as our own clients send; None for others, or without the native module."""
    if native_module.native() is None:
        return None
    try:
        batch = wire_types.decode_plain(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    columns = batch.columns
    count = len(columns.time)
    sizes = {
        len(columns.monotonic), len(columns.generation), len(columns.phase), len(columns.label), len(columns.kind),
        count if batch.count is None else batch.count,
    }  # fmt: skip
    if batch.version != WIRE_VERSION or sizes != {count} or not 0 < count <= MAX_SNAPSHOTS:
        return None
    found = read_series(columns.series, count)
    if found is None:
        return None
    checked = BatchColumns(
        np.array(columns.time, np.float64),
        np.array(columns.monotonic, np.float64),
        columns.generation,
        columns.phase,
        columns.label,
        columns.kind,
        found.whole,
        found.holed,
        found.floats,
        found.constant,
    )
    _check_series(checked, found.low, found.high)
    return batch, checked


def _decode(body: bytes) -> wire_types.Batch:
    try:
        batch = wire_types.decode_batch(body)
    except msgspec.ValidationError as error:
        raise _explain(body, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "; JSON has no NaN or Infinity, send null" if _has_no_number(body) else ""
        raise Malformed("malformed_json", f"the body is not JSON: {error}{hint}") from error
    except RecursionError as error:
        raise too_deep(MAX_DEPTH) from error
    if batch.version != WIRE_VERSION:
        raise _wrong_version(batch.version)
    return batch


_NOT_JSON: Final = re.compile(rb"\b(?:NaN|-?Infinity)\b")


def _has_no_number(body: bytes) -> bool:
    # The pattern alone takes ten times as long as everything else that is done with 2 MiB of blanks.
    return (b"NaN" in body or b"Infinity" in body) and _NOT_JSON.search(body) is not None


def _columns(batch: wire_types.Batch) -> BatchColumns:
    """The columns of either form."""
    if (batch.columns is None) == (batch.snapshots is None):
        raise InvalidField("columns", None, "send either columns with count, or snapshots")
    if batch.snapshots is not None:
        _check_count(len(batch.snapshots))
        return _of_rows(batch.snapshots)
    columns = batch.columns
    assert columns is not None
    count = len(columns.time) if batch.count is None else batch.count
    _check_count(count)
    nothing = [None] * count
    columns.monotonic = columns.monotonic or list(columns.time)
    columns.generation = columns.generation or list(nothing)
    columns.phase = columns.phase or list(nothing)
    columns.label = columns.label or list(nothing)
    for name in ("time", "monotonic", "generation", "phase", "label", "kind"):
        values = getattr(columns, name)
        if values is not None and len(values) != count:
            raise InvalidField(f"columns.{name}", len(values), f"must have count={count} entries")
    for name, values in columns.series.items():
        if len(values) != count:
            raise InvalidField(
                f"columns.series.{name}", len(values), f"must have count={count} entries"
            )
    return _arrays(columns)


def _arrays(columns: wire_types.Columns) -> BatchColumns:
    found = of_lists(columns)
    for name in found.floats.names:
        _check_sizes(name, columns.series[name])
    return found


def _of_rows(rows: Sequence[wire_types.Row]) -> BatchColumns:
    names: set[str] = set()
    for row in rows:
        names.update(row.series)
        # Before anything is made of them: each of 200 snapshots may have a thousand of its own.
        if len(names) > MAX_BATCH_SERIES:
            raise _too_many_series(len(names))
    series = series_of(rows)
    found = of_rows(rows, series)
    for name in found.floats.names:
        _check_sizes(name, series[name].values, series[name].at)
    return found


def _check_count(count: int) -> None:
    if count > MAX_SNAPSHOTS:
        raise InvalidField("count", count, f"at most {MAX_SNAPSHOTS} snapshots in one batch")


def _too_many_series(count: int) -> InvalidField:
    return InvalidField("columns.series", count, f"at most {MAX_BATCH_SERIES} series in one batch")


def _check_series(columns: BatchColumns, low: float = -math.inf, high: float = math.inf) -> None:
    """Of columns with no number below ``low`` or above ``high``: most need no look at each of them."""
    tables = (columns.whole, columns.holed, columns.floats)
    series = len(columns.constant) + sum(len(rows.names) for rows in tables)
    if series > MAX_BATCH_SERIES:
        raise _too_many_series(series)
    if low < 0:
        for name, value in columns.constant.items():
            if value < 0:
                _check_not_negative(name, value)
        for rows in tables:
            if len(rows.names) and len(columns):
                _check_rows(rows)
    if high > MAX_RSS_BYTES:
        _check_resident(columns)


def _check_resident(columns: BatchColumns) -> None:
    resident = columns.numbers("process.rss_bytes")
    if resident is not None and len(columns) and resident.values.max() > MAX_RSS_BYTES:
        most = resident.values.max().item()
        raise InvalidField("columns.series.process.rss_bytes", most, "is more than 64 TiB")


def _check_rows(rows: Rows) -> None:
    values = rows.values
    suspicious = values < 0
    if rows.values.dtype.kind == "i":
        suspicious &= values != NOT_THERE
    if suspicious.any():
        for at in np.flatnonzero(suspicious.any(axis=1)).tolist():
            of_one = values[at]
            _check_not_negative(rows.names[at], of_one[suspicious[at]].min().item())


def _check_not_negative(name: str, lowest: float) -> None:
    if _counts(name):
        raise InvalidField(f"columns.series.{name}", lowest, "must not be negative")


@lru_cache(maxsize=10_000)
def _counts(name: str) -> bool:
    return _COUNTS.fullmatch(name) is not None


def _check_sizes(name: str, values: Sequence[Any], at: Sequence[int] | None = None) -> None:
    """Of values decoded one by one, ``at`` these snapshots. Integers were bounded then."""
    present = [v for v in values if v is not None]
    if not present or (min(present) >= -MAX_FLOAT and max(present) <= MAX_FLOAT):
        return
    whole = _BYTES_OR_COUNT.fullmatch(name) is not None
    for i, value in enumerate(values):
        limit = MAX_INTEGER if whole or isinstance(value, int) else MAX_FLOAT
        if value is not None and abs(value) > limit:
            where = f"columns.series.{name}[{i if at is None else at[i]}]"
            raise InvalidField(where, value, f"must lie between -{limit:g} and {limit:g}")


def _details(batch: wire_types.Envelope, count: int) -> dict[DetailKind, Sequence[Any]]:
    if not (batch.events or batch.large_objects or batch.census or batch.holders):
        return {}
    kinds: tuple[tuple[DetailKind, Sequence[Any], int], ...] = (
        ("events", [e for e in batch.events if e.kind != "log"], MAX_BATCH_EVENTS),
        ("log", [e for e in batch.events if e.kind == "log"], MAX_SNAPSHOTS),
        ("large_objects", batch.large_objects, MAX_LARGE_OBJECTS),
        ("census", batch.census, MAX_SNAPSHOTS),
        ("holders", batch.holders, MAX_HOLDERS),
    )
    last = batch.first_sequence + count - 1
    found: dict[DetailKind, Sequence[Any]] = {}
    for kind, rows, limit in kinds:
        if len(rows) > limit:
            raise InvalidField(kind, len(rows), f"at most {limit} in one batch")
        for i, row in enumerate(rows):
            if not batch.first_sequence <= row.sequence <= last:
                where = f"must be a snapshot of this batch, {batch.first_sequence} to {last}"
                raise InvalidField(f"{kind}[{i}].sequence", row.sequence, where)
        if rows:
            found[kind] = rows
    for i, event in enumerate(batch.events):
        _check_event(i, event)
    for i, census in enumerate(batch.census):
        if len(census.types) > MAX_CENSUS_TYPES:
            raise InvalidField(
                f"census[{i}].types", len(census.types), f"at most {MAX_CENSUS_TYPES}"
            )
    return found


@dataclass(frozen=True, slots=True)
class _Number:
    """A number in an event's data."""

    name: str
    what: str = "a count"
    low: float = 0
    high: float = MAX_INTEGER
    needed: bool = False
    kinds: tuple[type, ...] = (int,)

    def allows(self, value: Any) -> bool:
        right_kind = isinstance(value, self.kinds) and not isinstance(value, bool)
        return right_kind and self.low <= value <= self.high


# What the analysis and the pages compute with; everything else in an event's data is shown and no more.
_EVENT_NUMBERS: Final[Mapping[str, tuple[_Number, ...]]] = {
    "expect": (_Number("low", needed=True), _Number("high", needed=True)),
    "track": (_Number("capacity"),),
    "budget": (_Number("normal_bytes"), _Number("leak_bytes")),
    "band": (
        _Number("first", "a whole number", low=-MAX_INTEGER, needed=True),
        _Number("last", "a whole number", low=-MAX_INTEGER),
        _Number("low_bytes", "a number", low=-MAX_FLOAT, high=MAX_FLOAT, kinds=(int, float)),
        _Number("high_bytes", "a number", low=-MAX_FLOAT, high=MAX_FLOAT, kinds=(int, float)),
    ),
    "cleanup": (
        _Number("before_bytes"),
        _Number("after_bytes"),
        _Number("freed_bytes", "a number of bytes", low=-MAX_INTEGER),
        _Number("seconds", "a number of seconds", high=MAX_TIME_SECONDS, kinds=(int, float)),
    ),
}


def _check_event(i: int, event: wire_types.Event) -> None:
    if _deeper_than(event.data, MAX_DEPTH - 2):
        raise too_deep(MAX_DEPTH)
    for number in _EVENT_NUMBERS.get(event.kind, ()):
        value = event.data.get(number.name)
        if (value is not None or number.needed) and not number.allows(value):
            where = f"events[{i}].data.{number.name}"
            raise InvalidField(where, value, f"must be {number.what}")
    after = event.data.get("after")
    if event.kind == "expect" and not (after is None or isinstance(after, str)):
        raise InvalidField(f"events[{i}].data.after", after, "must be the name of a phase")
    if event.kind == "cleanup":
        _check_pairs(i, event, "counts", "must be counts by type: {type: [before, after]}")
        _check_pairs(i, event, "devices", "must be bytes by series: {series: [before, after]}")
    if event.kind == "log":
        _check_lines(i, event.data.get("lines"))
        event.data["lines"] = [masked(line) for line in event.data["lines"]]
    promises = event.data.get("promises")
    if event.kind == "fix" and not (promises is None or isinstance(promises, dict)):
        raise InvalidField(f"events[{i}].data.promises", promises, "must be an object")
    for name, value in (promises or {}).items() if event.kind == "fix" else ():
        if isinstance(value, (int, float)) and not 0 <= value <= MAX_INTEGER:
            where = f"events[{i}].data.promises.{name}"
            raise InvalidField(where, value, "must be a number of bytes or a count")


def _check_pairs(i: int, event: wire_types.Event, name: str, must: str) -> None:
    """Of types or series, before and after a cleanup."""
    pairs, allows = event.data.get(name), _Number(name).allows
    right = pairs is None or (
        isinstance(pairs, dict)
        and all(isinstance(p, list) and len(p) == 2 and all(map(allows, p)) for p in pairs.values())
    )
    if not right:
        raise InvalidField(f"events[{i}].data.{name}", pairs, must)


def _check_lines(i: int, lines: Any) -> None:
    right = (
        isinstance(lines, list)
        and 1 <= len(lines) <= LINES_KEPT
        and all(isinstance(line, str) and len(line) <= MAX_LINE_LENGTH for line in lines)
    )
    if not right:
        where = f"must be 1 to {LINES_KEPT} texts of at most {MAX_LINE_LENGTH} characters"
        raise InvalidField(f"events[{i}].data.lines", lines, where)


def _deeper_than(thing: Any, depth: int) -> bool:
    if isinstance(thing, dict):
        return depth == 0 or any(_deeper_than(v, depth - 1) for v in thing.values())
    if isinstance(thing, list):
        return depth == 0 or any(_deeper_than(v, depth - 1) for v in thing)
    return False


def too_deep(limit: int) -> Malformed:
    return Malformed("too_deep", f"the body nests deeper than {limit} levels")


def _wrong_version(version: Any) -> InvalidField:
    return InvalidField("version", version, f"this server reads version {WIRE_VERSION}")


def _explain(body: bytes, message: str) -> InvalidField | Malformed:
    """The field and value behind a message of msgspec, which reports a path but neither keys nor values."""
    try:
        loose = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Malformed("malformed_json", f"the body is not JSON: {error}")
    except RecursionError:
        return too_deep(MAX_DEPTH)
    if isinstance(loose, dict) and loose.get("version", WIRE_VERSION) != WIRE_VERSION:
        return _wrong_version(loose["version"])
    why, path = _parts(message)
    field, value = "", loose
    for step in path:
        if step == "...":
            return _culprit(field, value) or InvalidField(field, value, why)
        if isinstance(value, list):
            field, value = f"{field}[{step}]", value[int(step)]
        elif isinstance(value, dict):
            field, value = f"{field}.{step}".lstrip("."), value.get(step)
    if " - at `key`" in message:
        return _culprit(field, value) or InvalidField(field, None, why)
    return InvalidField(field or "body", value, why)


def _parts(message: str) -> tuple[str, list[str]]:
    """What was wrong, and the steps to where; ``...`` stands for the key of a mapping."""
    why, _, path = message.partition(" - at `")
    steps = re.findall(r"\.([^.\[\]`]+)|\[(\d+|\.\.\.)\]", path)
    return why[:1].lower() + why[1:], [name or index for name, index in steps]


def _culprit(field: str, mapping: Any) -> InvalidField | None:
    """Try a mapping entry by entry."""
    kind: Any = wire_types.Count
    if field.endswith("series"):
        kind = list[wire_types.Value] if field.startswith("columns") else wire_types.Value
    for key, value in mapping.items():
        try:
            msgspec.convert(key, wire_types.Name)
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            why, path = _parts(str(error))
            where = f"{field}.{key[:100]}"
            if path and path[0].isdigit():
                where, value = f"{where}[{path[0]}]", value[int(path[0])]
            return InvalidField(where, value, why)
    return None

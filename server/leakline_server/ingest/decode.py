"""Decodes a request body into a validated batch, or raises an error that names the invalid field.

This module does not depend on the database or HTTP.

1. Decompress, within limits.
2. Decode by type (msgspec).
3. Check constraints across fields.
4. Normalize.

Nothing is repaired silently, except that control characters are removed from every string.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import zstandard

from leakline.core.environment import masked
from leakline.snapshot import JSON_VERSION, MAGIC, PREFIX, WIRE_VERSION, ProcessIdentity

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
)
from ..store.series import Array
from ..text_cleaning import all_without_control, may_steer

NUMBER_BYTES: Final = 8
# The number of bytes to decompress at a time.
PIECE_BYTES: Final = 256 * 1024

# Counts must not be negative, because a counter that wrapped would look like a leak. Series of phase accounting are
# excluded because they contain differences, and gauges because users define them.
_COUNTS: Final = re.compile(
    r"(?!phase\.|gauge\.).*(?:_bytes|\.bytes|\.count|_count|\.length|\.capacity|\.open)"
)
_BYTES_OR_COUNT: Final = re.compile(
    r".*(?:_bytes|\.bytes|\.count|_count|\.length|\.capacity|\.open)"
)


def inflate(body: bytes, encoding: str, limit: int = MAX_INFLATED_BYTES) -> bytes:
    """Return the decompressed body; never hold more than ``limit`` bytes of it in memory."""
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
        f"content-encoding {encoding[:40]!r} is not supported; send gzip, zstd or no compression",
        {"accepted": ["gzip", "zstd", "identity"]},
    )


def _joined(pieces: Iterable[bytes], limit: int) -> bytes:
    """Join the pieces. Raises TooLarge as soon as their total size exceeds the limit."""
    kept: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise too_large(limit, "after decompression")
        kept.append(piece)
    return kept[0] if len(kept) == 1 else b"".join(kept)


def _gunzip(body: bytes) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    while piece := inflater.decompress(body, PIECE_BYTES):
        yield piece
        body = inflater.unconsumed_tail
    if not inflater.eof:
        raise EOFError("unexpected end of data")
    if inflater.unused_data:
        # Refuse a second gzip member, which would be dropped although the response says that everything is stored.
        raise EOFError("data follows the first gzip member; send a single member")


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
    """Validate a decompressed body of either version and return the batch. Raises Malformed or InvalidField."""
    batch: wire_types.Envelope
    sent: _Sent | None
    batch, columns, sent = _binary(body) if body.startswith(MAGIC) else _json(body)
    count = len(columns)
    _check_rows(columns.integers, sent)
    _check_rows(columns.floats, sent)
    if len(batch.lost) > MAX_LOST_REASONS:
        raise InvalidField(
            "lost", len(batch.lost), f"at most {MAX_LOST_REASONS} reasons are allowed"
        )
    who = batch.process
    return Incoming(
        run_id=run_id,
        process=ProcessIdentity(who.instance, who.rank, who.pid, who.host, who.role, who.attempt),
        first_sequence=batch.first_sequence,
        count=count,
        columns=columns,
        details=_details(batch, count),
        lost=batch.lost,
        received_at=received_at,
        size_bytes=max(len(body), columns.nbytes),
    )


# Returns the number for a series and snapshot as it was in the JSON, where integers can still be distinguished from
# floats.
_Sent = Callable[[str, int], Any]


def _binary(body: bytes) -> tuple[wire_types.Head, BatchColumns, None]:
    """Decode a batch of version 2. Every length is checked before it is used."""
    start = PREFIX.size + (PREFIX.unpack_from(body)[1] if len(body) >= PREFIX.size else 0)
    if len(body) < start or len(body) < PREFIX.size:
        raise Malformed("malformed_batch", "the body ends within its header")
    head: wire_types.Head = _decode(body[PREFIX.size : start], wire_types.decode_head, WIRE_VERSION)
    count, series = head.count, len(head.integers) + len(head.floats)
    _check_count(count)
    _check_series_count(series)
    for name in ("generation", "phase", "label", "kind"):
        _check_length(name, getattr(head, name), count)
    if len({*head.integers, *head.floats}) < series:
        raise InvalidField("integers", None, "a series name occurs twice")
    expected = NUMBER_BYTES * count * (2 + series)
    if len(body) - start != expected:
        raise Malformed(
            "malformed_batch",
            f"{len(body) - start} bytes follow the header, but {count} snapshots of {series} series need {expected} "
            "bytes",
        )
    # The values are copied, so that the body is not kept in memory.
    numbers = np.ndarray((2 + series, count), "<i8", body, start).astype(np.int64)
    middle = 2 + len(head.integers)
    times, integers, floats = numbers[:2], numbers[2:middle], numbers[middle:].view(np.float64)
    times = times.view(np.float64)
    _check_times(times)
    columns = BatchColumns(
        times[0],
        times[1],
        head.generation,
        head.phase,
        head.label,
        head.kind,
        Rows(head.integers, integers),
        Rows(head.floats, floats),
    )
    return head, columns, None


def _json(body: bytes) -> tuple[wire_types.Batch, BatchColumns, _Sent]:
    """Decode a batch of version 1, which contains either columns with a count, or rows."""
    batch: wire_types.Batch = _decode(body, wire_types.decode_batch, JSON_VERSION)
    columns, rows = batch.columns, batch.snapshots
    if rows is not None and columns is None:
        _check_count(len(rows))
        names: set[str] = set()
        for row in rows:
            names.update(row.series)
            # Check the number of series early, because each of 200 snapshots may have a thousand different series.
            _check_series_count(len(names))
        return batch, of_rows(rows), lambda name, i: rows[i].series[name]
    if columns is None or rows is not None:
        raise InvalidField("columns", None, "send either columns with count, or snapshots")
    count = len(columns.time) if batch.count is None else batch.count
    _check_count(count)
    _check_series_count(len(columns.series))
    nothing = [None] * count
    columns.monotonic = columns.monotonic or list(columns.time)
    columns.generation = columns.generation or list(nothing)
    columns.phase = columns.phase or list(nothing)
    columns.label = columns.label or list(nothing)
    for name in ("time", "monotonic", "generation", "phase", "label", "kind"):
        if (values := getattr(columns, name)) is not None:
            _check_length(f"columns.{name}", values, count)
    for name, values in columns.series.items():
        _check_length(f"columns.series.{name}", values, count)
    return batch, of_lists(columns), lambda name, i: columns.series[name][i]


Envelope = TypeVar("Envelope", bound=wire_types.Envelope)


def _decode(text: bytes, decode: Callable[[bytes], Envelope], version: int) -> Envelope:
    """Decode JSON and remove control characters."""
    if may_steer(text):
        # The batch is validated again afterwards: a name that consisted only of control characters is now empty.
        cleaned = all_without_control(msgspec.to_builtins(_typed(text, decode, version)))
        text = wire_types.encode(cleaned)
    return _typed(text, decode, version)


def _typed(text: bytes, decode: Callable[[bytes], Envelope], version: int) -> Envelope:
    try:
        batch = decode(text)
    except msgspec.ValidationError as error:
        raise _explain(text, str(error), version) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "; JSON has no NaN or Infinity, so send null instead" if _has_no_number(text) else ""
        raise Malformed("malformed_json", f"the body is not JSON: {error}{hint}") from error
    except RecursionError as error:
        raise too_deep(MAX_DEPTH) from error
    if batch.version != version:
        raise _wrong_version(batch.version, version)
    return batch


_NOT_JSON: Final = re.compile(rb"\b(?:NaN|-?Infinity)\b")


def _has_no_number(body: bytes) -> bool:
    # On 2 MiB of whitespace, the pattern alone takes ten times as long as all other processing, so search for the words
    # first.
    return (b"NaN" in body or b"Infinity" in body) and _NOT_JSON.search(body) is not None


def _check_count(count: int) -> None:
    if count > MAX_SNAPSHOTS:
        raise InvalidField(
            "count", count, f"at most {MAX_SNAPSHOTS} snapshots are allowed in one batch"
        )


def _check_series_count(count: int) -> None:
    if count > MAX_BATCH_SERIES:
        raise InvalidField(
            "columns.series", count, f"at most {MAX_BATCH_SERIES} series are allowed in one batch"
        )


def _check_length(field: str, values: Sequence[Any], count: int) -> None:
    if len(values) != count:
        raise InvalidField(field, len(values), f"must have {count} entries, one per snapshot")


def _unsigned(values: Array) -> Array:
    """Reinterpret the numbers as unsigned integers, so that negative and missing values exceed all valid values."""
    return values.view(np.uint64)


_MAX_TIME: Final = int(_unsigned(np.array(MAX_TIME_SECONDS, np.float64)))
_MAX_RSS: Final = {
    kind: int(_unsigned(np.array(MAX_RSS_BYTES, kind))) for kind in (np.int64, np.float64)
}


def _check_times(times: Array) -> None:
    """Check ``times``, which has one row for ``time`` and one row for ``monotonic``."""
    for row, at in zip(*(_unsigned(times) > _MAX_TIME).nonzero(), strict=True):
        must = f"must be a number of seconds between 0 and {MAX_TIME_SECONDS:g}"
        where = f"{('time', 'monotonic')[row]}[{at}]"
        raise InvalidField(where, repr(times[row, at].item()), must)


def _check_rows(rows: Rows, sent: _Sent | None) -> None:
    values, numbers = rows.values, _unsigned(rows.values)
    most = _MAX_RSS[values.dtype.type]
    # In a small batch, the ufuncs cost half as much as the array methods.
    if not values.size or np.maximum.reduce(numbers, None) <= most:
        return
    missing = values == NOT_THERE if values.dtype.kind == "i" else np.isnan(values)
    odd = np.logical_or.reduce((numbers > most) ^ missing, 1).nonzero()[0].tolist()
    if not odd:
        return
    values = np.where(missing.take(odd, 0), 0, values.take(odd, 0))
    ranges = np.minimum.reduce(values, 1).tolist(), np.maximum.reduce(values, 1).tolist()
    for at, row, low, high in zip(odd, values, *ranges, strict=True):
        name = rows.names[at]
        if not -MAX_FLOAT <= low <= high <= MAX_FLOAT:
            _check_sizes(name, row, sent)
        if low < 0 and _counts(name):
            raise InvalidField(f"columns.series.{name}", low, "must not be negative")
        if high > MAX_RSS_BYTES and name == "process.rss_bytes":
            raise InvalidField(f"columns.series.{name}", high, "must not be more than 64 TiB")


def _check_sizes(name: str, row: Array, sent: _Sent | None) -> None:
    whole = row.dtype.kind == "i" or _BYTES_OR_COUNT.fullmatch(name) is not None
    limit, sizes = MAX_INTEGER if whole else MAX_FLOAT, np.abs(row)
    over = sizes > limit
    if not whole and sent is None:
        # In a column of doubles, a whole number of this size may have been sent as an integer.
        over &= (sizes > MAX_INTEGER) | (row != np.trunc(row))
    for i in over.nonzero()[0].tolist():
        value = row[i].item() if sent is None else sent(name, i)
        if not isinstance(value, int) or abs(value) > MAX_INTEGER:
            shown = value if math.isfinite(value) else repr(value)
            where = f"columns.series.{name}[{i}]"
            raise InvalidField(where, shown, f"must be between -{limit:g} and {limit:g}")


@lru_cache(maxsize=10_000)
def _counts(name: str) -> bool:
    return _COUNTS.fullmatch(name) is not None


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
            raise InvalidField(kind, len(rows), f"at most {limit} are allowed in one batch")
        for i, row in enumerate(rows):
            if not batch.first_sequence <= row.sequence <= last:
                where = f"must be the sequence number of a snapshot in this batch, {batch.first_sequence} to {last}"
                raise InvalidField(f"{kind}[{i}].sequence", row.sequence, where)
        if rows:
            found[kind] = rows
    for i, event in enumerate(batch.events):
        _check_event(i, event)
    for i, census in enumerate(batch.census):
        if len(census.types) > MAX_CENSUS_TYPES:
            raise InvalidField(
                f"census[{i}].types",
                len(census.types),
                f"at most {MAX_CENSUS_TYPES} types are allowed",
            )
    return found


@dataclass(frozen=True, slots=True)
class _Number:
    """A constraint on a number in an event's data."""

    name: str
    what: str = "a count"
    low: float = 0
    high: float = MAX_INTEGER
    needed: bool = False
    kinds: tuple[type, ...] = (int,)

    def allows(self, value: Any) -> bool:
        right_kind = isinstance(value, self.kinds) and not isinstance(value, bool)
        return right_kind and self.low <= value <= self.high


# Numbers that the analysis and the pages compute with; everything else in an event's data is only displayed.
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
        _check_pairs(i, event, "counts", "must map types to object counts: {type: [before, after]}")
        _check_pairs(
            i, event, "devices", "must map series to numbers of bytes: {series: [before, after]}"
        )
    if event.kind == "log":
        _check_lines(i, event.data.get("lines"))
        event.data["lines"] = [masked(line) for line in event.data["lines"]]
    promises = event.data.get("promises")
    if event.kind == "fix" and not (promises is None or isinstance(promises, dict)):
        raise InvalidField(f"events[{i}].data.promises", promises, "must be an object")
    for name, value in (promises or {}).items() if event.kind == "fix" else ():
        if isinstance(value, (int, float)) and not 0 <= value <= MAX_INTEGER:
            where = f"events[{i}].data.promises.{name}"
            raise InvalidField(where, value, f"must be between 0 and {MAX_INTEGER}")


def _check_pairs(i: int, event: wire_types.Event, name: str, must: str) -> None:
    """Check the [before, after] pairs of a cleanup, which are keyed by type or series."""
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
        where = f"must be 1 to {LINES_KEPT} lines of at most {MAX_LINE_LENGTH} characters each"
        raise InvalidField(f"events[{i}].data.lines", lines, where)


def _deeper_than(thing: Any, depth: int) -> bool:
    if isinstance(thing, dict):
        return depth == 0 or any(_deeper_than(v, depth - 1) for v in thing.values())
    if isinstance(thing, list):
        return depth == 0 or any(_deeper_than(v, depth - 1) for v in thing)
    return False


def too_deep(limit: int) -> Malformed:
    return Malformed("too_deep", f"the body is nested deeper than {limit} levels")


def _wrong_version(version: Any, reads: int) -> InvalidField:
    what = "JSON" if reads == JSON_VERSION else "this content type"
    return InvalidField("version", version, f"must be {reads} for {what}")


def _explain(body: bytes, message: str, version: int) -> InvalidField | Malformed:
    """Return the error with the invalid field and value; msgspec's message contains a path but no keys or values."""
    try:
        loose = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Malformed("malformed_json", f"the body is not JSON: {error}")
    except RecursionError:
        return too_deep(MAX_DEPTH)
    if isinstance(loose, dict) and loose.get("version", version) != version:
        return _wrong_version(loose["version"], version)
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
    """Return the problem and the steps of the path in msgspec's message; the step ``...`` is any key of a mapping."""
    why, _, path = message.partition(" - at `")
    steps = re.findall(r"\.([^.\[\]`]+)|\[(\d+|\.\.\.)\]", path)
    return why[:1].lower() + why[1:], [name or index for name, index in steps]


def _culprit(field: str, mapping: Any) -> InvalidField | None:
    """Return the error for the first invalid entry of a mapping, or None if no entry is invalid."""
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

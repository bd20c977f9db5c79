"""Reader of W&B run files (`run-*.wandb`) of online and offline runs. Reads memory from the system metrics and the
history.

The file is a log of framed records, each a protobuf message:

    file    =  b":W&B" magic version block*        magic 0xBEE1, little-endian, 2 bytes; version 0, 1 byte
    block   =  32 KiB of fragments; fewer than 7 bytes at its end are not used
    fragment=  crc length type payload              4, 2 and 1 bytes, little-endian
      crc      CRC-32 of type and payload
      type     1 a complete record, 2 its first part, 3 a middle part, 4 its last part

This is LevelDB's log format with a different header and checksum. A truncated file (the program was killed) is
read up to its end; a file that is damaged in the middle is refused. Only the required fields are decoded. They are
identified by their numbers, which protobuf never reuses. wandb's wheel has no reader for these files, and the
protobuf package would add a dependency with its own version constraints.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from ...snapshot import LARGEST_INTEGER, Number
from ..imported_log import (
    BY_TIME,
    MAX_FILE_BYTES,
    MAX_MEMORY_BYTES,
    MAX_MOMENT,
    ImportRefused,
    Log,
    Reading,
    Wishes,
    plain,
    taken,
)
from ..names_and_sizes import Meaning, chosen_metrics, meaning_of, note_of

MAGIC: Final = b":W&B"
FILE_HEADER: Final = struct.Struct("<4sHB")
FRAGMENT: Final = struct.Struct("<IHB")
BLOCK: Final = 32 * 1024
MAX_RECORD_BYTES: Final = 8 * 2**20
_NUMBER: Final = 0xBEE1
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def _records_of(path: Path) -> Iterator[bytes]:
    """Yield the records. Raises ImportRefused with the offset of the damage in the file."""
    try:
        with path.open("rb") as file:
            head = file.read(FILE_HEADER.size)
            if len(head) < FILE_HEADER.size or FILE_HEADER.unpack(head) != (MAGIC, _NUMBER, 0):
                raise ImportRefused(path, "is not a W&B log of the supported version (0)")
            yield from _joined(path, _fragments(path, file))
    except OSError as error:
        raise ImportRefused(path, f"cannot be read ({error.strerror})") from error


def _joined(path: Path, fragments: Iterator[tuple[int, int, bytes]]) -> Iterator[bytes]:
    parts: list[bytes] | None = None
    for offset, kind, body in fragments:
        if kind == _WHOLE:
            parts = None
            yield body
        elif kind == _FIRST:
            parts = [body]
        elif parts is None:
            raise ImportRefused(
                path, f"at byte {offset}: a record has no beginning; the file is damaged"
            )
        else:
            parts.append(body)
            if sum(map(len, parts)) > MAX_RECORD_BYTES:
                raise ImportRefused(path, f"at byte {offset}: a record is larger than 8 MiB")
            if kind == _LAST:
                yield b"".join(parts)
                parts = None


def _fragments(path: Path, file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Yield (offset, type, payload) up to the end of the written data."""
    offset = FILE_HEADER.size
    while True:
        left = BLOCK - offset % BLOCK
        if left < FRAGMENT.size:
            file.read(left)
            offset += left
            continue
        head = file.read(FRAGMENT.size)
        if len(head) < FRAGMENT.size:
            return
        crc, length, kind = FRAGMENT.unpack(head)
        if (crc, length, kind) == (0, 0, 0):
            # The rest of the file was preallocated and never written.
            return
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or length > left - FRAGMENT.size:
            raise ImportRefused(
                path, f"at byte {offset}: no W&B record starts here; the file is damaged"
            )
        body = file.read(length)
        if len(body) < length:
            return
        if zlib.crc32(bytes([kind]) + body) != crc:
            raise ImportRefused(
                path, f"at byte {offset}: the checksum is wrong; the file is damaged"
            )
        yield offset, kind, body
        offset += FRAGMENT.size + length


Value = int | float | bytes
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_LONGEST: Final = 10


class _NotProtobuf(ValueError):
    """Raised for a message that is truncated within a field, or that has a field with an unknown wire type."""


def _fields_of(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield (field number, value) for each field, in order. Raises _NotProtobuf."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
        elif kind == _BYTES:
            length, at = _varint(message, at)
            yield number, _piece(message, at, length)
            at += length
        elif kind == _EIGHT:
            yield number, float(struct.unpack("<d", _piece(message, at, 8))[0])
            at += 8
        elif kind == _FOUR:
            yield number, float(struct.unpack("<f", _piece(message, at, 4))[0])
            at += 4
        else:
            raise _NotProtobuf(f"a field has the unknown wire type {kind}")


def _piece(message: bytes, at: int, length: int) -> bytes:
    if at + length > len(message):
        raise _NotProtobuf("it ends within a field")
    return message[at : at + length]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST):
        if at + index >= len(message):
            raise _NotProtobuf("it ends within a number")
        byte = message[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise _NotProtobuf("a number has more than 64 bits")


def signed(value: Value) -> int:
    """Return the signed value of an int64, which protobuf encodes as unsigned."""
    whole = int(value) if not isinstance(value, bytes) else 0
    return whole - (1 << 64) if whole >= 1 << 63 else whole


def text(value: Value) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# Field numbers of a Record and of its messages.
_HISTORY, _STATS, _RUN = 2, 7, 17
_ITEM, _STATS_TIME = 3, 2
_KEY, _NESTED, _INTEGER, _DOUBLE, _JSON = 1, 2, 5, 6, 16
_RUN_PROJECT, _RUN_NAME, _RUN_START = 3, 8, 17
# Metric names of W&B's own monitor, whose MB are units of 2^20 bytes.
_SYSTEM: Final = {
    "proc.memory.rssMB": ("process.rss_bytes", 2**20),
    "proc.memory.availableMB": ("system.available_bytes", 2**20),
    "proc.cpu.threads": ("process.threads", 1),
}
_GPU: Final = re.compile(r"gpu\.(process\.)?(\d{1,3})\.memoryAllocatedBytes")
_STEP: Final = "_step"
_AXES: Final = ("generation", "episode", "epoch")
MAX_NAMES: Final = 5_000


@dataclass(slots=True)
class _Found:
    """The facts found in the records so far, apart from readings."""

    axis: str | None = None
    history_memory: bool = False
    generation: int | None = None
    project: str | None = None
    name: str | None = None
    notes: dict[str, None] = field(default_factory=dict)


def read_wandb(path: Path, wishes: Wishes) -> Log:
    """Read a W&B log. Raises ImportRefused."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ImportRefused(
            path,
            f"is larger than {MAX_FILE_BYTES // 2**20} MiB; export the run's history to a CSV file",
        )
    names = _names_logged(path, wishes)
    metrics = chosen_metrics(path, names, wishes)
    found = _Found(axis=next((axis for axis in _AXES if axis in names), None))
    if found.axis is None and metrics:
        found.axis = _STEP
    every_reading = (
        reading
        for number, record in enumerate(_records(path), 1)
        for reading in _take(path, number, record, metrics, found)
    )
    readings = taken(path, every_reading, wishes.every)
    notes = [*found.notes, *(note_of(name, meaning) for name, meaning in metrics.items())]
    notes.append(_axis_note(found.axis))
    unit = "step" if found.axis == _STEP else found.axis
    return Log(
        "wandb", readings, unit, notes=tuple(notes), is_clock=True, project=found.project, name=found.name
    )  # fmt: skip


def _axis_note(axis: str | None) -> str:
    if axis is None:
        return f"no logged metric counts generations, {BY_TIME}"
    return f"the generations are the values of {axis!r} in the history"


def _records(path: Path) -> Iterator[dict[int, Value]]:
    for number, record in enumerate(_records_of(path), 1):
        try:
            yield dict(_fields_of(record))
        except _NotProtobuf as error:
            raise ImportRefused(path, f"is not a W&B record ({error})", number) from error


def _names_logged(path: Path, wishes: Wishes) -> list[str]:
    """Return the metric names in the history in order of first occurrence. After MAX_NAMES names, only relevant names
    are added.

    An axis with fractions, such as 0.25 epochs, is left out, so W&B's own steps number the readings.
    """
    names: dict[str, None] = {}
    fractions: set[str] = set()
    for number, record in enumerate(_records(path), 1):
        if isinstance(history := record.get(_HISTORY), bytes):
            for name, value in _items(path, number, history, 1).items():
                if name in _AXES and not value.is_integer():
                    fractions.add(name)
                if len(names) < MAX_NAMES or (
                    len(names) < 2 * MAX_NAMES and _matters(name, wishes)
                ):
                    names[name] = None
    return [name for name in names if name not in fractions]


def _matters(name: str, wishes: Wishes) -> bool:
    return name in (*_AXES, _STEP, wishes.memory) or meaning_of(name).role == "memory"


def _take(
    path: Path,
    number: int,
    record: Mapping[int, Value],
    metrics: Mapping[str, Meaning],
    found: _Found,
) -> Iterator[Reading]:
    if isinstance(run := record.get(_RUN), bytes):
        fields = dict(_fields(path, number, run))
        found.project = found.project or plain(text(fields.get(_RUN_PROJECT, b""))).strip() or None
        found.name = found.name or plain(text(fields.get(_RUN_NAME, b""))).strip() or None
    elif isinstance(stats := record.get(_STATS), bytes):
        samples = _system_samples(path, number, stats)
        moment = dict(_fields(path, number, stats)).get(_STATS_TIME)
        if "process.rss_bytes" in samples and isinstance(moment, bytes):
            found.notes["W&B writes MB for 2^20 bytes, so its sizes are read as MiB"] = None
            yield Reading(number, samples, _seconds(path, number, moment), found.generation)
    elif isinstance(history := record.get(_HISTORY), bytes):
        yield from _take_history(path, number, _items(path, number, history, 1), metrics, found)


def _take_history(
    path: Path,
    number: int,
    items: Mapping[str, float],
    metrics: Mapping[str, Meaning],
    found: _Found,
) -> Iterator[Reading]:
    if found.axis is not None and found.axis in items:
        found.generation = _generation(path, number, found.axis, items[found.axis])
    samples: dict[str, Number] = {
        meaning.series: _size(path, number, name, items[name] * (meaning.factor or 1.0))
        for name, meaning in metrics.items()
        if name in items
    }
    if samples:
        time = items.get("_timestamp")
        if time is not None and not 0 <= time < MAX_MOMENT:
            raise ImportRefused(
                path, f"record {number}: a _timestamp of {time:g} is not a valid time"
            )
        yield Reading(number, samples, time, found.generation)


def _generation(path: Path, number: int, axis: str, value: float) -> int:
    if abs(value) > LARGEST_INTEGER:
        raise ImportRefused(path, f"record {number}: {value:g} is not a valid {axis[:60]} number")
    return int(value)


def _system_samples(path: Path, number: int, stats: bytes) -> dict[str, Number]:
    samples: dict[str, Number] = {}
    for name, value in _items(path, number, stats, _ITEM).items():
        if name in _SYSTEM:
            series, factor = _SYSTEM[name]
            samples[series] = _size(path, number, name, value * factor)
        elif gpu := _GPU.fullmatch(name):
            kind = "process_bytes" if gpu[1] else "used_bytes"
            samples[f"gpu.{int(gpu[2])}.{kind}"] = _size(path, number, name, value)
    return samples


def _items(path: Path, number: int, message: bytes, item_field: int) -> dict[str, float]:
    """Return the numeric items of a record by name."""
    found: dict[str, float] = {}
    for field_number, value in _fields(path, number, message):
        if field_number == item_field and isinstance(value, bytes):
            parts = list(_fields(path, number, value))
            keys = [text(part) for at, part in parts if at in (_KEY, _NESTED) and part != b""]
            fields = dict(parts)
            amount = _amount(fields)
            if keys and amount is not None and math.isfinite(amount):
                found[plain("/".join(keys))[:200]] = amount
    return found


def _amount(fields: Mapping[int, Value]) -> float | None:
    if _INTEGER in fields:
        return float(signed(fields[_INTEGER]))
    if isinstance(number := fields.get(_DOUBLE), float):
        return number
    try:
        value = json.loads(text(fields.get(_JSON, b"null"))[:400])
    except (ValueError, RecursionError):
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else None


def _fields(path: Path, number: int, message: bytes) -> Iterator[tuple[int, Value]]:
    try:
        yield from _fields_of(message)
    except _NotProtobuf as error:
        raise ImportRefused(path, f"record {number} is not a valid W&B record ({error})") from error


def _seconds(path: Path, number: int, moment: bytes) -> float:
    fields = dict(_fields(path, number, moment))
    time = signed(fields.get(1, 0)) + signed(fields.get(2, 0)) / 1e9
    if not 0 <= time < MAX_MOMENT:
        raise ImportRefused(path, f"record {number}: {time:g} is not a valid time")
    return time


def _size(path: Path, number: int, name: str, value: float) -> int:
    if not 0 <= value <= MAX_MEMORY_BYTES:
        raise ImportRefused(
            path,
            f"record {number}: {name[:60]} of {value:g} bytes is not a size that a process can have",
        )
    return round(value)

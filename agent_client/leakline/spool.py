"""The spool: what a process has recorded, on disk before it is sent. One file for each process instance.

``<directory>/<run id>/<instance>.spool``, append-only, little-endian:

    file    =  magic record*
    magic   =  b"LEAKSPL1"                                        8 bytes
    record  =  marker kind flags length crc payload
      marker   b"\\xabR"                                           2 bytes
      kind     1 header, 2 batch, 3 end                           1 byte
      flags    bit 0: payload is zlib-compressed;
               bit 1: the batch holds a generation end            1 byte
      length   bytes of payload as stored                         4 bytes, unsigned
      crc      CRC-32 of kind, flags and stored payload           4 bytes, unsigned
      payload  JSON, UTF-8

- The first record is the header: ``{"version": 1, "run": RunHeader, "process": ProcessIdentity}``.
- A batch is the wire format of ``snapshot.py``; its snapshots have consecutive sequence numbers.
- The last record is the end: ``{"state": .., "ended_at": .., "reason": ..}``. A killed process has none.
- A torn tail (the process died while writing) is not a record; a record with a wrong checksum is
  skipped, and reading goes on at the next marker whose record is whole.
- Each record is one ``write`` to the operating system, so it survives ``kill -9``; not a power cut.

Beside it ``<instance>.ack``: ``offset crc server`` in ASCII, one line of fixed width up to the server's
address. Everything before ``offset`` has been accepted by that server. A torn or missing one means zero:
sending again is harmless, because batches are idempotent.

The file is bounded. Over the bound it is rewritten once: every second snapshot that is neither a generation
end, baseline, manual or finish goes, and if that is not enough, the oldest; both are counted.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from .errors import SpoolError
from .snapshot import (
    Batch,
    ProcessIdentity,
    RunHeader,
    Snapshot,
    batch_from_wire,
    batch_to_wire,
    header_from_wire,
    header_to_wire,
)

MAGIC: Final = b"LEAKSPL1"
MARKER: Final = b"\xabR"
HEADER, BATCH, END = 1, 2, 3
COMPRESSED, GENERATION_END = 1, 2
FRAME: Final = struct.Struct("<2sBBII")
RECORD_LIMIT_BYTES: Final = 8 * 2**20
COMPRESS_FROM_BYTES: Final = 1024
# 8 KiB, in which one snapshot finds the names of the one before.
WINDOW_BITS: Final = 13
MEMORY_LEVEL: Final = 6
SNAPSHOTS_PER_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class Record:
    """One whole record. ``start`` and ``end`` are its offsets in the file."""

    kind: int
    flags: int
    stored: bytes
    start: int
    end: int

    def payload(self) -> dict[str, Any]:
        raw = zlib.decompress(self.stored) if self.flags & COMPRESSED else self.stored
        loaded = json.loads(raw)
        assert isinstance(loaded, dict)
        return loaded

    def batch(self) -> Batch:
        return batch_from_wire(self.payload())


def encode_record(kind: int, payload: Mapping[str, Any], flags: int = 0) -> bytes:
    body = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
    if len(body) >= COMPRESS_FROM_BYTES:
        body, flags = _compressed(body), flags | COMPRESSED
    return FRAME.pack(MARKER, kind, flags, len(body), _crc(kind, flags, body)) + body


def _compressed(body: bytes) -> bytes:
    # With its usual window zlib clears a quarter of a megabyte for a record of a few kilobytes, out of the cache that
    # the training uses. A quarter to a half of the time like this, for the same size.
    squeeze = zlib.compressobj(1, zlib.DEFLATED, WINDOW_BITS, MEMORY_LEVEL)
    return squeeze.compress(body) + squeeze.flush()


def encode_batch(batch: Batch) -> bytes:
    ends = any(snapshot.kind == "generation_end" for snapshot in batch.snapshots)
    return encode_record(BATCH, batch_to_wire(batch), GENERATION_END if ends else 0)


def encode_header(header: RunHeader, process: ProcessIdentity) -> bytes:
    identity = {name: getattr(process, name) for name in ProcessIdentity.__dataclass_fields__}
    run = header_to_wire(header)
    return encode_record(HEADER, {"version": 1, "run": run, "process": identity})


def _crc(kind: int, flags: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(bytes((kind, flags))))


def read_records(path: Path, offset: int = 0) -> Iterator[Record]:
    """The whole records from ``offset`` on, in order; damaged ones are skipped. Raises SpoolError."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise SpoolError(path, "is not a Leakline spool")
            position = max(offset, len(MAGIC))
            while (record := _read_record(file, position)) is not None:
                yield record
                position = record.end
    except OSError as error:
        raise SpoolError(path, f"cannot be read ({error.strerror})") from error


def _read_record(file: BinaryIO, position: int) -> Record | None:
    """The first whole record at or after ``position``, or None."""
    file.seek(position)
    while True:
        frame = file.read(FRAME.size)
        record = _whole(file, frame, position)
        if record is not None or len(frame) < FRAME.size:
            return record
        next_position = _next_marker(file, position + 1)
        if next_position is None:
            return None
        position = next_position
        file.seek(position)


def _whole(file: BinaryIO, frame: bytes, position: int) -> Record | None:
    if len(frame) < FRAME.size:
        return None
    marker, kind, flags, length, crc = FRAME.unpack(frame)
    if marker != MARKER or length > RECORD_LIMIT_BYTES:
        return None
    body = file.read(length)
    if len(body) < length or _crc(kind, flags, body) != crc:
        return None
    return Record(kind, flags, body, position, position + FRAME.size + length)


def _next_marker(file: BinaryIO, position: int) -> int | None:
    """Where the next marker stands at or after ``position``: reading goes on there after damage."""
    file.seek(position)
    carried = b""
    while chunk := file.read(65536):
        found = (carried + chunk).find(MARKER)
        if found >= 0:
            return position - len(carried) + found
        position += len(chunk)
        carried = chunk[-1:]
    return None


def read_header(path: Path) -> tuple[RunHeader, ProcessIdentity]:
    """Raises SpoolError when the file is no spool or died before its header was whole."""
    for record in read_records(path):
        if record.kind == HEADER:
            payload = record.payload()
            process = payload["process"]
            return header_from_wire(payload["run"]), ProcessIdentity(**process)
    raise SpoolError(path, "holds no header; its process ended before recording anything")


def read_batches(path: Path, *, only_generation_ends: bool = False) -> Iterator[Batch]:
    """Every batch in the file. ``only_generation_ends`` skips the others without parsing them."""
    for record in read_records(path):
        if record.kind == BATCH and (record.flags & GENERATION_END or not only_generation_ends):
            yield record.batch()


def read_end(path: Path) -> dict[str, Any] | None:
    """How the process left the run, or None when it was killed or still runs."""
    found = None
    for record in read_records(path):
        if record.kind == END:
            found = record.payload()
    return found


def ack_path(spool: Path) -> Path:
    return spool.with_suffix(".ack")


def read_ack(spool: Path, server: str) -> int:
    """Offset up to which ``server`` has accepted the spool; zero when unknown or of another server."""
    try:
        line = ack_path(spool).read_text("ascii", "replace")
    except OSError:
        return 0
    offset, _, rest = line.partition(" ")
    crc, _, address = rest.rstrip("\n").partition(" ")
    if not offset.isdecimal() or address != server or crc != _ack_crc(offset, server):
        return 0
    return int(offset)


def write_ack(spool: Path, offset: int, server: str) -> None:
    digits = f"{offset:020d}"
    with ack_path(spool).open("w", encoding="ascii", errors="replace") as file:
        file.write(f"{digits} {_ack_crc(digits, server)} {server}\n")


def _ack_crc(digits: str, server: str) -> str:
    return f"{zlib.crc32(f'{digits} {server}'.encode()):08x}"


def merge(batches: Iterable[Batch]) -> list[Batch]:
    """The same snapshots in as few batches as their sequence numbers and the limit of a batch allow."""
    merged: list[Batch] = []
    for batch in batches:
        for run in consecutive(batch.snapshots):
            last = merged[-1] if merged else None
            if last is not None and _follows(last, run):
                merged[-1] = replace(last, snapshots=last.snapshots + run, lost=batch.lost)
            else:
                merged.append(replace(batch, snapshots=run))
    return merged


def _follows(last: Batch, run: tuple[Snapshot, ...]) -> bool:
    return (
        last.snapshots[-1].sequence + 1 == run[0].sequence
        and len(last.snapshots) + len(run) <= SNAPSHOTS_PER_BATCH
    )


def consecutive(snapshots: Iterable[Snapshot]) -> Iterator[tuple[Snapshot, ...]]:
    """Split where a sequence number is missing or a batch would grow too long."""
    run: list[Snapshot] = []
    for snapshot in snapshots:
        if run and (snapshot.sequence != run[-1].sequence + 1 or len(run) >= SNAPSHOTS_PER_BATCH):
            yield tuple(run)
            run = []
        run.append(snapshot)
    if run:
        yield tuple(run)


def unsent_batches(
    path: Path, offset: int, limit: int = SNAPSHOTS_PER_BATCH
) -> tuple[list[Batch], int]:
    """Up to ``limit`` snapshots from ``offset`` on, merged, and the offset behind them; never behind the end."""
    batches: list[Batch] = []
    count, mark = 0, offset
    for record in read_records(path, offset):
        if record.kind == END:
            break
        if record.kind == BATCH:
            batch = record.batch()
            if batches and count + len(batch.snapshots) > limit:
                break
            batches.append(batch)
            count += len(batch.snapshots)
        mark = record.end
    return merge(batches), mark


def count_attempts(run_directory: Path, rank: int) -> int:
    """How many processes of this rank have recorded in the run's folder before."""
    count = 0
    for path in sorted(run_directory.glob("*.spool")):
        try:
            count += read_header(path)[1].rank == rank
        except SpoolError:
            # Its process died before it recorded anything; it was no attempt worth counting.
            continue
    return count

"""Format of the spool, which keeps a process's recording on disk until it is sent. Each process instance has one file.

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
      payload  of a batch: the wire format of ``snapshot.py``, in either version; otherwise JSON, UTF-8

- The first record is the header: ``{"version": 1, "run": RunHeader, "process": ProcessIdentity,
  "server": str, "memory_group": str}``. ``server`` is the address of the server that the run reports to, null for
  offline runs, absent in older files. ``memory_group`` identifies the group in which the kernel counts kills, or is
  null if the group is unknown.
- After a rewrite (below) the sequence numbers of a batch may have gaps.
- The last record is the end: ``{"state": .., "ended_at": .., "reason": ..}``. The spool of a killed process has no end.
  An end followed by records does not count: a live process was mistaken for a dead process.
- A torn tail, left by a process that died while writing, is not a record. A record with a wrong checksum is
  skipped, and reading continues at the next marker of a complete record. `examine` reports the skipped bytes.
- A second header of the same process names the unit, before the end of its first generation.
- The header of another process begins another recording: someone has concatenated two files.
- Each record is written with one system call, so it survives ``kill -9`` but not a power failure.

The file ``<instance>.ack`` next to the spool contains ``offset crc server`` in ASCII, in one line of fixed width
up to the server's address. That server has accepted everything before ``offset``. A torn or missing file counts as an
offset of zero: sending data again is harmless, because batches are idempotent.

The size of the file is limited (``LEAKLINE_SPOOL_LIMIT``). Near the limit, a shorter copy is written as
``<instance>.rewrite`` and replaces the file (`spool_trimming.py`); if the process dies at any moment, one of the two
files is complete. A batch without snapshots reports the losses at the end of a process.

Every snapshot of a process is accounted for: taken = sent + thinned + dropped + pending. Each of the five numbers is
counted separately, so that the sum reveals a snapshot that was lost without being counted.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from ..errors import SpoolError
from ..runtime.threads import breathe
from ..snapshot import (
    DEFAULT_UNIT,
    Batch,
    ProcessIdentity,
    RunHeader,
    batch_from_bytes,
    batch_to_bytes,
    header_from_wire,
    header_to_wire,
)
from .batching import merge

# Loss reason of snapshots that could not be read back from a damaged spool.
DAMAGED: Final = "spool_damaged"
THINNED: Final = frozenset({"spool_thinned"})
# Loss reasons that count snapshots. Other reasons count events, gauges, and snapshots that were never taken.
DROPPED: Final = frozenset(
    {"queue_full", "recording_failed", "spool_full", "memory_full", "refused", "too_large", DAMAGED}
)


@dataclass(frozen=True, slots=True)
class Account:
    """Counts of snapshots. ``pending`` are in the queue, being recorded, in the spool or in memory."""

    taken: int
    sent: int
    pending: int
    lost: Mapping[str, int] = field(default_factory=dict)

    @property
    def thinned(self) -> int:
        return sum(self.lost.get(reason, 0) for reason in THINNED)

    @property
    def dropped(self) -> int:
        return sum(self.lost.get(reason, 0) for reason in DROPPED)

    @property
    def closes(self) -> bool:
        return self.taken == self.sent + self.thinned + self.dropped + self.pending


try:
    import fcntl
except ImportError:
    # fcntl does not exist on Windows.
    fcntl = None  # type: ignore[assignment]

MAGIC: Final = b"LEAKSPL1"
MARKER: Final = b"\xabR"
HEADER, BATCH, END = 1, 2, 3
# Key in an end record: the run ended because its process exited, with a final exit status that was not yet known.
AT_EXIT: Final = "at_exit"
COMPRESSED, GENERATION_END = 1, 2
FRAME: Final = struct.Struct("<2sBBII")
RECORD_LIMIT_BYTES: Final = 8 * 2**20
COMPRESS_FROM_BYTES: Final = 1024
# A window of 8 KiB, in which zlib can still refer to the names in the previous snapshot.
WINDOW_BITS: Final = 13
MEMORY_LEVEL: Final = 6
READ_BYTES: Final = 64 * 1024
# Size of the part at the beginning of a spool that is searched for a second header.
SECOND_HEADER_BYTES: Final = 2**20
# Size of the part at the end of a spool that is searched for the end record first.
TAIL_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Record:
    """One complete record. ``start`` and ``end`` are its offsets in the file."""

    kind: int
    flags: int
    stored: bytes
    start: int
    end: int

    def payload(self) -> dict[str, Any]:
        """Return the content of a header or an end."""
        loaded = json.loads(self._unpacked())
        assert isinstance(loaded, dict)
        return loaded

    def batch(self) -> Batch:
        return batch_from_bytes(self._unpacked())

    def _unpacked(self) -> bytes:
        return zlib.decompress(self.stored) if self.flags & COMPRESSED else self.stored

    def encoded(self) -> bytes:
        """Return the record's bytes as stored in the file."""
        crc = _crc(self.kind, self.flags, self.stored)
        return FRAME.pack(MARKER, self.kind, self.flags, len(self.stored), crc) + self.stored


def encode_record(kind: int, payload: Mapping[str, Any]) -> bytes:
    return _framed(kind, json.dumps(payload, separators=(",", ":"), allow_nan=False).encode())


def _framed(kind: int, body: bytes, flags: int = 0) -> bytes:
    if len(body) >= COMPRESS_FROM_BYTES:
        body, flags = _compressed(body), flags | COMPRESSED
    return FRAME.pack(MARKER, kind, flags, len(body), _crc(kind, flags, body)) + body


def _compressed(body: bytes) -> bytes:
    # With default settings, zlib clears a quarter of a megabyte for a record of a few kilobytes, which evicts the
    # program's data from the CPU cache. These settings give the same size in a quarter to a half of the time.
    squeeze = zlib.compressobj(1, zlib.DEFLATED, WINDOW_BITS, MEMORY_LEVEL)
    return squeeze.compress(body) + squeeze.flush()


def encode_batch(batch: Batch) -> bytes:
    ends = any(snapshot.kind == "generation_end" for snapshot in batch.snapshots)
    return _framed(BATCH, batch_to_bytes(batch), GENERATION_END if ends else 0)


def encode_header(
    header: RunHeader,
    process: ProcessIdentity,
    server: str | None = None,
    memory_group: str | None = None,
) -> bytes:
    identity = {name: getattr(process, name) for name in ProcessIdentity.__dataclass_fields__}
    run = header_to_wire(header)
    origin = {"server": server, "memory_group": memory_group}
    return encode_record(HEADER, {"version": 1, "run": run, "process": identity, **origin})


def _crc(kind: int, flags: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(bytes((kind, flags))))


class _Descriptor(io.RawIOBase):
    """A reader of an open file with its own position, even after the file was deleted or renamed."""

    def __init__(self, fd: int) -> None:
        self._fd, self._position = fd, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (self._position if whence == io.SEEK_CUR else 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        got = os.pread(self._fd, len(buffer), self._position)
        buffer[: len(got)] = got
        self._position += len(got)
        return len(got)


def read_records(path: Path, offset: int = 0) -> Iterator[Record]:
    """Yield the complete records after ``offset``, in order, skipping damaged records. Raises SpoolError."""
    try:
        with path.open("rb") as file:
            yield from _records(file, offset, path)
    except OSError as error:
        raise SpoolError(path, f"cannot be read ({error.strerror})") from error


def read_open(fd: int, offset: int, path: Path) -> Iterator[Record]:
    """Yield the records of an open file, even if ``path`` now refers to another file. Raises SpoolError."""
    try:
        yield from _records(io.BufferedReader(_Descriptor(fd), READ_BYTES), offset, path)
    except OSError as error:
        raise SpoolError(path, f"cannot be read ({error.strerror})") from error


def _records(file: BinaryIO | io.BufferedReader, offset: int, path: Path) -> Iterator[Record]:
    # A file that ends within the magic is a spool without records: it was just created, or its process was killed while
    # writing the first bytes.
    if not MAGIC.startswith(file.read(len(MAGIC))):
        raise SpoolError(path, "is not a Leakline spool")
    position = max(offset, len(MAGIC))
    while (record := _read_record(file, position)) is not None:
        yield record
        position = record.end


def _read_record(file: BinaryIO | io.BufferedReader, position: int) -> Record | None:
    """Return the first complete record at or after ``position``, or None."""
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


def _whole(file: BinaryIO | io.BufferedReader, frame: bytes, position: int) -> Record | None:
    if len(frame) < FRAME.size:
        return None
    marker, kind, flags, length, crc = FRAME.unpack(frame)
    if marker != MARKER or length > RECORD_LIMIT_BYTES:
        return None
    body = file.read(length)
    if len(body) < length or _crc(kind, flags, body) != crc:
        return None
    return Record(kind, flags, body, position, position + FRAME.size + length)


def _next_marker(file: BinaryIO | io.BufferedReader, position: int) -> int | None:
    """Return the position of the next marker at or after ``position``, or None.

    After damage, reading continues at this position.
    """
    file.seek(position)
    carried = b""
    while chunk := file.read(65536):
        found = (carried + chunk).find(MARKER)
        if found >= 0:
            return position - len(carried) + found
        position += len(chunk)
        carried = chunk[-1:]
    return None


@dataclass(frozen=True, slots=True)
class Holdings:
    """The intact and lost parts of a process's recording in a spool.

    ``size_bytes`` is the offset after the last complete record. ``end`` is the last complete record if it is an end
    record. ``damaged_bytes`` belong to no complete record of this process. ``missing`` is the number of snapshots
    missing according to the sequence numbers, without a torn tail; it is counted only if bytes are damaged.
    ``foreign_bytes`` is the size of another recording appended to this file.
    """

    size_bytes: int
    end: Record | None
    damaged_bytes: int = 0
    missing: int = 0
    foreign_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        return not self.damaged_bytes and not self.foreign_bytes


def examine(fd: int, path: Path) -> Holdings:
    """Read an entire open spool and return its `Holdings`. Raises SpoolError."""
    held = _examine(fd, path, numbers=False)
    # Check sequence numbers only if something is lost, because the check takes as long as sending the data.
    return held if held.is_whole else _examine(fd, path, numbers=True)


def _examine(fd: int, path: Path, *, numbers: bool) -> Holdings:
    # Read the size first, because a process may be appending.
    size = os.fstat(fd).st_size
    position, damaged, foreign, missing, newest = len(MAGIC), 0, 0, 0, 0
    own, last = "", None
    lost: Mapping[str, int] = {}
    for record in read_open(fd, 0, path):
        breathe()
        if record.kind == HEADER:
            instance = record.payload()["process"]["instance"]
            own = own or instance
            if instance != own:
                start = record.start - len(MAGIC)
                damaged += max(0, start - position)
                foreign, size = size - start, position
                break
        damaged += record.start - position
        position = record.end
        if record.kind == BATCH and numbers:
            batch = record.batch()
            if batch.process.instance != own:
                # Another process has overwritten a part of the file.
                damaged += record.end - record.start
                continue
            for snapshot in batch.snapshots:
                missing += max(0, snapshot.sequence - newest - 1)
                newest = max(newest, snapshot.sequence)
            lost = batch.lost
        last = record
    # Do not count snapshots that the process itself lost, which also have sequence numbers.
    missing -= sum(lost.get(reason, 0) for reason in (*DROPPED, *THINNED))
    damaged += max(0, size - position)
    return Holdings(position, _end(last), damaged, max(0, missing), foreign)


def _end(last: Record | None) -> Record | None:
    return last if last is not None and last.kind == END else None


def read_header(path: Path) -> tuple[RunHeader, ProcessIdentity]:
    """Return the run and the process of a spool.

    Raises SpoolError if the file is not a spool or has no complete header.
    """
    payload = _header_payload(path)
    if payload["run"].get("unit") == DEFAULT_UNIT:
        payload = _second_header(path, payload["process"]["instance"]) or payload
    return header_from_wire(payload["run"]), ProcessIdentity(**payload["process"])


def _second_header(path: Path, instance: str) -> dict[str, Any] | None:
    for record in islice(read_records(path), 1, None):
        if record.kind == HEADER:
            payload = record.payload()
            return payload if payload["process"]["instance"] == instance else None
        if record.flags & GENERATION_END or record.start > SECOND_HEADER_BYTES:
            return None
    return None


def read_origin(path: Path) -> str | None:
    """Return the address of the server that the run reported to, or None for an offline run. Raises SpoolError."""
    origin = _header_payload(path).get("server")
    return origin if isinstance(origin, str) else None


def read_memory_group(path: Path) -> str | None:
    """Return the memory group of the process that wrote the spool, or None if it is unknown. Raises SpoolError."""
    group = _header_payload(path).get("memory_group")
    return group if isinstance(group, str) else None


def _header_payload(path: Path) -> dict[str, Any]:
    first = next(read_records(path), None)
    if first is not None and first.kind == HEADER and first.start == len(MAGIC):
        return first.payload()
    if first is not None:
        raise SpoolError(path, "has a damaged header, so its run is unknown")
    raise SpoolError(
        path, "contains no header, because its process ended before recording anything"
    )


def is_in_place(fd: int, path: Path) -> bool:
    """Return True if ``path`` still refers to this open file.

    The process may have replaced the file, or a user may have moved it.
    """
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def lock(fd: int) -> bool | None:
    """Lock the file while it is open, to mark it as being written.

    Return True if the lock was taken, False if `is_live` is just checking the file, and None if the file system does
    not support locks.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_live(path: Path) -> bool | None:
    """Return True if a process on this machine is still writing this spool, or None if this is unknown."""
    if fcntl is None:
        return None
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        # Use a shared lock, so that two concurrent checks do not mistake each other for the writing process.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False


def read_batches(path: Path) -> Iterator[Batch]:
    """Yield every batch of the process that owns the spool. Raises SpoolError."""
    _, process = read_header(path)
    for record in read_records(path):
        if record.kind == BATCH and (batch := record.batch()).process.instance == process.instance:
            yield batch


def read_holdings(path: Path) -> Holdings:
    """Open a file and `examine` it. Raises SpoolError."""
    try:
        with path.open("rb") as file:
            return examine(file.fileno(), path)
    except OSError as error:
        raise SpoolError(path, f"cannot be read ({error.strerror})") from error


def read_end(path: Path) -> dict[str, Any] | None:
    """Return how the process left the run, or None if it was killed or is still running. Raises SpoolError."""
    try:
        with path.open("rb") as file:
            end = read_open_end(file.fileno(), path)
    except OSError as error:
        raise SpoolError(path, f"cannot be read ({error.strerror})") from error
    return None if end is None else end.payload()


def read_open_end(fd: int, path: Path) -> Record | None:
    """Return the end record of an open file, or None if it has no end record.

    Only the tail of the file is read. Raises SpoolError.
    """
    tail = TAIL_BYTES
    while True:
        start = max(0, os.fstat(fd).st_size - tail)
        last = None
        for record in read_open(fd, start, path):
            breathe()
            last = record
        if last is not None or start == 0:
            return _end(last)
        # The last record, or a torn or damaged record, is longer than the tail.
        tail *= 16


def ack_path(spool: Path) -> Path:
    return spool.with_suffix(".ack")


def read_ack(spool: Path, server: str) -> int:
    """Return the offset up to which ``server`` has accepted the spool.

    The result is 0 if the mark is missing, torn or for another server.
    """
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


def collect(
    records: Iterable[Record], offset: int, limit: int, instance: str
) -> tuple[list[Batch], int]:
    """Return the first snapshots of process ``instance``, merged into batches, and the offset after them.

    Reading stops after about ``limit`` snapshots. The offset is beyond an end record only if snapshots follow that
    record.
    """
    batches: list[Batch] = []
    count, mark = 0, offset
    for record in records:
        if record.kind == END:
            continue
        if record.kind == BATCH:
            batch = record.batch()
            breathe()
            if batches and count + len(batch.snapshots) > limit:
                break
            if batch.process.instance == instance:
                batches.append(batch)
                count += len(batch.snapshots)
        mark = record.end
    return merge(batches), mark

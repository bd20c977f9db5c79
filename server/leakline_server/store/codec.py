"""The byte format of a chunk: consecutive entries of one column of one process.

A chunk row has ``count``, ``first``, ``last``, ``min``, ``max`` (of what is present; null when nothing is),
``width`` and ``blob``:

    blob    = checksum (4 bytes, little endian), then nothing or one zstd frame that holds the payload
    payload = flags (1 byte, bit 0: a bitmap follows), shift (1 byte), bitmap, data
    bitmap  = one bit an entry, first entry in the lowest bit, 1 = present; padded to a byte

    width 0            every present entry equals ``first``; no data. Without a bitmap there is no frame either
    width 1, 2, 4, 8   integers: differences of neighbouring present entries, shifted right by ``shift``, as signed
                       little-endian integers of that many bytes
    width 9            floats: the present entries as they are, 8 bytes each
    width 10           text: u32 length, JSON list of the distinct texts, then one u16 an entry (65535 = null)

Integers are at most 2**53 in size, so ``first``, ``min`` and ``max`` are exact as doubles. The checksum is the CRC-32
of count, width, the four numbers and the payload: a flipped bit anywhere in the row is noticed, and reading says so.
Memory moves in pages and allocator granules: shifting out the common power of two makes the differences narrow.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

WIDTH_CONSTANT: Final = 0
WIDTH_FLOAT: Final = 9
WIDTH_TEXT: Final = 10
MAX_COUNT: Final = 65_534

_INTEGERS: Final[dict[int, np.dtype[Any]]] = {w: np.dtype(f"<i{w}") for w in (1, 2, 4, 8)}
_HEAD: Final = struct.Struct("<iBdddd")
_NULL: Final = 65_535
_local = threading.local()

Array = npt.NDArray[Any]


class CorruptChunk(Exception):
    """Stored bytes are not what was written."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """``values`` is int64 or float64; ``present`` is None when every entry is there. Absent entries hold 0."""

    values: Array
    present: Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def to_list(self) -> list[int | float | None]:
        values: list[int | float | None] = self.values.tolist()
        if self.present is None:
            return values
        return [v if p else None for v, p in zip(values, self.present.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Texts:
    """``names[index[i]]`` is entry *i*; -1 is null."""

    names: tuple[str, ...]
    index: Array

    def __len__(self) -> int:
        return len(self.index)

    def to_list(self) -> list[str | None]:
        names = (*self.names, None)
        return [names[i] for i in self.index.tolist()]


Column = Numbers | Texts


@dataclass(frozen=True, slots=True)
class Chunk:
    count: int
    first: float | None
    last: float | None
    min: float | None
    max: float | None
    width: int
    blob: bytes


def compress(data: bytes) -> bytes:
    """One zstd frame, level 1: higher levels gain 1 % on these bytes."""
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=1)
    return bytes(_local.compressor.compress(data))


def decompress(data: bytes) -> bytes:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    try:
        return bytes(_local.decompressor.decompress(data))
    except zstandard.ZstdError as error:
        raise CorruptChunk(str(error)) from error


def numbers(values: Sequence[int | float | None]) -> Numbers:
    """Integers stay integers when all of them are; nulls become gaps."""
    dense = np.array(values)
    if dense.dtype.kind in "if":
        return Numbers(dense)
    present = np.array([v is not None for v in values], dtype=bool)
    found = np.array([v for v in values if v is not None])
    out = np.zeros(len(present), dtype=found.dtype if len(found) else np.int64)
    out[present] = found
    return Numbers(out, None if present.all() else present)


def texts(values: Sequence[str | None]) -> Texts:
    numbered: dict[str | None, int] = {None: -1}
    index = np.array([numbered.setdefault(v, len(numbered) - 1) for v in values], dtype=np.int32)
    return Texts(tuple(name for name in numbered if name is not None), index)


def absent(count: int) -> Numbers:
    return Numbers(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool))


def concatenate_numbers(parts: Sequence[Numbers]) -> Numbers:
    if len(parts) == 1:
        return parts[0]
    # A stretch where nothing was measured has no type of its own: it must not turn the floats around it into
    # something else, nor integers into floats.
    typed = [p.values for p in parts if p.present is None or p.present.any()]
    kind = np.result_type(*typed) if typed else np.dtype(np.int64)
    values = np.concatenate([p.values.astype(kind, copy=False) for p in parts])
    if all(p.present is None for p in parts):
        return Numbers(values)
    present = [np.ones(len(p), dtype=bool) if p.present is None else p.present for p in parts]
    return Numbers(values, np.concatenate(present))


def concatenate_texts(parts: Sequence[Texts]) -> Texts:
    if len(parts) == 1:
        return parts[0]
    numbered: dict[str, int] = {}
    moved = []
    for part in parts:
        # The extra last entry keeps -1 (null) where it is.
        to = np.array([*(numbered.setdefault(n, len(numbered)) for n in part.names), -1])
        moved.append(to[part.index].astype(np.int32))
    return Texts(tuple(numbered), np.concatenate(moved))


def encode(column: Column) -> Chunk:
    """The chunk of a column of 1 to MAX_COUNT entries."""
    if isinstance(column, Texts):
        return _seal(len(column), (None, None, None, None), WIDTH_TEXT, _text_payload(column))
    values, present = column.values, column.present
    if present is not None:
        values = values[present]
        if not len(values):
            payload = _payload(present, 0, b"")
            return _seal(len(present), (None, None, None, None), WIDTH_CONSTANT, payload)
    stats = (float(values[0]), float(values[-1]), float(values.min()), float(values.max()))
    if stats[2] == stats[3] and values.dtype.kind == "i":
        payload = b"" if present is None else _payload(present, 0, b"")
        return _seal(len(column), stats, WIDTH_CONSTANT, payload)
    if values.dtype.kind == "f":
        data = values.astype("<f8", copy=False).tobytes()
        return _seal(len(column), stats, WIDTH_FLOAT, _payload(present, 0, data))
    shift, width, data = _differences(values)
    return _seal(len(column), stats, width, _payload(present, shift, data))


def decode(chunk: Chunk) -> Column:
    """The column that was encoded. Raises CorruptChunk."""
    payload = decompress(chunk.blob[4:]) if len(chunk.blob) > 4 else b""
    stats = (chunk.first, chunk.last, chunk.min, chunk.max)
    if chunk.blob[:4] != _checksum(chunk.count, stats, chunk.width, payload):
        raise CorruptChunk("the checksum of a stored chunk is wrong")
    if chunk.width == WIDTH_TEXT:
        return _read_texts(payload)
    if not payload:
        return Numbers(np.full(chunk.count, int(chunk.first or 0), dtype=np.int64))
    flags, shift = payload[0], payload[1]
    present, at = None, 2
    if flags & 1:
        at += (chunk.count + 7) // 8
        bits = np.frombuffer(payload, np.uint8, at - 2, 2)
        present = np.unpackbits(bits, count=chunk.count, bitorder="little").astype(bool)
    dense = _read_data(chunk, payload, at, shift)
    if present is None:
        return Numbers(dense)
    values = np.zeros(chunk.count, dtype=dense.dtype)
    # A constant has one value for all that is present.
    values[present] = dense
    return Numbers(values, present)


def _read_data(chunk: Chunk, payload: bytes, at: int, shift: int) -> Array:
    if chunk.width == WIDTH_CONSTANT:
        return np.array([] if chunk.first is None else [int(chunk.first)], dtype=np.int64)
    if chunk.width == WIDTH_FLOAT:
        return np.frombuffer(payload, "<f8", offset=at).astype(np.float64)
    steps = np.frombuffer(payload, _INTEGERS[chunk.width], offset=at)
    values = np.empty(len(steps) + 1, dtype=np.int64)
    values[0] = int(chunk.first or 0)
    np.cumsum(steps.astype(np.int64) << shift, out=values[1:])
    values[1:] += values[0]
    return values


def _differences(values: Array) -> tuple[int, int, bytes]:
    """(shift, width, bytes) of the differences of at least two int64 that are not all the same."""
    steps = np.diff(values)
    common = int(np.bitwise_or.reduce(steps))
    shift = (common & -common).bit_length() - 1
    steps >>= shift
    low, high = int(steps.min()), int(steps.max())
    width = next(w for w in (1, 2, 4, 8) if -(1 << (8 * w - 1)) <= low and high < 1 << (8 * w - 1))
    return shift, width, steps.astype(_INTEGERS[width]).tobytes()


def _payload(present: Array | None, shift: int, data: bytes) -> bytes:
    if present is None:
        return bytes((0, shift)) + data
    return bytes((1, shift)) + np.packbits(present, bitorder="little").tobytes() + data


def _text_payload(column: Texts) -> bytes:
    names = msgspec.json.encode(column.names)
    index = np.where(column.index < 0, _NULL, column.index).astype("<u2").tobytes()
    return len(names).to_bytes(4, "little") + names + index


def _read_texts(payload: bytes) -> Texts:
    size = int.from_bytes(payload[:4], "little")
    names = msgspec.json.decode(payload[4 : 4 + size], type=tuple[str, ...])
    index = np.frombuffer(payload, "<u2", offset=4 + size).astype(np.int32)
    return Texts(names, np.where(index == _NULL, np.int32(-1), index))


_Stats = tuple[float | None, float | None, float | None, float | None]


def _seal(count: int, stats: _Stats, width: int, payload: bytes) -> Chunk:
    frame = compress(payload) if payload else b""
    return Chunk(count, *stats, width, _checksum(count, stats, width, payload) + frame)


def _checksum(count: int, stats: _Stats, width: int, payload: bytes) -> bytes:
    head = _HEAD.pack(count, width, *(0.0 if s is None else s for s in stats))
    return zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "little")

"""The byte format of a chunk: consecutive entries of one column of one process.

A chunk row has ``count``, ``present`` (the number of entries that are not null), ``first``, ``last``, ``min``, ``max``
(of the present entries; null without present entries), ``width`` and ``blob``:

    blob    = checksum (4 bytes, little endian), then nothing or one zstd frame with the payload
    payload = flags (1 byte, bit 0: a bitmap follows), shift (1 byte), bitmap, data
    bitmap  = one bit per entry, first entry in the lowest bit, 1 = present; padded to a byte

    width 0            every present entry equals ``first``; no data. Without a bitmap there is no frame either
    width 1, 2, 4, 8   integers: differences of neighbouring present entries, shifted right by ``shift``, as signed
                       little-endian integers of that many bytes
    width 9            floats: the present entries unchanged, 8 bytes each
    width 10           text: u32 length, JSON list of the distinct strings, then one u16 per entry (65535 = null)
    width 21, .., 28   floats with few decimals: decimals (1 byte), then the differences of ``value * 10**decimals`` as
                       in width 1, .., 8; the first value is ``first``
    width 31, .., 38   floats that are close together: the first float (8 bytes), then the differences of the bits of
                       the floats, read as 64-bit integers, as in width 1, .., 8

Integers are at most 2**53 in magnitude, so ``first``, ``min`` and ``max`` are exact as doubles. The checksum is the
CRC-32 of count, width, the four numbers and the payload, so that any flipped bit is detected on reading.
Memory sizes are multiples of pages and allocator granules: shifting out the common power of two makes the differences
narrow. Widths of 21 and above are used only in compacted chunks: finding them is too expensive for a segment that
compaction soon replaces.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np

from ..columns import Array, Column, CorruptChunk, Numbers, Texts, compress, decompress

WIDTH_CONSTANT: Final = 0
WIDTH_FLOAT: Final = 9
WIDTH_TEXT: Final = 10
# The number of bytes per difference (1, 2, 4 or 8) is added to these two constants.
WIDTH_DECIMAL: Final = 20
WIDTH_BITS: Final = 30
MAX_DECIMALS: Final = 9
MAX_COUNT: Final = 65_534

_INTEGERS: Final[dict[int, np.dtype[Any]]] = {w: np.dtype(f"<i{w}") for w in (1, 2, 4, 8)}
_HEAD: Final = struct.Struct("<iBdddd")
_NULL: Final = 65_535


@dataclass(frozen=True, slots=True)
class Chunk:
    """The stored fields of a chunk. ``present`` is -1 in rows of older versions, which did not count entries."""

    count: int
    present: int
    first: float | None
    last: float | None
    min: float | None
    max: float | None
    width: int
    blob: bytes


def encode(column: Column, *, tight: bool = False) -> Chunk:
    """Encode a column of 1 to MAX_COUNT entries as a chunk. ``tight`` spends more time on compressing floats."""
    count = len(column)
    if isinstance(column, Texts):
        there = int((column.index >= 0).sum())
        return _seal(count, there, (None, None, None, None), WIDTH_TEXT, _text_payload(column))
    values, present = column.values, column.present
    if present is not None:
        values = values[present]
        if not len(values):
            payload = _payload(present, 0, b"")
            return _seal(count, 0, (None, None, None, None), WIDTH_CONSTANT, payload)
    # Adding 0.0 turns -0.0 into 0.0, which is what SQLite would store.
    low, high = float(values.min()) + 0.0, float(values.max()) + 0.0
    stats = (float(values[0]) + 0.0, float(values[-1]) + 0.0, low, high)
    if low == high and values.dtype.kind == "i":
        payload = b"" if present is None else _payload(present, 0, b"")
        return _seal(count, len(values), stats, WIDTH_CONSTANT, payload)
    if values.dtype.kind == "f":
        width, shift, data = _floats(values.astype("<f8", copy=False), tight=tight)
        return _seal(count, len(values), stats, width, _payload(present, shift, data))
    shift, width, data = _differences(values)
    return _seal(count, len(values), stats, width, _payload(present, shift, data))


def integer_payload(shift: int, limits: tuple[int, int], steps: Array) -> tuple[int, bytes]:
    """Return (width, payload) for integers without absent entries.

    ``steps``: the shifted differences; ``limits``: the smallest and largest difference.
    """
    width = _width(*limits)
    return width, bytes((0, shift)) + steps.astype(_INTEGERS[width]).tobytes()


def integer_chunk(
    count: int, stats: tuple[float, float, float, float], width: int, payload: bytes
) -> Chunk:
    """Return the chunk of ``count`` integers without absent entries, from precomputed parts.

    The result equals the result of `encode`. ``stats``: first, last, min, max. A constant column has an empty payload.
    """
    return _seal(count, count, stats, width, payload)


def decode(chunk: Chunk) -> Column:
    """Decode a chunk. The column may be cached, so do not modify it. Raises CorruptChunk."""
    if chunk.width == WIDTH_TEXT and len(chunk.blob) <= _REPEATED_BYTES:
        return _decoded_often(chunk)
    return _decoded(chunk)


# Chunks of phases and kinds repeat often, because phases and kinds follow the same pattern in each generation, so the
# decoded columns are cached. Chunks of labels are longer than this limit.
_REPEATED_BYTES: Final = 512


@lru_cache(maxsize=128)
def _decoded_often(chunk: Chunk) -> Column:
    found = _decoded(chunk)
    assert isinstance(found, Texts)
    found.index.flags.writeable = False
    return found


def _decoded(chunk: Chunk) -> Column:
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
    # A constant column has a single value, which is broadcast to all present entries.
    values[present] = dense
    return Numbers(values, present)


def _read_data(chunk: Chunk, payload: bytes, at: int, shift: int) -> Array:
    if chunk.width == WIDTH_CONSTANT:
        return np.array([] if chunk.first is None else [int(chunk.first)], dtype=np.int64)
    if chunk.width == WIDTH_FLOAT:
        return np.frombuffer(payload, "<f8", offset=at).astype(np.float64)
    if chunk.width > WIDTH_BITS:
        first = int.from_bytes(payload[at : at + 8], "little", signed=True)
        return _sum(first, payload, at + 8, chunk.width - WIDTH_BITS, shift).view(np.float64)
    if chunk.width > WIDTH_DECIMAL:
        power = 10.0 ** payload[at]
        first = round((chunk.first or 0.0) * power)
        return _sum(first, payload, at + 1, chunk.width - WIDTH_DECIMAL, shift) / power
    return _sum(int(chunk.first or 0), payload, at, chunk.width, shift)


def _sum(first: int, payload: bytes, at: int, width: int, shift: int) -> Array:
    steps = np.frombuffer(payload, _INTEGERS[width], offset=at)
    values = np.empty(len(steps) + 1, dtype=np.int64)
    values[0] = first
    np.cumsum(steps.astype(np.int64) << shift, out=values[1:])
    values[1:] += first
    return values


def _floats(values: Array, *, tight: bool) -> tuple[int, int, bytes]:
    """Encode one or more floats, and return (width, shift, bytes)."""
    if tight:
        decimals, scaled = _decimals(values)
        if scaled is not None:
            shift, width, data = _differences(scaled)
            return WIDTH_DECIMAL + width, shift, bytes((decimals,)) + data
        bits = values.view("<i8")
        # The bits of close floats of one sign, read as integers, are also close, and differences fit in 64 bits.
        if (bits[0] < 0) == (bits < 0).all() == (bits < 0).any():
            shift, width, data = _differences(bits)
            if width < 8:
                return WIDTH_BITS + width, shift, bits[:1].tobytes() + data
    return WIDTH_FLOAT, 0, values.tobytes()


def _decimals(values: Array) -> tuple[int, Array | None]:
    """Return (smallest sufficient number of decimals, values scaled to integers).

    Return (-1, None) if more than MAX_DECIMALS decimals would be needed.
    """
    for decimals in range(MAX_DECIMALS + 1):
        power = 10.0**decimals
        scaled = np.rint(values * power)
        if abs(scaled).max() > 2**53:
            break
        # Compare bits, so that decoding restores the exact values, including the sign of zero.
        whole = scaled.astype(np.int64)
        if np.array_equal((whole / power).view(np.int64), values.view(np.int64)):
            return decimals, whole
    return -1, None


def _differences(values: Array) -> tuple[int, int, bytes]:
    """Encode the differences of int64 values, and return (shift, width, bytes)."""
    steps = np.diff(values)
    common = int(np.bitwise_or.reduce(steps)) if len(steps) else 0
    shift = max(0, (common & -common).bit_length() - 1)
    steps >>= shift
    low, high = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
    width = _width(low, high)
    return shift, width, steps.astype(_INTEGERS[width]).tobytes()


def _width(low: int, high: int) -> int:
    return next(w for w in (1, 2, 4, 8) if -(1 << (8 * w - 1)) <= low and high < 1 << (8 * w - 1))


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


def _seal(count: int, present: int, stats: _Stats, width: int, payload: bytes) -> Chunk:
    frame = compress(payload) if payload else b""
    return Chunk(count, present, *stats, width, _checksum(count, stats, width, payload) + frame)


def _checksum(count: int, stats: _Stats, width: int, payload: bytes) -> bytes:
    first, last, low, high = stats
    try:
        head = _HEAD.pack(count, width, first or 0.0, last or 0.0, low or 0.0, high or 0.0)
    except struct.error as error:
        raise CorruptChunk("a number in a stored chunk is out of range") from error
    return zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "little")

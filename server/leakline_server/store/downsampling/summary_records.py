"""What a chart needs of a stretch of a column, without opening its chunk: a record for each piece of the stretch.

    pieces = checksum (4 bytes, little endian: the CRC-32 of what follows), then records of 40 bytes: present, first,
             last, min, max, each a little-endian 8-byte float; all zero where nothing is present

A compacted chunk has a piece for each stretch of PIECE sequence numbers that begins at a multiple of PIECE (of a power
of two times as many, where sequence numbers have gaps, so that there are at most MAX_PIECES). Where one record stands
alone and the pieces are more, all are full and of that one value. How many pieces there are, and which sequence
numbers each has, say the pieces of the column of sequence numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from ..series.chunk_codec import Array, Chunk, Column, CorruptChunk, Numbers, Texts, encode

PIECE: Final = 512
MAX_PIECES: Final = 16
# Of a record, in this order.
PRESENT, FIRST, LAST, MIN, MAX = range(5)
NUMBERS: Final = 5


def bounds(sequence: Array) -> Array:
    """Where the pieces of a stretch begin, as positions among its ascending sequence numbers."""
    bits = PIECE.bit_length() - 1
    while True:
        starts = np.flatnonzero(np.diff(sequence >> bits)) + 1
        if len(starts) < MAX_PIECES:
            return np.concatenate([[0], starts])
        bits += 1


def summed(column: Numbers, starts: Array) -> Array:
    """The records of a column whose pieces begin at these positions."""
    found = nothing(len(starts))
    values = column.values
    if column.present is None:
        ends = np.append(starts[1:], len(values))
        found[:, PRESENT] = ends - starts
        _fill(found, slice(None), values, starts, ends)
        return found
    at = np.flatnonzero(column.present)
    low = np.searchsorted(at, starts)
    high = np.append(low[1:], len(at))
    some = high > low
    found[:, PRESENT] = high - low
    if some.any():
        _fill(found, some, values[at], low[some], high[some])
    return found


def _fill(found: Array, rows: Array | slice, values: Array, starts: Array, ends: Array) -> None:
    found[rows, FIRST], found[rows, LAST] = values[starts], values[ends - 1]
    found[rows, MIN] = np.minimum.reduceat(values, starts)
    found[rows, MAX] = np.maximum.reduceat(values, starts)


def pack(records: Array, counts: Array) -> bytes:
    """The bytes of the records of pieces with ``counts`` entries each."""
    return checked(told(records, counts))


def checked(records: bytes) -> bytes:
    """Records with their checksum."""
    return zlib.crc32(records).to_bytes(4, "little") + records


def told(records: Array, counts: Array) -> bytes:
    """The same without a checksum."""
    same = records[:, MIN].min() == records[:, MAX].max()
    if same and (records[:, PRESENT] == counts).all():
        records = records[:1]
    return records.astype("<f8", copy=False).tobytes()


def unpack(packed: bytes) -> Array:
    """The records, as they were packed. Raises CorruptChunk."""
    data = packed[4:]
    if not data or len(data) % (8 * NUMBERS) or packed[:4] != zlib.crc32(data).to_bytes(4, "little"):  # fmt: skip
        raise CorruptChunk("the checksum of the numbers of a stored chunk is wrong")
    return np.frombuffer(data, "<f8").reshape(-1, NUMBERS)


@lru_cache(maxsize=4_096)
def of_numbers(first: int, last: int) -> Array:
    """The records of the sequence numbers of a stretch without gaps, which need no reading."""
    sequence = np.arange(first, last + 1)
    found = summed(Numbers(sequence), bounds(sequence))
    found.flags.writeable = False
    return found


def spread(records: Array, counts: Array) -> Array:
    """One record a piece, where one may stand for all. Raises CorruptChunk."""
    if len(records) == len(counts):
        return records
    if len(records) != 1:
        raise CorruptChunk("the numbers of a stored chunk are of other pieces than its sequence")
    found = np.repeat(records, len(counts), axis=0)
    found[:, PRESENT] = counts
    return found


def nothing(count: int) -> Array:
    """The records of pieces without values."""
    return np.zeros((count, NUMBERS))


def concatenate(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts) if parts else nothing(0)


class Cut:
    """The pieces of a stretch with these ascending sequence numbers, of at least one."""

    def __init__(self, sequence: Array) -> None:
        self.starts = bounds(sequence)
        self._ends = np.append(self.starts[1:], len(sequence))
        self._counts = self._ends - self.starts

    def pieces(self, column: Column) -> bytes | None:
        """Return the packed records of a column with an entry for each snapshot; None for texts."""
        if isinstance(column, Texts):
            return None
        return pack(summed(column, self.starts), self._counts)

    def records_of_rows(self, values: Array) -> list[bytes]:
        """Return the records of many columns, one a row, in which every entry is there."""
        found = np.empty((len(values), len(self.starts), NUMBERS))
        found[:, :, PRESENT] = self._counts
        found[:, :, FIRST], found[:, :, LAST] = values[:, self.starts], values[:, self._ends - 1]
        found[:, :, MIN] = np.minimum.reduceat(values, self.starts, axis=1)
        found[:, :, MAX] = np.maximum.reduceat(values, self.starts, axis=1)
        return [told(records, self._counts) for records in found]


def pack_column(column: Column, cut: Cut | None) -> tuple[Chunk, bytes | None]:
    """Return the chunk of a column, and the records of its pieces where it is compacted (there is a ``cut``)."""
    return encode(column, tight=cut is not None), None if cut is None else cut.pieces(column)

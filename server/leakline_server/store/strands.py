"""What a chart of one phase needs of a stretch of a column, without opening its chunk: as pieces.py, by strands.

A strand is the snapshots of one phase and kind. A cell is what one strand has in one piece; cells come strand by
strand, in the order of their phases and kinds, and within one in the order of the pieces. A compacted segment of up to
MOST of them has beside each chunk

    strands = checksum (4 bytes, little endian: the CRC-32 of what follows), width, shift, counted, 0 (a byte each),
              base (8 bytes), counts, then first of each cell, last of each, min of each, max of each
    counts  = where ``counted`` is 1, how many entries of each cell are there, 2 bytes each; else all are there

    width 0            every number is ``base``; nothing follows
    width 1, 2, 4, 8   integers: ``base`` + (number << ``shift``), unsigned
    width 9            floats, 8 bytes each

Beside the chunk of sequence numbers, counts are always there: they say how many entries each cell has. Beside that of
phases, what follows the checksum is a JSON list of [phase, kind] of each strand. Cells without entries are told as any
number and read as zero. Where there are more strands, or none were made, chunks are opened.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from .codec import Array, CorruptChunk, Numbers, Texts
from .pieces import FIRST, LAST, MAX, MIN, PRESENT, checked, nothing

# With more, a cell has few entries, and telling of them takes as many bytes as they do.
MOST: Final = 16
WIDTH_FLOAT: Final = 9
# Phase or none, and kind.
Strand = tuple[str | None, str | None]

_HEAD: Final = struct.Struct("<IBBBxq")
_DATA: Final = {w: np.dtype(f"<u{w}") for w in (1, 2, 4, 8)} | {WIDTH_FLOAT: np.dtype("<f8")}
_TOLD: Final = (FIRST, LAST, MIN, MAX)


class Strands:
    """A stretch of snapshots by strand and piece: packs the numbers of columns of as many entries."""

    def __init__(self, strands: Sequence[Strand], cells: Array, count: int) -> None:
        """``cells``: of each entry, in which of ``count`` cells it is."""
        self._strands = strands
        self._order = np.argsort(cells, kind="stable")
        self._cells = cells
        self._counts = np.bincount(cells, minlength=count)

    @staticmethod
    def of(phases: Texts, kinds: Texts, starts: Array) -> Strands | None:
        """Of a stretch whose pieces begin at these positions; None where it has too many."""
        numbered = (phases.index + 1).astype(np.int64) * (len(kinds.names) + 1) + kinds.index + 1
        there, which = np.unique(numbered, return_inverse=True)
        if len(there) > MOST:
            return None
        pairs = [divmod(int(number), len(kinds.names) + 1) for number in there]
        names = [((*phases.names, None)[p - 1], (*kinds.names, None)[k - 1]) for p, k in pairs]
        # In an order that does not depend on where the stretch begins.
        ordered = sorted(names, key=_place)
        moved = np.array([ordered.index(name) for name in names])
        piece = np.zeros(len(which), np.int64)
        piece[starts[1:]] = 1
        cells = moved[which] * len(starts) + np.cumsum(piece)
        return Strands(ordered, cells, len(names) * len(starts))

    def names(self) -> bytes:
        """What stands beside the chunk of phases."""
        return checked(msgspec.json.encode(self._strands))

    def pack(self, column: Numbers, *, counted: bool = False) -> bytes:
        """``counted``: with counts in any case."""
        values, order, counts = column.values, self._order, self._counts
        if column.present is not None:
            order = order[column.present[order]]
            counts = np.bincount(self._cells[order], minlength=len(counts))
            counted = counted or not np.array_equal(counts, self._counts)
        (packed,) = _packed(values[None, order], counts, counted=counted)
        return packed

    def pack_rows(self, values: Array, rows: Sequence[int]) -> Iterator[bytes]:
        """Of these rows of a table, each a column in which every entry is there."""
        if not rows:
            return iter(())
        return _packed(np.take(values[rows], self._order, axis=1), self._counts, counted=False)


def _place(strand: Strand) -> tuple[bool, str, bool, str]:
    phase, kind = strand
    return phase is not None, phase or "", kind is not None, kind or ""


def still(value: int) -> bytes:
    """Of a column in which every entry is there and has this value."""
    return _sealed(0, 0, value, b"", b"")


def _packed(values: Array, counts: Array, *, counted: bool) -> Iterator[bytes]:
    """Of rows of the entries that are there, cell by cell; ``counts``: how many each cell has."""
    told = counts.astype("<u2").tobytes() if counted else b""
    if not values.shape[1]:
        for _ in values:
            yield _sealed(0, 0, 0, told, b"")
        return
    some = np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[some]
    found = _numbers(values, starts, starts + counts[some] - 1)
    # Cells without entries are told as the first that has some.
    at = np.maximum(np.searchsorted(some, np.arange(len(counts)), side="right") - 1, 0)
    yield from _rows(found[:, :, at].reshape(len(values), -1), told)


def _numbers(values: Array, starts: Array, ends: Array) -> Array:
    """First, last, smallest and largest of each cell, of each row."""
    found = np.empty((len(values), len(_TOLD), len(starts)), values.dtype)
    found[:, 0], found[:, 1] = values[:, starts], values[:, ends]
    found[:, 2] = np.minimum.reduceat(values, starts, axis=1)
    found[:, 3] = np.maximum.reduceat(values, starts, axis=1)
    return found


def _rows(found: Array, told: bytes) -> Iterator[bytes]:
    if found.dtype.kind == "f":
        for row in found.astype("<f8", copy=False):
            yield _sealed(WIDTH_FLOAT, 0, 0, told, row.tobytes())
        return
    bases = found.min(axis=1)
    above = (found - bases[:, None]).astype(np.uint64)
    common = np.bitwise_or.reduce(above, axis=1)
    for row, base, bits in zip(above, bases.tolist(), common.tolist(), strict=True):
        shift = max(0, (bits & -bits).bit_length() - 1)
        width = _width(bits >> shift)
        data = (row >> np.uint64(shift)).astype(_DATA[width]).tobytes() if width else b""
        yield _sealed(width, shift, base, told, data)


def _width(bits: int) -> int:
    return next(width for width in (0, 1, 2, 4, 8) if bits < 1 << (8 * width))


def _sealed(width: int, shift: int, base: int, told: bytes, data: bytes) -> bytes:
    head = _HEAD.pack(0, width, shift, bool(told), base)
    return checked(head[4:] + told + data)


@lru_cache(maxsize=256)
def read_names(packed: bytes) -> tuple[Strand, ...]:
    """The strands of a segment, as `Strands.names` wrote them. Raises CorruptChunk."""
    if packed[:4] != zlib.crc32(packed[4:]).to_bytes(4, "little"):
        raise CorruptChunk("the checksum of the strands of a stored segment is wrong")
    return msgspec.json.decode(packed[4:], type=tuple[Strand, ...])


def unpack_all(packed: Sequence[bytes | None], lengths: Array, counts: Array | None) -> Array:
    """The records (pieces.py) of all cells of many segments, below each other; None: a column has nothing there.

    ``lengths``: how many cells each has; ``counts``: how many entries each of all these cells has; None for the column
    of sequence numbers, which says so itself. Raises CorruptChunk.
    """
    found = nothing(int(lengths.sum()))
    places = np.cumsum(lengths) - lengths
    # Rows of one form are read together, in a tenth of the time.
    forms: dict[tuple[int, int, int], list[int]] = {}
    heads = [None if each is None else _head(each) for each in packed]
    for at, head in enumerate(heads):
        if head is not None:
            forms.setdefault((head[1], head[3], int(lengths[at])), []).append(at)
    for (width, counted, cells), rows in forms.items():
        size = _HEAD.size + 2 * cells * counted + _size(width) * len(_TOLD) * cells
        raw = [packed[at] or b"" for at in rows]
        if any(len(each) != size for each in raw) or (counts is None and not counted):
            raise CorruptChunk("the strands of a stored chunk are others than its segment has")
        table = np.frombuffer(b"".join(raw), np.uint8).reshape(len(rows), size)
        to = places[rows][:, None] + np.arange(cells)
        start = _HEAD.size + 2 * cells * counted
        if counted:
            there = np.ascontiguousarray(table[:, _HEAD.size : start]).view("<u2")
        else:
            there = (counts if counts is not None else found[:, PRESENT])[to]
        found[to, PRESENT] = there
        numbers = _values(table[:, start:], width, [heads[at] for at in rows])
        for place, name in enumerate(_TOLD):
            of_one = numbers[:, place * cells : (place + 1) * cells] if width else numbers
            found[to, name] = np.where(there > 0, of_one, 0.0)
    return found


def cells_of(packed: bytes) -> int:
    """How many cells a segment has, as what stands beside its sequence numbers says. Raises CorruptChunk."""
    _, width, _, counted, _ = _head(packed)
    each = 2 + _size(width) * len(_TOLD)
    if not counted or (len(packed) - _HEAD.size) % each:
        raise CorruptChunk("the strands of a stored segment do not say how many they are")
    return (len(packed) - _HEAD.size) // each


def _head(packed: bytes) -> tuple[int, int, int, int, int]:
    """Checksum, width, shift, whether counts follow, base. Raises CorruptChunk."""
    if len(packed) < _HEAD.size or packed[:4] != zlib.crc32(packed[4:]).to_bytes(4, "little"):
        raise CorruptChunk("the checksum of the strands of a stored chunk is wrong")
    crc, width, shift, counted, base = _HEAD.unpack_from(packed)
    if width and width not in _DATA:
        raise CorruptChunk("the strands of a stored chunk are of a form that is not known")
    return crc, width, shift, counted, base


def _size(width: int) -> int:
    return _DATA[width].itemsize if width else 0


def _values(
    data: Array, width: int, heads: Sequence[tuple[int, int, int, int, int] | None]
) -> Array:
    """Of each row its numbers, or the one that all of them are."""
    base = np.array([head[4] for head in heads if head], np.int64)[:, None]
    if not width:
        return base
    numbers = np.ascontiguousarray(data).view(_DATA[width])
    if width == WIDTH_FLOAT:
        return numbers
    shift = np.array([head[2] for head in heads if head], np.uint64)[:, None]
    return base + (numbers.astype(np.uint64) << shift).astype(np.int64)

"""Summaries of consecutive snapshots: count, first, last, smallest and largest value of a column.

    pieces = checksum (4 bytes, little endian: the CRC-32 of the summaries), then summaries of 40 bytes: present,
             first, last, min, max, each a little-endian 8-byte float; all zero if nothing is present

A compacted chunk has a summary for each piece: a range of PIECE sequence numbers that begins at a multiple of PIECE. If
sequence numbers have gaps, pieces are longer by a power of two, so that a chunk has at most MAX_PIECES pieces. A single
summary in a chunk with more pieces means that every entry is present and has the same value. The sequence column's
summaries give the number of pieces and the sequence numbers of each piece.

A chart of N points over a long run is made from the summaries of chunks. Individual snapshots are read only where they
are needed for an exact result: at the ends of the queried range, in data that is not compacted yet, and where segments
overlap. The result is always the same as if all snapshots were read. If a phase or kind is selected, all snapshots are
read, a few segments at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ..columns import COLUMN_NAMES, SEQUENCE, Array, Column, CorruptChunk, Numbers, Texts
from ..maintenance import corruption
from ..schema import chunks
from .chunk_codec import Chunk, encode
from .column_reader import Block, ChunkRows, Stored, Stretch

PIECE: Final = 512
MAX_PIECES: Final = 16
# The positions of the fields within a summary.
PRESENT, FIRST, LAST, MIN, MAX = range(5)
NUMBERS: Final = 5


def bounds(sequence: Array) -> Array:
    """Return the positions at which pieces begin. ``sequence`` contains ascending sequence numbers."""
    bits = PIECE.bit_length() - 1
    while True:
        starts = np.flatnonzero(np.diff(sequence >> bits)) + 1
        if len(starts) < MAX_PIECES:
            return np.concatenate([[0], starts])
        bits += 1


def summed(column: Numbers, starts: Array) -> Array:
    """Return one summary of a column for each range. ``starts`` contains the positions at which the ranges begin."""
    if len(starts) == len(column):
        # These are summaries of single snapshots; computing them directly takes a third of the time.
        found = np.repeat(column.values[:, None], NUMBERS, axis=1).astype(np.float64)
        found[:, PRESENT] = 1 if column.present is None else column.present
        return found
    found = nothing(len(starts))
    values = column.values
    rows: Array | slice = slice(None)
    ends = np.append(starts[1:], len(values))
    if column.present is not None:
        at = np.flatnonzero(column.present)
        starts = np.searchsorted(at, starts)
        ends, values = np.append(starts[1:], len(at)), values[at]
        rows = ends > starts
        starts, ends = starts[rows], ends[rows]
    if len(starts):
        found[rows, PRESENT] = ends - starts
        found[rows, FIRST], found[rows, LAST] = values[starts], values[ends - 1]
        found[rows, MIN] = np.minimum.reduceat(values, starts)
        found[rows, MAX] = np.maximum.reduceat(values, starts)
    return found


def pack(records: Array, counts: Array) -> bytes:
    """Pack the summaries of pieces and prepend a checksum. ``counts`` contains the number of entries in each piece."""
    return checked(_checked_records(records, counts))


def checked(records: bytes) -> bytes:
    """Prepend the checksum to packed summaries."""
    return zlib.crc32(records).to_bytes(4, "little") + records


def _checked_records(records: Array, counts: Array) -> bytes:
    """Return packed summaries without a checksum: a single summary if all entries are present and equal."""
    same = records[:, MIN].min() == records[:, MAX].max()
    if same and (records[:, PRESENT] == counts).all():
        records = records[:1]
    return records.astype("<f8", copy=False).tobytes()


def unpack(packed: bytes) -> Array:
    """Return packed summaries as an array with a row for each summary. Raises CorruptChunk."""
    data = packed[4:]
    if not data or len(data) % (8 * NUMBERS) or packed[:4] != zlib.crc32(data).to_bytes(4, "little"):  # fmt: skip
        raise CorruptChunk("the summaries of a stored chunk have a wrong checksum")
    return np.frombuffer(data, "<f8").reshape(-1, NUMBERS)


@lru_cache(maxsize=4_096)
def of_numbers(first: int, last: int) -> Array:
    """Compute the summaries of the sequence column for a range without gaps."""
    sequence = np.arange(first, last + 1)
    found = summed(Numbers(sequence), bounds(sequence))
    found.flags.writeable = False
    return found


def spread(records: Array, counts: Array) -> Array:
    """Return a summary for each piece; if only one summary is stored, repeat it. Raises CorruptChunk."""
    if len(records) == len(counts):
        return records
    if len(records) != 1:
        raise CorruptChunk("the summaries of a stored chunk do not match its sequence numbers")
    found = np.repeat(records, len(counts), axis=0)
    found[:, PRESENT] = counts
    return found


def nothing(count: int) -> Array:
    """Return ``count`` summaries without values."""
    return np.zeros((count, NUMBERS))


class Cut:
    """The division of a segment into pieces. ``sequence``: the segment's sequence numbers, ascending and not empty."""

    def __init__(self, sequence: Array) -> None:
        self.starts = bounds(sequence)
        self._ends = np.append(self.starts[1:], len(sequence))
        self._counts = self._ends - self.starts

    def pieces(self, column: Column) -> bytes | None:
        """Return the packed summaries of a column of the segment, or None for a text column."""
        if isinstance(column, Texts):
            return None
        return pack(summed(column, self.starts), self._counts)

    def records_of_rows(self, values: Array) -> list[bytes]:
        """Return the packed summaries of columns without absent entries; checksums are not included.

        ``values`` has a row for each column.
        """
        found = np.empty((len(values), len(self.starts), NUMBERS))
        found[:, :, PRESENT] = self._counts
        found[:, :, FIRST], found[:, :, LAST] = values[:, self.starts], values[:, self._ends - 1]
        found[:, :, MIN] = np.minimum.reduceat(values, self.starts, axis=1)
        found[:, :, MAX] = np.maximum.reduceat(values, self.starts, axis=1)
        return [_checked_records(records, self._counts) for records in found]


def pack_column(column: Column, cut: Cut | None) -> tuple[Chunk, bytes | None]:
    """Return a column's chunk, and the packed summaries of its pieces. Without ``cut``, the summaries are None."""
    return encode(column, tight=cut is not None), None if cut is None else cut.pieces(column)


@dataclass(frozen=True, slots=True)
class Span:
    """The queried range of values on an axis, both ends included; ``axis`` is the id of a column."""

    axis: int
    start: float | None = None
    stop: float | None = None

    @property
    def whole(self) -> bool:
        return self.start is None and self.stop is None

    def holds(self, values: Array) -> Array:
        held = np.ones(len(values), dtype=bool)
        if self.start is not None:
            held &= values >= self.start
        if self.stop is not None:
            held &= values <= self.stop
        return held


@dataclass(frozen=True, slots=True)
class Summaries:
    """Summaries of consecutive ranges of snapshots, by column. SEQUENCE is always included."""

    numbers: Mapping[int, Array]

    def __len__(self) -> int:
        return len(self.numbers[SEQUENCE])

    @property
    def low(self) -> Array:
        """The first sequence number of each range."""
        return self.numbers[SEQUENCE][:, FIRST].astype(np.int64)

    @property
    def high(self) -> Array:
        return self.numbers[SEQUENCE][:, LAST].astype(np.int64)

    @property
    def snapshots(self) -> int:
        return int(self.numbers[SEQUENCE][:, PRESENT].sum())

    def take(self, rows: Array) -> Summaries:
        """Return the summaries selected by a mask or by positions."""
        return Summaries({number: found[rows] for number, found in self.numbers.items()})

    def outside(self, span: Span) -> Array:
        """Return a mask of the summaries with no snapshot within the span.

        Snapshots without a value on the axis, for example without a generation, are not within the span.
        """
        on = self.numbers[span.axis]
        found: Array = on[:, PRESENT] == 0
        if span.start is not None:
            found = found | (on[:, MAX] < span.start)
        if span.stop is not None:
            found = found | (on[:, MIN] > span.stop)
        return found

    def inside(self, span: Span) -> Array:
        """Return a mask of the summaries with all of their snapshots within the span."""
        on = self.numbers[span.axis]
        found: Array = on[:, PRESENT] == self.numbers[SEQUENCE][:, PRESENT]
        return found & span.holds(on[:, MIN]) & span.holds(on[:, MAX])


def of_block(block: Block, numbers: Collection[int], width: int = 1) -> Summaries:
    """Return the block's summaries, one for each non-empty bucket of ``width`` sequence numbers."""
    sequence = block.numbers(SEQUENCE).values
    starts = np.flatnonzero(np.diff(sequence // width, prepend=-1))
    return Summaries({number: summed(block.numbers(number), starts) for number in numbers})


def join(parts: Sequence[Summaries], numbers: Collection[int]) -> Summaries:
    """Join one or more parts, in order of sequence number. ``numbers`` are the columns to keep."""
    parts = [part for part in parts if len(part)] or parts[:1]
    joined = parts[0]
    if len(parts) > 1:
        joined = Summaries(
            {n: np.concatenate([each.numbers[n] for each in parts]) for n in numbers}
        )
    return (
        joined
        if (np.diff(joined.low) >= 0).all()
        else joined.take(np.argsort(joined.low, kind="stable"))
    )


# About this many snapshots are read at a time, to bound memory in long runs.
GROUP: Final = 65_536


class Summarised:
    """The data of a process within a span, read from chunk summaries wherever the result is exact.

    Summaries are used for compacted segments that overlap no other segment or batch; otherwise snapshots are read.
    """

    def __init__(self, stored: Stored, span: Span) -> None:
        self._span = span
        self.axis = tuple(dict.fromkeys((SEQUENCE, span.axis)))
        self.numbers = tuple(dict.fromkeys((*self.axis, *stored.names)))
        self.damaged: list[corruption.Damaged] = []
        self._apart, self._mixed = _parted(stored.stretches)
        self.stored = stored
        if not span.whole:
            found, of_stretch, others = self._summaries(self.axis)
            near = {self._apart[at] for at in np.unique(of_stretch[~found.outside(span)]).tolist()}
            self._apart = [each for each in self._apart if each in near or each in others]
            self.stored = stored.among([*self._apart, *self._mixed])

    def read(self, more: Collection[int], kind: str | None) -> Block:
        """Return the snapshots within the span, with the additional columns ``more``.

        ``kind`` limits the result to snapshots of this kind.
        """
        return self._asked(self.stored, (*self.numbers, *more), kind)

    def blocks(self, more: Collection[int], kind: str | None) -> Iterator[Block]:
        """Yield the same snapshots as `read`, in blocks of about GROUP snapshots."""
        for group in self.stored.groups(GROUP):
            yield self._asked(group, (*self.numbers, *more), kind)

    def summaries(self, width: int, numbers: Collection[int]) -> Summaries:
        """Return the summaries of all data within the span, in order.

        No summary crosses a multiple of ``width``, which is PIECE times a power of two.
        """
        found, of_stretch, others = self._summaries(numbers)
        opened = {*self._mixed, *others}
        whole = found.inside(self._span) & (found.low // width == found.high // width)
        doubtful = ~whole & ~found.outside(self._span)
        if doubtful.any():
            torn = np.unique(of_stretch[doubtful])
            opened |= {self._apart[at] for at in torn.tolist()}
            whole &= ~np.isin(of_stretch, torn)
        entries = of_block(self._asked(self.stored.among(opened), numbers), numbers)
        return join([found if whole.all() else found.take(whole), entries], numbers)

    def _summaries(self, numbers: Collection[int]) -> tuple[Summaries, Array, set[Stretch]]:
        """Return (summaries, segment of each summary, segments without summaries) for the segments in `_apart`.

        The segment of each summary is an index into `_apart`.
        """
        packed = self._packed(numbers)
        rows = [self._of_segment(packed, stretch, numbers) for stretch in self._apart]
        others = {stretch for stretch, row in zip(self._apart, rows, strict=True) if not row}
        columns = zip(*(row for row in rows if row), strict=True) if len(others) < len(rows) else ()
        joined = [np.concatenate(column) for column in columns] or [nothing(0)] * len(numbers)
        of_stretch = np.repeat(np.arange(len(rows)), [len(row[0]) if row else 0 for row in rows])
        return Summaries(dict(zip(numbers, joined, strict=True))), of_stretch, others

    def _packed(self, numbers: Collection[int]) -> Mapping[int, Mapping[int, bytes]]:
        """Return the stored summaries by column and first sequence number."""
        found: dict[int, dict[int, bytes]] = {number: {} for number in numbers}
        if self._apart:
            known = self._span.axis != SEQUENCE and all(stretch.whole for stretch in self._apart)
            asked = [number for number in numbers if number != SEQUENCE or not known]
            firsts = [stretch.first for stretch in self._apart]
            rows: Any = _PIECES(self.stored.connection, self.stored.key, asked, firsts)
            for number, first, packed in rows:
                found[number][first] = packed
        return found

    def _of_segment(
        self, packed: Mapping[int, Mapping[int, bytes]], stretch: Stretch, numbers: Collection[int]
    ) -> list[Array]:
        """Return the segment's summaries of these columns, or an empty list if they are missing or cannot be read."""
        first, axis, number, found = stretch.first, self._span.axis, SEQUENCE, list[Array]()
        # Every compacted segment has summaries of its axis column.
        if first not in packed[SEQUENCE if axis != SEQUENCE and not stretch.whole else axis]:
            return []
        try:
            if axis != SEQUENCE and stretch.whole:
                sequence = of_numbers(first, stretch.last)
            else:
                sequence = unpack(packed[SEQUENCE][first])
            for number in numbers:
                mine = packed[number].get(first)
                if number == SEQUENCE:
                    found.append(sequence)
                elif mine is None:
                    found.append(nothing(len(sequence)))
                else:
                    found.append(spread(unpack(mine), sequence[:, PRESENT]))
        except CorruptChunk:
            name = {**COLUMN_NAMES, **self.stored.names}[number]
            of_key = *self.stored.key, f"the summary of {name}", first, stretch.last
            corruption.found(self.stored.connection.engine, corruption.Damaged(*of_key))
            return []
        return found

    def _asked(self, stored: Stored, wanted: Collection[int], kind: str | None = None) -> Block:
        block = stored.read(wanted, kind=kind)
        self.damaged += block.damaged
        on = block.numbers(self._span.axis)
        keep = self._span.holds(on.values)
        if on.present is not None:
            keep &= on.present
        return block if keep.all() else block.take(keep)


def _parted(stretches: Sequence[Stretch]) -> tuple[list[Stretch], list[Stretch]]:
    """Return the compacted segments that overlap nothing else, and all other segments and batches."""
    apart: list[Stretch] = []
    mixed: list[Stretch] = []
    reach = -1
    for at, stretch in enumerate(stretches):
        before = stretch.first <= reach
        after = at + 1 < len(stretches) and stretches[at + 1].first <= stretch.last
        reach = max(reach, stretch.last)
        (mixed if before or after or stretch.level <= 0 else apart).append(stretch)
    return apart, mixed


# The query is built only once, because building a statement takes longer than executing it.
_PIECES: Final = ChunkRows(chunks.c.pieces, where=chunks.c.pieces.is_not(None))

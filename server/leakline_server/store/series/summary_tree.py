"""The numbers of stretches of a process, without its entries: records of pieces of chunks, and how charts read them.

    pieces = checksum (4 bytes, little endian: the CRC-32 of what follows), then records of 40 bytes: present, first,
             last, min, max, each a little-endian 8-byte float; all zero where nothing is present

A compacted chunk has a piece for each stretch of PIECE sequence numbers that begins at a multiple of PIECE (of a power
of two times as many, where sequence numbers have gaps, so that there are at most MAX_PIECES). Where one record stands
alone and the pieces are more, all are full and of that one value. How many pieces there are, and which sequence
numbers each has, say the pieces of the column of sequence numbers.

A chart of N points over a long run is made of nodes: of pieces of chunks, and of single entries
where only those are exact, which is at the ends of what is asked for, in what is not compacted yet, and where stretches
lie within each other. Every answer is what the entries would have given. Where a phase or kind is chosen, entries are
read, a group of stretches at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, select

from ..columns import COLUMN_NAMES, SEQUENCE, Array, Column, CorruptChunk, Numbers, Texts
from ..maintenance import corruption
from ..schema import Key, chunks, mine, segments
from .chunk_codec import Chunk, encode
from .column_reader import Block, ChunkRows, Stretch, read, waiting

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
    return checked(_checked_records(records, counts))


def checked(records: bytes) -> bytes:
    """Records with their checksum."""
    return zlib.crc32(records).to_bytes(4, "little") + records


def _checked_records(records: Array, counts: Array) -> bytes:
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
        return [_checked_records(records, self._counts) for records in found]


def pack_column(column: Column, cut: Cut | None) -> tuple[Chunk, bytes | None]:
    """Return the chunk of a column, and the records of its pieces where it is compacted (there is a ``cut``)."""
    return encode(column, tight=cut is not None), None if cut is None else cut.pieces(column)


@dataclass(frozen=True, slots=True)
class Span:
    """What is asked for: on the axis of this column, both ends included."""

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
class Nodes:
    """Stretches of snapshots: ``count`` of them from sequence number ``low`` to ``high``, and records by column."""

    low: Array
    high: Array
    count: Array
    numbers: Mapping[int, Array]

    def __len__(self) -> int:
        return len(self.low)

    def take(self, rows: Array) -> Nodes:
        """Where a mask is true, or at the positions given."""
        if rows.dtype == bool and rows.all():
            return self
        numbers = {number: records[rows] for number, records in self.numbers.items()}
        return Nodes(self.low[rows], self.high[rows], self.count[rows], numbers)

    def in_order(self) -> Nodes:
        if bool((np.diff(self.low) >= 0).all()):
            return self
        return self.take(np.argsort(self.low, kind="stable"))

    def outside(self, span: Span) -> Array:
        """Where nothing is asked for. On an axis that some entries are not on, as without a generation."""
        on = self.numbers[span.axis]
        found: Array = on[:, PRESENT] == 0
        if span.start is not None:
            found = found | (on[:, MAX] < span.start)
        if span.stop is not None:
            found = found | (on[:, MIN] > span.stop)
        return found

    def inside(self, span: Span) -> Array:
        """Where all of it is asked for."""
        on = self.numbers[span.axis]
        found: Array = on[:, PRESENT] == self.count
        return found & span.holds(on[:, MIN]) & span.holds(on[:, MAX])


def _of_entries(block: Block, number: int) -> Array:
    column = block.numbers(number)
    found = np.repeat(column.values[:, None], NUMBERS, axis=1).astype(np.float64)
    found[:, PRESENT] = 1 if column.present is None else column.present
    return found


def of_block(block: Block, numbers: Collection[int], width: int) -> Nodes:
    """Return a node for each multiple of ``width`` that has some of these snapshots, which are in order."""
    sequence = block.numbers(SEQUENCE).values
    starts = np.flatnonzero(np.diff(sequence // width, prepend=-1))
    records = [summed(block.numbers(number), starts) for number in numbers]
    return _of_records([records], numbers)


def _of_records(parts: Sequence[Sequence[Array]], numbers: Collection[int]) -> Nodes:
    """Of the records of these columns, SEQUENCE first, by stretch."""
    columns = [nothing(0)] * len(numbers)
    if parts:
        columns = [concatenate(of_column) for of_column in zip(*parts, strict=True)]
    low, high, count = columns[0][:, (FIRST, LAST, PRESENT)].astype(np.int64).T
    return Nodes(low, high, count, dict(zip(numbers, columns, strict=True)))


def together(parts: Sequence[Nodes], numbers: Collection[int]) -> Nodes:
    """Of parts with the records of these columns, and maybe of more."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    low, high, count = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("low", "high", "count")
    )
    joined = {number: concatenate([part.numbers[number] for part in parts]) for number in numbers}
    return Nodes(low, high, count, joined)


def _parted(stretches: Sequence[Stretch]) -> tuple[list[Stretch], list[Stretch]]:
    """Compacted segments that lie apart from everything else, and the rest."""
    ordered = sorted(stretches, key=lambda s: s.first)
    apart: list[Stretch] = []
    mixed: list[Stretch] = []
    reach = -1
    for at, stretch in enumerate(ordered):
        before = stretch.first <= reach
        after = at + 1 < len(ordered) and ordered[at + 1].first <= stretch.last
        reach = max(reach, stretch.last)
        (mixed if before or after or stretch.level == 0 else apart).append(stretch)
    return apart, mixed


# Entries are read for about so many snapshots at a time, whatever the length of a run.
GROUP: Final = 65_536


@dataclass(frozen=True, slots=True)
class _Summaries:
    """What the pieces of ``stretches`` tell, and how many each of these has; ``others`` have to be opened."""

    stretches: Sequence[Stretch]
    others: Sequence[Stretch]
    lengths: Array
    nodes: Nodes

    def owner(self) -> Array:
        """Of which stretch each node is."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


# Pieces of columns, by the number of the column and the first sequence number of the row.
_Packed = Mapping[int, Mapping[int, bytes]]


class Stored:
    """Where a process has what is asked for. ``names``: series id -> name, of those that are wanted."""

    def __init__(
        self,
        connection: Connection,
        key: Key,
        names: Mapping[int, str],
        span: Span,
    ) -> None:
        self._connection, self._key, self._names, self._span = connection, key, names, span
        self.numbers = tuple(dict.fromkeys((SEQUENCE, span.axis, *names)))
        self.damaged: list[corruption.Damaged] = []
        rows = connection.execute(_SEGMENTS, key._asdict()).all()
        sealed = [Stretch(first, last, n, True, level=level) for first, last, n, level in rows]
        self._apart, self._mixed = _parted(sealed + waiting(connection, key))
        if not span.whole:
            self._apart = self._near(self._apart)

    def count(self) -> int:
        """Snapshots in all stretches that hold some of what is asked for."""
        return sum(stretch.count for stretch in self.stretches())

    def ends(self) -> tuple[int, int]:
        """The lowest and the highest sequence number of these stretches; there is at least one."""
        found = self.stretches()
        return found[0].first, max(stretch.last for stretch in found)

    def stretches(self) -> list[Stretch]:
        return sorted([*self._apart, *self._mixed], key=lambda stretch: stretch.first)

    def blocks(self, more: Collection[int], kind: str | None) -> Iterator[Block]:
        """Yield the entries of what is asked for of this kind (or all), with ``more`` columns, about GROUP snapshots at
        a time."""
        group: list[Stretch] = []
        reach, count = -1, 0
        for stretch in self.stretches():
            # What lies within another is read with it, so that each block comes after the one before.
            if count >= GROUP and stretch.first > reach:
                yield self._read(group, (*self.numbers, *more), kind)
                group, count = [], 0
            group.append(stretch)
            reach, count = max(reach, stretch.last), count + stretch.count
        yield self._read(group, (*self.numbers, *more), kind)

    def nodes(self, width: int, *, axis_alone: bool = False) -> Nodes:
        """All of what is asked for, in order, none across a multiple of ``width`` (of 512 times a power of two).

        ``axis_alone``: without the numbers of the series.
        """
        numbers = tuple(dict.fromkeys((SEQUENCE, self._span.axis))) if axis_alone else self.numbers
        pieces, opened = self._pieces(self._apart, width, numbers)
        entries = self._entries(self._mixed + opened, numbers)
        return together([pieces, entries], numbers).in_order()

    def _near(self, apart: Sequence[Stretch]) -> list[Stretch]:
        """Without those that lie outside of what is asked for as a whole."""
        numbers = tuple(dict.fromkeys((SEQUENCE, self._span.axis)))
        summaries = self._summaries_among(apart, numbers)
        near = np.ones(len(summaries.stretches), dtype=bool)
        near[summaries.owner()] = False
        near[summaries.owner()[~summaries.nodes.outside(self._span)]] = True
        kept = [summaries.stretches[at] for at in np.flatnonzero(near).tolist()]
        return sorted([*kept, *summaries.others], key=lambda stretch: stretch.first)

    def _pieces(
        self, apart: Sequence[Stretch], width: int, numbers: Collection[int]
    ) -> tuple[Nodes, list[Stretch]]:
        """The nodes of these segments, and those segments that have to be opened."""
        summaries = self._summaries_among(apart, numbers)
        nodes, opened = summaries.nodes, list(summaries.others)
        whole = nodes.inside(self._span) & (nodes.low // width == nodes.high // width)
        doubtful = ~whole & ~nodes.outside(self._span)
        if doubtful.any():
            owner = summaries.owner()
            torn = np.unique(owner[doubtful])
            opened += [summaries.stretches[at] for at in torn.tolist()]
            whole &= ~np.isin(owner, torn)
        return nodes.take(whole), opened

    def _summaries_among(self, apart: Sequence[Stretch], numbers: Collection[int]) -> _Summaries:
        packed = self._packed(apart, numbers)
        rows = [self._records(packed, stretch, numbers) for stretch in apart]
        summaries = [stretch for stretch, row in zip(apart, rows, strict=True) if row is not None]
        others = [stretch for stretch, row in zip(apart, rows, strict=True) if row is None]
        records = [row for row in rows if row is not None]
        lengths = np.array([len(row[0]) for row in records], np.int64)
        return _Summaries(summaries, others, lengths, _of_records(records, numbers))

    def _packed(self, apart: Sequence[Stretch], numbers: Collection[int]) -> _Packed:
        """The pieces of these segments, by column and first sequence number."""
        firsts = [stretch.first for stretch in apart if stretch.level > 0]
        if not firsts or not numbers:
            return {}
        known = self._span.axis != SEQUENCE and all(stretch.whole for stretch in apart)
        asked = [number for number in numbers if number != SEQUENCE or not known]
        found: dict[int, dict[int, bytes]] = {number: {} for number in numbers}
        rows: Any = _PIECES(self._connection, self._key, asked, firsts)
        for number, first, pieces in rows:
            found[number][first] = pieces
        return found

    def _records(
        self, packed: _Packed, stretch: Stretch, numbers: Collection[int]
    ) -> list[Array] | None:
        """What its pieces tell of each of these columns; None where that cannot be read."""
        axis, first = self._span.axis, stretch.first
        span = first, stretch.last
        if axis == SEQUENCE or not stretch.whole:
            return self._summaries_of(packed, span, numbers)
        if first not in packed.get(axis, {}):
            # Every compacted segment has pieces of its axis.
            return None
        return self._summaries_of(packed, span, numbers, of_numbers(*span))

    def _summaries_of(
        self,
        packed: _Packed,
        span: tuple[int, int],
        numbers: Collection[int],
        sequence: Array | None = None,
    ) -> list[Array] | None:
        """The records of the rows from the first to the last of ``span``, which have these pieces."""
        first, number, found = span[0], SEQUENCE, []
        try:
            if sequence is None:
                mine = packed.get(SEQUENCE, {}).get(first)
                if mine is None:
                    return None
                sequence = unpack(mine)
            for number in numbers:
                mine = packed[number].get(first)
                if number == SEQUENCE:
                    found.append(sequence)
                elif mine is None:
                    found.append(nothing(len(sequence)))
                else:
                    found.append(spread(unpack(mine), sequence[:, PRESENT]))
        except CorruptChunk:
            name = {**COLUMN_NAMES, **self._names}[number]
            what = corruption.Damaged(*self._key, f"the summary of {name}", *span)
            corruption.found(self._connection.engine, what)
            return None
        return found

    def _entries(self, among: Iterable[Stretch], wanted: Collection[int]) -> Nodes:
        """A node for each snapshot that is asked for."""
        block = self._read(sorted(among, key=lambda stretch: stretch.first), wanted)
        sequence = block.numbers(SEQUENCE).values
        numbers = {number: _of_entries(block, number) for number in wanted}
        return Nodes(sequence, sequence, np.ones(len(sequence), np.int64), numbers)

    def _read(
        self, among: Sequence[Stretch], wanted: Collection[int], kind: str | None = None
    ) -> Block:
        block = read(self._connection, self._key, wanted, self._names, among, kind=kind)
        self.damaged += block.damaged
        on = block.numbers(self._span.axis)
        keep = self._span.holds(on.values)
        if on.present is not None:
            keep &= on.present
        return block if keep.all() else block.take(keep)


# Made once: to make a statement takes longer than to run it.
_SEGMENTS: Final = (
    select(segments.c.first_sequence, segments.c.last_sequence, segments.c.count, segments.c.level)
    .where(mine(segments))
    .order_by(segments.c.first_sequence)
)
_PIECES: Final = ChunkRows(chunks.c.pieces, where=chunks.c.pieces.is_not(None))

"""The numbers of a process without its entries: of stretches as long as a question allows, from the rows with them.

A chart of N points over a long run is made of nodes: of segments (rollups.py), of pieces of chunks (pieces.py), and of
single entries where only those are exact, which is at the ends of what is asked for, in what is not compacted yet, and
where stretches lie within each other. So what is read grows with the points of the answer, and every answer is what the
entries would have given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, bindparam, select

from . import damage, remembered
from .codec import Array, CorruptChunk
from .columns import COLUMN_NAMES, SEQUENCE, ChunkRows, Key, Stretch, mine, read, waiting
from .nodes import Nodes, Span, of_entries, of_records, parted, together, with_some_within
from .pieces import PRESENT, nothing, of_numbers, spread, unpack, unpack_all
from .tables import chunks, rollups, segments

# The numbers of whole segments are of use from this many sequence numbers a point on.
COARSE: Final = 4_096


@dataclass(frozen=True, slots=True)
class _Told:
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
        instance: str,
        names: Mapping[int, str],
        span: Span,
    ) -> None:
        self._connection, self._key, self._names, self._span = connection, key, names, span
        self._instance, self._remembered = instance, remembered.of(connection.engine)
        self._numbers = tuple(dict.fromkeys((SEQUENCE, span.axis, *names)))
        self.damaged: list[damage.Damaged] = []
        rolled = self._rollups(tuple(dict.fromkeys((SEQUENCE, span.axis))))
        base = self._segments(rolled) + waiting(connection, key)
        late = with_some_within(rolled, base)
        # Whole segments that may be told of by their rollup alone.
        self._rolled = rolled.take(~late & ~rolled.outside(span))
        base += rolled.take(late).stretches()
        self._apart, self._mixed = parted(base)
        if not span.whole:
            self._apart = self._near(self._apart)

    def count(self) -> int:
        """Snapshots in all stretches that hold some of what is asked for."""
        found = sum(stretch.count for stretch in (*self._apart, *self._mixed))
        return found + int(self._rolled.count.sum())

    def ends(self) -> tuple[int, int]:
        """The lowest and the highest sequence number of these stretches; there is at least one."""
        low = [stretch.first for stretch in (*self._apart, *self._mixed)]
        high = [stretch.last for stretch in (*self._apart, *self._mixed)]
        return (
            min([*low, *self._rolled.low[:1].tolist()]),
            max([*high, *self._rolled.high[-1:].tolist()]),
        )

    def stretches(self) -> list[Stretch]:
        found = [*self._apart, *self._mixed, *self._rolled.stretches()]
        return sorted(found, key=lambda stretch: stretch.first)

    def told_and_opened(self) -> tuple[list[Stretch], list[Stretch]]:
        """Compacted segments that lie apart from all else; and the rest, which has to be opened."""
        return [*self._apart, *self._rolled.stretches()], list(self._mixed)

    def nodes(self, width: int, *, axis_alone: bool = False) -> Nodes:
        """All of what is asked for, in order, none across a multiple of ``width`` (of 512 times a power of two).

        ``axis_alone``: without the numbers of the series.
        """
        numbers = tuple(dict.fromkeys((SEQUENCE, self._span.axis))) if axis_alone else self._numbers
        parts: list[Nodes] = []
        apart = self._apart
        if len(self._rolled):
            rolled = self._rolled
            use = np.zeros(len(rolled), dtype=bool)
            if width >= COARSE:
                wanted = self._rollups(numbers)
                use = rolled.inside(self._span) & (rolled.low // width == rolled.high // width)
                use &= np.isin(rolled.low, wanted.low)
                parts.append(wanted.take(np.isin(wanted.low, rolled.low[use])))
            apart = apart + rolled.take(~use).stretches()
        pieces, opened = self._pieces(sorted(apart, key=lambda s: s.first), width, numbers)
        parts += [pieces, self._entries(self._mixed + opened, numbers)]
        return together(parts, numbers).in_order()

    def _rollups(self, numbers: Collection[int]) -> Nodes:
        """A node for each segment that is rolled up."""
        packed: dict[int, dict[int, bytes]] = {number: {} for number in numbers}
        ends: dict[int, int] = {}
        asked = {**self._key._asdict(), "numbers": list(numbers)}
        for number, first, last, pieces in self._connection.execute(_ROLLUPS, asked).all():
            packed[number][first] = pieces
            ends[first] = last
        rows = [self._told(packed, (first, ends[first]), numbers) for first in packed[SEQUENCE]]
        return of_records([row for row in rows if row is not None], numbers)

    def _segments(self, rolled: Nodes) -> list[Stretch]:
        """Those that no rollup tells of."""
        known = set(rolled.low.tolist())
        rows = self._connection.execute(_SEGMENTS, self._key._asdict()).all()
        return [
            Stretch(first, last, count, sealed=True, level=level)
            for first, last, count, level in rows
            if level < 2 or first not in known
        ]

    def _near(self, apart: Sequence[Stretch]) -> list[Stretch]:
        """Without those that lie outside of what is asked for as a whole."""
        numbers = tuple(dict.fromkeys((SEQUENCE, self._span.axis)))
        told = self._told_of(apart, numbers)
        near = np.ones(len(told.stretches), dtype=bool)
        near[told.owner()] = False
        near[told.owner()[~told.nodes.outside(self._span)]] = True
        kept = [told.stretches[at] for at in np.flatnonzero(near).tolist()]
        return sorted([*kept, *told.others], key=lambda stretch: stretch.first)

    def _pieces(
        self, apart: Sequence[Stretch], width: int, numbers: Collection[int]
    ) -> tuple[Nodes, list[Stretch]]:
        """The nodes of these segments, and those segments that have to be opened."""
        told = self._told_of(apart, numbers)
        nodes, opened = told.nodes, list(told.others)
        whole = nodes.inside(self._span) & (nodes.low // width == nodes.high // width)
        doubtful = ~whole & ~nodes.outside(self._span)
        if doubtful.any():
            owner = told.owner()
            torn = np.unique(owner[doubtful])
            opened += [told.stretches[at] for at in torn.tolist()]
            whole &= ~np.isin(owner, torn)
        return nodes.take(whole), opened

    def _told_of(self, apart: Sequence[Stretch], numbers: Collection[int]) -> _Told:
        found = self._at_once(apart, numbers)
        if found is not None:
            return found
        packed = self._packed(apart, numbers)
        rows = [self._records(packed, stretch, numbers) for stretch in apart]
        told = [stretch for stretch, row in zip(apart, rows, strict=True) if row is not None]
        others = [stretch for stretch, row in zip(apart, rows, strict=True) if row is None]
        records = [row for row in rows if row is not None]
        lengths = np.array([len(row[0]) for row in records], np.int64)
        return _Told(told, others, lengths, of_records(records, numbers))

    def _at_once(self, apart: Sequence[Stretch], numbers: Collection[int]) -> _Told | None:
        """None where one of these stretches has to be looked at by itself."""
        plain = all(stretch.whole and stretch.level > 0 for stretch in apart)
        if not apart or self._span.axis == SEQUENCE or not plain:
            return None
        where = (*self._key, self._instance, tuple((each.first, each.last) for each in apart))
        looked = {number: self._remembered.get((number, where)) for number in numbers}
        known = {number: records for number, records in looked.items() if records is not None}
        sequences = [of_numbers(stretch.first, stretch.last) for stretch in apart]
        lengths = np.array([len(each) for each in sequences])
        known[SEQUENCE] = sequence = np.concatenate(sequences)
        packed = self._packed(apart, [n for n in numbers if n not in known])
        firsts = [stretch.first for stretch in apart]
        if self._span.axis in packed and packed[self._span.axis].keys() < set(firsts):
            # Every compacted segment has pieces of its axis.
            return None
        try:
            for number, pieces in packed.items():
                found = unpack_all(list(map(pieces.get, firsts)), lengths, sequence[:, PRESENT])
                self._remembered.put((number, where), found)
                known[number] = found
        except CorruptChunk:
            return None
        return _Told(apart, (), lengths, of_records([[known[n] for n in numbers]], numbers))

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
            return self._told(packed, span, numbers)
        if first not in packed.get(axis, {}):
            # Every compacted segment has pieces of its axis.
            return None
        return self._told(packed, span, numbers, of_numbers(*span))

    def _told(
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
            what = damage.Damaged(*self._key, f"the summary of {name}", *span)
            damage.found(self._connection.engine, what)
            return None
        return found

    def _entries(self, among: Iterable[Stretch], wanted: Collection[int]) -> Nodes:
        """A node for each snapshot that is asked for."""
        found = sorted(among, key=lambda stretch: stretch.first)
        block = read(self._connection, self._key, wanted, self._names, found)
        self.damaged += block.damaged
        on = block.numbers(self._span.axis)
        keep = self._span.holds(on.values)
        if on.present is not None:
            keep &= on.present
        block = block.take(keep)
        sequence = block.numbers(SEQUENCE).values
        numbers = {number: of_entries(block, number) for number in wanted}
        return Nodes(sequence, sequence, np.ones(len(sequence), np.int64), numbers)


# Made once: to make a statement takes longer than to run it.
_ROLLUPS: Final = (
    select(rollups.c.series_id, rollups.c.first_sequence, rollups.c.last_sequence, rollups.c.pieces)
    .where(mine(rollups), rollups.c.series_id.in_(bindparam("numbers", expanding=True)))
    .order_by(rollups.c.first_sequence)
)
_SEGMENTS: Final = (
    select(segments.c.first_sequence, segments.c.last_sequence, segments.c.count, segments.c.level)
    .where(mine(segments))
    .order_by(segments.c.first_sequence)
)
_PIECES: Final = ChunkRows(chunks.c.pieces, where=chunks.c.pieces.is_not(None))

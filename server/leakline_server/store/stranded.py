"""Lines of one phase or kind of a very long run, as buckets.py makes points of all snapshots: chunks are not opened.

What strands.py keeps beside the chunks is enough, but where only entries are exact: at the ends of what is asked for,
in what is not compacted or was compacted by an older version, and where a line is of several strands of one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection

from . import damage
from .buckets import Shown, points_of
from .codec import Array, CorruptChunk, Texts
from .columns import KIND, PHASE, SEQUENCE, ChunkRows, Key, Stretch, read
from .nodes import Nodes, Span, of_entries, of_records, together
from .pieces import PRESENT
from .strands import Strand, cells_of, read_names, unpack_all
from .tables import chunks


@dataclass(frozen=True, slots=True)
class Choice:
    """Of which snapshots lines are made: ``phase`` "*" makes one of each phase; None is any."""

    phase: str | None
    kind: str | None

    def line(self, strand: Strand) -> tuple[str | None] | None:
        """The phase of the line that a strand belongs to; None where it belongs to none."""
        phase, kind = strand
        if self.kind is not None and kind != self.kind:
            return None
        if self.phase == "*":
            return None if phase is None else (phase,)
        return (self.phase,) if self.phase in (None, phase) else None


@dataclass(frozen=True, slots=True)
class _Lined:
    """Nodes, and of each the number of its line."""

    nodes: Nodes
    lines: Array


class StrandedLines:
    """Of one process. ``names``: series id -> name, of those that are wanted."""

    def __init__(
        self, connection: Connection, key: Key, names: Mapping[int, str], span: Span, choice: Choice
    ) -> None:
        self._connection, self._key, self._names = connection, key, names
        self._span, self._choice = span, choice
        self._numbers = tuple(dict.fromkeys((SEQUENCE, span.axis, *names)))
        self._lines: dict[str | None, int] = {}
        self.damaged: list[damage.Damaged] = []

    def points(
        self, apart: Sequence[Stretch], mixed: Sequence[Stretch], width: int
    ) -> Iterator[tuple[str | None, int, Shown]]:
        """(phase, series id, points) of what has some, those of a phase that came first before others.

        ``apart``: compacted segments that lie apart from all else; ``mixed``: what is opened in any case.
        """
        told, opened = self._told(sorted(apart, key=lambda stretch: stretch.first), width)
        parts = [*told, self._entries([*mixed, *opened])]
        nodes = together([part.nodes for part in parts], self._numbers)
        lines = np.concatenate([part.lines for part in parts])
        order = np.argsort(nodes.low, kind="stable")
        nodes, lines = nodes.take(order), lines[order]
        found, first = np.unique(lines, return_index=True)
        phases = list(self._lines)
        for number in found[np.argsort(first)].tolist():
            of_one = nodes.take(lines == number)
            for series in self._names:
                shown = points_of(of_one, series, self._span.axis, width)
                if shown["x"]:
                    yield phases[number], series, shown

    def _line(self, strand: Strand) -> int:
        """-1 where it belongs to none."""
        found = self._choice.line(strand)
        return -1 if found is None else self._lines.setdefault(found[0], len(self._lines))

    def _told(self, apart: Sequence[Stretch], width: int) -> tuple[list[_Lined], list[Stretch]]:
        """What strands tell, and the segments that have to be opened."""
        packed: dict[int, dict[int, bytes]] = {number: {} for number in (PHASE, *self._numbers)}
        firsts = [stretch.first for stretch in apart if stretch.level > 0]
        if firsts:
            rows: Any = _STRANDS(self._connection, self._key, list(packed), firsts)
            for number, first, strands in rows:
                packed[number][first] = strands
        known: list[Stretch] = []
        unknown: list[Stretch] = []
        for stretch in apart:
            there = all(stretch.first in packed[n] for n in (PHASE, SEQUENCE, self._span.axis))
            (known if there else unknown).append(stretch)
        told, opened = self._of(known, packed, width)
        return told, unknown + opened

    def _of(
        self, known: Sequence[Stretch], packed: Mapping[int, Mapping[int, bytes]], width: int
    ) -> tuple[list[_Lined], list[Stretch]]:
        if not known:
            return [], []
        try:
            return self._at_once(known, packed, width)
        except CorruptChunk:
            if len(known) > 1:
                # Which of them it is.
                half = len(known) // 2
                left = self._of(known[:half], packed, width)
                right = self._of(known[half:], packed, width)
                return left[0] + right[0], left[1] + right[1]
        (stretch,) = known
        what = damage.Damaged(*self._key, "the strands", stretch.first, stretch.last)
        damage.found(self._connection.engine, what)
        return [], [stretch]

    def _at_once(
        self, known: Sequence[Stretch], packed: Mapping[int, Mapping[int, bytes]], width: int
    ) -> tuple[list[_Lined], list[Stretch]]:
        """Raises CorruptChunk."""
        firsts = [stretch.first for stretch in known]
        sequences = [packed[SEQUENCE][first] for first in firsts]
        lengths = np.array([cells_of(each) for each in sequences])
        sequence = unpack_all(sequences, lengths, None)
        counts = sequence[:, PRESENT]
        records = [
            sequence
            if number == SEQUENCE
            else unpack_all([packed[number].get(first) for first in firsts], lengths, counts)
            for number in self._numbers
        ]
        nodes = of_records([records], self._numbers)
        lines, torn = self._lines_of(firsts, packed[PHASE], lengths, nodes.count)
        owner = np.repeat(np.arange(len(known)), lengths)
        mine = (lines >= 0) & (nodes.count > 0)
        whole = nodes.inside(self._span) & (nodes.low // width == nodes.high // width)
        doubtful = mine & ~whole & ~nodes.outside(self._span)
        opened = np.union1d(np.unique(owner[doubtful]), np.array(torn, np.int64))
        keep = mine & whole & ~np.isin(owner, opened)
        return [_Lined(nodes.take(keep), lines[keep])], [known[at] for at in opened.tolist()]

    def _lines_of(
        self, firsts: Sequence[int], names: Mapping[int, bytes], lengths: Array, counts: Array
    ) -> tuple[Array, list[int]]:
        """Of each cell its line, and which segments have several strands of one line in one piece.

        Raises CorruptChunk.
        """
        found, torn, at = [], [], 0
        for place, (first, length) in enumerate(zip(firsts, lengths.tolist(), strict=True)):
            strands = read_names(names[first])
            of_strands = [self._line(strand) for strand in strands]
            if not strands or length % len(strands):
                raise CorruptChunk("the strands of a stored segment are others than it names")
            wanted = [number for number in of_strands if number >= 0]
            if len(set(wanted)) < len(wanted) and _overlap(
                of_strands, counts[at : at + length].reshape(len(strands), -1)
            ):
                torn.append(place)
            found.append(np.repeat(np.array(of_strands), length // len(strands)))
            at += length
        return np.concatenate(found), torn

    def _entries(self, among: Sequence[Stretch]) -> _Lined:
        """A node for each snapshot of a line that is asked for."""
        found = sorted(among, key=lambda stretch: stretch.first)
        wanted = (*self._numbers, PHASE, KIND)
        block = read(self._connection, self._key, wanted, self._names, found)
        self.damaged += block.damaged
        on = block.numbers(self._span.axis)
        lines = self._lines_of_entries(block.texts(PHASE), block.texts(KIND))
        keep = self._span.holds(on.values) & (lines >= 0)
        if on.present is not None:
            keep &= on.present
        block, lines = block.take(keep), lines[keep]
        sequence = block.numbers(SEQUENCE).values
        numbers = {number: of_entries(block, number) for number in self._numbers}
        return _Lined(Nodes(sequence, sequence, np.ones(len(sequence), np.int64), numbers), lines)

    def _lines_of_entries(self, phases: Texts, kinds: Texts) -> Array:
        found = np.full((len(phases.names) + 1, len(kinds.names) + 1), -1)
        # Only of what is there: a line that nothing belongs to is none.
        for pair in set(zip(phases.index.tolist(), kinds.index.tolist(), strict=True)):
            phase, kind = pair
            found[pair] = self._line(((*phases.names, None)[phase], (*kinds.names, None)[kind]))
        of_each: Array = found[phases.index, kinds.index]
        return of_each


def _overlap(of_strands: Sequence[int], counts: Array) -> bool:
    """Whether two strands of one line have entries in one piece."""
    lines = np.array(of_strands)
    return any(
        bool(((counts[lines == number] > 0).sum(axis=0) > 1).any())
        for number in set(of_strands)
        if number >= 0
    )


_STRANDS: Final = ChunkRows(chunks.c.strands, where=chunks.c.strands.is_not(None))

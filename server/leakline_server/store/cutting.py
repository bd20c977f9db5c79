"""A stretch of snapshots as compaction cuts it, into pieces and strands: what stands beside each of its chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .chunk_rows import NOTHING_BESIDE, Beside
from .codec import Array, Chunk, Column, Texts, encode
from .columns import MONOTONIC, PHASE, SEQUENCE
from .pieces import FIRST, LAST, MAX, MIN, NUMBERS, PRESENT, bounds, pack, summed, told
from .strands import Strands, still


class Cut:
    """Of columns of as many entries as it has snapshots."""

    def __init__(
        self, sequence: Array, phases: Texts | None = None, kinds: Texts | None = None
    ) -> None:
        """``sequence``: the ascending sequence numbers, of at least one."""
        self.starts = bounds(sequence)
        self._ends = np.append(self.starts[1:], len(sequence))
        self._counts = self._ends - self.starts
        self.strands: Strands | None = None
        if phases is not None and kinds is not None:
            self.strands = Strands.of(phases, kinds, self.starts)

    def beside(self, number: int, column: Column) -> Beside:
        """Of the column with this number."""
        if isinstance(column, Texts):
            if number != PHASE or self.strands is None:
                return NOTHING_BESIDE
            return Beside(None, self.strands.names())
        pieces = pack(summed(column, self.starts), self._counts)
        if self.strands is None or number == MONOTONIC:
            return Beside(pieces, None)
        return Beside(pieces, self.strands.pack(column, counted=number == SEQUENCE))

    def records_of_rows(self, values: Array) -> list[bytes]:
        """Of the pieces of many columns at once, one a row, in which every entry is there."""
        found = np.empty((len(values), len(self.starts), NUMBERS))
        found[:, :, PRESENT] = self._counts
        found[:, :, FIRST], found[:, :, LAST] = values[:, self.starts], values[:, self._ends - 1]
        found[:, :, MIN] = np.minimum.reduceat(values, self.starts, axis=1)
        found[:, :, MAX] = np.maximum.reduceat(values, self.starts, axis=1)
        return [told(records, self._counts) for records in found]

    def strands_of_rows(
        self, values: Array, limits: Sequence[tuple[float, float] | None]
    ) -> Iterator[bytes | None]:
        """Of such rows; ``limits``: the smallest and the largest of each, None for those that are not wanted."""
        moving = [row for row, limit in enumerate(limits) if limit and limit[0] != limit[1]]
        packed = self.strands.pack_rows(values, moving) if self.strands else iter(())
        for row, limit in enumerate(limits):
            if limit is None or self.strands is None:
                yield None
            else:
                yield still(int(values[row, 0])) if limit[0] == limit[1] else next(packed)


def pack_column(number: int, column: Column, cut: Cut | None) -> tuple[Chunk, Beside]:
    """The chunk of a column, and what stands beside it where it is compacted (there is a ``cut``)."""
    beside = NOTHING_BESIDE if cut is None else cut.beside(number, column)
    return encode(column, tight=cut is not None), beside

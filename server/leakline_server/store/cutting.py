"""A stretch of snapshots as compaction cuts it into pieces, and the records next to each of its chunks."""

from __future__ import annotations

import numpy as np

from .codec import Array, Chunk, Column, Texts, encode
from .pieces import FIRST, LAST, MAX, MIN, NUMBERS, PRESENT, bounds, pack, summed, told


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

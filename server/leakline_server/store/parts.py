"""What was read of neighbouring segments, as the rows of the segment that compaction makes of a part of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .chunk_rows import chunk_row, size
from .codec import Array, Texts, only_used
from .columns import COLUMNS, Block, Key
from .cutting import Cut, pack_column


class Part:
    """The snapshots from ``start`` to ``stop`` of what was read: one segment, the first of them compacted."""

    def __init__(self, sequence: Array, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.rows: list[dict[str, Any]] = []
        self._compacted = start == 0
        self._sequence = sequence[start:stop]
        self._cut: Cut | None = None

    def begin(self, key: Key, block: Block, columns: Collection[int]) -> None:
        """The rows of what every snapshot has, by which the others are cut."""
        if self._compacted:
            self._cut = Cut(self._sequence)
        self.add(key, block, columns)

    def add(self, key: Key, block: Block, columns: Collection[int]) -> None:
        """The chunk rows of these columns. A series without values among these snapshots has none."""
        part = block.take(np.arange(self.start, self.stop))
        for number in columns:
            column = part.columns[number]
            if isinstance(column, Texts):
                column = only_used(column)
            chunk, pieces = pack_column(column, self._cut)
            if chunk.present or number in COLUMNS:
                self.rows.append(chunk_row(key, number, int(self._sequence[0]), chunk, pieces))
            # Whoever answers a request comes first.
            time.sleep(0)

    def segment(self, key: Key, taken: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        first, last = int(self._sequence[0]), int(self._sequence[-1])
        # What is newer than a revision is asked for by segment: the older part does not take that of the newer.
        revision = max(row["revision"] for row in taken if row["first_sequence"] <= last)
        return {
            **key._asdict(), "first_sequence": first, "last_sequence": last, "count": len(self._sequence),
            "revision": revision, "level": int(self._compacted), "thinned": taken[0]["thinned"],
            "bytes": sum(map(size, self.rows)),
        }  # fmt: skip

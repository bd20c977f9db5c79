"""Many columns of whole numbers as chunks at once: the same bytes as `codec.encode` makes of each, for less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from .codec import Array, Chunk, integer_chunk


def encode_rows(values: Array, rows: Sequence[int]) -> Iterator[tuple[int, Chunk]]:
    """(row, chunk) of these rows of int64, in which every entry is there."""
    count = values.shape[1]
    lows, highs = values.min(axis=1).tolist(), values.max(axis=1).tolist()
    moving = []
    for row in rows:
        if lows[row] == highs[row]:
            stats = (float(lows[row]),) * 4
            yield row, integer_chunk(stats, count, 0, (0, 0), _NOTHING)
        else:
            moving.append(row)
    if not moving:
        return
    # A copy of those that move alone: most stand still, and large arrays cost by the page.
    steps = np.diff(values[moving], axis=1)
    common = np.bitwise_or.reduce(steps, axis=1)
    # The lowest bit that is set in any difference, as a number of places.
    shifts = np.log2((common & -common).astype(np.uint64).astype(np.float64)).astype(np.int64)
    steps >>= shifts[:, None]
    least, most = steps.min(axis=1).tolist(), steps.max(axis=1).tolist()
    for at, (row, shift) in enumerate(zip(moving, shifts.tolist(), strict=True)):
        ends = float(values[row, 0]), float(values[row, -1])
        stats = (*ends, float(lows[row]), float(highs[row]))
        yield row, integer_chunk(stats, count, shift, (least[at], most[at]), steps[at])


_NOTHING: Final = np.empty(0, np.int64)

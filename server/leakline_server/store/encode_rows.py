"""Many columns of whole numbers as chunks at once: the same bytes as `codec.encode` makes of each, for less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from .batch_columns import NOT_THERE
from .codec import Array, Chunk, integer_chunk, integer_payload
from .compiled import native
from .cutting import Cut
from .pieces import checked

# first, last, min, max, width, payload, records of the pieces
_Encoded = tuple[float, float, float, float, int, bytes, bytes]


def encode_rows(values: Array, cut: Cut | None) -> Iterator[tuple[int, Chunk, bytes | None]]:
    """Yield (row, chunk, packed pieces) of the rows of int64 in which no entry is NOT_THERE."""
    module = native()
    if module is None:
        found = in_numpy(values, cut)
    else:
        starts = _NOTHING if cut is None else cut.starts
        found = module.encode_table(np.ascontiguousarray(values), values.shape[1], starts)
    for row, one in enumerate(found):
        if one is not None:
            yield row, _chunk(values, one), None if cut is None else checked(one[6])


def _chunk(values: Array, one: _Encoded) -> Chunk:
    first, last, low, high, width, payload, _ = one
    return integer_chunk(values.shape[1], (first, last, low, high), width, payload)


def in_numpy(values: Array, cut: Cut | None) -> list[_Encoded | None]:
    """What `encode_table` of the native module gives."""
    lows, highs = values.min(axis=1), values.max(axis=1)
    there = lows != NOT_THERE
    stands_still = lows.astype(np.float64) == highs.astype(np.float64)
    # A copy of those that move alone: most stand still, and large arrays cost by the page.
    moving = np.flatnonzero(there & ~stands_still)
    payloads = dict(zip(moving.tolist(), _payloads(values[moving]), strict=True))
    records = [b""] * len(values) if cut is None else cut.records_of_rows(values)
    ends = values[:, 0].tolist(), values[:, -1].tolist()
    stats = np.array([*ends, lows.tolist(), highs.tolist()], np.float64).T.tolist()
    return [
        (*stats[row], *payloads.get(row, (0, b"")), records[row]) if there[row] else None
        for row in range(len(values))
    ]


def _payloads(values: Array) -> Iterator[tuple[int, bytes]]:
    if not values.size:
        return
    steps = np.diff(values, axis=1)
    common = np.bitwise_or.reduce(steps, axis=1)
    # The lowest bit that is set in any difference, as a number of places.
    shifts = np.log2((common & -common).astype(np.uint64).astype(np.float64)).astype(np.int64)
    steps >>= shifts[:, None]
    limits = zip(steps.min(axis=1).tolist(), steps.max(axis=1).tolist(), strict=True)
    for row, shift, of_row in zip(steps, shifts.tolist(), limits, strict=True):
        yield integer_payload(shift, of_row, row)


_NOTHING: Final = np.empty(0, np.int64)

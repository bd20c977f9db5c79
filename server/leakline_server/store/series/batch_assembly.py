"""The batches of a process put together: one table of whole numbers, one of floats, and what every snapshot has.

Filled batch by batch, all series of a batch at once: by series, a hundred thousand small steps would cost more than
everything else that sealing does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np

from ..downsampling.summary_records import Cut, checked, pack_column
from ..ingest.batch_columns import NOT_THERE
from ..ingest.batch_frame import Body
from ..native_module import native
from .chunk_codec import Array, Chunk, Column, Numbers, integer_chunk, integer_payload, texts
from .chunk_codec import numbers as column_of
from .column_reader import GENERATION, KIND, LABEL, MONOTONIC, PHASE, SEQUENCE, TIME

# Of a run with thousands of series, the table of all of them would be larger than everything else.
SERIES_AT_ONCE: Final = 128


def chunks_of(
    firsts: Sequence[int], bodies: Sequence[Body], *, compacted: bool = False
) -> Iterator[tuple[int, Chunk, bytes | None]]:
    """Yield (column, chunk, packed pieces) of every column of these batches, which begin at the sequence numbers
    ``firsts``.

    ``compacted``: as compaction would make it of them, cut into pieces.
    """
    sequence = _sequence(firsts, bodies)
    cut = Cut(sequence) if compacted else None
    for number, column in ((SEQUENCE, Numbers(sequence)), *_common(bodies)):
        yield number, *pack_column(column, cut)
    ids, floats = _names(bodies)
    for at in range(0, len(ids), SERIES_AT_ONCE):
        yield from _of_series(_Table(bodies, ids[at : at + SERIES_AT_ONCE], floats), cut)


def _names(bodies: Sequence[Body]) -> tuple[Array, Array]:
    """The numbers of all series, ascending; and of those of which some batch has floats."""
    forms = [body.packed for body in bodies]
    # Most batches have the same series.
    floats = {form.floats for form in forms}
    others = {ids for form in forms for ids in (form.constant, form.whole, form.holed)}
    return _unique(others | floats), _unique(floats)


def _unique(packed: Collection[bytes]) -> Array:
    return np.unique(np.frombuffer(b"".join(packed), "<u4"))


def _of_series(table: _Table, cut: Cut | None) -> Iterator[tuple[int, Chunk, bytes | None]]:
    ids = table.ids.tolist()
    others = set(range(len(ids)))
    for row, chunk, pieces in encode_rows(table.values, cut):
        yield ids[row], chunk, pieces
        others.discard(row)
    for row in sorted(others):
        column, pieces = pack_column(table.column(row), cut)
        # What holds nothing is left out of a compacted segment.
        if column.present or cut is None:
            yield ids[row], column, pieces


def _sequence(firsts: Sequence[int], bodies: Sequence[Body]) -> Array:
    counts = np.array([len(body) for body in bodies])
    before = np.cumsum(counts) - counts
    found: Array = np.arange(counts.sum()) + np.repeat(np.array(firsts) - before, counts)
    return found.astype(np.int64)


def _common(bodies: Sequence[Body]) -> Iterator[tuple[int, Column]]:
    yield TIME, Numbers(np.concatenate([body.time for body in bodies]))
    yield MONOTONIC, Numbers(np.concatenate([body.monotonic for body in bodies]))
    yield GENERATION, column_of(list(chain.from_iterable(body.generation for body in bodies)))
    yield PHASE, texts(list(chain.from_iterable(body.phase for body in bodies)))
    yield LABEL, texts(list(chain.from_iterable(body.label for body in bodies)))
    yield KIND, texts(list(chain.from_iterable(body.kind for body in bodies)))


class _Table:
    """``values``: one row a series, in the order of ``ids``, NOT_THERE where it has no whole number; beside it one of
    floats, NaN where it has none, of the series of which there are any.

    ``ids``: ascending, those of the series that are wanted; ``floats``: of which there are floats, of all series.
    """

    def __init__(self, bodies: Sequence[Body], ids: Array, floats: Array) -> None:
        self.ids = ids
        self._float_ids = np.intersect1d(ids, floats)
        count = sum(body.packed.count for body in bodies)
        self.values = np.full((len(ids), count), NOT_THERE)
        self._floats = np.full((len(self._float_ids), count), np.nan)
        fill = _fill_in_numpy if native() is None else _fill
        at = 0
        for body in bodies:
            fill(self.values, ids, at, body, floats=False)
            if len(self._floats):
                fill(self._floats, self._float_ids, at, body, floats=True)
            at += body.packed.count

    def column(self, row: int) -> Numbers:
        values = self.values[row]
        present = values != NOT_THERE
        at = np.searchsorted(self._float_ids, self.ids[row])
        if at < len(self._float_ids) and self._float_ids[at] == self.ids[row]:
            floats = self._floats[at]
            there = ~np.isnan(floats)
            if there.any():
                # Where one is, the other is not; not their sum, which would take the sign of -0.0.
                values, present = np.where(present, values, floats), present | there
        if present.all():
            return Numbers(values)
        return Numbers(np.where(present, values, 0), present)


def _fill(table: Array, ids: Array, start: int, body: Body, *, floats: bool) -> None:
    """The entries of a batch into the rows of these series, from ``start`` on."""
    form, module = body.packed, native()
    assert module is not None
    if floats:
        module.fill_table(
            table, ids, start, form.count, b"", b"", b"", b"", 1, b"", form.floats, form.float_values
        )  # fmt: skip
    else:
        module.fill_table(
            table, ids, start, form.count, form.constant, form.constants, form.whole, form.firsts, form.width,
            form.steps, form.holed, form.holed_values,
        )  # fmt: skip


def _fill_in_numpy(table: Array, ids: Array, start: int, body: Body, *, floats: bool) -> None:
    for names, values in body.tables[3:] if floats else body.tables[:3]:
        if len(names):
            rows = np.minimum(np.searchsorted(ids, names), len(ids) - 1)
            wanted = ids[rows] == names
            table[rows[wanted], start : start + len(body)] = values[wanted]


# first, last, min, max, width, payload, records of the pieces
_Encoded = tuple[float, float, float, float, int, bytes, bytes]


def encode_rows(values: Array, cut: Cut | None) -> Iterator[tuple[int, Chunk, bytes | None]]:
    """Yield (row, chunk, packed pieces) of the rows of int64 in which no entry is NOT_THERE: the same bytes as
    `codec.encode` makes of each row, but cheaper.
    """
    module = native()
    if module is None:
        found = in_numpy(values, cut)
    else:
        starts = np.empty(0, np.int64) if cut is None else cut.starts
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

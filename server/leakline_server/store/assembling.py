"""The batches of a process put together: one table of whole numbers, one of floats, and what every snapshot has.

Filled batch by batch, all series of a batch at once: by series, a hundred thousand small steps would cost more than
everything else that sealing does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np

from .batch_columns import NOT_THERE
from .codec import Array, Chunk, Column, Numbers, texts
from .codec import numbers as column_of
from .columns import GENERATION, KIND, LABEL, MONOTONIC, PHASE, SEQUENCE, TIME
from .encode_rows import encode_rows
from .packed import Body
from .pieces import Cut, pack_column

# Of a run with thousands of series, the table of all of them would be larger than everything else.
SERIES_AT_ONCE: Final = 128


def chunks_of(
    firsts: Sequence[int], bodies: Sequence[Body], *, compacted: bool = False
) -> Iterator[tuple[int, Chunk, bytes | None]]:
    """(column, chunk, pieces) of every column of these batches, which begin at the sequence numbers ``firsts``.

    ``compacted``: as compaction would make it of them, with the packed records of their pieces (pieces.py).
    """
    sequence = _sequence(firsts, bodies)
    cut = Cut(sequence) if compacted else None
    for number, column in ((SEQUENCE, Numbers(sequence)), *_common(bodies)):
        yield number, *pack_column(column, cut)
    parts = {ids.tobytes(): ids for body in bodies for ids, _ in _series(body) if len(ids)}
    ids = np.unique(np.concatenate(list(parts.values()))) if parts else np.empty(0, np.int64)
    for at in range(0, len(ids), SERIES_AT_ONCE):
        yield from _of_series(_Table(bodies, ids[at : at + SERIES_AT_ONCE]), cut)


def _of_series(table: _Table, cut: Cut | None) -> Iterator[tuple[int, Chunk, bytes | None]]:
    plain = table.present.all(axis=1) & ~table.is_float
    ids = table.ids.tolist()
    pieces = [None] * len(ids) if cut is None else cut.pack_rows(table.values)
    for row, chunk in encode_rows(table.values, np.flatnonzero(plain).tolist()):
        yield ids[row], chunk, pieces[row]
    for row in np.flatnonzero(~plain).tolist():
        chunk, packed = pack_column(table.column(row), cut)
        # What holds nothing is left out of a compacted segment.
        if chunk.present or cut is None:
            yield ids[row], chunk, packed


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
    """``values`` and ``present``: one row a series, in the order of ``ids``; ``floats`` beside it where any are.

    ``ids``: ascending, those of the series that are wanted.
    """

    def __init__(self, bodies: Sequence[Body], ids: Array) -> None:
        self.ids = ids
        # Most batches have the same series: where they lie is looked up once.
        self._places: dict[bytes, tuple[Array, Array]] = {}
        shape = len(ids), sum(len(body) for body in bodies)
        self.values = np.zeros(shape, np.int64)
        self.present = np.zeros(shape, bool)
        self.is_float = np.zeros(shape[0], bool)
        some = any(len(self._place(body.floats[0])[0]) for body in bodies)
        self.floats = np.zeros(shape if some else (0, 0))
        at = 0
        for body in bodies:
            self._fill(body, at, at + len(body))
            at += len(body)

    def _place(self, ids: Array) -> tuple[Array, Array]:
        """Which of these series are wanted, and their rows."""
        key = ids.tobytes()
        if key not in self._places:
            rows = np.searchsorted(self.ids, ids)
            rows[rows == len(self.ids)] = 0
            wanted = np.flatnonzero(self.ids[rows] == ids)
            self._places[key] = wanted, rows[wanted]
        return self._places[key]

    def _fill(self, body: Body, start: int, stop: int) -> None:
        for (ids, of_all), is_constant in zip(
            _series(body), (True, False, False, False), strict=True
        ):
            wanted, rows = self._place(ids)
            if not len(rows):
                continue
            values = of_all if len(rows) == len(ids) else of_all[wanted]
            if is_constant:
                self.values[rows, start:stop] = values[:, None]
                self.present[rows, start:stop] = True
            elif values.dtype.kind == "f":
                there = ~np.isnan(values)
                self.floats[rows, start:stop] = np.where(there, values, 0.0)
                self.present[rows, start:stop] = there
                self.is_float[rows] |= there.any(axis=1)
            else:
                there = values != NOT_THERE
                self.values[rows, start:stop] = np.where(there, values, 0)
                self.present[rows, start:stop] = there

    def column(self, row: int) -> Numbers:
        values = self.values[row]
        if self.is_float[row]:
            # Where a batch had whole numbers of it, this table holds them, and the other one 0; and the reverse. Not
            # their sum, which would take the sign of -0.0.
            values = np.where(values != 0, values, self.floats[row])
        present = self.present[row]
        return Numbers(values, None if present.all() else present)


def _series(body: Body) -> tuple[tuple[Array, Array], ...]:
    return body.constant, body.whole, body.holed, body.floats

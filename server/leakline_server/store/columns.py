"""Reading the columns of one process back: sealed chunks first, then the batches that are not sealed yet.

Whether a snapshot is sealed makes no difference to what is read. A column is asked for by number: a series id, or
one of the numbers below zero for what every snapshot has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, Engine, select

from . import wire
from .codec import (
    Array,
    Chunk,
    Column,
    Numbers,
    Texts,
    absent,
    concatenate_numbers,
    concatenate_texts,
    decode,
    decompress,
    numbers,
    texts,
)
from .tables import batches, chunks, segments, series

SEQUENCE: Final = -1
TIME: Final = -2
MONOTONIC: Final = -3
GENERATION: Final = -4
PHASE: Final = -5
LABEL: Final = -6
KIND: Final = -7
COLUMNS: Final = (SEQUENCE, TIME, MONOTONIC, GENERATION, PHASE, LABEL, KIND)
TEXT_COLUMNS: Final = frozenset((PHASE, LABEL, KIND))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A batch or segment: ``count`` snapshots from ``first`` to ``last``; gaps are possible in a segment."""

    first: int
    last: int
    count: int
    sealed: bool
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Block:
    """Columns of one process, in sequence order."""

    columns: Mapping[int, Column]

    def __len__(self) -> int:
        return len(self.columns[SEQUENCE])

    def numbers(self, number: int) -> Numbers:
        column = self.columns[number]
        assert isinstance(column, Numbers)
        return column

    def texts(self, number: int) -> Texts:
        column = self.columns[number]
        assert isinstance(column, Texts)
        return column

    def take(self, rows: Array) -> Block:
        """The rows where a mask is true, or those at the positions given."""
        return Block({number: take(column, rows) for number, column in self.columns.items()})


def take(column: Column, rows: Array) -> Column:
    if isinstance(column, Texts):
        return Texts(column.names, column.index[rows])
    present = None if column.present is None else column.present[rows]
    return Numbers(column.values[rows], present)


@contextlib.contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent view: sealing moves rows between tables, and a read must not see them twice or not at all."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


def series_ids(connection: Connection, run_id: str) -> dict[str, int]:
    rows = connection.execute(select(series.c.name, series.c.id).where(series.c.run_id == run_id))
    return {row.name: row.id for row in rows}


def stretches(connection: Connection, process_id: int) -> list[Stretch]:
    """All that is stored of a process, in order of first sequence number; bodies of batches included."""
    sealed = connection.execute(
        select(segments.c.first_sequence, segments.c.last_sequence, segments.c.count).where(
            segments.c.process_id == process_id
        )
    )
    found = [Stretch(first, last, count, sealed=True) for first, last, count in sealed]
    waiting = connection.execute(
        select(batches.c.first_sequence, batches.c.count, batches.c.body).where(
            batches.c.process_id == process_id
        )
    )
    found += [Stretch(f, f + n - 1, n, sealed=False, body=body) for f, n, body in waiting]
    return sorted(found, key=lambda stretch: stretch.first)


def newest(found: Sequence[Stretch], rows: int, before: int | None) -> list[Stretch]:
    """As few stretches from the end as hold ``rows`` snapshots below the sequence number ``before``."""
    chosen: list[Stretch] = []
    have = 0
    for stretch in sorted(found, key=lambda s: s.last, reverse=True):
        if before is not None and stretch.first >= before:
            continue
        if have >= rows and all(stretch.last < other.first for other in chosen):
            break
        chosen.append(stretch)
        have += (
            stretch.count if before is None else max(0, min(stretch.count, before - stretch.first))
        )
    return sorted(chosen, key=lambda stretch: stretch.first)


def read(
    connection: Connection,
    process_id: int,
    wanted: Collection[int],
    names: Mapping[int, str],
    among: Sequence[Stretch],
) -> Block:
    """The wanted columns (SEQUENCE always) of the given stretches. ``names``: series id -> series name."""
    numbers_wanted = tuple(dict.fromkeys((SEQUENCE, *wanted)))
    stored = _chunks(connection, process_id, numbers_wanted, among)
    parts: dict[int, list[Column]] = {number: [] for number in numbers_wanted}
    for stretch in among:
        body = None if stretch.sealed else wire.decode_stored(decompress(stretch.body)).columns
        for number in numbers_wanted:
            if body is not None:
                parts[number].append(from_body(body, stretch, number, names))
            else:
                chunk = stored.get((number, stretch.first))
                parts[number].append(
                    _missing(number, stretch.count) if chunk is None else decode(chunk)
                )
    return in_order(
        Block({number: _concatenate(number, parts[number]) for number in numbers_wanted})
    )


def from_body(
    body: wire.Columns, stretch: Stretch, number: int, names: Mapping[int, str]
) -> Column:
    """One column of a batch that is not sealed."""
    if number == SEQUENCE:
        return Numbers(np.arange(stretch.first, stretch.first + stretch.count, dtype=np.int64))
    if number == TIME:
        return Numbers(np.array(body.time, dtype=np.float64))
    if number == MONOTONIC:
        return Numbers(np.array(body.monotonic, dtype=np.float64))
    if number == GENERATION:
        return numbers(body.generation)
    if number == PHASE:
        return texts(body.phase)
    if number == LABEL:
        return texts(body.label)
    if number == KIND:
        return texts(wire.kinds_of(body))
    values = body.series.get(names[number])
    return absent(stretch.count) if values is None else numbers(values)


def in_order(block: Block) -> Block:
    """Batches that came late lie behind their place; put them where they belong."""
    sequence = block.numbers(SEQUENCE).values
    if len(sequence) < 2 or bool((np.diff(sequence) > 0).all()):
        return block
    return block.take(np.argsort(sequence, kind="stable"))


def _chunks(
    connection: Connection, process_id: int, wanted: Collection[int], among: Sequence[Stretch]
) -> dict[tuple[int, int], Chunk]:
    sealed = [stretch.first for stretch in among if stretch.sealed]
    if not sealed:
        return {}
    c = chunks.c
    query = select(
        c.series_id, c.first_sequence, c.count, c.first, c.last, c.min, c.max, c.width, c.blob
    ).where(
        c.process_id == process_id,
        c.series_id.in_(wanted),
        c.first_sequence.between(sealed[0], sealed[-1]),
    )
    rows: Any = connection.execute(query)
    return {(number, first): Chunk(*rest) for number, first, *rest in rows}


def _missing(number: int, count: int) -> Column:
    return texts([None] * count) if number in TEXT_COLUMNS else absent(count)


def _concatenate(number: int, parts: Sequence[Column]) -> Column:
    if number in TEXT_COLUMNS:
        return concatenate_texts([p for p in parts if isinstance(p, Texts)]) if parts else texts([])
    if not parts:
        return absent(0)
    return concatenate_numbers([p for p in parts if isinstance(p, Numbers)])

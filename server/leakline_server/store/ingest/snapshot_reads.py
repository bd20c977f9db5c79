"""Reading snapshots within a transaction that writes.

On Postgres each statement of such a transaction has a view of its own, and between two of them the same snapshots may
be sealed or compacted by somebody else. So batches are asked for first, since sealing takes them to where is looked
after it, and segments together with their chunks in one statement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
from sqlalchemy import ColumnElement, Connection, and_, select

from ..maintenance import corruption
from ..schema import batches, chunks, segments
from ..series.chunk_codec import Chunk, CorruptChunk, Numbers, decode
from ..series.column_reader import COLUMN_NAMES, PACKED, SEQUENCE, Block, Key, Stretch, assemble, of

_ITS_CHUNKS: Final = and_(
    chunks.c.run_id == segments.c.run_id,
    chunks.c.process_id == segments.c.process_id,
    chunks.c.first_sequence == segments.c.first_sequence,
)


def stored_numbers(connection: Connection, key: Key, since: int) -> Iterator[tuple[int, int]]:
    """First and last sequence numbers of what came after revision ``since`` of the run, and perhaps of more.

    Where the numbers of a segment are damaged, all that it spans count as stored.
    """
    mine = of(batches, key), of(segments, key)
    for _, first, last in _stored(connection, key.run_id, *mine, since):
        yield first, last


def stored_numbers_of_run(connection: Connection, run_id: str) -> Iterator[tuple[int, int, int]]:
    """Process id, and as `stored_numbers`, of all its processes: of ten thousand, a question each takes a minute."""
    return _stored(connection, run_id, batches.c.run_id == run_id, segments.c.run_id == run_id, -1)


def _stored(
    connection: Connection,
    run_id: str,
    of_batches: ColumnElement[bool],
    of_segments: ColumnElement[bool],
    since: int,
) -> Iterator[tuple[int, int, int]]:
    b, s = batches.c, segments.c
    waiting = select(b.process_id, b.first_sequence, b.count).where(of_batches, b.revision > since)
    for number, first, count in connection.execute(waiting).all():
        yield number, first, first + count - 1
    # What a thinned one has no more was here, and is not taken again.
    has_gaps = and_(s.thinned.is_(False), s.last_sequence - s.first_sequence + 1 != s.count)
    its_numbers = and_(_ITS_CHUNKS, chunks.c.series_id == SEQUENCE, has_gaps)
    sealed = (
        select(s.process_id, s.first_sequence, s.last_sequence, s.count, has_gaps, *PACKED)
        .select_from(segments.outerjoin(chunks, its_numbers))
        .where(of_segments, s.revision > since)
    )
    for process_id, first, last, count, holed, *chunk in connection.execute(sealed).all():
        numbers = _numbers(Chunk(*chunk), count) if holed else None
        if numbers is not None:
            yield from ((process_id, number, number) for number in numbers)
            continue
        if holed:
            what = corruption.Damaged(run_id, process_id, COLUMN_NAMES[SEQUENCE], first, last)
            corruption.found(connection.engine, what)
        yield process_id, first, last


def _numbers(chunk: Chunk, count: int) -> list[int] | None:
    """The sequence numbers of a segment; None where they cannot be read."""
    try:
        column = decode(chunk) if chunk.blob is not None else None
    except CorruptChunk:
        return None
    if not isinstance(column, Numbers) or len(column) != count:
        return None
    found: list[int] = column.values.tolist()
    return found


def heads(connection: Connection, key: Key) -> list[Stretch]:
    """All that is stored of a process, without bodies. What is sealed in this moment may be named twice."""
    b, s = batches.c, segments.c
    waiting = select(b.first_sequence, b.count).where(of(batches, key))
    found = [Stretch(f, f + n - 1, n, sealed=False) for f, n in connection.execute(waiting).all()]
    sealed = select(s.first_sequence, s.last_sequence, s.count).where(of(segments, key))
    found += [Stretch(*row, sealed=True) for row in connection.execute(sealed).all()]
    return sorted(found, key=lambda stretch: stretch.first)


def read_between(
    connection: Connection,
    key: Key,
    wanted: Collection[int],
    names: Mapping[int, str],
    low: int,
    high: int,
) -> Block:
    """Columns as `columns.read` gives them, of all that overlaps the sequence numbers from ``low`` to ``high``."""
    b, s, c = batches.c, segments.c, chunks.c
    columns = {SEQUENCE, *wanted}
    newest = b.first_sequence + b.count - 1
    waiting = select(b.first_sequence, b.count, b.body).where(
        of(batches, key), b.first_sequence <= high, newest >= low
    )
    among = [
        Stretch(first, first + count - 1, count, sealed=False, body=body)
        for first, count, body in connection.execute(waiting).all()
    ]
    sealed = (
        select(s.first_sequence, s.last_sequence, s.count, c.series_id, *PACKED)
        .select_from(segments.outerjoin(chunks, and_(_ITS_CHUNKS, c.series_id.in_(columns))))
        .where(of(segments, key), s.first_sequence <= high, s.last_sequence >= low)
    )
    found: dict[int, Stretch] = {}
    stored: dict[tuple[int, int], Chunk] = {}
    rows: Any = connection.execute(sealed).all()
    for first, last, count, number, *chunk in rows:
        found[first] = Stretch(first, last, count, sealed=True)
        if number is not None:
            stored[number, first] = Chunk(*chunk)
    among = sorted([*among, *found.values()], key=lambda stretch: stretch.first)
    block = assemble(connection, key, wanted, names, among, stored)
    # Of a batch that was sealed between the two questions, each snapshot is there twice.
    _, once = np.unique(block.numbers(SEQUENCE).values, return_index=True)
    return block if len(once) == len(block) else block.take(once)

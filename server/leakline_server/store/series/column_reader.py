"""Reading the columns of one process back: sealed chunks first, then the batches that are not sealed yet.

Whether a snapshot is sealed makes no difference to what is read. A column is asked for by number: a series id, or
one of the numbers below zero for what every snapshot has. What is damaged is left out (corruption.py) and named next to
it.

Within a transaction that writes on Postgres, each statement has a view of its own, and between two of them the same
snapshots may be sealed or compacted by another server. So batches are read first, since sealing moves them to where
is read after it, and segments together with their chunks in one statement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    or_,
    select,
)

from ..columns import (
    COLUMN_NAMES,
    GENERATION,
    KIND,
    LABEL,
    MONOTONIC,
    PHASE,
    SEQUENCE,
    TEXT_COLUMNS,
    TIME,
    Array,
    Column,
    CorruptChunk,
    Numbers,
    Texts,
    absent,
    concatenate_numbers,
    concatenate_texts,
    numbers,
    only_used,
    take,
    texts,
)
from ..ingest.incoming_batch import Body, unpack
from ..maintenance import corruption
from ..schema import Key, batches, chunks, mine, of, segments, series
from .chunk_codec import Chunk, decode

# What a `Chunk` is made of, in its order.
PACKED: Final = tuple(
    chunks.c[name] for name in ("count", "present", "first", "last", "min", "max", "width", "blob")
)
# Up to so many stretches are asked for one by one: those between them may be many.
MAX_NAMED_STRETCHES: Final = 32


@dataclass(frozen=True, slots=True)
class Stretch:
    """A batch or segment: ``count`` snapshots from ``first`` to ``last``; gaps are possible in a segment.

    ``level``: of a segment, as in the table.
    """

    first: int
    last: int
    count: int
    sealed: bool
    body: bytes = b""
    level: int = 0

    @property
    def whole(self) -> bool:
        """Without gaps: which sequence numbers it has needs no reading."""
        return self.last - self.first + 1 == self.count


@dataclass(frozen=True, slots=True)
class Block:
    """Columns of one process, in sequence order. ``damaged``: what is missing because it could not be read."""

    columns: Mapping[int, Column]
    damaged: Sequence[corruption.Damaged] = field(default=(), compare=False)

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
        columns = {number: take(column, rows) for number, column in self.columns.items()}
        return Block(columns, self.damaged)


def series_ids(connection: Connection, run_id: str) -> dict[str, int]:
    rows = connection.execute(_SERIES, {"run_id": run_id})
    return {row.name: row.id for row in rows}


def stretches(connection: Connection, key: Key) -> list[Stretch]:
    """All that is stored of a process, in order of first sequence number; bodies of batches included."""
    sealed = connection.execute(_SEALED, key._asdict())
    found = [Stretch(first, last, n, True, level=level) for first, last, n, level in sealed]
    found += waiting(connection, key)
    return sorted(found, key=lambda stretch: stretch.first)


def waiting(connection: Connection, key: Key) -> list[Stretch]:
    """The batches that are not sealed."""
    rows = connection.execute(_WAITING, key._asdict())
    return [Stretch(f, f + n - 1, n, sealed=False, body=body) for f, n, body in rows]


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
    key: Key,
    wanted: Collection[int],
    names: Mapping[int, str],
    among: Sequence[Stretch],
    only: Array | None = None,
    kind: str | None = None,
) -> Block:
    """The wanted columns (SEQUENCE always) of the given stretches. ``names``: series id -> series name.

    ``only``: the snapshots with these ascending sequence numbers; ``kind``: those of this kind. Both cost less than to
    take them from all.
    """
    if kind is not None:
        wanted = (*wanted, KIND)
    if only is not None:
        low = np.searchsorted(only, [stretch.first for stretch in among])
        high = np.searchsorted(only, [stretch.last for stretch in among], side="right")
        among = [stretch for stretch, some in zip(among, high > low, strict=True) if some]
    stored = _chunks(connection, key, {SEQUENCE, *wanted}, among)
    return _assemble(connection, key, wanted, names, among, stored, only, kind)


def _assemble(
    connection: Connection,
    key: Key,
    wanted: Collection[int],
    names: Mapping[int, str],
    among: Sequence[Stretch],
    stored: Mapping[tuple[int, int], Chunk],
    only: Array | None = None,
    kind: str | None = None,
) -> Block:
    """`read`, of chunks that were read already: (number of the column, first sequence number) -> chunk."""
    numbers_wanted = tuple(dict.fromkeys((SEQUENCE, *wanted)))
    numbered = {name: number for number, name in names.items()}
    parts: dict[int, list[Column]] = {number: [] for number in numbers_wanted}
    damaged: list[corruption.Damaged] = []
    for stretch in among:
        try:
            if stretch.sealed:
                columns, lost = _of_segment(stored, stretch, numbers_wanted)
            else:
                columns, lost = _of_batch(stretch, numbers_wanted, numbered), ()
        except _Unreadable as error:
            columns, lost = {}, (error.number,)
        named = {**COLUMN_NAMES, **names, _ALL: corruption.BATCH}
        damaged += [
            corruption.Damaged(*key, named.get(n, str(n)), stretch.first, stretch.last)
            for n in lost
        ]
        if only is not None and columns:
            columns = _only(columns, only)
        kinds = columns.get(KIND)
        if kind is not None and isinstance(kinds, Texts):
            rows = kinds.equal(kind)
            if not rows.all():
                columns = {number: take(column, rows) for number, column in columns.items()}
        for number, column in columns.items():
            parts[number].append(column)
    for what in damaged:
        corruption.found(connection.engine, what)
    # Of a very long process the parts of all columns together are as large as what they become.
    joined = {number: _concatenate(number, parts.pop(number)) for number in numbers_wanted}
    return in_order(Block(joined, damaged))


def _only(columns: Mapping[int, Column], only: Array) -> dict[int, Column]:
    """The rows with these sequence numbers, texts without the names of the others."""
    sequence = columns[SEQUENCE]
    assert isinstance(sequence, Numbers)
    # Both are ascending, and few of them lie in one stretch.
    low, high = np.searchsorted(only, (sequence.values[0], sequence.values[-1] + 1))
    rows = np.searchsorted(sequence.values, only[low:high])
    rows = rows[sequence.values[rows] == only[low:high]]
    taken = {number: take(column, rows) for number, column in columns.items()}
    return {n: only_used(c) if isinstance(c, Texts) else c for n, c in taken.items()}


class _Unreadable(Exception):
    """A column that a snapshot cannot be shown without."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


# In place of a column: none of them can be read.
_ALL: Final = -100
_NEEDED: Final = frozenset((SEQUENCE, TIME, MONOTONIC, GENERATION, PHASE, KIND))


def _of_segment(
    stored: Mapping[tuple[int, int], Chunk], stretch: Stretch, wanted: Sequence[int]
) -> tuple[dict[int, Column], Sequence[int]]:
    """The columns, and which of them are damaged and read as absent. Raises _Unreadable."""
    columns: dict[int, Column] = {}
    damaged = []
    for number in wanted:
        if number == SEQUENCE and stretch.whole:
            columns[number] = Numbers(np.arange(stretch.first, stretch.last + 1, dtype=np.int64))
            continue
        chunk = stored.get((number, stretch.first))
        try:
            column = _missing(number, stretch.count) if chunk is None else decode(chunk)
            if len(column) != stretch.count or (number == SEQUENCE and chunk is None):
                raise CorruptChunk("a chunk has other entries than its segment")
        except CorruptChunk as error:
            if number in _NEEDED:
                raise _Unreadable(number) from error
            damaged.append(number)
            column = _missing(number, stretch.count)
        columns[number] = column
    return columns, damaged


def _of_batch(
    stretch: Stretch, wanted: Sequence[int], numbered: Mapping[str, int]
) -> dict[int, Column]:
    """Raises _Unreadable."""
    try:
        body = unpack(stretch.body, lambda: numbered)
    except CorruptChunk as error:
        raise _Unreadable(_ALL) from error
    if len(body) != stretch.count:
        raise _Unreadable(_ALL)
    return {number: _from_body(body, stretch, number) for number in wanted}


def _from_body(body: Body, stretch: Stretch, number: int) -> Column:
    """One column of a batch that is not sealed."""
    if number == SEQUENCE:
        return Numbers(np.arange(stretch.first, stretch.first + stretch.count, dtype=np.int64))
    if number == TIME:
        return Numbers(body.time)
    if number == MONOTONIC:
        return Numbers(body.monotonic)
    if number == GENERATION:
        return numbers(body.generation)
    if number == PHASE:
        return texts(body.phase)
    if number == LABEL:
        return texts(body.label)
    if number == KIND:
        return texts(body.kind)
    return body.series(number) or absent(stretch.count)


def in_order(block: Block) -> Block:
    """Batches that came late lie behind their place; put them where they belong."""
    sequence = block.numbers(SEQUENCE).values
    if len(sequence) < 2 or bool((np.diff(sequence) > 0).all()):
        return block
    return block.take(np.argsort(sequence, kind="stable"))


def _chunks(
    connection: Connection, key: Key, wanted: Collection[int], among: Sequence[Stretch]
) -> dict[tuple[int, int], Chunk]:
    sealed = [stretch.first for stretch in among if stretch.sealed]
    if all(stretch.whole for stretch in among):
        wanted = [number for number in wanted if number != SEQUENCE]
    if not sealed or not wanted:
        return {}
    rows: Any = _CHUNKS(connection, key, wanted, sealed)
    return {(number, first): Chunk(*rest) for number, first, *rest in rows}


def chunk_row(
    key: Key, number: int, first_sequence: int, chunk: Chunk, pieces: bytes | None = None
) -> dict[str, Any]:
    """Return the row of a column in the segment that begins here; ``pieces``: of a compacted segment
    (summary_tree.py)."""
    return {
        "run_id": key.run_id, "process_id": key.process_id, "series_id": number, "first_sequence": first_sequence,
        "count": chunk.count, "present": chunk.present, "first": chunk.first, "last": chunk.last, "min": chunk.min,
        "max": chunk.max, "width": chunk.width, "blob": chunk.blob, "pieces": pieces,
    }  # fmt: skip


def chunk_size(row: Mapping[str, Any]) -> int:
    """Return the bytes that are packed in the row of a chunk."""
    return sum(len(row[name] or b"") for name in ("blob", "pieces"))


class ChunkRows:
    """Reads (number of the column, first sequence number, these fields) of chunks of a process.

    Made once for the same fields, because to make a statement takes longer than to run it.
    """

    def __init__(self, *fields: ColumnElement[Any], where: ColumnElement[bool] | None = None):
        c = chunks.c
        query = select(c.series_id, c.first_sequence, *fields).where(
            mine(chunks), c.series_id.in_(bindparam("numbers", expanding=True))
        )
        query = query if where is None else query.where(where)
        self._named = query.where(c.first_sequence.in_(bindparam("firsts", expanding=True)))
        self._between = query.where(c.first_sequence.between(bindparam("low"), bindparam("high")))

    def __call__(
        self, connection: Connection, key: Key, numbers: Collection[int], firsts: Sequence[int]
    ) -> Sequence[Row[Any]]:
        """Of the stretches that begin at ``firsts``, or of more than these that lie between near ones."""
        asked: dict[str, Any] = {**key._asdict(), "numbers": list(numbers)}
        if len(firsts) <= MAX_NAMED_STRETCHES:
            return connection.execute(self._named, asked | {"firsts": list(firsts)}).all()
        found = sorted(firsts)
        gaps = np.diff(found)
        # Where much more lies between two than between most: of what is there, nothing is asked for.
        wide = np.flatnonzero(gaps > 4 * np.median(gaps))
        cuts = np.sort(wide[np.argsort(gaps[wide])][1 - MAX_NAMED_STRETCHES :]) + 1
        ends = [0, *cuts.tolist(), len(found)]
        first = chunks.c.first_sequence
        parts = [first.between(found[a], found[b - 1]) for a, b in pairwise(ends)]
        # The whole span in any case, which is what an index is asked for.
        query = self._between if len(parts) == 1 else self._between.where(or_(*parts))
        return connection.execute(query, asked | {"low": found[0], "high": found[-1]}).all()


def _missing(number: int, count: int) -> Column:
    return texts([None] * count) if number in TEXT_COLUMNS else absent(count)


def _concatenate(number: int, parts: Sequence[Column]) -> Column:
    if number in TEXT_COLUMNS:
        return concatenate_texts([p for p in parts if isinstance(p, Texts)]) if parts else texts([])
    if not parts:
        return absent(0)
    return concatenate_numbers([p for p in parts if isinstance(p, Numbers)])


_SERIES: Final = select(series.c.name, series.c.id).where(series.c.run_id == bindparam("run_id"))
_SEALED: Final = select(
    segments.c.first_sequence, segments.c.last_sequence, segments.c.count, segments.c.level
).where(mine(segments))
_WAITING: Final = select(batches.c.first_sequence, batches.c.count, batches.c.body).where(
    mine(batches)
)
_CHUNKS: Final = ChunkRows(*PACKED)


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
    block = _assemble(connection, key, wanted, names, among, stored)
    # Of a batch that was sealed between the two questions, each snapshot is there twice.
    _, once = np.unique(block.numbers(SEQUENCE).values, return_index=True)
    return block if len(once) == len(block) else block.take(once)

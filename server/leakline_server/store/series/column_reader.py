"""Reading the columns of a process from sealed chunks and from batches that have not been sealed yet.

The result does not depend on whether a snapshot is sealed. A column is identified by a number: a series id, or one of
the negative numbers for the columns that every snapshot has. Damaged data is left out (corruption.py) and listed with
the result.

In a Postgres transaction that writes, each statement has its own view, and another server may seal or compact the same
snapshots between two statements. So `read_between` reads batches before segments, because sealing moves batches to
segments. It reads segments and their chunks in one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Table,
    and_,
    bindparam,
    literal_column,
    or_,
    select,
    union_all,
)

from leakline.snapshot import LARGEST_INTEGER

from ..columns import (
    COLUMN_NAMES,
    COLUMNS,
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

# The columns for the fields of a `Chunk`, in the same order.
PACKED: Final = tuple(
    chunks.c[name] for name in ("count", "present", "first", "last", "min", "max", "width", "blob")
)
# Up to this many segments are queried by their exact first sequence numbers, because many other segments may be
# between them.
MAX_NAMED_STRETCHES: Final = 32
# The level of a `Stretch` that represents a waiting batch.
WAITING: Final = -1


@dataclass(frozen=True, slots=True)
class Stretch:
    """A batch or segment: ``count`` snapshots from ``first`` to ``last``. Segments may have gaps.

    ``level`` is the segment's level in the table, or WAITING for a batch that has not been sealed.
    """

    first: int
    last: int
    count: int
    level: int

    @property
    def sealed(self) -> bool:
        return self.level != WAITING

    @property
    def whole(self) -> bool:
        """True if there are no gaps, so that the sequence numbers need not be read."""
        return self.last - self.first + 1 == self.count


@dataclass(frozen=True, slots=True)
class Block:
    """Columns of one process, ordered by sequence number. ``damaged`` lists the data that could not be read."""

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
        """Return the rows selected by a mask or by positions."""
        columns = {number: take(column, rows) for number, column in self.columns.items()}
        return Block(columns, self.damaged)


def series_ids(connection: Connection, run_id: str) -> dict[str, int]:
    rows = connection.execute(_SERIES, {"run_id": run_id})
    return {row.name: row.id for row in rows}


@dataclass(frozen=True, slots=True)
class Stored:
    """A selection of a process's stored snapshots. Use `blocks` to read many snapshots in bounded memory.

    Read a selection within the consistent view in which it was created (`reading` in engine.py), because sealing and
    compaction replace batches and segments.

    ``names``: the names of the series that may be read, by id. ``stretches``: ordered by first sequence number.
    """

    connection: Connection
    key: Key
    names: Mapping[int, str]
    stretches: Sequence[Stretch]
    # The bodies of batches by first sequence number; None if a body is damaged. They are kept because a history is read
    # a few series at a time, each time from all batches.
    unpacked: dict[int, Body | None] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return sum(stretch.count for stretch in self.stretches)

    def read(
        self, wanted: Collection[int], only: Array | None = None, kind: str | None = None
    ) -> Block:
        """Return the ``wanted`` columns and SEQUENCE.

        ``only``: select the snapshots with these ascending sequence numbers; ``kind``: select the snapshots of this
        kind. Both are cheaper than selecting from the result.
        """
        wanted = tuple(dict.fromkeys((SEQUENCE, *wanted, *(() if kind is None else (KIND,)))))
        among = self.stretches
        if only is not None:
            low = np.searchsorted(only, [stretch.first for stretch in among])
            high = np.searchsorted(only, [stretch.last for stretch in among], side="right")
            among = [stretch for stretch, some in zip(among, high > low, strict=True) if some]
        self._unpack(among)
        stored = _chunks(self.connection, self.key, wanted, among)
        return self._assemble(wanted, among, stored, only, kind)

    def blocks(
        self, wanted: Collection[int], at_once: int, kind: str | None = None
    ) -> Iterator[Block]:
        """Yield the ``wanted`` columns in ascending, non-empty blocks of about ``at_once`` snapshots."""
        for group in self.groups(at_once):
            block = group.read(wanted, kind=kind)
            if len(block):
                yield block

    def groups(self, at_once: int) -> Iterator[Stored]:
        """Yield ascending, non-overlapping selections of about ``at_once`` snapshots."""
        group: list[Stretch] = []
        count, reach = 0, -1
        for stretch in self.stretches:
            # Batches that arrived late fill gaps in preceding segments, and belong to the same group as these segments.
            if count >= at_once and stretch.first > reach:
                yield self.among(group)
                group, count = [], 0
            group.append(stretch)
            count, reach = count + stretch.count, max(reach, stretch.last)
        if group:
            yield self.among(group)

    def newest(self, rows: int, before: int | None = None) -> Stored:
        """Select the newest segments and batches that contain ``rows`` snapshots below sequence number ``before``."""
        chosen: list[Stretch] = []
        have = 0
        for stretch in sorted(self.stretches, key=lambda s: s.last, reverse=True):
            if before is not None and stretch.first >= before:
                continue
            if have >= rows and all(stretch.last < other.first for other in chosen):
                break
            chosen.append(stretch)
            room = stretch.count if before is None else before - stretch.first
            have += min(stretch.count, room)
        return self.among(chosen)

    def among(self, stretches: Iterable[Stretch]) -> Stored:
        """Return a selection of these segments and batches only."""
        chosen = sorted(stretches, key=lambda stretch: stretch.first)
        # Share no unpacked bodies, so that reading a long backlog in groups takes bounded memory.
        return replace(self, stretches=chosen, unpacked={})

    def series(self) -> set[int] | None:
        """Return the ids of the columns that have chunks in this selection.

        Return None if the selection includes batches, because a batch may have any series.
        """
        if not all(stretch.sealed for stretch in self.stretches):
            return None
        firsts, c = [stretch.first for stretch in self.stretches], chunks.c
        query = (
            select(c.series_id)
            .distinct()
            .where(
                of(chunks, self.key),
                c.first_sequence.in_(firsts),
                c.series_id.in_((*COLUMNS, *self.names)),
            )
        )
        return set(self.connection.scalars(query))

    def _unpack(self, among: Sequence[Stretch]) -> None:
        """Read and unpack the bodies of batches that have not been unpacked yet."""
        firsts = {stretch.first for stretch in among if not stretch.sealed} - self.unpacked.keys()
        if not firsts:
            return
        asked = self.key._asdict() | {"low": min(firsts), "high": max(firsts)}
        for first, packed in self.connection.execute(_BODIES, asked):
            if first in firsts:
                self.take_body(first, packed)

    def take_body(self, first: int, packed: bytes) -> None:
        """Unpack the body of the batch that begins at ``first``."""
        try:
            body = unpack(packed, lambda: {name: number for number, name in self.names.items()})
        except CorruptChunk:
            body = None
        self.unpacked[first] = body

    def _assemble(
        self,
        wanted: Collection[int],
        among: Sequence[Stretch],
        stored: Mapping[tuple[int, int], Chunk],
        only: Array | None = None,
        kind: str | None = None,
    ) -> Block:
        """Return the result of `read`. ``stored``: chunks by (column, first sequence number)."""
        parts: dict[int, list[Column]] = {number: [] for number in wanted}
        damaged: list[corruption.Damaged] = []
        named = {**COLUMN_NAMES, **self.names, _ALL: corruption.BATCH}
        for group in _together(among, self.unpacked):
            stretch = group[0]
            lost: Sequence[int] = ()
            try:
                if stretch.sealed:
                    columns, lost = _of_segment(stored, stretch, wanted)
                else:
                    columns = _of_batches(group, self.unpacked, wanted)
            except _Unreadable as error:
                columns, lost = {}, (error.number,)
            damaged += [
                corruption.Damaged(*self.key, named.get(n, str(n)), stretch.first, stretch.last)
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
            corruption.found(self.connection.engine, what)
        # Release the parts of each column once they are concatenated, because all parts together are as large as the
        # result.
        block = Block(
            {number: _concatenate(number, parts.pop(number)) for number in wanted}, damaged
        )
        sequence = block.numbers(SEQUENCE).values
        if (np.diff(sequence) > 0).all():
            return block
        # Batches that arrived late are out of order.
        return block.take(np.argsort(sequence, kind="stable"))


def read(
    connection: Connection,
    key: Key,
    names: Mapping[int, str],
    low: int = 0,
    high: int = LARGEST_INTEGER,
) -> Stored:
    """Select the segments and batches of a process that overlap the sequence numbers from ``low`` to ``high``."""
    asked = key._asdict() | {"low": low, "high": high}
    rows = connection.execute(_STRETCHES, asked).all()
    return Stored(connection, key, names, [Stretch(*row[1:]) for row in rows])


def read_newer(
    connection: Connection,
    run_id: str,
    since: int,
    wanted: Collection[int],
    names: Mapping[int, str],
    most: int,
) -> dict[int, Block] | None:
    """Return the data of a run that is newer than revision ``since``, as a block for each process number.

    The blocks have the ``wanted`` columns and SEQUENCE. Return None if there are more than ``most`` newer snapshots.
    Three statements read all processes; like `Stored`, they need one consistent view.
    """
    asked = {"run_id": run_id, "since": since}
    wanted = tuple(dict.fromkeys((SEQUENCE, *wanted)))
    found: dict[int, list[Stretch]] = {}
    for number, *row in connection.execute(_NEWER, asked):
        found.setdefault(number, []).append(Stretch(*row))
    stretches = [stretch for each in found.values() for stretch in each]
    if sum(stretch.count for stretch in stretches) > most:
        return None
    selected = {
        number: Stored(connection, Key(run_id, number), names, each)
        for number, each in found.items()
    }
    if not all(stretch.sealed for stretch in stretches):
        for number, first, packed in connection.execute(_NEWER_BODIES, asked):
            selected[number].take_body(first, packed)
    stored: dict[int, dict[tuple[int, int], Chunk]] = {number: {} for number in found}
    if any(stretch.sealed for stretch in stretches):
        rows = connection.execute(_NEWER_CHUNKS, asked | {"numbers": wanted})
        for number, column, first, *chunk in rows:
            if number is not None:
                stored[number][column, first] = Chunk(*chunk)
    return {
        number: each._assemble(wanted, each.stretches, stored[number])
        for number, each in selected.items()
    }


def _only(columns: Mapping[int, Column], only: Array) -> dict[int, Column]:
    """Return the rows with these sequence numbers. Text columns keep only used names."""
    sequence = columns[SEQUENCE]
    assert isinstance(sequence, Numbers)
    # Both arrays are ascending, and only a few of the requested numbers are in the range of these columns.
    low, high = np.searchsorted(only, (sequence.values[0], sequence.values[-1] + 1))
    rows = np.searchsorted(sequence.values, only[low:high])
    rows = rows[sequence.values[rows] == only[low:high]]
    taken = {number: take(column, rows) for number, column in columns.items()}
    return {n: only_used(c) if isinstance(c, Texts) else c for n, c in taken.items()}


class _Unreadable(Exception):
    """Raised when a column that every result needs cannot be read."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


# The column number in `_Unreadable` if no column can be read.
_ALL: Final = -100
_NEEDED: Final = frozenset((SEQUENCE, TIME, MONOTONIC, GENERATION, PHASE, KIND))


def _of_segment(
    stored: Mapping[tuple[int, int], Chunk], stretch: Stretch, wanted: Collection[int]
) -> tuple[dict[int, Column], Sequence[int]]:
    """Return the columns of a segment, and the ids of damaged columns, which are read as absent. Raises _Unreadable."""
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
                raise CorruptChunk(
                    "a stored chunk does not have one entry for each snapshot of its segment"
                )
        except CorruptChunk as error:
            if number in _NEEDED:
                raise _Unreadable(number) from error
            damaged.append(number)
            column = _missing(number, stretch.count)
        columns[number] = column
    return columns, damaged


def _together(
    among: Iterable[Stretch], bodies: Mapping[int, Body | None]
) -> Iterator[Sequence[Stretch]]:
    """Yield each segment alone, and consecutive readable batches with the same series together."""

    def kind(stretch: Stretch) -> Any:
        body = None if stretch.sealed else bodies[stretch.first]
        if body is None or len(body) != stretch.count:
            return stretch.first, stretch.level
        return body.integer_ids, body.float_ids

    for _, group in groupby(among, kind):
        yield list(group)


def _of_batches(
    group: Sequence[Stretch], bodies: Mapping[int, Body | None], wanted: Collection[int]
) -> dict[int, Column]:
    """Return the columns of batches with the same series. Raises _Unreadable."""
    found = [body for stretch in group if (body := bodies[stretch.first]) is not None]
    if len(found) < len(group) or len(found[0]) != group[0].count:
        raise _Unreadable(_ALL)
    body = Body.joined(found)
    return {number: _from_body(body, group, number) for number in wanted}


def _from_body(body: Body, group: Sequence[Stretch], number: int) -> Column:
    if number == SEQUENCE:
        ranges = [np.arange(each.first, each.first + each.count, dtype=np.int64) for each in group]
        return Numbers(np.concatenate(ranges))
    if number in (TIME, MONOTONIC):
        return Numbers(body.time if number == TIME else body.monotonic)
    if number == GENERATION:
        return numbers(body.generation)
    if number in TEXT_COLUMNS:
        kinds: list[str | None] = [*body.kind]
        return texts({PHASE: body.phase, LABEL: body.label, KIND: kinds}[number])
    return body.series(number) or absent(len(body))


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
    """Return the row of a chunk; ``pieces`` are the packed summaries if the segment is compacted (summaries.py)."""
    return {
        "run_id": key.run_id, "process_id": key.process_id, "series_id": number, "first_sequence": first_sequence,
        "count": chunk.count, "present": chunk.present, "first": chunk.first, "last": chunk.last, "min": chunk.min,
        "max": chunk.max, "width": chunk.width, "blob": chunk.blob, "pieces": pieces,
    }  # fmt: skip


def chunk_size(row: Mapping[str, Any]) -> int:
    """Return the packed size of a chunk row in bytes."""
    return sum(len(row[name] or b"") for name in ("blob", "pieces"))


class ChunkRows:
    """A query for (column number, first sequence number, *fields) of a process's chunks.

    Build it once, because building a statement takes longer than executing it.
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
        """Return the rows of the segments that begin at ``firsts``, and possibly of other segments between them."""
        asked: dict[str, Any] = {**key._asdict(), "numbers": list(numbers)}
        if len(firsts) <= MAX_NAMED_STRETCHES:
            return connection.execute(self._named, asked | {"firsts": list(firsts)}).all()
        found = sorted(firsts)
        gaps = np.diff(found)
        # Split the range at unusually wide gaps, so that chunks in the gaps are not read.
        wide = np.flatnonzero(gaps > 4 * np.median(gaps))
        cuts = np.sort(wide[np.argsort(gaps[wide])][1 - MAX_NAMED_STRETCHES :]) + 1
        ends = [0, *cuts.tolist(), len(found)]
        first = chunks.c.first_sequence
        parts = [first.between(found[a], found[b - 1]) for a, b in pairwise(ends)]
        # Always include a condition on the entire range, because the index can be used for that condition.
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


def _stretches(which: Callable[[Table, ColumnElement[int]], ColumnElement[bool]]) -> Any:
    """Return the statement for the segments and batches that satisfy ``which(table, last sequence number)``."""
    s, b = segments.c, batches.c
    newest = b.first_sequence + b.count - 1
    return union_all(
        select(s.process_id, s.first_sequence, s.last_sequence, s.count, s.level).where(
            which(segments, s.last_sequence)
        ),
        select(b.process_id, b.first_sequence, newest, b.count, literal_column(str(WAITING))).where(
            which(batches, newest)
        ),
    ).order_by("first_sequence")


_STRETCHES: Final = _stretches(
    lambda table, last: and_(
        mine(table), table.c.first_sequence <= bindparam("high"), last >= bindparam("low")
    )
)
_NEWER: Final = _stretches(
    lambda table, last: and_(
        table.c.run_id == bindparam("run_id"), table.c.revision > bindparam("since")
    )
)
_NEWER_BODIES: Final = select(batches.c.process_id, batches.c.first_sequence, batches.c.body).where(
    batches.c.run_id == bindparam("run_id"), batches.c.revision > bindparam("since")
)
_BODIES: Final = select(batches.c.first_sequence, batches.c.body).where(
    mine(batches), batches.c.first_sequence.between(bindparam("low"), bindparam("high"))
)
_CHUNKS: Final = ChunkRows(*PACKED)


_ITS_CHUNKS: Final = and_(
    chunks.c.run_id == segments.c.run_id,
    chunks.c.process_id == segments.c.process_id,
    chunks.c.first_sequence == segments.c.first_sequence,
)
# An outer join makes the database begin with the segments, because an index finds newer segments.
_NEWER_CHUNKS: Final = (
    select(chunks.c.process_id, chunks.c.series_id, chunks.c.first_sequence, *PACKED)
    .select_from(
        segments.outerjoin(
            chunks,
            and_(_ITS_CHUNKS, chunks.c.series_id.in_(bindparam("numbers", expanding=True))),
        )
    )
    .where(segments.c.run_id == bindparam("run_id"), segments.c.revision > bindparam("since"))
)


def stored_numbers(
    connection: Connection, run_id: str, process_id: int | None = None, since: int = -1
) -> Iterator[tuple[int, int, int]]:
    """Yield (process id, first number, last number) of stored sequence number ranges newer than revision ``since``.

    Without ``process_id``, one query covers all processes of the run, because ten thousand separate queries take a
    minute. If the sequence numbers of a segment are damaged, its entire range counts as stored.
    """
    b, s = batches.c, segments.c

    def which(table: Table) -> ColumnElement[bool]:
        newer = and_(table.c.run_id == run_id, table.c.revision > since)
        return newer if process_id is None else and_(newer, table.c.process_id == process_id)

    waiting = select(b.process_id, b.first_sequence, b.count).where(which(batches))
    for number, first, count in connection.execute(waiting).all():
        yield number, first, first + count - 1
    # Snapshots missing from a thinned segment were stored once and are not accepted again.
    has_gaps = and_(s.thinned.is_(False), s.last_sequence - s.first_sequence + 1 != s.count)
    its_numbers = and_(_ITS_CHUNKS, chunks.c.series_id == SEQUENCE, has_gaps)
    sealed = (
        select(s.process_id, s.first_sequence, s.last_sequence, s.count, has_gaps, *PACKED)
        .select_from(segments.outerjoin(chunks, its_numbers))
        .where(which(segments))
    )
    for number, first, last, count, holed, *chunk in connection.execute(sealed).all():
        numbers = _numbers(Chunk(*chunk), count) if holed else None
        if numbers is not None:
            yield from ((number, each, each) for each in numbers)
            continue
        if holed:
            what = corruption.Damaged(run_id, number, COLUMN_NAMES[SEQUENCE], first, last)
            corruption.found(connection.engine, what)
        yield number, first, last


def _numbers(chunk: Chunk, count: int) -> list[int] | None:
    """Return the sequence numbers of a segment, or None if they cannot be read."""
    try:
        column = decode(chunk) if chunk.blob is not None else None
    except CorruptChunk:
        return None
    if not isinstance(column, Numbers) or len(column) != count:
        return None
    found: list[int] = column.values.tolist()
    return found


def read_between(
    connection: Connection,
    key: Key,
    wanted: Collection[int],
    names: Mapping[int, str],
    low: int,
    high: int,
) -> Block:
    """Return all segments and batches that overlap the sequence numbers from ``low`` to ``high`` as one block.

    The block has the ``wanted`` columns and SEQUENCE. Unlike `read`, this is also safe in a transaction that writes.
    """
    b, s, c = batches.c, segments.c, chunks.c
    wanted = tuple(dict.fromkeys((SEQUENCE, *wanted)))
    newest = b.first_sequence + b.count - 1
    waiting = select(b.first_sequence, newest, b.count, b.body).where(
        of(batches, key), b.first_sequence <= high, newest >= low
    )
    found = Stored(connection, key, names, ())
    among: dict[int, Stretch] = {}
    for first, last, count, packed in connection.execute(waiting).all():
        among[first] = Stretch(first, last, count, WAITING)
        found.take_body(first, packed)
    sealed = (
        select(s.first_sequence, s.last_sequence, s.count, s.level, c.series_id, *PACKED)
        .select_from(segments.outerjoin(chunks, and_(_ITS_CHUNKS, c.series_id.in_(wanted))))
        .where(of(segments, key), s.first_sequence <= high, s.last_sequence >= low)
    )
    stored: dict[tuple[int, int], Chunk] = {}
    for first, last, count, level, number, *chunk in connection.execute(sealed).all():
        # If the segment was sealed between the two queries, it replaces its own first batch here.
        among[first] = Stretch(first, last, count, level)
        if number is not None:
            stored[number, first] = Chunk(*chunk)
    ordered = sorted(among.values(), key=lambda stretch: stretch.first)
    block = found._assemble(wanted, ordered, stored)
    # Snapshots of other batches that were sealed between the two queries occur twice.
    _, once = np.unique(block.numbers(SEQUENCE).values, return_index=True)
    return block if len(once) == len(block) else block.take(once)

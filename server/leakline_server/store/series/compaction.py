"""Compaction: merging small segments into larger segments of up to one block (schema.py), with summaries.

`drop`, which thins out a segment, rewrites the segment in the same way.

Compaction does not change the results of reading, but makes reading faster and saves space. Segments that were
sealed in compacted form are skipped. One segment is made at a time: its data is read and packed outside the write
transaction, which is short and gives up if the data has since changed. So several servers may compact concurrently,
and a step whose work had to be discarded is repeated later. Late snapshots are merged into the segment around
them. Damaged segments are left unchanged, and their neighbours are compacted without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from sqlalchemy import (
    Connection,
    Engine,
    Select,
    and_,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from .. import details, schema
from ..columns import COLUMNS, SEQUENCE, Array, Texts, only_used, take
from ..engine import Many, reading, writing
from ..schema import ENDED, Key, chunks, of, processes, runs, segments
from .column_reader import Block, Stored, Stretch, chunk_row, chunk_size, series_ids
from .summaries import Cut, pack_column

# In a live run, about this many of the newest snapshots are not compacted: live pages query new data by segment, and
# would receive a large segment again.
NEWEST: Final = 2_560
# At most this many neighbouring segments are considered for a merge.
MAX_NEAR: Final = 64
# Late data may arrive for SETTLED_SECONDS after a run has ended. A run that has not been seen for QUIET_SECONDS is
# treated as ended.
SETTLED_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 3_600.0
SERIES_AT_ONCE: Final = 64

# Use a literal instead of a parameter, so that the query matches the partial index.
_SEALED: Final = segments.c.level == literal_column("0")
_INSERT_CHUNKS: Final = Many(insert(chunks))
# A row of the table ``segments``.
Segment = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Segments to replace, as they were read, and the rows that replace them."""

    taken: Sequence[Segment]
    # The column ids of the chunks to delete.
    series: Collection[int]
    chunks: Sequence[dict[str, Any]]
    segments: Sequence[dict[str, Any]]
    details: Sequence[details.Packed]


def due(engine: Engine, now: float) -> list[Key]:
    """Return the processes with enough snapshots to compact. In an ended run, any number is enough."""
    s = segments.c
    count = func.sum(s.count).label("count")
    sealed = (
        select(s.run_id, s.process_id, count).where(_SEALED).group_by(s.run_id, s.process_id)
    ).subquery()
    ended = and_(runs.c.state.in_(ENDED), runs.c.last_seen_at < now - SETTLED_SECONDS)
    over = or_(ended, runs.c.last_seen_at < now - QUIET_SECONDS)
    query = (
        select(sealed.c.run_id, sealed.c.process_id)
        .join(runs, runs.c.id == sealed.c.run_id)
        .where(or_(sealed.c.count >= schema.BLOCK + NEWEST, over))
    )
    with engine.connect() as connection:
        return [Key(run_id, process_id) for run_id, process_id in connection.execute(query)]


def compact(engine: Engine, key: Key, now: float) -> int:
    """Make one compacted segment. Return its number of snapshots, or 0 if there is nothing to compact now."""
    # The first sequence numbers of damaged segments.
    damaged: set[int] = set()
    while True:
        with reading(engine) as connection:
            taken, below = _choose(connection, key, now, damaged)
            if not taken:
                return 0
            plan = _prepare(connection, key, taken, below)
        if isinstance(plan, _Plan):
            break
        if not _leave(engine, key, [row for row in taken if row["first_sequence"] in plan]):
            return 0
        # Compact the other segments without the damaged segments.
        damaged |= plan
    try:
        with writing(engine, durable=False) as connection:
            if not _is_still(connection, key, taken):
                return 0
            _replace(connection, key, plan)
            details.replace(connection, key, plan.details)
    except details.Changed:
        return 0
    return int(plan.segments[0]["count"])


def _choose(
    connection: Connection, key: Key, now: float, damaged: Collection[int]
) -> tuple[Sequence[Segment], int | None]:
    """Return (segments to merge, limit).

    The segments include the first uncompacted segment. Only snapshots with sequence numbers below the
    limit may be compacted now; None means no limit.
    """
    s = segments.c
    rows = _read(connection, select(segments).where(of(segments, key), _SEALED))
    sealed = [row for row in rows if row["first_sequence"] not in damaged]
    if not sealed:
        return (), None
    first, below = sealed[0], None
    edge = first["first_sequence"] // schema.BLOCK * schema.BLOCK
    near = select(segments).where(of(segments, key), s.last_sequence >= edge - schema.BLOCK)
    if not _is_over(connection, key, now):
        newest = max(row["last_sequence"] for row in sealed)
        below = (newest + 1 - NEWEST) // schema.BLOCK * schema.BLOCK
        if below < edge + schema.BLOCK:
            return (), None
        near = near.where(s.first_sequence < below)
    rows = _read(connection, near.limit(MAX_NEAR))
    taken = _neighbours(first, [row for row in rows if row["thinned"] == first["thinned"]], damaged)
    return taken, None if first["thinned"] else below


def _read(connection: Connection, query: Select[Any]) -> list[Segment]:
    ordered = query.order_by(segments.c.first_sequence)
    return [dict(row) for row in connection.execute(ordered).mappings()]


def _neighbours(
    first: Segment, near: Sequence[Segment], damaged: Collection[int]
) -> Sequence[Segment]:
    """Return the segments to merge with ``first``, in order; a damaged segment ends the search."""
    if first["thinned"]:
        return _adjoining(first, near, damaged)
    taken, count, last = [first], first["count"], first["last_sequence"]
    for row in near:
        if row["first_sequence"] > first["first_sequence"]:
            within = row["first_sequence"] <= last
            joins = (
                count < schema.BLOCK if row["level"] == 0 else count + row["count"] <= schema.BLOCK
            )
            if not (within or joins) or row["first_sequence"] in damaged:
                break
            taken.append(row)
            count, last = count + row["count"], max(last, row["last_sequence"])
    for row in reversed(near):
        if row["first_sequence"] < first["first_sequence"]:
            # Late snapshots are within the range of an earlier segment. A small segment just before may also be merged.
            within = row["last_sequence"] >= first["first_sequence"] // schema.BLOCK * schema.BLOCK
            if (
                not (within or count + row["count"] <= schema.BLOCK)
                or row["first_sequence"] in damaged
            ):
                break
            taken.insert(0, row)
            count += row["count"]
    return taken


def _adjoining(
    first: Segment, near: Sequence[Segment], damaged: Collection[int]
) -> Sequence[Segment]:
    """Return the thinned segment ``first`` and the segments to merge with it.

    A thinned segment counts as covering every sequence number in its range, so there must be no gaps between merged
    segments.
    """
    taken = [first]

    def joins(row: Segment, before: int, after: int) -> bool:
        room = schema.BLOCK - sum(one["count"] for one in taken)
        return before + 1 == after and row["count"] <= room and row["first_sequence"] not in damaged

    for row in near:
        if joins(row, taken[-1]["last_sequence"], row["first_sequence"]):
            taken.append(row)
    for row in reversed(near):
        if joins(row, row["last_sequence"], taken[0]["first_sequence"]):
            taken.insert(0, row)
    return taken


def _is_over(connection: Connection, key: Key, now: float) -> bool:
    r = runs.c
    row = connection.execute(select(r.state, r.last_seen_at).where(r.id == key.run_id)).first()
    if row is None:
        return False
    quiet = QUIET_SECONDS if row.state not in ENDED else SETTLED_SECONDS
    return bool(row.last_seen_at < now - quiet)


def _stored(connection: Connection, key: Key, taken: Sequence[Segment]) -> Stored:
    names = {number: name for name, number in series_ids(connection, key.run_id).items()}
    fields = "first_sequence", "last_sequence", "count", "level"
    return Stored(connection, key, names, [Stretch(*(row[f] for f in fields)) for row in taken])


def _prepare(
    connection: Connection, key: Key, taken: Sequence[Segment], below: int | None
) -> _Plan | set[int]:
    """Return the plan that replaces these segments, or the first sequence numbers of damaged segments."""
    stored = _stored(connection, key, taken)
    there = sorted((stored.series() or set()) & set(stored.names))
    block = stored.read(COLUMNS)
    if block.damaged:
        return {lost.first_sequence for lost in block.damaged}
    sequence = block.numbers(SEQUENCE).values
    # Do not split thinned segments: numbers missing at the cut would not count as stored in either part.
    cut = len(sequence) if taken[0]["thinned"] else _cut(sequence, below)
    low, high = (int(sequence[0]), int(sequence[cut - 1])) if cut else (0, -1)
    packed = details.plan(connection, key, low, high)
    rows, ends = np.arange(len(sequence)), [0, cut, len(sequence)]
    parts = [_Part(key, rows[a:b], sequence[a:b], a == 0) for a, b in pairwise(ends) if a < b]
    for part in parts:
        part.add(block, COLUMNS)
    # Process series in groups, because a run may have thousands of series, each with an array of values.
    for at in range(0, len(there), SERIES_AT_ONCE):
        some = there[at : at + SERIES_AT_ONCE]
        block = stored.read(some)
        if block.damaged:
            return {lost.first_sequence for lost in block.damaged}
        for part in parts:
            part.add(block, some)
    return _plan(taken, (*COLUMNS, *there), parts, packed, thinned=taken[0]["thinned"])


class _Part:
    """A new segment. ``rows`` are positions in the data that was read; ``sequence`` contains their sequence numbers."""

    def __init__(self, key: Key, rows: Array, sequence: Array, compacted: bool) -> None:
        self.key, self.count, self.rows = key, len(rows), list[dict[str, Any]]()
        self.first, self.last = int(sequence[0]), int(sequence[-1])
        self._taken, self._cut = rows, Cut(sequence) if compacted else None

    def add(self, block: Block, columns: Collection[int]) -> None:
        """Encode these columns into chunk rows; a series without values in these snapshots gets no row."""
        for number in columns:
            column = take(block.columns[number], self._taken)
            if isinstance(column, Texts):
                column = only_used(column)
            chunk, pieces = pack_column(column, self._cut)
            if chunk.present or number in COLUMNS:
                self.rows.append(chunk_row(self.key, number, self.first, chunk, pieces))
            # Yield the GIL to threads that serve requests.
            time.sleep(0)

    def segment(self, taken: Sequence[Segment], *, thinned: bool) -> dict[str, Any]:
        # Readers query new data by segment revision, so the part with older snapshots must not get the revision of the
        # newer snapshots.
        revision = max(row["revision"] for row in taken if row["first_sequence"] <= self.last)
        return {
            **self.key._asdict(), "first_sequence": self.first, "last_sequence": self.last, "count": self.count,
            "revision": revision, "level": int(self._cut is not None), "thinned": thinned,
            "bytes": sum(map(chunk_size, self.rows)),
        }  # fmt: skip


def _plan(
    taken: Sequence[Segment],
    series: Collection[int],
    parts: Sequence[_Part],
    packed: Sequence[details.Packed] = (),
    *,
    thinned: bool,
) -> _Plan:
    rows = [row for part in parts for row in part.rows]
    return _Plan(
        taken, series, rows, [part.segment(taken, thinned=thinned) for part in parts], packed
    )


def _cut(sequence: Array, below: int | None) -> int:
    """Return the number of snapshots for one segment.

    The segment takes all snapshots below ``below`` or, if these are too many, all snapshots up to a block end.
    """
    many = len(sequence) if below is None else int(np.searchsorted(sequence, below))
    if many <= schema.BLOCK:
        return many
    # The positions of block ends. At least one is small enough, because no block holds more than BLOCK snapshots.
    ends = np.flatnonzero(np.diff(sequence[: many + 1] // schema.BLOCK)) + 1
    return int(ends[ends <= schema.BLOCK][-1])


def _is_still(connection: Connection, key: Key, taken: Sequence[Segment]) -> bool:
    """Lock these segments until the end of the transaction; return True if they are unchanged."""
    p = processes.c
    there = select(p.id).where(p.run_id == key.run_id, p.id == key.process_id)
    if connection.execute(there.with_for_update(read=True, key_share=True)).first() is None:
        # The run is being removed.
        return False
    return _is_same(connection, key, taken)


def _is_same(connection: Connection, key: Key, taken: Sequence[Segment]) -> bool:
    now = _read(connection, select(segments).where(_these(key, taken)).with_for_update())
    return now == sorted(taken, key=lambda row: int(row["first_sequence"]))


def _these(key: Key, taken: Sequence[Segment]) -> Any:
    firsts = [row["first_sequence"] for row in taken]
    return and_(of(segments, key), segments.c.first_sequence.in_(firsts))


def _replace(connection: Connection, key: Key, plan: _Plan) -> None:
    gone = and_(
        of(chunks, key),
        chunks.c.series_id.in_(plan.series),
        chunks.c.first_sequence.in_([row["first_sequence"] for row in plan.taken]),
    )
    connection.execute(delete(chunks).where(gone))
    connection.execute(delete(segments).where(_these(key, plan.taken)))
    _INSERT_CHUNKS(connection, plan.chunks)
    connection.execute(insert(segments), plan.segments)


def _leave(engine: Engine, key: Key, damaged: Sequence[Segment]) -> bool:
    """Mark damaged segments as compacted, because they cannot be rewritten. Return False if they have changed."""
    with writing(engine, durable=False) as connection:
        if not _is_still(connection, key, damaged):
            return False
        left = and_(_these(key, damaged), segments.c.level == 0)
        connection.execute(update(segments).where(left).values(level=1))
        return True


# The maximum number of parts into which a segment with gaps is split. Each part has its own rows, which cost more than
# thinning would save if the parts were shorter.
MAX_PARTS: Final = 16


class Dropped(NamedTuple):
    """The number of dropped snapshots, and the number of bytes saved."""

    snapshots: int = 0
    bytes: int = 0


def undropped(engine: Engine, run_id: str) -> list[tuple[Key, int]]:
    """Return (process key, first sequence number) of the run's segments that have not been thinned yet."""
    s = segments.c
    query = select(s.process_id, s.first_sequence).where(s.run_id == run_id, s.thinned.is_(False))
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(s.process_id, s.first_sequence))
        return [(Key(run_id, number), first) for number, first in rows]


def drop(engine: Engine, key: Key, first_sequence: int, keep: Callable[[Block], Array]) -> Dropped:
    """Drop the snapshots of a segment that are not in the mask returned by ``keep``, in one short transaction.

    The slow work is done before the transaction, and is discarded if the segment has changed since then or the run
    is running again. A damaged segment is left unchanged. All numbers from the first to the last number of a thinned
    segment count as stored. So a segment with gaps, where snapshots never arrived, is split into segments without gaps.
    A segment with too many gaps is left unchanged.
    """
    this = and_(of(segments, key), segments.c.first_sequence == first_sequence)
    with reading(engine) as connection:
        taken = _read(connection, select(segments).where(this, segments.c.thinned.is_(False)))
        if not taken:
            return Dropped()
        stored = _stored(connection, key, taken)
        there = stored.series() or set()
        block = stored.read(sorted(there | set(COLUMNS)))
    sequence, rows = block.numbers(SEQUENCE).values, np.arange(len(block))
    edges = [0, *(np.flatnonzero(np.diff(sequence) != 1) + 1).tolist(), len(block)]
    if block.damaged or len(block) != len(stored) or len(edges) > MAX_PARTS + 1:
        return Dropped()
    parts = []
    for a, b in pairwise(edges):
        kept = rows[a:b][
            keep(Block({n: take(block.columns[n], rows[a:b]) for n in {*COLUMNS, *there}}))
        ]
        parts.append(_Part(key, kept, sequence[a:b], compacted=False))
        parts[-1].add(block, sorted(there))
    dropped = len(block) - sum(part.count for part in parts)
    if not dropped and len(parts) > 1:
        return Dropped()
    plan = _plan(taken, there, parts, thinned=True)
    over = select(runs.c.id).where(runs.c.id == key.run_id, runs.c.state != "running")
    with writing(engine, durable=False) as connection:
        if not _is_same(connection, key, taken) or connection.execute(over).first() is None:
            return Dropped()
        if not dropped:
            connection.execute(update(segments).where(this).values(thinned=True))
            return Dropped()
        _replace(connection, key, plan)
    return Dropped(dropped, taken[0]["bytes"] - sum(row["bytes"] for row in plan.segments))

"""Sealing: the waiting batches of a process become one chunk a series, put in place in one short transaction.

Happens after the acknowledgement and changes nothing that anyone can read. Where snapshots keep coming, a segment is
the rest of a block (block_layout.py), because each costs a row a series; or less, at least MIN_SNAPSHOTS, where they
come in so many batches that reading those would take long. What is most of a block is made as compaction would make it,
which then has nothing to do. A process that paused is sealed when it has enough to be worth rows of its own, and a
small run stays in the inbox for good.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Connection,
    Engine,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
)

from ..details import detail_packing
from ..engine import Many, writing
from ..ingest.batch_frame import Body, unpack
from ..maintenance import corruption
from ..runs.runs import STATES
from ..schema import batches, chunks, runs, segments
from . import block_layout
from .batch_assembly import chunks_of
from .chunk_codec import CorruptChunk
from .column_reader import Key, chunk_row, chunk_size, mine, reading, series_ids

MIN_SNAPSHOTS: Final = 512
ENOUGH_BATCHES: Final = 256
MIN_SNAPSHOTS_IDLE: Final = 64
IDLE_SECONDS: Final = 60.0
# No batch is empty, so many are enough to make a segment.
MOST_HEADS: Final = max(MIN_SNAPSHOTS, ENOUGH_BATCHES)

log = logging.getLogger("leakline")


def enough(snapshots: int, batches: int) -> bool:
    """Whether so many, in so many batches, make a segment while more keep coming."""
    many = snapshots >= MIN_SNAPSHOTS and batches >= ENOUGH_BATCHES
    # So many reach the end of a block, wherever they begin.
    return many or snapshots >= block_layout.BLOCK


def due(engine: Engine, now: float, since: float | None = None) -> list[Key]:
    """What should be sealed, by the tables alone: after a restart, and for idle runs.

    ``since``: only of runs that were heard of later, which are found without a look at all that ever waited.
    """
    total = func.sum(batches.c.count)
    many = and_(total >= MIN_SNAPSHOTS, func.count() >= ENOUGH_BATCHES)
    idle = func.max(batches.c.received_at) < now - IDLE_SECONDS
    query = (
        select(batches.c.run_id, batches.c.process_id)
        .group_by(batches.c.run_id, batches.c.process_id)
        .having(or_(total >= block_layout.BLOCK, many, idle & (total >= MIN_SNAPSHOTS_IDLE)))
    )
    if since is not None:
        # All states there are: by the index of states and times.
        heard = select(runs.c.id).where(runs.c.state.in_(STATES), runs.c.last_seen_at > since)
        query = query.where(batches.c.run_id.in_(heard))
    with engine.connect() as connection:
        found = [Key(run_id, process_id) for run_id, process_id in connection.execute(query).all()]
        return [key for key in found if _is_worth(connection, key, now)]


def _is_worth(connection: Connection, key: Key, now: float) -> bool:
    """Not what is damaged: it stays, however much of it there is."""
    damaged = corruption.batches_of(connection.engine, *key)
    return not damaged or bool(_choose(_heads(connection, key, damaged), now))


@dataclass(frozen=True, slots=True)
class _Plan:
    """The batches to replace, without bodies, and what replaces them. ``more``: of what waits, another segment can be
    made.
    """

    taken: Sequence[Row[Any]]
    chunks: Sequence[dict[str, Any]]
    segment: dict[str, Any]
    details: Sequence[detail_packing.Packed]
    more: bool


class Sealed(NamedTuple):
    """How many snapshots were; and whether ``more`` of what waited with them is to be."""

    snapshots: int
    more: bool = False


def seal_one(engine: Engine, key: Key, now: float) -> Sealed:
    """Seal one segment of this process; none when too few wait that can be read.

    Read and packed beside everything else, then put in place in one short transaction, which gives up when another
    server was first. A batch that is damaged is told, and stays where it is. Not durable by itself on SQLite: if the
    power goes before the next commit, the batches are still there and are sealed again.
    """
    with reading(engine) as connection:
        plan = _prepare(connection, key, now)
    if plan is None:
        return Sealed(0)
    try:
        with writing(engine, durable=False) as connection:
            if not _are_still(connection, key, plan.taken):
                return Sealed(0)
            _replace(connection, key, plan)
    except detail_packing.Changed:
        return Sealed(0)
    return Sealed(plan.segment["count"], plan.more)


def _prepare(connection: Connection, key: Key, now: float) -> _Plan | None:
    numbered = cache(lambda: series_ids(connection, key.run_id))
    damaged = corruption.batches_of(connection.engine, *key)
    while chosen := _choose(heads := _heads(connection, key, damaged), now):
        found = [
            (row, _body(connection, key, row, numbered)) for row in _bodies(connection, key, chosen)
        ]
        readable = [(row, body) for row, body in found if body is not None]
        if readable:
            more = len(heads) >= MOST_HEADS or bool(_choose(heads[len(chosen) :], now))
            return _plan(connection, key, readable, more)
        damaged |= {row.first_sequence for row in chosen}
    return None


def _heads(connection: Connection, key: Key, damaged: Collection[int]) -> list[Row[Any]]:
    """The first batches that wait, without bodies and in order.

    ``damaged``: first sequence numbers of those that are left out.
    """
    rows = connection.execute(_HEADS, key._asdict() | {"most": MOST_HEADS + len(damaged)}).all()
    return [row for row in rows if row.first_sequence not in damaged]


def _choose(heads: Sequence[Row[Any]], now: float) -> list[Row[Any]]:
    """Of these the first ones that make a segment; empty when they do not."""
    chosen: list[Row[Any]] = []
    total = 0
    for row in heads:
        if chosen and row.first_sequence >= block_layout.edge(chosen[-1].first_sequence):
            # Where a block ends, however few it has: what came late would span all that lies between.
            return chosen
        chosen.append(row)
        total += row.count_
        if enough(total, len(chosen)):
            return chosen
    idle = all(row.received_at < now - IDLE_SECONDS for row in chosen)
    return chosen if idle and total >= MIN_SNAPSHOTS_IDLE else []


def _bodies(connection: Connection, key: Key, chosen: Sequence[Row[Any]]) -> list[Row[Any]]:
    return _among(connection.execute(_BODIES, _between(key, chosen)).all(), chosen)


def _are_still(connection: Connection, key: Key, taken: Sequence[Row[Any]]) -> bool:
    """Whether these batches are there, and nobody else's until the end of the transaction."""
    now = _among(connection.execute(_HOLD, _between(key, taken)).all(), taken)
    return [_identity(row) for row in now] == [_identity(row) for row in taken]


def _identity(row: Row[Any]) -> tuple[int, int, int]:
    return row.first_sequence, row.count_, row.revision


def _between(key: Key, rows: Sequence[Row[Any]]) -> dict[str, Any]:
    """All of them are in order."""
    return key._asdict() | {"low": rows[0].first_sequence, "high": rows[-1].first_sequence}


def _among(rows: Iterable[Any], wanted: Sequence[Row[Any]]) -> list[Row[Any]]:
    these = {row.first_sequence for row in wanted}
    return [row for row in rows if row.first_sequence in these]


def _body(
    connection: Connection, key: Key, row: Row[Any], numbered: Callable[[], Mapping[str, int]]
) -> Body | None:
    """None when it is damaged."""
    with contextlib.suppress(CorruptChunk):
        body = unpack(row.body, numbered)
        if len(body) == row.count_:
            return body
    first = row.first_sequence
    what = corruption.Damaged(*key, corruption.BATCH, first, first + row.count_ - 1)
    corruption.found(connection.engine, what)
    return None


def _plan(
    connection: Connection, key: Key, found: Sequence[tuple[Row[Any], Body]], more: bool
) -> _Plan:
    taken = [row for row, _ in found]
    firsts = [row.first_sequence for row in taken]
    count = sum(row.count_ for row in taken)
    first, last = firsts[0], firsts[-1] + taken[-1].count_ - 1
    compacted = _is_block(first, last, count, len(taken)) and not _is_within(
        connection, key, first, last
    )
    bodies = [body for _, body in found]
    rows = [
        chunk_row(key, number, first, chunk, pieces)
        for number, chunk, pieces in chunks_of(firsts, bodies, compacted=compacted)
    ]
    segment = {
        **key._asdict(), "first_sequence": first, "last_sequence": last, "count": count,
        "revision": max(row.revision for row in taken), "level": int(compacted), "bytes": sum(map(chunk_size, rows)),
    }  # fmt: skip
    details = detail_packing.plan(connection, key, first, last) if compacted else ()
    return _Plan(taken, rows, segment, details, more)


def _replace(connection: Connection, key: Key, plan: _Plan) -> None:
    """Raises packing.Changed."""
    _INSERT_CHUNKS(connection, plan.chunks)
    connection.execute(_INSERT_SEGMENT, plan.segment)
    gone = [{**key._asdict(), "b_first": row.first_sequence} for row in plan.taken]
    _DELETE_BATCHES(connection, gone)
    detail_packing.replace(connection, key, plan.details)


def _is_block(first: int, last: int, count: int, batches: int) -> bool:
    """Most of a block, to its end; or all there is of one so far, of a process that paused."""
    edge = block_layout.edge(first)
    if last + 1 == edge:
        return count >= block_layout.BLOCK // 2
    # A process may count from 1.
    return last < edge and first <= edge - block_layout.BLOCK + 1 and not enough(count, batches)


def _is_within(connection: Connection, key: Key, first: int, last: int) -> bool:
    """Whether some of what lies between is sealed already: then compaction has something to join."""
    return (
        connection.execute(_WITHIN, key._asdict() | {"low": first, "high": last}).first()
        is not None
    )


_HEAD: Final = select(batches.c.first_sequence, batches.c.count.label("count_"), batches.c.revision)
_HEADS: Final = (
    _HEAD.add_columns(batches.c.received_at)
    .where(mine(batches))
    .order_by(batches.c.first_sequence)
    .limit(bindparam("most"))
)
_THESE: Final = and_(
    mine(batches), batches.c.first_sequence.between(bindparam("low"), bindparam("high"))
)
_BODIES: Final = _HEAD.add_columns(batches.c.body).where(_THESE).order_by(batches.c.first_sequence)
# Two servers on one database would make the same segment; the second waits, and finds what the first has left.
_HOLD: Final = _HEAD.where(_THESE).order_by(batches.c.first_sequence).with_for_update()
_WITHIN: Final = (
    select(segments.c.first_sequence)
    .where(
        mine(segments),
        segments.c.first_sequence <= bindparam("high"),
        segments.c.last_sequence >= bindparam("low"),
    )
    .limit(1)
)
_INSERT_CHUNKS: Final = Many(insert(chunks))
_INSERT_SEGMENT: Final = insert(segments)
_DELETE_BATCHES: Final = Many(
    delete(batches).where(mine(batches), batches.c.first_sequence == bindparam("b_first"))
)

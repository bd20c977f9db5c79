"""Sealing: converting the waiting batches of a process into a segment with a chunk for each series.

Sealing happens after the batches were acknowledged and does not change the results of reading. While snapshots keep
arriving, a segment extends to the end of a block (schema.py), because each segment costs a row per series. A segment
ends earlier, with at least MIN_SNAPSHOTS, if reading so many small batches would be slow. A segment that fills most of
a block is written in compacted form, so that compaction has nothing left to do. The batches of a paused process are
sealed if they have enough snapshots for a segment; the batches of a small run are never sealed.

A process's batches are joined into a table of integers, a table of floats and the common columns. The tables are
filled batch by batch, all series of a batch together: filling them series by series would take a hundred thousand small
steps and more time than the rest of sealing.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
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

from .. import details, schema
from ..columns import (
    GENERATION,
    KIND,
    LABEL,
    MONOTONIC,
    PHASE,
    SEQUENCE,
    TIME,
    Array,
    Column,
    CorruptChunk,
    Numbers,
    texts,
)
from ..columns import numbers as column_of
from ..engine import Many, reading, writing
from ..ingest.incoming_batch import NOT_THERE, Body, unpack
from ..maintenance import corruption
from ..schema import STATES, Key, batches, chunks, mine, runs, segments
from .chunk_codec import Chunk, integer_chunk, integer_payload
from .column_reader import chunk_row, chunk_size, series_ids
from .summaries import Cut, checked, pack_column

# Series are processed in groups of this size, because a table of thousands of series would dominate memory use.
SERIES_AT_ONCE: Final = 128


def chunks_of(
    firsts: Sequence[int], bodies: Sequence[Body], *, compacted: bool = False
) -> Iterator[tuple[int, Chunk, bytes | None]]:
    """Yield (column, chunk, packed pieces) for every column of these batches.

    ``firsts``: the first sequence numbers of the batches. ``compacted``: encode the columns as compaction does, with
    pieces.
    """
    sequence = _sequence(firsts, bodies)
    cut = Cut(sequence) if compacted else None
    for number, column in ((SEQUENCE, Numbers(sequence)), *_common(bodies)):
        yield number, *pack_column(column, cut)
    ids, floats = _names(bodies)
    for at in range(0, len(ids), SERIES_AT_ONCE):
        yield from _of_series(_Table(bodies, ids[at : at + SERIES_AT_ONCE], floats), cut)


def _names(bodies: Sequence[Body]) -> tuple[Array, Array]:
    """Return the ascending ids of all series, and of the series with floats in any batch."""
    # Most batches have the same series, so duplicates are removed before parsing.
    floats = {body.float_ids for body in bodies}
    return _unique(floats | {body.integer_ids for body in bodies}), _unique(floats)


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
        # A compacted segment has no chunks for series without values.
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
    """The values of some series in consecutive batches.

    ``values`` has an integer row for each of ``ids``, in the same order, with NOT_THERE for absent entries. A second
    table has a row for each of these series that has floats, with NaN for absent entries.

    ``ids``: the ascending ids of the requested series; ``floats``: the ids of all series that have floats.
    """

    def __init__(self, bodies: Sequence[Body], ids: Array, floats: Array) -> None:
        self.ids = ids
        self._float_ids = np.intersect1d(ids, floats)
        parts = [(body.integer_ids, body.integers) for body in bodies]
        self.values = _joined(parts, ids, np.int64(NOT_THERE))
        parts = [(body.float_ids, body.floats) for body in bodies] if len(floats) else []
        self._floats = _joined(parts, self._float_ids, np.float64("nan"))

    def column(self, row: int) -> Numbers:
        values = self.values[row]
        present = values != NOT_THERE
        at = np.searchsorted(self._float_ids, self.ids[row])
        if at < len(self._float_ids) and self._float_ids[at] == self.ids[row]:
            floats = self._floats[at]
            there = ~np.isnan(floats)
            if there.any():
                # Each entry is in only one of the two tables. Adding up the tables instead would lose the sign of -0.0.
                values, present = np.where(present, values, floats), present | there
        if present.all():
            return Numbers(values)
        return Numbers(np.where(present, values, 0), present)


def _joined(parts: Sequence[tuple[bytes, Array]], ids: Array, nothing: Any) -> Array:
    """Concatenate the tables of batches along time, with a row for each of ``ids``; missing rows get ``nothing``.

    Each part is (packed series ids, values). Batches with the same series are joined in one step.
    """
    alike: dict[bytes, list[int]] = {}
    for i, (packed, _) in enumerate(parts):
        alike.setdefault(packed, []).append(i)
    counts = np.array([values.shape[1] for _, values in parts], np.int64)
    starts = np.cumsum(counts) - counts
    table: Array = np.full((len(ids), counts.sum()), nothing)
    for packed, those in alike.items():
        names = np.frombuffer(packed, "<u4")
        wanted = np.flatnonzero(np.isin(names, ids))
        rows = np.searchsorted(ids, names[wanted])
        some = len(wanted) < len(names)
        values = [parts[i][1][wanted] if some else parts[i][1] for i in those]
        if len(alike) == 1:
            table[rows] = np.concatenate(values, axis=1)
        else:
            columns = [np.arange(starts[i], starts[i] + counts[i]) for i in those]
            table[rows[:, None], np.concatenate(columns)] = np.concatenate(values, axis=1)
    return table


# Must equal the constant of the same name in `tables.c`.
INTERFACE: Final = 3


@cache
def native() -> Any | None:
    """Return the optional C module (`server/native`), which only makes sealing faster.

    Return None if it was not built for this interpreter or these sources, or if LEAKLINE_NATIVE is 0.
    """
    if os.environ.get("LEAKLINE_NATIVE", "1").strip() == "0":
        return None
    try:
        module = importlib.import_module("leakline_server._native")
    except ImportError:
        return None
    return module if getattr(module, "interface", None) == INTERFACE else None


# (first, last, min, max, width, payload, packed summaries of the pieces)
_Encoded = tuple[float, float, float, float, int, bytes, bytes]


def encode_rows(values: Array, cut: Cut | None) -> Iterator[tuple[int, Chunk, bytes | None]]:
    """Yield (row, chunk, packed pieces) for the int64 rows without a NOT_THERE entry.

    The chunks equal the results of `chunk_codec.encode`, but are computed faster.
    """
    module = native()
    if module is None:
        found = _in_numpy(values, cut)
    else:
        starts = np.empty(0, np.int64) if cut is None else cut.starts
        found = module.encode_table(np.ascontiguousarray(values), values.shape[1], starts)
    for row, one in enumerate(found):
        if one is not None:
            yield row, _chunk(values, one), None if cut is None else checked(one[6])


def _chunk(values: Array, one: _Encoded) -> Chunk:
    first, last, low, high, width, payload, _ = one
    return integer_chunk(values.shape[1], (first, last, low, high), width, payload)


def _in_numpy(values: Array, cut: Cut | None) -> list[_Encoded | None]:
    """Return the same result as the native module's `encode_table`."""
    lows, highs = values.min(axis=1), values.max(axis=1)
    there = lows != NOT_THERE
    stands_still = lows.astype(np.float64) == highs.astype(np.float64)
    # Copy only the rows with changing values: most rows are constant, and large arrays cost time per page.
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
    # The position of the lowest bit that is set in any difference.
    shifts = np.log2((common & -common).astype(np.uint64).astype(np.float64)).astype(np.int64)
    steps >>= shifts[:, None]
    limits = zip(steps.min(axis=1).tolist(), steps.max(axis=1).tolist(), strict=True)
    for row, shift, of_row in zip(steps, shifts.tolist(), limits, strict=True):
        yield integer_payload(shift, of_row, row)


MIN_SNAPSHOTS: Final = 512
ENOUGH_BATCHES: Final = 256
MIN_SNAPSHOTS_IDLE: Final = 64
IDLE_SECONDS: Final = 60.0
# No batch is empty, so this many batches always make a segment.
MOST_HEADS: Final = max(MIN_SNAPSHOTS, ENOUGH_BATCHES)

log = logging.getLogger("leakline")


def append(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Store batches, given as table rows, until they are sealed."""
    _INSERT_BATCHES(connection, rows)


def enough(snapshots: int, batches: int) -> bool:
    """Return True if this many snapshots and batches are enough for a segment while more data keeps arriving."""
    many = snapshots >= MIN_SNAPSHOTS and batches >= ENOUGH_BATCHES
    # A block's worth of snapshots reaches the end of a block no matter where it starts.
    return many or snapshots >= schema.BLOCK


def due(engine: Engine, now: float, since: float | None = None) -> list[Key]:
    """Return the processes with batches to seal. Needed for idle runs and after a restart.

    ``since`` limits the query to runs seen after that time, so that it need not read all waiting batches.
    """
    total = func.sum(batches.c.count)
    many = and_(total >= MIN_SNAPSHOTS, func.count() >= ENOUGH_BATCHES)
    idle = func.max(batches.c.received_at) < now - IDLE_SECONDS
    query = (
        select(batches.c.run_id, batches.c.process_id)
        .group_by(batches.c.run_id, batches.c.process_id)
        .having(or_(total >= schema.BLOCK, many, idle & (total >= MIN_SNAPSHOTS_IDLE)))
    )
    if since is not None:
        # This condition matches every state; it lets the query use the index on state and time.
        heard = select(runs.c.id).where(runs.c.state.in_(STATES), runs.c.last_seen_at > since)
        query = query.where(batches.c.run_id.in_(heard))
    with engine.connect() as connection:
        found = [Key(run_id, process_id) for run_id, process_id in connection.execute(query).all()]
        return [key for key in found if _is_worth(connection, key, now)]


def _is_worth(connection: Connection, key: Key, now: float) -> bool:
    """Return True if there is enough to seal apart from damaged batches, which are never sealed."""
    damaged = corruption.batches_of(connection.engine, *key)
    return not damaged or bool(_choose(_heads(connection, key, damaged), now))


@dataclass(frozen=True, slots=True)
class _Plan:
    """The batches to replace, without bodies, and the rows that replace them.

    ``more``: the remaining batches are enough for another segment.
    """

    taken: Sequence[Row[Any]]
    chunks: Sequence[dict[str, Any]]
    segment: dict[str, Any]
    details: Sequence[details.Packed]
    more: bool


class Sealed(NamedTuple):
    """The number of snapshots that were sealed. ``more`` is True if another segment can be sealed."""

    snapshots: int
    more: bool = False


def seal(engine: Engine, key: Key, now: float) -> Sealed:
    """Seal one segment of the recorded process that ``key`` identifies, unless too few readable snapshots are waiting.

    The batches are read and packed outside the write transaction, which is short and gives up if another server was
    faster. A damaged batch is recorded and not sealed. On SQLite the commit does not wait for the disk: after a power
    loss before the next durable commit, the batches are still stored and are sealed again.
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
    except details.Changed:
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
    """Return the first waiting batches in order, without bodies.

    ``damaged``: the first sequence numbers of batches to leave out.
    """
    rows = connection.execute(_HEADS, key._asdict() | {"most": MOST_HEADS + len(damaged)}).all()
    return [row for row in rows if row.first_sequence not in damaged]


def _choose(heads: Sequence[Row[Any]], now: float) -> list[Row[Any]]:
    """Return the batches of the next segment, or an empty list if there are too few batches."""
    chosen: list[Row[Any]] = []
    total = 0
    for row in heads:
        if chosen and row.first_sequence >= schema.edge(chosen[-1].first_sequence):
            # End at a block boundary, no matter how few snapshots there are. Otherwise, a segment that begins with a
            # late batch would span everything up to the newest batches.
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
    """Lock these batches until the end of the transaction; return True if they are unchanged."""
    now = _among(connection.execute(_HOLD, _between(key, taken)).all(), taken)
    return [_identity(row) for row in now] == [_identity(row) for row in taken]


def _identity(row: Row[Any]) -> tuple[int, int, int]:
    return row.first_sequence, row.count_, row.revision


def _between(key: Key, rows: Sequence[Row[Any]]) -> dict[str, Any]:
    """Return the statement parameters for the range of these ordered batches."""
    return key._asdict() | {"low": rows[0].first_sequence, "high": rows[-1].first_sequence}


def _among(rows: Iterable[Any], wanted: Sequence[Row[Any]]) -> list[Row[Any]]:
    these = {row.first_sequence for row in wanted}
    return [row for row in rows if row.first_sequence in these]


def _body(
    connection: Connection, key: Key, row: Row[Any], numbered: Callable[[], Mapping[str, int]]
) -> Body | None:
    """Return the unpacked body of a batch. If it cannot be read, record the damage and return None."""
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
    packed = details.plan(connection, key, first, last) if compacted else ()
    return _Plan(taken, rows, segment, packed, more)


def _replace(connection: Connection, key: Key, plan: _Plan) -> None:
    """Write the planned rows and delete the batches that they replace. Raises details.Changed."""
    _INSERT_CHUNKS(connection, plan.chunks)
    connection.execute(_INSERT_SEGMENT, plan.segment)
    gone = [{**key._asdict(), "b_first": row.first_sequence} for row in plan.taken]
    _DELETE_BATCHES(connection, gone)
    details.replace(connection, key, plan.details)


def _is_block(first: int, last: int, count: int, batches: int) -> bool:
    """Return True if these snapshots fill most of a block and reach its end.

    Also return True for all snapshots that an idle process has sent in its current block.
    """
    edge = schema.edge(first)
    if last + 1 == edge:
        return count >= schema.BLOCK // 2
    # The range may begin with the block's second number instead of its first, because a process may count from 1.
    return last < edge and first <= edge - schema.BLOCK + 1 and not enough(count, batches)


def _is_within(connection: Connection, key: Key, first: int, last: int) -> bool:
    """Return True if part of this range has already been sealed, so that compaction must merge the segments."""
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
# Two servers on one database may try to seal the same batches: the second server waits for this lock, and then finds
# that the batches are gone.
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
_INSERT_BATCHES: Final = Many(insert(batches))
_INSERT_CHUNKS: Final = Many(insert(chunks))
_INSERT_SEGMENT: Final = insert(segments)
_DELETE_BATCHES: Final = Many(
    delete(batches).where(mine(batches), batches.c.first_sequence == bindparam("b_first"))
)

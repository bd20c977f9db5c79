"""Doing what retention decided, one short step at a time: a run removed, or a stretch of one thinned.

A decision may be old when its turn comes, so each step looks at the run again: what was tagged or heard of meanwhile
stays. What a step could not do, because somebody else had the rows or the database failed, is found again by the end
of the run, or by the next decision.

Thinning is for what is sealed: of a run that ended long ago, the snapshots that tell the story stay. Of each sealed
stretch these stay: its first and its last snapshot, every generation end (of a program without generations, the last
of each minute), and for each series the snapshots where it is first and last there, lowest and highest. So the
numbers of a chunk row (first, last, minimum, maximum) are the same before and after, and every curve keeps its
spikes. Events, censuses, holders and large objects are not touched.

A thinned stretch counts as stored from its first to its last number: what is sent of it again is taken for known. So
one with gaps, where snapshots never came, becomes several without; one with very many gaps stays as it is.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, Row, and_, delete, insert, select, update

from ..columns import COLUMNS, GENERATION, KIND, MONOTONIC, SEQUENCE, Array, Numbers
from ..engine import DATABASE_ERRORS, Engine, reading, writing
from ..schema import Key, chunks, of, runs, segments, sizes
from ..series import Block, Stretch, chunk_row, chunk_size, encode, read
from . import retention_policy, run_deletion
from .retention_policy import Going, Limits
from .run_deletion import Removed

MINUTE_SECONDS: Final = 60.0
# Of one stretch with gaps. Each has rows of its own, which cost more than thinning so short ones gains.
MAX_PARTS: Final = 16
_END: Final = "generation_end"


@dataclass(frozen=True, slots=True)
class Thinned:
    """What one step left out: ``snapshots``, and by how many bytes the stretch became smaller."""

    snapshots: int
    bytes: int


NOTHING: Final = Thinned(0, 0)


def whole(engine: Engine, run_id: str) -> list[tuple[Key, int]]:
    """The sealed stretches of the run that were not thinned yet, by process and first sequence number."""
    s = segments.c
    query = (
        select(s.process_id, s.first_sequence)
        .where(s.run_id == run_id, s.thinned.is_(False))
        .order_by(s.process_id, s.first_sequence)
    )
    with engine.connect() as connection:
        return [(Key(run_id, number), first) for number, first in connection.execute(query)]


def thin(engine: Engine, key: Key, first_sequence: int) -> Thinned:
    """Thin one stretch, in one short transaction.

    What takes time happens before it, and is dropped when somebody has changed the stretch meanwhile, or the run goes
    on. A stretch that is damaged stays as it is.
    """
    s = segments.c
    with reading(engine) as connection:
        this = and_(of(segments, key), s.first_sequence == first_sequence, s.thinned.is_(False))
        row: Any = connection.execute(select(segments).where(this)).first()
        if row is None:
            return NOTHING
        block = _read(connection, key, row)
    if block.damaged or len(block) != row.count:
        return NOTHING
    parts = _without_gaps(block)
    if not parts:
        return NOTHING
    thinned = [part.take(kept(part)) for part in parts]
    left_out = len(block) - sum(len(part) for part in thinned)
    if not left_out and len(parts) > 1:
        return NOTHING
    new = [
        _Stretch.of(key, row, before, after) for before, after in zip(parts, thinned, strict=True)
    ]
    with writing(engine, durable=False) as connection:
        if not _unchanged(connection, key, row):
            return NOTHING
        if not left_out:
            this = and_(of(segments, key), segments.c.first_sequence == row.first_sequence)
            connection.execute(update(segments).where(this).values(thinned=True))
            return NOTHING
        _replace(connection, key, row, new)
    return Thinned(left_out, row.bytes - sum(each.segment["bytes"] for each in new))


def _without_gaps(block: Block) -> list[Block]:
    """The parts of a stretch that follow each other without a number left out; none when they are too many."""
    edges = np.flatnonzero(np.diff(block.numbers(SEQUENCE).values) != 1) + 1
    if len(edges) >= MAX_PARTS:
        return []
    return [block.take(np.arange(*ends)) for ends in pairwise([0, *edges.tolist(), len(block)])]


def mark_done(engine: Engine, run_id: str, revision: int) -> None:
    """Nothing of the run is left to thin, as long as it stays at this revision. Its size is counted again."""
    with writing(engine, durable=False) as connection:
        this = sizes.c.run_id == run_id
        connection.execute(update(sizes).where(this).values(thinned=revision, measured_at=0.0))


def kept(block: Block) -> Array:
    """Which snapshots of a stretch stay: a mask."""
    count = len(block)
    keep = np.zeros(count, dtype=bool)
    keep[[0, -1]] = True
    keep |= _ends(block)
    for number, column in block.columns.items():
        if number in COLUMNS or not isinstance(column, Numbers):
            continue
        there = np.arange(count) if column.present is None else np.flatnonzero(column.present)
        if len(there):
            values = column.values[there]
            keep[there[[0, -1, int(values.argmin()), int(values.argmax())]]] = True
    return keep


def _ends(block: Block) -> Array:
    generation = block.numbers(GENERATION)
    if generation.present is None or generation.present.any():
        kinds = block.texts(KIND)
        if _END not in kinds.names:
            return np.zeros(len(block), dtype=bool)
        ends: Array = kinds.index == kinds.names.index(_END)
        return ends
    minute = block.numbers(MONOTONIC).values // MINUTE_SECONDS
    last: Array = np.append(minute[1:] != minute[:-1], True)
    return last


def _read(connection: Connection, key: Key, row: Any) -> Block:
    """All columns of a stretch that it has chunks of."""
    c = chunks.c
    query = select(c.series_id).where(of(chunks, key), c.first_sequence == row.first_sequence)
    there = set(connection.scalars(query))
    stretch = Stretch(row.first_sequence, row.last_sequence, row.count, sealed=True)
    block = read(connection, key, sorted(there | set(COLUMNS)), {}, [stretch])
    columns = {number: column for number, column in block.columns.items() if number in there}
    return Block(columns, block.damaged)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The rows of a thinned stretch."""

    segment: dict[str, Any]
    chunks: list[dict[str, Any]]

    @classmethod
    def of(cls, key: Key, row: Any, before: Block, after: Block) -> _Stretch:
        sequence = before.numbers(SEQUENCE).values
        first, last = int(sequence[0]), int(sequence[-1])
        rows = [
            chunk_row(key, number, first, chunk)
            for number, column in after.columns.items()
            if (chunk := encode(column)).present or number in COLUMNS
        ]
        changed = {
            "first_sequence": first, "last_sequence": last, "count": len(after), "thinned": True, "level": 0,
            "bytes": sum(map(chunk_size, rows)),
        }  # fmt: skip
        return cls(dict(row._mapping) | changed, rows)


def _unchanged(connection: Connection, key: Key, row: Any) -> bool:
    """Still sealed as it was read, and nobody else's until the end of the transaction. Of a run that is still there."""
    s = segments.c
    this = and_(of(segments, key), s.first_sequence == row.first_sequence)
    now = connection.execute(select(segments).where(this).with_for_update()).first()
    there = select(runs.c.id).where(runs.c.id == key.run_id, runs.c.state != "running")
    return now == row and connection.execute(there).first() is not None


def _replace(connection: Connection, key: Key, row: Any, new: Sequence[_Stretch]) -> None:
    for table in (chunks, segments):
        this = and_(of(table, key), table.c.first_sequence == row.first_sequence)
        connection.execute(delete(table).where(this))
    connection.execute(insert(chunks), [chunk for each in new for chunk in each.chunks])
    connection.execute(insert(segments), [each.segment for each in new])


# What is left of a run after so many times is damaged, or somebody works on it.
MAX_ROUNDS: Final = 3
# After a step as long as it took, so that at most half of the time is spent with it, and at least this.
REST_SECONDS: Final = 0.005


def rest_after(seconds: float) -> float:
    """How many seconds to leave the database to others after a step that took so long."""
    return max(REST_SECONDS, seconds)


class Keeping:
    """What is to go and to be thinned, and how far that is."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine, self._limits = engine, limits
        self._going: deque[Going] = deque()
        # (id, revision)
        self._to_thin: deque[tuple[str, int]] = deque()
        # Of the run that is being thinned: the stretches left, how often they were looked for, and whether one failed.
        self._thinning: tuple[str, int] | None = None
        self._stretches: deque[tuple[Key, int]] = deque()
        self._rounds, self._failed = 0, False

    def decided(self, going: Iterable[Going], to_thin: Iterable[tuple[str, int]]) -> None:
        """From now on this is what is to be done, after the run that is being thinned."""
        self._going, self._to_thin = deque(going), deque(to_thin)

    def remove_next(self, now: float) -> tuple[Going, Removed] | None:
        """Remove a run, if it still is to go. None: there is none left. Raises one of DATABASE_ERRORS."""
        if not self._going:
            return None
        going = self._going.popleft()
        still = functools.partial(self._still_goes, going)
        return going, run_deletion.remove(self._engine, going.run_id, now, still)

    def thin_next(self, now: float) -> int | None:
        """Thin a stretch, or look for some. Returns how many snapshots it left out; None when there is nothing to do.

        Raises one of DATABASE_ERRORS.
        """
        if self._thinning is None:
            if not self._to_thin:
                return None
            self._thinning, self._rounds = self._to_thin.popleft(), 0
        run_id, revision = self._thinning
        if self._stretches:
            return self._thin(now)
        left = whole(self._engine, run_id)
        if left and self._rounds < MAX_ROUNDS:
            self._stretches, self._failed = deque(left), False
            self._rounds += 1
            return 0
        if not self._failed:
            mark_done(self._engine, run_id, revision)
        self._thinning = None
        return 0

    def _still_goes(self, going: Going, connection: Connection, run: Row[Any]) -> bool:
        return retention_policy.still_goes(connection, going, self._limits, run)

    def _thin(self, now: float) -> int:
        key, first_sequence = self._stretches.popleft()
        try:
            if not retention_policy.may_be_thinned(self._engine, self._limits, key.run_id, now):
                self._stretches.clear()
                self._thinning = None
                return 0
            return thin(self._engine, key, first_sequence).snapshots
        except DATABASE_ERRORS:
            self._failed = True
            raise

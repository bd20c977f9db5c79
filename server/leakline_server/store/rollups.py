"""Rollups: of 64 compacted segments in a row, one row a series with the numbers of each of its chunks.

A chart of a very long run reads these instead of the rows of chunks under them. A row is made of numbers whose checksum
is right, and dissolved when a segment under it changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, Engine, Row, and_, delete, func, insert, select, update

from .codec import Array, CorruptChunk
from .columns import SEQUENCE, Key, Stretch, mine, of, read, reading, series_ids
from .engine import writing
from .pieces import PRESENT, bounds, concatenate, joined, nothing, pack, spread, summed, unpack
from .tables import chunks, processes, rollups, segments

SEGMENTS: Final = 64
_WAITING: Final = select(func.count()).where(mine(segments), segments.c.level == 1)


def roll_up(engine: Engine, key: Key) -> int:
    """Make the rows above the next compacted segments. Returns how many segments; 0 when too few wait for it."""
    s = segments.c
    with reading(engine) as connection:
        if waiting(connection, key) < SEGMENTS:
            return 0
        rows = connection.execute(
            select(segments).where(of(segments, key)).order_by(s.first_sequence)
        ).all()
        for group in _groups(rows, _told(connection, key)):
            try:
                made = _rows(connection, key, group)
            except CorruptChunk:
                # They stay as they are; reading them tells of the damage.
                continue
            break
        else:
            return 0
    with writing(engine, durable=False) as connection:
        # In the order in which all lock them who lock both.
        if not _is_there(connection, key):
            return 0
        these = and_(of(segments, key), s.first_sequence.in_([row.first_sequence for row in group]))
        now = connection.execute(
            select(segments).where(these).order_by(s.first_sequence).with_for_update()
        ).all()
        if now != group:
            return 0
        connection.execute(insert(rollups), made)
        connection.execute(update(segments).where(these).values(level=2))
    return len(group)


def waiting(connection: Connection, key: Key) -> int:
    """How many compacted segments are under none."""
    return int(connection.execute(_WAITING, key._asdict()).scalar_one())


def dissolve(connection: Connection, key: Key, first: int, last: int) -> None:
    """Take away the rows above the segments between these sequence numbers; those segments are under none then."""
    r, s = rollups.c, segments.c
    above = and_(of(rollups, key), r.first_sequence <= last, r.last_sequence >= first)
    low, high = connection.execute(
        select(func.min(r.first_sequence), func.max(r.last_sequence)).where(above)
    ).one()
    if low is None:
        return
    connection.execute(delete(rollups).where(above))
    under = and_(of(segments, key), s.level == 2, s.first_sequence.between(low, high))
    connection.execute(update(segments).where(under).values(level=1))


def _is_there(connection: Connection, key: Key) -> bool:
    p = processes.c
    query = select(p.id).where(p.run_id == key.run_id, p.id == key.process_id)
    return connection.execute(query.with_for_update(read=True, key_share=True)).first() is not None


def _told(connection: Connection, key: Key) -> set[int]:
    """First sequence numbers of the compacted segments. One that is damaged counts as one, and was left as it is."""
    c = chunks.c
    query = select(c.first_sequence).where(
        of(chunks, key), c.series_id == SEQUENCE, c.pieces.is_not(None)
    )
    return set(connection.scalars(query))


def _groups(rows: Sequence[Row[Any]], told: Collection[int]) -> Iterator[list[Row[Any]]]:
    """Compacted segments that follow each other: SEGMENTS of them, or what lies between two that are rolled up, or
    left as they are.
    """
    group: list[Row[Any]] = []
    furthest = -1
    for row in rows:
        reaches_into, furthest = row.first_sequence <= furthest, max(furthest, row.last_sequence)
        # One that came late within the others is compacted into them first.
        if row.level == 0 or reaches_into:
            group = []
            continue
        left = row.first_sequence not in told
        if row.level == 1 and not left:
            group.append(row)
        if len(group) == SEGMENTS or (group and (row.level == 2 or left)):
            yield group
            group = []


def _rows(connection: Connection, key: Key, group: Sequence[Row[Any]]) -> list[dict[str, Any]]:
    """Raises CorruptChunk."""
    c = chunks.c
    firsts = [row.first_sequence for row in group]
    query = select(c.series_id, c.first_sequence, c.pieces).where(
        of(chunks, key), c.first_sequence.between(firsts[0], firsts[-1]), c.pieces.is_not(None)
    )
    packed: dict[int, dict[int, bytes]] = {}
    for number, first, pieces in connection.execute(query):
        packed.setdefault(number, {})[first] = pieces
    sequence = packed.get(SEQUENCE, {})
    if sequence.keys() < set(firsts):
        raise CorruptChunk("a segment has no numbers")

    def records(row: Row[Any], number: int, counts: Array | None) -> Array:
        """Of a segment; from its chunk, where its own are damaged."""
        try:
            found = unpack(packed[number][row.first_sequence])
            return found if counts is None else spread(found, counts)
        except CorruptChunk:
            return _anew(connection, key, row, number)

    counts = [records(row, SEQUENCE, None)[:, PRESENT] for row in group]
    whole = np.array([row.count for row in group])
    made = []
    for number, of_series in packed.items():
        together = concatenate(
            [
                joined(records(row, number, mine))
                if row.first_sequence in of_series
                else nothing(1)
                for row, mine in zip(group, counts, strict=True)
            ]
        )
        made.append(
            {
                **key._asdict(), "series_id": number, "first_sequence": firsts[0],
                "last_sequence": group[-1].last_sequence, "count": int(whole.sum()), **_numbers(together),
                "pieces": pack(together, whole),
            }
        )  # fmt: skip
    return made


def _anew(connection: Connection, key: Key, row: Any, number: int) -> Array:
    """The records of a chunk, made of its entries. Raises CorruptChunk."""
    names = {number: name for name, number in series_ids(connection, key.run_id).items()}
    stretch = Stretch(row.first_sequence, row.last_sequence, row.count, sealed=True)
    block = read(connection, key, (number,), names, [stretch])
    if block.damaged:
        raise CorruptChunk("a stored chunk and its numbers are damaged")
    return summed(block.numbers(number), bounds(block.numbers(SEQUENCE).values))


def _numbers(records: Array) -> dict[str, Any]:
    ((present, *numbers),) = joined(records).tolist()
    named = zip(("first", "last", "min", "max"), numbers, strict=True)
    return {"present": int(present), **{n: v if present else None for n, v in named}}

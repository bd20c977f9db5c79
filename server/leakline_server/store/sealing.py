"""Sealing: the waiting batches of a process become one chunk a series, in one transaction.

Happens after the acknowledgement and changes nothing that anyone can read. A segment has at least MIN_SNAPSHOTS
where snapshots keep coming; a process that paused is sealed when it has enough to be worth rows of its own, and a
small run stays in the inbox for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, Engine, delete, func, insert, or_, select

from . import wire
from .codec import Column, Numbers, decompress, encode, numbers, texts
from .columns import (
    GENERATION,
    KIND,
    LABEL,
    MONOTONIC,
    PHASE,
    SEQUENCE,
    TIME,
    Block,
    series_ids,
)
from .engine import writing
from .tables import batches, chunks, processes, segments

MIN_SNAPSHOTS: Final = 512
MIN_SNAPSHOTS_IDLE: Final = 64
IDLE_SECONDS: Final = 60.0


def due(engine: Engine, now: float) -> list[tuple[str, int]]:
    """(run id, process id) of what should be sealed, by the tables alone: after a restart, and for idle runs."""
    total = func.sum(batches.c.count)
    idle = func.max(batches.c.received_at) < now - IDLE_SECONDS
    query = (
        select(batches.c.run_id, batches.c.process_id)
        .group_by(batches.c.run_id, batches.c.process_id)
        .having(or_(total >= MIN_SNAPSHOTS, idle & (total >= MIN_SNAPSHOTS_IDLE)))
    )
    with engine.connect() as connection:
        return [(run_id, process_id) for run_id, process_id in connection.execute(query)]


def seal(engine: Engine, process_id: int, now: float) -> int:
    """Seal one segment of this process. Returns how many snapshots; 0 when too few wait.

    Not durable by itself on SQLite: if the power goes before the next commit, the batches are still there and are
    sealed again.
    """
    with writing(engine, durable=False) as connection:
        return _seal(connection, process_id, now)


def _seal(connection: Connection, process_id: int, now: float) -> int:
    taken = _take(connection, process_id, now)
    if not taken:
        return 0
    run_id = connection.execute(
        select(processes.c.run_id).where(processes.c.id == process_id)
    ).scalar_one()
    numbered = series_ids(connection, run_id)
    block = _block(taken, numbered)
    sequence = block.numbers(SEQUENCE).values
    first, last, count = int(sequence[0]), int(sequence[-1]), len(sequence)
    rows = []
    for number, column in block.columns.items():
        chunk = encode(column)
        rows.append(
            {
                "process_id": process_id, "series_id": number, "first_sequence": first, "count": count,
                "first": chunk.first, "last": chunk.last, "min": chunk.min, "max": chunk.max,
                "width": chunk.width, "blob": chunk.blob,
            }
        )  # fmt: skip
    connection.execute(insert(chunks), rows)
    connection.execute(
        insert(segments).values(
            run_id=run_id, process_id=process_id, first_sequence=first, last_sequence=last,
            count=count, revision=max(row["revision"] for row in taken),
        )
    )  # fmt: skip
    connection.execute(delete(batches).where(batches.c.id.in_([row["id"] for row in taken])))
    return count


def _take(connection: Connection, process_id: int, now: float) -> list[dict[str, Any]]:
    """Waiting batches in order, until they make a segment; empty when they do not."""
    # Two servers on one database would make the same segment; the second waits, and finds what the first has left.
    query = (
        select(batches)
        .where(batches.c.process_id == process_id)
        .order_by(batches.c.first_sequence)
        .with_for_update()
    )
    taken: list[dict[str, Any]] = []
    total = 0
    for row in connection.execute(query).mappings():
        taken.append(dict(row))
        total += row["count"]
        if total >= MIN_SNAPSHOTS:
            return taken
    idle = all(row["received_at"] < now - IDLE_SECONDS for row in taken)
    return taken if idle and total >= MIN_SNAPSHOTS_IDLE else []


def _block(taken: Sequence[dict[str, Any]], numbered: Mapping[str, int]) -> Block:
    """The columns of these batches. One list a series first: few large conversions are cheaper than many small."""
    bodies = [wire.decode_stored(decompress(row["body"])).columns for row in taken]
    counts = [row["count"] for row in taken]
    columns: dict[int, Column] = {
        SEQUENCE: Numbers(
            np.concatenate(
                [
                    np.arange(row["first_sequence"], row["first_sequence"] + row["count"])
                    for row in taken
                ]
            )
        ),
        TIME: Numbers(np.array(list(chain.from_iterable(b.time for b in bodies)))),
        MONOTONIC: Numbers(np.array(list(chain.from_iterable(b.monotonic for b in bodies)))),
        GENERATION: numbers(list(chain.from_iterable(b.generation for b in bodies))),
        PHASE: texts(list(chain.from_iterable(b.phase for b in bodies))),
        LABEL: texts(list(chain.from_iterable(b.label for b in bodies))),
        KIND: texts([kind for b in bodies for kind in wire.kinds_of(b)]),
    }
    for name in dict.fromkeys(chain.from_iterable(b.series for b in bodies)):
        if name in numbered:
            parts = (b.series.get(name) or [None] * n for b, n in zip(bodies, counts, strict=True))
            columns[numbered[name]] = numbers(list(chain.from_iterable(parts)))
    return Block(columns)

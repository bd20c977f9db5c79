"""The newest lines that each process printed: one row of details for each, rewritten when more come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, delete, insert, select

from . import damage, wire
from .codec import CorruptChunk, compress
from .columns import Key, of
from .details import unpack
from .incoming import DetailKind
from .tables import details

KIND: Final[DetailKind] = "log"
LINES_KEPT: Final = 50


def keep(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Put what came to what is there, and leave out the oldest lines. The caller holds the rows of the runs."""
    came: dict[Key, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        came[Key(row["run_id"], row["process_id"])].append(row)
    for key, of_process in came.items():
        mine = of(details, key), details.c.kind == KIND
        there = connection.execute(select(details).where(*mine)).mappings().all()
        # What is there and cannot be read is gone with this, so that who sends is not held up by it.
        said = [each for row in (*there, *of_process) for each in _read(connection, row)]
        newest = _newest(sorted(said, key=lambda event: event.sequence))
        connection.execute(delete(details).where(*mine))
        body = compress(wire.encode(newest))
        connection.execute(insert(details).values({**of_process[-1], "body": body}))


def of_processes(
    connection: Connection, run_id: str, process_ids: Sequence[int]
) -> Iterator[tuple[int, list[str]]]:
    """(process id, its newest lines, the newest last) in the order of the ids; of those that told some.

    One after the other: together they may be a gigabyte.
    """
    mine = details.c.run_id == run_id, details.c.kind == KIND
    some = set(connection.scalars(select(details.c.process_id).where(*mine)))
    for process_id in process_ids:
        if process_id in some:
            query = select(details).where(*mine, details.c.process_id == process_id)
            rows = connection.execute(query).mappings().all()
            lines = [line for r in rows for e in _read(connection, r) for line in e.data["lines"]]
            yield process_id, lines


def _read(connection: Connection, row: Any) -> list[wire.Event]:
    """The events of a row; none where it is damaged, which is told."""
    try:
        return unpack(KIND, row["body"])
    except CorruptChunk:
        first = row["sequence"]
        what = damage.Damaged(row["run_id"], row["process_id"], KIND, first, first)
        damage.found(connection.engine, what)
        return []


def _newest(said: list[wire.Event]) -> list[wire.Event]:
    """The last events with LINES_KEPT lines; the oldest of them may be cut."""
    room, kept = LINES_KEPT, []
    for event in reversed(said):
        lines = event.data["lines"][-room:]
        kept.append(msgspec.structs.replace(event, data={"lines": lines}))
        room -= len(lines)
        if room == 0:
            break
    return kept[::-1]

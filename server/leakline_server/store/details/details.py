"""Events, large objects, censuses and holders: packed rows, written with their batch, and packed again
(detail_packing.py).

A row that is damaged costs itself: it is left out, and told (corruption.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, func, insert, select

from leakline.snapshot import Event, Holder

from ...limits import MAX_LISTED
from ..ingest import wire_types
from ..ingest.incoming_batch import DetailKind
from ..maintenance import corruption
from ..schema import details, processes
from ..series import block_layout
from ..series.chunk_codec import CorruptChunk, compress, decompress
from ..series.column_reader import Key, of

# Of each process, the newest lines it printed: one row, rewritten when more come.
LINES_KEPT: Final = 50
# Past so many that are damaged, the newest is given up.
MAX_CENSUSES_TRIED: Final = 16
_ITS_PROCESS: Final = and_(
    processes.c.run_id == details.c.run_id, processes.c.id == details.c.process_id
)

_TYPES: Final[dict[DetailKind, Any]] = {
    "events": list[wire_types.Event],
    "large_objects": list[wire_types.LargeObject],
    "census": list[wire_types.Census],
    "holders": list[wire_types.Holder],
    "log": list[wire_types.Event],
}


def load_events(
    connection: Connection, run_id: str, among: Collection[int] | None = None
) -> list[Event]:
    """All events of a run in order of time. ``among``: those of the processes with these numbers."""
    rows = _load(connection, run_id, "events", _of_processes(among))
    events = [
        Event(e.sequence, e.time, e.kind, e.name, e.generation, e.phase, e.data) for _, e in rows
    ]
    return sorted(events, key=lambda event: event.time)


def load_holders(
    connection: Connection, run_id: str, among: Collection[int] | None = None
) -> list[Holder]:
    rows = _load(connection, run_id, "holders", _of_processes(among))
    return [Holder(h.sequence, h.type, h.path, h.count, h.bytes_each) for _, h in rows]


def _of_processes(among: Collection[int] | None) -> ColumnElement[bool] | None:
    return None if among is None else details.c.process_id.in_(among)


def list_events(engine: Engine, run_id: str) -> list[dict[str, Any]]:
    """The newest MAX_LISTED events in order of time, each with its process; plain JSON."""
    with engine.connect() as connection:
        rows = _load(connection, run_id, "events")
    found = [{"process": instance, **msgspec.to_builtins(e)} for instance, e in rows]
    return sorted(found, key=lambda event: event["time"])[-MAX_LISTED:]


def newest_census(
    engine: Engine, run_id: str, generation: int | None = None, instances: Sequence[str] | None = None
) -> dict[str, Any] | None:  # fmt: skip
    """The newest census at or before a generation, with its process and generation; None when there is none.

    ``instances``: those of one rank; of all processes without.
    """
    query = (
        select(details, processes.c.instance)
        .join(processes, _ITS_PROCESS)
        .where(details.c.run_id == run_id, details.c.kind == "census")
        .order_by(details.c.generation.desc().nulls_last(), details.c.sequence.desc(), details.c.revision.desc())
    )  # fmt: skip
    if generation is not None:
        query = query.where(details.c.generation <= generation)
    if instances is not None:
        query = query.where(processes.c.instance.in_(instances))
    with engine.connect() as connection:
        for at in range(MAX_CENSUSES_TRIED):
            row = connection.execute(query.limit(1).offset(at)).first()
            if row is None:
                return None
            found = _readable(connection, "census", row._mapping)
            if found:
                census = msgspec.to_builtins(found[-1])
                return {"process": row.instance, "generation": row.generation, **census}
    return None


def newest_large_objects(engine: Engine, run_id: str) -> list[dict[str, Any]]:
    """The large objects of the newest snapshot of each process that has some, largest first."""
    rows = _newest_per_process(engine, run_id, "large_objects")
    return sorted(rows, key=lambda row: -int(row["bytes"]))[:MAX_LISTED]


def newest_holders(engine: Engine, run_id: str) -> list[dict[str, Any]]:
    """What keeps objects alive, as last found for each process, type and path; most objects first."""
    with engine.connect() as connection:
        rows = _load(connection, run_id, "holders")
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for instance, holder in rows:
        key = (instance, holder.type, holder.path)
        if key not in found or found[key]["sequence"] <= holder.sequence:
            found[key] = {"process": instance, **msgspec.to_builtins(holder)}
    return sorted(found.values(), key=lambda row: -int(row["count"]))[:MAX_LISTED]


def _newest_per_process(engine: Engine, run_id: str, kind: DetailKind) -> list[dict[str, Any]]:
    d = details.c
    its = details.alias()
    newest = (
        select(func.max(its.c.sequence))
        .where(its.c.run_id == run_id, its.c.kind == kind, its.c.process_id == d.process_id)
        .scalar_subquery()
    )
    with engine.connect() as connection:
        # No row has entries of more sequence numbers than a block.
        rows = _load(connection, run_id, kind, d.sequence > newest - block_layout.BLOCK)
    last: dict[str, int] = {}
    for instance, row in rows:
        last[instance] = max(last.get(instance, row.sequence), row.sequence)
    return [
        {"process": instance, **msgspec.to_builtins(row)}
        for instance, row in rows
        if row.sequence == last[instance]
    ]


def _load(
    connection: Connection, run_id: str, kind: DetailKind, among: ColumnElement[bool] | None = None
) -> list[tuple[str, Any]]:
    """(process instance, row) of everything of a kind, by process and in order of sequence."""
    d = details.c
    query = (
        select(details, processes.c.instance)
        .join(processes, _ITS_PROCESS)
        .where(d.run_id == run_id, d.kind == kind)
        .order_by(d.process_id, d.sequence)
    )
    found: list[tuple[int, int, str, Any]] = []
    for row in connection.execute(query if among is None else query.where(among)):
        entries = _readable(connection, kind, row._mapping)
        found += [(row.process_id, entry.sequence, row.instance, entry) for entry in entries]
    found.sort(key=lambda entry: entry[:2])
    return [(instance, entry) for *_, instance, entry in found]


def _readable(connection: Connection, kind: DetailKind, row: Any) -> list[Any]:
    """Return the entries of a row, given as a mapping; none if it is damaged, which is recorded."""
    try:
        return unpack(kind, row["body"])
    except CorruptChunk:
        where = row["run_id"], row["process_id"], kind, row["sequence"], row["sequence"]
        corruption.found(connection.engine, corruption.Damaged(*where))
        return []


def unpack(kind: DetailKind, body: bytes) -> list[Any]:
    """The entries of a row. Raises CorruptChunk."""
    try:
        found: list[Any] = msgspec.json.decode(decompress(body), type=_TYPES[kind])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # What it was says what is stored.
        raise CorruptChunk("a stored detail is damaged") from None
    return found


def keep_lines(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add new lines to those that are stored, without the oldest. The caller holds the rows of the runs."""
    came: dict[Key, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        came[Key(row["run_id"], row["process_id"])].append(row)
    for key, of_process in came.items():
        mine = of(details, key), details.c.kind == "log"
        there = connection.execute(select(details).where(*mine)).mappings().all()
        # A stored row that cannot be read is dropped, so that the sender is not held up by it.
        said = [each for row in (*there, *of_process) for each in _readable(connection, "log", row)]
        newest = _newest_lines(sorted(said, key=lambda event: event.sequence))
        connection.execute(delete(details).where(*mine))
        body = compress(wire_types.encode(newest))
        connection.execute(insert(details).values({**of_process[-1], "body": body}))


def lines_of_processes(
    connection: Connection, run_id: str, process_ids: Sequence[int]
) -> Iterator[tuple[int, list[str]]]:
    """Yield (process id, its newest lines, the newest last) of the processes that printed, in the order of the ids.

    One after the other: together they may be a gigabyte.
    """
    mine = details.c.run_id == run_id, details.c.kind == "log"
    some = set(connection.scalars(select(details.c.process_id).where(*mine)))
    for process_id in process_ids:
        if process_id in some:
            query = select(details).where(*mine, details.c.process_id == process_id)
            rows = connection.execute(query).mappings().all()
            events = [event for row in rows for event in _readable(connection, "log", row)]
            lines = [line for event in events for line in event.data["lines"]]
            yield process_id, lines


def _newest_lines(said: list[wire_types.Event]) -> list[wire_types.Event]:
    """Return the last events with LINES_KEPT lines; the oldest of them may be cut."""
    room, kept = LINES_KEPT, []
    for event in reversed(said):
        lines = event.data["lines"][-room:]
        kept.append(msgspec.structs.replace(event, data={"lines": lines}))
        room -= len(lines)
        if room == 0:
            break
    return kept[::-1]

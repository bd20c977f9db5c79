"""Events, large objects, censuses, holders and log lines in packed rows.

A batch adds one row for each kind of detail. Compaction merges the rows of a segment into fewer rows; a row holds
entries of a single block (schema.py), so that the newest entries are found without a search. The entries of a snapshot
are never split. Rows of censuses are not merged, because censuses are read one at a time.

A damaged row is skipped and counted (corruption.py); the other rows stay readable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
)

from leakline.snapshot import Event, Holder

from ..limits import MAX_LISTED
from . import schema
from .columns import CorruptChunk, compress, decompress
from .ingest import wire_types
from .ingest.incoming_batch import DetailKind
from .maintenance import corruption
from .schema import Key, details, mine, of, processes

# The newest printed lines of a process are kept in one row, which is rewritten when more lines arrive.
LINES_KEPT: Final = 50
# The search for a readable census stops after this many damaged censuses.
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
    """Return a run's events, oldest first. ``among`` limits the result to processes with these ids."""
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
    """Return the newest MAX_LISTED events as plain JSON, oldest first, each with its process."""
    with engine.connect() as connection:
        rows = _load(connection, run_id, "events")
    found = [{"process": instance, **msgspec.to_builtins(e)} for instance, e in rows]
    return sorted(found, key=lambda event: event["time"])[-MAX_LISTED:]


def newest_census(
    engine: Engine, run_id: str, generation: int | None = None, instances: Sequence[str] | None = None
) -> dict[str, Any] | None:  # fmt: skip
    """Return the newest readable census as JSON, with its process and generation, or None if none is found.

    ``generation`` is the latest generation to search. ``instances`` limits the search to these processes.
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
    """Return the large objects that each process reported last, largest first, up to MAX_LISTED."""
    rows = _newest_per_process(engine, run_id, "large_objects")
    return sorted(rows, key=lambda row: -int(row["bytes"]))[:MAX_LISTED]


def newest_holders(engine: Engine, run_id: str) -> list[dict[str, Any]]:
    """Return the latest holder for each process, type and path. Holders of the most objects come first."""
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
        # A row spans at most one block of sequence numbers, so earlier rows cannot contain the newest entries.
        rows = _load(connection, run_id, kind, d.sequence > newest - schema.BLOCK)
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
    """Return (process instance, entry) for all entries of a kind, ordered by process and sequence number."""
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
    """Return the entries of a row. If the row cannot be read, record the damage and return an empty list."""
    try:
        return unpack(kind, row["body"])
    except CorruptChunk:
        where = row["run_id"], row["process_id"], kind, row["sequence"], row["sequence"]
        corruption.found(connection.engine, corruption.Damaged(*where))
        return []


def unpack(kind: DetailKind, body: bytes) -> list[Any]:
    """Return the entries of a row. Raises CorruptChunk."""
    try:
        found: list[Any] = msgspec.json.decode(decompress(body), type=_TYPES[kind])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Drop the original error: its text quotes stored content.
        raise CorruptChunk("a stored row of details is damaged") from None
    return found


def keep_lines(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Store new log lines, and keep only the newest LINES_KEPT lines of each process.

    The caller must have locked the runs.
    """
    came: dict[Key, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        came[Key(row["run_id"], row["process_id"])].append(row)
    for key, of_process in came.items():
        mine = of(details, key), details.c.kind == "log"
        there = connection.execute(select(details).where(*mine)).mappings().all()
        # Drop a stored row that cannot be read, so that it does not block the sender.
        said = [each for row in (*there, *of_process) for each in _readable(connection, "log", row)]
        newest = _newest_lines(sorted(said, key=lambda event: event.sequence))
        connection.execute(delete(details).where(*mine))
        body = compress(wire_types.encode(newest))
        connection.execute(insert(details).values({**of_process[-1], "body": body}))


def lines_of_processes(
    connection: Connection, run_id: str, process_ids: Sequence[int]
) -> Iterator[tuple[int, list[str]]]:
    """Yield (process id, newest lines) for each of these processes that printed anything, in the given order.

    Lines are ordered from oldest to newest. Processes are read one at a time, because all lines together may take a
    gigabyte.
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
    """Return the newest events with at most LINES_KEPT lines in total. The oldest of these events may lose lines."""
    room, kept = LINES_KEPT, []
    for event in reversed(said):
        lines = event.data["lines"][-room:]
        kept.append(msgspec.structs.replace(event, data={"lines": lines}))
        room -= len(lines)
        if room == 0:
            break
    return kept[::-1]


PACKED: Final[tuple[DetailKind, ...]] = ("events", "large_objects", "holders")
# When a packed row has reached this many entries, a new row begins.
MAX_ENTRIES: Final = 2_000

_sequence: Final = attrgetter("sequence")


class Changed(Exception):
    """Raised when another server has already packed the rows."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A plan to repack the rows of one kind: the sequence numbers of the rows to delete, and the new rows."""

    kind: DetailKind
    gone: Sequence[int]
    rows: Sequence[dict[str, Any]]


def plan(connection: Connection, key: Key, low: int, high: int) -> list[Packed]:
    """Plan how to repack the details of snapshots ``low`` to ``high``. Kinds that would not save a row are left out."""
    rows = connection.execute(_THESE, key._asdict() | {"low": low, "high": high}).all()
    found = [_of_kind(kind, [row for row in rows if row.kind == kind]) for kind in PACKED]
    return [packed for packed in found if packed is not None]


def replace(connection: Connection, key: Key, planned: Sequence[Packed]) -> None:
    """Replace the planned rows. Raises Changed, after which the caller must roll back."""
    d = details.c
    for packed in planned:
        gone = and_(
            d.run_id == key.run_id, d.kind == packed.kind, d.process_id == key.process_id,
            d.sequence.in_(packed.gone),
        )  # fmt: skip
        if connection.execute(delete(details).where(gone)).rowcount != len(packed.gone):
            raise Changed
        connection.execute(insert(details), packed.rows)


def _of_kind(kind: DetailKind, rows: Sequence[Row[Any]]) -> Packed | None:
    """Plan how to repack ``rows``, which are in sequence order. Return None if repacking would not save a row."""
    readable: list[Row[Any]] = []
    entries: list[Any] = []
    for row in rows:
        try:
            entries += unpack(kind, row.body)
        except CorruptChunk:
            # Leave damaged rows unchanged.
            continue
        readable.append(row)
    new = list(_rows(readable, sorted(entries, key=_sequence)))
    if len(new) >= len(readable):
        return None
    return Packed(kind, [row.sequence for row in readable], new)


def _rows(old: Sequence[Row[Any]], entries: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for _, of_block in groupby(entries, lambda entry: entry.sequence // schema.BLOCK):
        packed: list[Any] = []
        for _, of_snapshot in groupby(of_block, _sequence):
            if len(packed) >= MAX_ENTRIES:
                yield _row(old, packed)
                packed = []
            packed += of_snapshot
        yield _row(old, packed)


def _row(old: Sequence[Row[Any]], entries: Sequence[Any]) -> dict[str, Any]:
    # Take the other columns from the last old row that begins at or before the last of these entries.
    source = next(row for row in reversed(old) if row.sequence <= entries[-1].sequence)
    return dict(source._mapping) | {
        "sequence": entries[0].sequence,
        "body": compress(wire_types.encode(entries)),
    }


# One query for all kinds: it costs as much as a query for one kind, and usually finds nothing.
_THESE: Final = (
    select(details)
    .where(
        mine(details),
        details.c.kind.in_([literal_column(f"'{kind}'") for kind in PACKED]),
        details.c.sequence.between(bindparam("low"), bindparam("high")),
    )
    .order_by(details.c.sequence)
)

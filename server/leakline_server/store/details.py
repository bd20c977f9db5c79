"""Events, large objects, censuses and holders: packed rows, written with their batch."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, select

from leakline.analysis.history import declared_expectations as expectations_of
from leakline.snapshot import Event, Holder

from . import wire
from .codec import decompress
from .incoming import DetailKind
from .tables import details, processes

MAX_EVENTS: Final = 5_000

_TYPES: Final[dict[DetailKind, Any]] = {
    "events": list[wire.Event],
    "large_objects": list[wire.LargeObject],
    "census": list[wire.Census],
    "holders": list[wire.Holder],
}


def load_events(connection: Connection, run_id: str) -> list[Event]:
    """All events of a run in order of time."""
    rows = _load(connection, run_id, "events")
    events = [
        Event(e.sequence, e.time, e.kind, e.name, e.generation, e.phase, e.data) for _, e in rows
    ]
    return sorted(events, key=lambda event: event.time)


def load_holders(connection: Connection, run_id: str) -> list[Holder]:
    rows = _load(connection, run_id, "holders")
    return [Holder(h.sequence, h.type, h.path, h.count, h.bytes_each) for _, h in rows]


def list_events(engine: Engine, run_id: str) -> list[dict[str, Any]]:
    """The newest MAX_EVENTS events in order of time, each with its process; plain JSON."""
    with engine.connect() as connection:
        rows = _load(connection, run_id, "events")
    found = [{"process": instance, **msgspec.to_builtins(e)} for instance, e in rows]
    return sorted(found, key=lambda event: event["time"])[-MAX_EVENTS:]


def newest_census(
    engine: Engine, run_id: str, generation: int | None = None
) -> dict[str, Any] | None:
    """The newest census at or before a generation, with its process and generation; None when there is none."""
    query = (
        select(details.c.body, details.c.generation, processes.c.instance)
        .join(processes, processes.c.id == details.c.process_id)
        .where(details.c.run_id == run_id, details.c.kind == "census")
        .order_by(details.c.generation.desc().nulls_last(), details.c.sequence.desc(), details.c.id.desc())
        .limit(1)
    )  # fmt: skip
    if generation is not None:
        query = query.where(details.c.generation <= generation)
    with engine.connect() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    (census,) = _unpack("census", row.body)
    return {"process": row.instance, "generation": row.generation, **msgspec.to_builtins(census)}


def newest_large_objects(engine: Engine, run_id: str) -> list[dict[str, Any]]:
    """The large objects of the newest snapshot of each process that has some, largest first."""
    rows = _newest_per_process(engine, run_id, "large_objects")
    return sorted(rows, key=lambda row: -int(row["bytes"]))


def newest_holders(engine: Engine, run_id: str) -> list[dict[str, Any]]:
    """What keeps objects alive, as last found for each process, type and path; most objects first."""
    with engine.connect() as connection:
        rows = _load(connection, run_id, "holders")
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for instance, holder in rows:
        key = (instance, holder.type, holder.path)
        if key not in found or found[key]["sequence"] <= holder.sequence:
            found[key] = {"process": instance, **msgspec.to_builtins(holder)}
    return sorted(found.values(), key=lambda row: -int(row["count"]))


def declared_expectations(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    return [
        {"type": e.type, "low": e.low, "high": e.high, "after": e.after}
        for e in expectations_of(load_events(connection, run_id))
    ]


def _newest_per_process(engine: Engine, run_id: str, kind: DetailKind) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        rows = _load(connection, run_id, kind)
    newest: dict[str, int] = {}
    for instance, row in rows:
        newest[instance] = max(row.sequence, newest.get(instance, -1))
    return [
        {"process": instance, **msgspec.to_builtins(row)}
        for instance, row in rows
        if row.sequence == newest[instance]
    ]


def _load(connection: Connection, run_id: str, kind: DetailKind) -> list[tuple[str, Any]]:
    """(process instance, row) of everything of a kind, in order of arrival."""
    query = (
        select(processes.c.instance, details.c.body)
        .join(processes, processes.c.id == details.c.process_id)
        .where(details.c.run_id == run_id, details.c.kind == kind)
        .order_by(details.c.id)
    )
    return [
        (instance, row)
        for instance, body in connection.execute(query)
        for row in _unpack(kind, body)
    ]


def _unpack(kind: DetailKind, body: bytes) -> list[Any]:
    found: list[Any] = msgspec.json.decode(decompress(body), type=_TYPES[kind])
    return found

"""Sizes of runs and projects, measured periodically and stored in a row per run, and the number of live processes.

A size is the number of packed bytes in chunks, waiting batches and details. It does not include keys, indexes and free
pages; `disk_space.py` reports the size of the entire database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    Connection,
    Engine,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
)

from ..engine import writing
from ..runs.runs import STATES
from ..schema import batches, chunks, details, processes, runs, segments, sizes

RUNS_PER_STEP: Final = 128
# A live run is measured again after FRESH_SECONDS. An ended run is measured once more after SETTLED_SECONDS, when
# compaction has finished.
FRESH_SECONDS: Final = 60.0
SETTLED_SECONDS: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class ProjectSize:
    name: str
    runs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Overview:
    """The number of running runs, and the number of their processes that have not ended."""

    running_runs: int
    live_processes: int


def projects(engine: Engine) -> list[ProjectSize]:
    """Return all projects, sorted by name. Runs that have not been measured yet count as 0 bytes."""
    query = (
        select(runs.c.project, func.count(), func.coalesce(func.sum(sizes.c.bytes), 0))
        .select_from(runs.outerjoin(sizes))
        .group_by(runs.c.project)
        .order_by(runs.c.project)
    )
    with engine.connect() as connection:
        return [
            ProjectSize(name, count, int(size)) for name, count, size in connection.execute(query)
        ]


def overview(engine: Engine) -> Overview:
    running = runs.c.state == "running"
    live = (
        select(func.count())
        .select_from(runs.join(processes))
        .where(running, processes.c.end_state.is_(None))
    )
    with engine.connect() as connection:
        return Overview(
            int(connection.execute(select(func.count()).where(running)).scalar_one()),
            int(connection.execute(live).scalar_one()),
        )


def measure(engine: Engine, now: float, since: float | None = None) -> int:
    """Measure up to RUNS_PER_STEP runs whose size may have changed, and return their number.

    The least recently measured runs come first. ``since`` limits the search to runs seen after that time, which an
    index finds without a scan of all runs.
    """
    with engine.connect() as connection:
        due = connection.execute(_due(now, since)).all()
        counted = [(row, _bytes(connection, row.id)) for row in due]
    if not counted:
        return 0
    with writing(engine, durable=False) as connection:
        _keep(connection, counted, now)
    return len(counted)


def _due(now: float, since: float | None) -> Select[Any]:
    moved = and_(runs.c.revision != sizes.c.revision, sizes.c.measured_at <= now - FRESH_SECONDS)
    settled = runs.c.last_seen_at + SETTLED_SECONDS
    once_more = and_(sizes.c.measured_at < settled, settled <= now)
    query = (
        select(runs.c.id, runs.c.revision, sizes.c.thinned)
        .select_from(runs.outerjoin(sizes))
        .where(or_(sizes.c.run_id.is_(None), moved, once_more))
        .order_by(func.coalesce(sizes.c.measured_at, 0))
        .limit(RUNS_PER_STEP)
    )
    if since is None:
        return query
    # This condition matches every state; it lets the query use the index on state and time.
    return query.where(runs.c.state.in_(STATES), runs.c.last_seen_at > since)


def _keep(connection: Connection, counted: Sequence[tuple[Any, int]], now: float) -> None:
    ids = [row.id for row, _ in counted]
    # A run may have been removed since it was measured.
    there = set(connection.scalars(select(runs.c.id).where(runs.c.id.in_(ids))))
    connection.execute(delete(sizes).where(sizes.c.run_id.in_(ids)))
    rows = [
        {"run_id": row.id, "bytes": size, "measured_at": now, "revision": row.revision, "thinned": row.thinned}
        for row, size in counted
        if row.id in there
    ]  # fmt: skip
    if rows:
        connection.execute(insert(sizes), rows)


def _bytes(connection: Connection, run_id: str) -> int:
    return sum(int(connection.execute(part, {"run": run_id}).scalar_one() or 0) for part in _PARTS)


_RUN: Final[BindParameter[str]] = bindparam("run")
_ITS_CHUNKS: Final = and_(
    chunks.c.run_id == segments.c.run_id,
    chunks.c.process_id == segments.c.process_id,
    chunks.c.first_sequence == segments.c.first_sequence,
)
_PARTS: Final[tuple[Select[Any], ...]] = (
    select(func.sum(segments.c.bytes)).where(segments.c.run_id == _RUN),
    select(func.sum(func.length(batches.c.body))).where(batches.c.run_id == _RUN),
    select(func.sum(func.length(details.c.body))).where(details.c.run_id == _RUN),
    # Segments sealed by an older version, which did not store segment sizes.
    select(func.sum(func.length(chunks.c.blob)))
    .select_from(segments.join(chunks, _ITS_CHUNKS))
    .where(segments.c.run_id == _RUN, segments.c.bytes == 0),
)

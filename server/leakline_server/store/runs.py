"""Runs: changed, ended, listed. What the pages and the API show of a run comes from here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, Row, and_, func, or_, select, update

from leakline.analysis.results import SEVERITY, OomForecast, to_json

from .columns import reading
from .details import declared_expectations
from .engine import writing
from .tables import attempts, processes, runs, series

State = Literal["running", "finished", "failed", "killed", "silent"]
ENDED: Final = ("finished", "failed", "killed")
# How a process says it ended -> the state of its run.
_END_STATES: Final[Mapping[str, State]] = {
    "finished": "finished",
    "failed": "failed",
    "terminated": "killed",
    "killed": "killed",
}
MAX_LIMIT: Final = 200
MAX_NOTES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Changes:
    """The body of PATCH; None leaves a thing as it is. ``notes`` are added to those there are."""

    state: str | None = None
    ended_at: float | None = None
    reason: str | None = None
    instance: str | None = None
    name: str | None = None
    tags: tuple[str, ...] | None = None
    notes: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What to list. ``status`` is a verdict status or a run state; ``q`` is found in name, project or id."""

    project: str | None = None
    tag: str | None = None
    status: str | None = None
    q: str | None = None
    limit: int = 50
    cursor: str | None = None


class BadCursor(ValueError):
    pass


def change_run(engine: Engine, run_id: str, changes: Changes, now: float) -> dict[str, Any] | None:
    """Apply changes and return the run as it is then; None when there is no such run."""
    with writing(engine) as connection:
        row = row_of(connection, run_id)
        if row is None:
            return None
        values: dict[str, Any] = {"revision": runs.c.revision + 1}
        if changes.state is not None:
            # A process speaks; notes and tags come from people.
            values |= {"last_seen_at": now, **_end(connection, row, changes, now)}
        if changes.name is not None:
            values["name"] = changes.name
        if changes.tags is not None:
            values["tags"] = _dump(list(dict.fromkeys(changes.tags)))
        if changes.notes:
            notes = [*msgspec.json.decode(row.notes), *({"at": now, **n} for n in changes.notes)]
            values["notes"] = _dump(notes[-MAX_NOTES:])
        connection.execute(update(runs).where(runs.c.id == run_id).values(**values))
    return get_run(engine, run_id)


def list_runs(engine: Engine, filters: RunFilter) -> dict[str, Any]:
    """{"items": [RunSummary], "next": cursor or None}, newest first."""
    limit = max(1, min(filters.limit, MAX_LIMIT))
    query = select(runs).order_by(runs.c.started_at.desc(), runs.c.id.desc()).limit(limit + 1)
    if filters.project is not None:
        query = query.where(runs.c.project == filters.project)
    if filters.tag is not None:
        query = query.where(runs.c.tags.contains(_dump(filters.tag), autoescape=True))
    if filters.status is not None:
        column = runs.c.status if filters.status in SEVERITY else runs.c.state
        query = query.where(column == filters.status)
    if filters.q:
        needle = filters.q.lower().replace("\x00", "")
        found = (runs.c.name, runs.c.project, runs.c.id)
        query = query.where(or_(*(func.lower(c).contains(needle, autoescape=True) for c in found)))
    if filters.cursor is not None:
        started, run_id = _read_cursor(filters.cursor)
        older = and_(runs.c.started_at == started, runs.c.id < run_id)
        query = query.where(or_(runs.c.started_at < started, older))
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    more = len(rows) > limit
    last = rows[limit - 1] if more else None
    return {
        "items": [summary(row) for row in rows[:limit]],
        "next": None if last is None else f"{last.started_at!r}/{last.id}",
    }


def projects(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(runs.c.project).distinct().order_by(runs.c.project)))


def get_summary(engine: Engine, run_id: str) -> dict[str, Any] | None:
    """The RunSummary of one run."""
    with engine.connect() as connection:
        row = row_of(connection, run_id)
    return None if row is None else summary(row)


def get_run(engine: Engine, run_id: str) -> dict[str, Any] | None:
    """RunSummary with everything else there is of the run itself; None when there is no such run."""
    with reading(engine) as connection:
        row = row_of(connection, run_id)
        if row is None:
            return None
        names = connection.scalars(
            select(series.c.name).where(series.c.run_id == run_id).order_by(series.c.name)
        ).all()
        return summary(row) | {
            "config": msgspec.json.decode(row.config),
            "environment": msgspec.json.decode(row.environment),
            "phases": msgspec.json.decode(row.phases),
            "phases_seen": msgspec.json.decode(row.phases_seen),
            "processes": _processes(connection, run_id),
            "attempts": _attempts(connection, run_id),
            "series": list(names),
            "expectations": declared_expectations(connection, run_id),
            "notes": msgspec.json.decode(row.notes),
        }


def headline_runs(engine: Engine, limit: int) -> list[dict[str, Any]]:
    """{id, project, name, rss_bytes, peak_bytes} of the runs that are alive."""
    columns = (runs.c.id, runs.c.project, runs.c.name, runs.c.rss_bytes, runs.c.peak_bytes)
    query = select(*columns).where(runs.c.state == "running").limit(limit)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def unexamined(engine: Engine, since: float, limit: int) -> list[str]:
    """Ids of runs heard of after ``since`` that changed after their last verdict, newest first."""
    query = (
        select(runs.c.id)
        .where(runs.c.last_seen_at >= since, runs.c.revision > runs.c.verdict_revision)
        .order_by(runs.c.last_seen_at.desc())
        .limit(limit)
    )
    with engine.connect() as connection:
        return list(connection.scalars(query))


def anybody_silent(engine: Engine, before: float) -> bool:
    """Whether `mark_silent` has anything to do."""
    with engine.connect() as connection:
        return (
            connection.execute(select(runs.c.id).where(_quiet(before)).limit(1)).first() is not None
        )


def mark_silent(connection: Connection, before: float) -> list[dict[str, Any]]:
    """Mark running runs that were not heard since ``before``; the next batch makes them running again.

    The caller commits. Returns the RunSummary of each.
    """
    statement = (
        update(runs).where(_quiet(before)).values(state="silent", revision=runs.c.revision + 1)
    )
    return [summary(row) for row in connection.execute(statement.returning(runs))]


def _quiet(before: float) -> ColumnElement[bool]:
    return and_(runs.c.state == "running", runs.c.last_seen_at < before)


def summary(row: Row[Any]) -> dict[str, Any]:
    """The RunSummary of a row of runs, plain JSON."""
    verdict = {} if row.verdict is None else msgspec.json.decode(row.verdict)
    return {
        "id": row.id,
        "project": row.project,
        "name": row.name,
        "unit": row.unit,
        "total": row.total,
        "tags": msgspec.json.decode(row.tags),
        "state": row.state,
        "reason": row.reason,
        "attempt": row.attempt,
        "status": row.status,
        "summary": verdict.get("summary", "nothing to say yet"),
        "generations": _generations(row, verdict),
        "growth_bytes_per_generation": verdict.get("growth_bytes_per_generation"),
        "oom": verdict.get("oom", to_json(OomForecast())),
        "started_at": iso(row.started_at),
        "last_seen_at": iso(row.last_seen_at),
        "ended_at": None if row.ended_at is None else iso(row.ended_at),
        "rss_bytes": row.rss_bytes,
        "peak_bytes": row.peak_bytes,
        "sparkline": msgspec.json.decode(row.sparkline).get("values", []),
        "revision": row.revision,
        "url": f"/runs/{row.id}",
    }


def iso(seconds: float) -> str:
    """UTC, to the millisecond: 2026-01-31T12:00:00.000Z"""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _generations(row: Row[Any], verdict: Mapping[str, Any]) -> int:
    # A program without generations is examined minute by minute; minutes are not shown as generations.
    if row.first_generation is None:
        return 0
    if verdict.get("generations"):
        return int(verdict["generations"])
    return int(row.last_generation - row.first_generation)


def _end(connection: Connection, row: Row[Any], changes: Changes, now: float) -> dict[str, Any]:
    """A process ends, and the run with the last of its attempt; without ``instance`` the whole run ends."""
    assert changes.state is not None
    ended_at = now if changes.ended_at is None else changes.ended_at
    if changes.state == "running":
        return {"state": "running", "ended_at": None, "reason": ""}
    state = _END_STATES[changes.state]
    if changes.instance is not None:
        connection.execute(
            update(processes)
            .where(processes.c.run_id == row.id, processes.c.instance == changes.instance)
            .values(ended_at=ended_at, end_state=state)
        )
        of_run = connection.execute(
            select(processes.c.instance, processes.c.attempt, processes.c.end_state).where(
                processes.c.run_id == row.id
            )
        ).all()
        newest = max((p.attempt for p in of_run), default=0)
        of_attempt = {p.instance: p.end_state for p in of_run if p.attempt == newest}
        if of_attempt and (changes.instance not in of_attempt or None in of_attempt.values()):
            # Others go on, or what ended was an attempt before this one.
            return {}
        state = max((state, *of_attempt.values()), key=ENDED.index)
    return {"state": state, "ended_at": ended_at, "reason": changes.reason or ""}


def _processes(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    rows = connection.execute(
        select(processes)
        .where(processes.c.run_id == run_id)
        .order_by(processes.c.rank, processes.c.id)
    )
    return [
        {
            "instance": row.instance,
            "rank": row.rank,
            "role": row.role,
            "pid": row.pid,
            "host": row.host,
            "attempt": row.attempt,
            "started_at": iso(row.started_at),
            "last_seen_at": iso(row.last_seen_at),
            "ended_at": None if row.ended_at is None else iso(row.ended_at),
            "end_state": row.end_state,
            "clock_skew_seconds": row.clock_skew_seconds,
            "rss_bytes": row.rss_bytes,
            "peak_bytes": row.peak_bytes,
            "lost": msgspec.json.decode(row.lost),
        }
        for row in rows
    ]


def _attempts(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    query = select(attempts).where(attempts.c.run_id == run_id).order_by(attempts.c.number)
    return [
        {
            "number": row.number,
            "started_at": iso(row.started_at),
            "environment": msgspec.json.decode(row.environment),
        }
        for row in connection.execute(query)
    ]


def row_of(connection: Connection, run_id: str) -> Row[Any] | None:
    if "\x00" in run_id:
        # Postgres refuses the question instead of answering no.
        return None
    return connection.execute(select(runs).where(runs.c.id == run_id)).first()


def _read_cursor(cursor: str) -> tuple[float, str]:
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,20})?)/([\w.:-]+)", cursor)
    if found is None:
        raise BadCursor(cursor)
    return float(found[1]), found[2]


def _dump(value: Any) -> str:
    return msgspec.json.encode(value).decode()

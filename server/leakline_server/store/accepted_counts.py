"""Counts that people accepted as what is to be expected, of the runs of a project.

A row is never changed but for its end, so what was accepted, and when, can be read later. What stands is expected of
the run on whose page it was accepted, and of every run of the project that was heard of since: one that had ended
before keeps what was said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, Select, and_, insert, or_, select, update

from leakline.analysis.history import Expectation
from leakline.analysis.learned import replaces

from ..limits import MAX_ACCEPTED_COUNTS, MAX_PAST
from .engine import writing
from .newest import keep_newest
from .tables import accepted_counts, runs

_LIVE: Final = ("running", "silent")
_STANDS: Final = accepted_counts.c.ended_at.is_(None)


class TooMany(Exception):
    """The project has MAX_ACCEPTED_COUNTS; its text is the project."""


@dataclass(frozen=True, slots=True)
class AcceptedCount:
    """``run``: on whose page it was accepted; ``created_at`` in Unix seconds."""

    expectation: Expectation
    run: str
    created_at: float


def accept(engine: Engine, run_id: str, wanted: Expectation, now: float) -> list[str] | None:
    """Expect it from now on, in place of what was accepted for the same place. Returns the ids of the runs that it
    concerns, each with a new revision; None when there is no such run. Raises TooMany.
    """
    table = accepted_counts
    with writing(engine) as connection:
        run = _run(connection, run_id)
        if run is None:
            return None
        standing = connection.execute(_of_project(run.project)).all()
        ended = [
            row for row in standing if row.type == wanted.type and replaces(wanted.after, row.phase)
        ]
        if len(standing) - len(ended) >= MAX_ACCEPTED_COUNTS:
            raise TooMany(run.project)
        concerned = _concerned(connection, run, ended)
        _end(connection, ended, now)
        past = table.c.project == run.project, table.c.ended_at.is_not(None)
        keep_newest(connection, table.c.id, table.c.id, MAX_PAST, *past)
        connection.execute(
            insert(accepted_counts).values(
                project=run.project, type=wanted.type, phase=wanted.after, low=wanted.low, high=wanted.high,
                run=run_id, created_at=now,
            )
        )  # fmt: skip
        return concerned


def take_back(
    engine: Engine, run_id: str, type_name: str, after: str | None, now: float
) -> list[str] | None:
    """Expect it no more, of no run. As `accept`; no ids where nothing was accepted, None when there is no such run."""
    with writing(engine) as connection:
        run = _run(connection, run_id)
        if run is None:
            return None
        standing = connection.execute(_of_project(run.project)).all()
        ended = [row for row in standing if (row.type, row.phase) == (type_name, after)]
        if not ended:
            return []
        concerned = _concerned(connection, run, ended)
        _end(connection, ended, now)
        return concerned


def of_project(engine: Engine, project: str) -> list[AcceptedCount]:
    """What stands, by type and phase."""
    with engine.connect() as connection:
        rows = connection.execute(_of_project(project)).all()
    found = [AcceptedCount(_expectation(row), row.run, row.created_at) for row in rows]
    return sorted(found, key=lambda each: (each.expectation.type, each.expectation.after or ""))


def expected_of(connection: Connection, run: Row[Any]) -> tuple[Expectation, ...]:
    """What stands and is expected of this run, a row of ``runs``."""
    rows = connection.execute(_of_project(run.project)).all()
    # Of two that were accepted for one place in the same moment, the newer.
    found = {(row.type, row.phase): _expectation(row) for row in rows if _applies(row, run)}
    return tuple(found.values())


def _applies(row: Row[Any], run: Row[Any]) -> bool:
    heard = run.state in _LIVE or run.last_seen_at >= row.created_at
    return heard or row.run == run.id


def _run(connection: Connection, run_id: str) -> Row[Any] | None:
    if "\x00" in run_id:
        # Postgres refuses the question instead of answering no.
        return None
    query: Select[Any] = select(runs.c.id, runs.c.project).where(runs.c.id == run_id)
    return connection.execute(query).first()


def _of_project(project: str) -> Select[Any]:
    table = accepted_counts
    return select(table).where(table.c.project == project, _STANDS).order_by(table.c.id)


def _expectation(row: Row[Any]) -> Expectation:
    return Expectation(row.type, row.low, row.high, row.phase, accepted=True)


def _concerned(connection: Connection, run: Row[Any], ended: Sequence[Row[Any]]) -> list[str]:
    """The runs to be looked at again: those that live, this one, and where what ends was accepted.

    Those that knew what ends get a new revision with them, so that their pages say so; their verdict stays as it was
    told until they have news.
    """
    mine = runs.c.project == run.project
    theirs = [run.id, *(row.run for row in ended)]
    again = and_(mine, or_(runs.c.state.in_(_LIVE), runs.c.id.in_(theirs)))
    knew = [and_(mine, runs.c.last_seen_at >= row.created_at) for row in ended]
    touched = or_(again, *knew)
    # All who lock several take them in this order.
    connection.execute(
        select(runs.c.id).where(touched).order_by(runs.c.id).with_for_update(key_share=True)
    )
    connection.execute(update(runs).where(touched).values(revision=runs.c.revision + 1))
    return list(connection.scalars(select(runs.c.id).where(again)))


def _end(connection: Connection, rows: Sequence[Row[Any]], now: float) -> None:
    ids = [row.id for row in rows]
    ended = update(accepted_counts).where(accepted_counts.c.id.in_(ids)).values(ended_at=now)
    connection.execute(ended)

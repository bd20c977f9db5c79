"""How much a project takes in on a day: runs that begin and bytes that are stored, bounded (`limits.py`, settings).

The day is that of UTC. Runs are counted one by one, in the transaction that creates them, and so are the bytes of what
a run tells of itself. Those of batches are counted in memory and written once a mebibyte or ten seconds, in a
transaction that happens anyway: what a killed server had not written yet is not counted. Several servers on one
database see what the others have written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Dialect, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from ..limits import PROJECTS_PER_DAY
from .retention import DAY_SECONDS, PerProject
from .tables import intake

FLUSH_BYTES: Final = 2**20
FLUSH_SECONDS: Final = 10.0
# The longest that anybody is told to wait: a bound may be raised before the day ends.
MAX_PATIENCE_SECONDS: Final = 3_600
# Counts of days before, for whoever looks.
KEPT_DAYS: Final = 8


class TooManyRuns(Exception):
    """The project has begun as many runs today as it may."""

    def __init__(self, project: str, limit: int) -> None:
        super().__init__(project, limit)
        self.project, self.limit = project, limit


class TooManyProjects(Exception):
    """Runs have begun today in as many projects as they may."""


class TooMuchStored(Exception):
    """The project has stored as many bytes today as it may."""

    def __init__(self, project: str, limit: int) -> None:
        super().__init__(project, limit)
        self.project, self.limit = project, limit


def day_of(now: float) -> int:
    return int(now // DAY_SECONDS)


def patience_seconds(now: float) -> int:
    """How long to wait before it is worth trying again."""
    left = DAY_SECONDS - now % DAY_SECONDS
    return min(MAX_PATIENCE_SECONDS, int(left) + 1)


def begin_run(connection: Connection, project: str, now: float, limit: float | None) -> None:
    """Count a run of today. Raises TooManyRuns and TooManyProjects; then the caller's transaction must not go on."""
    found = _add(connection, project, day_of(now), runs=1)
    if limit is not None and found.runs > limit:
        raise TooManyRuns(project, int(limit))
    if found.runs == 1:
        connection.execute(delete(intake).where(intake.c.day < day_of(now) - KEPT_DAYS))
        if connection.execute(_PROJECTS, {"day": day_of(now)}).scalar_one() > PROJECTS_PER_DAY:
            raise TooManyProjects


def add_bytes(
    connection: Connection, project: str, size: int, now: float, limit: float | None
) -> None:
    """Count what is stored beside batches. Raises TooMuchStored where there was no room before it; then the caller's
    transaction must not go on."""
    found = _add(connection, project, day_of(now), bytes_=size)
    if limit is not None and found.bytes - size >= limit:
        raise TooMuchStored(project, int(limit))


@dataclass(slots=True)
class _Project:
    stored: int
    # Not written yet.
    waiting: int = 0


@dataclass(slots=True)
class Intake:
    """The bytes of today, as one writer knows them. Used by its thread."""

    limits: PerProject
    _day: int = -1
    _flushed_at: float = 0.0
    _projects: dict[str, _Project] = field(default_factory=dict)

    def limit_passed(self, connection: Connection, project: str, now: float) -> int | None:
        """The bound of the project where it has stored as much today."""
        limit = self.limits.of(project)
        if limit is None:
            return None
        known = self._known(connection, project, now)
        return int(limit) if known.stored + known.waiting >= limit else None

    def add(self, connection: Connection, sizes: Mapping[str, int], now: float) -> None:
        """So many bytes were stored for each project, in this transaction."""
        for project, size in sizes.items():
            self._known(connection, project, now).waiting += size
        waiting = sum(known.waiting for known in self._projects.values())
        if waiting >= FLUSH_BYTES or now - self._flushed_at >= FLUSH_SECONDS:
            self._flush(connection, now)

    def _known(self, connection: Connection, project: str, now: float) -> _Project:
        day = day_of(now)
        if day != self._day:
            # What is not written yet of yesterday bounds nothing any more.
            self._projects.clear()
            self._day = day
        if project not in self._projects:
            row = connection.execute(_BYTES, {"project": project, "day": day}).first()
            self._projects[project] = _Project(0 if row is None else int(row.bytes))
        return self._projects[project]

    def _flush(self, connection: Connection, now: float) -> None:
        """In the order of their names, as every server takes them."""
        self._flushed_at = now
        for project, known in sorted(self._projects.items()):
            if known.waiting:
                known.stored = int(_add(connection, project, self._day, bytes_=known.waiting).bytes)
                known.waiting = 0


def of_today(connection: Connection, now: float | None = None) -> Iterable[Any]:
    """(project, runs, bytes), the fullest first."""
    day = day_of(time.time() if now is None else now)
    query = select(intake.c.project, intake.c.runs, intake.c.bytes).where(intake.c.day == day)
    return connection.execute(query.order_by(intake.c.bytes.desc())).all()


def _add(connection: Connection, project: str, day: int, runs: int = 0, bytes_: int = 0) -> Any:
    values = {"project": project, "day": day, "runs": runs, "bytes": bytes_}
    return connection.execute(_upsert(connection.dialect), values).one()


def _upsert(dialect: Dialect) -> Any:
    if dialect.name not in _UPSERTS:
        insert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        statement = insert(intake)
        more = {
            "runs": intake.c.runs + statement.excluded.runs,
            "bytes": intake.c.bytes + statement.excluded.bytes,
        }
        counted = statement.on_conflict_do_update(index_elements=["project", "day"], set_=more)
        _UPSERTS[dialect.name] = counted.returning(intake.c.runs, intake.c.bytes)
    return _UPSERTS[dialect.name]


# Made once, for each kind of database: making a statement costs more than executing it.
_BYTES: Final = select(intake.c.bytes).where(
    intake.c.project == bindparam("project"), intake.c.day == bindparam("day")
)
_PROJECTS: Final = (
    select(func.count())
    .select_from(intake)
    .where(intake.c.day == bindparam("day"), intake.c.runs > 0)
)
_UPSERTS: Final[dict[str, Any]] = {}

"""Daily quotas of projects: new runs and stored bytes (`limits.py`, settings). A day is a UTC day.

Runs, and bytes stored outside batches, are counted in the transaction that stores them. Bytes of batches are counted in
memory and written once per mebibyte or ten seconds, as part of another transaction; counts that a killed server had not
written are lost. Servers on one database see each other's written counts.

Data from browser tokens is counted twice: for its project, and in a separate row whose name no project can have.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Dialect, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from ...limits import (
    BROWSER_BYTES_PER_DAY,
    BROWSER_RUNS_PER_DAY,
    PROJECTS_PER_DAY,
    share_of_browsers,
)
from ..maintenance.retention_policy import DAY_SECONDS, PerProject
from ..schema import intake

FLUSH_BYTES: Final = 2**20
FLUSH_SECONDS: Final = 10.0
# The maximum Retry-After. Clients need not wait until the day ends, because the limit may be raised before then.
MAX_PATIENCE_SECONDS: Final = 3_600
# Counts of this many past days are kept, so that users can look them up.
KEPT_DAYS: Final = 8
# The suffix of the names that count browser data. No project has this name, because project names contain no control
# characters.
_BY_BROWSERS: Final = "\x1fbrowsers"


@dataclass(frozen=True, slots=True)
class Allowance:
    """The daily quota of a project; None means unlimited. ``browser``: only the browser tokens' share is allowed."""

    runs: float | None = None
    bytes: float | None = None
    browser: bool = False


UNBOUNDED: Final = Allowance()


class TooManyRuns(Exception):
    """Raised when today's limit of new runs is reached for the project or for its browser tokens."""

    def __init__(self, project: str, limit: int, browser: bool = False) -> None:
        super().__init__(project, limit, browser)
        self.project, self.limit, self.browser = project, limit, browser


class TooManyProjects(Exception):
    """Raised when runs have already been started in PROJECTS_PER_DAY projects today."""


class TooMuchStored(Exception):
    """Raised when today's limit of stored bytes is reached for the project or for its browser tokens."""

    def __init__(self, project: str, limit: int, browser: bool = False) -> None:
        super().__init__(project, limit, browser)
        self.project, self.limit, self.browser = project, limit, browser


def _day_of(now: float) -> int:
    return int(now // DAY_SECONDS)


def patience_seconds(now: float) -> int:
    """Return how many seconds to wait before trying again."""
    left = DAY_SECONDS - now % DAY_SECONDS
    return min(MAX_PATIENCE_SECONDS, int(left) + 1)


def begin_run(connection: Connection, project: str, now: float, allowed: Allowance) -> None:
    """Count a new run. Raises TooManyRuns and TooManyProjects, after which the caller must roll back."""
    found = _add(connection, project, _day_of(now), runs=1)
    if allowed.runs is not None and found.runs > allowed.runs:
        raise TooManyRuns(project, int(allowed.runs))
    if allowed.browser:
        share = share_of_browsers(BROWSER_RUNS_PER_DAY, allowed.runs)
        if _add(connection, by_browsers(project), _day_of(now), runs=1).runs > share:
            raise TooManyRuns(project, share, browser=True)
    if found.runs == 1:
        connection.execute(delete(intake).where(intake.c.day < _day_of(now) - KEPT_DAYS))
        if connection.execute(_PROJECTS, {"day": _day_of(now)}).scalar_one() > PROJECTS_PER_DAY:
            raise TooManyProjects


def add_bytes(
    connection: Connection, project: str, size: int, now: float, allowed: Allowance
) -> None:
    """Count bytes stored outside batches.

    Raises TooMuchStored if the quota was already used up; the caller must then roll back.
    """
    found = _add(connection, project, _day_of(now), bytes_=size)
    if allowed.bytes is not None and found.bytes - size >= allowed.bytes:
        raise TooMuchStored(project, int(allowed.bytes))
    if allowed.browser:
        share = share_of_browsers(BROWSER_BYTES_PER_DAY, allowed.bytes)
        found = _add(connection, by_browsers(project), _day_of(now), bytes_=size)
        if found.bytes - size >= share:
            raise TooMuchStored(project, share, browser=True)


def by_browsers(project: str) -> str:
    """Return the name under which data from the project's browser tokens is counted."""
    return project + _BY_BROWSERS


@dataclass(slots=True)
class _Project:
    stored: int
    # The bytes that were counted but are not in the database yet.
    waiting: int = 0


@dataclass(slots=True)
class Intake:
    """Today's byte counts of one writer. Not thread-safe."""

    limits: PerProject
    _day: int = -1
    _flushed_at: float = 0.0
    _projects: dict[str, _Project] = field(default_factory=dict)

    def limit_passed(
        self, connection: Connection, project: str, now: float, browser: bool = False
    ) -> TooMuchStored | None:
        """Return the limit that the project has reached today, or None if no limit is reached.

        ``browser``: also check the limit of the project's browser tokens.
        """
        limit = self.limits.of(project)
        if limit is not None and self._stored(connection, project, now) >= limit:
            return TooMuchStored(project, int(limit))
        if not browser:
            return None
        share = share_of_browsers(BROWSER_BYTES_PER_DAY, limit)
        if self._stored(connection, by_browsers(project), now) < share:
            return None
        return TooMuchStored(project, share, browser=True)

    def _stored(self, connection: Connection, name: str, now: float) -> int:
        known = self._known(connection, name, now)
        return known.stored + known.waiting

    def add(self, connection: Connection, sizes: Mapping[str, int], now: float) -> None:
        """Count the bytes that this transaction stores for each project, and for each project's browser tokens."""
        for project, size in sizes.items():
            self._known(connection, project, now).waiting += size
        waiting = sum(known.waiting for known in self._projects.values())
        if waiting >= FLUSH_BYTES or now - self._flushed_at >= FLUSH_SECONDS:
            self._flush(connection, now)

    def _known(self, connection: Connection, project: str, now: float) -> _Project:
        day = _day_of(now)
        if day != self._day:
            # Yesterday's unwritten counts no longer matter.
            self._projects.clear()
            self._day = day
        if project not in self._projects:
            row = connection.execute(_BYTES, {"project": project, "day": day}).first()
            self._projects[project] = _Project(0 if row is None else int(row.bytes))
        return self._projects[project]

    def _flush(self, connection: Connection, now: float) -> None:
        """Write the counts, ordered by name. All servers use this order, so they cannot deadlock."""
        self._flushed_at = now
        for project, known in sorted(self._projects.items()):
            if known.waiting:
                known.stored = int(_add(connection, project, self._day, bytes_=known.waiting).bytes)
                known.waiting = 0


def of_today(connection: Connection, now: float | None = None) -> Iterable[Any]:
    """Return today's counts as (project, runs, bytes), the projects with the most bytes first."""
    day = _day_of(time.time() if now is None else now)
    query = select(intake.c.project, intake.c.runs, intake.c.bytes).where(
        intake.c.day == day, _OF_ALL
    )
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


# Excludes the separate counts of browser tokens.
_OF_ALL: Final = ~intake.c.project.endswith(_BY_BROWSERS)
# Statements are built only once, because building a statement costs more than executing it.
_BYTES: Final = select(intake.c.bytes).where(
    intake.c.project == bindparam("project"), intake.c.day == bindparam("day")
)
_PROJECTS: Final = (
    select(func.count())
    .select_from(intake)
    .where(intake.c.day == bindparam("day"), intake.c.runs > 0, _OF_ALL)
)
_UPSERTS: Final[dict[str, Any]] = {}

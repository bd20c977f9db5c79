"""The retention policy: which runs to remove and which to thin out (`retention_steps.py` does the work).

1. A live run, or a run tagged `keep` or `baseline`, is never removed or thinned out.
2. A run is removed when it has not been seen for its project's retention period.
3. While a project exceeds its size limit, its runs are removed, the least recently seen first.
4. A run is thinned out when it has not been seen for the period in which its project keeps every snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Connection, Engine, Row, Select, bindparam, func, or_, select

from ..schema import runs, sizes

DAY_SECONDS: Final = 86_400.0
# Runs with any of these tags are kept.
KEEPING: Final = frozenset({"keep", "baseline"})
# A silent run may resume, so it is not removed to reduce its project's size before it has been silent for this long.
SILENT_SECONDS: Final = DAY_SECONDS

Why = Literal["age", "size"]


@dataclass(frozen=True, slots=True)
class PerProject:
    """Limits for some projects by name, and a default for all other projects; None means unlimited."""

    default: float | None = None
    projects: Mapping[str, float | None] = field(default_factory=dict)

    def of(self, project: str) -> float | None:
        return self.projects.get(project, self.default)

    @property
    def least(self) -> float | None:
        """The smallest limit, or None if all projects are unlimited."""
        return min(
            (n for n in (self.default, *self.projects.values()) if n is not None), default=None
        )


FOREVER: Final = PerProject()


@dataclass(frozen=True, slots=True)
class Limits:
    """The configured limits; by default everything is kept."""

    keep_days: PerProject = FOREVER
    thin_after_days: PerProject = FOREVER
    keep_bytes: PerProject = FOREVER


@dataclass(frozen=True, slots=True)
class Going:
    """A run to remove, and the reason."""

    run_id: str
    project: str
    name: str
    last_seen_at: float
    bytes: int
    why: Why


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A project that still exceeds its size limit, because its remaining runs are live or kept by a tag."""

    project: str
    bytes: int
    limit: int


@dataclass(frozen=True, slots=True)
class Decision:
    going: list[Going]
    too_large: list[TooLarge]


def decide(engine: Engine, limits: Limits, now: float) -> Decision:
    """Return the runs to remove now, the least recently seen first, and the projects that will still be too large."""
    with engine.connect() as connection:
        old = {going.run_id: going for going in _too_old(connection, limits.keep_days, now)}
        more, too_large = _by_size(connection, limits.keep_bytes, set(old), now)
    going = sorted([*old.values(), *more], key=lambda each: (each.last_seen_at, each.run_id))
    return Decision(going, too_large)


def still_goes(connection: Connection, going: Going, limits: Limits, run: Row[Any]) -> bool:
    """Return True if the decision to remove a run still holds for its current row.

    Since the decision, the run may have been tagged or sent data, or its project may have become small enough.
    """
    if _kept(run) or run.project != going.project or run.last_seen_at != going.last_seen_at:
        return False
    if going.why == "age":
        return True
    limit = limits.keep_bytes.of(run.project)
    size = int(connection.execute(_SIZE, {"project": run.project}).scalar_one())
    return limit is not None and size > limit


def may_be_thinned(engine: Engine, limits: Limits, run_id: str, now: float) -> bool:
    """Return True if this run may be thinned out in its current state."""
    query = _RUNS.where(runs.c.id == run_id, runs.c.state != "running")
    with engine.connect() as connection:
        row = connection.execute(query).first()
    if row is None or _kept(row):
        return False
    return _older(row, limits.thin_after_days.of(row.project), now)


def to_thin(engine: Engine, limits: Limits, now: float) -> list[tuple[str, int]]:
    """Return (id, revision) of runs that may have snapshots to thin out, the least recently seen first."""
    least = limits.thin_after_days.least
    if least is None:
        return []
    query = _ended(now - least * DAY_SECONDS).where(
        sizes.c.run_id.is_not(None),
        or_(sizes.c.thinned.is_(None), sizes.c.thinned != runs.c.revision),
    )
    with engine.connect() as connection:
        return [
            (row.id, row.revision)
            for row in connection.execute(query)
            if not _kept(row) and _older(row, limits.thin_after_days.of(row.project), now)
        ]


def _too_old(connection: Connection, days: PerProject, now: float) -> Iterator[Going]:
    if days.least is None:
        return
    for row in connection.execute(_ended(now - days.least * DAY_SECONDS)):
        if not _kept(row) and _older(row, days.of(row.project), now):
            yield _going(row, "age")


def _by_size(
    connection: Connection, limits: PerProject, gone: set[str], now: float
) -> tuple[list[Going], list[TooLarge]]:
    going: list[Going] = []
    too_large: list[TooLarge] = []
    if limits.least is None:
        return going, too_large
    of_projects: dict[str, list[Any]] = {}
    for row in connection.execute(_RUNS.order_by(runs.c.last_seen_at, runs.c.id)):
        if row.id not in gone and limits.of(row.project) is not None:
            of_projects.setdefault(row.project, []).append(row)
    for project, found in of_projects.items():
        limit = limits.of(project) or 0
        size = sum(row.bytes or 0 for row in found)
        for row in _may_go(found, now):
            if size <= limit:
                break
            # A run that was not measured does not count towards the project's size, so removing it would not help.
            if row.bytes:
                going.append(_going(row, "size"))
                size -= row.bytes
        if size > limit:
            too_large.append(TooLarge(project, size, int(limit)))
    return going, too_large


def _may_go(found: Iterable[Any], now: float) -> Iterator[Any]:
    for row in found:
        silent = row.state == "silent" and row.last_seen_at > now - SILENT_SECONDS
        if row.state != "running" and not silent and not _kept(row):
            yield row


_RUNS: Final = select(
    runs.c.id, runs.c.project, runs.c.name, runs.c.tags, runs.c.state, runs.c.last_seen_at, runs.c.revision,
    sizes.c.bytes,
).select_from(runs.outerjoin(sizes))  # fmt: skip


# The measured size of a project.
_SIZE: Final = (
    select(func.coalesce(func.sum(sizes.c.bytes), 0))
    .select_from(runs.join(sizes))
    .where(runs.c.project == bindparam("project"))
)


def _ended(before: float) -> Select[Any]:
    """Return the query for runs that are not running and were last seen before ``before``."""
    return _RUNS.where(runs.c.state != "running", runs.c.last_seen_at < before).order_by(
        runs.c.last_seen_at, runs.c.id
    )


def _kept(row: Any) -> bool:
    return not KEEPING.isdisjoint(msgspec.json.decode(row.tags, type=list[str]))


def _older(row: Any, days: float | None, now: float) -> bool:
    return days is not None and bool(row.last_seen_at < now - days * DAY_SECONDS)


def _going(row: Any, why: Why) -> Going:
    return Going(row.id, row.project, row.name, row.last_seen_at, row.bytes or 0, why)

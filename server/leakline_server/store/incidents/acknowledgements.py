"""What people said of a leak in a project: acknowledged until, ignored, or closed with a note.

A row is never changed but for its end, so what was said, and when, can be read later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    false,
    insert,
    not_,
    or_,
    select,
    update,
)

from ...limits import MAX_PAST
from ..engine import keep_newest
from ..schema import acknowledgements, attempts, incidents, runs

Kind = Literal["acknowledged", "ignored", "closed"]
# What ends when something new is said: a closing note is kept for the day the leak comes back.
_REPLACED: Final[Mapping[Kind, Sequence[Kind]]] = {
    "acknowledged": ("acknowledged", "ignored"),
    "ignored": ("acknowledged", "ignored"),
    "closed": ("acknowledged", "ignored", "closed"),
}


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """``status`` and ``priority`` are those the leak had then; times are Unix seconds."""

    kind: Kind
    reason: str
    status: str
    priority: str
    created_at: float
    expires_at: float | None = None
    ended_at: float | None = None

    def holds(self, now: float) -> bool:
        return self.ended_at is None and (self.expires_at is None or self.expires_at > now)


def say(connection: Connection, project: str, fingerprint: str, said: Acknowledgement) -> None:
    """Write it; the caller commits. What it replaces ends."""
    for kind in _REPLACED[said.kind]:
        end(connection, project, fingerprint, kind, said.created_at)
    connection.execute(
        insert(acknowledgements).values(
            project=project, fingerprint=fingerprint, kind=said.kind, reason=said.reason,
            status=said.status, priority=said.priority, created_at=said.created_at,
            expires_at=said.expires_at,
        )
    )  # fmt: skip
    table = acknowledgements
    past = (
        table.c.project == project,
        table.c.fingerprint == fingerprint,
        not_(_holds(said.created_at)),
    )
    keep_newest(connection, table.c.id, table.c.id, MAX_PAST, *past)


def _holds(now: float) -> ColumnElement[bool]:
    table = acknowledgements
    later = or_(table.c.expires_at.is_(None), table.c.expires_at > now)
    return and_(table.c.ended_at.is_(None), later)


def end(connection: Connection, project: str, fingerprint: str, kind: Kind, now: float) -> bool:
    """Take back what holds; the caller commits. Returns whether there was anything."""
    table = acknowledgements
    ended = connection.execute(
        update(table)
        .where(table.c.project == project, table.c.fingerprint == fingerprint)
        .where(table.c.kind == kind, _holds(now))
        .values(ended_at=now)
        .returning(table.c.id)
    )
    return ended.first() is not None


def of_leaks(
    connection: Connection, leaks: Collection[tuple[str, str]]
) -> dict[tuple[str, str], list[Acknowledgement]]:
    """All that was ever said of these (project, fingerprint), in order of time."""
    table = acknowledgements
    of_each = or_(
        *(and_(table.c.project == p, table.c.fingerprint == name) for p, name in leaks), false()
    )
    found: dict[tuple[str, str], list[Acknowledgement]] = {}
    for row in connection.execute(select(table).where(of_each).order_by(table.c.id)):
        found.setdefault((row.project, row.fingerprint), []).append(_as_said(row))
    return found


def of_run(connection: Connection, project: str, run_id: str) -> dict[str, list[Acknowledgement]]:
    """All that was ever said of the incidents of a run, by fingerprint, in order of time."""
    table = acknowledgements
    of_incidents = select(incidents.c.fingerprint).where(incidents.c.run_id == run_id)
    query = (
        select(table)
        .where(table.c.project == project, table.c.fingerprint.in_(of_incidents))
        .order_by(table.c.id)
    )
    found: dict[str, list[Acknowledgement]] = {}
    for row in connection.execute(query):
        found.setdefault(row.fingerprint, []).append(_as_said(row))
    return found


def go_with(connection: Connection, run_id: str, old: str, new: str) -> None:
    """A leak of this run is known by a better fingerprint now: what holds for it holds under the new one as well.

    Not where people have spoken of the new one themselves. The caller commits.
    """
    table = acknowledgements
    project = select(runs.c.project).where(runs.c.id == run_id).scalar_subquery()
    of_project = select(table).where(table.c.project == project)
    if connection.execute(of_project.where(table.c.fingerprint == new).limit(1)).first() is None:
        holding = of_project.where(table.c.fingerprint == old, table.c.ended_at.is_(None))
        for row in connection.execute(holding.order_by(table.c.id)).mappings().all():
            copied = {name: value for name, value in row.items() if name != "id"}
            connection.execute(insert(table).values({**copied, "fingerprint": new}))


def began_at(connection: Connection, run_id: str) -> float:
    """When the newest attempt of a run began, in Unix seconds; 0 when nobody said."""
    query = (
        select(attempts.c.started_at)
        .where(attempts.c.run_id == run_id)
        .order_by(attempts.c.number.desc())
        .limit(1)
    )
    return float(connection.execute(query).scalar() or 0.0)


def _as_said(row: Row[Any]) -> Acknowledgement:
    return Acknowledgement(
        row.kind, row.reason, row.status, row.priority, row.created_at, row.expires_at, row.ended_at
    )

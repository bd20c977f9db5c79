"""Incidents of all runs grouped by project and fingerprint, and the acknowledgements of each group.

A leak forms one group, no matter how many runs it occurs in.

state          meaning
ignored        a person has ignored the leak
acknowledged   a person has acknowledged the leak, and the acknowledgement has not expired
closed         a person has closed the leak, and it has not occurred in any run that began later
open           the leak is suspected or confirmed in at least one run
over           the leak has stopped in all runs
watched        growth that was never reported as a leak

Each acknowledgement is a row of one of three kinds: acknowledged until a given time, ignored, or closed with a note.
Only the end time of a stored row ever changes, so that the history is preserved.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    and_,
    case,
    func,
    insert,
    not_,
    or_,
    select,
    tuple_,
    update,
)

from ..limits import MAX_PAGE, MAX_PAST
from .engine import keep_newest, reading
from .maintenance.run_deletion import IS_DELETED
from .runs.runs import BadCursor, iso, iso_or_none
from .schema import acknowledgements, attempts, incidents, runs

Kind = Literal["acknowledged", "ignored", "closed"]
# For each kind of new acknowledgement, the kinds of earlier acknowledgements that it ends. A closing note is ended only
# by another closing note, because it is shown when the leak comes back.
_REPLACED: Final[Mapping[Kind, Sequence[Kind]]] = {
    "acknowledged": ("acknowledged", "ignored"),
    "ignored": ("acknowledged", "ignored"),
    "closed": ("acknowledged", "ignored", "closed"),
}


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A person's response to a leak. Times are Unix seconds.

    ``status`` and ``priority`` are the leak's status and priority at the time of the response.
    """

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
    """Add an acknowledgement and end the acknowledgements that it replaces; the caller commits."""
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
    """End a leak's acknowledgements of one kind. Return True if any were in force. The caller commits."""
    table = acknowledgements
    ended = connection.execute(
        update(table)
        .where(table.c.project == project, table.c.fingerprint == fingerprint)
        .where(table.c.kind == kind, _holds(now))
        .values(ended_at=now)
        .returning(table.c.id)
    )
    return ended.first() is not None


def acknowledgements_of(
    connection: Connection, leaks: Collection[tuple[str, str]]
) -> dict[tuple[str, str], list[Acknowledgement]]:
    """Return all current and past acknowledgements of these (project, fingerprint) pairs, oldest first."""
    if not leaks:
        return {}
    table = acknowledgements
    of_leaks = tuple_(table.c.project, table.c.fingerprint).in_(leaks)
    found: dict[tuple[str, str], list[Acknowledgement]] = {}
    for row in connection.execute(select(table).where(of_leaks).order_by(table.c.id)):
        found.setdefault((row.project, row.fingerprint), []).append(_as_said(row))
    return found


def of_project(connection: Connection, project: str) -> dict[str, list[Acknowledgement]]:
    """Return all current and past acknowledgements of a project's leaks, by fingerprint, oldest first."""
    query = select(acknowledgements).where(acknowledgements.c.project == project)
    found: dict[str, list[Acknowledgement]] = {}
    for row in connection.execute(query.order_by(acknowledgements.c.id)):
        found.setdefault(row.fingerprint, []).append(_as_said(row))
    return found


def go_with(connection: Connection, run_id: str, old: str, new: str) -> None:
    """Copy the acknowledgements of a leak's old fingerprint to its new fingerprint. The caller commits.

    Withdrawn and replaced acknowledgements are not copied. Nothing is copied if the new fingerprint already has
    acknowledgements.
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
    """Return when the newest attempt of a run began, in Unix seconds, or 0 if unknown."""
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


State = Literal["open", "acknowledged", "ignored", "closed", "over", "watched"]
STATES: Final[tuple[str, ...]] = get_args(State)
# The maximum number of runs that a group lists, newest first; older runs are only counted.
MAX_RUNS: Final = 20

LEAKING: Final = ("suspected", "confirmed")
# The statuses of incidents that leak or have leaked; other incidents are growth that was only ever watched.
LEAKED: Final = (*LEAKING, "recovered", "resolved")


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """The filters and page of `list_groups`. Acknowledgements that expired by ``now`` (Unix seconds) are ignored."""

    now: float
    project: str | None = None
    states: Sequence[str] = ()
    fingerprint: str | None = None
    limit: int = 50
    cursor: str | None = None


def list_groups(engine: Engine, filters: GroupFilter) -> dict[str, Any]:
    """Return {"items": groups as plain JSON, "next": cursor or None}, newest change first. Raises BadCursor."""
    limit = max(1, min(filters.limit, MAX_PAGE))
    with reading(engine) as connection:
        found = connection.execute(_page(filters).limit(limit + 1)).all()
        rows = found[:limit]
        leaks = [(row.project, row.fingerprint) for row in rows]
        seen, said = _seen_in(connection, leaks), acknowledgements_of(connection, leaks)
    items = [
        _group(row, seen[row.project, row.fingerprint], said.get((row.project, row.fingerprint), ()), filters.now)
        for row in rows
    ]  # fmt: skip
    return {"items": items, "next": _cursor(rows[-1]) if len(found) > limit else None}


def get_group(engine: Engine, project: str, fingerprint: str, now: float) -> dict[str, Any] | None:
    """Return one group as plain JSON, or None if no run of the project has this leak."""
    wanted = GroupFilter(now, project, fingerprint=fingerprint, limit=1)
    return next(iter(list_groups(engine, wanted)["items"]), None)


def counts_by_state(engine: Engine, now: float, project: str | None = None) -> dict[str, int]:
    """Return the number of groups in each state."""
    groups = _page(GroupFilter(now, project)).order_by(None).subquery()
    with engine.connect() as connection:
        rows = connection.execute(
            select(groups.c.state, func.count()).group_by(groups.c.state)
        ).all()
    return dict.fromkeys(STATES, 0) | {row[0]: row[1] for row in rows}


def worst_of(connection: Connection, project: str, fingerprint: str) -> tuple[str, str] | None:
    """Return the worst (status, priority) of a leak in running runs, or None if no run of the project has the leak.

    If no run with this leak is running, use the incident that changed last: a run that ended or fell silent keeps its
    last status forever, so the worst status would never improve.
    """
    of_leak = (
        select(incidents.c.status, incidents.c.finding)
        .join(runs, runs.c.id == incidents.c.run_id)
        .where(runs.c.project == project, incidents.c.fingerprint == fingerprint)
    )
    going = of_leak.where(runs.c.state == "running").order_by(
        _rank().desc(), incidents.c.changed_at.desc()
    )
    newest = of_leak.order_by(incidents.c.changed_at.desc(), incidents.c.id).limit(1)
    rows = connection.execute(going.limit(MAX_RUNS)).all() or connection.execute(newest).all()
    if not rows:
        return None
    worst = [row for row in rows if row.status == rows[0].status]
    of_each = (msgspec.json.decode(row.finding).get("priority", "minor") for row in worst)
    return rows[0].status, max(of_each, key=("minor", "major", "critical").index)


def _page(filters: GroupFilter) -> Any:
    groups = _groups(filters).subquery()
    said = _said(filters.now).subquery()
    back = groups.c.last_began_at > said.c.closed_at
    state = case(
        (said.c.ignored > 0, "ignored"),
        (said.c.acknowledged > 0, "acknowledged"),
        (and_(said.c.closed_at.is_not(None), ~func.coalesce(back, False)), "closed"),
        (groups.c.leaking > 0, "open"),
        (groups.c.leaked > 0, "over"),
        else_="watched",
    ).label("state")
    query = (
        select(groups, state)
        .join(
            said,
            and_(said.c.project == groups.c.project, said.c.fingerprint == groups.c.fingerprint),
            isouter=True,
        )
        .order_by(groups.c.changed_at.desc(), groups.c.fingerprint, groups.c.project)
    )
    if filters.states:
        query = query.where(state.in_(filters.states))
    if filters.cursor is not None:
        query = query.where(_after(groups.c, filters.cursor))
    return query


def _groups(filters: GroupFilter) -> Any:
    began_at = (
        select(func.max(attempts.c.started_at))
        .where(attempts.c.run_id == incidents.c.run_id)
        .scalar_subquery()
    )
    leaked = incidents.c.status.in_(LEAKED)
    query = (
        select(
            runs.c.project,
            incidents.c.fingerprint,
            func.min(incidents.c.first_seen_at).label("first_seen_at"),
            func.max(incidents.c.changed_at).label("changed_at"),
            func.count().label("runs"),
            func.sum(case((incidents.c.status.in_(LEAKING), 1), else_=0)).label("leaking"),
            func.sum(case((leaked, 1), else_=0)).label("leaked"),
            func.max(case((leaked, began_at))).label("last_began_at"),
        )
        .join(runs, runs.c.id == incidents.c.run_id)
        .where(~IS_DELETED)
        .group_by(runs.c.project, incidents.c.fingerprint)
    )
    if filters.project is not None:
        query = query.where(runs.c.project == filters.project)
    if filters.fingerprint is not None:
        query = query.where(incidents.c.fingerprint == filters.fingerprint)
    return query


def _said(now: float) -> Any:
    """Return a query that sums up the acknowledgements in force at ``now``, with one row for each leak."""
    table = acknowledgements
    holds = and_(
        table.c.ended_at.is_(None), or_(table.c.expires_at.is_(None), table.c.expires_at > now)
    )

    def any_of(kind: str) -> ColumnElement[Any]:
        return func.sum(case((table.c.kind == kind, 1), else_=0)).label(kind)

    return (
        select(
            table.c.project,
            table.c.fingerprint,
            any_of("ignored"),
            any_of("acknowledged"),
            func.max(case((table.c.kind == "closed", table.c.created_at))).label("closed_at"),
        )
        .where(holds)
        .group_by(table.c.project, table.c.fingerprint)
    )


def _seen_in(
    connection: Connection, leaks: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], list[Row[Any]]]:
    """Return the newest MAX_RUNS incidents of each (project, fingerprint), oldest first."""
    if not leaks:
        return {}
    began_at = (
        select(func.max(attempts.c.started_at))
        .where(attempts.c.run_id == incidents.c.run_id)
        .scalar_subquery()
    )
    of_leak = func.row_number().over(
        partition_by=(runs.c.project, incidents.c.fingerprint),
        order_by=(incidents.c.first_seen_at.desc(), incidents.c.id),
    )
    newest = (
        select(
            runs.c.project, runs.c.name, runs.c.unit, incidents,
            began_at.label("began_at"), of_leak.label("number"),
        )
        .join(runs, runs.c.id == incidents.c.run_id)
        .where(tuple_(runs.c.project, incidents.c.fingerprint).in_(leaks), ~IS_DELETED)
        .subquery()
    )  # fmt: skip
    query = (
        select(newest)
        .where(newest.c.number <= MAX_RUNS)
        .order_by(newest.c.first_seen_at, newest.c.id)
    )
    found: dict[tuple[str, str], list[Row[Any]]] = {}
    for row in connection.execute(query):
        found.setdefault((row.project, row.fingerprint), []).append(row)
    return found


def _group(
    row: Row[Any], seen: Sequence[Row[Any]], said: Sequence[Acknowledgement], now: float
) -> dict[str, Any]:
    holding = [one for one in said if one.holds(now)]
    closed_at = max((one.created_at for one in holding if one.kind == "closed"), default=None)
    newest = max(seen, key=lambda one: (one.changed_at, one.id))
    finding = msgspec.json.decode(newest.finding)
    return {
        "project": row.project,
        "fingerprint": row.fingerprint,
        "state": row.state,
        "kind": newest.kind,
        "phase": newest.phase,
        "priority": finding.get("priority", "minor"),
        "summary": newest.summary,
        "first_seen_at": iso(row.first_seen_at),
        "changed_at": iso(row.changed_at),
        "runs_total": row.runs,
        "runs": [_seen(one, closed_at) for one in seen],
        "acknowledgements": [_said_json(one) for one in holding],
        "finding": finding,
    }


def _seen(row: Row[Any], closed_at: float | None) -> dict[str, Any]:
    reopened = closed_at is not None and row.status in LEAKED and (row.began_at or 0.0) > closed_at
    return {
        "run": row.run_id,
        "name": row.name,
        "unit": row.unit,
        "url": f"/runs/{row.run_id}",
        "status": row.status,
        "summary": row.summary,
        "first_seen_at": iso(row.first_seen_at),
        "changed_at": iso(row.changed_at),
        "reopened": reopened,
    }


def holding(
    engine: Engine, project: str, fingerprints: Iterable[str], now: float
) -> dict[str, list[Mapping[str, Any]]]:
    """Return the acknowledgements in force for these leaks as JSON, by fingerprint, oldest first."""
    with reading(engine) as connection:
        said = acknowledgements_of(connection, [(project, each) for each in fingerprints])
    return {
        fingerprint: [_said_json(one) for one in each if one.holds(now)]
        for (_, fingerprint), each in said.items()
    }


def _said_json(said: Acknowledgement) -> Mapping[str, Any]:
    return {
        "kind": said.kind,
        "reason": said.reason,
        "created_at": iso(said.created_at),
        "expires_at": iso_or_none(said.expires_at),
    }


def _rank() -> ColumnElement[int]:
    return case(
        (incidents.c.status == "confirmed", 2), (incidents.c.status == "suspected", 1), else_=0
    )


def _cursor(row: Row[Any]) -> str:
    return f"{row.changed_at!r}/{row.fingerprint}/{row.project}"


def _after(columns: Any, cursor: str) -> ColumnElement[bool]:
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,20})?)/([^/\x00]{1,256})/([^\x00]{1,256})", cursor)
    if found is None:
        raise BadCursor(cursor)
    changed_at, fingerprint, project = float(found[1]), found[2], found[3]
    return or_(
        columns.changed_at < changed_at,
        and_(columns.changed_at == changed_at, columns.fingerprint > fingerprint),
        and_(
            columns.changed_at == changed_at,
            columns.fingerprint == fingerprint,
            columns.project > project,
        ),
    )

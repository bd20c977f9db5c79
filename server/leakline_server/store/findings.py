"""Verdicts of the analysis, and the incidents that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, insert, select, update

from leakline.analysis.findings.verdict_summary import nothing_yet
from leakline.analysis.results import Finding, Verdict, to_json
from leakline.transport.oom_inference import said_at_end

from ..limits import MAX_RUN_INCIDENTS
from .engine import keep_newest
from .incident_groups import go_with
from .maintenance import corruption
from .runs.run_order import sorted_by
from .runs.runs import iso
from .schema import incidents, runs

# The status of an incident whose finding no longer exists.
RESOLVED: Final = "resolved"


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """A status change of an incident. ``before`` is None for a new incident; ``after`` is None if its finding is gone.

    ``still_seconds``: how long the incident had its previous status. ``stood_seconds``: how long the incident has had
    its new status; 0 for a change that has just happened.
    """

    incident_id: str
    finding: Finding
    before: str | None
    after: str | None
    still_seconds: float = 0.0
    stood_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Incident:
    """A stored leak of one run. ``finding`` is a `Finding` as JSON; times are Unix seconds."""

    id: str
    fingerprint: str
    status: str
    kind: str
    phase: str | None
    summary: str
    finding: str
    first_seen_at: float
    changed_at: float

    def read_finding(self) -> Finding:
        return msgspec.json.decode(self.finding, type=Finding)


@dataclass(frozen=True, slots=True)
class Incidents:
    """The incidents of a run that an examination opens, changes or resolves.

    ``renamed``: (old fingerprint, better new fingerprint) of incidents. If another incident has the new fingerprint,
    the two fingerprints are swapped. ``written``: new and changed incidents. ``changes``: the status changes from which
    alerts are made.
    """

    renamed: Sequence[tuple[str, str]]
    written: Sequence[Incident]
    changes: Sequence[IncidentChange]


def write_finding(finding: Finding) -> str:
    return msgspec.json.encode(to_json(finding)).decode()


def incidents_of(connection: Connection, run_id: str) -> list[Incident]:
    columns = (incidents.c[name] for name in Incident.__dataclass_fields__)
    rows = connection.execute(select(*columns).where(incidents.c.run_id == run_id))
    return [Incident(*row) for row in rows]


def save(
    connection: Connection, verdict: Verdict, verdict_json: dict[str, Any], found: Incidents
) -> None:
    """Write a verdict and its incidents; the caller commits."""
    _save_incidents(connection, verdict.run, found)
    new = msgspec.json.encode(verdict_json).decode()
    stored = connection.execute(select(runs.c.verdict).where(runs.c.id == verdict.run)).scalar()
    if new != stored:
        connection.execute(
            update(runs)
            .where(runs.c.id == verdict.run)
            .values(
                verdict=new,
                status=verdict.status,
                revision=runs.c.revision + 1,
                verdict_revision=runs.c.revision + 1,
                **sorted_by(verdict_json),
            )
        )


def _save_incidents(connection: Connection, run_id: str, found: Incidents) -> None:
    of_run = incidents.c.run_id == run_id
    for old, new in found.renamed:
        free = f"{new} exchanged"
        # Fingerprints are unique within a run, so they are swapped through a temporary one.
        for before, after in ((new, free), (old, new), (free, old)):
            row = update(incidents).where(of_run, incidents.c.fingerprint == before)
            connection.execute(row.values(fingerprint=after))
        go_with(connection, run_id, old, new)
    there = set(connection.scalars(select(incidents.c.id).where(of_run)))
    for each in found.written:
        values = asdict(each)
        if each.id in there:
            connection.execute(update(incidents).where(incidents.c.id == each.id).values(**values))
        else:
            connection.execute(insert(incidents).values(run_id=run_id, **values))
    if len(there) + len(found.written) > MAX_RUN_INCIDENTS:
        over = of_run, incidents.c.status == RESOLVED
        keep_newest(connection, incidents.c.id, incidents.c.changed_at, MAX_RUN_INCIDENTS, *over)


def verdict_of(connection: Connection, run_id: str, unit: str) -> Verdict:
    """Return the run's last verdict, or the initial "learning" verdict if the run was never examined."""
    stored = connection.execute(select(runs.c.verdict).where(runs.c.id == run_id)).scalar()
    return _first(run_id, unit) if stored is None else msgspec.json.decode(stored, type=Verdict)


def current_verdict(engine: Engine, run_id: str) -> dict[str, Any] | None:
    """Return the verdict of a run as the API returns it, or None if the run does not exist."""
    with engine.connect() as connection:
        row = connection.execute(
            select(runs.c.verdict, runs.c.unit, runs.c.state, runs.c.reason).where(
                runs.c.id == run_id
            )
        ).first()
        if row is None:
            return None
        parts = corruption.parts_of(connection, [run_id]).get(run_id, ())
    found: dict[str, Any] = (
        first_verdict(run_id, row.unit) if row.verdict is None else msgspec.json.decode(row.verdict)
    )
    said = said_at_end(found, row.state, row.reason)
    return {**found, "summary": corruption.sentence(parts, row.verdict, said)}


def first_verdict(run_id: str, unit: str) -> dict[str, Any]:
    """Return the JSON verdict of a run that has not been examined yet."""
    found: dict[str, Any] = to_json(_first(run_id, unit))
    return found


def _first(run_id: str, unit: str) -> Verdict:
    return Verdict(run_id, unit, 0, "learning", nothing_yet(unit), None, None)


def list_incidents(engine: Engine, run_id: str | None = None) -> list[dict[str, Any]]:
    """Return the incidents of one run or of all runs as plain JSON, most recently changed first."""
    query = select(incidents).order_by(incidents.c.changed_at.desc(), incidents.c.id)
    if run_id is not None:
        query = query.where(incidents.c.run_id == run_id)
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    return [
        {
            "id": row.id,
            "run": row.run_id,
            "fingerprint": row.fingerprint,
            "status": row.status,
            "kind": row.kind,
            "phase": row.phase,
            "summary": row.summary,
            "first_seen_at": iso(row.first_seen_at),
            "changed_at": iso(row.changed_at),
            "finding": msgspec.json.decode(row.finding),
        }
        for row in rows
    ]

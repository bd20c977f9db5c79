"""Verdicts and incidents: what the analysis said, and what changed with it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, insert, select, update

from leakline.analysis.results import Finding, Verdict, to_json

from .runs import iso
from .tables import incidents, runs

# An incident whose finding is gone.
RESOLVED: Final = "resolved"


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """An incident whose status moved. ``before`` is None for a new one, ``after`` when its finding is gone."""

    incident_id: str
    finding: Finding
    before: str | None
    after: str | None


def save(
    connection: Connection, verdict: Verdict, verdict_json: dict[str, Any], now: float
) -> list[IncidentChange]:
    """Write the verdict and its findings; the caller commits. Returns what changed, for the alerts."""
    changes = _save_incidents(connection, verdict, now)
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
            )
        )
    return changes


def current_verdict(engine: Engine, run_id: str) -> dict[str, Any] | None:
    """The verdict as the contract has it; None when there is no such run."""
    with engine.connect() as connection:
        row = connection.execute(
            select(runs.c.verdict, runs.c.unit).where(runs.c.id == run_id)
        ).first()
    if row is None:
        return None
    if row.verdict is None:
        return first_verdict(run_id, row.unit)
    found: dict[str, Any] = msgspec.json.decode(row.verdict)
    return found


def first_verdict(run_id: str, unit: str) -> dict[str, Any]:
    """What is said of a run before anything was examined."""
    said = f"nothing to say yet: no {unit} has ended"
    found: dict[str, Any] = to_json(Verdict(run_id, unit, 0, "learning", said, None, None))
    return found


def list_incidents(engine: Engine, run_id: str | None = None) -> list[dict[str, Any]]:
    """Incidents of one run or of all, newest change first; plain JSON."""
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


def incident_id(run_id: str, fingerprint: str) -> str:
    """The same for the same leak of the same run, whoever examines it."""
    text = f"{run_id}\n{fingerprint}".encode(errors="replace")
    return "inc_" + hashlib.sha256(text).hexdigest()[:24]


def _save_incidents(connection: Connection, verdict: Verdict, now: float) -> list[IncidentChange]:
    rows = connection.execute(select(incidents).where(incidents.c.run_id == verdict.run)).all()
    stored = {row.fingerprint: row for row in rows}
    changes = []
    for finding in verdict.findings:
        row = stored.pop(finding.fingerprint, None)
        before = None if row is None or row.status == RESOLVED else row.status
        number = incident_id(verdict.run, finding.fingerprint)
        values = _values(finding, verdict)
        if row is None:
            connection.execute(
                insert(incidents).values(
                    id=number, run_id=verdict.run, fingerprint=finding.fingerprint,
                    first_seen_at=now, changed_at=now, **values,
                )
            )  # fmt: skip
        else:
            if row.status != finding.status:
                values["changed_at"] = now
            if any(getattr(row, name) != value for name, value in values.items()):
                connection.execute(
                    update(incidents).where(incidents.c.id == row.id).values(**values)
                )
        if before != finding.status:
            changes.append(IncidentChange(number, finding, before, finding.status))
    changes += [_resolve(connection, row, now) for row in stored.values() if row.status != RESOLVED]
    return changes


def _resolve(connection: Connection, row: Any, now: float) -> IncidentChange:
    connection.execute(
        update(incidents).where(incidents.c.id == row.id).values(status=RESOLVED, changed_at=now)
    )
    finding = msgspec.json.decode(row.finding, type=Finding)
    return IncidentChange(row.id, finding, row.status, None)


def _values(finding: Finding, verdict: Verdict) -> dict[str, Any]:
    return {
        "status": finding.status,
        "kind": finding.kind,
        "phase": finding.phase,
        "summary": _sentence(finding, verdict),
        "finding": msgspec.json.encode(to_json(finding)).decode(),
    }


def _sentence(finding: Finding, verdict: Verdict) -> str:
    """The first finding is what the verdict's sentence is about; the others say it through their evidence."""
    if verdict.findings and verdict.findings[0] is finding:
        return verdict.summary
    evidence: Sequence[str] = finding.evidence
    return evidence[0] if evidence else finding.kind

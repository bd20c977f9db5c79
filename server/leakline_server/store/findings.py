"""Verdicts and incidents: what the analysis said, and what changed with it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, insert, select, update

from leakline.analysis.attribution.causes import goes_on_as, shares_names
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

# An incident whose finding is gone.
RESOLVED: Final = "resolved"
_LEAKING: Final = frozenset({"suspected", "confirmed"})
_STANDING: Final = _LEAKING | {"watch"}


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """An incident whose status moved. ``before`` is None for a new one, ``after`` when its finding is gone.

    ``still_seconds``: how long its status had stood until now; ``stood_seconds``: how long the one after has, which is
    nothing for one that has just moved.
    """

    incident_id: str
    finding: Finding
    before: str | None
    after: str | None
    still_seconds: float = 0.0
    stood_seconds: float = 0.0


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
                **sorted_by(verdict_json),
            )
        )
    return changes


def unmoved(
    connection: Connection, run_id: str, changes: Sequence[IncidentChange], now: float
) -> list[IncidentChange]:
    """The other incidents of the run: alerts that were held back may have to be sent now."""
    moved = {change.incident_id for change in changes}
    rows = connection.execute(select(incidents).where(incidents.c.run_id == run_id)).all()
    return [
        IncidentChange(
            row.id,
            msgspec.json.decode(row.finding, type=Finding),
            row.status,
            None if row.status == RESOLVED else row.status,
            still_seconds=now - row.changed_at,
            stood_seconds=now - row.changed_at,
        )
        for row in rows
        if row.id not in moved
    ]


def verdict_of(connection: Connection, run_id: str, unit: str) -> Verdict:
    """The last verdict of a run; of one that was never examined, that there is nothing to say."""
    stored = connection.execute(select(runs.c.verdict).where(runs.c.id == run_id)).scalar()
    return _first(run_id, unit) if stored is None else msgspec.json.decode(stored, type=Verdict)


def current_verdict(engine: Engine, run_id: str) -> dict[str, Any] | None:
    """The verdict as the contract has it; None when there is no such run."""
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
    """What is said of a run before anything was examined."""
    found: dict[str, Any] = to_json(_first(run_id, unit))
    return found


def _first(run_id: str, unit: str) -> Verdict:
    return Verdict(run_id, unit, 0, "learning", nothing_yet(unit), None, None)


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
    taken = {row.id for row in rows}
    stored = _named_anew(connection, {row.fingerprint: row for row in rows}, verdict)
    changes = []
    for finding in verdict.findings:
        row = stored.pop(finding.fingerprint, None)
        before = None if row is None or row.status == RESOLVED else row.status
        number = _free_id(verdict.run, finding.fingerprint, taken) if row is None else row.id
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
            still = 0.0 if row is None else now - row.changed_at
            changes.append(IncidentChange(number, finding, before, finding.status, still))
    changes += [_resolve(connection, row, now) for row in stored.values() if row.status != RESOLVED]
    if len(rows) + len(verdict.findings) > MAX_RUN_INCIDENTS:
        over = incidents.c.run_id == verdict.run, incidents.c.status == RESOLVED
        keep_newest(connection, incidents.c.id, incidents.c.changed_at, MAX_RUN_INCIDENTS, *over)
    return changes


def _named_anew(connection: Connection, stored: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    """The rows by the fingerprints of now: an open incident whose leak goes by another name is not a second one."""
    here = {finding.fingerprint for finding in verdict.findings}
    gone = {
        row.id: (row, msgspec.json.decode(row.finding, type=Finding))
        for row in stored.values()
        if row.status in _LEAKING and row.fingerprint not in here
    }
    for finding in verdict.findings:
        known = stored.get(finding.fingerprint)
        if finding.status not in _STANDING or (known is not None and known.status != RESOLVED):
            continue
        row = _gone_on_as(finding, list(gone.values()))
        if row is not None:
            del gone[row.id]
            _exchange(connection, row, known, finding.fingerprint)
            go_with(connection, verdict.run, row.fingerprint, finding.fingerprint)
            stored[row.fingerprint] = known
            stored[finding.fingerprint] = row
    return {name: row for name, row in stored.items() if row is not None}


def _gone_on_as(finding: Finding, gone: Sequence[tuple[Any, Finding]]) -> Any | None:
    """The row of the same leak: one that shares a name before one that began at the same time, then the oldest."""
    fitting = [
        (not shares_names(old, finding), row.first_seen_at, row.id, row)
        for row, old in gone
        if goes_on_as(old, finding)
    ]
    return min(fitting)[-1] if fitting else None


def _exchange(connection: Connection, row: Any, other: Any, fingerprint: str) -> None:
    """Give ``row`` the fingerprint, and its own to the one that has it, if any."""
    steps = [(row.id, fingerprint)]
    if other is not None:
        # Both are unique within a run.
        steps = [(other.id, f"{fingerprint} exchanged"), *steps, (other.id, row.fingerprint)]
    for number, name in steps:
        connection.execute(
            update(incidents).where(incidents.c.id == number).values(fingerprint=name)
        )


def _free_id(run_id: str, fingerprint: str, taken: set[str]) -> str:
    """An incident keeps its id when it is named again, so that of its first fingerprint may be in use."""
    number = incident_id(run_id, fingerprint)
    while number in taken:
        fingerprint += "+"
        number = incident_id(run_id, fingerprint)
    return number


def _resolve(connection: Connection, row: Any, now: float) -> IncidentChange:
    connection.execute(
        update(incidents).where(incidents.c.id == row.id).values(status=RESOLVED, changed_at=now)
    )
    finding = msgspec.json.decode(row.finding, type=Finding)
    return IncidentChange(row.id, finding, row.status, None, now - row.changed_at)


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

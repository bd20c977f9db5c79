"""What a verdict changes in the incidents of its run. Pure: stored incidents and a verdict in, incidents out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from leakline.analysis.attribution.causes import goes_on_as, shares_names
from leakline.analysis.results import Finding, Verdict

from ..store.findings import RESOLVED, Incident, IncidentChange, Incidents, write_finding

_LEAKING: Final = frozenset({"suspected", "confirmed"})
_STANDING: Final = _LEAKING | {"watch"}


def incidents_after(stored: Sequence[Incident], verdict: Verdict, now: float) -> Incidents:
    """Return the incidents that a verdict opens, changes and resolves. ``now`` in Unix seconds.

    An open incident whose leak goes by another name is not a second one.
    """
    taken = {incident.id for incident in stored}
    renamed = _renamed(stored, verdict)
    known = {each.fingerprint: each for each in stored}
    for old, new in renamed:
        other, known[new] = known.get(new), known.pop(old)
        if other is not None:
            known[old] = other
    written, changes = [], []
    for finding in verdict.findings:
        before = known.pop(finding.fingerprint, None)
        incident = _with_finding(before, finding, verdict, taken, now)
        if incident != before:
            written.append(incident)
        was = None if before is None or before.status == RESOLVED else before.status
        if was != finding.status:
            still = 0.0 if before is None else now - before.changed_at
            changes.append(IncidentChange(incident.id, finding, was, finding.status, still))
    for gone in known.values():
        if gone.status != RESOLVED:
            written.append(replace(gone, status=RESOLVED, changed_at=now))
            still = now - gone.changed_at
            changes.append(IncidentChange(gone.id, gone.read_finding(), gone.status, None, still))
    return Incidents(renamed, written, changes)


def unmoved(
    stored: Sequence[Incident], changes: Sequence[IncidentChange], now: float
) -> list[IncidentChange]:
    """The other incidents of the run: alerts that were held back may have to be sent now."""
    moved = {change.incident_id for change in changes}
    return [
        IncidentChange(
            each.id,
            each.read_finding(),
            each.status,
            None if each.status == RESOLVED else each.status,
            still_seconds=now - each.changed_at,
            stood_seconds=now - each.changed_at,
        )
        for each in stored
        if each.id not in moved
    ]


def incident_id(run_id: str, fingerprint: str) -> str:
    """The same for the same leak of the same run, whoever examines it."""
    text = f"{run_id}\n{fingerprint}".encode(errors="replace")
    return "inc_" + hashlib.sha256(text).hexdigest()[:24]


def _with_finding(
    before: Incident | None, finding: Finding, verdict: Verdict, taken: set[str], now: float
) -> Incident:
    number, first_seen_at, changed_at = _free_id(verdict.run, finding.fingerprint, taken), now, now
    if before is not None:
        number, first_seen_at = before.id, before.first_seen_at
        changed_at = before.changed_at if before.status == finding.status else now
    return Incident(
        number, finding.fingerprint, finding.status, finding.kind, finding.phase, _sentence(finding, verdict),
        write_finding(finding), first_seen_at, changed_at,
    )  # fmt: skip


def _renamed(stored: Sequence[Incident], verdict: Verdict) -> list[tuple[str, str]]:
    """Fingerprints before and now of the open incidents whose leak has another one."""
    here = {finding.fingerprint for finding in verdict.findings}
    known = {each.fingerprint: each for each in stored}
    gone = [
        (each, each.read_finding())
        for each in stored
        if each.status in _LEAKING and each.fingerprint not in here
    ]
    found = []
    for finding in verdict.findings:
        other = known.get(finding.fingerprint)
        if finding.status not in _STANDING or (other is not None and other.status != RESOLVED):
            continue
        same = _gone_on_as(finding, gone)
        if same is not None:
            gone = [(each, old) for each, old in gone if each is not same]
            found.append((same.fingerprint, finding.fingerprint))
    return found


def _gone_on_as(finding: Finding, gone: Sequence[tuple[Incident, Finding]]) -> Incident | None:
    """The same leak: one that shares a name before one that began at the same time, then the oldest."""
    fitting = [
        (not shares_names(old, finding), each.first_seen_at, each.id, each)
        for each, old in gone
        if goes_on_as(old, finding)
    ]
    return min(fitting)[-1] if fitting else None


def _free_id(run_id: str, fingerprint: str, taken: set[str]) -> str:
    """An incident keeps its id when it is named again, so that of its first fingerprint may be in use."""
    number = incident_id(run_id, fingerprint)
    while number in taken:
        fingerprint += "+"
        number = incident_id(run_id, fingerprint)
    return number


def _sentence(finding: Finding, verdict: Verdict) -> str:
    """The first finding is what the verdict's sentence is about; the others say it through their evidence."""
    if verdict.findings and verdict.findings[0] is finding:
        return verdict.summary
    evidence: Sequence[str] = finding.evidence
    return evidence[0] if evidence else finding.kind

"""Decides how a verdict changes its run's incidents (see the end of this file), and which changes are sent as alerts.

Pure: it maps incidents, a verdict and changes to incidents and alerts, and uses no clock, rows or network.

An incident is reported once per change, not once per snapshot. Alerts depend on the last *reported* status, not on the
previous status, so a finding that weakens and returns, or is examined again after a crash, is not reported twice.

    last reported          now suspected   now confirmed   now recovered   now gone (or ok)
    nothing                suspected       confirmed       -               -
    suspected              -               confirmed       recovered       resolved
    confirmed, violated    -               -               recovered       resolved
    recovered              suspected       confirmed       -               resolved
    resolved               suspected       confirmed       -               -

A leak that is detected under another name (`goes_on_as`) is not gone, so its end is not reported.

For a violated declared count, `contract.violated` replaces suspected and confirmed. The intermediate statuses
`learning` and `watch` are not reported: they are neither a leak nor its end. Acknowledgements take precedence over
these rules:

    in force        what is still sent
    ignored         nothing
    closed          nothing for runs that began earlier; everything for later runs, with the note of the closing
    acknowledged    nothing until the leak becomes worse than it was then: confirmed after suspected, or of a higher
                    priority. After that, the alerts of that incident are sent as usual

Withdrawn acknowledgements are ignored. So are expired acknowledgements, with one exception: a leak that is still
present is reported once more, even if it was reported before.

`flapping.py` decides when an end is final, and how a leak that opens and closes repeatedly is reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nextafter
from typing import Any, Final

from leakline.analysis.attribution.causes import goes_on_as, shares_names
from leakline.analysis.results import Finding, Verdict

from ..store import findings
from ..store.alerts.alert_rows import DIGEST, Alert, AlertHistory
from ..store.findings import Incident, IncidentChange, Incidents, write_finding
from ..store.incident_groups import Acknowledgement
from .alert_payload import (
    CERTAIN,
    CONFIRMED,
    OPEN,
    RECOVERED,
    RESOLVED,
    SUSPECTED,
    VIOLATED,
    ExaminedRun,
    incident_facts,
    noted,
)
from .flapping import digest_sentence, is_believed, way_to_tell

_STATUSES: Final = {"suspected": 1, "confirmed": 2}
_PRIORITIES: Final = {"minor": 1, "major": 2, "critical": 3}


@dataclass(frozen=True, slots=True)
class Hearing:
    """How to report an incident that is not muted. ``history`` contains the earlier alerts to consider.

    If a closed leak has returned, ``note`` is the reason that was given for closing it. ``expired`` is the reason given
    for an expired acknowledgement. It is set only if the leak was reported before that acknowledgement expired, is
    still present and must be reported again.
    """

    history: AlertHistory
    note: str | None = None
    expired: str | None = None


def hearing(
    said: Sequence[Acknowledgement],
    change: IncidentChange,
    history: AlertHistory,
    began_at: float,
    now: float,
) -> Hearing | None:
    """Return how to report this incident, or None if it is muted.

    ``began_at`` is the start of the run's newest attempt.
    """
    holding = {one.kind: one for one in said if one.holds(now)}
    note = None
    if "ignored" in holding:
        return None
    closed = holding.get("closed")
    if closed is not None:
        if not _is_back(closed, began_at):
            return None
        history, note = _since(history, closed.created_at, now), closed.reason
    acknowledged = holding.get("acknowledged")
    if acknowledged is not None:
        since = _since(history, acknowledged.created_at, now)
        if since.event is None and not _is_worse(change, acknowledged):
            return None
        return Hearing(since, note)
    expired = _expired(said, now)
    if expired is None or expired.expires_at is None or change.after not in _STATUSES:
        return Hearing(history, note)
    # The acknowledgement is no longer in force at its expiry time, so an alert sent exactly at that time counts as sent
    # after the expiry.
    since = history.since(nextafter(expired.expires_at, -inf))
    is_again = history.event in OPEN and since.event is None
    return Hearing(since, note, expired.reason if is_again else None)


def _is_back(closed: Acknowledgement, began_at: float) -> bool:
    """Return True if the run began after the leak was closed and therefore includes the fix."""
    return began_at > closed.created_at


def _expired(said: Sequence[Acknowledgement], now: float) -> Acknowledgement | None:
    """Return the newest acknowledgement if it has expired and was not withdrawn."""
    newest = next((one for one in reversed(said) if one.kind == "acknowledged"), None)
    if newest is None or newest.ended_at is not None or newest.holds(now):
        return None
    return newest


def _since(history: AlertHistory, at: float, now: float) -> AlertHistory:
    """Return the alerts reported after ``at``.

    If the clock has not passed ``at`` yet, return all alerts; otherwise each examination would report the leak again.
    """
    return history.since(at) if now > at else history


def _is_worse(change: IncidentChange, then: Acknowledgement) -> bool:
    if change.after not in _STATUSES:
        return False
    status, priority = _STATUSES[change.after], _PRIORITIES[change.finding.priority]
    # If the leak had stopped when it was acknowledged, compare with a suspected leak.
    return status > _STATUSES.get(then.status, 1) or priority > _PRIORITIES.get(then.priority, 1)


_GONE: Final = frozenset({None, "ok", "filling", "resolved"})


def alerts_for(
    changes: Iterable[IncidentChange],
    histories: Mapping[str, AlertHistory],
    run: ExaminedRun,
    said: Mapping[str, Sequence[Acknowledgement]] | None = None,
) -> list[Alert]:
    """Return one alert for each change that must be reported.

    ``histories`` maps incident ids to the alerts sent earlier; ``said`` maps fingerprints to the leak's
    acknowledgements.
    """
    alerts = (_alert_of_change(change, histories, run, said or {}) for change in changes)
    return [alert for alert in alerts if alert is not None]


def _alert_of_change(
    change: IncidentChange,
    histories: Mapping[str, AlertHistory],
    run: ExaminedRun,
    said: Mapping[str, Sequence[Acknowledgement]],
) -> Alert | None:
    before = histories.get(change.incident_id, AlertHistory())
    of_leak = said.get(change.finding.fingerprint, ())
    heard = hearing(of_leak, change, before, run.began_at, run.at)
    if heard is None:
        return None
    event = _event_for(change.after, change.finding.kind, heard.history.event)
    if event is None or not is_believed(event, change.stood_seconds, run):
        return None
    if event == RESOLVED and _goes_on(change.finding, run.verdict):
        return None
    way = way_to_tell(event, heard.history, run.at, change.still_seconds)
    if way is None:
        return None
    facts = incident_facts(event, change.incident_id, change.finding, run)
    if heard.note is not None and event in OPEN:
        facts = noted(
            facts, f"the leak is back in {run.name} after it was closed with the note: {heard.note}"
        )
        facts["incident"]["closed_before"] = heard.note
    if heard.expired is not None:
        why = f" (acknowledged with the note: {heard.expired})" if heard.expired else ""
        facts = noted(facts, f"the leak is still present and no longer muted{why}")
    if way == "digest":
        facts = noted(facts, digest_sentence(event, heard.history, run.at))
    return _alert(event, change, before, run, facts, DIGEST if way == "digest" else "")


def _goes_on(gone: Finding, verdict: Verdict) -> bool:
    """Return True if the leak of the vanished finding ``gone`` is still detected under another name."""
    return any(
        each.status in _STANDING and goes_on_as(gone, each)
        for each in verdict.findings
        if each.fingerprint != gone.fingerprint
    )


def _event_for(status: str | None, kind: str, last_event: str | None) -> str | None:
    """Return the event to send, or None if nothing must be sent. ``status`` is the incident's current status, and
    ``last_event`` the last event reported.
    """
    if status in ("suspected", "confirmed"):
        if last_event in CERTAIN or (last_event == SUSPECTED and status == "suspected"):
            return None
        if kind == "count_contract":
            return VIOLATED
        return CONFIRMED if status == "confirmed" else SUSPECTED
    if status == "recovered":
        return RECOVERED if last_event in OPEN else None
    if status in _GONE:
        return RESOLVED if last_event in OPEN or last_event == RECOVERED else None
    return None


def _alert(
    event: str,
    change: IncidentChange,
    before: AlertHistory,
    run: ExaminedRun,
    facts: dict[str, Any],
    subject: str,
) -> Alert:
    return Alert(
        id=alert_id(run.id, change.incident_id, event, before.count),
        run_id=run.id,
        incident_id=change.incident_id,
        event=event,
        created_at=run.at,
        payload=facts,
        subject=subject,
        urgent=event in OPEN,
    )


def alert_id(run_id: str, about: str, event: str, ordinal: object) -> str:
    """Return an id that depends only on the change, so that two servers with the same change send one alert."""
    text = "\n".join((run_id, about, event, str(ordinal)))
    return "msg_" + hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


_LEAKING: Final = frozenset({"suspected", "confirmed"})
_STANDING: Final = _LEAKING | {"watch"}


def incidents_after(stored: Sequence[Incident], verdict: Verdict, now: float) -> Incidents:
    """Return the incidents that a verdict opens, changes and resolves. ``now`` is Unix seconds.

    An open incident whose leak has a new fingerprint is renamed, not duplicated.
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
        was = None if before is None or before.status == findings.RESOLVED else before.status
        if was != finding.status:
            still = 0.0 if before is None else now - before.changed_at
            changes.append(IncidentChange(incident.id, finding, was, finding.status, still))
    for gone in known.values():
        if gone.status != findings.RESOLVED:
            written.append(replace(gone, status=findings.RESOLVED, changed_at=now))
            still = now - gone.changed_at
            changes.append(IncidentChange(gone.id, gone.read_finding(), gone.status, None, still))
    return Incidents(renamed, written, changes)


def unmoved(
    incidents: Sequence[Incident], changes: Sequence[IncidentChange], now: float
) -> list[IncidentChange]:
    """Return an IncidentChange for each unchanged incident, because an alert held back earlier may be due now.

    ``incidents`` are the incidents after this examination.
    """
    moved = {change.incident_id for change in changes}
    return [
        IncidentChange(
            each.id,
            each.read_finding(),
            each.status,
            None if each.status == findings.RESOLVED else each.status,
            still_seconds=now - each.changed_at,
            stood_seconds=now - each.changed_at,
        )
        for each in incidents
        if each.id not in moved
    ]


def incident_id(run_id: str, fingerprint: str) -> str:
    """Return an id that depends only on the run and the fingerprint, so that every server computes the same id."""
    text = f"{run_id}\n{fingerprint}".encode(errors="replace")
    return "inc_" + hashlib.sha256(text).hexdigest()[:24]


def _with_finding(
    before: Incident | None, finding: Finding, verdict: Verdict, taken: set[str], now: float
) -> Incident:
    if before is None:
        number, first_seen_at, changed_at = (
            _free_id(verdict.run, finding.fingerprint, taken),
            now,
            now,
        )
    else:
        number, first_seen_at = before.id, before.first_seen_at
        changed_at = before.changed_at if before.status == finding.status else now
    return Incident(
        number, finding.fingerprint, finding.status, finding.kind, finding.phase, _sentence(finding, verdict),
        write_finding(finding), first_seen_at, changed_at,
    )  # fmt: skip


def _renamed(stored: Sequence[Incident], verdict: Verdict) -> list[tuple[str, str]]:
    """Return (old, new) fingerprints of the open incidents whose leak now has another fingerprint."""
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
        if finding.status not in _STANDING or (
            other is not None and other.status != findings.RESOLVED
        ):
            continue
        same = _gone_on_as(finding, gone)
        if same is not None:
            gone = [(each, old) for each, old in gone if each is not same]
            found.append((same.fingerprint, finding.fingerprint))
    return found


def _gone_on_as(finding: Finding, gone: Sequence[tuple[Incident, Finding]]) -> Incident | None:
    """Return the incident in ``gone`` that ``finding`` continues under a new fingerprint, or None.

    Incidents that share a name with the finding are preferred, then the oldest incident.
    """
    fitting = [
        (not shares_names(old, finding), each.first_seen_at, each.id, each)
        for each, old in gone
        if goes_on_as(old, finding)
    ]
    return min(fitting)[-1] if fitting else None


def _free_id(run_id: str, fingerprint: str, taken: set[str]) -> str:
    """Return an unused incident id.

    A renamed incident keeps the id of its first fingerprint, so this fingerprint's id may already be in use.
    """
    number = incident_id(run_id, fingerprint)
    while number in taken:
        fingerprint += "+"
        number = incident_id(run_id, fingerprint)
    return number


def _sentence(finding: Finding, verdict: Verdict) -> str:
    """Return the verdict's summary for the first finding, otherwise the finding's first item of evidence."""
    if verdict.findings and verdict.findings[0] is finding:
        return verdict.summary
    evidence: Sequence[str] = finding.evidence
    return evidence[0] if evidence else finding.kind

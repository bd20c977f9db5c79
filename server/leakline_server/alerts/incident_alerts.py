"""Decide when a change of an incident is sent. Pure: changes in, alerts out; no clock, no rows, no network.

An incident is told once per change, not once per snapshot. What counts is what was *told* last, not the last
status: a finding that weakens and comes back, or is examined again after a crash, is not told twice.

    last told              now suspected   now confirmed   now recovered   now gone (or ok)
    nothing                suspected       confirmed       -               -
    suspected              -               confirmed       recovered       resolved
    confirmed, violated    -               -               recovered       resolved
    recovered              suspected       confirmed       -               resolved
    resolved               suspected       confirmed       -               -

A violated declared count is told as `contract.violated` in place of suspected or confirmed. Statuses between
(`learning`, `watch`) tell nothing: they are neither a leak nor its end. What people said of the leak comes first:

    what holds      what is still sent
    ignored         nothing
    closed          nothing of runs that began before; in later ones everything, with the note it was closed with
    acknowledged    nothing, until the leak is worse by a class than it was then: confirmed where it was suspected,
                    or of a higher priority. From there on that run's incident is sent as before

What was taken back is as if it had never been said. So is an acknowledgement that has expired, with one exception: a
leak that is still there is sent once more, whatever was sent of it before.

`flapping.py` decides when an end is final, and how a leak is sent that opens and ends again and again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nextafter
from typing import Any, Final

from ..store.alerts.alert_rows import DIGEST, Alert, Told
from ..store.findings import IncidentChange
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
    """``told``: what counts as told before. ``note``: what the leak was closed with, if it is back.

    ``expired``: what it was acknowledged with, if it was told before that, stands, and has to be told again.
    """

    told: Told
    note: str | None = None
    expired: str | None = None


def hearing(
    said: Sequence[Acknowledgement], change: IncidentChange, told: Told, began_at: float, now: float
) -> Hearing | None:
    """Whether people want to hear of this incident; None: no. ``began_at``: of the run's newest attempt."""
    holding = {one.kind: one for one in said if one.holds(now)}
    note = None
    if "ignored" in holding:
        return None
    closed = holding.get("closed")
    if closed is not None:
        if not is_back(closed, began_at):
            return None
        told, note = _since(told, closed.created_at, now), closed.reason
    acknowledged = holding.get("acknowledged")
    if acknowledged is not None:
        since = _since(told, acknowledged.created_at, now)
        if since.event is None and not _is_worse(change, acknowledged):
            return None
        return Hearing(since, note)
    expired = _expired(said, now)
    if expired is None or expired.expires_at is None or change.after not in _STATUSES:
        return Hearing(told, note)
    # It held no more at that moment, so what was told right then was told after it.
    since = told.since(nextafter(expired.expires_at, -inf))
    is_again = told.event in OPEN and since.event is None
    return Hearing(since, note, expired.reason if is_again else None)


def is_back(closed: Acknowledgement, began_at: float) -> bool:
    """Whether a run that began then runs what was changed when the leak was closed."""
    return began_at > closed.created_at


def _expired(said: Sequence[Acknowledgement], now: float) -> Acknowledgement | None:
    """The newest acknowledgement, if it ran out and was not taken back."""
    newest = next((one for one in reversed(said) if one.kind == "acknowledged"), None)
    if newest is None or newest.ended_at is not None or newest.holds(now):
        return None
    return newest


def _since(told: Told, at: float, now: float) -> Told:
    """What was told after ``at``. A clock that is behind it cannot say: then all counts, or each look would tell."""
    return told.since(at) if now > at else told


def _is_worse(change: IncidentChange, then: Acknowledgement) -> bool:
    if change.after not in _STATUSES:
        return False
    status, priority = _STATUSES[change.after], _PRIORITIES[change.finding.priority]
    # One that had stopped and grows again is as bad as suspected.
    return status > _STATUSES.get(then.status, 1) or priority > _PRIORITIES.get(then.priority, 1)


_GONE: Final = frozenset({None, "ok", "filling", "resolved"})


def alerts_for(
    changes: Iterable[IncidentChange],
    told: Mapping[str, Told],
    run: ExaminedRun,
    said: Mapping[str, Sequence[Acknowledgement]] | None = None,
) -> list[Alert]:
    """One alert for each change that has to be told.

    ``told``: incident id -> what was told of it before. ``said``: fingerprint -> what people said of the leak.
    """
    alerts = (_told(change, told, run, said or {}) for change in changes)
    return [alert for alert in alerts if alert is not None]


def _told(
    change: IncidentChange,
    told: Mapping[str, Told],
    run: ExaminedRun,
    said: Mapping[str, Sequence[Acknowledgement]],
) -> Alert | None:
    before = told.get(change.incident_id, Told())
    of_leak = said.get(change.finding.fingerprint, ())
    heard = hearing(of_leak, change, before, run.began_at, run.at)
    if heard is None:
        return None
    event = event_for(change.after, change.finding.kind, heard.told.event)
    if event is None or not is_believed(event, change.stood_seconds, run):
        return None
    way = way_to_tell(event, heard.told, run.at, change.still_seconds)
    if way is None:
        return None
    facts = incident_facts(event, change.incident_id, change.finding, run)
    if heard.note is not None and event in OPEN:
        facts = noted(facts, f"back in {run.name}; closed before with: {heard.note}")
        facts["incident"]["closed_before"] = heard.note
    if heard.expired is not None:
        facts = noted(facts, f"still there; its acknowledgement has expired: {heard.expired}")
    if way == "digest":
        facts = noted(facts, digest_sentence(event, heard.told, run.at))
    return _alert(event, change, before, run, facts, DIGEST if way == "digest" else "")


def event_for(status: str | None, kind: str, told: str | None) -> str | None:
    """The event to tell, or None. ``status`` is the incident's now, ``told`` the last event told of it."""
    if status in ("suspected", "confirmed"):
        if told in CERTAIN or (told == SUSPECTED and status == "suspected"):
            return None
        if kind == "count_contract":
            return VIOLATED
        return CONFIRMED if status == "confirmed" else SUSPECTED
    if status == "recovered":
        return RECOVERED if told in OPEN else None
    if status in _GONE:
        return RESOLVED if told in OPEN or told == RECOVERED else None
    return None


def _alert(
    event: str,
    change: IncidentChange,
    before: Told,
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
    """The same change gives the same id, so two servers that examine one run at once tell it once."""
    text = "\n".join((run_id, about, event, str(ordinal)))
    return "msg_" + hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]

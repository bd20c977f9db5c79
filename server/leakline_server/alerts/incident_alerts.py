"""When a change of an incident is told. Pure: changes in, alerts out; no clock, no rows, no network.

An incident is told once per change, not once per snapshot. What counts is what was *told* last, not the last
status: a finding that weakens and comes back, or is examined again after a crash, is not told twice.

    last told              now suspected   now confirmed   now recovered   now gone (or ok)
    nothing                suspected       confirmed       -               -
    suspected              -               confirmed       recovered       resolved
    confirmed, violated    -               -               recovered       resolved
    recovered              suspected       confirmed       -               resolved
    resolved               suspected       confirmed       -               -

A violated declared count is told as `contract.violated` in place of suspected or confirmed. Statuses between
(`learning`, `watch`) tell nothing: they are neither a leak nor its end. What people said of the leak comes first
(`suppression.py`); when an end is believed, and how a leak is told that opens and ends again and again, says
`flapping.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..store.alerts.alert_rows import DIGEST, Alert, Told
from ..store.incidents.acknowledgements import Acknowledgement
from ..store.incidents.findings import IncidentChange
from .alert_payload import ExaminedRun, incident_facts, noted
from .event_names import CERTAIN, CONFIRMED, OPEN, RECOVERED, RESOLVED, SUSPECTED, VIOLATED
from .flapping import digest_sentence, is_believed, way_to_tell
from .suppression import hearing

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

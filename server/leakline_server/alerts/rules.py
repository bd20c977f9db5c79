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
(`learning`, `watch`) tell nothing: they are neither a leak nor its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from ..store.alerts import Alert, Told
from ..store.findings import IncidentChange
from .payload import ExaminedRun, incident_facts

SUSPECTED: Final = "incident.suspected"
CONFIRMED: Final = "incident.confirmed"
RECOVERED: Final = "incident.recovered"
RESOLVED: Final = "incident.resolved"
VIOLATED: Final = "contract.violated"

_OPEN: Final = frozenset({SUSPECTED, CONFIRMED, VIOLATED})
_GONE: Final = frozenset({None, "ok", "filling", "resolved"})


def alerts_for(
    changes: Iterable[IncidentChange], told: Mapping[str, Told], run: ExaminedRun
) -> list[Alert]:
    """One alert for each change that has to be told. ``told``: incident id -> what was told of it before."""
    alerts = []
    for change in changes:
        before = told.get(change.incident_id, Told())
        event = event_for(change.after, change.finding.kind, before.event)
        if event is not None:
            alerts.append(_alert(event, change, before, run))
    return alerts


def event_for(status: str | None, kind: str, told: str | None) -> str | None:
    """The event to tell, or None. ``status`` is the incident's now, ``told`` the last event told of it."""
    if status in ("suspected", "confirmed"):
        if told in (CONFIRMED, VIOLATED) or (told == SUSPECTED and status == "suspected"):
            return None
        if kind == "count_contract":
            return VIOLATED
        return CONFIRMED if status == "confirmed" else SUSPECTED
    if status == "recovered":
        return RECOVERED if told in _OPEN else None
    if status in _GONE:
        return RESOLVED if told in _OPEN or told == RECOVERED else None
    return None


def _alert(event: str, change: IncidentChange, before: Told, run: ExaminedRun) -> Alert:
    return Alert(
        id=_id(run.id, change.incident_id, event, before.count),
        run_id=run.id,
        incident_id=change.incident_id,
        event=event,
        created_at=run.at,
        payload=incident_facts(event, change.incident_id, change.finding, run),
    )


def _id(run_id: str, incident: str, event: str, ordinal: int) -> str:
    """The same change gives the same id, so two servers that examine one run at once tell it once."""
    text = "\n".join((run_id, incident, event, str(ordinal)))
    return "msg_" + hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]

"""Alerts, and a pending delivery of each to every webhook, as rows in the transaction of the finding."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from .tables import alerts, deliveries, webhooks


@dataclass(frozen=True, slots=True)
class Alert:
    """That something mattered. ``id`` is the ``webhook-id`` of every message about it; times are Unix seconds.

    ``payload`` holds the facts as plain JSON, without the address of the server: links are paths. ``subject`` says
    what it is about where that is no incident: ``oom``, ``run``, ``rule 5``. After ``expires_at`` nobody needs it.
    """

    id: str
    run_id: str
    incident_id: str | None
    event: str
    created_at: float
    payload: Mapping[str, Any]
    subject: str = ""
    urgent: bool = True
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What was told of an incident: the last event, and how many."""

    event: str | None = None
    count: int = 0


def told(connection: Connection, run_id: str) -> dict[str, Told]:
    """Incident id -> what was told of it, for one run."""
    query = (
        select(alerts.c.incident_id, alerts.c.event)
        .where(alerts.c.run_id == run_id, alerts.c.incident_id.is_not(None))
        .order_by(alerts.c.created_at)
    )
    found: dict[str, Told] = {}
    for incident_id, event in connection.execute(query):
        found[incident_id] = Told(event, found.get(incident_id, Told()).count + 1)
    return found


def add(connection: Connection, new: Sequence[Alert]) -> int:
    """Write alerts and one due delivery for each enabled webhook; the caller commits. Returns the number of deliveries.

    An alert whose id is there already was told by another process: it and its deliveries are left as they are.
    """
    if not new:
        return 0
    rows = [
        {
            "id": alert.id,
            "run_id": alert.run_id,
            "incident_id": alert.incident_id,
            "event": alert.event,
            "created_at": alert.created_at,
            "subject": alert.subject,
            "urgent": alert.urgent,
            "expires_at": alert.expires_at,
            "payload": json.dumps(alert.payload, ensure_ascii=True, allow_nan=False),
        }
        for alert in new
    ]
    written = [row for row in rows if _insert_if_new(connection, row)]
    enabled = connection.scalars(select(webhooks.c.id).where(webhooks.c.enabled)).all()
    due = [
        {
            "alert_id": row["id"],
            "webhook_id": webhook_id,
            "state": "pending",
            "due_at": row["created_at"],
            "tries": 0,
        }
        for row in written
        for webhook_id in enabled
    ]
    if due:
        connection.execute(insert(deliveries), due)
    return len(due)


def _insert_if_new(connection: Connection, row: Mapping[str, Any]) -> bool:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = (
        dialect.insert(alerts)
        .values(**row)
        .on_conflict_do_nothing(index_elements=["id"])
        .returning(alerts.c.id)
    )
    # What is returned says it on both databases; the row count does not.
    return connection.execute(statement).first() is not None

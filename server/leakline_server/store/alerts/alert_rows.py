"""Alerts, and a pending delivery of each to every webhook, as rows in the transaction of the finding."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from ...limits import MAX_RUN_ALERTS
from ..engine import keep_newest
from ..schema import alerts, deliveries, webhooks
from .deliveries import supersede

# The subject of an alert that reports several changes of its incident at once.
DIGEST: Final = "digest"


@dataclass(frozen=True, slots=True)
class Alert:
    """That something mattered. ``id`` is the ``webhook-id`` of every message about it; times are Unix seconds.

    ``payload`` holds the facts as plain JSON, without the address of the server: links are paths. ``subject`` says
    what it is about where that is no incident: ``oom``, ``run``, ``rule 5``; of an incident it is DIGEST or empty.
    After ``expires_at`` nobody needs it. One with ``quiet_until`` stands for all of its kind until then.
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
    quiet_until: float | None = None


@dataclass(frozen=True, slots=True)
class SentAlert:
    """One alert of the past. Times are Unix seconds; ``digest`` when it stood for several changes."""

    event: str
    at: float
    digest: bool = False
    quiet_until: float | None = None


@dataclass(frozen=True, slots=True)
class AlertHistory:
    """What was sent about an incident or a subject: the last event, how many, and which, in order."""

    event: str | None = None
    count: int = 0
    alerts_sent: tuple[SentAlert, ...] = ()

    def since(self, at: float) -> AlertHistory:
        """As if nothing had been reported at or before ``at``; the count goes on."""
        later = tuple(sent for sent in self.alerts_sent if sent.at > at)
        return AlertHistory(later[-1].event if later else None, self.count, later)


def alert_histories(connection: Connection, run_id: str) -> dict[str, AlertHistory]:
    """What was sent about one run, by incident id, and by subject where an alert has no incident."""
    query = (
        select(
            alerts.c.incident_id, alerts.c.subject, alerts.c.event, alerts.c.created_at, alerts.c.quiet_until,
        )
        .where(alerts.c.run_id == run_id)
        .order_by(alerts.c.number, alerts.c.created_at)
    )  # fmt: skip
    found: dict[str, list[SentAlert]] = {}
    for row in connection.execute(query):
        sent = SentAlert(row.event, row.created_at, row.subject == DIGEST, row.quiet_until)
        found.setdefault(row.incident_id or row.subject, []).append(sent)
    return {
        what: AlertHistory(all_[-1].event, len(all_), tuple(all_)) for what, all_ in found.items()
    }


def last_payload(connection: Connection, run_id: str, subject: str) -> dict[str, Any] | None:
    """The facts of the last alert on a subject; None when nothing was."""
    query = (
        select(alerts.c.payload)
        .where(alerts.c.run_id == run_id, alerts.c.subject == subject)
        .order_by(alerts.c.number.desc(), alerts.c.created_at.desc())
        .limit(1)
    )
    text = connection.execute(query).scalar()
    if text is None:
        return None
    found: dict[str, Any] = json.loads(text)
    return found


def list_alerts(engine: Engine, run_id: str, limit: int) -> list[dict[str, Any]]:
    """{event, created_at in Unix seconds, payload} of a run, the newest first."""
    query = (
        select(alerts.c.event, alerts.c.created_at, alerts.c.payload)
        .where(alerts.c.run_id == run_id)
        .order_by(alerts.c.number.desc(), alerts.c.created_at.desc())
        .limit(limit)
    )
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    return [
        {"event": row.event, "created_at": row.created_at, "payload": json.loads(row.payload)}
        for row in rows
    ]


def keep_quiet(connection: Connection, run_id: str, subject: str, until: float) -> None:
    """The digests sent on a subject cover what comes until then, Unix seconds. The caller commits."""
    digests = (
        alerts.c.run_id == run_id,
        alerts.c.subject == subject,
        alerts.c.quiet_until.is_not(None),
    )
    connection.execute(update(alerts).where(*digests).values(quiet_until=until))


def add(connection: Connection, new: Sequence[Alert]) -> int:
    """Write alerts and one due delivery for each enabled webhook; the caller commits. Returns the number of deliveries.

    An alert whose id is there already was reported by another process: it and its deliveries are left as they are. What
    still waits of an earlier state of the same thing is superseded.
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
            "quiet_until": alert.quiet_until,
            "payload": json.dumps(alert.payload, ensure_ascii=True, allow_nan=False),
        }
        for alert in new
    ]
    written = [row for row in rows if _insert_if_new(connection, row)]
    for run_id in {alert.run_id for alert in new}:
        of_run = alerts.c.run_id == run_id
        keep_newest(connection, alerts.c.id, alerts.c.number, MAX_RUN_ALERTS, of_run)
    enabled = connection.scalars(select(webhooks.c.id).where(webhooks.c.enabled)).all()
    due = [
        {
            "alert_id": row["id"],
            "webhook_id": webhook_id,
            "state": "pending",
            "due_at": row["created_at"],
            "attempts": 0,
        }
        for row in written
        for webhook_id in enabled
    ]
    if due:
        connection.execute(insert(deliveries), due)
        supersede(connection, [str(row["id"]) for row in written])
    return len(due)


def _insert_if_new(connection: Connection, row: Mapping[str, Any]) -> bool:
    # Two servers that write at once may give one number twice: their clocks decide between these.
    last = select(func.max(alerts.c.number)).where(alerts.c.run_id == row["run_id"])
    number = func.coalesce(last.scalar_subquery(), 0) + 1
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = (
        dialect.insert(alerts)
        .values(**row, number=number)
        .on_conflict_do_nothing(index_elements=["id"])
        .returning(alerts.c.id)
    )
    # What is returned says it on both databases; the row count does not.
    return connection.execute(statement).first() is not None

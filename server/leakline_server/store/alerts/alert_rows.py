"""Storage of alerts.

An alert is written in the same transaction as its finding, with a pending delivery to each enabled webhook.
"""

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

# The subject of an alert that reports several changes of its incident together.
DIGEST: Final = "digest"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. ``id`` is the ``webhook-id`` of every message about it; times are Unix seconds.

    ``payload`` contains the facts as plain JSON; its links are paths without the server's address. ``subject`` is the
    topic (``oom``, ``run``, ``rule 5``) of an alert without an incident; for an alert about an incident, it is DIGEST
    or empty. After ``expires_at``, the alert is no longer useful. Until ``quiet_until``, no other alerts of the same
    kind are sent.
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
    """A past alert. Times are Unix seconds; ``digest`` is True if it reported several changes together."""

    event: str
    at: float
    digest: bool = False
    quiet_until: float | None = None


@dataclass(frozen=True, slots=True)
class AlertHistory:
    """The alerts about an incident or subject: the last event, the number of alerts, and the alerts in order."""

    event: str | None = None
    count: int = 0
    alerts_sent: tuple[SentAlert, ...] = ()

    def since(self, at: float) -> AlertHistory:
        """Return the history without alerts at or before ``at``; ``count`` still includes these alerts."""
        later = tuple(sent for sent in self.alerts_sent if sent.at > at)
        return AlertHistory(later[-1].event if later else None, self.count, later)


def alert_histories(connection: Connection, run_id: str) -> dict[str, AlertHistory]:
    """Return the alerts of one run by incident id, or by subject for alerts without an incident."""
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
    """Return the payload of the last alert about a subject, or None if the subject has no alerts."""
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
    """Return a run's alerts as {event, created_at in Unix seconds, payload}, newest first."""
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
    """Extend the quiet period of a subject's digests to ``until`` (Unix seconds). The caller commits."""
    digests = (
        alerts.c.run_id == run_id,
        alerts.c.subject == subject,
        alerts.c.quiet_until.is_not(None),
    )
    connection.execute(update(alerts).where(*digests).values(quiet_until=until))


def add(connection: Connection, new: Sequence[Alert]) -> int:
    """Write alerts, each with a due delivery for every enabled webhook. Return the number of deliveries.

    An alert whose id already exists was written by another process; that alert and its deliveries are left unchanged.
    Pending deliveries of earlier states of the same incident or subject are superseded. The caller commits.
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
    # Two servers that write concurrently may assign the same number; such alerts are ordered by time.
    last = select(func.max(alerts.c.number)).where(alerts.c.run_id == row["run_id"])
    number = func.coalesce(last.scalar_subquery(), 0) + 1
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = (
        dialect.insert(alerts)
        .values(**row, number=number)
        .on_conflict_do_nothing(index_elements=["id"])
        .returning(alerts.c.id)
    )
    # On both databases, the returned row shows whether the alert was inserted; the row count does not.
    return connection.execute(statement).first() is not None

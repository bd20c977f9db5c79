"""Of several states of one thing, the newest goes out: what still waits of the older ones is settled.

One thing is an incident, or what a run tells of under one subject. Newer is the delivery written later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, exists, or_, select, update

from .tables import alerts, deliveries

SUPERSEDED: Final = "superseded"

_later = deliveries.alias("later")
_later_alert = alerts.alias("later_alert")
_own_alert = alerts.alias("own_alert")


def supersede(connection: Connection, new_alerts: Sequence[str]) -> None:
    """Settle what waits of earlier states of what ``new_alerts`` tell, at the webhooks that get these."""
    connection.execute(
        update(deliveries)
        .where(deliveries.c.state == "pending", has_later(_later.c.alert_id.in_(new_alerts)))
        .values(state=SUPERSEDED, claimed_until=None)
    )


def has_later(*narrowed: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a newer state of the same thing is, or was, to be delivered to the same webhook."""
    same_subject = and_(
        _own_alert.c.incident_id.is_(None),
        _later_alert.c.incident_id.is_(None),
        _own_alert.c.subject != "",
        _later_alert.c.run_id == _own_alert.c.run_id,
        _later_alert.c.subject == _own_alert.c.subject,
    )
    return exists(
        select(_later.c.id)
        .join(_later_alert, _later_alert.c.id == _later.c.alert_id)
        .join(_own_alert, _own_alert.c.id == deliveries.c.alert_id)
        .where(
            _later.c.webhook_id == deliveries.c.webhook_id,
            _later.c.id > deliveries.c.id,
            or_(_later_alert.c.incident_id == _own_alert.c.incident_id, same_subject),
            *narrowed,
        )
        .correlate(deliveries)
    )

"""Deliveries to webhooks and their attempts. A delivery is claimed by a conditional update.

A claim is a lease: if a process dies while sending, the delivery is due again when the lease expires, and the message
is sent once more with the same id. So every alert is delivered at least once, unless its delivery fails for good or the
alert is no longer useful. An alert is no longer useful once it has expired, or once there is a newer state of the same
incident or subject.

    pending     waits until ``due_at``
    claimed     is being sent
    delivered   was delivered
    failed      will not be retried
    expired     was not delivered before the alert expired
    superseded  was replaced by a newer state

Users see a list of deliveries with the result of each attempt, and can send a delivery again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    and_,
    case,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from ..engine import writing
from ..runs.runs import BadCursor, iso, iso_or_none
from ..schema import alerts, deliveries, delivery_attempts, runs, webhooks
from .webhooks import Webhook, as_webhook, disable_where, note_arrival, note_failure

SUPERSEDED: Final = "superseded"

_later = deliveries.alias("later")
_later_alert = alerts.alias("later_alert")
_own_alert = alerts.alias("own_alert")


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery claimed by this process until ``claimed_until`` (Unix seconds). ``attempts`` includes this attempt."""

    id: int
    alert_id: str
    event: str
    created_at: float
    payload: Mapping[str, Any]
    webhook: Webhook
    attempts: int
    claimed_until: float
    urgent: bool
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class Try:
    """A delivery attempt. ``started_at`` is in Unix seconds; ``status`` is None if there was no response."""

    started_at: float
    seconds: float
    status: int | None
    error: str | None


def due_times(engine: Engine) -> dict[int, float]:
    """Return when the next delivery of each webhook is due, in Unix seconds.

    Webhooks without unfinished deliveries are left out.
    """
    due = func.min(_due_at())
    query = (
        select(deliveries.c.webhook_id, due)
        .where(deliveries.c.state.in_(("pending", "claimed")))
        .group_by(deliveries.c.webhook_id)
    )
    with engine.connect() as connection:
        return {webhook_id: float(at) for webhook_id, at in connection.execute(query)}


def claim(engine: Engine, webhook_id: int, now: float, lease_seconds: float) -> Claimed | None:
    """Claim the webhook's next due delivery. Return None if no delivery is due or another process has claimed it."""
    candidate = (
        select(deliveries.c.id)
        .join(alerts, alerts.c.id == deliveries.c.alert_id)
        .where(deliveries.c.webhook_id == webhook_id, _is_due(now))
        # Urgent alerts go first.
        .order_by(alerts.c.urgent.desc(), _due_at(), deliveries.c.id)
        .limit(1)
    )
    until = now + lease_seconds
    with writing(engine) as connection:
        _settle_stale(connection, webhook_id, now)
        delivery_id = connection.scalar(candidate)
        won = (
            delivery_id is not None
            and connection.execute(
                update(deliveries)
                # Repeat the condition, because another process may have claimed the delivery since it was read.
                .where(deliveries.c.id == delivery_id, _is_due(now))
                .values(state="claimed", claimed_until=until, attempts=deliveries.c.attempts + 1)
            ).rowcount
        )
        if not won:
            return None
        query = (
            select(
                deliveries.c.id.label("delivery_id"), deliveries.c.alert_id, deliveries.c.attempts, alerts.c.event,
                alerts.c.created_at.label("alert_created_at"),
                alerts.c.payload, alerts.c.urgent, alerts.c.expires_at, webhooks,
            )
            .join(alerts, alerts.c.id == deliveries.c.alert_id)
            .join(webhooks, webhooks.c.id == deliveries.c.webhook_id)
            .where(deliveries.c.id == delivery_id)
        )  # fmt: skip
        row = connection.execute(query).one()
    return Claimed(
        id=row.delivery_id,
        alert_id=row.alert_id,
        event=row.event,
        created_at=row.alert_created_at,
        payload=json.loads(row.payload),
        webhook=as_webhook(row),
        attempts=row.attempts,
        claimed_until=until,
        urgent=row.urgent,
        expires_at=row.expires_at,
    )


def delivered(engine: Engine, claimed: Claimed, made: Try) -> None:
    """Mark a delivery as delivered, even if the claim has expired and another process is sending it again."""
    with writing(engine) as connection:
        if _note(connection, claimed, made):
            _settle(
                connection,
                deliveries.c.id == claimed.id,
                "delivered",
                made,
                delivered_at=made.started_at + made.seconds,
            )
            note_arrival(connection, claimed.webhook.id)


def reschedule(engine: Engine, claimed: Claimed, made: Try, due_at: float) -> str | None:
    """Schedule another attempt at ``due_at``, or supersede the delivery if a newer state has been written.

    Return the reason if the webhook was disabled because of too many failures, otherwise None.
    """
    with writing(engine) as connection:
        if not _note(connection, claimed, made):
            return None
        _settle(connection, _still_ours(claimed) & ~_has_later(), "pending", made, due_at=due_at)
        _settle(connection, _still_ours(claimed), SUPERSEDED, made)
        return _count_failure(connection, claimed, made)


def expired(engine: Engine, claimed: Claimed, made: Try) -> str | None:
    """Mark a delivery as expired, because the next attempt would be too late.

    Return the reason if the webhook was disabled because of too many failures, otherwise None.
    """
    with writing(engine) as connection:
        if not _note(connection, claimed, made):
            return None
        _settle(connection, _still_ours(claimed), "expired", made)
        return _count_failure(connection, claimed, made)


def failed(engine: Engine, claimed: Claimed, made: Try, disable: bool = False) -> str | None:
    """Mark a delivery as failed for good; ``disable`` also disables its webhook.

    Return the reason if the webhook was disabled, otherwise None.
    """
    with writing(engine) as connection:
        if not _note(connection, claimed, made):
            return None
        _settle(connection, _still_ours(claimed), "failed", made)
        if disable:
            reason = made.error or "permanently refused"
            disable_where(connection, webhooks.c.id == claimed.webhook.id, reason)
            return reason
        return _count_failure(connection, claimed, made)


def _settle_stale(connection: Connection, webhook_id: int, now: float) -> None:
    """Mark due deliveries as expired or superseded, except deliveries that a user sent again after expiry."""
    of_webhook = and_(deliveries.c.webhook_id == webhook_id, _is_due(now))
    has_expired = exists(
        select(alerts.c.id)
        .where(
            alerts.c.id == deliveries.c.alert_id,
            alerts.c.expires_at <= now,
            alerts.c.expires_at > deliveries.c.due_at,
        )
        .correlate(deliveries)
    )
    # Pending deliveries were superseded when a newer delivery was written. The deliveries found here were being sent at
    # that time, by a process that has died since.
    outdated = and_(deliveries.c.state == "claimed", _has_later())
    for which, state in ((has_expired, "expired"), (outdated, SUPERSEDED)):
        connection.execute(
            update(deliveries).where(of_webhook, which).values(state=state, claimed_until=None)
        )


def _count_failure(connection: Connection, claimed: Claimed, made: Try) -> str | None:
    return note_failure(
        connection, claimed.webhook.id, made.started_at, made.error or "unknown error"
    )


def _is_due(now: float) -> ColumnElement[bool]:
    return or_(
        and_(deliveries.c.state == "pending", deliveries.c.due_at <= now),
        and_(deliveries.c.state == "claimed", deliveries.c.claimed_until <= now),
    )


def _due_at() -> ColumnElement[float]:
    return case(
        (deliveries.c.state == "claimed", deliveries.c.claimed_until), else_=deliveries.c.due_at
    )


def _still_ours(claimed: Claimed) -> ColumnElement[bool]:
    return and_(
        deliveries.c.id == claimed.id,
        deliveries.c.state == "claimed",
        deliveries.c.claimed_until == claimed.claimed_until,
    )


def _note(connection: Connection, claimed: Claimed, made: Try) -> bool:
    """Record an attempt. Return False if the delivery no longer exists, because its webhook or run was removed."""
    # Lock the webhook before the delivery, both here and wherever webhooks are disabled, to avoid deadlocks.
    hook = select(webhooks.c.id).where(webhooks.c.id == claimed.webhook.id)
    connection.execute(hook.with_for_update(key_share=True))
    own = select(deliveries.c.id).where(deliveries.c.id == claimed.id)
    if connection.scalar(own.with_for_update()) is None:
        return False
    connection.execute(
        insert(delivery_attempts).values(
            delivery_id=claimed.id,
            started_at=made.started_at,
            seconds=made.seconds,
            status=made.status,
            error=made.error,
        )
    )
    return True


def _settle(
    connection: Connection, which: ColumnElement[bool], state: str, made: Try, **values: float
) -> None:
    connection.execute(
        update(deliveries)
        .where(which)
        .values(
            state=state,
            claimed_until=None,
            last_status=made.status,
            last_error=made.error,
            **values,
        )
    )


def supersede(connection: Connection, new_alerts: Sequence[str]) -> None:
    """Mark pending deliveries as superseded by newer deliveries of ``new_alerts`` to the same webhook.

    The alerts of both deliveries must have the same incident, or the same run and subject. A delivery is newer if it
    was written later.
    """
    connection.execute(
        update(deliveries)
        .where(deliveries.c.state == "pending", _has_later(_later.c.alert_id.in_(new_alerts)))
        .values(state=SUPERSEDED, claimed_until=None)
    )


def _has_later(*narrowed: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that the same webhook has a later delivery about the same incident or subject."""
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


# The maximum number of attempts listed for a delivery. An urgent delivery may be retried for a day.
MAX_TRIES_SHOWN: Final = 20
_WAITING: Final = ("pending", "claimed")
STATES: Final = (*_WAITING, "delivered", "failed", "expired", SUPERSEDED)
_MAX_DIGITS: Final = 19  # number of digits of the largest id that both databases can store


class NoSuchDelivery(Exception):
    pass


class StillWaiting(Exception):
    """Raised when a delivery cannot be sent again yet, because it is still pending or being sent."""


class WebhookDisabled(Exception):
    """Raised when a delivery cannot be sent again because its webhook is disabled."""


def list_deliveries(
    engine: Engine, webhook_id: int | None, limit: int, cursor: str | None = None
) -> dict[str, Any]:
    """Return the deliveries of one webhook or of all webhooks as plain JSON, newest first. Raises BadCursor."""
    query = _query().order_by(deliveries.c.id.desc()).limit(limit + 1)
    if webhook_id is not None:
        query = query.where(deliveries.c.webhook_id == webhook_id)
    if cursor is not None:
        query = query.where(deliveries.c.id < _before(cursor))
    with engine.connect() as connection:
        rows = connection.execute(query).all()
        items = _items(connection, rows[:limit])
    return {"items": items, "next": str(rows[limit - 1].id) if len(rows) > limit else None}


def redeliver(engine: Engine, delivery_id: int, now: float) -> dict[str, Any]:
    """Make a settled delivery due again, with a new retry schedule and the same message id.

    Raises NoSuchDelivery, StillWaiting, WebhookDisabled.
    """
    one = _query().where(deliveries.c.id == delivery_id)
    with writing(engine) as connection:
        row = connection.execute(one).first()
        if row is None:
            raise NoSuchDelivery
        if not row.enabled:
            raise WebhookDisabled
        settled = (
            update(deliveries)
            .where(deliveries.c.id == delivery_id, deliveries.c.state.not_in(_WAITING))
            .values(state="pending", due_at=now, claimed_until=None, delivered_at=None, attempts=0)
        )
        if not connection.execute(settled).rowcount:
            raise StillWaiting
        (item,) = _items(connection, connection.execute(one).all())
    return item


def _query() -> Any:
    return (
        select(
            deliveries.c.id, deliveries.c.webhook_id, deliveries.c.alert_id, deliveries.c.state,
            deliveries.c.due_at, deliveries.c.last_status, deliveries.c.last_error, deliveries.c.delivered_at,
            alerts.c.event, alerts.c.created_at, alerts.c.urgent, alerts.c.expires_at, alerts.c.payload,
            runs.c.id.label("run_id"), runs.c.project, runs.c.name.label("run_name"), webhooks.c.enabled,
        )
        .join(alerts, alerts.c.id == deliveries.c.alert_id)
        .join(runs, runs.c.id == alerts.c.run_id)
        .join(webhooks, webhooks.c.id == deliveries.c.webhook_id)
    )  # fmt: skip


def _items(connection: Connection, rows: Sequence[Any]) -> list[dict[str, Any]]:
    made = _tries(connection, [row.id for row in rows])
    return [_item(row, made.get(row.id, [])) for row in rows]


def _tries(connection: Connection, ids: Sequence[int]) -> dict[int, list[Any]]:
    query = (
        select(delivery_attempts)
        .where(delivery_attempts.c.delivery_id.in_(ids))
        .order_by(delivery_attempts.c.id)
    )
    found: dict[int, list[Any]] = {}
    for row in connection.execute(query):
        found.setdefault(row.delivery_id, []).append(row)
    return found


def _item(row: Any, made: Sequence[Any]) -> dict[str, Any]:
    title = json.loads(row.payload).get("title")
    ends = [row.created_at, *(each.started_at + each.seconds for each in made)]
    history = [
        {
            "started_at": iso(each.started_at),
            "wait_seconds": max(0.0, each.started_at - before),
            "seconds": each.seconds,
            "status": each.status,
            "error": each.error,
        }
        for each, before in zip(made, ends, strict=False)
    ]
    return {
        "id": row.id,
        "webhook": row.webhook_id,
        "alert": row.alert_id,
        "event": row.event,
        "title": title if isinstance(title, str) else row.event,
        "run": row.run_id,
        "project": row.project,
        "run_name": row.run_name,
        "urgent": row.urgent,
        "created_at": iso(row.created_at),
        "expires_at": iso_or_none(row.expires_at),
        "state": row.state,
        "attempts": len(made),
        "last_status": row.last_status,
        "last_error": row.last_error,
        "next_attempt_at": iso(row.due_at) if row.state == "pending" else None,
        "delivered_at": iso_or_none(row.delivered_at),
        "history": history[-MAX_TRIES_SHOWN:],
    }


def _before(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < _MAX_DIGITS):
        raise BadCursor
    return int(cursor)

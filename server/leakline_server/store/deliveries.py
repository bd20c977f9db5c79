"""The deliveries due to webhooks, and the tries of each. A delivery is claimed by conditional update.

A claim is a lease: a process that dies while it sends leaves a delivery that is due again when the lease is over,
and the message goes out once more with the same id. So every alert is delivered at least once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    and_,
    case,
    func,
    insert,
    or_,
    select,
    update,
)

from .engine import writing
from .tables import alerts, deliveries, tries, webhooks
from .webhooks import Webhook, as_webhook, disable_where


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that is ours until ``claimed_until``. ``tries`` counts this one."""

    id: int
    alert_id: str
    event: str
    created_at: float
    payload: Mapping[str, Any]
    webhook: Webhook
    tries: int
    claimed_until: float


@dataclass(frozen=True, slots=True)
class Try:
    """One POST: Unix seconds, how long it took, the status if there was an answer, the error if there was one."""

    started_at: float
    seconds: float
    status: int | None
    error: str | None


def due_times(engine: Engine) -> dict[int, float]:
    """Webhook id -> Unix seconds at which its next delivery is due. Only webhooks that wait for one."""
    due = func.min(_due_at())
    query = (
        select(deliveries.c.webhook_id, due)
        .where(deliveries.c.state.in_(("pending", "claimed")))
        .group_by(deliveries.c.webhook_id)
    )
    with engine.connect() as connection:
        return {webhook_id: float(at) for webhook_id, at in connection.execute(query)}


def claim(engine: Engine, webhook_id: int, now: float, lease_seconds: float) -> Claimed | None:
    """The webhook's next due delivery, if this process is the one that gets it."""
    candidate = (
        select(deliveries.c.id)
        .where(deliveries.c.webhook_id == webhook_id, _is_due(now))
        .order_by(_due_at(), deliveries.c.id)
        .limit(1)
    )
    until = now + lease_seconds
    with writing(engine) as connection:
        delivery_id = connection.scalar(candidate)
        won = (
            delivery_id is not None
            and connection.execute(
                update(deliveries)
                # Asked again: another process may have claimed it since it was read.
                .where(deliveries.c.id == delivery_id, _is_due(now))
                .values(state="claimed", claimed_until=until, tries=deliveries.c.tries + 1)
            ).rowcount
        )
        if not won:
            return None
        query = (
            select(
                deliveries.c.id.label("delivery_id"), deliveries.c.alert_id, deliveries.c.tries, alerts.c.event,
                alerts.c.created_at.label("told_at"), alerts.c.payload, webhooks,
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
        created_at=row.told_at,
        payload=json.loads(row.payload),
        webhook=as_webhook(row),
        tries=row.tries,
        claimed_until=until,
    )


def delivered(engine: Engine, claimed: Claimed, made: Try) -> None:
    """It arrived. That holds even if the claim ran out meanwhile and another process is sending it again."""
    with writing(engine) as connection:
        _note(connection, claimed, made)
        _settle(
            connection,
            deliveries.c.id == claimed.id,
            "delivered",
            made,
            delivered_at=made.started_at + made.seconds,
        )


def try_again(engine: Engine, claimed: Claimed, made: Try, due_at: float) -> None:
    with writing(engine) as connection:
        _note(connection, claimed, made)
        _settle(connection, _still_ours(claimed), "pending", made, due_at=due_at)


def failed(engine: Engine, claimed: Claimed, made: Try, disable: bool = False) -> None:
    """It will not be sent again; with ``disable`` nothing will be sent to this webhook again."""
    with writing(engine) as connection:
        _note(connection, claimed, made)
        _settle(connection, _still_ours(claimed), "failed", made)
        if disable:
            disable_where(
                connection, webhooks.c.id == claimed.webhook.id, made.error or "refused for good"
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


def _note(connection: Connection, claimed: Claimed, made: Try) -> None:
    connection.execute(
        insert(tries).values(
            delivery_id=claimed.id,
            started_at=made.started_at,
            seconds=made.seconds,
            status=made.status,
            error=made.error,
        )
    )


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

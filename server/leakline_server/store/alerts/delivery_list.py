"""Deliveries as people see them: which, where, what came of each try; and one sent again by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Engine, select, update

from ..engine import writing
from ..runs.runs import BadCursor, iso, iso_or_none
from ..schema import alerts, deliveries, runs, tries, webhooks
from .deliveries import SUPERSEDED

# Of each delivery the newest tries; an urgent one may have been tried for a day.
MAX_TRIES_SHOWN: Final = 20
_WAITING: Final = ("pending", "claimed")
STATES: Final = (*_WAITING, "delivered", "failed", "expired", SUPERSEDED)
_MAX_DIGITS: Final = 19  # of what both databases hold


class NoSuchDelivery(Exception):
    pass


class StillWaiting(Exception):
    """It has not come to an end yet."""


class WebhookDisabled(Exception):
    """Nothing is sent to its webhook."""


def list_deliveries(
    engine: Engine, webhook_id: int | None, limit: int, cursor: str | None = None
) -> dict[str, Any]:
    """Deliveries to one webhook or to all, newest first, as plain JSON. Raises BadCursor."""
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
    """Make a settled delivery due again, with all the tries of its schedule and the same id for the receiver.

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
            .values(state="pending", due_at=now, claimed_until=None, delivered_at=None, tries=0)
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
    query = select(tries).where(tries.c.delivery_id.in_(ids)).order_by(tries.c.id)
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
        "tries": len(made),
        "last_status": row.last_status,
        "last_error": row.last_error,
        "next_try_at": iso(row.due_at) if row.state == "pending" else None,
        "delivered_at": iso_or_none(row.delivered_at),
        "history": history[-MAX_TRIES_SHOWN:],
    }


def _before(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < _MAX_DIGITS):
        raise BadCursor
    return int(cursor)

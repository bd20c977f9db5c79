"""The addresses alerts go to. For now the one of the environment; the rows of earlier ones stay, disabled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Engine, and_, insert, select, update

from .engine import writing
from .tables import deliveries, settings, webhooks

NO_LONGER_CONFIGURED: Final = "no longer in LEAKLINE_WEBHOOK_URL"

_SECRET_KEY: Final = "webhook_secret"
_ENVIRONMENT: Final = "environment"


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address. ``disabled_reason`` is None while it is enabled. Neither url nor secret may be shown."""

    id: int
    url: str = field(repr=False)
    format: str
    secret: str = field(repr=False)
    disabled_reason: str | None


@dataclass(frozen=True, slots=True)
class Registered:
    """The webhook of the environment; ``made_secret`` only for the one process that made it, to be shown once."""

    webhook: Webhook
    made_secret: str | None = field(repr=False)


def register(
    engine: Engine,
    url: str,
    form: str,
    secret: str | None,
    make_secret: Callable[[], str],
    now: float,
) -> Registered:
    """The environment's one webhook: the row for ``url``, made if there is none; rows for other urls are disabled.

    A webhook that was disabled because its receiver asked for it (410) stays so.
    """
    with writing(engine) as connection:
        _one_at_a_time(connection)
        made = None
        if secret is None:
            secret, made = _stored_secret(connection, make_secret)
        _disable_others(connection, url)
        own = and_(webhooks.c.source == _ENVIRONMENT, webhooks.c.url == url)
        values: dict[str, Any] = {"format": form, "secret": secret}
        found = connection.execute(
            select(webhooks.c.id, webhooks.c.disabled_reason).where(own)
        ).first()
        if found is None:
            connection.execute(
                insert(webhooks).values(
                    url=url, source=_ENVIRONMENT, enabled=True, created_at=now, **values
                )
            )
        else:
            if found.disabled_reason == NO_LONGER_CONFIGURED:
                values |= {"enabled": True, "disabled_reason": None}
            connection.execute(update(webhooks).where(webhooks.c.id == found.id).values(**values))
        return Registered(as_webhook(connection.execute(select(webhooks).where(own)).one()), made)


def unregister(engine: Engine) -> None:
    """The environment names no webhook: those it named before get nothing more."""
    with writing(engine) as connection:
        _disable_others(connection, url=None)


def stored_secret(engine: Engine, make_secret: Callable[[], str]) -> tuple[str, str | None]:
    """(the stored secret, the same again if it was made just now, to be shown once)."""
    with writing(engine) as connection:
        _one_at_a_time(connection)
        return _stored_secret(connection, make_secret)


def enable(engine: Engine, url: str) -> None:
    """The receiver takes messages again. What failed meanwhile stays failed."""
    with writing(engine) as connection:
        connection.execute(
            update(webhooks)
            .where(webhooks.c.url == url, webhooks.c.enabled.is_(False))
            .where(webhooks.c.disabled_reason != NO_LONGER_CONFIGURED)
            .values(enabled=True, disabled_reason=None)
        )


def _disable_others(connection: Connection, url: str | None) -> None:
    others = and_(webhooks.c.source == _ENVIRONMENT, webhooks.c.enabled)
    if url is not None:
        others = and_(others, webhooks.c.url != url)
    disable_where(connection, others, NO_LONGER_CONFIGURED)


def disable_where(connection: Connection, which: ColumnElement[bool], reason: str) -> None:
    """What still waits for these webhooks has failed, visibly."""
    ids = connection.scalars(select(webhooks.c.id).where(which)).all()
    if not ids:
        return
    connection.execute(
        update(webhooks).where(webhooks.c.id.in_(ids)).values(enabled=False, disabled_reason=reason)
    )
    connection.execute(
        update(deliveries)
        .where(deliveries.c.webhook_id.in_(ids), deliveries.c.state.in_(("pending", "claimed")))
        .values(state="failed", last_error=f"webhook disabled: {reason}")
    )


def _stored_secret(connection: Connection, make: Callable[[], str]) -> tuple[str, str | None]:
    """(secret, the same if it was made just now)."""
    stored = connection.scalar(select(settings.c.value).where(settings.c.key == _SECRET_KEY))
    if stored is not None:
        return stored, None
    made = make()
    connection.execute(insert(settings).values(key=_SECRET_KEY, value=made))
    return made, made


def _one_at_a_time(connection: Connection) -> None:
    # On SQLite the transaction that writes is alone already.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7239115)")


def as_webhook(row: Any) -> Webhook:
    return Webhook(row.id, row.url, row.format, row.secret, row.disabled_reason)

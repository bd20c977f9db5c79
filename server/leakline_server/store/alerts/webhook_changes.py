"""What people change of the webhooks: made, named, pointed elsewhere, rotated, disabled, enabled, removed, tested.

A webhook of the environment keeps its address, format and secret, which it has from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, delete, func, insert, select, update

from ...limits import MAX_WEBHOOKS
from ..engine import writing
from ..schema import settings, webhooks
from .webhooks import (
    VARIABLES,
    Webhook,
    as_webhook,
    disable_where,
    enable_where,
    get_webhook,
    one_at_a_time,
)

API: Final = "api"
BY_HAND: Final = "by hand"
# How long the secret before a rotation signs too.
ROTATION_SECONDS: Final = 86_400.0

TRIAL_KEY: Final = "webhook_test:{}"


class TooManyWebhooks(Exception):
    """MAX_WEBHOOKS are there already."""


class NotChangeable(Exception):
    """The environment decides this; ``str`` says what to do instead."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of the last test message: Unix seconds, how long it took, the status and the error if any."""

    at: float
    seconds: float
    status: int | None
    error: str | None


def make(engine: Engine, name: str, url: str, form: str, secret: str, now: float) -> Webhook:
    """A new webhook for every alert from now on. Raises TooManyWebhooks."""
    with writing(engine) as connection:
        one_at_a_time(connection)
        made = select(func.count()).select_from(webhooks).where(webhooks.c.source == API)
        if (connection.scalar(made) or 0) >= MAX_WEBHOOKS:
            raise TooManyWebhooks
        row = connection.execute(
            insert(webhooks)
            .values(
                name=name, url=url, format=form, secret=secret, source=API, enabled=True, created_at=now
            )
            .returning(webhooks)
        ).one()  # fmt: skip
    return as_webhook(row)


def change(
    engine: Engine, webhook_id: int, values: Mapping[str, Any], enabled: bool | None = None
) -> Webhook | None:
    """Set ``name``, ``url`` or ``format``, and enable or disable it; None when there is none. Raises NotChangeable.

    Enabled again, it gets the alerts from now on, and what failed meanwhile stays failed. Disabled, what waits for it
    has failed; one that is disabled already keeps its reason.
    """
    this = webhooks.c.id == webhook_id
    with writing(engine) as connection:
        found = _of(connection, webhook_id)
        if found is None:
            return None
        _must_be_changeable(found, values, enabled)
        if values:
            connection.execute(update(webhooks).where(this).values(**values))
        if enabled is True:
            enable_where(connection, this)
        if enabled is False:
            disable_where(connection, this & webhooks.c.enabled, BY_HAND)
    return get_webhook(engine, webhook_id)


def rotate(engine: Engine, webhook_id: int, secret: str, now: float) -> Webhook | None:
    """A new secret; the one until now signs too for ROTATION_SECONDS. Raises NotChangeable."""
    with writing(engine) as connection:
        found = _of(connection, webhook_id)
        if found is None:
            return None
        if found.configured:
            raise NotChangeable(
                "the secret of this webhook is that of the environment: set LEAKLINE_WEBHOOK_SECRET "
                "and start the server again"
            )
        connection.execute(
            update(webhooks)
            .where(webhooks.c.id == webhook_id)
            .values(
                previous_secret=found.secret, previous_until=now + ROTATION_SECONDS, secret=secret
            )
        )
    return get_webhook(engine, webhook_id)


def remove(engine: Engine, webhook_id: int) -> bool:
    """With its deliveries and their tries; False when there is none. Raises NotChangeable."""
    with writing(engine) as connection:
        found = _of(connection, webhook_id)
        if found is None:
            return False
        if found.configured and not found.left_out:
            raise NotChangeable(
                f"this webhook is that of {VARIABLES[found.source]}: take it out there and start the server again, "
                "or disable it here"
            )
        connection.execute(delete(settings).where(settings.c.key == TRIAL_KEY.format(webhook_id)))
        connection.execute(delete(webhooks).where(webhooks.c.id == webhook_id))
    return True


def note_trial(engine: Engine, webhook_id: int, trial: Trial) -> None:
    key = TRIAL_KEY.format(webhook_id)
    value = msgspec.json.encode(trial).decode()
    with writing(engine) as connection:
        connection.execute(delete(settings).where(settings.c.key == key))
        connection.execute(insert(settings).values(key=key, value=value))


def last_trials(engine: Engine) -> dict[int, Trial]:
    """Webhook id -> what came of its last test message."""
    prefix = TRIAL_KEY.format("")
    query = select(settings.c.key, settings.c.value).where(
        settings.c.key.startswith(prefix, autoescape=True)
    )
    with engine.connect() as connection:
        return {
            int(key.removeprefix(prefix)): msgspec.json.decode(value, type=Trial)
            for key, value in connection.execute(query)
        }


def _must_be_changeable(hook: Webhook, values: Mapping[str, Any], enabled: bool | None) -> None:
    if not hook.configured:
        return
    variable = VARIABLES[hook.source]
    if set(values) - {"name"}:
        raise NotChangeable(
            f"this webhook is that of {variable}: change it there, or add another one"
        )
    if enabled is True and hook.left_out:
        raise NotChangeable(f"this webhook is {hook.disabled_reason}: set it there again")


def _of(connection: Connection, webhook_id: int) -> Webhook | None:
    row = connection.execute(select(webhooks).where(webhooks.c.id == webhook_id)).first()
    return None if row is None else as_webhook(row)

"""Webhooks, the destinations of alerts. A webhook is configured in the environment or added by a user.

Users can add, rename, change, disable, enable, test and remove webhooks and rotate their secrets. The URL, format and
secret of a configured webhook come from the environment and cannot be changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, func, insert, select, update

from ...limits import MAX_WEBHOOKS
from ..engine import writing
from ..schema import deliveries, settings, webhooks

# The sources of webhooks that are configured in the environment, and the variable for each source.
ENVIRONMENT: Final = "environment"
APPRISE: Final = "apprise"
VARIABLES: Final[Mapping[str, str]] = {
    ENVIRONMENT: "LEAKLINE_WEBHOOK_URL",
    APPRISE: "LEAKLINE_APPRISE_URLS",
}
NO_LONGER_CONFIGURED: Final = "no longer in LEAKLINE_WEBHOOK_URL"
NOT_BY_APPRISE: Final = "no longer in LEAKLINE_APPRISE_URLS, or apprise is not installed"
# A webhook whose receiver is down for a long weekend stays enabled; an abandoned webhook is disabled. Many simultaneous
# alerts can fail within a minute, so a minimum time ensures that an overnight outage does not disable a webhook.
MAX_FAILURES: Final = 50
MIN_FAILING_SECONDS: Final = 12 * 3_600.0
MAX_FAILING_SECONDS: Final = 120 * 3_600.0

SECRET_KEY: Final = "webhook_secret"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook; times are Unix seconds. ``disabled_reason`` is None while the webhook is enabled.

    Neither the URL nor the secrets may be shown. ``failures`` is the number of failed attempts since the last success;
    the first of these attempts was at ``failing_since``.
    """

    id: int
    url: str = field(repr=False)
    format: str
    secret: str = field(repr=False)
    disabled_reason: str | None
    name: str
    source: str
    created_at: float
    previous_secret: str | None = field(repr=False)
    previous_until: float | None
    failures: int
    failing_since: float | None

    def previous_secret_at(self, now: float) -> str | None:
        """Return the previous secret if deliveries are still signed with it, otherwise None."""
        until = self.previous_until
        return self.previous_secret if until is not None and now < until else None

    @property
    def configured(self) -> bool:
        """True if the webhook's URL and format come from the environment."""
        return self.source in VARIABLES

    @property
    def left_out(self) -> bool:
        """True if the webhook is no longer configured in the environment."""
        return self.disabled_reason in (NO_LONGER_CONFIGURED, NOT_BY_APPRISE)


@dataclass(frozen=True, slots=True)
class Registered:
    """The webhook of LEAKLINE_WEBHOOK_URL. ``made_secret`` is a newly generated secret to show once, or None."""

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
    """Store or update the webhook of LEAKLINE_WEBHOOK_URL. Disable webhooks from earlier values of this variable.

    A webhook that was disabled because its receiver returned 410 or failed for too long stays disabled.
    """
    with writing(engine) as connection:
        _one_at_a_time(connection)
        made = None
        if secret is None:
            secret, made = _stored_secret(connection, make_secret)
        _disable_others(connection, url)
        own = and_(webhooks.c.source == ENVIRONMENT, webhooks.c.url == url)
        values: dict[str, Any] = {"format": form, "secret": secret}
        found = connection.execute(
            select(webhooks.c.id, webhooks.c.disabled_reason).where(own)
        ).first()
        if found is None:
            connection.execute(
                insert(webhooks).values(
                    url=url, source=ENVIRONMENT, enabled=True, created_at=now, **values
                )
            )
        else:
            if found.disabled_reason == NO_LONGER_CONFIGURED:
                values |= {"enabled": True, "disabled_reason": None}
            connection.execute(update(webhooks).where(webhooks.c.id == found.id).values(**values))
        return Registered(as_webhook(connection.execute(select(webhooks).where(own)).one()), made)


def unregister(engine: Engine) -> None:
    """Disable webhooks from earlier values of LEAKLINE_WEBHOOK_URL, which is no longer set."""
    with writing(engine) as connection:
        _disable_others(connection, url=None)


def register_apprise(engine: Engine, urls: Sequence[str], now: float) -> list[Webhook]:
    """Store a webhook for each URL of LEAKLINE_APPRISE_URLS. Disable webhooks that are no longer listed."""
    of_apprise = webhooks.c.source == APPRISE
    with writing(engine) as connection:
        _one_at_a_time(connection)
        gone = and_(of_apprise, webhooks.c.enabled, webhooks.c.url.not_in(urls))
        disable_where(connection, gone, NOT_BY_APPRISE)
        _enable_where(
            connection,
            and_(
                of_apprise,
                webhooks.c.url.in_(urls),
                webhooks.c.disabled_reason == NOT_BY_APPRISE,
            ),
        )
        known = set(connection.scalars(select(webhooks.c.url).where(of_apprise)))
        for url in dict.fromkeys(urls):
            if url not in known:
                values = {"url": url, "format": APPRISE, "secret": "", "source": APPRISE}
                connection.execute(insert(webhooks).values(enabled=True, created_at=now, **values))
        rows = connection.execute(
            select(webhooks).where(of_apprise, webhooks.c.url.in_(urls)).order_by(webhooks.c.id)
        )
        return [as_webhook(row) for row in rows]


def stored_secret(engine: Engine, make_secret: Callable[[], str]) -> tuple[str, str | None]:
    """Return (secret, secret to show once); the second item is None if the secret existed before this call."""
    with writing(engine) as connection:
        _one_at_a_time(connection)
        return _stored_secret(connection, make_secret)


def enable_configured(engine: Engine, url: str) -> None:
    """Enable the webhook of LEAKLINE_WEBHOOK_URL again. Deliveries that failed in the meantime are not retried."""
    own = and_(webhooks.c.source == ENVIRONMENT, webhooks.c.url == url)
    with writing(engine) as connection:
        _enable_where(
            connection, and_(own, webhooks.c.disabled_reason.is_distinct_from(NO_LONGER_CONFIGURED))
        )


def list_webhooks(engine: Engine) -> list[Webhook]:
    """Return all webhooks in order of creation."""
    with engine.connect() as connection:
        rows = connection.execute(select(webhooks).order_by(webhooks.c.id))
        return [as_webhook(row) for row in rows]


def get_webhook(engine: Engine, webhook_id: int) -> Webhook | None:
    with engine.connect() as connection:
        row = connection.execute(select(webhooks).where(webhooks.c.id == webhook_id)).first()
    return None if row is None else as_webhook(row)


def _enable_where(connection: Connection, which: ColumnElement[bool]) -> None:
    connection.execute(
        update(webhooks)
        .where(which, webhooks.c.enabled.is_(False))
        .values(enabled=True, disabled_reason=None, failures=0, failing_since=None)
    )


def disable_where(connection: Connection, which: ColumnElement[bool], reason: str) -> None:
    """Disable webhooks, and mark their pending deliveries as failed with this reason."""
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


def note_arrival(connection: Connection, webhook_id: int) -> None:
    connection.execute(
        update(webhooks)
        .where(webhooks.c.id == webhook_id, webhooks.c.failures > 0)
        .values(failures=0, failing_since=None)
    )


def note_failure(connection: Connection, webhook_id: int, at: float, error: str) -> str | None:
    """Count a failed attempt. If the webhook is disabled because of too many failures, return the reason."""
    row = connection.execute(
        update(webhooks)
        .where(webhooks.c.id == webhook_id, webhooks.c.enabled)
        .values(
            failures=webhooks.c.failures + 1,
            failing_since=func.coalesce(webhooks.c.failing_since, at),
        )
        .returning(webhooks.c.failures, webhooks.c.failing_since)
    ).first()
    if row is None:
        return None
    seconds = at - row.failing_since
    often = row.failures >= MAX_FAILURES and seconds >= MIN_FAILING_SECONDS
    if not often and seconds < MAX_FAILING_SECONDS:
        return None
    hours = seconds / 3_600
    reason = f"all {row.failures} attempts in {hours:.0f} hours failed; last error: {error}"
    disable_where(connection, webhooks.c.id == webhook_id, reason)
    return reason


def as_webhook(row: Any) -> Webhook:
    return Webhook(
        row.id,
        row.url,
        row.format,
        row.secret,
        row.disabled_reason,
        row.name,
        row.source,
        row.created_at,
        row.previous_secret,
        row.previous_until,
        row.failures,
        row.failing_since,
    )


def _one_at_a_time(connection: Connection) -> None:
    """Lock the creation of webhooks. SQLite allows only one write transaction at a time anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7239115)")


def _disable_others(connection: Connection, url: str | None) -> None:
    others = and_(webhooks.c.source == ENVIRONMENT, webhooks.c.enabled)
    if url is not None:
        others = and_(others, webhooks.c.url != url)
    disable_where(connection, others, NO_LONGER_CONFIGURED)


def _stored_secret(connection: Connection, make: Callable[[], str]) -> tuple[str, str | None]:
    """Return (secret, secret to show once); the second item is None if the secret existed before."""
    stored = connection.scalar(select(settings.c.value).where(settings.c.key == SECRET_KEY))
    if stored is not None:
        return stored, None
    made = make()
    connection.execute(insert(settings).values(key=SECRET_KEY, value=made))
    return made, made


API: Final = "api"
BY_HAND: Final = "by hand"
# How long deliveries are also signed with the previous secret after a rotation.
ROTATION_SECONDS: Final = 86_400.0

TRIAL_KEY: Final = "webhook_test:{}"


class TooManyWebhooks(Exception):
    """Raised when users have already added MAX_WEBHOOKS webhooks."""


class NotChangeable(Exception):
    """Raised for a change that must be made in the environment; the text is the message for users."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a test message. ``at`` is in Unix seconds; ``status`` is None if there was no response."""

    at: float
    seconds: float
    status: int | None
    error: str | None


def make(engine: Engine, name: str, url: str, form: str, secret: str, now: float) -> Webhook:
    """Add a webhook, which gets every alert from now on. Raises TooManyWebhooks."""
    with writing(engine) as connection:
        _one_at_a_time(connection)
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
    """Change the ``name``, ``url`` or ``format`` of a webhook, and enable or disable it.

    Return None if the webhook does not exist. A webhook that is enabled again gets new alerts only; failed deliveries
    are not retried. Disabling a webhook marks its pending deliveries as failed. A webhook that is already disabled
    keeps its reason. Raises NotChangeable.
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
            _enable_where(connection, this)
        if enabled is False:
            disable_where(connection, this & webhooks.c.enabled, BY_HAND)
    return get_webhook(engine, webhook_id)


def rotate(engine: Engine, webhook_id: int, secret: str, now: float) -> Webhook | None:
    """Set a new secret. For ROTATION_SECONDS, deliveries are also signed with the previous secret.

    Return None if the webhook does not exist. Raises NotChangeable.
    """
    with writing(engine) as connection:
        found = _of(connection, webhook_id)
        if found is None:
            return None
        if found.configured:
            raise NotChangeable(
                "the secret of this webhook comes from the environment: to change it, set LEAKLINE_WEBHOOK_SECRET "
                "and restart the server"
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
    """Remove a webhook with its deliveries and attempts; return False if it does not exist. Raises NotChangeable."""
    with writing(engine) as connection:
        found = _of(connection, webhook_id)
        if found is None:
            return False
        if found.configured and not found.left_out:
            raise NotChangeable(
                f"this webhook is configured in {VARIABLES[found.source]}: remove it there and restart the server, "
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
    """Return the result of each webhook's last test message, by webhook id."""
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
            f"this webhook is configured in {variable}: change it there, or add another webhook"
        )
    if enabled is True and hook.left_out:
        raise NotChangeable(
            f"this webhook is {hook.disabled_reason}; fix the configuration and restart the server"
        )


def _of(connection: Connection, webhook_id: int) -> Webhook | None:
    row = connection.execute(select(webhooks).where(webhooks.c.id == webhook_id)).first()
    return None if row is None else as_webhook(row)

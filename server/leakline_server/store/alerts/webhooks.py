"""The addresses alerts go to: the one of the environment, which comes and goes with it, and those people made.

People make, name and remove webhooks, point them elsewhere, rotate their secrets, disable, enable and test them. A
webhook of the environment keeps its address, format and secret, which it has from there.
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

# Sources of webhooks that come and go with the environment, and the variable of each.
ENVIRONMENT: Final = "environment"
APPRISE: Final = "apprise"
VARIABLES: Final[Mapping[str, str]] = {
    ENVIRONMENT: "LEAKLINE_WEBHOOK_URL",
    APPRISE: "LEAKLINE_APPRISE_URLS",
}
NO_LONGER_CONFIGURED: Final = "no longer in LEAKLINE_WEBHOOK_URL"
NOT_BY_APPRISE: Final = "no longer in LEAKLINE_APPRISE_URLS, or apprise is not installed"
# A receiver that is away over a long weekend stays; one that nobody looks after does not.
# Many alerts at once make as many failures in a minute: an outage of a night disables nothing.
MAX_FAILURES: Final = 50
MIN_FAILING_SECONDS: Final = 12 * 3_600.0
MAX_FAILING_SECONDS: Final = 120 * 3_600.0

SECRET_KEY: Final = "webhook_secret"


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address; times are Unix seconds. ``disabled_reason`` is None while it is enabled.

    Neither url nor secrets may be shown. ``failures`` counts the attempts since the last one that arrived, the first of
    which was at ``failing_since``.
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
        """The secret before the last rotation, as long as it signs too."""
        until = self.previous_until
        return self.previous_secret if until is not None and now < until else None

    @property
    def configured(self) -> bool:
        """The environment decides where it leads and how."""
        return self.source in VARIABLES

    @property
    def left_out(self) -> bool:
        """The environment names it no more."""
        return self.disabled_reason in (NO_LONGER_CONFIGURED, NOT_BY_APPRISE)


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

    A webhook that was disabled because its receiver asked for it (410) or failed for long stays so.
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
    """The environment names no webhook: those it named before get nothing more."""
    with writing(engine) as connection:
        _disable_others(connection, url=None)


def register_apprise(engine: Engine, urls: Sequence[str], now: float) -> list[Webhook]:
    """One webhook for each address of LEAKLINE_APPRISE_URLS; those it named before get nothing more."""
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
    """(the stored secret, the same again if it was made just now, to be shown once)."""
    with writing(engine) as connection:
        _one_at_a_time(connection)
        return _stored_secret(connection, make_secret)


def enable_configured(engine: Engine, url: str) -> None:
    """The receiver of the environment takes messages again. What failed meanwhile stays failed."""
    own = and_(webhooks.c.source == ENVIRONMENT, webhooks.c.url == url)
    with writing(engine) as connection:
        _enable_where(
            connection, and_(own, webhooks.c.disabled_reason.is_distinct_from(NO_LONGER_CONFIGURED))
        )


def list_webhooks(engine: Engine) -> list[Webhook]:
    """All of them in the order in which they were made."""
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


def note_arrival(connection: Connection, webhook_id: int) -> None:
    connection.execute(
        update(webhooks)
        .where(webhooks.c.id == webhook_id, webhooks.c.failures > 0)
        .values(failures=0, failing_since=None)
    )


def note_failure(connection: Connection, webhook_id: int, at: float, error: str) -> str | None:
    """One more try failed at ``at``; the reason if that was one too many, and the webhook is disabled now."""
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
    reason = f"nothing arrived in {row.failures} attempts over {hours:.0f} hours; the last: {error}"
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
    """Webhooks are made by one process at a time. On SQLite the transaction that writes is alone already."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7239115)")


def _disable_others(connection: Connection, url: str | None) -> None:
    others = and_(webhooks.c.source == ENVIRONMENT, webhooks.c.enabled)
    if url is not None:
        others = and_(others, webhooks.c.url != url)
    disable_where(connection, others, NO_LONGER_CONFIGURED)


def _stored_secret(connection: Connection, make: Callable[[], str]) -> tuple[str, str | None]:
    """(secret, the same if it was made just now)."""
    stored = connection.scalar(select(settings.c.value).where(settings.c.key == SECRET_KEY))
    if stored is not None:
        return stored, None
    made = make()
    connection.execute(insert(settings).values(key=SECRET_KEY, value=made))
    return made, made


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
            _enable_where(connection, this)
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
    """With its deliveries and their attempts; False when there is none. Raises NotChangeable."""
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

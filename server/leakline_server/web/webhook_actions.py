"""What people do with webhooks, for the API and the page alike. Everything here raises RequestRefused."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..alerts import by_apprise
from ..alerts.address import AddressRefused, AddressUnknown, check, shown
from ..alerts.formats import FORMATS
from ..alerts.outgoing import origin_of, send, trial
from ..alerts.post import Delivered
from ..alerts.signing import make_secret
from ..errors import Conflict, InvalidField, NotFound
from ..limits import MAX_WEBHOOKS
from ..store import delivery_list, webhook_changes, webhooks
from ..store.runs import iso, iso_or_none
from ..store.webhook_changes import NotChangeable, TooManyWebhooks, Trial
from ..store.webhooks import Webhook
from .services import Services


def make(use: Services, name: str, url: str, form: str) -> Webhook:
    """A webhook with a new secret, which the answer shows and nothing later does."""
    _check_format(form)
    _check_address(use, url)
    try:
        return webhook_changes.make(use.engine, name, url, form, make_secret(), time.time())
    except TooManyWebhooks as error:
        raise Conflict(
            "too_many_webhooks", f"there are {MAX_WEBHOOKS} webhooks already; delete one first"
        ) from error


def change(
    use: Services, webhook_id: int, values: Mapping[str, str], enabled: bool | None = None
) -> Webhook:
    hook = get(use, webhook_id)
    form = values.get("format", hook.format)
    # No address is added to those that apprise looks up, and a format that is gone is not enabled again.
    is_new = "url" in values or (enabled is True and form != by_apprise.FORMAT)
    if "format" in values or (is_new and not hook.configured):
        _check_format(form)
    if "url" in values:
        _check_address(use, values["url"])
    try:
        changed = webhook_changes.change(use.engine, webhook_id, values, enabled)
    except NotChangeable as error:
        raise _not_changeable(webhook_id, error) from error
    return _found(webhook_id, changed)


def rotate(use: Services, webhook_id: int) -> Webhook:
    """A new secret, shown by this answer only; the one until now signs too for a day."""
    try:
        changed = webhook_changes.rotate(use.engine, webhook_id, make_secret(), time.time())
    except NotChangeable as error:
        raise _not_changeable(webhook_id, error) from error
    return _found(webhook_id, changed)


def remove(use: Services, webhook_id: int) -> None:
    try:
        removed = webhook_changes.remove(use.engine, webhook_id)
    except NotChangeable as error:
        raise _not_changeable(webhook_id, error) from error
    if not removed:
        raise _not_found(webhook_id)


def get(use: Services, webhook_id: int) -> Webhook:
    return _found(webhook_id, webhooks.get_webhook(use.engine, webhook_id))


def send_test(use: Services, webhook_id: int) -> Trial:
    """Send a test message now, also to a webhook that is disabled, and note what came of it."""
    hook = get(use, webhook_id)
    now = time.time()
    said = "Alerts of this server arrive here. Nothing leaks; somebody tested this webhook."
    message = trial(
        hook.url,
        hook.format,
        hook.secret,
        use.config.address,
        now,
        said,
        hook.previous_secret_at(now),
    )
    outcome = send(message, use.config.webhook_allow, now)
    error = None if isinstance(outcome, Delivered) else outcome.reason
    made = Trial(now, outcome.seconds, outcome.status, error)
    webhook_changes.note_trial(use.engine, webhook_id, made)
    return made


def redeliver(use: Services, delivery_id: int) -> dict[str, Any]:
    about = {"delivery": delivery_id}
    try:
        item = delivery_list.redeliver(use.engine, delivery_id, time.time())
    except delivery_list.NoSuchDelivery as error:
        raise NotFound(
            "delivery_not_found", f"there is no delivery {delivery_id}", about
        ) from error
    except delivery_list.StillWaiting as error:
        raise Conflict(
            "delivery_waiting",
            f"delivery {delivery_id} has not ended yet: it is sent again by itself",
            about,
        ) from error
    except delivery_list.WebhookDisabled as error:
        raise Conflict(
            "webhook_disabled",
            f"the webhook of delivery {delivery_id} is disabled; enable it first",
            about,
        ) from error
    use.deliver()
    return item


def to_json(hook: Webhook, last_test: Trial | None) -> dict[str, Any]:
    rotating = hook.previous_secret_at(time.time()) is not None
    return {
        "id": hook.id,
        "name": hook.name,
        "origin": origin_of(hook.url, hook.format),
        "format": hook.format,
        "source": "environment" if hook.configured else "api",
        "enabled": hook.disabled_reason is None,
        "disabled_reason": hook.disabled_reason,
        "failures": hook.failures,
        "failing_since": iso_or_none(hook.failing_since),
        "previous_until": iso_or_none(hook.previous_until) if rotating else None,
        "created_at": iso(hook.created_at),
        "last_test": None if last_test is None else trial_to_json(last_test),
    }


def trial_to_json(made: Trial) -> dict[str, Any]:
    return {
        "at": iso(made.at),
        "seconds": made.seconds,
        "arrived": made.error is None,
        "status": made.status,
        "error": made.error,
    }


def _check_format(form: str) -> None:
    if form not in FORMATS:
        raise InvalidField("format", form, f"must be one of {', '.join(FORMATS)}")


def _check_address(use: Services, url: str) -> None:
    """Now, because a person is there to read why; every try checks again."""
    try:
        check(url, use.config.webhook_allow)
    except (AddressRefused, AddressUnknown) as error:
        # Never the whole address: chat services put a secret into its path.
        raise InvalidField("url", shown(url), str(error)) from error


def _found(webhook_id: int, hook: Webhook | None) -> Webhook:
    if hook is None:
        raise _not_found(webhook_id)
    return hook


def _not_found(webhook_id: int) -> NotFound:
    return NotFound(
        "webhook_not_found",
        f"there is no webhook {webhook_id}; GET /api/v1/webhooks lists them",
        {"webhook": webhook_id},
    )


def _not_changeable(webhook_id: int, error: NotChangeable) -> Conflict:
    return Conflict("webhook_of_the_environment", str(error), {"webhook": webhook_id})

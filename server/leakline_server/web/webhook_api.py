"""Webhooks and their deliveries: the JSON API, and functions shared with the forms of ``/alerts``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ..alerts.formats import FORMATS
from ..alerts.sending import apprise_sender
from ..alerts.sending.address_check import AddressRefused, AddressUnknown, check, shown
from ..alerts.sending.http_post import Delivered
from ..alerts.sending.send_message import chosen_by, format_of, origin_of, send, text_of, trial
from ..alerts.sending.signing import make_secret
from ..errors import Conflict, InvalidField, NotFound
from ..limits import MAX_TITLE_LENGTH, MAX_WEBHOOK_LENGTH, MAX_WEBHOOKS, MAX_WORD_LENGTH
from ..store.alerts import deliveries, webhooks
from ..store.alerts.webhooks import NotChangeable, TooManyWebhooks, Trial
from ..store.runs import runs
from ..store.runs.runs import iso, iso_or_none
from . import api_schemas
from .api_schemas import NO_CONTROL, RowId, Strict
from .auth.permissions import CHANGE, READ
from .request_bodies import described, json_body
from .responses import json_response
from .runs.api import Limit, Text
from .services import Services, Use

router = APIRouter(prefix="/api/v1", tags=["webhooks"], dependencies=[READ])

_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": api_schemas.Error, "description": "webhook or delivery not found"},
}
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    **_NOT_FOUND,
    409: {
        "model": api_schemas.Error,
        "description": "the webhook or its current state does not allow this",
    },
    422: {
        "model": api_schemas.Error,
        "description": "a field is invalid; the error names the field and its value",
    },
}
_BODY: Final[dict[int | str, dict[str, Any]]] = {
    **_REFUSED,
    400: {"model": api_schemas.Error, "description": "not JSON"},
}


HookName = Annotated[str, Field(max_length=MAX_TITLE_LENGTH, pattern=NO_CONTROL)]
Address = Annotated[str, Field(min_length=1, max_length=MAX_WEBHOOK_LENGTH)]
Format = Annotated[str, Field(min_length=1, max_length=MAX_WORD_LENGTH, pattern=NO_CONTROL)]


class NewWebhook(Strict):
    """A webhook to add. `format` is standard or slack. By default, the address determines the
    format: slack for Slack, apprise for Discord and Teams, and otherwise standard.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    url: Address
    name: HookName = ""
    format: Format | None = None


class WebhookChanges(Strict):
    """Changes to a webhook; omitted fields keep their values. If `enabled` is true, a disabled webhook
    receives alerts again.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    url: Address | None = None
    name: HookName | None = None
    format: Format | None = None
    enabled: bool | None = None


class WebhookTestResult(BaseModel):
    """The result of a test message. `status` is null if there was no response."""

    at: str
    seconds: float
    delivered: bool
    status: int | None
    error: str | None


class Webhook(BaseModel):
    """A webhook. `origin` is the only part of the address that is ever shown. `failures` is the
    number of failed attempts since the last delivery. Until `previous_until`, messages are also
    signed with the previous secret.
    """

    id: int
    name: str
    origin: str
    format: str
    source: Literal["environment", "api"]
    enabled: bool
    disabled_reason: str | None
    failures: int
    failing_since: str | None
    previous_until: str | None
    created_at: str
    last_test: WebhookTestResult | None


class WebhookWithSecret(Webhook):
    """A webhook with its new secret, which no other response shows."""

    secret: str


class Webhooks(BaseModel):
    items: list[Webhook]
    next: None = None


class DeliveryAttempt(BaseModel):
    """An attempt to deliver a message. `wait_seconds` is the time since the end of the previous attempt
    or, for the first attempt, since the alert.
    """

    started_at: str
    wait_seconds: float
    seconds: float
    status: int | None
    error: str | None


class Delivery(BaseModel):
    """The delivery of an alert to a webhook. `alert` is the `webhook-id` of its messages, and `history`
    contains the newest 20 attempts.
    """

    id: int
    webhook: int
    alert: str
    event: str
    title: str
    run: str
    project: str
    run_name: str
    urgent: bool
    created_at: str
    expires_at: str | None
    state: Literal["pending", "claimed", "delivered", "failed", "expired", "superseded"]
    attempts: int
    last_status: int | None
    last_error: str | None
    next_attempt_at: str | None
    delivered_at: str | None
    history: list[DeliveryAttempt]


class Deliveries(BaseModel):
    items: list[Delivery]
    next: str | None


@router.get(
    "/webhooks",
    summary="All webhooks",
    response_model=None,
    responses={200: {"model": Webhooks}},
)
def list_webhooks(use: Use) -> Response:
    return json_response({"items": all_webhooks(use), "next": None})


@router.post(
    "/webhooks",
    dependencies=[CHANGE],
    summary="Add a webhook",
    response_model=None,
    openapi_extra=described(NewWebhook),
    responses={
        201: {"model": WebhookWithSecret, "description": "added"},
        **{status: _BODY[status] for status in (400, 409, 422)},
    },
)
def add_webhook(body: Annotated[NewWebhook, json_body(NewWebhook)], use: Use) -> Response:
    """The address is validated. Only this response shows the secret that signs the messages."""
    made = make(use, body.name, body.url, body.format)
    return _with_secret(use, made, 201)


@router.get(
    "/webhooks/{webhook}",
    summary="One webhook",
    response_model=None,
    responses={200: {"model": Webhook}, **_NOT_FOUND},
)
def get_webhook(webhook: RowId, use: Use) -> Response:
    return _answer(use, _get(use, webhook))


@router.patch(
    "/webhooks/{webhook}",
    dependencies=[CHANGE],
    summary="Change a webhook",
    response_model=None,
    openapi_extra=described(WebhookChanges),
    responses={200: {"model": Webhook}, **_BODY},
)
def change_webhook(
    webhook: RowId, body: Annotated[WebhookChanges, json_body(WebhookChanges)], use: Use
) -> Response:
    given = body.model_dump(exclude_none=True, exclude={"enabled"})
    return _answer(use, change(use, webhook, given, body.enabled))


@router.delete(
    "/webhooks/{webhook}",
    dependencies=[CHANGE],
    summary="Delete a webhook with its deliveries",
    response_model=None,
    status_code=204,
    responses={**_NOT_FOUND, 409: _REFUSED[409]},
)
def delete_webhook(webhook: RowId, use: Use) -> Response:
    with _refusing(webhook=webhook):
        if not webhooks.remove(use.engine, webhook):
            raise _not_found(webhook)
    return Response(status_code=204)


@router.post(
    "/webhooks/{webhook}/test",
    dependencies=[CHANGE],
    summary="Send a test message now",
    response_model=None,
    responses={200: {"model": WebhookTestResult}, **_NOT_FOUND},
)
def test_webhook(webhook: RowId, use: Use) -> Response:
    """The response contains the result. A disabled webhook stays disabled."""
    return json_response(trial_to_json(try_out(webhook, use)[0]))


def try_out(webhook: int, use: Services) -> tuple[Trial, str]:
    """Send a test message; return the result and the text that was sent. Raises NotFound."""
    hook, now = _get(use, webhook), time.time()
    said = "Alerts from this server arrive here. Nothing is leaking: this is a test of the webhook."
    old_secret = hook.previous_secret_at(now)
    message = trial(
        hook.url, hook.format, hook.secret, use.config.address, now, said, old_secret, hook.configured
    )  # fmt: skip
    outcome = send(message, use.config.webhook_allow, now)
    error = None if isinstance(outcome, Delivered) else outcome.reason
    made = Trial(now, outcome.seconds, outcome.status, error)
    webhooks.note_trial(use.engine, webhook, made)
    return made, text_of(message)


@router.post(
    "/webhooks/{webhook}/rotate",
    dependencies=[CHANGE],
    summary="Give a webhook a new secret",
    response_model=None,
    responses={
        200: {"model": WebhookWithSecret},
        **_NOT_FOUND,
        409: _REFUSED[409],
    },
)
def rotate_secret(webhook: RowId, use: Use) -> Response:
    """Only this response shows the new secret. Until `previous_until`, the old secret also signs messages."""
    return _with_secret(use, rotate(use, webhook))


@router.post(
    "/webhooks/{webhook}/enable",
    dependencies=[CHANGE],
    summary="Enable a webhook again",
    response_model=None,
    responses={200: {"model": Webhook}, **_NOT_FOUND, 409: _REFUSED[409]},
)
def enable_webhook(webhook: RowId, use: Use) -> Response:
    """The webhook will receive new alerts; failed deliveries can be sent again one by one."""
    return _answer(use, change(use, webhook, {}, enabled=True))


@router.get(
    "/webhooks/{webhook}/deliveries",
    summary="Deliveries to a webhook, newest first",
    response_model=None,
    responses={200: {"model": Deliveries}, **_NOT_FOUND, 422: _REFUSED[422]},
)
def get_deliveries(webhook: RowId, use: Use, limit: Limit = 50, cursor: Text = None) -> Response:
    _get(use, webhook)
    try:
        return json_response(deliveries.list_deliveries(use.engine, webhook, limit, cursor))
    except runs.BadCursor as error:
        raise InvalidField(
            "cursor", cursor, "must be the value of next from an earlier response"
        ) from error


@router.post(
    "/deliveries/{delivery}/redeliver",
    dependencies=[CHANGE],
    summary="Send a message again",
    response_model=None,
    responses={200: {"model": Delivery}, **_NOT_FOUND, 409: _REFUSED[409]},
)
def redeliver(delivery: RowId, use: Use) -> Response:
    """A delivery that has ended becomes due immediately, with the same `webhook-id` and a new schedule
    of attempts.
    """
    with _refusing(delivery=delivery):
        item = deliveries.redeliver(use.engine, delivery, time.time())
    use.deliver()
    return json_response(item)


def all_webhooks(use: Services) -> list[dict[str, Any]]:
    trials = webhooks.last_trials(use.engine)
    return [to_json(hook, trials.get(hook.id)) for hook in webhooks.list_webhooks(use.engine)]


def with_address(use: Services, url: str, form: str | None) -> webhooks.Webhook | None:
    """Return the enabled webhook that `make` would duplicate, or None.

    Duplicates have the same address and format. Raises InvalidField.
    """
    if form is None:
        form, url = _chosen(url)
    else:
        _check_format(form)
    found = webhooks.list_webhooks(use.engine)
    same = (hook for hook in found if (hook.url, hook.format) == (url, form))
    return next((hook for hook in same if not hook.disabled_reason), None)


def make(use: Services, name: str, url: str, form: str | None) -> webhooks.Webhook:
    """Add a webhook with a new secret; without ``form``, the address determines the format.

    Raises RequestRefused.
    """
    if form is None:
        form, url = _chosen(url)
    else:
        _check_format(form)
    _check_address(use, url)
    with _refusing():
        return webhooks.make(use.engine, name, url, form, make_secret(), time.time())


def change(
    use: Services, webhook: int, values: Mapping[str, str], enabled: bool | None = None
) -> webhooks.Webhook:
    """Change a webhook. Raises RequestRefused."""
    hook = _get(use, webhook)
    form = values.get("format", hook.format)
    # Apprise webhooks cannot get a new address; webhooks in an unknown format cannot be enabled again.
    is_new = "url" in values or (enabled is True and form != apprise_sender.FORMAT)
    if "format" in values or (is_new and not hook.configured):
        _check_format(form)
    if "url" in values:
        _check_address(use, values["url"])
    with _refusing(webhook=webhook):
        return _found(webhook, webhooks.change(use.engine, webhook, values, enabled))


def get_json(use: Services, webhook: int) -> dict[str, Any]:
    """Return a webhook as JSON. Raises NotFound."""
    return to_json(_get(use, webhook), None)


def rotate(use: Services, webhook: int) -> webhooks.Webhook:
    """Replace the secret and return the webhook; the old secret also signs messages for a day.

    Raises RequestRefused.
    """
    with _refusing(webhook=webhook):
        changed = webhooks.rotate(use.engine, webhook, make_secret(), time.time())
    return _found(webhook, changed)


def to_json(hook: webhooks.Webhook, last_test: Trial | None) -> dict[str, Any]:
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
        "delivered": made.error is None,
        "status": made.status,
        "error": made.error,
    }


@contextmanager
def _refusing(**about: int) -> Iterator[None]:
    """Convert the store's errors into RequestRefused; ``about`` holds the webhook's or delivery's id."""
    number = next(iter(about.values()), 0)
    try:
        yield
    except TooManyWebhooks as error:
        raise Conflict(
            "too_many_webhooks",
            f"there are {MAX_WEBHOOKS} webhooks already; delete a webhook first",
        ) from error
    except NotChangeable as error:
        raise Conflict("webhook_of_the_environment", str(error), about) from error
    except deliveries.NoSuchDelivery as error:
        raise NotFound("delivery_not_found", f"delivery {number} was not found", about) from error
    except deliveries.StillWaiting as error:
        said = f"delivery {number} has not ended yet: it will be retried automatically"
        raise Conflict("delivery_waiting", said, about) from error
    except deliveries.WebhookDisabled as error:
        said = f"the webhook of delivery {number} is disabled; enable the webhook first"
        raise Conflict("webhook_disabled", said, about) from error


def _chosen(url: str) -> tuple[str, str]:
    """Return the format that an address implies, and the address to store. Raises InvalidField."""
    chosen = chosen_by(url)
    if chosen.form == apprise_sender.FORMAT and not apprise_sender.installed():
        raise InvalidField(
            "url",
            shown(url),
            f"messages to {chosen.service} are sent with apprise, which is not installed "
            "on this server: install it (pip install 'leakline[notify]') and restart the server",
        )
    try:
        return format_of(url)
    except AddressRefused as error:
        raise InvalidField("url", shown(url), str(error)) from error


def _check_format(form: str) -> None:
    if form not in FORMATS:
        raise InvalidField("format", form, f"must be one of {', '.join(FORMATS)}")


def _check_address(use: Services, url: str) -> None:
    """Validate the address now, while the user can see the error; every delivery repeats the check.

    The hosts of chat services are known to be correct, so a failed DNS lookup is ignored.
    """
    try:
        check(url, use.config.webhook_allow)
    except (AddressRefused, AddressUnknown) as error:
        if isinstance(error, AddressUnknown) and chosen_by(url).service:
            return
        # Never show the entire address: chat services put a secret into the path.
        raise InvalidField("url", shown(url), str(error)) from error


def _get(use: Services, webhook: int) -> webhooks.Webhook:
    return _found(webhook, webhooks.get_webhook(use.engine, webhook))


def _found(webhook: int, hook: webhooks.Webhook | None) -> webhooks.Webhook:
    if hook is None:
        raise _not_found(webhook)
    return hook


def _not_found(webhook: int) -> NotFound:
    return NotFound(
        "webhook_not_found",
        f"webhook {webhook} was not found; GET /api/v1/webhooks lists all webhooks",
        {"webhook": webhook},
    )


def _answer(use: Services, hook: webhooks.Webhook) -> Response:
    return json_response(_with_last_test(use, hook))


def _with_secret(use: Services, hook: webhooks.Webhook, status: int = 200) -> Response:
    response = json_response({**_with_last_test(use, hook), "secret": hook.secret}, status)
    response.headers["Cache-Control"] = "no-store"
    return response


def _with_last_test(use: Services, hook: webhooks.Webhook) -> dict[str, Any]:
    return to_json(hook, webhooks.last_trials(use.engine).get(hook.id))

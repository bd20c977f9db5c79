"""Webhooks and their deliveries in the JSON API."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from ..errors import InvalidField
from ..store import delivery_list, runs, webhook_changes, webhooks
from . import schemas, webhook_actions, webhook_schemas
from .bodies import described, json_body
from .json_response import json_response
from .read_api import Limit, Text
from .schemas import RowId
from .services import Use
from .webhook_schemas import NewWebhook, WebhookChanges

router = APIRouter(prefix="/api/v1", tags=["webhooks"])

# As large as both databases hold.
_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": schemas.Error, "description": "no such webhook or delivery"},
}
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    **_NOT_FOUND,
    409: {"model": schemas.Error, "description": "not in this state, or not of this webhook"},
    422: {"model": schemas.Error, "description": "a field is wrong: named, with its value"},
}
_BODY: Final[dict[int | str, dict[str, Any]]] = {
    **_REFUSED,
    400: {"model": schemas.Error, "description": "not JSON"},
}


@router.get(
    "/webhooks",
    summary="All webhooks",
    response_model=None,
    responses={200: {"model": webhook_schemas.Webhooks}},
)
def list_webhooks(use: Use) -> Response:
    trials = webhook_changes.last_trials(use.engine)
    hooks = webhooks.list_webhooks(use.engine)
    items = [webhook_actions.to_json(hook, trials.get(hook.id)) for hook in hooks]
    return json_response({"items": items, "next": None})


@router.post(
    "/webhooks",
    summary="Add a webhook",
    response_model=None,
    openapi_extra=described(NewWebhook),
    responses={
        201: {"model": webhook_schemas.WebhookWithSecret, "description": "added"},
        **{status: _BODY[status] for status in (400, 409, 422)},
    },
)
def add_webhook(body: Annotated[NewWebhook, json_body(NewWebhook)], use: Use) -> Response:
    """Its address is checked, and the secret that signs its messages is in this answer and in none after it."""
    made = webhook_actions.make(use, body.name, body.url, body.format)
    return _with_secret(use, made, 201)


@router.get(
    "/webhooks/{webhook}",
    summary="One webhook",
    response_model=None,
    responses={200: {"model": webhook_schemas.Webhook}, **_NOT_FOUND},
)
def get_webhook(webhook: RowId, use: Use) -> Response:
    return _answer(use, webhook_actions.get(use, webhook))


@router.patch(
    "/webhooks/{webhook}",
    summary="Change a webhook",
    response_model=None,
    openapi_extra=described(WebhookChanges),
    responses={200: {"model": webhook_schemas.Webhook}, **_BODY},
)
def change_webhook(
    webhook: RowId, body: Annotated[WebhookChanges, json_body(WebhookChanges)], use: Use
) -> Response:
    given = body.model_dump(exclude_none=True, exclude={"enabled"})
    return _answer(use, webhook_actions.change(use, webhook, given, body.enabled))


@router.delete(
    "/webhooks/{webhook}",
    summary="Delete a webhook with its deliveries",
    response_model=None,
    status_code=204,
    responses={**_NOT_FOUND, 409: _REFUSED[409]},
)
def delete_webhook(webhook: RowId, use: Use) -> Response:
    webhook_actions.remove(use, webhook)
    return Response(status_code=204)


@router.post(
    "/webhooks/{webhook}/test",
    summary="Send a test message now",
    response_model=None,
    responses={200: {"model": webhook_schemas.WebhookTrial}, **_NOT_FOUND},
)
def test_webhook(webhook: RowId, use: Use) -> Response:
    """The answer says what came of it; a webhook that is disabled stays so."""
    return json_response(webhook_actions.trial_to_json(webhook_actions.send_test(use, webhook)))


@router.post(
    "/webhooks/{webhook}/rotate",
    summary="Give a webhook a new secret",
    response_model=None,
    responses={
        200: {"model": webhook_schemas.WebhookWithSecret},
        **_NOT_FOUND,
        409: _REFUSED[409],
    },
)
def rotate_secret(webhook: RowId, use: Use) -> Response:
    """The new secret is in this answer and in none after it; until `previous_until` the old one signs too."""
    return _with_secret(use, webhook_actions.rotate(use, webhook))


@router.post(
    "/webhooks/{webhook}/enable",
    summary="Enable a webhook again",
    response_model=None,
    responses={200: {"model": webhook_schemas.Webhook}, **_NOT_FOUND, 409: _REFUSED[409]},
)
def enable_webhook(webhook: RowId, use: Use) -> Response:
    """It gets the alerts from now on; what failed meanwhile can be sent again one by one."""
    return _answer(use, webhook_actions.change(use, webhook, {}, enabled=True))


@router.get(
    "/webhooks/{webhook}/deliveries",
    summary="Deliveries to a webhook, newest first",
    response_model=None,
    responses={200: {"model": webhook_schemas.Deliveries}, **_NOT_FOUND, 422: _REFUSED[422]},
)
def get_deliveries(webhook: RowId, use: Use, limit: Limit = 50, cursor: Text = None) -> Response:
    webhook_actions.get(use, webhook)
    try:
        return json_response(delivery_list.list_deliveries(use.engine, webhook, limit, cursor))
    except runs.BadCursor as error:
        raise InvalidField(
            "cursor", cursor, "must be the value of next from an earlier answer"
        ) from error


@router.post(
    "/deliveries/{delivery}/redeliver",
    summary="Send a message again",
    response_model=None,
    responses={200: {"model": webhook_schemas.Delivery}, **_NOT_FOUND, 409: _REFUSED[409]},
)
def redeliver(delivery: RowId, use: Use) -> Response:
    """A delivery that has ended is due at once, with the same `webhook-id` and the tries of its schedule."""
    return json_response(webhook_actions.redeliver(use, delivery))


def _answer(use: Use, hook: webhooks.Webhook) -> Response:
    return json_response(_plain(use, hook))


def _with_secret(use: Use, hook: webhooks.Webhook, status: int = 200) -> Response:
    response = json_response({**_plain(use, hook), "secret": hook.secret}, status)
    response.headers["Cache-Control"] = "no-store"
    return response


def _plain(use: Use, hook: webhooks.Webhook) -> dict[str, Any]:
    last_test = webhook_changes.last_trials(use.engine).get(hook.id)
    return webhook_actions.to_json(hook, last_test)

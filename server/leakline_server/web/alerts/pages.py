"""The page ``/alerts``: rules, webhooks and deliveries, with forms that work without scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from ...alerts.sending.send_message import chosen_by
from ...errors import InvalidField, RequestRefused
from ...limits import MAX_TITLE_LENGTH
from ...store.alerts import deliveries
from ...store.alerts.webhooks import Webhook
from .. import webhook_api as webhooks_api
from ..api_schemas import RowId
from ..auth.middleware import is_run_page
from ..auth.permissions import CHANGE, READ
from ..rendering.templating import render
from ..request_bodies import Form
from ..rules.view import Refused, rules_section
from ..services import Services, Use
from .view import NewWebhook, Notice, added, alerts_page, label, tested

router = APIRouter(
    include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ]
)

DELIVERIES_SHOWN: Final = 100


@router.head("/alerts")
@router.get("/alerts")
def show_alerts(use: Use) -> Response:
    return alerts_response(use)


@router.get("/alerts/webhooks")
def show_webhooks() -> Response:
    """Redirect to ``/alerts``, because a browser may open the form's target address directly."""
    return back("webhooks")


@router.post("/alerts/webhooks", dependencies=[CHANGE])
def add_webhook(form: Form, use: Use) -> Response:
    back = form.get("back", "")
    sent = NewWebhook(
        form.get("name", "")[:MAX_TITLE_LENGTH],
        form.get("url", ""),
        form.get("format", ""),
        back=back if is_run_page(back) else "",
    )
    try:
        # A browser sends the form again when the user reloads the response or returns to it with Back;
        # this must not add the webhook twice.
        known = webhooks_api.with_address(use, sent.url, sent.format or None)
        made = known or webhooks_api.make(use, sent.name, sent.url, sent.format or None)
    except RequestRefused as error:
        # The message appears next to the field, so it need not repeat the field's name and value.
        said = error.message.partition(": ")[2] if isinstance(error, InvalidField) else ""
        wrong = replace(sent, error=said or error.message)
        return alerts_response(use, form=wrong, status=error.status)
    service = "" if sent.format else chosen_by(made.url).service
    secret = None if known else made.secret
    notice = added(webhooks_api.to_json(made, None), service, sent.back, secret)
    return _with_secret(use, notice)


@router.post("/alerts/webhooks/{webhook}/rotate", dependencies=[CHANGE])
def rotate_secret(webhook: RowId, use: Use) -> Response:
    rotated = webhooks_api.rotate(use, webhook)
    said = (
        f"{_label(rotated)} has a new secret. For 24 hours, messages are also signed with the old "
        "secret. Copy the new secret to the receiver now, because it is shown only once:"
    )
    return _with_secret(use, Notice(said, "ok", rotated.secret))


@router.post("/alerts/webhooks/{webhook}/delete", dependencies=[CHANGE])
def delete_webhook(webhook: RowId, use: Use) -> Response:
    webhooks_api.delete_webhook(webhook, use)
    return back("webhooks")


@router.post("/alerts/webhooks/{webhook}/{action}", dependencies=[CHANGE])
def change_webhook(
    webhook: RowId, action: Literal["test", "enable", "disable"], use: Use
) -> Response:
    if action == "test":
        made, message = webhooks_api.try_out(webhook, use)
        hook = webhooks_api.get_json(use, webhook)
        return alerts_response(use, tested(hook, webhooks_api.trial_to_json(made), message))
    webhooks_api.change(use, webhook, {}, enabled=action == "enable")
    return back(f"webhook-{webhook}")


@router.post("/alerts/deliveries/{delivery}/redeliver", dependencies=[CHANGE])
def redeliver(delivery: RowId, use: Use) -> Response:
    webhooks_api.redeliver(delivery, use)
    return back("deliveries")


def alerts_response(
    use: Services,
    notice: Notice | None = None,
    form: NewWebhook | None = None,
    status: int = 200,
    refused: Refused | None = None,
) -> Response:
    """Return the alerts page; ``refused`` is a rejected rule form that the page shows again."""
    # Read the webhooks after the deliveries, to include webhooks that are added between the two reads.
    found = deliveries.list_deliveries(use.engine, None, DELIVERIES_SHOWN)
    hooks = webhooks_api.all_webhooks(use)
    known = {hook["id"] for hook in hooks}
    items = [item for item in found["items"] if item["webhook"] in known]
    page = alerts_page(
        hooks, items, rules_section(use.engine, refused),
        more=found["next"] is not None, notice=notice, form=form,
    )  # fmt: skip
    return render("alerts.html", page, status)


def _with_secret(use: Services, notice: Notice) -> Response:
    response = alerts_response(use, notice)
    response.headers["Cache-Control"] = "no-store"
    return response


def back(place: str) -> Response:
    """Redirect to the anchor ``place`` on ``/alerts``."""
    return RedirectResponse(f"/alerts#{place}", 303)


def _label(hook: Webhook) -> str:
    return label(webhooks_api.to_json(hook, None))

"""The forms of the tokens on ``/settings``. They work without scripts; one that is refused comes back as sent."""

from __future__ import annotations

import time
from typing import cast

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from .. import issuing
from ..credentials import Scope
from ..errors import InvalidField, RequestRefused
from ..issuing import Wish, only_where_asked
from .forms import Form
from .schemas import RowId
from .services import Use
from .settings_pages import section, settings_response
from .tokens_view import DEFAULT_EXPIRY, EXPIRIES, Issued, TokenForm, issued_text

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.post("/settings/tokens")
def issue_token(request: Request, form: Form, use: Use) -> Response:
    only_where_asked(use.callers.asked)
    sent = TokenForm(
        form.get("scope", "ingest"),
        form.get("project", ""),
        form.get("name", "")[:80],
        form.get("expires", DEFAULT_EXPIRY),
        "browser" in form,
    )
    try:
        token, secret = issuing.issue(use.engine, _wish(sent), time.time())
    except RequestRefused as error:
        said = error.message.partition(": ")[2] if isinstance(error, InvalidField) else ""
        wrong = TokenForm(
            sent.scope, sent.project, sent.name, sent.expires, sent.browser, said or error.message
        )
        return settings_response(request, use, section(use, form=wrong), error.status)
    made = Issued(issued_text(issuing.to_json(token)), secret)
    response = settings_response(request, use, section(use, issued=made))
    response.headers["Cache-Control"] = "no-store"
    return response


@router.post("/settings/tokens/{token}/revoke")
def revoke_token(token: RowId, use: Use) -> Response:
    only_where_asked(use.callers.asked)
    issuing.revoke(use.engine, token, time.time())
    use.callers.forget()
    return RedirectResponse("/settings#tokens", 303)


def _wish(sent: TokenForm) -> Wish:
    if sent.expires not in dict(EXPIRIES):
        raise InvalidField("expires", sent.expires, "must be one of the choices of the page")
    days = None if sent.expires == "never" else float(sent.expires)
    return Wish(cast(Scope, sent.scope), sent.project or None, sent.name, days, sent.browser)

"""``/settings``: health, sizes, retention and tokens of this server, and the forms of the tokens."""

from __future__ import annotations

import time
from functools import cache
from typing import cast

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from leakline import __version__

from ...errors import InvalidField, RequestRefused
from ...limits import MAX_WAITING_BATCHES
from ...paths import MIGRATIONS
from ...security import token_issuing
from ...security.credentials import Scope
from ...security.token_issuing import Wish, only_where_asked
from ...store import migrate
from ...store.access import tokens
from ...store.maintenance import corruption, disk_full, disk_space, purge, storage_sizes
from ..api_schemas import RowId
from ..auth.authenticator import calling
from ..auth.permissions import may
from ..metrics.api import Metrics
from ..rendering.templating import render
from ..request_bodies import Form
from ..services import Services, Use
from ..tokens import api as tokens_api
from ..tokens.view import (
    DEFAULT_EXPIRY,
    EXPIRIES,
    Issued,
    TokenForm,
    TokensSection,
    issued_text,
    tokens_section,
)
from .view import Found, settings_page

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.head("/settings")
@router.get("/settings")
def show_settings(request: Request, use: Use) -> Response:
    return _response(request, use, _section(use))


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
        token, secret = token_issuing.issue(use.engine, _wish(sent), time.time())
    except RequestRefused as error:
        said = error.message.partition(": ")[2] if isinstance(error, InvalidField) else ""
        wrong = TokenForm(
            sent.scope, sent.project, sent.name, sent.expires, sent.browser, said or error.message
        )
        return _response(request, use, _section(use, form=wrong), error.status)
    made = Issued(issued_text(token_issuing.to_json(token)), secret)
    response = _response(request, use, _section(use, issued=made))
    response.headers["Cache-Control"] = "no-store"
    return response


@router.post("/settings/tokens/{token}/revoke")
def revoke_token(token: RowId, use: Use) -> Response:
    tokens_api.revoke_token(token, use)
    return RedirectResponse("/settings#tokens", 303)


def _response(
    request: Request, use: Services, shown: TokensSection | None, status: int = 200
) -> Response:
    page = settings_page(_found(use, request.app.state.metrics), shown)
    return render("settings.html", page, status)


def _section(
    use: Services, form: TokenForm | None = None, issued: Issued | None = None
) -> TokensSection | None:
    """The tokens; None for who may only read."""
    if not may(calling.get().scope, "change"):
        return None
    items = [token_issuing.to_json(token) for token in tokens.list_tokens(use.engine)]
    return tokens_section(items, use.callers.asked, form, issued)


def _wish(sent: TokenForm) -> Wish:
    if sent.expires not in dict(EXPIRIES):
        raise InvalidField("expires", sent.expires, "must be one of the choices of the page")
    days = None if sent.expires == "never" else float(sent.expires)
    return Wish(cast(Scope, sent.scope), sent.project or None, sent.name, days, sent.browser)


def _found(use: Services, metrics: Metrics) -> Found:
    engine = use.engine
    return Found(
        version=__version__,
        config=use.config,
        database=disk_space.called(engine),
        schema=migrate.current(engine),
        newest_schema=_newest_schema(),
        space=disk_space.space(engine),
        projects=storage_sizes.projects(engine),
        overview=storage_sizes.overview(engine),
        waiting=use.writer.waiting,
        room=MAX_WAITING_BATCHES,
        is_writing=use.writer.alive,
        figures=use.writer.figures,
        disk_is_full=disk_full.is_full(engine),
        refusals=metrics.refusals(),
        damaged=corruption.count(engine),
        removals=purge.waiting(engine),
        retainer=use.retainer,
    )


@cache
def _newest_schema() -> str:
    return migrate.revisions(MIGRATIONS)[-1]

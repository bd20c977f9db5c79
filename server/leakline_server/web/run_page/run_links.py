"""Links that open one run and nothing else: made on its page, listed and revoked with the other tokens.

The link has the token in its query, which the log does not have. Opening it puts the token into cookies that the
browser sends for the paths of that run alone, and leads to the address without it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import Field
from starlette.responses import Response

from ...errors import InvalidField, NotFound, Unauthorized
from ...limits import MAX_SECRET_LENGTH
from ...security import token_issuing
from ...security.token_issuing import Wish, only_where_asked
from ...store.runs.runs import iso
from ..auth.authenticator import link_cookie_name
from ..auth.permissions import CHANGE, OPEN
from ..rendering import number_formats
from ..rendering.page_contexts import LINK_DAYS
from ..rendering.templating import render
from ..request_bodies import Form
from ..services import Use, address_of
from .pages import known_run

SHARED: Final = "/shared"
router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class SharedPage:
    """``link`` is shown by this page alone; ``public``: it begins with the address that the server is said to have."""

    title: str
    link: str
    until_at: str
    until: str
    public: bool
    run_href: str
    token: int


@router.post("/runs/{run}/share", dependencies=[CHANGE])
def make_link(run: str, request: Request, form: Form, use: Use) -> Response:
    only_where_asked(use.callers.asked)
    found, now = known_run(use, run), time.time()
    days = form.get("days", "")
    if days not in dict(LINK_DAYS):
        raise InvalidField("days", days, "must be one of the choices of the page")
    wish = Wish("share", name=found["name"], days=float(days), run_id=run)
    token, secret = token_issuing.issue(use.engine, wish, now)
    until = iso(now + float(days) * 86_400)
    page = SharedPage(
        title=f"Link to {found['name']}",
        link=f"{address_of(request, use)}{SHARED}?{urlencode({'token': secret})}",
        until_at=until,
        until=number_formats.clock(until),
        public=use.config.public_url is not None,
        run_href=_path(run),
        token=token.id,
    )
    response = render("shared.html", page)
    response.headers["Cache-Control"] = "no-store"
    return response


@router.head(SHARED, dependencies=[OPEN])
@router.get(SHARED, dependencies=[OPEN])
async def open_link(
    request: Request, use: Use, token: Annotated[str, Field(max_length=MAX_SECRET_LENGTH)] = ""
) -> Response:
    """Who guesses is counted as any who shows tokens that nobody knows."""
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    host = request.client.host if request.client else ""
    try:
        caller = await use.callers.of(headers, request.url.scheme, host)
    except Unauthorized as error:
        raise _over() from error
    if caller.run is None:
        raise _over()
    response = RedirectResponse(_path(caller.run), 303)
    secure = use.callers.is_secure(request.url.scheme)
    for path in (_path(caller.run), f"/api/v1{_path(caller.run)}"):
        response.set_cookie(
            link_cookie_name(secure), token, max_age=max(1, int(caller.until - time.time())), path=path,
            secure=secure, httponly=True, samesite="lax",
        )  # fmt: skip
    response.headers.update({"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
    return response


def _over() -> NotFound:
    return NotFound(
        "link_is_over",
        "this link opens nothing: it has expired, was revoked, or is not whole; ask for another one",
    )


def _path(run: str) -> str:
    return f"/runs/{quote(run, safe='')}"

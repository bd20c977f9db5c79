"""Tokens: `/api/v1/tokens`, their section of ``/settings``, and links that open a single run.

These routes are for administrators; with authentication off, tokens can only be listed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ..errors import InvalidField, NotFound, Unauthorized
from ..limits import MAX_SECRET_LENGTH, MAX_TITLE_LENGTH, MAX_TOKEN_DAYS
from ..security import token_issuing
from ..security.token_issuing import DEFAULT_DAYS, Wish, only_where_asked
from ..store import access
from ..store.runs.runs import iso
from . import api_schemas
from .api_schemas import NO_CONTROL, Name, RowId, Strict
from .auth.authenticator import link_cookie_name
from .auth.permissions import CHANGE, OPEN, SEE
from .rendering import number_formats
from .rendering.page_contexts import LINK_DAYS
from .rendering.templating import render
from .request_bodies import Form, described, json_body
from .responses import json_response
from .run_page.pages import known_run
from .services import Use, address_of

SCOPES: Final[Mapping[str, str]] = {
    "ingest": "adds to one project, reads nothing",
    "read": "reads everything",
    "admin": "reads and changes everything",
}
EXPIRIES: Final = (("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("never", "never"))
DEFAULT_EXPIRY: Final = "365"
_STATUS: Final[Mapping[str, str]] = {"active": "ok", "expired": "learning", "revoked": "learning"}


@dataclass(frozen=True, slots=True)
class TokenForm:
    """The content of a token form, with an error if the form was rejected."""

    scope: str = "ingest"
    project: str = ""
    name: str = ""
    expires: str = DEFAULT_EXPIRY
    browser: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Issued:
    """A new token, which is shown only once."""

    text: str
    secret: str


@dataclass(frozen=True, slots=True)
class Choice:
    value: str
    word: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class TokenRow:
    id: int
    name: str
    prefix: str
    what_for: str
    browser: bool
    state: str
    status: str
    can_revoke: bool
    created_at: str
    created: str
    expires_at: str | None
    expires: str
    used_at: str | None
    used: str


@dataclass(frozen=True, slots=True)
class TokensSection:
    """The tokens section; ``can_change`` is True if the page can issue and revoke tokens."""

    how: str
    can_change: bool
    issued: Issued | None
    rows: tuple[TokenRow, ...]
    form: TokenForm
    scopes: tuple[Choice, ...]
    expiries: tuple[Choice, ...]


def tokens_section(
    items: Sequence[Mapping[str, Any]],
    asked: bool,
    form: TokenForm | None = None,
    issued: Issued | None = None,
) -> TokensSection:
    """Return the section; ``asked`` is True if authentication is on.

    ``items`` are tokens in the API's JSON format.
    """
    form = form or TokenForm()
    how = (
        "Programs authenticate with tokens (LEAKLINE_TOKEN), each for one purpose. Only the "
        "beginning of a token can be shown again."
    )
    if not asked:
        how += (
            " Authentication is off on this server, so no token is needed; tokens take effect once "
            "authentication is on. Until then, create and revoke tokens on the server's machine "
            "(leakline token create, leakline token revoke), not on this page."
        )
    return TokensSection(
        how=how,
        can_change=asked,
        issued=issued,
        rows=tuple(_row(item, asked) for item in items),
        form=form,
        scopes=tuple(
            Choice(value, f"{value}: {word}", value == form.scope) for value, word in SCOPES.items()
        ),
        expiries=tuple(Choice(value, word, value == form.expires) for value, word in EXPIRIES),
    )


def issued_text(token: Mapping[str, Any]) -> str:
    return (
        f"The token {token['name']} {_what_for(token)}. Copy it now, because it is shown only once:"
    )


def _row(item: Mapping[str, Any], asked: bool) -> TokenRow:
    state = item["state"]
    return TokenRow(
        id=item["id"],
        name=item["name"],
        prefix=f"{item['prefix']}…",
        what_for=_what_for(item),
        browser=item["browser"],
        state=state,
        status=_STATUS[state],
        can_revoke=asked and state == "active",
        created_at=item["created_at"],
        created=number_formats.clock(item["created_at"]),
        expires_at=item["expires_at"],
        expires=_clock(item["expires_at"], "never"),
        used_at=item["last_used_at"],
        used=_clock(item["last_used_at"], "not yet"),
    )


def _what_for(item: Mapping[str, Any]) -> str:
    if item["run"] is not None:
        return f"link that reads only run {item['run']}"
    if item["project"] is not None:
        return f"adds to project {item['project']}"
    return SCOPES[item["scope"]]


def _clock(iso: str | None, without: str) -> str:
    return without if iso is None else number_formats.clock(iso)


# Only administrators may see prefixes, purposes and times of last use of tokens.
router = APIRouter(prefix="/api/v1", tags=["access"], dependencies=[CHANGE])

_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": api_schemas.Error, "description": "no such token"},
    409: {"model": api_schemas.Error, "description": "authentication is off"},
    422: {
        "model": api_schemas.Error,
        "description": "a field is invalid; the error names the field and its value",
    },
}
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": api_schemas.Error, "description": "not JSON"},
    409: {
        "model": api_schemas.Error,
        "description": "there are too many tokens, or authentication is off",
    },
    422: _NOT_FOUND[422],
}


TokenName = Annotated[str, Field(max_length=MAX_TITLE_LENGTH, pattern=NO_CONTROL)]


class NewToken(Strict):
    """A token to issue. The scope `ingest` allows adding data to one project and reading nothing,
    `read` allows reading everything, and `admin` allows everything. Set `browser` if pages from
    other origins will use the token. If `expires_in_days` is null, the token never expires.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    scope: Literal["ingest", "read", "admin"] = "ingest"
    project: Name | None = None
    name: TokenName = ""
    expires_in_days: Annotated[float, Field(gt=0, le=MAX_TOKEN_DAYS)] | None = DEFAULT_DAYS
    browser: bool = False


class Token(BaseModel):
    """A token. `prefix` is the only part that is ever shown again. `last_used_at` is accurate to
    within ten minutes. The scope `share` belongs to a link that opens only `run`.
    """

    id: int
    name: str
    scope: Literal["ingest", "read", "admin", "share"]
    project: str | None
    run: str | None
    browser: bool
    prefix: str
    state: Literal["active", "expired", "revoked"]
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class IssuedToken(Token):
    """A new token with its secret, which no other response shows."""

    token: str


class Tokens(BaseModel):
    items: list[Token]
    next: None = None


@router.get(
    "/tokens",
    summary="Tokens, newest first",
    response_model=None,
    responses={200: {"model": Tokens}},
)
def list_tokens(use: Use) -> Response:
    """The list includes tokens that expired or were revoked in the last 90 days."""
    items = [token_issuing.to_json(token) for token in access.list_tokens(use.engine)]
    return json_response({"items": items, "next": None})


@router.post(
    "/tokens",
    summary="Issue a token",
    response_model=None,
    openapi_extra=described(NewToken),
    responses={201: {"model": IssuedToken, "description": "issued"}, **_REFUSED},
)
def issue_token(body: Annotated[NewToken, json_body(NewToken)], use: Use) -> Response:
    """Only this response shows the token."""
    only_where_asked(use.callers.asked)
    wish = Wish(body.scope, body.project, body.name, body.expires_in_days, body.browser)
    token, secret = token_issuing.issue(use.engine, wish, time.time())
    response = json_response({**token_issuing.to_json(token), "token": secret}, 201)
    response.headers["Cache-Control"] = "no-store"
    return response


@router.delete(
    "/tokens/{token}",
    summary="Revoke a token",
    response_class=Response,
    status_code=204,
    responses={204: {"description": "revoked"}, **_NOT_FOUND},
)
def revoke_token(token: RowId, use: Use) -> Response:
    """Sessions that were started with the token also end. Other servers on the same database reject
    the token within seconds.
    """
    only_where_asked(use.callers.asked)
    token_issuing.revoke(use.engine, token, time.time())
    use.callers.forget()
    return Response(status_code=204)


# Links that open a single run. The token is in the query, which is not logged. Opening the link
# stores the token in cookies for the paths of that run, and redirects to the address without it.
SHARED: Final = "/shared"
links = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class SharedPage:
    """The template context of the page with a new link.

    ``public`` is True if the link uses the public URL.
    """

    title: str
    link: str
    until_at: str
    until: str
    public: bool
    run_href: str
    token: int


@links.get("/runs/{run}/share", dependencies=[SEE])
def show_run_of_link(run: str) -> Response:
    """Redirect to the run's page, because a browser may open the form's target address directly."""
    return RedirectResponse(_path(run), 303)


@links.post("/runs/{run}/share", dependencies=[CHANGE])
def make_link(run: str, request: Request, form: Form, use: Use) -> Response:
    only_where_asked(use.callers.asked)
    found, now = known_run(use, run), time.time()
    days = form.get("days", "")
    if days not in dict(LINK_DAYS):
        raise InvalidField("days", days, "must be one of the choices on the page")
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


@links.head(SHARED, dependencies=[OPEN])
@links.get(SHARED, dependencies=[OPEN])
async def open_link(
    request: Request, use: Use, token: Annotated[str, Field(max_length=MAX_SECRET_LENGTH)] = ""
) -> Response:
    """Open a link; guessed tokens count as failed authentication."""
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
        "this link is not valid: it has expired, was revoked, or is incomplete; ask for a new link",
    )


def _path(run: str) -> str:
    return f"/runs/{quote(run, safe='')}"

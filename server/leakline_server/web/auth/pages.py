"""``/sign-in`` and ``/sign-out``: a password or a token that can read starts a one-week session.

A session is a database row (`store/access.py`). Its random id is stored in a cookie that scripts
cannot read and that browsers do not send with forms of other sites. Signing out therefore ends the
session on every server, and revoking a token ends the sessions started with that token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from ...errors import InvalidField, RequestRefused, Unauthorized
from ...limits import MAX_SECRET_LENGTH, MAX_SIGN_IN_BYTES
from ...security.credentials import (
    MAX_PASSWORD_CHARACTERS,
    digest_of,
    is_password,
    is_token,
    make_session,
)
from ...store import access
from ...store.engine import DATABASE_ERRORS
from ..errors import headers_of
from ..rendering.templating import render
from ..request_bodies import read_form
from ..services import Services, Use
from .authenticator import Caller, caller_of, cookie_name, session_digest
from .middleware import is_place_of_ours
from .permissions import OPEN, SIGN_IN, SIGN_OUT, may

SESSION_SECONDS: Final = 7 * 86_400
WRONG: Final = "That is neither the password nor a token of this server."

router = APIRouter(
    include_in_schema=False, default_response_class=HTMLResponse, dependencies=[OPEN]
)
Asked = Annotated[str, Field(max_length=MAX_SECRET_LENGTH)]


@dataclass(frozen=True, slots=True)
class SignInPage:
    """The template context of ``/sign-in``."""

    title: str
    next: str
    error: str
    longest: int = MAX_SECRET_LENGTH


@router.head(SIGN_IN)
@router.get(SIGN_IN)
def show_sign_in(use: Use, next: Asked = "/") -> Response:
    if not use.callers.asked:
        return RedirectResponse("/", 303)
    return _page(next)


@router.post(SIGN_IN)
async def sign_in(request: Request, use: Use) -> Response:
    """Start a session and redirect to the requested page.

    The sender is not authenticated yet. Therefore, the number of failures is checked before the
    form is read, and the bytes of the form are counted separately.
    """
    if not use.callers.asked:
        return RedirectResponse("/", 303)
    asked_for = "/"
    try:
        use.callers.sign_ins.may_try(_host(request))
        form = await read_form(request, MAX_SIGN_IN_BYTES, use.signing_in)
        _refuse_what_is_too_long(form)
        asked_for = form.get("next", "/")
        session = await _let_in(use, form.get("secret", ""), _host(request))
    except RequestRefused as error:
        response = _page(asked_for, error.message, error.status)
        response.headers.update(headers_of(error))
        return response
    response = RedirectResponse(_to(asked_for), 303)
    _set_cookie(response, request, use, session, SESSION_SECONDS)
    return response


@router.post(SIGN_OUT)
def sign_out(request: Request, use: Use) -> Response:
    digest = session_digest(request.scope["headers"], use.callers.is_secure(request.url.scheme))
    if digest is not None and access.end(use.engine, digest):
        use.callers.forget()
    response = RedirectResponse(SIGN_IN, 303)
    _set_cookie(response, request, use, "", 0)
    return response


def _refuse_what_is_too_long(form: Mapping[str, str]) -> None:
    for name, value in form.items():
        if len(value) > MAX_SECRET_LENGTH:
            # The value may be a secret, so the message must not contain it.
            raise InvalidField(name, "***", f"must have at most {MAX_SECRET_LENGTH:,} characters")


async def _let_in(use: Services, secret: str, host: str) -> str:
    """Start a session and return its id.

    An attempt is counted before its result is known, so that concurrent attempts count as well.
    Raises Unauthorized if the secret is rejected, and TooBusy after many failures or while many
    attempts are waiting.
    """
    tries = use.callers.sign_ins
    tries.may_try(host)
    tries.add(host)
    try:
        session = await _session_of(use, secret)
    except (RequestRefused, *DATABASE_ERRORS):
        # The attempt revealed nothing about the secret, so it does not count.
        tries.take_back(host)
        raise
    if session is None:
        raise Unauthorized("wrong_secret", WRONG)
    tries.take_back(host)
    return session


async def _session_of(use: Services, secret: str) -> str | None:
    """Start a session and return its id, or return None if the secret is wrong.

    Raises Unauthorized for a token that cannot read, and TooBusy if many attempts are waiting.
    """
    proof = await (_token_id(use, secret) if is_token(secret) else _password_hash(use, secret))
    if proof is None:
        return None
    session = make_session()
    begun = await run_in_threadpool(
        access.begin, use.engine, digest_of(session), proof, time.time(), SESSION_SECONDS
    )
    return session if begun else None


async def _token_id(use: Services, secret: str) -> int | None:
    token = await run_in_threadpool(access.find_token, use.engine, digest_of(secret))
    found = caller_of(token, time.time())
    if token is None or not isinstance(found, Caller):
        return None
    if not may(found.scope, "read"):
        if token.run_id is not None:
            raise Unauthorized(
                "token_reads_nothing",
                "This token is for a link that opens one run. Sign in with another token.",
            )
        raise Unauthorized(
            "token_reads_nothing",
            (
                f"This token can only add data to project {token.project}. "
                "Sign in with a token that can read."
            ),
        )
    return token.id


async def _password_hash(use: Services, secret: str) -> str | None:
    """Return the stored password hash if ``secret`` is the password, otherwise None."""
    hashed = await run_in_threadpool(access.password_hash, use.engine)
    if hashed is None or not 0 < len(secret) <= MAX_PASSWORD_CHARACTERS:
        return None
    async with use.callers.hashing.through():
        return hashed if await run_in_threadpool(is_password, hashed, secret) else None


def _page(asked_for: str, error: str = "", status: int = 200) -> Response:
    return render("sign_in.html", SignInPage("Sign in", _to(asked_for), error), status)


def _to(asked_for: str) -> str:
    return asked_for if is_place_of_ours(asked_for) else "/"


def _set_cookie(
    response: Response, request: Request, use: Services, value: str, seconds: int
) -> None:
    secure = use.callers.is_secure(request.url.scheme)
    response.set_cookie(
        cookie_name(secure), value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="lax"
    )  # fmt: skip
    response.headers["Cache-Control"] = "no-store"


def _host(request: Request) -> str:
    return request.client.host if request.client else ""

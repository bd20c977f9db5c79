"""Lets in whom `authenticator.py` knows and `permissions.py` allows; of servers that ask who it is. In front of every
route.

1. an address with a control character is of nothing here (404): routes end before a line's end, permissions after it
2. what needs nothing goes on (the page to sign in, what it is made of, health)   3. who asks?
4. a page of another origin is let in with a browser token alone, and a session changes things from our own pages alone
5. runs of a project that is not the caller's are not there (404), and what is there may not be theirs to read (403)

A stream ends when whoever reads it may not any more.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...config import Config
from ...errors import Forbidden, NotFound, RequestRefused, Unauthorized, Unavailable, run_not_found
from ...store.engine import DATABASE_ERRORS, Engine
from ...store.maintenance import quarantine
from ...store.runs import runs
from ...text_cleaning import without_control
from ..errors import ErrorPage, headers_of, is_api, refusal_response
from .authenticator import ANYBODY, REMEMBERED_SECONDS, Caller, Callers, calling
from .origin_check import is_own
from .permissions import READS, SIGN_IN, Need, may, need_of, runs_named

MAX_NEXT_CHARACTERS: Final = 2_000

_MISSING: Final[dict[Need, str]] = {
    "add": "adds nothing: use an ingest token of the project (leakline token create --project NAME)",
    "read": "reads nothing: use a token or a login that reads (leakline token create --scope read)",
    "change": "changes nothing: that takes an administrator (leakline token create --scope admin)",
    "nothing": "",
}


class Door:
    def __init__(
        self, app: ASGIApp, config: Config, callers: Callers, engine: Engine, page: ErrorPage
    ) -> None:
        self._app, self._callers, self._engine, self._page = app, callers, engine, page
        self._public = urlsplit(config.public_url or "").netloc

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._callers.asked:
            await self._app(scope, receive, send)
            return
        try:
            caller = await self.admit(scope)
        except RequestRefused as error:
            await self._refuse(error, scope, receive)(scope, receive, send)
            return
        told = calling.set(caller)
        try:
            await self._app(scope, self._while_allowed(scope, receive, caller), send)
        finally:
            calling.reset(told)

    async def admit(self, scope: Scope) -> Caller:
        """Whoever sends this request and may. Raises RequestRefused."""
        method, path = scope["method"], scope["path"]
        if without_control(path) != path:
            raise NotFound("not_found", "there is nothing at an address with a control character")
        need = need_of(method, path)
        own = self._is_own_page(scope)
        if need == "nothing":
            if method not in READS and own is False:
                raise Forbidden(
                    "origin_refused", "people sign in and out on the pages of this server alone"
                )
            return ANYBODY
        caller = await self._callers.of(scope["headers"], scope["scheme"], _host(scope))
        if own is False and not caller.browser:
            raise Forbidden(
                "origin_refused",
                "pages of other sites are let in with a browser token alone "
                "(leakline token create --browser --project NAME)",
            )
        if caller.signed_in and method not in READS and own is not True:
            raise Forbidden(
                "origin_refused",
                "a request of somebody who is signed in changes things from the pages of this server alone; "
                "programs send a token",
            )
        await self._know_the_runs(caller, scope, need)
        if not may(caller.scope, need):
            raise Forbidden("scope_too_small", f"a login for {caller.scope} {_MISSING[need]}")
        return caller

    def _is_own_page(self, scope: Scope) -> bool | None:
        """None: no page, or one that does not say."""
        said = {k: v for k, v in scope["headers"] if k in (b"host", b"origin", b"sec-fetch-site")}
        origin = said.get(b"origin")
        if origin is None:
            return True if said.get(b"sec-fetch-site") == b"same-origin" else None
        host = said.get(b"host", b"").decode("latin-1").strip().lower()
        return is_own(origin.decode("latin-1").strip().lower(), host, self._public)

    async def _know_the_runs(self, caller: Caller, scope: Scope, need: Need) -> None:
        """Raises NotFound for a run of another project. Of batches, the writer itself knows."""
        if caller.project is None or (need == "add" and scope["method"] == "POST"):
            return
        for run_id in runs_named(scope["path"], scope["query_string"].decode("latin-1")):
            if await run_in_threadpool(self._project_of, run_id) != caller.project:
                raise run_not_found(run_id)

    def _project_of(self, run_id: str) -> str | None:
        # One that stands behind the question mark of the address.
        if "\x00" in run_id:
            return None
        try:
            return runs.project_of(self._engine, run_id)
        except DATABASE_ERRORS as error:
            quarantine.after(self._engine, error)
            raise Unavailable(
                "database_unavailable",
                "the database does not answer; try again later",
                retry_after_seconds=2,
            ) from error

    def _refuse(self, error: RequestRefused, scope: Scope, receive: Receive) -> Response:
        request = Request(scope, receive)
        if is_api(scope["path"]):
            return refusal_response(error)
        if isinstance(error, Unauthorized) and _opens_a_page(scope):
            return RedirectResponse(sign_in_address(_asked_for(scope)), 303)
        response = self._page(request, error.status, error.code, error.message)
        response.headers.update(headers_of(error))
        return response

    def _while_allowed(self, scope: Scope, receive: Receive, caller: Caller) -> Receive:
        """Who waits for the end of a stream is told of it when its reader may read no more."""
        if caller is ANYBODY or scope["method"] != "GET":
            return receive

        async def receive_while_allowed() -> Message:
            while True:
                try:
                    async with asyncio.timeout(REMEMBERED_SECONDS):
                        return await receive()
                except TimeoutError:
                    if not await self._is_still(caller, scope):
                        return {"type": "http.disconnect"}

        return receive_while_allowed

    async def _is_still(self, caller: Caller, scope: Scope) -> bool:
        try:
            found = await self._callers.of(scope["headers"], scope["scheme"], _host(scope))
        except Unavailable:
            return True
        except RequestRefused:
            return False
        return found.scope == caller.scope


def sign_in_address(asked_for: str) -> str:
    return f"{SIGN_IN}?next={quote(asked_for, safe='/')}"


def is_place_of_ours(address: str) -> bool:
    """Whether it leads to this server, so that signing in leads nowhere else."""
    begins_here = address.startswith("/") and not address.startswith(("//", "/\\"))
    return begins_here and len(address) <= MAX_NEXT_CHARACTERS and address.isprintable()


def _opens_a_page(scope: Scope) -> bool:
    """A person who goes somewhere, and no script or program."""
    said = dict(scope["headers"])
    mode = said.get(b"sec-fetch-mode", b"navigate")
    return (
        scope["method"] in ("GET", "HEAD")
        and mode == b"navigate"
        and b"text/html" in said.get(b"accept", b"")
    )


def _asked_for(scope: Scope) -> str:
    query: str = scope["query_string"].decode("latin-1")
    asked = quote(scope["path"]) + (f"?{query}" if query else "")
    return asked if is_place_of_ours(asked) else "/"


def _host(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""

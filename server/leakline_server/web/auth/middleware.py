"""Authentication middleware, which checks every request if authentication is on.

1. A path with a control character gets 404: routes are matched only up to a line break, while
permissions are checked for the entire path.
2. Requests that need no permission pass: the sign-in page with its assets, and health checks.
3. The principal is authenticated.
4. Pages from other origins need a browser token, and a request that relies on a session may change
things only if one of our own pages sent it.
5. A run outside the principal's project results in 404, and a route beyond the principal's
scope in 403.

A stream ends when its reader loses access.

Before these checks, on every server, `Guard` rejects requests that pages of other sites make from a
browser on this machine:

1. A request that changes something and has an Origin must come from our own pages or an allowed
origin.
2. A server on loopback must be addressed by a loopback name. Otherwise, pages of other sites could
read from the server through a name of their own (DNS rebinding).

Programs other than browsers send no Origin, and use the host name that they were configured with.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...config import Config, is_loopback
from ...errors import (
    Forbidden,
    NotFound,
    RequestRefused,
    Unauthorized,
    Unavailable,
    run_not_found,
    shorten,
)
from ...store.engine import DATABASE_ERRORS, Engine
from ...store.maintenance import quarantine
from ...store.runs import runs
from ...text_cleaning import without_control
from ..errors import ErrorPage, error_response, headers_of, is_api, refusal_response
from .authenticator import ANYBODY, REMEMBERED_SECONDS, Caller, Callers, calling
from .permissions import READS, SIGN_IN, Need, may, requirement_of, runs_named

_CHANGES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Guard:
    def __init__(self, app: ASGIApp, config: Config) -> None:
        self._app = app
        self._check_host = is_loopback(config.host) and not config.insecure
        self._public = urlsplit(config.public_url or "")
        self._origins: Collection[str] = frozenset(config.allowed_origins)

    def allows_host(self, host: bytes) -> bool:
        """Return True if a request without an Origin may have this Host header."""
        return not self._check_host or self._is_ours(_said(host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        code, message = refusal
        await error_response(403, code, message)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[str, str] | None:
        headers = {k: v for k, v in scope["headers"] if k in (b"host", b"origin")}
        host = _text(headers, b"host")
        if self._check_host and not self._is_ours(host):
            return "host_refused", (
                f"this server accepts requests to localhost, not to {shorten(host)}; if people reach it "
                "under another address, set LEAKLINE_PUBLIC_URL to that address"
            )
        if scope["method"] in _CHANGES and b"origin" in headers:
            origin = _text(headers, b"origin")
            if not self._may_change(origin, host):
                return "origin_refused", (
                    f"pages from {shorten(origin)} may not make changes on this server; to allow them, "
                    "add this origin to LEAKLINE_ALLOWED_ORIGINS"
                )
        return None

    def _is_ours(self, host: str) -> bool:
        name = _hostname(host)
        # A missing Host means HTTP/1.0, which browsers do not use.
        return not host or name in ("localhost", self._public.hostname) or is_loopback(name)

    def _may_change(self, origin: str, host: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        return is_own(origin, host, self._public.netloc)


def is_own(origin: str, host: str, public: str) -> bool:
    """Return True if ``origin`` is our own, that is, the requested host or the public URL."""
    scheme, _, place = origin.partition("://")
    if scheme not in ("http", "https"):
        return False
    return bool(place) and place in (host, public.lower())


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return _said(headers.get(name, b""))


def _said(value: bytes) -> str:
    return value.decode("latin-1").strip().lower()


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


MAX_NEXT_CHARACTERS: Final = 2_000
_RUN_PAGE: Final = re.compile(r"/runs/[^/?#\\]+(\?[^#\\]*)?")

_MISSING: Final[dict[Need, str]] = {
    "add": "cannot add data: use an ingest token of the project (leakline token create --project NAME)",
    "see": "cannot read: use a token or a login that can read (leakline token create --scope read)",
    "read": "cannot read: use a token or a login that can read (leakline token create --scope read)",
    "change": "cannot change anything: this requires an administrator (leakline token create --scope admin)",
    "nothing": "",
}


class AuthMiddleware:
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
            caller = await self.admit(scope, *requirement_of(scope))
        except RequestRefused as error:
            await self._refuse(error, scope, receive)(scope, receive, send)
            return
        context_token = calling.set(caller)
        try:
            await self._app(scope, self._while_allowed(scope, receive, caller), send)
        finally:
            calling.reset(context_token)

    async def admit(
        self, scope: Scope, need: Need, parameters: Mapping[str, str] = MappingProxyType({})
    ) -> Caller:
        """Authenticate and authorize a request; return its principal. Raises RequestRefused.

        ``parameters`` are the path parameters.
        """
        method, path = scope["method"], scope["path"]
        if without_control(path) != path:
            raise NotFound("not_found", "not found: the path contains a control character")
        own = self._is_own_page(scope)
        if need == "nothing":
            if method not in READS and own is False:
                raise Forbidden(
                    "origin_refused",
                    "signing in and out is only possible on the pages of this server",
                )
            return ANYBODY
        caller = await self._callers.of(scope["headers"], scope["scheme"], _host(scope))
        if own is False and not caller.browser:
            raise Forbidden(
                "origin_refused",
                "pages of other sites need a browser token (leakline token create --browser --project NAME)",
            )
        if caller.signed_in and method not in READS and own is not True:
            raise Forbidden(
                "origin_refused",
                "a signed-in session can change things only from the pages of this server; "
                "programs must send a token",
            )
        await self._know_the_runs(caller, scope, need, parameters)
        if not may(caller.scope, need):
            if caller.run is not None:
                raise Forbidden(
                    "scope_too_small",
                    "this link only allows reading one run; sign in for anything else",
                )
            raise Forbidden("scope_too_small", f"scope {caller.scope} {_MISSING[need]}")
        return caller

    def _is_own_page(self, scope: Scope) -> bool | None:
        """Return True for a request from our pages, False from other pages, and None if unknown."""
        said = {k: v for k, v in scope["headers"] if k in (b"host", b"origin", b"sec-fetch-site")}
        origin = said.get(b"origin")
        if origin is None:
            return True if said.get(b"sec-fetch-site") == b"same-origin" else None
        host = said.get(b"host", b"").decode("latin-1").strip().lower()
        return is_own(origin.decode("latin-1").strip().lower(), host, self._public)

    async def _know_the_runs(
        self, caller: Caller, scope: Scope, need: Need, parameters: Mapping[str, str]
    ) -> None:
        """Raise NotFound if the request names a run that the principal may not access.

        For a batch, the writer checks the run's project instead.
        """
        if caller.run is not None:
            for run_id in runs_named(parameters, scope["query_string"].decode("latin-1")):
                if run_id != caller.run:
                    raise run_not_found(run_id)
        if caller.project is None or (need == "add" and scope["method"] == "POST"):
            return
        for run_id in runs_named(parameters, scope["query_string"].decode("latin-1")):
            if await run_in_threadpool(self._project_of, run_id) != caller.project:
                raise run_not_found(run_id)

    def _project_of(self, run_id: str) -> str | None:
        # No run id contains a NUL. Only the query string can contain one, because `admit` rejects such paths.
        if "\x00" in run_id:
            return None
        try:
            return runs.project_of(self._engine, run_id)
        except DATABASE_ERRORS as error:
            quarantine.after(self._engine, error)
            raise Unavailable(
                "database_unavailable",
                "the database is not responding; try again later",
                retry_after_seconds=2,
            ) from error

    def _refuse(self, error: RequestRefused, scope: Scope, receive: Receive) -> Response:
        request = Request(scope, receive)
        if is_api(scope["path"]):
            return refusal_response(error)
        if isinstance(error, Unauthorized) and _opens_a_page(scope):
            return RedirectResponse(_sign_in_address(_asked_for(scope)), 303)
        response = self._page(request, error.status, error.code, error.message)
        response.headers.update(headers_of(error))
        return response

    def _while_allowed(self, scope: Scope, receive: Receive, caller: Caller) -> Receive:
        """Return a ``receive`` that reports a disconnect once the principal loses access."""
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


def _sign_in_address(asked_for: str) -> str:
    return f"{SIGN_IN}?next={quote(asked_for, safe='/')}"


def is_place_of_ours(address: str) -> bool:
    """Return True if the address is on this server; sign-in redirects only to such addresses."""
    begins_here = address.startswith("/") and not address.startswith(("//", "/\\"))
    return begins_here and len(address) <= MAX_NEXT_CHARACTERS and address.isprintable()


def is_run_page(address: str) -> bool:
    """Return True if the address is a run's page on this server, without a fragment."""
    return is_place_of_ours(address) and _RUN_PAGE.fullmatch(address) is not None


def _opens_a_page(scope: Scope) -> bool:
    """Return True if a browser is opening a page, False for requests of scripts and programs."""
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

"""Who may speak to a server at all: not the pages of other sites, which a browser on this machine has open.

Whether it asks who they are is another question (`middleware.py`).

1. A request that changes something and names an origin comes from our own pages or from an allowed origin.
2. A server that listens on loopback is asked for by a name of loopback. Another name that leads here is how a foreign
   page reads what it must not (DNS rebinding).

Programs other than browsers send no Origin, and the name they were given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from ...config import Config, is_loopback
from ...errors import shorten
from ..errors import error_response

_CHANGES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Guard:
    def __init__(self, app: ASGIApp, config: Config) -> None:
        self._app = app
        self._check_host = is_loopback(config.host) and not config.insecure
        self._public = urlsplit(config.public_url or "")
        self._origins: Collection[str] = frozenset(config.allowed_origins)

    def allows_host(self, host: bytes) -> bool:
        """Whether a request that names no origin may be here."""
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
                f"this server answers to localhost, not to {shorten(host)}; "
                "set LEAKLINE_PUBLIC_URL to the address people use"
            )
        if scope["method"] in _CHANGES and b"origin" in headers:
            origin = _text(headers, b"origin")
            if not self._may_change(origin, host):
                return "origin_refused", (
                    f"pages of {shorten(origin)} may not change anything here; "
                    "name them in LEAKLINE_ALLOWED_ORIGINS"
                )
        return None

    def _is_ours(self, host: str) -> bool:
        name = _hostname(host)
        # No Host at all is HTTP 1.0, which no browser speaks.
        return not host or name in ("localhost", self._public.hostname) or is_loopback(name)

    def _may_change(self, origin: str, host: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        return is_own(origin, host, self._public.netloc)


def is_own(origin: str, host: str, public: str) -> bool:
    """Whether it is that of our own pages: of the name the server was asked for by, or its public one."""
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

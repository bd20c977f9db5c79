"""One request over HTTP -> Accepted, RetryLater or Refused. Knows HTTP and nothing else.

http.client is imported when the first request is made, so that ``import leakline`` stays light. Responses
are capped: a hostile or broken server must not fill the memory of a training job.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from .errors import ServerRefused, ServerUnreachable

if TYPE_CHECKING:
    from http.client import HTTPConnection

RESPONSE_LIMIT_BYTES: Final = 64 * 1024
# What commands may read: verdicts and comparisons of long runs.
COMMAND_RESPONSE_LIMIT_BYTES: Final = 16 * 2**20
COMPRESS_FROM_BYTES: Final = 1024
TIMEOUT_SECONDS: Final = 5.0
# These say "not now"; every other error status says "not this".
RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Accepted:
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RetryLater:
    """No answer, or an answer that is not the server's last word. ``status`` is None without an answer."""

    why: str
    after_seconds: float | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The server's last word on this request."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Body:
    """A request body as it travels."""

    data: bytes
    compressed: bool


Outcome = Accepted | RetryLater | Refused


class Delivery:
    """One kept-alive connection to the API of one server. For one thread."""

    def __init__(
        self,
        server: str,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        response_limit_bytes: int = RESPONSE_LIMIT_BYTES,
    ) -> None:
        self.server = server
        self.timeout_seconds = timeout_seconds
        self._token = token
        self._limit = response_limit_bytes
        self._parts = urlsplit(server)
        self._proxy = _proxy_for(self._parts.scheme, self._parts.hostname or "")
        self._connection: HTTPConnection | None = None

    def request(
        self, method: str, path: str, payload: Mapping[str, Any] | Body | None = None
    ) -> Outcome:
        """``path`` is below ``/api/v1``, with its query. Never raises for what a network can do."""
        from http.client import HTTPException

        body = encode(payload) if isinstance(payload, Mapping) else payload
        fresh = self._connection is None
        try:
            try:
                return self._exchange(method, path, body)
            except (HTTPException, ConnectionError):
                # A kept connection may have been closed by the server meanwhile: that is no outage.
                self.close()
                if fresh:
                    raise
                return self._exchange(method, path, body)
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            return RetryLater(_reason(error))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, path: str, body: Body | None) -> Outcome:
        connection = self._connect()
        prefix = self._parts.path
        if self._proxy is not None and self._parts.scheme == "http":
            prefix = self.server
        data = None if body is None else body.data
        connection.request(method, f"{prefix}/api/v1{path}", data, self._headers(body))
        response = connection.getresponse()
        raw = response.read(self._limit + 1)
        after = response.headers.get("Retry-After")
        # Reading a limited number of bytes does not notice by itself that some are missing.
        torn = bool(response.length) and len(raw) <= self._limit
        if torn or len(raw) > self._limit or response.will_close:
            self.close()
        if torn or len(raw) > self._limit:
            why = "an answer cut short" if torn else f"an answer longer than {self._limit} bytes"
            return RetryLater(why, status=response.status)
        return _classify(response.status, raw, after)

    def _connect(self) -> HTTPConnection:
        if self._connection is None:
            self._connection = self._open()
        self._connection.timeout = self.timeout_seconds
        if self._connection.sock is not None:
            self._connection.sock.settimeout(self.timeout_seconds)
        return self._connection

    def _open(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        secure = self._parts.scheme == "https"
        kind = HTTPSConnection if secure else HTTPConnection
        host, port = self._parts.hostname or "", self._parts.port
        if self._proxy is None:
            return kind(host, port, timeout=self.timeout_seconds)
        proxy = urlsplit(self._proxy)
        connection = kind(proxy.hostname or "", proxy.port or 8080, timeout=self.timeout_seconds)
        if secure:
            connection.set_tunnel(host, port or 443)
        return connection

    def _headers(self, body: Body | None) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "leakline"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
            if body.compressed:
                headers["Content-Encoding"] = "gzip"
        return headers


def request_json(
    server: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    token: str | None = None,
    timeout_seconds: float = 30.0,
) -> dict[str, Any]:
    """One request of a command. Raises ServerUnreachable or ServerRefused."""
    delivery = Delivery(server, token, timeout_seconds, COMMAND_RESPONSE_LIMIT_BYTES)
    try:
        outcome = delivery.request(method, path, body)
    finally:
        delivery.close()
    return accepted_body(outcome, server)


def accepted_body(outcome: Outcome, server: str) -> dict[str, Any]:
    if isinstance(outcome, Accepted):
        return dict(outcome.body)
    if isinstance(outcome, Refused):
        raise ServerRefused(outcome.status, outcome.code, outcome.message)
    raise ServerUnreachable(server, outcome.why)


def encode(payload: Mapping[str, Any]) -> Body:
    """JSON, gzipped when that pays."""
    data = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
    if len(data) < COMPRESS_FROM_BYTES:
        return Body(data, False)
    return Body(gzip.compress(data, compresslevel=3, mtime=0), True)


def _classify(status: int, raw: bytes, retry_after: str | None) -> Outcome:
    body = _json_object(raw)
    if 200 <= status < 300:
        if status == 204 or body is not None:
            return Accepted(body or {})
        return RetryLater("an answer that is not Leakline's", status=status)
    error = (body or {}).get("error")
    told = error if isinstance(error, dict) else {}
    message = str(told.get("message") or f"status {status}")[:500]
    if status in RETRYABLE:
        return RetryLater(message, _seconds(retry_after), status)
    return Refused(status, str(told.get("code") or "unknown")[:100], message)


def _json_object(raw: bytes) -> dict[str, Any] | None:
    try:
        loaded = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


def _seconds(retry_after: str | None) -> float | None:
    # The form with a date is not sent by our server; the usual back-off answers it.
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)[:200]


def _proxy_for(scheme: str, host: str) -> str | None:
    """The proxy of the environment, never for this machine itself."""
    if host in LOOPBACK:
        return None
    if not any(name in os.environ for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper())):
        return None
    from urllib.request import getproxies, proxy_bypass

    return None if proxy_bypass(host) else getproxies().get(scheme)

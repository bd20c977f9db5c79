"""Sends one request over HTTP and returns Accepted, RetryLater or Refused.

http.client is imported at the first request, so that ``import leakline`` stays light. The size of a response and the
time to read it are limited (`http_connection.py`): a hostile or broken server must neither fill the memory of a
training job nor block its sender.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ..errors import ServerBusy, ServerRefused, ServerUnreachable
from ..text_format import printable

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from pathlib import Path
    from ssl import SSLContext

    from .http_connection import Connection, Meter

API: Final = "/api/v1"
RESPONSE_LIMIT_BYTES: Final = 64 * 1024
# Limit for responses to commands, which read verdicts and comparisons of long runs.
COMMAND_RESPONSE_LIMIT_BYTES: Final = 16 * 2**20
# Maximum overhead of chunked transfer encoding.
FRAMING_LIMIT_BYTES: Final = 64 * 1024
COMPRESS_FROM_BYTES: Final = 1024
# Timeout of one request, from its first byte to the last byte of the response.
TIMEOUT_SECONDS: Final = 15.0
# Statuses that mean "not now". Nearly all server errors (5xx) mean the same, and may come from a proxy in front of the
# server.
RETRYABLE: Final = frozenset({408, 425, 429})
# The only server errors that are final: "not implemented" and "version not supported".
FINAL_SERVER_ERRORS: Final = frozenset({501, 505})
MESSAGE_LIMIT: Final = 500


@dataclass(frozen=True, slots=True)
class Accepted:
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RetryLater:
    """No final response, so the request may be repeated. ``status`` is None if the server did not respond."""

    why: str
    after_seconds: float | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The server's final response to this request."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Body:
    """A request body as it is sent, perhaps gzipped."""

    data: bytes
    compressed: bool
    unpacked_bytes: int
    content_type: str = "application/json"


Outcome = Accepted | RetryLater | Refused


class Delivery:
    """One persistent connection to the API of one server, for one thread.

    ``timeout_seconds`` applies to an entire request. ``ca_file`` (PEM) is trusted in addition to
    the system's certificates.
    """

    def __init__(
        self,
        server: str,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        response_limit_bytes: int = RESPONSE_LIMIT_BYTES,
        ca_file: Path | None = None,
        base: str = API,
    ) -> None:
        self.server = server
        self._base = base
        self.timeout_seconds = timeout_seconds
        self._token, self._ca_file = token, ca_file
        self._limit = response_limit_bytes
        self._parts = urlsplit(server)
        self._connection: Connection | None = None
        self._context: SSLContext | None = None
        self._meter: Meter | None = None

    def request(
        self, method: str, path: str, payload: Mapping[str, Any] | Body | None = None
    ) -> Outcome:
        """Send one request to ``path``, which is relative to ``base`` and includes the query.

        A network failure raises no exception and is returned as RetryLater.
        """
        from http.client import HTTPException

        from .http_connection import Meter

        body = encode(payload) if isinstance(payload, Mapping) else payload
        meter = self._meter = self._meter or Meter()
        meter.start(self.timeout_seconds)
        fresh = self._connection is None
        try:
            try:
                return self._exchange(method, path, body, meter)
            except (HTTPException, ConnectionError):
                # Try once more: the server may have closed the persistent connection in the meantime, which is not an
                # outage.
                self.close()
                if fresh:
                    raise
                return self._exchange(method, path, body, meter)
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            return RetryLater(_reason(error))

    def abandon(self) -> None:
        """Release the connection in a forked child, because the connection belongs to the parent."""
        if self._connection is not None:
            self._connection.abandon()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, path: str, body: Body | None, meter: Meter) -> Outcome:
        from .http_connection import AnswerTooLong

        data = None if body is None else body.data
        target = f"{self._parts.path}{self._base}{path}"
        response = self._connect(meter).send_request(method, target, data, self._headers(body))
        meter.allow(self._limit + FRAMING_LIMIT_BYTES)
        raw = response.read(self._limit + 1)
        if len(raw) > self._limit:
            if method == "PATCH" and 200 <= response.status < 300 and raw.startswith(b"{"):
                # Ignore the response, which is the whole run: only the change itself matters.
                self.close()
                return Accepted()
            raise AnswerTooLong(f"the response is longer than {self._limit} bytes")
        # A read with a size limit does not raise an error if bytes are missing.
        torn = bool(response.length)
        if torn or response.will_close:
            self.close()
        if torn:
            return RetryLater("the response is incomplete", status=response.status)
        if response.status == 200 and response.headers.get_content_type() == "text/markdown":
            return Accepted({"markdown": raw.decode(errors="replace")})
        return _classify(response.status, raw, response.headers)

    def _connect(self, meter: Meter) -> Connection:
        if self._connection is None:
            from .http_connection import Connection, proxy_for, secure_context

            if self._parts.scheme == "https" and self._context is None:
                # Create the context once, because loading the system's certificates takes longer
                # than a request.
                self._context = secure_context(self._ca_file)
            proxy = proxy_for(self._parts)
            self._connection = Connection(self._parts, proxy, self._context, meter)
        return self._connection

    def _headers(self, body: Body | None) -> dict[str, str]:
        host = self._parts.netloc.rpartition("@")[2]
        headers = {"Host": host, "Accept": "application/json", "User-Agent": "leakline"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = body.content_type
            if body.compressed:
                headers["Content-Encoding"] = "gzip"
        return headers


def request_json(
    server: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    token: str | None = None,
    timeout_seconds: float = 60.0,
    ca_file: Path | None = None,
    base: str = API,
) -> dict[str, Any]:
    """Send one request for a command and return the response. Raises ServerUnreachable or ServerRefused."""
    limit = COMMAND_RESPONSE_LIMIT_BYTES
    delivery = Delivery(server, token, timeout_seconds, limit, ca_file, base)
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
    raise not_now(outcome, server)


def not_now(outcome: RetryLater, server: str) -> ServerUnreachable:
    # A status below 400 without a valid Leakline response means that some other server answered.
    kind = ServerUnreachable if outcome.status is None or outcome.status < 400 else ServerBusy
    return kind(server, outcome.why, outcome.after_seconds)


def not_accepted(server: str, status: int, message: str) -> str:
    """Return a sentence about the refusal of an entire run."""
    return f"{server} does not accept this run ({status}: {message})"


def encode(payload: Mapping[str, Any]) -> Body:
    """Return a JSON request body, gzipped if it is large enough."""
    return pack(json.dumps(payload, separators=(",", ":"), allow_nan=False).encode())


def pack(data: bytes, content_type: str = "application/json") -> Body:
    """Return a request body, gzipped if it is large enough."""
    if len(data) < COMPRESS_FROM_BYTES:
        return Body(data, False, len(data), content_type)
    return Body(gzip.compress(data, compresslevel=3, mtime=0), True, len(data), content_type)


def _classify(status: int, raw: bytes, headers: HTTPMessage) -> Outcome:
    body = _json_object(raw)
    if 200 <= status < 300 and (status == 204 or body is not None):
        return Accepted(body or {})
    error = (body or {}).get("error")
    body_error = error if isinstance(error, dict) else {}
    message = one_line(body_error.get("message"), MESSAGE_LIMIT) or f"status {status}"
    if status in RETRYABLE or (500 <= status < 600 and status not in FINAL_SERVER_ERRORS):
        from .http_connection import retry_after

        return RetryLater(message, retry_after(headers), status)
    if not 300 <= status < 600:
        return RetryLater("the response is not from a Leakline server", status=status)
    return Refused(status, one_line(body_error.get("code"), 100) or "unknown", message)


def _json_object(raw: bytes) -> dict[str, Any] | None:
    try:
        loaded = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


def one_line(text: object, limit: int) -> str:
    """Return a server's text as one line without control characters, for a terminal."""
    if not isinstance(text, str):
        return ""
    return printable(text[:limit]).strip()


def _reason(error: Exception) -> str:
    reason = str(getattr(error, "strerror", None) or error)
    if type(error).__name__ == "SSLCertVerificationError":
        reason = f"{getattr(error, 'verify_message', reason)}; set LEAKLINE_CA_FILE to trust more certificates"
    return one_line(reason, 200) or type(error).__name__

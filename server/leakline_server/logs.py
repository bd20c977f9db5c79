"""The server's logging to standard error: text for people, or one JSON object per line for machines.

A record logged while a request is handled contains the request's id, taken from the proxy (`X-Request-ID`) or
generated. Secrets never reach the log: tokens, passwords in URLs and webhook secrets are masked in every message and
traceback. A message is always a single line.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]
FORMATS: Final[tuple[Format, ...]] = ("text", "json")
LEVELS: Final[tuple[Level, ...]] = ("debug", "info", "warning", "error")
REQUEST_ID_HEADER: Final = b"x-request-id"
MAX_PATH: Final = 200

# The request handled in this context; its id is computed when the first record needs it.
_answered: ContextVar[Scope | None] = ContextVar("leakline_request", default=None)
_KEPT: Final = "leakline.request_id"
# The accepted form of a proxy's request id; anything else is ignored.
_ID: Final = re.compile(rb"[\w.-]{8,64}", re.ASCII)

_SECRETS: Final = (
    (re.compile(r"whsec_[\w+/=-]+"), "whsec_…"),
    (re.compile(r"leakline_(ingest|read|admin)_[\w-]+"), r"leakline_\1_…"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE), r"\1 …"),
    (re.compile(r"://[^/\s:@]*:[^/\s@]+@"), "://…@"),
)
# The pattern includes line breaks: a message that contains foreign text must not look like two records.
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

log = logging.getLogger("leakline")


def configure(form: Format, level: Level, stream: IO[str] | None = None) -> None:
    """Send all log records of this process to standard error in the given format."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    log.setLevel(level.upper())
    logging.captureWarnings(True)


def answering(scope: Scope) -> None:
    """Remember the request that this task handles, so that log records contain its id."""
    _answered.set(scope)


def request_id() -> str | None:
    """Return the id of the request handled in this context, or None outside a request."""
    scope = _answered.get()
    if scope is None or scope["type"] != "http":
        return None
    found: str | None = scope.get(_KEPT)
    if found is None:
        given = next((value for name, value in scope["headers"] if name == REQUEST_ID_HEADER), b"")
        found = given.decode() if _ID.fullmatch(given) else secrets.token_hex(8)
        scope[_KEPT] = found
    return found


def logs_requests() -> bool:
    return log.isEnabledFor(logging.INFO)


class RequestLog:
    """ASGI middleware that logs each request at level info: method, path, status, milliseconds."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.perf_counter(), 0

        async def send_logged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_logged)
        finally:
            if scope["type"] == "http":
                seconds = time.perf_counter() - began
                # The query is left out because it may contain what people search for.
                log.info(
                    "%s %s %s in %.1f ms",
                    scope["method"], scope["path"][:MAX_PATH], status or "unanswered", seconds * 1e3,
                )  # fmt: skip


def _without_secrets(text: str) -> str:
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def _message(record: logging.LogRecord) -> str:
    text = _CONTROLS.sub(" ", record.getMessage()).strip()
    # This flag marks the one record that shows a newly generated secret.
    return text if getattr(record, "shows_secret", False) else _without_secrets(text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    if not record.exc_info:
        return None
    return _without_secrets(formatter.formatException(record.exc_info))


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = request_id()
        line = _message(record) if found is None else f"{_message(record)} (request {found})"
        traceback = _traceback(self, record)
        return line if traceback is None else f"{line}\n{traceback}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": _message(record),
            "logger": record.name,
            "thread": record.threadName,
            "process": record.process,
        }
        if (found := request_id()) is not None:
            said["request"] = found
        if (traceback := _traceback(self, record)) is not None:
            said["traceback"] = traceback
        return json.dumps(said, ensure_ascii=False)

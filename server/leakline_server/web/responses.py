"""JSON responses from plain data, and security headers for all responses.

Files and errors have these headers too. Pages have their own policy (`templating.py`). Any other
response that a browser opens as a page cannot run scripts, load anything or be framed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Message, Scope, Send


def json_response(content: Any, status: int = 200) -> Response:
    """Return a JSON response; NaN and infinity, which JSON lacks, become null."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


Header = tuple[bytes, bytes]

EVERY_ANSWER: Final[Sequence[Header]] = (
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
)  # fmt: skip
# With these headers, pages of other sites cannot load our responses as images or scripts.
_SLOW_ANSWERS: Final[Sequence[Header]] = (
    *EVERY_ANSWER,
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


def completed(headers: Iterable[Header]) -> list[Header]:
    """Add the security headers that are missing; headers that are already set are kept."""
    said = list(headers)
    names = {name.lower() for name, _ in said}
    return said + [header for header in _SLOW_ANSWERS if header[0] not in names]


def completing(scope: Scope, send: Send) -> Send:
    """Wrap ``send`` so that every response has the security headers."""
    if scope["type"] != "http":
        return send

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": completed(message.get("headers", ()))}
        await send(message)

    return with_headers

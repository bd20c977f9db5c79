"""Answers: from plain data, without the cost of a response model, and what every one of them says to a browser.

Files, errors and refusals say it too. Pages bring a policy of their own (`templating.py`); whatever else a browser is
made to open as a page runs nothing, loads nothing and stands in nobody's frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Message, Scope, Send


def json_response(content: Any, status: int = 200) -> Response:
    """NaN and infinity, which JSON does not have, become null."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


Header = tuple[bytes, bytes]

EVERY_ANSWER: Final[Sequence[Header]] = (
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
)  # fmt: skip
# A page of another site that loads one of ours as a picture or a script is given nothing.
_SLOW_ANSWERS: Final[Sequence[Header]] = (
    *EVERY_ANSWER,
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


def completed(headers: Iterable[Header]) -> list[Header]:
    """With what is missing; what an answer says itself stays."""
    said = list(headers)
    names = {name.lower() for name, _ in said}
    return said + [header for header in _SLOW_ANSWERS if header[0] not in names]


def completing(scope: Scope, send: Send) -> Send:
    """Sends, each answer with its headers."""
    if scope["type"] != "http":
        return send

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": completed(message.get("headers", ()))}
        await send(message)

    return with_headers

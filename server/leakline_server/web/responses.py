"""JSON responses from plain data, and security headers and compression for all responses.

Files and errors have these headers too. Pages have their own policy (`templating.py`). Any other
response that a browser opens as a page cannot run scripts, load anything or be framed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import zstandard
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware, IdentityResponder
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

# This level compresses the chart library to 371 kB in 20 ms; gzip at level 9 needs 395 kB and twice the time.
_ZSTD_LEVEL: Final = 9
_STREAM_LEVEL: Final = 3
# Larger bodies are compressed in a thread.
_LARGE: Final = 128 * 1024


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
    """Return the headers, followed by each security header that is missing."""
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


class CompressionMiddleware(GZipMiddleware):
    """Compresses responses with zstd if the client accepts zstd, otherwise with gzip.

    Browsers accept zstd only over HTTPS or from localhost.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _accepts_zstd(Headers(scope=scope)):
            await super().__call__(scope, receive, send)
            return
        responder = _ZstdResponder(
            self.app, self.minimum_size, exclude_content_types=self.exclude_content_types
        )
        await responder(scope, receive, send)


def _accepts_zstd(headers: Headers) -> bool:
    accepted = headers.get("accept-encoding", "").replace(" ", "").lower().split(",")
    # A quality of zero refuses an encoding.
    return any(re.fullmatch(r"zstd(;q=(?!0(\.0*)?$).*)?", each) for each in accepted)


class _ZstdResponder(IdentityResponder):
    content_encoding = "zstd"
    _stream: zstandard.ZstdCompressionObj | None = None

    async def apply_compression(self, body: bytes, *, more_body: bool) -> bytes:
        if len(body) < _LARGE:
            return self._compressed(body, more_body)
        # Compressing a large body here would delay other requests.
        return await run_in_threadpool(self._compressed, body, more_body)

    def _compressed(self, body: bytes, more_body: bool) -> bytes:
        if self._stream is None:
            # At the higher level, a stream of unknown size takes 15 MB.
            known = Headers(raw=self.initial_message["headers"]).get("content-length")
            size, level = (int(known), _ZSTD_LEVEL) if known else (-1, _STREAM_LEVEL)
            self._stream = zstandard.ZstdCompressor(level).compressobj(size)
        end = zstandard.COMPRESSOBJ_FLUSH_BLOCK if more_body else zstandard.COMPRESSOBJ_FLUSH_FINISH
        return self._stream.compress(body) + self._stream.flush(end)

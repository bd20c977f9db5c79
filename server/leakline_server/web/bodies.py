"""JSON bodies of ordinary routes: bounded, strict JSON, then a pydantic model.

The framework's own reading has no bound and takes NaN and broken surrogates, which no database can store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from ..errors import Malformed, TooLarge, Unavailable
from ..ingest import deeper_than, inflate, too_deep
from ..live import Live

MAX_BODY_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 16
BODY_SECONDS: Final = 15.0

Model = TypeVar("Model", bound=BaseModel)


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], refuse: TooLarge, limit: int, live: Live
) -> bytes:
    """The whole body, counted while it comes.

    Raises ``refuse`` beyond ``limit`` bytes, ClientDisconnect, Malformed when it is too slow, and Unavailable when the
    server ends before it is there.
    """
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > limit:
        raise refuse
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS) as patience:
            with live.ending(patience):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise refuse
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
    except TimeoutError as error:
        if live.closing:
            raise Unavailable(
                "server_stopping", "the server ends; send this again later", retry_after_seconds=2
            ) from error
        raise Malformed(
            "body_too_slow", f"the body did not arrive within {BODY_SECONDS:.0f} seconds"
        ) from error


def json_body(model: type[Model]) -> Any:
    """A dependency that reads the body into ``model``; put ``described(model)`` into the route for OpenAPI."""

    async def read(request: Request) -> Model:
        refuse = TooLarge(
            "body_too_large",
            f"the body has more than {MAX_BODY_BYTES} bytes",
            {"limit_bytes": MAX_BODY_BYTES},
        )
        live = request.app.state.services.live
        headers = dict(request.scope["headers"])
        body = await read_body(request.receive, headers, refuse, MAX_BODY_BYTES, live)
        # The client compresses a header as it compresses a batch.
        body = inflate(body, headers.get(b"content-encoding", b"").decode("latin-1"))
        try:
            return model.model_validate(_decode(body))
        except ValidationError as error:
            errors = error.errors(include_url=False)
            raise RequestValidationError(
                [e | {"loc": ("body", *e["loc"])} for e in errors]
            ) from error

    return Depends(read)


def described(model: type[BaseModel]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _decode(body: bytes) -> Any:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed("malformed_json", f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise too_deep(MAX_DEPTH) from error
    if deeper_than(found, MAX_DEPTH):
        raise too_deep(MAX_DEPTH)
    return found

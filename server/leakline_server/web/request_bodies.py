"""Bodies of JSON requests and of forms, with limits on their size.

JSON is parsed strictly and then validated by a pydantic model. Forms are urlencoded; only
checkboxes may repeat a field.

FastAPI would read bodies without a limit and accept NaN and broken surrogates, which no database
can store. A parsed value needs up to twenty times the memory of its text, and is held while the
request waits for a thread. Therefore, the number of values is limited as well, and the memory held
by waiting requests is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from ..errors import Malformed, TooBusy, TooLarge, Unavailable
from ..ingest.decode import inflate, too_deep
from ..limits import (
    BODY_SECONDS,
    MAX_BODIES_BYTES,
    MAX_BODY_BYTES,
    MAX_FORM_BOXES,
    MAX_FORM_BYTES,
    MAX_FORM_FIELDS,
    MAX_JSON_DEPTH,
    MAX_JSON_VALUES,
)
from ..live_updates import Live
from ..text_cleaning import all_without_marks, may_steer, without_control

Model = TypeVar("Model", bound=BaseModel)

# The approximate memory of one JSON value, which is about the size of an empty list.
VALUE_BYTES: Final = 64


@dataclass(slots=True)
class Coming:
    """Counts the bytes of arriving bodies, and of parsed values until the response is sent.

    Use an instance only on the event loop. The bytes of a project's batches count twice, so that
    one project can use at most half of the limit.
    """

    size: int = 0
    of_projects: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def holding(self, size: int, project: str | None = None) -> Iterator[None]:
        """Count ``size`` bytes within the context. Raises TooBusy if too many bytes are held."""
        self.add(size, project)
        try:
            self.check(project)
            yield
        finally:
            self.add(-size, project)

    def add(self, size: int, project: str | None) -> None:
        self.size += size
        if project is not None:
            of_project = self.of_projects.pop(project, 0) + size
            if of_project:
                self.of_projects[project] = of_project

    def check(self, project: str | None) -> None:
        """Raise TooBusy if too many bytes are held now."""
        of_project = 0 if project is None else self.of_projects.get(project, 0)
        if self.size + of_project > MAX_BODIES_BYTES:
            raise _too_many_bodies()


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], refuse: Callable[[], TooLarge], limit: int, live: Live,
    coming: Coming, project: str | None = None,
) -> bytes:  # fmt: skip
    """Return the entire body, counting its bytes as they arrive; ``project`` is set for batches.

    Raises the error from ``refuse`` beyond ``limit`` bytes, TooBusy if too many bodies arrive at
    the same time, ClientDisconnect, Malformed if the body arrives too slowly, and Unavailable if the
    server stops first.
    """
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > limit:
        raise refuse()
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
                    coming.add(len(part), project)
                    if size > limit:
                        raise refuse()
                    coming.check(project)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
    except TimeoutError as error:
        if live.closing:
            raise Unavailable(
                "server_stopping",
                "the server is stopping; send this request again later",
                retry_after_seconds=2,
            ) from error
        raise Malformed(
            "body_too_slow", f"the body did not arrive within {BODY_SECONDS:.0f} seconds"
        ) from error
    finally:
        coming.add(-size, project)


def _too_many_bodies() -> TooBusy:
    return TooBusy(
        "too_busy",
        "too many requests are in progress; send this request again later",
        retry_after_seconds=1,
    )


def json_body(model: type[Model]) -> Any:
    """Return a dependency that reads the body into ``model``.

    For OpenAPI, add ``openapi_extra=described(model)`` to the route.
    """

    async def read(request: Request) -> AsyncIterator[Model]:
        made, held_bytes = await _made(model, request)
        with request.app.state.services.coming.holding(held_bytes):
            yield made

    return Depends(read)


async def _made(model: type[Model], request: Request) -> tuple[Model, int]:
    """Return the parsed body and its approximate size in memory; the raw bytes are not kept."""
    use = request.app.state.services
    headers = dict(request.scope["headers"])
    body = await read_body(
        request.receive, headers, _too_large, MAX_BODY_BYTES, use.live, use.coming
    )
    encoding = headers.get(b"content-encoding", b"").decode("latin-1")
    found, held_bytes = _decode(_inflated(body, encoding))
    return _checked(model, found), held_bytes


def _inflated(body: bytes, encoding: str) -> bytes:
    """Decompress the body; the client compresses JSON requests in the same way as batches."""
    try:
        return inflate(body, encoding, MAX_BODY_BYTES)
    except TooLarge as error:
        raise _too_large(" inflated") from error


def _too_large(what: str = "") -> TooLarge:
    return TooLarge(
        "body_too_large",
        f"the body has more than {MAX_BODY_BYTES} bytes{what}",
        {"limit_bytes": MAX_BODY_BYTES},
    )


def _checked(model: type[Model], found: Any) -> Model:
    try:
        return model.model_validate(found)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestValidationError([e | {"loc": ("body", *e["loc"])} for e in errors]) from error


def described(model: type[BaseModel]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _decode(body: bytes) -> tuple[Any, int]:
    """Return the parsed body and its approximate memory in bytes."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed("malformed_json", f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise too_deep(MAX_JSON_DEPTH) from error
    held_bytes = len(body) + VALUE_BYTES * _values(found)
    return (all_without_marks(found) if may_steer(body) else found), held_bytes


def _values(found: Any) -> int:
    """Return the number of nested values. Raises Malformed for too many values or levels."""
    count = 1
    level = [found]
    for _ in range(MAX_JSON_DEPTH + 1):
        nested = [each for each in level if isinstance(each, (dict, list))]
        if not nested:
            return count
        count += sum(map(len, nested))
        if count > MAX_JSON_VALUES:
            raise Malformed(
                "too_many_values",
                f"the body has {count} values; at most {MAX_JSON_VALUES} are allowed",
            )
        level = [
            inner
            for each in nested
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    raise too_deep(MAX_JSON_DEPTH)


async def _fields(request: Request, most: int, limit: int, coming: Coming) -> list[tuple[str, str]]:
    """Return (field, value) pairs, without control characters or surrounding whitespace.

    Raises Malformed, TooLarge and the errors of `read_body`.
    """

    def refuse() -> TooLarge:
        message = f"the form has more than {limit} bytes"
        return TooLarge("body_too_large", message, {"limit_bytes": limit})

    live = request.app.state.services.live
    headers = dict(request.scope["headers"])
    body = await read_body(request.receive, headers, refuse, limit, live, coming)
    try:
        fields = parse_qsl(body.decode("ascii"), max_num_fields=most, errors="strict")
    except ValueError as error:
        raise Malformed("malformed_form", f"the body is not a form: {error}") from error
    return [(name, without_control(value).strip()) for name, value in fields]


async def read_form(request: Request, limit: int, coming: Coming) -> dict[str, str]:
    """Return the values of all fields that are not empty. Raises Malformed for repeated fields."""
    fields = await _fields(request, MAX_FORM_FIELDS, limit, coming)
    found = dict(fields)
    if len(found) < len(fields):
        raise Malformed("malformed_form", "the form contains a field twice")
    return {name: value for name, value in found.items() if value}


async def _read(request: Request) -> dict[str, str]:
    return await read_form(request, MAX_FORM_BYTES, request.app.state.services.coming)


async def _read_boxes(request: Request) -> dict[str, list[str]]:
    """Return the distinct values of each field in order, without empty values."""
    found: dict[str, dict[str, None]] = {}
    coming = request.app.state.services.coming
    for name, value in await _fields(request, MAX_FORM_BOXES, MAX_FORM_BYTES, coming):
        if value:
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


Form = Annotated[dict[str, str], Depends(_read)]
Boxes = Annotated[dict[str, list[str]], Depends(_read_boxes)]

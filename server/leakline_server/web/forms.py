"""Bodies of plain forms on our pages: bounded, urlencoded, each field once but for check boxes."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import Request

from ..errors import Malformed, TooLarge
from ..limits import MAX_FORM_BOXES, MAX_FORM_BYTES, MAX_FORM_FIELDS
from ..text_cleaning import without_control
from .request_bodies import Coming, read_body


async def _fields(request: Request, most: int, limit: int, coming: Coming) -> list[tuple[str, str]]:
    """(field, value), without control characters and blanks around it. Raises Malformed, TooLarge and what `read_body`
    raises.
    """
    refuse = TooLarge(
        "body_too_large", f"the form has more than {limit} bytes", {"limit_bytes": limit}
    )
    live = request.app.state.services.live
    headers = dict(request.scope["headers"])
    body = await read_body(request.receive, headers, refuse, limit, live, coming)
    try:
        fields = parse_qsl(body.decode("ascii"), max_num_fields=most, errors="strict")
    except ValueError as error:
        raise Malformed("malformed_form", f"the body is not a form: {error}") from error
    return [(name, without_control(value).strip()) for name, value in fields]


async def read_form(request: Request, limit: int, coming: Coming) -> dict[str, str]:
    """Field -> value; only filled fields are there."""
    fields = await _fields(request, MAX_FORM_FIELDS, limit, coming)
    found = dict(fields)
    if len(found) < len(fields):
        raise Malformed("malformed_form", "the form has a field twice")
    return {name: value for name, value in found.items() if value}


async def _read(request: Request) -> dict[str, str]:
    return await read_form(request, MAX_FORM_BYTES, request.app.state.services.coming)


async def _read_boxes(request: Request) -> dict[str, list[str]]:
    """Field -> its values, each once and in order; only filled fields are there."""
    found: dict[str, dict[str, None]] = {}
    coming = request.app.state.services.coming
    for name, value in await _fields(request, MAX_FORM_BOXES, MAX_FORM_BYTES, coming):
        if value:
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


Form = Annotated[dict[str, str], Depends(_read)]
Boxes = Annotated[dict[str, list[str]], Depends(_read_boxes)]

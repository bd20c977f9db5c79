"""Bodies of plain forms on our pages: bounded, urlencoded, each field once but for check boxes."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import Request

from ..errors import Malformed, TooLarge
from ..ingest import without_control
from .bodies import read_body

MAX_FORM_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 50
# A page of the list of runs, where a run may stand under each of its tags.
MAX_BOXES: Final = 1_000


async def _fields(request: Request, most: int) -> list[tuple[str, str]]:
    """(field, value), without control characters and blanks around it. Raises Malformed, TooLarge and what `read_body`
    raises.
    """
    refuse = TooLarge(
        "body_too_large",
        f"the form has more than {MAX_FORM_BYTES} bytes",
        {"limit_bytes": MAX_FORM_BYTES},
    )
    live = request.app.state.services.live
    headers = dict(request.scope["headers"])
    body = await read_body(request.receive, headers, refuse, MAX_FORM_BYTES, live)
    try:
        fields = parse_qsl(body.decode("ascii"), max_num_fields=most, errors="strict")
    except ValueError as error:
        raise Malformed("malformed_form", f"the body is not a form: {error}") from error
    return [(name, without_control(value).strip()) for name, value in fields]


async def _read(request: Request) -> dict[str, str]:
    """Field -> value; only filled fields are there."""
    fields = await _fields(request, MAX_FIELDS)
    found = dict(fields)
    if len(found) < len(fields):
        raise Malformed("malformed_form", "the form has a field twice")
    return {name: value for name, value in found.items() if value}


async def _read_boxes(request: Request) -> dict[str, list[str]]:
    """Field -> its values, each once and in order; only filled fields are there."""
    found: dict[str, dict[str, None]] = {}
    for name, value in await _fields(request, MAX_BOXES):
        if value:
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


Form = Annotated[dict[str, str], Depends(_read)]
Boxes = Annotated[dict[str, list[str]], Depends(_read_boxes)]

"""Bodies of plain forms on our pages: bounded, urlencoded, each field once."""

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


async def _read(request: Request) -> dict[str, str]:
    """Field -> value, without control characters and blanks around it; only filled fields are there.

    Raises Malformed, TooLarge and what `read_body` raises.
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
        fields = parse_qsl(body.decode("ascii"), max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise Malformed("malformed_form", f"the body is not a form: {error}") from error
    found = {name: without_control(value).strip() for name, value in fields}
    if len(found) < len(fields):
        raise Malformed("malformed_form", "the form has a field twice")
    return {name: value for name, value in found.items() if value}


Form = Annotated[dict[str, str], Depends(_read)]

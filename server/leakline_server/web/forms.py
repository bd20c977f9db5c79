"""Fields of plain HTML forms, read with a bound. The framework's own reading needs another package and has none."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import Request

from ..errors import Malformed, TooLarge
from ..ingest import without_control
from .bodies import read_body

MAX_FORM_BYTES: Final = 16 * 1024
MAX_FIELDS: Final = 64


async def _read(request: Request) -> dict[str, str]:
    refuse = TooLarge(
        "body_too_large",
        f"the form has more than {MAX_FORM_BYTES} bytes",
        {"limit_bytes": MAX_FORM_BYTES},
    )
    headers = dict(request.scope["headers"])
    live = request.app.state.services.live
    body = await read_body(request.receive, headers, refuse, MAX_FORM_BYTES, live)
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError as error:
        raise Malformed(
            "malformed_form", "the form cannot be read; send it from the page itself"
        ) from error
    return {name: without_control(value).strip() for name, value in pairs}


# Field name -> text without control characters and blanks around it; of a name given twice, the last.
Form = Annotated[dict[str, str], Depends(_read)]

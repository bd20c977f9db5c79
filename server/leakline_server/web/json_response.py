"""Answers from plain data, without the cost of a response model."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response


def json_response(content: Any, status: int = 200) -> Response:
    """NaN and infinity, which JSON does not have, become null."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")

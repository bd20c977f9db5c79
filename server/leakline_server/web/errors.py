"""Every error under /api is the contract's JSON; pages say the same sentence in HTML."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ..errors import RequestRefused, Unavailable, shorten
from ..store.codec import CorruptChunk
from ..store.engine import DATABASE_ERRORS

# (request, status, code, message) -> a page. The JSON routes never use it.
ErrorPage = Callable[[Request, int, str, str], Response]

_PLAIN: Final = ("/healthz", "/readyz", "/metrics")
_BUG: Final = "this is a bug of Leakline; the log of the server says where"
_CODES: Final = {404: "not_found", 405: "method_not_allowed", 401: "unauthorized", 403: "forbidden"}

log = logging.getLogger("leakline")


def install(app: FastAPI, page: ErrorPage | None = None) -> None:
    """Handlers for everything that can go wrong in a request."""

    def answer(
        request: Request,
        status: int,
        code: str,
        message: str,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Response:
        if page is not None and not is_api(request.url.path):
            response = page(request, status, code, message)
            response.headers.update(headers or {})
            return response
        return error_response(status, code, message, details, headers)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRefused)
        return answer(
            request, error.status, error.code, error.message, error.details, _patience(error)
        )

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        status, code, message, details = _validation(error.errors())
        return answer(request, status, code, message, details)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "http_error")
        path = shorten(request.url.path)
        message = {
            404: f"there is nothing at {path}; the API is described at /api/v1/openapi.json",
            405: f"{path} does not take {request.method}",
        }.get(error.status_code, str(error.detail))
        return answer(
            request, error.status_code, code, message, {"path": path}, dict(error.headers or {})
        )

    async def database(request: Request, error: Exception) -> Response:
        log.error("database: %s", error)
        down = Unavailable(
            "database_unavailable",
            "the database does not answer; try again later",
            retry_after_seconds=2,
        )
        return await refused(request, down)

    async def corrupt(request: Request, error: Exception) -> Response:
        log.error("stored data: %s", error)
        message = f"stored data of this run is damaged ({error}); restore it from a backup"
        return answer(request, 500, "stored_data_damaged", message)

    async def unforeseen(request: Request, error: Exception) -> Response:
        # Starlette raises it again after this answer, and the server logs it with its traceback: once is enough.
        return answer(request, 500, "internal_error", _BUG)

    app.add_exception_handler(Exception, unforeseen)
    app.add_exception_handler(RequestRefused, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(CorruptChunk, corrupt)
    for kind in DATABASE_ERRORS:
        app.add_exception_handler(kind, database)


def is_api(path: str) -> bool:
    return path.startswith("/api") or path in _PLAIN


def refusal_response(error: RequestRefused) -> Response:
    return error_response(error.status, error.code, error.message, error.details, _patience(error))


def bug_response() -> Response:
    return error_response(500, "internal_error", _BUG)


def _patience(error: RequestRefused) -> dict[str, str]:
    if error.retry_after_seconds is None:
        return {}
    return {"Retry-After": str(error.retry_after_seconds)}


def error_response(
    status: int,
    code: str,
    message: str,
    details: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    body = {"error": {"code": code, "message": message, "details": details or {}}}
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def _validation(errors: Sequence[Any]) -> tuple[int, str, str, dict[str, Any]]:
    """The first wrong field, named, with its value."""
    first = errors[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", first["msg"])
        return 400, "malformed_json", f"the body is not JSON: {why}", {}
    field = ".".join(place[1:]) or place[0]
    value = shorten(first.get("input"))
    details = {"field": field, "value": value, "in": place[0]}
    return 422, "invalid_field", f"{field}={value}: {first['msg']}", details

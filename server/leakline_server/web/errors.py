"""Error handlers: errors under /api are JSON, and pages show the same message as HTML."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from .. import logs
from ..errors import (
    InvalidField,
    RequestRefused,
    Unauthorized,
    Unavailable,
    damaged_data_set_aside,
    database_damaged,
    database_moved,
    disk_full,
    shorten,
)
from ..store.engine import DATABASE_ERRORS, DatabaseMoved, is_damaged, without_content
from ..store.maintenance import disk_space as full_disk
from ..store.maintenance import quarantine
from ..store.series import CorruptChunk

# (request, status, code, message) -> a page; not used for JSON routes.
ErrorPage = Callable[[Request, int, str, str], Response]

# The request scope's key for the arrival time (monotonic clock).
BEGAN: Final = "leakline.began"
_PLAIN: Final = ("/healthz", "/readyz", "/metrics")
_BUG: Final = "this is a bug in Leakline; the server log has the details"
_CODES: Final = {404: "not_found", 405: "method_not_allowed", 401: "unauthorized", 403: "forbidden"}

log = logging.getLogger("leakline")


def install(app: FastAPI, page: ErrorPage | None = None) -> None:
    """Install handlers for all errors that can occur while a request is handled."""

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
            request, error.status, error.code, error.message, error.details, headers_of(error)
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
            404: f"{path} was not found; the API is described at /api/v1/openapi.json",
            405: f"{path} does not support {request.method}",
        }.get(error.status_code, str(error.detail))
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods_of(request))
        return answer(request, error.status_code, code, message, {"path": path}, headers)

    async def database(request: Request, error: Exception) -> Response:
        engine = request.app.state.services.engine
        if full_disk.is_logged(engine, error, full_disk.SENT_AGAIN_SECONDS):
            return await refused(request, disk_full())
        if await was_damaged(request, error):
            return await ask_again(request)
        log.error("database: %s", without_content(error))
        if isinstance(error, DatabaseMoved):
            return await refused(request, database_moved())
        if is_damaged(error):
            return await refused(request, database_damaged())
        down = Unavailable(
            "database_unavailable",
            "the database is not responding; try again later",
            retry_after_seconds=2,
        )
        return await refused(request, down)

    async def was_damaged(request: Request, error: Exception) -> bool:
        """Return True if a retry may succeed because damaged data was just set aside."""
        engine = request.app.state.services.engine
        began = request.scope.get(BEGAN)
        return bool(await run_in_threadpool(quarantine.after, engine, error, began))

    async def ask_again(request: Request) -> Response:
        """Redirect a read to its own address, so that the client retries; refuse other requests."""
        if request.method not in ("GET", "HEAD"):
            return await refused(request, damaged_data_set_aside())
        # Use the original path with one leading slash, so that the redirect stays on this server.
        path, query = (
            request.scope[part].decode("latin-1") for part in ("raw_path", "query_string")
        )
        same = "/" + path.lstrip("/") + (f"?{query}" if query else "")
        return Response(status_code=307, headers={"Location": same})

    async def corrupt(request: Request, error: Exception) -> Response:
        if await was_damaged(request, error):
            return await ask_again(request)
        log.error("stored data is damaged: %s", error)
        message = f"stored data is damaged ({error}); delete the run, or restore a backup"
        return answer(request, 500, "stored_data_damaged", message)

    async def perhaps_damaged(request: Request, error: Exception) -> Response:
        if await was_damaged(request, error):
            return await ask_again(request)
        raise error

    async def gone(request: Request, error: Exception) -> Response:
        # Nobody reads this response: the client has disconnected, which needs no traceback.
        return Response(status_code=400)

    async def unforeseen(request: Request, error: Exception) -> Response:
        # Do not log the error: Starlette raises it again, and the server logs the traceback.
        return answer(request, 500, "internal_error", _BUG, _which())

    app.add_exception_handler(Exception, unforeseen)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(RequestRefused, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(CorruptChunk, corrupt)
    for sign in quarantine.SIGNS:
        app.add_exception_handler(sign, perhaps_damaged)
    for kind in DATABASE_ERRORS:
        app.add_exception_handler(kind, database)


def _methods_of(request: Request) -> list[str]:
    """Return all HTTP methods of the requested path, collected from its routes."""
    found: dict[str, set[str]] = {}
    for route in request.app.router.routes:
        path, methods = getattr(route, "path", ""), getattr(route, "methods", None)
        if methods and route.matches(request.scope)[0] is not Match.NONE:
            allowed = methods if route.include_in_schema else methods & {"HEAD"}
            found.setdefault(path, set()).update(allowed)
    # The first matching path handles the request; static files have no routes.
    return sorted(next(iter(found.values()), ("GET", "HEAD")))


def is_api(path: str) -> bool:
    return path.startswith(("/api", "/v1/")) or path in _PLAIN


def refusal_response(error: RequestRefused) -> Response:
    return error_response(error.status, error.code, error.message, error.details, headers_of(error))


def bug_response() -> Response:
    return error_response(500, "internal_error", _BUG, _which())


def _which() -> dict[str, Any]:
    """Return error details with the request id, which identifies the request in the log."""
    return {"request": logs.request_id()}


def headers_of(error: RequestRefused) -> dict[str, str]:
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": 'Bearer realm="leakline"'}
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
    """Return the status, code, message and details for the first invalid field."""
    first = errors[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", first["msg"])
        return 400, "malformed_json", f"the body is not JSON: {why}", {}
    why = first["msg"].removeprefix("Value error, ")
    wrong = InvalidField(".".join(place[1:]) or place[0], first.get("input"), why)
    return wrong.status, wrong.code, wrong.message, {**wrong.details, "in": place[0]}

"""The OpenAPI document: FastAPI's output plus the ingest route, which FastAPI cannot describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from ..alerts.rules.rule_fields import NewRule, RuleChanges
from .api_schemas import Error, NewRequest, NewRun, RunChanges
from .auth.permissions import READ
from .expectations.api import Accepting
from .incidents.api import Acknowledging, Closing
from .ingest.api import PATH, openapi_entry
from .responses import json_response
from .token_routes import NewToken
from .webhook_api import NewWebhook, WebhookChanges

# Models of request bodies. FastAPI does not see these models, because the routes read the bodies themselves.
BODIES: Final[tuple[type[BaseModel], ...]] = (
    NewRun, NewRequest, RunChanges, NewWebhook, WebhookChanges, Acknowledging, Closing,
    NewRule, RuleChanges, NewToken, Accepting, Error,
)  # fmt: skip

router = APIRouter(include_in_schema=False, dependencies=[READ])


@router.head("/api/v1/openapi.json")
@router.get("/api/v1/openapi.json")
def show(request: Request) -> Response:
    return json_response(request.app.openapi())


def install(app: FastAPI) -> None:
    """Install the generator of the OpenAPI document.

    FastAPI's page for the document is not used: that page loads scripts from another host.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _build(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(
        title="Leakline", version=app.version, description=app.description, routes=app.routes
    )
    sent = openapi_entry()
    _, bodies = models_json_schema(
        [(model, "validation") for model in BODIES],
        ref_template="#/components/schemas/{model}",
    )
    components = found.setdefault("components", {}).setdefault("schemas", {})
    described = {**components, **bodies.get("$defs", {})}
    entry, schemas = _apart(sent, described)
    found["components"]["schemas"] = {**described, **schemas}
    found["paths"][PATH] = entry
    for item in found["paths"].values():
        for operation in item.values():
            _tell_refusals(operation)
    _describe_access(found)
    for unused in ("HTTPValidationError", "ValidationError"):
        found["components"]["schemas"].pop(unused, None)
    return found


def _apart(sent: tuple[Any, Any], described: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Rename batch schemas whose names also belong to response schemas with other fields."""
    names = {name: f"Sent{name}" for name in sent[1] if name in described}
    text = msgspec.json.encode(sent).decode()
    for name, own in names.items():
        text = text.replace(f'"{_REFERENCE}{name}"', f'"{_REFERENCE}{own}"')
    entry, schemas = msgspec.json.decode(text)
    return entry, {names.get(name, name): schema for name, schema in schemas.items()}


_REFERENCE: Final = "#/components/schemas/"
# Errors that every operation may return, and errors of operations with a body. An operation's own
# descriptions take precedence.
_ALWAYS: Final[Mapping[str, str]] = {
    "400": "a malformed HTTP request, or a URL that is too long",
    "403": "the host, origin or token is not allowed",
    "413": "the address and the headers exceed 64 KiB",
    "503": "the database is not responding; see Retry-After",
}
_WITH_BODY: Final[Mapping[str, str]] = {
    "400": "not JSON, damaged compression, nesting that is too deep, or an incomplete body",
    "413": "more than 256 KiB",
    "415": "a content encoding other than gzip, zstd and identity",
    "422": "a field is invalid; details contains its name and value",
    "429": "too many requests in progress, or a daily limit is reached; see Retry-After",
}
_ERROR: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}


def _tell_refusals(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        # This is FastAPI's default validation error, which we never return.
        del responses["422"]
    for status, why in _refusals(operation):
        responses.setdefault(status, {"description": why, "content": dict(_ERROR)})
    for status, response in responses.items():
        if status >= "400" and "application/json" not in response.get("content", {}):
            # FastAPI assumes that errors have the same content type as successful responses.
            response["content"] = dict(_ERROR)
    # A request that cannot be parsed is answered in plain text.
    responses["400"]["content"]["text/plain"] = {"schema": {"type": "string"}}


def _refusals(operation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "requestBody" in operation:
        yield from _WITH_BODY.items()
    elif operation.get("parameters"):
        yield "422", _WITH_BODY["422"]
    yield from _ALWAYS.items()


def _describe_access(found: dict[str, Any]) -> None:
    """Describe the scope that each operation requires. The last declared scope counts."""
    for item in found["paths"].values():
        for operation in item.values():
            if "security" not in operation:
                continue
            need = operation["security"][0]["token"][-1]
            # The empty alternative means no token, for servers with authentication off.
            operation["security"] = [{"token": [need]}, {}]
            operation["description"] = (
                f"{operation.get('description', '')}\n\n{_NEEDS[need]}".strip()
            )
            _answers(operation, 401, "authentication is on, and the request has no valid token")
            _answers(operation, 429, "too many wrong tokens from this address; see Retry-After")


def _answers(operation: dict[str, Any], status: int, text: str) -> None:
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    described = {"description": text, "content": {"application/json": error}}
    operation["responses"].setdefault(str(status), described)


_NEEDS: Final = {
    "add": "If authentication is on, this requires an ingest token of the project or an administrator.",
    "see": "If authentication is on, this requires a read token, a link to this run, or an administrator.",
    "read": "If authentication is on, this requires a read token or an administrator.",
    "change": "If authentication is on, this requires an administrator.",
}

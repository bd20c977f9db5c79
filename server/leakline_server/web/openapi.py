"""OpenAPI: what the framework knows, and the ingest route, which it does not."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from .incident_schemas import Acknowledging, Closing
from .ingest_api import PATH, openapi_entry
from .rule_schemas import NewRule, RuleChanges
from .schemas import Error, NewRequest, NewRun, RunChanges
from .webhook_schemas import NewWebhook, WebhookChanges

# What the routes read by themselves, so that the framework does not know of it.
BODIES: Final[tuple[type[BaseModel], ...]] = (
    NewRun, NewRequest, RunChanges, NewWebhook, WebhookChanges, Acknowledging, Closing,
    NewRule, RuleChanges, Error,
)  # fmt: skip


def install(app: FastAPI) -> None:
    """No page that shows it: the usual one loads its scripts from another host."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _build(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(
        title="Leakline", version=app.version, description=app.description, routes=app.routes
    )
    entry, schemas = openapi_entry()
    _, bodies = models_json_schema(
        [(model, "validation") for model in BODIES],
        ref_template="#/components/schemas/{model}",
    )
    components = found.setdefault("components", {}).setdefault("schemas", {})
    # The wire's own types win over answers of the same name: they are what is sent.
    found["components"]["schemas"] = {**components, **bodies.get("$defs", {}), **schemas}
    found["paths"][PATH] = entry
    return found

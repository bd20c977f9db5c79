"""`POST /api/v1/runs/{run}/batches`: the hot route, as plain ASGI because a framework's would cost more than the work.

1. read the body, bounded in bytes and seconds   2. inflate and check (`ingest.py`)
3. hand it to the writer and wait until it is durable   4. answer, with what this process is asked to look at

The entry in OpenAPI is made from the very types that decode the body.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from .. import ingest
from ..errors import Conflict, RequestRefused, instance_in_use, run_not_found, shorten
from ..live import Live
from ..store.incoming import Accepted, Contradiction, OtherIdentity, Outcome, UnknownRun
from ..store.wire import Batch
from .bodies import read_body
from .metrics import Metrics
from .services import Services

PATH: Final = "/api/v1/runs/{run}/batches"
_HEADERS: Final = [(b"content-type", b"application/json")]


class IngestRoute:
    """An ASGI application for one path; ``services`` is on the application's state."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services: Services = scope["app"].state.services
        run_id = scope["path_params"]["run"]
        headers = {
            k: v for k, v in scope["headers"] if k in (b"content-encoding", b"content-length")
        }
        try:
            body = await _read(receive, headers, services.live)
            encoding = headers.get(b"content-encoding", b"").decode("latin-1")
            batch = ingest.check(run_id, ingest.inflate(body, encoding), time.time())
            accepted = _accepted(run_id, await services.writer.store(batch))
        except ClientDisconnect:
            return
        except RequestRefused as error:
            self._metrics.refused(error.code)
            raise
        services.requests.answered(run_id, batch.details.get("events", ()))
        wishes = services.requests.of(run_id, batch.process.rank)
        answer = msgspec.json.encode({"accepted": accepted, "requests": wishes})
        length = str(len(answer)).encode()
        start: Message = {"type": "http.response.start", "status": 200}
        start["headers"] = [*_HEADERS, (b"content-length", length)]
        await send(start)
        await send({"type": "http.response.body", "body": answer})


def _accepted(run_id: str, outcome: Outcome) -> int:
    if isinstance(outcome, Accepted):
        return outcome.count
    if isinstance(outcome, UnknownRun):
        raise run_not_found(run_id)
    if isinstance(outcome, OtherIdentity):
        raise instance_in_use(outcome.instance, outcome.field, outcome.stored, outcome.sent)
    raise _conflict(outcome)


def _conflict(found: Contradiction) -> Conflict:
    stored, sent = shorten(found.stored), shorten(found.sent)
    return Conflict(
        "sequence_contradiction",
        f"snapshot {found.sequence} is stored with {found.field}={stored}, this batch says {sent}; "
        "a sequence number stands for one snapshot, and every process needs an instance of its own",
        {"sequence": found.sequence, "field": found.field, "stored": stored, "sent": sent},
    )


async def _read(receive: Receive, headers: Mapping[bytes, bytes], live: Live) -> bytes:
    limit, what = ingest.MAX_BODY_BYTES, "compressed"
    if headers.get(b"content-encoding", b"identity").strip().lower() in (b"", b"identity"):
        limit, what = ingest.MAX_INFLATED_BYTES, "in all"
    return await read_body(receive, headers, ingest.too_large(limit, what), limit, live)


def openapi_entry() -> tuple[dict[str, Any], dict[str, Any]]:
    """(the path item, the schemas it uses)"""
    (root,), schemas = msgspec.json.schema_components(
        (Batch,), ref_template="#/components/schemas/{name}"
    )
    error = {"$ref": "#/components/schemas/Error"}
    refusals = {
        "400": "not JSON, damaged compression, or a body that did not arrive",
        "404": "no such run",
        "409": "a sequence number is stored with other values, or the instance with another rank or attempt",
        "413": "more than 256 KiB compressed or 2 MiB inflated",
        "415": "a content encoding other than gzip, zstd and identity",
        "422": "a field is wrong: named in details, with its value",
        "429": "too many batches wait; see Retry-After",
        "503": "the database does not take writes; see Retry-After",
    }
    operation = {
        "operationId": "add_batch",
        "tags": ["runs"],
        "summary": "Add snapshots to a run",
        "description": "Idempotent by (process instance, sequence number): what is stored already counts 0, an "
        "overlap is trimmed. The answer comes after the snapshots are durable. Columns with count, or rows in "
        "snapshots; gzip or zstd by Content-Encoding.",
        "parameters": [{"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": root}}},
        "responses": {
            "200": {
                "description": "stored",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Accepted"}}},
            },
            **{
                status: {"description": text, "content": {"application/json": {"schema": error}}}
                for status, text in refusals.items()
            },
        },
    }  # fmt: skip
    schemas["Accepted"] = {
        "type": "object",
        "required": ["accepted", "requests"],
        "properties": {
            "accepted": {"type": "integer", "description": "snapshots that were new"},
            "requests": {
                "type": "array",
                "description": "what this process is asked for, until an event of kind mark tells the outcome "
                'with {"request": id} as its data; a client may ignore it',
                "items": {
                    "type": "object",
                    "required": ["id", "kind", "asked_by"],
                    "properties": {
                        "id": {"type": "string"},
                        "kind": {"type": "string", "enum": ["find_holders", "census", "cleanup"]},
                        "type": {
                            "type": "string",
                            "description": "full name of a class, for find_holders",
                        },
                        "asked_by": {"type": "string", "enum": ["person", "server"]},
                    },
                },
            },
        },
    }
    return {"post": operation}, schemas

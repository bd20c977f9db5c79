"""`POST /api/v1/runs/{run}/batches`: the hot route, in plain ASGI to avoid framework overhead.

1. read the body, with limits on size and time
2. decompress and validate it (`ingest/decode.py`)
3. pass it to the writer and wait until it is durable
4. respond, with the pending requests for this process

The OpenAPI entry is generated from the types that decode the body.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from leakline.snapshot import CONTENT_TYPE

from ...errors import (
    Conflict,
    RequestRefused,
    run_not_found,
    shorten,
    too_many_bytes,
    too_many_processes,
)
from ...ingest import decode
from ...limits import MAX_BODY_BYTES, MAX_INFLATED_BYTES
from ...store.ingest.incoming_batch import (
    Accepted,
    Contradiction,
    OtherIdentity,
    Outcome,
    TooManyBytes,
    TooManyProcesses,
    UnknownRun,
)
from ...store.ingest.wire_types import Batch
from ..auth.authenticator import ANYBODY, Caller
from ..auth.middleware import AuthMiddleware, Guard
from ..auth.permissions import ADD, reads_what_is_stored, refusal_of_process
from ..errors import refusal_response
from ..metrics import Metrics
from ..request_bodies import read_body
from ..responses import EVERY_ANSWER, completing
from ..services import Services

PATH: Final = "/api/v1/runs/{run}/batches"
MAX_KNOWN_HOSTS: Final = 64
# Ten compressed snapshots of a training run take a quarter of this limit.
QUICK_BODY_BYTES: Final = 4 * 1024
_BEFORE, _AFTER = PATH.split("{run}")
_HEADERS: Final = [(b"content-type", b"application/json"), *EVERY_ANSWER]


class Ingest:
    """The endpoint, as an ASGI application that authenticates batches itself.

    Batches from programs bypass the framework's middleware, which costs as much as storing a
    snapshot. Requests with an unknown host or an Origin go through the middleware.
    """

    dependencies = (ADD,)

    def __init__(
        self, services: Services, metrics: Metrics, guard: Guard, authentication: AuthMiddleware
    ) -> None:
        self._services, self._metrics, self._guard, self._authentication = (
            services,
            metrics,
            guard,
            authentication,
        )
        self._asked = services.callers.asked
        self._hosts: set[bytes] = set()

    def run_of(self, scope: Scope) -> str | None:
        """Return the run id of a batch that can bypass the middleware, or None for other requests."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope.get("root_path"):
            return None
        path: str = scope["path"]
        if not (path.startswith(_BEFORE) and path.endswith(_AFTER)):
            return None
        run_id = path[len(_BEFORE) : -len(_AFTER)]
        if not run_id or "/" in run_id or not self._is_program(scope["headers"]):
            return None
        return run_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run_id = scope["path_params"]["run"]
        try:
            caller = await self._authentication.admit(scope, "add") if self._asked else ANYBODY
            answer = await _answer(self._services, run_id, scope, receive, caller)
        except ClientDisconnect:
            return
        except RequestRefused as error:
            self._metrics.refused(error.code)
            await refusal_response(error)(scope, receive, completing(scope, send))
            return
        await _send(send, answer)

    def _is_program(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        host = b""
        for name, value in headers:
            if name == b"origin":
                return False
            if name == b"host":
                host = value
        if host in self._hosts:
            return True
        if not self._guard.allows_host(host):
            return False
        if len(self._hosts) < MAX_KNOWN_HOSTS:
            self._hosts.add(host)
        return True


async def _answer(
    services: Services, run_id: str, scope: Scope, receive: Receive, caller: Caller
) -> bytes:
    """Store a batch and return the response body. Raises RequestRefused and ClientDisconnect."""
    headers = {k: v for k, v in scope["headers"] if k in (b"content-encoding", b"content-length")}
    project = caller.project
    sender = services.writer.sender(run_id, project)
    body = await _read(receive, headers, services, sender.project)
    services.writer.refuse_when_full(sender)
    encoding = headers.get(b"content-encoding", b"").decode("latin-1")
    if len(body) <= QUICK_BODY_BYTES:
        batch = decode.check(run_id, decode.inflate(body, encoding), time.time())
    else:
        with services.coming.holding(len(body), sender.project):
            async with services.checking.turn(sender, len(body)):
                batch = decode.check(run_id, decode.inflate(body, encoding), time.time())
    if project is not None:
        batch = replace(batch, project=project, browser=caller.browser)
    accepted = _accepted(run_id, await services.writer.store(batch), project)
    services.requests.answered(run_id, batch.details.get("events", ()))
    wishes = services.requests.of(run_id, batch.process.rank)
    return msgspec.json.encode({"accepted": accepted, "requests": wishes})


async def _send(send: Send, answer: bytes) -> None:
    length = str(len(answer)).encode()
    start: Message = {"type": "http.response.start", "status": 200}
    start["headers"] = [*_HEADERS, (b"content-length", length)]
    await send(start)
    await send({"type": "http.response.body", "body": answer})


def _accepted(run_id: str, outcome: Outcome, project: str | None) -> int:
    if isinstance(outcome, Accepted):
        return outcome.count
    if isinstance(outcome, UnknownRun):
        raise run_not_found(run_id)
    if isinstance(outcome, TooManyProcesses):
        raise too_many_processes(outcome.run_id, outcome.limit)
    if isinstance(outcome, TooManyBytes):
        raise too_many_bytes(outcome.project, outcome.limit, outcome.wait_seconds, outcome.browser)
    if isinstance(outcome, OtherIdentity):
        raise refusal_of_process(outcome, project)
    raise _conflict(outcome, project)


def _conflict(found: Contradiction, project: str | None) -> Conflict:
    sent = shorten(found.sent)
    details = {"sequence": found.sequence, "field": found.field, "sent": sent}
    known = f"another {found.field}"
    if reads_what_is_stored(project):
        details["stored"] = shorten(found.stored)
        known = f"{found.field}={details['stored']}"
    return Conflict(
        "sequence_contradiction",
        f"snapshot {found.sequence} is already stored with {known}, but this batch has {sent}; a "
        "sequence number identifies one snapshot, so every process needs its own instance",
        details,
    )


async def _read(
    receive: Receive, headers: Mapping[bytes, bytes], use: Services, project: str
) -> bytes:
    limit, what = MAX_BODY_BYTES, "compressed"
    if headers.get(b"content-encoding", b"identity").strip().lower() in (b"", b"identity"):
        limit, what = MAX_INFLATED_BYTES, "in total"
    refuse = partial(decode.too_large, limit, what)
    return await read_body(receive, headers, refuse, limit, use.live, use.coming, project)


def openapi_entry() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the OpenAPI path item and its schemas."""
    (root,), schemas = msgspec.json.schema_components(
        (Batch,), ref_template="#/components/schemas/{name}"
    )
    error = {"$ref": "#/components/schemas/Error"}
    refusals = {
        "400": "not JSON, inconsistent lengths, damaged compression, or an incomplete body",
        "401": "authentication is on, and the request has no valid token",
        "403": "the token does not allow adding data, or the request comes from a page whose origin is not allowed",
        "404": "no such run, or a run of a project that the token cannot add to",
        "409": "a sequence number is already stored with other values, or the instance has another rank",
        "413": "more than 256 KiB compressed or 2 MiB inflated",
        "415": "a content encoding other than gzip, zstd and identity",
        "422": "a field is invalid; details contains its name and value",
        "429": "too many batches are waiting; see Retry-After",
        "503": "the database does not accept writes; see Retry-After",
    }
    operation = {
        "operationId": "add_batch",
        "security": [{"token": ["add"]}],
        "tags": ["runs"],
        "summary": "Add snapshots to a run",
        "description": "Idempotent by (process instance, sequence number): snapshots that are "
                       "already stored are not counted, and an overlap is trimmed. The response is "
                       "sent when the snapshots are durable. A JSON body has columns with count, or "
                       "rows in snapshots; the docstring of leakline.snapshot describes the binary "
                       "form that the Python client sends. Content-Encoding may be gzip or zstd.",
        "parameters": [{"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": root},
                CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}},
            },
        },
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
            "accepted": {"type": "integer", "description": "number of new snapshots"},
            "requests": {
                "type": "array",
                "description": "pending requests to this process, each repeated until an event of "
                'kind mark reports its outcome with {"request": id} as data; a client may '
                "ignore requests",
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

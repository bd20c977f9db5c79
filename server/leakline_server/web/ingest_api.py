"""`POST /api/v1/runs/{run}/batches`: the hot route, as plain ASGI because a framework's would cost more than the work.

`Hot` takes what our clients send past the framework; `IngestRoute` is the same route within it, for everything else.

1. read the body, bounded in bytes and seconds   2. inflate and check (`ingest.py`)
3. hand it to the writer and wait until it is durable   4. answer, with what this process is asked to look at

The entry in OpenAPI is made from the very types that decode the body.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
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
from .errors import bug_response, refusal_response
from .guard import Guard
from .metrics import Metrics
from .services import Services

PATH: Final = "/api/v1/runs/{run}/batches"
MAX_KNOWN_HOSTS: Final = 64
_BEFORE, _AFTER = PATH.split("{run}")
_HEADERS: Final = [(b"content-type", b"application/json")]


class IngestRoute:
    """An ASGI application for one path; ``services`` is on the application's state. Raises RequestRefused."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services: Services = scope["app"].state.services
        try:
            answer = await _answer(services, scope["path_params"]["run"], scope, receive)
        except ClientDisconnect:
            return
        except RequestRefused as error:
            self._metrics.refused(error.code)
            raise
        await _send(send, answer)


class Hot:
    """Batches of programs, before anything of the framework is asked: its layers cost as much as storing a snapshot.

    Whatever is not plainly one goes on to the application: another path or method, an unknown host, a page's origin.
    """

    def __init__(self, services: Services, metrics: Metrics, guard: Guard) -> None:
        self._services, self._metrics, self._guard = services, metrics, guard
        self._hosts: set[bytes] = set()

    def run_of(self, scope: Scope) -> str | None:
        """The run that this request brings a batch of; None: it is for the application."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope.get("root_path"):
            return None
        path: str = scope["path"]
        if not (path.startswith(_BEFORE) and path.endswith(_AFTER)):
            return None
        run_id = path[len(_BEFORE) : -len(_AFTER)]
        if not run_id or "/" in run_id or not self._is_program(scope["headers"]):
            return None
        return run_id

    async def take(self, run_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await _answer(self._services, run_id, scope, receive)
        except ClientDisconnect:
            return
        except RequestRefused as error:
            self._metrics.refused(error.code)
            await refusal_response(error)(scope, receive, send)
            return
        except Exception:
            await bug_response()(scope, receive, send)
            # The server logs it with its traceback.
            raise
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


async def _answer(services: Services, run_id: str, scope: Scope, receive: Receive) -> bytes:
    """Raises RequestRefused and ClientDisconnect."""
    headers = {k: v for k, v in scope["headers"] if k in (b"content-encoding", b"content-length")}
    body = await _read(receive, headers, services.live)
    encoding = headers.get(b"content-encoding", b"").decode("latin-1")
    batch = ingest.check(run_id, ingest.inflate(body, encoding), time.time())
    accepted = _accepted(run_id, await services.writer.store(batch))
    services.requests.answered(run_id, batch.details.get("events", ()))
    wishes = services.requests.of(run_id, batch.process.rank)
    return msgspec.json.encode({"accepted": accepted, "requests": wishes})


async def _send(send: Send, answer: bytes) -> None:
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
        "409": "a sequence number is stored with other values, or the instance with another rank",
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

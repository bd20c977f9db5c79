"""`POST /v1/metrics`: metrics from OpenTelemetry SDKs, if `leakline[otlp]` is installed.

1. read and decompress the body, with limits on size and time
2. decode and map the metrics (`otlp_metrics.py`)
3. join the run of each resource, and number the snapshots that are not stored yet
4. validate and write the snapshots like a batch (`decode.py`, `writer.py`)
5. respond when the snapshots are durable

Exporters repeat requests that received no response, and may split a collection into several
requests (`otlp_streams.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from leakline.snapshot import Batch, Snapshot, batch_to_bytes
from leakline.transport.batching import consecutive, within

from ...errors import (
    Conflict,
    RequestRefused,
    TooBusy,
    TooLarge,
    Unavailable,
    run_not_found,
    too_many_bytes,
)
from ...ingest import decode, otlp_metrics
from ...ingest.fair_queue import Sender
from ...limits import MAX_BODY_BYTES, MAX_INFLATED_BYTES
from ...store import snapshot_rows
from ...store.ingest.incoming_batch import (
    Accepted,
    Contradiction,
    Incoming,
    OtherIdentity,
    TooManyBytes,
)
from ...store.runs import run_registration
from .. import api_schemas
from ..auth.authenticator import calling
from ..auth.permissions import ADD, may_add_to, project_of, refusal_of_process, refusal_to_join
from ..errors import error_response
from ..request_bodies import read_body
from ..runs.registration import join
from ..services import Services, Use
from .otlp_streams import REMEMBERED, Stream, Streams

PATH: Final = "/v1/metrics"
# Number of attempts to store; another server on the same database may use the same sequence numbers.
TRIES: Final = 3
NOT_INSTALLED: Final = 501
MESSAGE: Final = "this server does not accept OTLP; install the extra: pip install 'leakline[otlp]'"

router = APIRouter(tags=["runs"], dependencies=[ADD])


def _error(text: str) -> dict[str, Any]:
    return {"model": api_schemas.Error, "description": text}


@router.post(
    PATH,
    summary="Receive OpenTelemetry metrics",
    response_model=None,
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "ExportMetricsServiceRequest; Content-Encoding may be gzip or zstd.",
            "content": {
                otlp_metrics.PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
                otlp_metrics.JSON: {"schema": {"type": "object"}},
            },
        }
    },
    responses={
        200: {"description": "the metrics are stored; ExportMetricsServiceResponse in the content type of the request"},
        404: _error("a project that the token cannot add to"),
        400: _error("a body that does not match its content type, damaged compression, or an incomplete body"),
        409: _error("the run belongs to another project, or other values are stored"),
        413: _error("more than 256 KiB compressed or 2 MiB inflated, or too many points"),
        415: _error("a content type or encoding that is not supported"),
        422: _error("a resource that cannot be distinguished from others, or an impossible value; see details"),
        429: _error("too many batches are waiting; see Retry-After"),
        501: _error("the extra leakline[otlp] is not installed on this server"),
        503: _error("the database does not accept writes; see Retry-After"),
    },
)  # fmt: skip
async def add_metrics(request: Request, use: Use) -> Response:
    """Create a run for each `service.instance.id` and store its memory metrics. The supported
    metrics are listed in docs/other-tools.md.
    """
    # The call runs on a thread, because the first call imports the package, which is slow.
    if not await run_in_threadpool(otlp_metrics.is_installed):
        return error_response(NOT_INSTALLED, "otlp_not_installed", MESSAGE)
    kind = request.headers.get("content-type", "")
    try:
        body = await _body(request, use)
        resources = [
            _of_project(resource)
            for resource in await run_in_threadpool(otlp_metrics.read_request, body, kind)
        ]
        for resource in resources:
            may_add_to(resource.header.project)
        late = await _store_each(request.app.state.otlp, use, resources)
    except ClientDisconnect:
        return Response(status_code=400)
    except RequestRefused as error:
        request.app.state.metrics.refused(error.code)
        raise
    form = kind.partition(";")[0].strip().lower()
    nothing = bool(resources) and not any(resource.snapshots for resource in resources)
    return Response(otlp_metrics.answer(form, nothing, late), media_type=form)


def _of_project(resource: otlp_metrics.ResourceSnapshots) -> otlp_metrics.ResourceSnapshots:
    if resource.names_project:
        return resource
    project = project_of(None, otherwise=resource.header.project)
    return resource.of_project(project)


async def _body(request: Request, use: Services) -> bytes:
    headers = dict(request.scope["headers"])
    encoding = headers.get(b"content-encoding", b"").decode("latin-1")
    plain = encoding.strip().lower() in ("", "identity")
    limit = MAX_INFLATED_BYTES if plain else MAX_BODY_BYTES
    refuse = partial(_too_large, limit, "in total" if plain else "compressed")
    body = await read_body(request.receive, headers, refuse, limit, use.live, use.coming)
    try:
        return decode.inflate(body, encoding)
    except TooLarge as error:
        raise _too_large(MAX_INFLATED_BYTES, "inflated") from error


def _too_large(limit_bytes: int, what: str) -> TooLarge:
    return TooLarge(
        "request_too_large",
        f"the body has more than {limit_bytes} bytes {what}; export fewer metrics at a time",
        {"limit_bytes": limit_bytes},
    )


async def _store_each(
    streams: Streams, use: Services, resources: Sequence[otlp_metrics.ResourceSnapshots]
) -> int:
    """Store all resources, and return the number of points that arrived too late.

    If a resource is refused, the other resources are still stored.
    """
    late, refusals = 0, []
    for resource in resources:
        try:
            late += await _store(streams, use, resource) if resource.snapshots else 0
        except (TooBusy, Unavailable):
            # The exporter will send the entire request again.
            raise
        except RequestRefused as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]
    return late


async def _store(streams: Streams, use: Services, resource: otlp_metrics.ResourceSnapshots) -> int:
    stream = streams.of(resource.header.project, resource.header.id)
    async with stream.lock:
        for tries in range(1, TRIES + 1):
            if not stream.joined:
                # Validate first, so that a request that is refused does not create a run.
                await run_in_threadpool(_checked, resource, resource.snapshots, 0)
                async with use.adding.turn(Sender(resource.header.project, resource.header.id), 1):
                    await run_in_threadpool(_join, use, resource, stream)
            stream.follow_clock(resource.snapshots[0].time, time.time())
            newer, late = stream.news(resource.snapshots)
            if await _stored(use, resource, stream, newer, last=tries == TRIES):
                return late
    return 0


def _join(use: Services, resource: otlp_metrics.ResourceSnapshots, stream: Stream) -> None:
    """Create or join the run, and load its newest stored snapshots."""
    try:
        join(use, resource.header, time.time(), resource.process)
    except run_registration.OtherProject as error:
        raise refusal_to_join(
            resource.header.id,
            error.project,
            f"{resource.header.name} belongs to project {error.project!r}, not to {resource.header.project!r}; "
            "give it another service.instance.id",
        ) from error
    found = snapshot_rows.list_snapshots(use.engine, resource.header.id, ("*",), REMEMBERED, None)[
        "items"
    ]
    stream.forget()
    for row in reversed(found):
        stream.remember(
            row["sequence"], row["time"], row["generation"], row["phase"], row["samples"]
        )
    stream.joined = True


async def _stored(
    use: Services,
    resource: otlp_metrics.ResourceSnapshots,
    stream: Stream,
    newer: Sequence[Snapshot],
    *,
    last: bool,
) -> bool:
    """Store the snapshots; return False if the remembered state of the run is outdated.

    Raises RequestRefused.
    """
    # Validate all snapshots before storing the first, so that a request is refused as a whole.
    for few, batch in await run_in_threadpool(_checked, resource, newer, stream.sequence):
        outcome = await use.writer.store(batch)
        if isinstance(outcome, Accepted) and outcome.count == len(few):
            for s in few:
                stream.remember(s.sequence, s.time, s.generation, s.phase, s.samples)
            continue
        # The run was removed, or another server used the same sequence number.
        stream.joined = False
        if not last:
            return False
        raise _refusal(resource, outcome)
    return True


def _checked(
    resource: otlp_metrics.ResourceSnapshots, snapshots: Sequence[Snapshot], after: int
) -> list[tuple[tuple[Snapshot, ...], Incoming]]:
    """Return pairs (snapshots, batch); each batch contains its snapshots, numbered from ``after`` + 1.

    Raises RequestRefused.
    """
    numbered = (replace(s, sequence=after + i) for i, s in enumerate(snapshots, 1))
    checked = []
    for part in within(numbered):
        for few in consecutive(part):
            body = batch_to_bytes(Batch(resource.process, few))
            batch = decode.check(resource.header.id, body, time.time())
            # The run may have been recreated in another project; the writer checks the project.
            batch = replace(batch, project=resource.header.project, browser=calling.get().browser)
            checked.append((few, batch))
    return checked


def _refusal(resource: otlp_metrics.ResourceSnapshots, outcome: Any) -> RequestRefused:
    if isinstance(outcome, OtherIdentity):
        return refusal_of_process(outcome, calling.get().project)
    if isinstance(outcome, TooManyBytes):
        return too_many_bytes(outcome.project, outcome.limit, outcome.wait_seconds, outcome.browser)
    if isinstance(outcome, (Accepted, Contradiction)):
        message = f"more than one server numbers the snapshots of {resource.header.name}; send them to a single server"
        return Conflict("sequence_contradiction", message, {"run": resource.header.id})
    return run_not_found(resource.header.id)

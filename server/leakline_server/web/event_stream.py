"""`GET /api/v1/runs/{run}/live`: updates of a run as server-sent events.

Each read of the database starts from the revision that was sent last. A stream that is reopened
with its last id therefore misses nothing, even if another server continues it. All viewers of the same
samples of a run receive the same bytes (`live_updates.py`), at most four times a second. A stream
ends when the server stops.

    snapshots  {"process", "rows": [{sequence, time, generation, phase, kind, label, samples}]}
    verdict    the verdict, as in the API
    run        the RunSummary
    reload     {} - the page missed too many messages to receive them all, and should reload

Rows may arrive twice (after sealing, or across a reconnect); (process, sequence) identifies a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Header, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import TooBusy, run_not_found
from ..limits import MAX_INTEGER, MAX_LIVE_STREAMS, MAX_NAME_LENGTH, MAX_NAMES_ASKED
from ..live_updates import Read, Update, Viewer
from ..store import findings, snapshot_rows
from ..store.engine import Engine
from ..store.runs import runs
from ..store.runs.run_history import NoSuchRun
from ..store.snapshot_rows import HEADLINE, News
from . import api_schemas
from .api_schemas import RunId
from .auth.permissions import READ, SEE
from .services import Services, Use

ROWS_PER_MESSAGE: Final = 500
# The delay before the browser reconnects.
RETRY_MILLISECONDS: Final = 1_000

_RETRY: Final = f"retry: {RETRY_MILLISECONDS}\n".encode()
_BEAT: Final = b": still here\n\n"

router = APIRouter(prefix="/api/v1", dependencies=[READ])


class _LiveStream(Response):
    """A stream of events that continues until the client or the server ends the response."""

    media_type = "text/event-stream"

    def __init__(
        self,
        use: Services,
        run: str,
        names: tuple[str, ...],
        known: int | None,
        # FastAPI reads this default when it generates the OpenAPI document.
        status_code: int = 200,
    ) -> None:
        self.status_code, self.background = status_code, None
        # A buffering proxy would delay live updates.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._live, self._run, self._names, self._known = use.live, run, names, known
        self._read: Read = partial(_read_update, use.engine, run, names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._live.viewing(self._run, self._names, self._read) as viewer:
            try:
                # Read before the stream starts, because an error cannot be reported once bytes have
                # been sent.
                data: bytes | None = await viewer.begin(self._known)
            except NoSuchRun as error:
                raise run_not_found(self._run) from error
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            leaving = asyncio.create_task(_until_it_leaves(receive, viewer))
            try:
                if data:
                    await send(_part(data))
                while (data := await viewer.news()) is not None:
                    await send(_part(data or _BEAT))
            finally:
                leaving.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _part(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _until_it_leaves(receive: Receive, viewer: Viewer) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
    viewer.gone = True
    viewer.event.set()


def _existing_run(run: RunId, use: Use) -> str:
    if runs.get_summary(use.engine, run) is None:
        raise run_not_found(run)
    return run


_EVENTS: Final[dict[str, Any]] = {
    "description": "a stream of events that continues until the server or the client ends it",
    "content": {
        "text/event-stream": {
            "schema": {
                "type": "object",
                "required": ["event", "data"],
                "properties": {
                    "event": {"type": "string", "enum": ["reload", "snapshots", "verdict", "run"]},
                    "data": {"type": "string", "description": "JSON"},
                    "id": {"type": "string", "description": "for Last-Event-ID"},
                    "retry": {"type": "integer"},
                },
            }
        }
    },
}


@router.get(
    "/runs/{run}/live",
    dependencies=[SEE],
    tags=["samples"],
    summary="Live updates as server-sent events",
    response_class=_LiveStream,
    responses={200: _EVENTS, 404: {"model": api_schemas.Error, "description": "no such run"}},
)
async def live(
    run: Annotated[str, Depends(_existing_run)],
    use: Use,
    name: Annotated[
        list[Annotated[str, Field(max_length=MAX_NAME_LENGTH)]] | None,
        Query(max_length=MAX_NAMES_ASKED),
    ] = None,
    since: Annotated[int | None, Query(ge=0, le=MAX_INTEGER)] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """`since` is the `revision` that the page shows; on a reconnect, Last-Event-ID is used instead.
    If neither is given, the stream begins with the current state of the run. `name` selects the
    samples in each row.
    """
    if use.live.listeners >= MAX_LIVE_STREAMS:
        raise TooBusy(
            "too_many_streams",
            f"{MAX_LIVE_STREAMS} live streams are open, which is the maximum; close some pages, or read the run "
            "without a stream",
            retry_after_seconds=30,
        )
    return _LiveStream(use, run, tuple(name or HEADLINE), _known(last_event_id, since))


def _known(last_event_id: str | None, since: int | None) -> int | None:
    """Return the revision that the client already has, or None for a new client."""
    if last_event_id is not None and re.fullmatch(r"\d{1,15}", last_event_id):
        return int(last_event_id)
    return since


async def _read_update(
    engine: Engine, run: str, names: tuple[str, ...], known: int | None
) -> Update:
    return await run_in_threadpool(_read, engine, run, names, known)


def _read(engine: Engine, run: str, names: tuple[str, ...], known: int | None) -> Update:
    """Read the changes since revision ``known`` from the database. Raises NoSuchRun."""
    news = snapshot_rows.news(engine, run, known, names)
    data = b"" if known == news.revision else b"".join(_events(engine, run, news, known))
    return Update(known, news.revision, data)


def _events(engine: Engine, run: str, news: News, known: int | None) -> Iterator[bytes]:
    """Yield an update's events. Only the last event has an id: an interrupted update is sent again."""
    if news.too_much:
        yield _event("reload", {})
    for process, rows in news.rows.items():
        for at in range(0, len(rows), ROWS_PER_MESSAGE):
            yield _event(
                "snapshots", {"process": process, "rows": rows[at : at + ROWS_PER_MESSAGE]}
            )
    if known is None or news.too_much or news.verdict_revision > known:
        verdict = findings.current_verdict(engine, run)
        if verdict is not None:
            yield _event("verdict", verdict)
    summary = runs.get_summary(engine, run)
    if summary is None:
        raise NoSuchRun(run)
    yield _event("run", summary, news.revision)


def _event(kind: str, data: Any, number: int | None = None) -> bytes:
    named = b"" if number is None else b"id: %d\n" % number
    return b"event: %s\n%s%sdata: %s\n\n" % (
        kind.encode(), named, _RETRY, msgspec.json.encode(data),
    )  # fmt: skip

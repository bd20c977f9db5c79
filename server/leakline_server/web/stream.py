"""`GET /api/v1/runs/{run}/live`: what is new of a run, as server-sent events.

The database is read at every wake, from the revision sent last, so a stream that is opened again with its last id
misses nothing and several servers may serve it. At most four messages a second, and it ends when the server ends.

    snapshots  {"process", "rows": [{sequence, time, generation, phase, kind, label, samples}]}
    verdict    the verdict of the contract
    run        the RunSummary
    reload     {} - the page was away for too long to be told everything; it should read anew

Rows may come twice (after sealing); (process, sequence) tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from ..errors import run_not_found
from ..store import findings, runs, snapshots
from ..store.snapshots import HEADLINE, News
from ..store.wire import MAX_INTEGER, MAX_NAME_LENGTH
from . import schemas
from .schemas import RunId
from .services import Services, Use

COALESCE_SECONDS: Final = 0.25
ROWS_PER_MESSAGE: Final = 500
# What the browser waits before it comes back.
RETRY_MILLISECONDS: Final = 1_000

router = APIRouter(prefix="/api/v1")


@dataclass(frozen=True, slots=True)
class _Read:
    """One look at the database."""

    news: News
    summary: dict[str, Any]
    verdict: dict[str, Any] | None


def _existing_run(run: RunId, use: Use) -> str:
    """Before the first byte of the stream, because an error cannot be told after it."""
    if runs.get_summary(use.engine, run) is None:
        raise run_not_found(run)
    return run


@router.get(
    "/runs/{run}/live",
    tags=["samples"],
    summary="Live updates as server-sent events",
    response_class=EventSourceResponse,
    responses={404: {"model": schemas.Error, "description": "no such run"}},
)
async def live(
    run: Annotated[str, Depends(_existing_run)],
    use: Use,
    name: Annotated[
        list[Annotated[str, Field(max_length=MAX_NAME_LENGTH)]] | None, Query(max_length=200)
    ] = None,
    since: Annotated[int | None, Query(ge=0, le=MAX_INTEGER)] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> AsyncIterator[ServerSentEvent]:
    """`since` is the `revision` of what the page shows; on a reconnect, Last-Event-ID counts instead. Without either,
    the stream begins with what the run is now. `name` chooses the samples of the rows."""
    names = tuple(name or HEADLINE)
    known = _known(last_event_id, since)
    with use.live.listening(run) as listener:
        while True:
            found = await run_in_threadpool(_read, use, run, names, known)
            for event in _events(found, known):
                yield event
            known = found.news.revision
            await listener.pause(COALESCE_SECONDS)
            if not await listener.news():
                return


def _known(last_event_id: str | None, since: int | None) -> int | None:
    """The revision the other side has; None when it has nothing."""
    if last_event_id is not None and re.fullmatch(r"\d{1,15}", last_event_id):
        return int(last_event_id)
    return since


def _read(use: Services, run: str, names: tuple[str, ...], known: int | None) -> _Read:
    found = snapshots.news(use.engine, run, known, names)
    summary = runs.get_summary(use.engine, run)
    verdict = None
    if known is None or found.verdict_revision > known:
        verdict = findings.current_verdict(use.engine, run)
    return _Read(found, summary or {}, verdict)


def _events(found: _Read, known: int | None) -> Iterator[ServerSentEvent]:
    """The last message carries the id: what broke off before it is told again."""
    if known == found.news.revision:
        return
    if found.news.too_much:
        yield ServerSentEvent(event="reload", raw_data="{}", retry=RETRY_MILLISECONDS)
    for process, rows in found.news.rows.items():
        for at in range(0, len(rows), ROWS_PER_MESSAGE):
            yield _event(
                "snapshots", {"process": process, "rows": rows[at : at + ROWS_PER_MESSAGE]}
            )
    if found.verdict is not None:
        yield _event("verdict", found.verdict)
    yield _event("run", found.summary, str(found.news.revision))


def _event(kind: str, data: Any, number: str | None = None) -> ServerSentEvent:
    text = msgspec.json.encode(data).decode()
    return ServerSentEvent(event=kind, raw_data=text, id=number, retry=RETRY_MILLISECONDS)

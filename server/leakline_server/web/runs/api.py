"""The JSON API of runs, except ingest: create and change runs, and read all their data."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from leakline.analysis.comparison.comparison_results import Comparison
from leakline.analysis.findings.growth_tables import with_verdict
from leakline.analysis.results import PhaseAccounts, Verdict, to_json
from leakline.snapshot import ProcessIdentity, RunHeader

from ...errors import (
    Conflict,
    InvalidField,
    NotFound,
    Unavailable,
    no_room_for_notes,
    run_not_found,
    too_many_bytes,
)
from ...ingest.fair_queue import Sender
from ...limits import MAX_INTEGER, MAX_NAME_LENGTH, MAX_NAMES_ASKED, MAX_PAGE, MAX_QUERY_LENGTH
from ...store import details, engine, findings, snapshot_rows
from ...store.ingest.project_quota import TooMuchStored, patience_seconds
from ...store.maintenance import run_deletion, storage_sizes
from ...store.request_rows import Wanted
from ...store.runs import run_history, run_order, run_registration, runs
from .. import api_schemas
from ..api_schemas import RunId
from ..auth.authenticator import calling
from ..auth.permissions import (
    ADD,
    CHANGE,
    OPEN,
    READ,
    SEE,
    as_shown,
    may_add_to,
    may_only_add,
    project_of,
    refusal_to_join,
)
from ..derived_analysis import Derived
from ..request_bodies import described, json_body
from ..responses import json_response
from ..search_query import parse_query
from ..services import Services, Use, address_of
from .registration import join

router = APIRouter(prefix="/api/v1", dependencies=[READ])
health = APIRouter(tags=["health"], dependencies=[OPEN])
# Most probes time out soon after this.
READY_SECONDS: Final = 2.0

_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": api_schemas.Error, "description": "no such run"},
    422: {
        "model": api_schemas.Error,
        "description": "a field is invalid; the error names the field and its value",
    },
}
_WRITE_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    **_ERRORS,
    400: {"model": api_schemas.Error, "description": "not JSON"},
    409: {"model": api_schemas.Error, "description": "the request conflicts with stored data"},
    503: {"model": api_schemas.Error, "description": "the database does not accept writes"},
}
# Reject NUL in a query as a client error before it reaches the database.
Text = Annotated[str | None, Query(max_length=MAX_QUERY_LENGTH, pattern=api_schemas.NO_CONTROL)]
Names = Annotated[
    list[Annotated[str, Field(max_length=MAX_NAME_LENGTH)]] | None,
    Query(max_length=MAX_NAMES_ASKED),
]
Generation = Annotated[int | None, Query(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Sort = Annotated[str, Query(pattern=rf"^-?({'|'.join(run_order.ORDERS)})$")]


def _answer(model: Any, errors: dict[int | str, dict[str, Any]] = _ERRORS) -> dict[str, Any]:
    return {"response_model": None, "responses": {200: {"model": model}, **errors}}


@router.post(
    "/runs",
    dependencies=[ADD],
    tags=["runs"],
    summary="Create, join or resume a run",
    response_model=None,
    openapi_extra=described(api_schemas.NewRun),
    responses={
        200: {"model": api_schemas.JoinedRun, "description": "joined or resumed"},
        201: {"model": api_schemas.JoinedRun, "description": "created"},
        **_WRITE_ERRORS,
    },
)
async def create_run(
    request: Request, body: Annotated[api_schemas.NewRun, json_body(api_schemas.NewRun)], use: Use
) -> Response:
    now = time.time()
    run_id = body.id or secrets.token_hex(8)
    project = project_of(body.project if "project" in body.model_fields_set else None)
    may_add_to(project)
    header = RunHeader(
        id=run_id,
        project=project,
        name=body.name or run_id,
        unit=body.unit,
        total=body.total,
        started_at=now if body.started_at is None else body.started_at,
        phases=tuple(body.phases),
        tags=tuple(body.tags),
        config=body.config,
        environment=body.environment,
        resume=body.resume,
    )
    try:
        async with use.adding.turn(Sender(project, run_id), 1):
            joined = await run_in_threadpool(
                join, use, header, now, _process(body.process), body.sent_at
            )
    except run_registration.OtherProject as error:
        raise refusal_to_join(
            run_id,
            error.project,
            f"run {run_id} belongs to project {error.project!r}, not to {project!r}",
        ) from error
    url = f"{address_of(request, use)}/runs/{run_id}"
    answer = {"id": run_id, "url": url, "created": joined.created, "attempt": joined.attempt}
    return json_response(answer, 201 if joined.created else 200)


@router.patch(
    "/runs/{run}",
    dependencies=[ADD],
    tags=["runs"],
    summary="Finish, tag or annotate a run",
    openapi_extra=described(api_schemas.RunChanges),
    **_answer(api_schemas.Run, _WRITE_ERRORS),
)
async def change_run(
    run: RunId, body: Annotated[api_schemas.RunChanges, json_body(api_schemas.RunChanges)], use: Use
) -> Response:
    async with use.adding.turn(use.writer.sender(run, calling.get().project), 1):
        return await run_in_threadpool(_change_run, run, body, use)


def _change_run(run: str, body: api_schemas.RunChanges, use: Services) -> Response:
    may_only_add(body)
    given = body.model_dump(exclude={"tags", "notes"})
    changes = runs.Changes(
        **given,
        tags=None if body.tags is None else tuple(body.tags),
        notes=tuple(note.model_dump() for note in body.notes),
        only_adds=calling.get().project is not None,
        browser=calling.get().browser,
    )
    now = time.time()
    try:
        changed = runs.change_run(use.engine, run, changes, now, use.config.bytes_per_day)
    except TooMuchStored as error:
        raise too_many_bytes(
            error.project, error.limit, patience_seconds(now), error.browser
        ) from error
    except runs.NoRoomForNotes as error:
        raise no_room_for_notes(run) from error
    if changed is None:
        raise run_not_found(run)
    use.live.wake(run)
    use.examine(run, changes.state is not None and changed["state"] in runs.ENDED)
    shown = as_shown(changed)
    # Only callers with permission to read get the entire run.
    return get_run(run, use) if shown is changed else json_response(shown)


@router.post(
    "/runs/{run}/requests",
    dependencies=[CHANGE],
    tags=["runs"],
    summary="Ask a running process to scan its heap or to clean up",
    response_model=None,
    openapi_extra=described(api_schemas.NewRequest),
    responses={202: {"model": api_schemas.WaitingRequest, "description": "asked"}, **_WRITE_ERRORS},
)
def ask_run(
    run: RunId, body: Annotated[api_schemas.NewRequest, json_body(api_schemas.NewRequest)], use: Use
) -> Response:
    """The process handles the request at its next phase end, within its limit for pauses. It may
    refuse the request.
    """
    if (body.kind == "find_holders") != (body.type is not None):
        raise InvalidField(
            "type",
            body.type,
            "must be the name of a class for find_holders, and must be omitted for other kinds",
        )
    summary = _found(run, runs.get_summary(use.engine, run))
    if summary["state"] not in runs.LISTENING:
        raise Conflict(
            "run_has_ended",
            f"run {run} is {summary['state']}, so no process can receive the request",
            {"run": run, "state": summary["state"]},
        )
    try:
        asked = use.requests.ask(run, Wanted(body.kind, body.type or "", body.rank))
    except run_history.NoSuchRun as error:
        raise run_not_found(run) from error
    answer = {"id": asked.id, "kind": asked.kind, "type": asked.type or None, "rank": asked.rank}
    return json_response(answer, 202)


@router.get("/runs", tags=["runs"], summary="List runs", **_answer(api_schemas.RunList))
def list_runs(
    use: Use,
    project: Text = None,
    tag: Text = None,
    status: Text = None,
    q: Text = None,
    limit: Limit = 50,
    cursor: Text = None,
    sort: Sort = "started",
) -> Response:
    """`status` is a verdict status, a run state, or `deleted`. Runs that were deleted on a page, but
    not removed yet, are listed only with `deleted`.

    `q` is a search with the page's syntax: plain words search name, project and id; filters such
    as `config:lr=0.1`, `host:`, `commit:`, `phase:`, `type:` and `started:<7d` search the fields
    that they name. `project`, `tag` and `status` narrow down the results of `q`.

    A leading minus in `sort` reverses the order; runs without a value come last.
    """
    search = parse_query(q or "", time.time())
    if search.problems:
        # A script that deletes the results must not get more runs than it searched for.
        raise InvalidField("q", q, search.problems[0])
    filters = dict(search.filters)
    for name, value in (("projects", project), ("tags", tag), ("statuses", status)):
        if value is not None:
            filters[name] = (*filters.get(name, ()), value)
    order = run_order.order_of(sort) or run_order.NEWEST
    wanted = runs.RunFilter(**filters, limit=limit, cursor=cursor, order=order)
    try:
        found = runs.list_runs(use.engine, wanted)
    except runs.BadCursor as error:
        raise _bad_cursor(cursor) from error
    return json_response(found)


@router.get(
    "/runs/{run}", dependencies=[SEE], tags=["runs"], summary="One run", **_answer(api_schemas.Run)
)
def get_run(run: RunId, use: Use) -> Response:
    return json_response(_found(run, runs.get_run(use.engine, run)))


@router.get(
    "/runs/{run}/verdict",
    dependencies=[SEE],
    tags=["findings"],
    summary="The verdict",
    **_answer(Verdict),
)
def get_verdict(run: RunId, use: Use) -> Response:
    return json_response(_found(run, findings.current_verdict(use.engine, run)))


@router.get(
    "/runs/{run}/incidents",
    tags=["findings"],
    summary="Findings and their status changes",
    **_answer(api_schemas.Incidents),
)
def get_incidents(run: RunId, use: Use) -> Response:
    _check_run(run, use)
    return _list(findings.list_incidents(use.engine, run))


@router.get(
    "/runs/{run}/phases",
    tags=["findings"],
    summary="Memory by phase",
    **_answer(PhaseAccounts),
)
def get_phases(run: RunId, use: Use) -> Response:
    return json_response(to_json(_derived(run, use).phase_accounts))


@router.get(
    "/runs/{run}/types",
    tags=["findings"],
    summary="Objects by type and their growth",
    **_answer(api_schemas.Types),
)
def get_types(run: RunId, use: Use) -> Response:
    verdict = findings.current_verdict(use.engine, run) or {}
    return _list(to_json(with_verdict(_derived(run, use).types, verdict)))


@router.get(
    "/runs/{run}/containers",
    tags=["findings"],
    summary="Tracked containers and their capacity",
    **_answer(api_schemas.Containers),
)
def get_containers(run: RunId, use: Use) -> Response:
    return _list(to_json(_derived(run, use).containers))


@router.get(
    "/runs/{run}/events",
    tags=["samples"],
    summary="Events, oldest first",
    **_answer(api_schemas.Events),
)
def get_events(run: RunId, use: Use) -> Response:
    _check_run(run, use)
    return _list(details.list_events(use.engine, run))


@router.get(
    "/runs/{run}/census",
    tags=["samples"],
    summary="The newest census",
    **_answer(api_schemas.Census),
)
def get_census(run: RunId, use: Use, generation: Generation = None) -> Response:
    """Return the newest census; with `generation`, later censuses are ignored."""
    _check_run(run, use)
    found = details.newest_census(use.engine, run, generation)
    if found is None:
        when = "" if generation is None else f" at or before generation {generation}"
        raise NotFound("no_census", f"run {run} has no census{when}", {"run": run})
    return json_response(found)


@router.get(
    "/runs/{run}/large-objects",
    tags=["samples"],
    summary="The largest objects",
    **_answer(api_schemas.LargeObjects),
)
def get_large_objects(run: RunId, use: Use) -> Response:
    _check_run(run, use)
    return _list(details.newest_large_objects(use.engine, run))


@router.get(
    "/runs/{run}/holders",
    tags=["samples"],
    summary="Holders of growing objects",
    **_answer(api_schemas.Holders),
)
def get_holders(run: RunId, use: Use) -> Response:
    _check_run(run, use)
    return _list(details.newest_holders(use.engine, run))


@router.get(
    "/runs/{run}/snapshots",
    tags=["samples"],
    summary="Snapshots, newest first",
    **_answer(api_schemas.Snapshots),
)
def get_snapshots(
    run: RunId,
    use: Use,
    name: Names = None,
    limit: Limit = 50,
    cursor: Text = None,
) -> Response:
    """`name` selects the samples in each row; the default is the headline samples."""
    _check_run(run, use)
    names = tuple(name or snapshot_rows.HEADLINE)
    try:
        return json_response(snapshot_rows.list_snapshots(use.engine, run, names, limit, cursor))
    except runs.BadCursor as error:
        raise _bad_cursor(cursor) from error


@router.get("/compare", tags=["findings"], summary="Two runs compared", **_answer(Comparison))
def compare(before: RunId, after: RunId, use: Use) -> Response:
    try:
        return json_response(to_json(use.derived.compare(before, after)))
    except run_history.NoSuchRun as error:
        raise run_not_found(str(error)) from error


@health.head("/healthz", include_in_schema=False)
@health.get("/healthz", summary="The process is alive", **_answer(api_schemas.Health, {}))
async def healthz() -> Response:
    # This route needs no pool thread: all of these threads may be waiting for a database that does not
    # respond.
    return json_response({"status": "ok"})


@health.head("/readyz", include_in_schema=False)
@health.get(
    "/readyz",
    summary="The database responds and batches are written",
    **_answer(api_schemas.Health, {503: {"model": api_schemas.Error}}),
)
async def readyz(request: Request) -> Response:
    # Avoid the dependency `Use`, which would be resolved on a pool thread.
    use: Services = request.app.state.services
    try:
        await asyncio.wait_for(asyncio.wrap_future(engine.pinging(use.engine)), READY_SECONDS)
    except TimeoutError as error:
        raise Unavailable(
            "database_silent",
            f"the database has not responded within {READY_SECONDS:.0f} seconds",
            retry_after_seconds=2,
        ) from error
    if not use.writer.alive:
        raise Unavailable(
            "writer_stopped",
            "batches are not being written; restart the server",
            retry_after_seconds=5,
        )
    if use.writer.figures.refused:
        raise Unavailable(
            "database_refuses",
            "the database rejects writes; stored data can still be read",
            retry_after_seconds=5,
        )
    return json_response({"status": "ok"})


def _process(joining: api_schemas.JoiningProcess | None) -> ProcessIdentity | None:
    return None if joining is None else ProcessIdentity(**joining.model_dump())


def _derived(run: str, use: Services) -> Derived:
    try:
        return use.derived.of(run)
    except run_history.NoSuchRun as error:
        raise run_not_found(run) from error


def _check_run(run: str, use: Services) -> None:
    _found(run, runs.get_summary(use.engine, run))


def _found(run: str, what: dict[str, Any] | None) -> dict[str, Any]:
    if what is None:
        raise run_not_found(run)
    return what


def _list(items: Any) -> Response:
    return json_response({"items": items, "next": None})


def _bad_cursor(cursor: str | None) -> InvalidField:
    return InvalidField("cursor", cursor, "must be the value of next from an earlier response")


class Project(BaseModel):
    """A project. `bytes` is the packed size of its runs, updated within a minute of new data."""

    name: str
    runs: int
    bytes: int


class Projects(BaseModel):
    items: list[Project]
    next: str | None


_REMOVAL_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    204: {"description": "deleted"},
    404: {"model": api_schemas.Error, "description": "no such run"},
    409: {"model": api_schemas.Error, "description": "the run is live"},
}


@router.get(
    "/projects",
    tags=["runs"],
    summary="Projects and their sizes",
    response_model=None,
    responses={200: {"model": Projects}},
)
def get_projects(use: Use) -> Response:
    return json_response(
        {"items": [asdict(p) for p in storage_sizes.projects(use.engine)], "next": None}
    )


@router.delete(
    "/runs/{run}",
    dependencies=[CHANGE],
    tags=["runs"],
    summary="Remove a run",
    response_class=Response,
    status_code=204,
    responses=_REMOVAL_ERRORS,
)
def delete_run(run: RunId, use: Use) -> Response:
    """The run disappears immediately; the space of its rows is freed within seconds to minutes. A
    live run cannot be deleted, because its next batch would create it again.
    """
    removed = run_deletion.remove(use.engine, run, time.time())
    if removed == "unknown":
        raise run_not_found(run)
    if removed == "live":
        raise Conflict(
            "run_is_live",
            f"run {run} is running, and its next batch would create it again; end the run first, or PATCH its state",
            {"run": run},
        )
    use.live.wake(run)
    use.retain()
    return Response(status_code=204)

"""Time series for charts of runs, and the changes between two points of a run."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from ...errors import run_not_found
from ...limits import (
    MAX_NAME_LENGTH,
    MAX_NAMES_ASKED,
    MAX_POINTS,
    MAX_QUERY_LENGTH,
    MAX_RUNS_OVERLAID,
)
from ...store import findings
from ...store.runs import run_history
from ...store.series import Axis, SeriesQuery, summarise
from .. import api_schemas
from ..api_schemas import RunId
from ..auth.permissions import READ
from ..axis_zoom import TwoPoints
from ..responses import json_response
from ..run_page.pages import axis_on_page, known_run, processes_of
from ..run_page.range_changes import checked, read_changes, recorded
from ..services import Use

router = APIRouter(prefix="/api/v1", tags=["samples"], dependencies=[READ])

_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": api_schemas.Error, "description": "no such run"},
    422: {
        "model": api_schemas.Error,
        "description": "a field is invalid; the error names the field and its value",
    },
}
Text = Annotated[str | None, Query(max_length=MAX_QUERY_LENGTH, pattern=api_schemas.NO_CONTROL)]
Names = Annotated[
    list[Annotated[str, Field(max_length=MAX_NAME_LENGTH)]],
    Query(min_length=1, max_length=MAX_NAMES_ASKED),
]
Runs = Annotated[list[RunId], Query(alias="run", min_length=1, max_length=MAX_RUNS_OVERLAID)]
From = Annotated[float | None, Query(alias="from", allow_inf_nan=False)]
To = Annotated[float | None, Query(alias="to", allow_inf_nan=False)]
Most = Annotated[int, Query(alias="points", ge=1, le=MAX_POINTS)]


@router.get(
    "/runs/{run}/series",
    summary="Series for charts",
    response_model=None,
    responses={200: {"model": api_schemas.SeriesList}, **_ERRORS},
)
def get_series(
    run: RunId,
    use: Use,
    name: Names,
    phase: Text = None,
    kind: Text = None,
    process: Text = None,
    x: Axis = "generation",
    start: From = None,
    stop: To = None,
    most: Most = 2_000,
) -> Response:
    """Return at most `points` points per item. Each point has the first, last, min and max of the
    summarized readings. `name` may repeat and may contain `*`; `phase=*` returns one item
    per phase.
    """
    query = SeriesQuery(tuple(name), phase, kind, process, x, start, stop, most)
    try:
        found = summarise(use.engine, [run], query)
    except run_history.NoSuchRun as error:
        raise run_not_found(run) from error
    for each in (*found["items"], *found["damaged"]):
        del each["run"]
    return json_response({"unit": found.pop("units")[run], **found})


@router.get(
    "/series",
    summary="Series of several runs",
    response_model=None,
    responses={200: {"model": api_schemas.Overlay}, **_ERRORS},
)
def get_overlay(
    use: Use,
    run: Runs,
    name: Names,
    phase: Text = None,
    kind: Text = None,
    x: Axis = "generation",
    start: From = None,
    stop: To = None,
    most: Most = 2_000,
) -> Response:
    """Return the series of several runs in the same format as for one run. `run` may be given up to
    ten times; every item names its run.
    """
    query = SeriesQuery(tuple(name), phase, kind, None, x, start, stop, most)
    try:
        return json_response(summarise(use.engine, tuple(dict.fromkeys(run)), query))
    except run_history.NoSuchRun as error:
        raise run_not_found(str(error)) from error


@router.get(
    "/runs/{run}/changes",
    tags=["findings"],
    summary="Changes between two points of a run",
    response_model=None,
    responses={200: {"model": api_schemas.Changes}, **_ERRORS},
)
def get_changes(
    run: RunId,
    use: Use,
    start: Annotated[float, Query(alias="from", allow_inf_nan=False)],
    stop: Annotated[float, Query(alias="to", allow_inf_nan=False)],
) -> Response:
    """Return object types, phases and processes, sorted by the bytes gained between the ends of two
    generations. For a run without generations, `from` and `to` are in seconds since the run's start.

    Unknown values are null, for example if a type was not counted near one of the points. A process
    that ended before a point has 0 bytes there.
    """
    found = known_run(use, run)
    axis = axis_on_page(use, found)
    try:
        derived = use.derived.of(run)
        asked = checked(found, axis, TwoPoints(start, stop), recorded(found, axis, derived))
        processes, verdict = processes_of(use, found), findings.current_verdict(use.engine, run)
        return json_response(
            read_changes(use.engine, found, processes, axis, derived, verdict, asked)
        )
    except run_history.NoSuchRun as error:
        raise run_not_found(run) from error

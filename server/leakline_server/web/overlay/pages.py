"""``/overlay``: up to ten runs on one axis. All that it shows is in its address: the runs, the series, the stretch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from ...charts.chart_parts import Points
from ...errors import InvalidField, run_not_found
from ...limits import MAX_RUNS_OVERLAID
from ...store.downsampling import chart_points
from ...store.downsampling.series_starts import first_generations
from ...store.incidents import findings
from ...store.maintenance import soft_delete
from ...store.runs import runs
from ..axis_zoom import read_stretch
from ..rendering.templating import render
from ..responses import json_response
from ..run_page.pages import processes_of
from ..services import Services, Use
from .view import (
    SECONDS,
    SERIES,
    OverlayRun,
    Series,
    Shown,
    address,
    attempts_of,
    line_of,
    measured,
    measured_by,
    overlay_chart,
    overlay_page,
    shifts,
)

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

# More points than a chart has pixels are wasted on everybody.
MAX_POINTS_SHOWN: Final = 2_000
_END: Final = "generation_end"
_TIMES: Final = Series("Time", "time", SECONDS, "seconds")
Ids = Annotated[list[str] | None, Query()]


@router.head("/overlay")
@router.get("/overlay")
def show_overlay(use: Use, run: Ids = None, pick: Ids = None, series: str = "") -> Response:
    """``pick`` is what the list of runs sends."""
    if pick and not run:
        picked = [{"id": each} for each in _chosen(pick)]
        return RedirectResponse(address(picked, _series(series) or "private"), 303)
    ids = _chosen(run or [])
    found, left_out = _known(use, ids)
    choices = [each for each in SERIES if measured(found, each)] or ["private"]
    shown = _series(series) or choices[0]
    if shown not in choices:
        choices = [each for each in SERIES if each in choices or each == shown]
    lines, times = _lines(use, found, SERIES[shown]), _lines(use, found, _TIMES)
    laid = [
        OverlayRun(
            each,
            findings.current_verdict(use.engine, each["id"]),
            lines.get(each["id"]),
            times.get(each["id"]),
        )
        for each in found
    ]
    names = [(each.run_id, each.name) for each in left_out]
    moved = shifts(_starts(use, found, SERIES[shown]))
    return render("overlay.html", overlay_page(laid, shown, choices, moved, names))


@router.get("/overlay/lines")
def show_lines(use: Use, x: str, run: Ids = None, series: str = "") -> Response:
    """{"lines": {chart: its lines}} of a stretch of the axis, with as many points as the page has of all of it."""
    stretch, shown = read_stretch(x), _series(series) or "private"
    found, _ = _known(use, _chosen(run or []))
    moved = shifts(_starts(use, found, SERIES[shown]))
    lines: dict[str, Points] = {}
    for each in found:
        by = moved.get(each["id"], 0.0)
        # Whole generations, so that a line goes on to the edge of the chart.
        ends = math.floor(stretch.first) + by, math.ceil(stretch.last) + by
        lines |= _lines(use, [each], SERIES[shown], ends)
    chart = overlay_chart(found, lines, moved, SERIES[shown])
    return json_response({"lines": {chart.id: chart.lines} if chart else {}})


def _series(text: str) -> Shown | None:
    return next((each for each in SERIES if each == text), None)


def _chosen(ids: Sequence[str]) -> list[str]:
    chosen = list(dict.fromkeys(ids))
    if not chosen:
        raise InvalidField("run", None, "pick two to ten runs in the list of runs, then Overlay")
    if len(chosen) > MAX_RUNS_OVERLAID:
        raise InvalidField(
            "run", f"{len(chosen)} runs", f"an overlay takes up to {MAX_RUNS_OVERLAID}: pick fewer"
        )
    return chosen


def _known(
    use: Services, ids: Sequence[str]
) -> tuple[list[dict[str, Any]], list[soft_delete.Deleted]]:
    """The runs, and those of them that are deleted, which are left out."""
    gone = soft_delete.among(use.engine, ids)
    hidden = {each.run_id for each in gone}
    found = []
    for run_id in ids:
        run = None if run_id in hidden else runs.get_run(use.engine, run_id)
        if run is not None:
            found.append(run)
        elif run_id not in hidden:
            raise run_not_found(run_id)
    return found, gone


def _lines(
    use: Services,
    found: Sequence[Mapping[str, Any]],
    series: Series,
    ends: tuple[float, float] | None = None,
) -> dict[str, Points]:
    """By run, of those that have measured it."""
    start, stop = ends or (None, None)
    attempts = {each["id"]: attempts_of(each, processes_of(use, each)) for each in found}
    # Of no other rank: those of a large run would leave no room for the runs after it.
    query = chart_points.SeriesQuery(
        series.names, kind=_END, start=start, stop=stop, points=MAX_POINTS_SHOWN,
        among=frozenset(instance for each in attempts.values() for instance in each),
    )  # fmt: skip
    items = chart_points.overlay(use.engine, [each["id"] for each in found], query)["items"]
    of_runs = {
        each["id"]: line_of(
            attempts[each["id"]], [item for item in items if item["run"] == each["id"]], series
        )
        for each in found
    }
    return {run_id: line for run_id, line in of_runs.items() if line is not None}


def _starts(use: Services, found: Sequence[Mapping[str, Any]], series: Series) -> dict[str, float]:
    """By run: the generation at which its line begins, of those that have one."""
    starts = {}
    for each in found:
        instances = attempts_of(each, processes_of(use, each))
        first = first_generations(use.engine, each["id"], measured_by(series), _END, instances)
        if first:
            starts[each["id"]] = min(first.values())
    return starts

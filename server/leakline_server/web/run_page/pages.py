"""Routes of the run and comparison pages.

The routes read the store, run the analysis, and render a view; this module contains no SQL and no
analysis.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import Field
from starlette.responses import Response

from leakline.analysis.findings.growth_tables import with_verdict
from leakline.analysis.results import to_json
from leakline.report.verdict_facts import leading_finding

from ...charts.chart_builder import GPU_SERIES
from ...charts.chart_parts import (
    JS_PRIVATE,
    PRIVATE,
    Axis,
    Palette,
    Points,
    join_attempts,
    points_of,
)
from ...errors import InvalidField, run_not_found
from ...limits import MAX_PAGE, MAX_QUERY_LENGTH, MAX_RUNS_PICKED
from ...store import details, findings, incident_groups, snapshot_rows
from ...store.alerts import alert_rows, assertions, webhooks
from ...store.runs import process_list, runs
from ...store.runs.run_history import NoSuchRun
from ...store.series import CorruptChunk, SeriesQuery, has_series, summarise
from ...text_cleaning import without_control
from .. import webhook_api
from ..auth.permissions import READ, SEE
from ..axis_zoom import Stretch, read_stretch, two_points, wanted
from ..compare import ComparePage, axis_of, compare_page, compared_lines
from ..rendering import number_formats
from ..rendering.page_contexts import ChangesFragment, ErrorPage, PickPage, RunChoice, RunPage
from ..rendering.templating import render
from ..responses import json_response
from ..runs.pages import deleted_run
from ..search_query import parse_query
from ..services import Services, Use, address_of
from .annotations import MAX_MARKS
from .changes_panel import changes_panel, nothing_between
from .counted_objects import suspects_first
from .fix_effects import effects_shown
from .range_changes import read_changes, recorded
from .run_charts import draw, zoomed_lines
from .run_data import (
    ALL_TABS,
    MAX_POINTS_OF_ALL,
    TABS,
    ReadSeries,
    RunData,
    first_shown,
    has_several,
    process_label,
    summed,
)
from .view import run_page, types_section

router = APIRouter(
    include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ]
)

SNAPSHOT_ROWS: Final = 50
# The limit on points per line: a chart cannot show more points than it has pixels.
MAX_POINTS_SHOWN: Final = 2_000
_MINUTES_UNTIL_HOURS: Final = 180
_TITLES: Final = {
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    422: "Invalid request",
    503: "Temporarily unavailable",
}


# A range of the axis, which may have been typed by hand.
Asked = Annotated[str, Query(max_length=MAX_QUERY_LENGTH)]


@router.head("/runs/{run}", dependencies=[SEE])
@router.get("/runs/{run}", dependencies=[SEE])
def show_run(
    run: str,
    use: Use,
    process: str = "",
    tab: str = "",
    axis: str = "",
    x: Asked = "",
    start: Annotated[str, Query(alias="from", max_length=MAX_QUERY_LENGTH)] = "",
    stop: Annotated[str, Query(alias="to", max_length=MAX_QUERY_LENGTH)] = "",
) -> Response:
    """Show the page of a run.

    The range form sends ``from`` and ``to``; the response redirects to the address of that range.
    """
    deleted = deleted_run(use, run)
    if deleted is None and (start or stop):
        typed = _typed(start, stop, axis_on_page(use, known_run(use, run), axis))
        asked = {"tab": tab, "process": process, "axis": axis, "x": typed}
        kept = urlencode({name: value for name, value in asked.items() if value})
        return RedirectResponse(f"/runs/{quote(run, safe='')}?{kept}#changes", 303)
    return deleted or render("run.html", read_run_page(use, run, process, tab, axis, x))


def _typed(start: str, stop: str, axis: Axis) -> str:
    """Return the range as ``x``; a time axis uses seconds, because its unit may change to hours."""
    if axis.unit == "generation":
        return f"{start}..{stop}"
    try:
        return "..".join(f"{float(each) * axis.seconds:.9g}s" for each in (start, stop))
    except ValueError:
        return f"{start}..{stop}"


@router.get("/runs/{run}/fragments", dependencies=[SEE])
def show_fragments(
    run: str, use: Use, process: str = "", tab: str = "", axis: str = "", x: Asked = ""
) -> Response:
    """Return the parts of a run's page that the live update replaces."""
    return render("_run.html", read_run_page(use, run, process, tab, axis, x))


@router.get("/runs/{run}/changes", dependencies=[SEE])
def show_changes(
    run: str, use: Use, process: str = "", tab: str = "", axis: str = "", x: Asked = ""
) -> Response:
    """Return the parts of a run's page, apart from charts, that depend on the selected range.

    Without ``x``, the range is the whole run.
    """
    data = _with_changes(use, _chart_data(use, run, process, tab, axis), x)
    types = None
    if "objects" in data.tabs:
        # Only the table of the whole run has sparklines.
        chart = None if data.changes else draw(data, Palette()).charts.get("types")
        types = types_section(data, chart)
    return render("_changes.html", ChangesFragment(changes_panel(data), types))


@router.get("/runs/{run}/lines", dependencies=[SEE])
def show_lines(
    run: str, use: Use, x: str, process: str = "", tab: str = "", axis: str = ""
) -> Response:
    """Return {"lines": {chart id: lines}, "x_seconds"} for a range of the axis.

    A line has about eight times as many points as the page shows for the entire run. ``x_seconds`` is the
    length of one unit of a time axis, which may be larger than on a page that was opened earlier.
    """
    stretch = read_stretch(x)
    data = _chart_data(use, run, process, tab, axis, stretch)
    lines = zoomed_lines(data, stretch)
    return json_response({"lines": lines, "x_seconds": data.axis.seconds})


def read_run_page(
    use: Services, run_id: str, process: str, tab: str = "", axis: str = "", x: str = ""
) -> RunPage:
    """Read the data of the first screen and the open tab; `ALL_TABS` opens all tabs.

    If ``axis`` is "time", the charts are drawn over time even if the run has generations.
    """
    return run_page(_with_changes(use, _run_data(use, run_id, process, tab, axis), x))


def _with_changes(use: Services, data: RunData, x: str) -> RunData:
    """Return the data with the changes in the range ``x``, or with a reason for missing changes."""
    known = data.recorded
    if not x or known is None:
        return data
    try:
        stretch = read_stretch(x)
        wanted(stretch, data.axis, 0.0)
    except InvalidField as error:
        return replace(data, no_changes=f"{error}.")
    points = two_points(stretch, data.axis, known)
    if points is None:
        return replace(data, x=x, no_changes=nothing_between(data, known))
    run = data.run
    derived = use.derived.of(run["id"], at_once=run["state"] == "running")
    processes = processes_of(use, run)
    changes = read_changes(use.engine, run, processes, data.axis, derived, data.verdict, points)
    return replace(data, x=x, changes=changes)


def _run_data(use: Services, run_id: str, process: str, tab: str, axis: str) -> RunData:
    data = replace(_chart_data(use, run_id, process, tab, axis), read_at=time.time())
    leaks = [finding["fingerprint"] for finding in (data.verdict or {}).get("findings", ())]
    data = replace(
        data,
        events=details.list_events(use.engine, run_id),
        effects=_effects(use, data.run, data.verdict),
        snapshots=snapshot_rows.list_snapshots(use.engine, run_id, snapshot_rows.HEADLINE, SNAPSHOT_ROWS,
        None)["items"],
        incidents=findings.list_incidents(use.engine, run_id),
        said=incident_groups.holding(use.engine, data.run["project"], leaks, time.time()),
        alerts=alert_rows.list_alerts(use.engine, run_id, MAX_MARKS),
        webhooks=[webhook_api.to_json(each, None) for each in webhooks.list_webhooks(use.engine)],
        public=use.config.public_url is not None,
        previous=runs.previous_of(use.engine, data.run),
    )  # fmt: skip
    if "objects" not in data.tabs:
        return data
    return replace(
        data,
        large_objects=details.newest_large_objects(use.engine, run_id),
        holders=details.newest_holders(use.engine, run_id),
        accepted=assertions.accepted_in(use.engine, data.run["project"]),
        # Read only the census of the selected rank, because other ranks hold other objects.
        census=details.newest_census(
            use.engine, run_id, instances=_instances(processes_of(use, data.run), data.process)
        ),
    )


def _effects(
    use: Services, run: Mapping[str, Any], verdict: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return the effect of each fix.

    An effect that the run itself leaves undecided is measured against the baseline of its project.
    """
    within = (verdict or {}).get("effects") or ()
    if all(each["outcome"] != "undecided" for each in within):
        return effects_shown(within, (), None)
    before = runs.baseline_of(use.engine, run)
    if before is None:
        return effects_shown(within, (), None)
    live = run["state"] == "running"
    try:
        compared = to_json(use.derived.compare(before["id"], run["id"], at_once=live))
    except (NoSuchRun, CorruptChunk):
        # A baseline that is gone or damaged must not break the page of this run.
        return effects_shown(within, (), None)
    return effects_shown(within, compared["effects"], {**before, "after": run["id"]})


def _chart_data(
    use: Services, run_id: str, process: str, tab: str, by: str, stretch: Stretch | None = None
) -> RunData:
    """Read the data for the chart lines; tables, marks and texts need more data."""
    # The revision is read first, so that the live stream resends everything that arrives during
    # the other reads.
    run = runs.get_run(use.engine, run_id)
    if run is None:
        raise run_not_found(run_id)
    derived = use.derived.of(run_id, at_once=run["state"] == "running")
    labels = list(dict.fromkeys(process_label(each) for each in run["processes"]))
    verdict = findings.current_verdict(use.engine, run_id)
    leading = (leading_finding(verdict) or {}).get("fingerprint")
    chosen = process if process in labels else ""
    shown = chosen or first_shown(run, leading)
    axis = axis_on_page(use, run, by)
    processes = processes_of(use, run)

    # An export cannot load the points of a range when its reader zooms.
    points = MAX_POINTS_SHOWN if stretch or tab == ALL_TABS else MAX_POINTS_OF_ALL

    def read_of(label: str | None) -> ReadSeries:
        return _reader(use, run, _instances(processes, label), axis, stretch, points)

    # If the GPU tab is requested before the first reading, show the tab now and fill it in later.
    has_gpu = tab == "gpu" or has_series(use.engine, run_id, GPU_SERIES)
    tabs = [name for name in TABS if name != "gpu" or has_gpu]
    return RunData(
        run=run,
        verdict=verdict,
        axis=axis,
        read=read_of(shown),
        read_of=read_of,
        phase_accounts=derived.phase_accounts,
        types=suspects_first(with_verdict(derived.types, verdict), verdict),
        containers=derived.containers,
        tabs=tabs if tab == ALL_TABS else [tab if tab in tabs else tabs[0]],
        has_gpu=has_gpu,
        counts=derived.counts,
        stable=derived.stable,
        process=shown,
        clock=derived.clock,
        recorded=recorded(run, axis, derived),
        chosen_process=chosen,
        chosen_axis=axis.unit if run["generations"] and axis.unit == "time" else "",
    )


def processes_of(use: Services, run: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return {instance, rank, role, ended_at, end_state} of all processes of a run.

    The result includes processes that the run's JSON omits: a line covers all attempts of a rank.
    """
    if not run["processes_left_out"]:
        listed: Sequence[Mapping[str, Any]] = run["processes"]
        return listed
    return process_list.all_of(use.engine, run["id"])


def _instances(processes: Sequence[Mapping[str, Any]], label: str | None) -> list[str]:
    return [each["instance"] for each in processes if process_label(each) == label]


def axis_on_page(use: Services, run: Mapping[str, Any], by: str = "") -> Axis:
    """Return the axis: generations, or time if requested or if the run has no generations.

    Programs under ``leakline run`` and ``leakline watch`` do not count generations.
    """
    generations = Axis(run["unit"])
    if run["generations"]:
        return _time_axis(run) if by == "time" else generations
    counted = SeriesQuery(("process.rss_bytes",), points=2)
    if summarise(use.engine, [run["id"]], counted)["items"]:
        return generations
    timed = SeriesQuery(("process.rss_bytes",), axis="time", points=2)
    items = summarise(use.engine, [run["id"]], timed)["items"]
    if not any(len(item["x"]) > 1 for item in items):
        return generations
    return _time_axis(run)


def _time_axis(run: Mapping[str, Any]) -> Axis:
    # Prefer the end: `last_seen_at` of an imported or late-uploaded run is much later.
    minutes = (
        runs.unix(run["ended_at"] or run["last_seen_at"]) - runs.unix(run["started_at"])
    ) / 60
    hours = minutes > _MINUTES_UNTIL_HOURS
    return Axis(f"{'hours' if hours else 'minutes'} since the start", "time", 3600 if hours else 60)


def _reader(
    use: Services,
    run: Mapping[str, Any],
    instances: Sequence[str],
    axis: Axis,
    stretch: Stretch | None,
    most: int,
) -> ReadSeries:
    """Return a reader for the series of one rank, with its attempts joined.

    The reader covers the entire axis of the page, or only ``stretch``, with at most ``most`` points per line.
    """
    started = runs.unix(run["started_at"])
    start, stop = wanted(stretch, axis, started) if stretch else (None, None)

    def on_axis(x: float) -> float:
        return (x - started) / axis.seconds if axis.unit == "time" else x

    def read(names: Sequence[str], phase: str | None, kind: str | None) -> list[Points]:
        found: dict[tuple[str, str | None], list[Points]] = {}
        for instance in instances:
            query = SeriesQuery(tuple(names), phase, kind, instance, axis.unit, start, stop, most)
            for item in summarise(use.engine, [run["id"]], query)["items"]:
                xs = [on_axis(x) for x in item["x"]]
                if len(xs) > 1:
                    # The newest point shows the last reading, so that the chart ends there.
                    xs[-1] = on_axis(item["end"])
                line = points_of(item, xs)
                found.setdefault((line.name, line.phase), []).append(line)
        return [join_attempts(attempts) for attempts in found.values()]

    return read


@router.get("/compare")
def compare(
    request: Request,
    use: Use,
    before: str = "",
    after: str = "",
    pick: Annotated[list[str] | None, Query(max_length=MAX_RUNS_PICKED)] = None,
    q: Annotated[str, Field(max_length=MAX_QUERY_LENGTH)] = "",
    search: str = "",
) -> Response:
    """Show the comparison of two runs, or the form for selecting two runs.

    Without scripts, the list of runs sends ``pick``: two runs in any order. The older run
    becomes ``before``. With ``search``, the form is shown even if both runs are given.
    """
    # A run listed in several groups has several checkboxes.
    pick = list(dict.fromkeys(pick or ()))
    if len(pick) == 2:
        before, after = sorted(pick, key=lambda run_id: known_run(use, run_id)["started_at"])
    if search or not (before and after):
        return _pick(use, before, after, without_control(q).strip(), address_of(request, use))
    return render("compare.html", read_compare_page(use, before, after))


def read_compare_page(
    use: Services, before: str, after: str, points: int = MAX_POINTS_OF_ALL
) -> ComparePage:
    """Read a comparison; ``points`` limits the points per line."""
    sides = (known_run(use, before), known_run(use, after))
    process = _compared_process(sides)
    return compare_page(
        *sides,
        to_json(use.derived.compare(before, after)),
        [_ends(use, side, process, points) for side in sides],
        [use.derived.of(side["id"]).phase_accounts for side in sides],
        process if any(map(has_several, sides)) else None,
    )


def _compared_process(sides: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the process to compare; `first_shown` chooses among the processes of both runs."""
    return first_shown({"processes": [each for side in sides for each in side["processes"]]})


@router.get("/compare/lines")
def show_compared_lines(use: Use, before: str, after: str, x: str) -> Response:
    """Return the zoomed chart lines of a comparison, in the same format as `show_lines`."""
    stretch = read_stretch(x)
    sides = (known_run(use, before), known_run(use, after))
    lines = compared_lines(
        *sides,
        [_ends(use, side, _compared_process(sides), MAX_POINTS_SHOWN, stretch) for side in sides],
        [use.derived.of(side["id"]).phase_accounts for side in sides],
        stretch,
    )
    return json_response({"lines": lines, "x_seconds": axis_of(sides[0]).seconds})


def known_run(use: Services, run_id: str) -> dict[str, Any]:
    found = runs.get_run(use.engine, run_id)
    if found is None:
        raise run_not_found(run_id)
    return found


def _ends(
    use: Services,
    run: Mapping[str, Any],
    process: str | None,
    points: int,
    stretch: Stretch | None = None,
) -> Points | None:
    """Return a process's private memory at generation ends, or RSS if private memory is unknown.

    If the run does not have ``process``, use the process that the run's page shows first.
    """
    processes = processes_of(use, run)
    instances = _instances(processes, process) or _instances(processes, first_shown(run))
    axis = axis_of(run)
    read = _reader(use, run, instances, axis, stretch, points)
    kind = None if axis.unit == "time" else "generation_end"
    for names in (PRIVATE, JS_PRIVATE, ("process.rss_bytes",)):
        lines = summed(read(names, None, kind), names)
        if lines:
            return lines[0]
    return None


def _pick(use: Services, before: str, after: str, query: str, server: str) -> Response:
    asked = parse_query(query, time.time())
    found = runs.list_runs(use.engine, runs.RunFilter(**asked.filters, limit=MAX_PAGE))
    chosen = [runs.get_summary(use.engine, each) for each in dict.fromkeys((before, after)) if each]
    items = {each["id"]: each for each in (*chosen, *found["items"]) if each is not None}
    choices = tuple(
        RunChoice(
            each["id"],
            f"{each['project']} / {each['name']}, {number_formats.clock(each['started_at'])}",
        )
        for each in items.values()
    )
    any_runs = bool(choices or query)
    message = (
        "Choose a run before a change and a run after it. The page shows whether the leak is gone."
        if any_runs
        else "This page compares two runs, such as a run before a fix and a run after it. There are no runs yet."
    )
    note = ""
    if found["next"]:
        note = f"Only the newest {MAX_PAGE:,} runs are listed. Search to find other runs."
    elif not found["items"] and any_runs:
        note = "No run matches this search."
    page = PickPage(
        "Compare", message, choices, query, asked.problems, note, any_runs, before, after, server
    )
    return render("pick.html", page)


def error_page(request: Request, status: int, code: str, message: str) -> Response:
    """Return an error page: the API's message, without hints that are only meant for programs."""
    title = {"run_not_found": "Run not found"}.get(code) or _TITLES.get(status, "Error")
    if code == "run_not_found":
        missing = message.partition(";")[0]
        message = f"This run does not exist or was deleted ({missing})."
    elif code == "not_found":
        message = "There is no page at this address. The list shows all existing runs."
    return render("error.html", ErrorPage(title, status, message), status)

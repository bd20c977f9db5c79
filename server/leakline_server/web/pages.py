"""The pages: read the store, ask the analysis, hand over to a view, render. No SQL and no thinking here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.datastructures import URL
from starlette.responses import Response

from leakline.analysis.results import to_json

from ..chart_parts import Axis, Points, join_attempts
from ..charts import PRIVATE
from ..errors import run_not_found
from ..ingest import without_control
from ..store import details, findings, points, runs, snapshots
from .compare_view import compare_page
from .contexts import ErrorPage, PickPage, RunChoice, RunPage
from .run_view import ReadSeries, RunData, process_label, run_page, summed
from .runs_view import parse_query, runs_page
from .services import Services, Use
from .templating import render

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

RUNS_PER_PAGE: Final = 50
SNAPSHOT_ROWS: Final = 50
# More points than a chart has pixels are wasted on everybody.
MAX_POINTS: Final = 2_000
_MINUTES_UNTIL_HOURS: Final = 180
_TITLES: Final = {404: "Not found", 422: "Not a valid request", 503: "Not available just now"}


@router.head("/")
@router.get("/")
def list_page(request: Request, use: Use, q: str = "", cursor: str | None = None) -> Response:
    q = without_control(q)
    try:
        found = runs.list_runs(
            use.engine, runs.RunFilter(**parse_query(q), limit=RUNS_PER_PAGE, cursor=cursor)
        )
    except runs.BadCursor:
        return RedirectResponse(URL("/").include_query_params(q=q), 303)
    any_runs = bool(found["items"] or q or cursor)
    page = runs_page(found["items"], q, found["next"], _address(request, use), any_runs=any_runs)
    return render("runs.html", page)


def _address(request: Request, use: Services) -> str:
    """Where a training job reaches this server: as configured, else as the viewer reached it."""
    return use.config.public_url or str(request.base_url).rstrip("/")


@router.head("/runs/{run}")
@router.get("/runs/{run}")
def show_run(run: str, use: Use, process: str | None = None) -> Response:
    return render("run.html", _run_page(use, run, process))


@router.get("/runs/{run}/fragments")
def show_fragments(run: str, use: Use, process: str | None = None) -> Response:
    """What changes on the page of a run, for the live update."""
    return render("_run.html", _run_page(use, run, process))


def _run_page(use: Services, run_id: str, process: str | None) -> RunPage:
    # The revision is read first: what arrives while the rest is read, the stream tells again.
    run = runs.get_run(use.engine, run_id)
    if run is None:
        raise run_not_found(run_id)
    derived = use.derived.of(run_id)
    labels = list(dict.fromkeys(process_label(each) for each in run["processes"]))
    chosen = process if process in labels else next(iter(labels), None)
    instances = [p["instance"] for p in run["processes"] if process_label(p) == chosen]
    axis = _axis(use, run)
    data = RunData(
        run=run,
        verdict=findings.current_verdict(use.engine, run_id),
        axis=axis,
        read=_reader(use, run, instances, axis),
        books=derived.books,
        types=derived.types,
        stores=derived.stores,
        expectations=derived.expectations,
        events=details.list_events(use.engine, run_id),
        large_objects=details.newest_large_objects(use.engine, run_id),
        holders=details.newest_holders(use.engine, run_id),
        snapshots=snapshots.list_snapshots(use.engine, run_id, snapshots.HEADLINE, SNAPSHOT_ROWS, None)["items"],
        process=chosen,
    )  # fmt: skip
    return run_page(data)


def _axis(use: Services, run: Mapping[str, Any]) -> Axis:
    """Generations, or time for a program that has none (``leakline run``, ``leakline watch``)."""
    generations = Axis(run["unit"])
    if run["generations"]:
        return generations
    counted = points.SeriesQuery(("process.rss_bytes",), points=2)
    if points.read_series(use.engine, run["id"], counted)["items"]:
        return generations
    timed = points.SeriesQuery(("process.rss_bytes",), axis="time", points=2)
    items = points.read_series(use.engine, run["id"], timed)["items"]
    if not any(len(item["x"]) > 1 for item in items):
        return generations
    minutes = (runs.unix(run["last_seen_at"]) - runs.unix(run["started_at"])) / 60
    hours = minutes > _MINUTES_UNTIL_HOURS
    return Axis(f"{'hours' if hours else 'minutes'} since the start", "time", 3600 if hours else 60)


def _reader(
    use: Services, run: Mapping[str, Any], instances: Sequence[str], axis: Axis
) -> ReadSeries:
    """Reads series of one rank: its attempts joined, on the axis of the page."""
    started = runs.unix(run["started_at"])

    def on_axis(x: float) -> float:
        return (x - started) / axis.seconds if axis.unit == "time" else x

    def read(names: Sequence[str], phase: str | None, kind: str | None) -> list[Points]:
        found: dict[tuple[str, str | None], list[Points]] = {}
        for instance in instances:
            query = points.SeriesQuery(
                tuple(names), phase, kind, instance, axis.unit, points=MAX_POINTS
            )
            for item in points.read_series(use.engine, run["id"], query)["items"]:
                line = _points(item, [on_axis(x) for x in item["x"]])
                found.setdefault((line.name, line.phase), []).append(line)
        return [join_attempts(attempts) for attempts in found.values()]

    return read


def _points(item: Mapping[str, Any], x: list[float]) -> Points:
    last, low, high = item["last"], item["min"], item["max"]
    # Extremes are drawn only where they differ from the line.
    banded = low != last or high != last
    return Points(
        item["name"], item["process"], item["phase"], x, last,
        low if banded else None, high if banded else None,
    )  # fmt: skip


@router.get("/compare")
def compare(
    use: Use,
    before: str = "",
    after: str = "",
    pick: Annotated[list[str] | None, Query(max_length=2)] = None,
) -> Response:
    """``pick`` is what the list of runs sends without scripts: two runs in any order, the older one is before."""
    if pick and len(pick) == 2:
        before, after = sorted(pick, key=lambda run_id: _known(use, run_id)["started_at"])
    if not (before and after):
        return _pick(use, before, after)
    sides = (_known(use, before), _known(use, after))
    page = compare_page(
        *sides,
        to_json(use.derived.compare(before, after)),
        [_ends(use, side) for side in sides],
        [use.derived.of(side["id"]).books for side in sides],
    )
    return render("compare.html", page)


def _known(use: Services, run_id: str) -> dict[str, Any]:
    found = runs.get_run(use.engine, run_id)
    if found is None:
        raise run_not_found(run_id)
    return found


def _ends(use: Services, run: Mapping[str, Any]) -> Points | None:
    """Private memory at the generation ends of the run's first process; RSS where the split is not known."""
    first = next((process_label(each) for each in run["processes"]), None)
    instances = [p["instance"] for p in run["processes"] if process_label(p) == first]
    read = _reader(use, run, instances, Axis(run["unit"]))
    for names in (PRIVATE, ("process.rss_bytes",)):
        lines = summed(read(names, None, "generation_end"), names)
        if lines:
            return lines[0]
    return None


def _pick(use: Services, before: str, after: str) -> Response:
    items = runs.list_runs(use.engine, runs.RunFilter(limit=runs.MAX_LIMIT))["items"]
    choices = tuple(RunChoice(each["id"], f"{each['project']} / {each['name']}") for each in items)
    message = (
        "Choose the run before a change and the one after it: the page says whether the leak is gone."
        if choices
        else "There are no runs yet."
    )
    return render("pick.html", PickPage("Compare", message, choices, before, after))


def error_page(request: Request, status: int, code: str, message: str) -> Response:
    """Any error of a page: the same sentence as in the API's JSON."""
    title = {"run_not_found": "No such run"}.get(code) or _TITLES.get(status, "Something is wrong")
    return render("error.html", ErrorPage(title, status, message), status)

"""``/overlay``: up to ten runs on one axis. The address determines the runs, series and range.

The functions that build the page do no I/O; the routes at the end read the store.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from leakline.text_format import count_of, plural

from ..charts.chart_parts import (
    PRIVATE,
    Axis,
    Chart,
    Line,
    Palette,
    Points,
    Unit,
    add_up,
    join_attempts,
    points_of,
)
from ..errors import InvalidField, run_not_found
from ..limits import MAX_RUNS_OVERLAID
from ..store import findings
from ..store.maintenance import run_deletion
from ..store.runs import runs
from ..store.series import SeriesQuery, first_generations, summarise
from .auth.permissions import READ
from .axis_zoom import read_stretch
from .rendering import number_formats
from .rendering.evidence_sections import line_table
from .rendering.page_contexts import Cell, Figure, Section
from .rendering.table_cells import Field, at_iso, code, place, rated, table
from .rendering.templating import render
from .responses import json_response
from .run_page.pages import processes_of
from .run_page.run_data import first_shown, process_label
from .run_page.verdict_view import forecast_text, leading_finding, status_of
from .services import Services, Use

Json = Mapping[str, Any]
Shown = Literal["private", "rss", "gpu", "objects"]
SECONDS: Final = ("generation.seconds",)
# Limits for the table of differences.
MAX_ROWS: Final = 200
MAX_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class Series:
    """A series that users can select: the sum of ``names``; ``*`` matches any characters.

    If ``whole`` is True, only runs that measured the first name have the series.
    """

    label: str
    title: str
    names: tuple[str, ...]
    unit: Unit = "bytes"
    whole: bool = True


SERIES: Final[Mapping[Shown, Series]] = {
    "private": Series("Private memory", "private memory", PRIVATE),
    "rss": Series("RSS", "resident memory", ("process.rss_bytes",)),
    "gpu": Series("GPU allocated", "GPU memory allocated by torch",
                  ("cuda.*.allocated_bytes", "mps.allocated_bytes"), whole=False),
    "objects": Series("Objects", "live Python objects", ("python.objects",), "count"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeriesChoice:
    label: str
    href: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class LeftOut:
    name: str
    href: str


@dataclass(frozen=True, slots=True)
class OverlayPage:
    """The template context of ``/overlay``."""

    title: str
    choices: tuple[SeriesChoice, ...]
    left_out: tuple[LeftOut, ...]
    sections: tuple[Section, ...]
    lines_href: str
    json_href: str


@dataclass(frozen=True, slots=True)
class OverlayRun:
    """A run as JSON, with its verdict.

    ``ends`` contains the values at generation ends, and ``seconds`` the durations of generations.
    Either is None if it was not measured.
    """

    run: Json
    verdict: Json | None
    ends: Points | None
    seconds: Points | None

    @property
    def id(self) -> str:
        return str(self.run["id"])


def measured(runs: Sequence[Json], shown: Shown) -> bool:
    """Return True if any run has measured part of the series."""
    names = {name for run in runs for name in run["series"]}
    return any(_is_one(name, head) for name in names for head in _measured_by(SERIES[shown]))


def _measured_by(series: Series) -> tuple[str, ...]:
    """Return the names whose presence shows that a run has measured the series."""
    return series.names[:1] if series.whole else series.names


def _is_one(name: str, wanted: str) -> bool:
    first, star, last = wanted.partition("*")
    return name.startswith(first) and name.endswith(last) if star else name == wanted


def _line_of(instances: Sequence[str], items: Sequence[Json], series: Series) -> Points | None:
    """Return the sum of the series at each generation end of one rank, joining its attempts.

    ``items`` are the run's series from `summarise`.
    """
    attempts = []
    for instance in instances:
        parts = [points_of(item, item["x"]) for item in items if item["process"] == instance]
        if parts and (not series.whole or parts[0].name == series.names[0]):
            attempts.append(add_up(parts))
    return join_attempts(attempts) if attempts else None


def attempts_of(run: Json, processes: Sequence[Json]) -> list[str]:
    """Return the instances, one per attempt, of the process that the run's page shows first."""
    shown = first_shown(run)
    return [each["instance"] for each in processes if process_label(each) == shown]


def shifts(starts: Mapping[str, float]) -> dict[str, float]:
    """Return the shift of each run to the left, so that all lines start at the same x."""
    if len(set(starts.values())) < 2:
        return dict.fromkeys(starts, 0.0)
    return dict(starts)


def overlay_chart(
    runs: Sequence[Json], lines: Mapping[str, Points], moved: Mapping[str, float], series: Series
) -> Chart | None:
    """Return a chart of the runs' lines. Every run has its own colour, even without a line."""
    palette, names = Palette.of(run["id"] for run in runs), _names(runs)
    drawn = []
    for run in runs:
        points = lines.get(run["id"])
        if points is None:
            continue
        by = moved.get(run["id"], 0.0)
        x = [each - by for each in points.x] if by else points.x
        line = Line(names[run["id"]], x, points.y, points.low, points.high)
        drawn.append(palette.paint(line, run["id"]))
    if not drawn:
        return None
    title = _axis(runs, any(moved.values())).title
    return Chart("overlay", series.unit, series.title, title, tuple(drawn))


def _axis(runs: Sequence[Json], moved: bool) -> Axis:
    unit = _unit(runs)
    return Axis(f"{plural(unit, 2)} since the start" if moved else unit)


def _unit(runs: Sequence[Json]) -> str:
    units = {run["unit"] for run in runs}
    return units.pop() if len(units) == 1 else "generation"


def _names(runs: Sequence[Json]) -> dict[str, str]:
    """Return each run's label: its name, with the id if several runs share the name."""
    often = Counter(run["name"] for run in runs)
    return {
        run["id"]: run["name"] if often[run["name"]] == 1 else f"{run['name']} ({run['id']})"
        for run in runs
    }


def _overlay_page(
    found: Sequence[OverlayRun],
    shown: Shown,
    choices: Sequence[Shown],
    moved: Mapping[str, float],
    left_out: Sequence[tuple[str, str]] = (),
) -> OverlayPage:
    """Return the template context; ``left_out`` contains the (id, name) of each deleted run."""
    runs = [each.run for each in found]
    return OverlayPage(
        title=f"Overlay of {count_of(len(runs), 'run')}",
        choices=tuple(
            SeriesChoice(SERIES[each].label, address(runs, each), each == shown) for each in choices
        ),
        left_out=tuple(
            LeftOut(name, f"/runs/{quote(run_id, safe='')}") for run_id, name in left_out
        ),
        sections=(_trend(found, shown, moved), _figures(found), _differences(runs)),
        lines_href=address(runs, shown, "/overlay/lines"),
        json_href=_api_address(runs, SERIES[shown]),
    )


def address(runs: Sequence[Json], shown: Shown, path: str = "/overlay") -> str:
    return f"{path}?{urlencode([*(('run', run['id']) for run in runs), ('series', shown)])}"


def _api_address(runs: Sequence[Json], series: Series) -> str:
    asked = [("run", run["id"]) for run in runs] + [("name", name) for name in series.names]
    return f"/api/v1/series?{urlencode([*asked, ('kind', 'generation_end')])}"


def _trend(found: Sequence[OverlayRun], shown: Shown, moved: Mapping[str, float]) -> Section:
    runs, series = [each.run for each in found], SERIES[shown]
    unit, names = _unit(runs), _names(runs)
    how = (
        f"{series.label} of the first process of each run at the end of each {unit}. What matters is how steeply a "
        "line climbs, not how high it starts."
    )
    if any(moved.values()):
        how += f" The runs begin at different {plural(unit, 2)}, so each line is drawn from its run's start."
    lines = {each.id: each.ends for each in found if each.ends is not None}
    chart = overlay_chart(runs, lines, moved, series)
    if chart is None:
        return Section(
            "overlay",
            series.label,
            how,
            empty=f"None of these runs has measured {series.title} at {unit} ends.",
        )
    missing = [names[run["id"]] for run in runs if run["id"] not in lines]
    note = f"Not measured: {', '.join(missing)}." if missing else ""
    figure = Figure(chart, f"{series.label} of {count_of(len(lines), 'run')}.")
    return Section(
        "overlay", series.label, how, figure, line_table(chart, unit), fold=True, note=note
    )


def _figures(found: Sequence[OverlayRun]) -> Section:
    unit = _unit([each.run for each in found])
    heads = (
        "run", "verdict", f"#{plural(unit, 2)}", f"#growth per {unit}", "#grows since", "#runs out",
        f"#time per {unit}", "started",
    )  # fmt: skip
    rows = [_row(each) for each in found]
    how = f"Growth is the change in private memory per {unit}, with its 90 % interval; times are medians."
    return Section("runs", "The runs", how, table=table(heads, rows, tall=False))


def _row(each: OverlayRun) -> list[Field]:
    run = each.run
    status = status_of(run["status"])
    finding = leading_finding(each.verdict)
    start = finding and finding["started_at_generation"]
    return [
        Cell(run["name"], href=f"/runs/{quote(run['id'], safe='')}", title=run["id"]),
        rated(status.word, status.status),
        _progress(run),
        number_formats.interval(run["growth_bytes_per_generation"], number_formats.change),
        f"{run['unit']} {place(round(start['estimate']))}" if start else "–",
        forecast_text(run["oom"], run["unit"]),
        number_formats.seconds(_middle(each.seconds)),
        at_iso(run["started_at"]),
    ]


def _progress(run: Json) -> str:
    done, total = run["generations"], run["total"]
    return f"{done:,} of {total:,}" if total else f"{done:,}"


def _middle(points: Points | None) -> float | None:
    known = [y for y in points.y if y is not None] if points else []
    return median(known) if known else None


def _differences(runs: Sequence[Json]) -> Section:
    how = "Values that differ between the configurations and environments of the runs."
    rows = list(_differing(runs))
    if not rows:
        return Section("differences", "Differences", how, empty="No difference was recorded.")
    names = _names(runs)
    heads = ("what", *(names[run["id"]] for run in runs))
    shown = table(heads, rows[:MAX_ROWS], tall=len(rows) > 12)
    note = (
        f"Only {MAX_ROWS} of {len(rows):,} differences are shown." if len(rows) > MAX_ROWS else ""
    )
    return Section("differences", "Differences", how, table=shown, note=note)


def _differing(runs: Sequence[Json]) -> Iterator[list[Field]]:
    for kind in ("config", "environment"):
        columns = [dict(_flat(run[kind])) for run in runs]
        for name in sorted({name for column in columns for name in column}):
            values = [column.get(name) for column in columns]
            if any(value != values[0] for value in values):
                yield [code(f"{kind}.{name}"), *map(_said, values)]


def _flat(value: Json, before: str = "") -> Iterator[tuple[str, str]]:
    """Flatten a nested mapping into pairs such as (``packages.torch``, ``2.13.0``)."""
    for name, each in value.items():
        if isinstance(each, Mapping):
            yield from _flat(each, f"{before}{name}.")
        else:
            yield f"{before}{name}", each if isinstance(each, str) else json.dumps(each)


def _said(value: str | None) -> Cell:
    if value is None:
        return Cell("–")
    if len(value) <= MAX_CHARACTERS:
        return Cell(value)
    return Cell(value[: MAX_CHARACTERS - 1] + "…", title=value)


router = APIRouter(
    include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ]
)

# A chart cannot show more points than it has pixels.
MAX_POINTS_SHOWN: Final = 2_000
_END: Final = "generation_end"
_TIMES: Final = Series("Time", "time", SECONDS, "seconds")
Ids = Annotated[list[str] | None, Query()]


@router.head("/overlay")
@router.get("/overlay")
def show_overlay(use: Use, run: Ids = None, pick: Ids = None, series: str = "") -> Response:
    """Show the overlay; ``pick`` contains the runs selected in the list of runs."""
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
    return render("overlay.html", _overlay_page(laid, shown, choices, moved, names))


@router.get("/overlay/lines")
def show_lines(use: Use, x: str, run: Ids = None, series: str = "") -> Response:
    """Return the lines within an axis range as {"lines": {chart id: lines}}.

    The limit on points per line is the same as for the entire axis.
    """
    stretch, shown = read_stretch(x), _series(series) or "private"
    found, _ = _known(use, _chosen(run or []))
    moved = shifts(_starts(use, found, SERIES[shown]))
    lines: dict[str, Points] = {}
    for each in found:
        by = moved.get(each["id"], 0.0)
        # Round outwards to whole generations, so that lines reach the edge of the chart.
        ends = math.floor(stretch.first) + by, math.ceil(stretch.last) + by
        lines |= _lines(use, [each], SERIES[shown], ends)
    chart = overlay_chart(found, lines, moved, SERIES[shown])
    return json_response({"lines": {chart.id: chart.lines} if chart else {}})


def _series(text: str) -> Shown | None:
    return next((each for each in SERIES if each == text), None)


def _chosen(ids: Sequence[str]) -> list[str]:
    chosen = list(dict.fromkeys(ids))
    if not chosen:
        raise InvalidField(
            "run", None, "select two to ten runs in the list of runs, then choose Overlay"
        )
    if len(chosen) > MAX_RUNS_OVERLAID:
        raise InvalidField(
            "run",
            f"{len(chosen)} runs",
            f"an overlay shows at most {MAX_RUNS_OVERLAID} runs; select fewer",
        )
    return chosen


def _known(
    use: Services, ids: Sequence[str]
) -> tuple[list[dict[str, Any]], list[run_deletion.Deleted]]:
    """Return the existing and the deleted runs. Raises NotFound for an unknown run."""
    gone = run_deletion.among(use.engine, ids)
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
    """Return the lines by run id, for runs that have measured the series."""
    start, stop = ends or (None, None)
    attempts = {each["id"]: attempts_of(each, processes_of(use, each)) for each in found}
    # Read only one rank per run: all ranks of a large run would leave no room for the next runs.
    query = SeriesQuery(
        series.names, kind=_END, start=start, stop=stop, points=MAX_POINTS_SHOWN,
        among=frozenset(instance for each in attempts.values() for instance in each),
    )  # fmt: skip
    items = summarise(use.engine, [each["id"] for each in found], query)["items"]
    of_runs = {
        each["id"]: _line_of(
            attempts[each["id"]], [item for item in items if item["run"] == each["id"]], series
        )
        for each in found
    }
    return {run_id: line for run_id, line in of_runs.items() if line is not None}


def _starts(use: Services, found: Sequence[Mapping[str, Any]], series: Series) -> dict[str, float]:
    """Return the first generation of each run's line, for runs that have a line."""
    starts = {}
    for each in found:
        instances = attempts_of(each, processes_of(use, each))
        first = first_generations(use.engine, each["id"], _measured_by(series), _END, instances)
        if first:
            starts[each["id"]] = min(first.values())
    return starts

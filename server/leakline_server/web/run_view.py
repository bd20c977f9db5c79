"""What is known of one run -> the context of its page. Pure; reading the store is pages.py's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote, urlencode

from leakline.analysis.books import NO_PHASE
from leakline.analysis.promises import GENERATIONS
from leakline.analysis.results import BookLine, Books, ExpectationRow, StoreFill, TypeGrowth

from .. import charts
from ..chart_parts import Axis, Chart, Line, Palette, Points, add_up
from ..store.runs import unix
from . import ending_view, formats, inventory, sections
from .accounted import SOURCES, accounted
from .annotations import NO_CLOCK, Clock, fix_effects, marks
from .calculator import calculator
from .checklist import ticks
from .contexts import HeadFact, ProcessChoice, RunHead, RunPage, Section
from .links import commit_link
from .notes_view import notes, notes_of
from .planned import course, planned
from .promises import promises
from .search_words import search_for
from .sharing import share_run
from .verdict_view import findings_view, plural, tiles, verdict_view
from .waterfall_view import waterfall
from .zoom import Stretch

Json = Mapping[str, Any]

# (names, phase or "*", kind or None) -> one Points for each name and phase; a name may end in "*".
ReadSeries = Callable[[Sequence[str], str | None, str | None], Sequence[Points]]

_TENSORS: Final = {
    "tensors.count": "tensors", "tensors.graph_count": "tensors with a graph", "arrays.count": "NumPy arrays",
    "figures.open": "open figures",
}  # fmt: skip
_PHASE_PEAK: Final = "process.phase_peak_bytes"
_CLIENT: Final = (
    "client.seconds", "client.background_seconds", "client.pause_seconds", "client.bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything a page of a run is made of, in the shapes of the API."""

    run: Json
    verdict: Json | None
    axis: Axis
    read: ReadSeries
    books: Books
    types: Sequence[TypeGrowth]
    stores: Sequence[StoreFill]
    expectations: Sequence[ExpectationRow]
    events: Sequence[Json]
    large_objects: Sequence[Json]
    holders: Sequence[Json]
    snapshots: Sequence[Json]
    process: str | None = None  # "rank role" of the process whose lines are shown
    incidents: Sequence[Json] = ()
    census: Json | None = None
    clock: Clock = NO_CLOCK
    # What the address of the page asks for, by parameter.
    asked: Mapping[str, str] = field(default_factory=dict)
    # Private memory of all processes at the end of the generation that the books are shown of as one sum.
    end_bytes: float | None = None


def run_page(data: RunData) -> RunPage:
    data = replace(data, books=in_phase_order(data.run, data.books))
    run, unit = data.run, data.run["unit"]
    return RunPage(
        title=run["name"],
        run=_head(data),
        verdict=verdict_view(data.verdict),
        tiles=tiles(data.verdict, unit),
        findings=findings_view((data.verdict or {}).get("findings", ()), unit),
        processes=_process_choices(data),
        ticks=ticks(data.verdict),
        sections=tuple(section for section in _sections(data) if section is not None),
    )


def zoomed_lines(data: RunData, stretch: Stretch) -> dict[str, tuple[Line, ...]]:
    """Chart -> its lines, where ``data`` reads that stretch alone. Charts without an axis to zoom are left out."""
    data = replace(data, books=in_phase_order(data.run, data.books))
    first, last = math.floor(stretch.first), math.ceil(stretch.last)
    data = replace(data, books=charts.books_within(data.books, first, last))
    drawn = [section.figure.chart for section in _sections(data) if section and section.figure]
    return {chart.id: chart.lines for chart in drawn if chart.x_unit != "step"}


def progress(run: Json, verdict: Json | None = None) -> str:
    """``12 of 25 generations``."""
    done, total, unit = run["generations"], planned_total(run, verdict), run["unit"]
    if total:
        return f"{done:,} of {total:,} {plural(unit, total)}"
    return f"{done:,} {plural(unit, done)}"


def planned_total(run: Json, verdict: Json | None = None) -> int | None:
    """How many generations were announced, or else promised by a fix, or else planned for memory."""
    told = verdict or {}
    promised = [c["promised"] for c in told.get("fixes") or () if c["claim"] == GENERATIONS]
    # The first generation of a plan is 0 or 1, as the program counts; its last is told as it is.
    planned_for = [check["last"] for check in told.get("bands") or () if check["last"] is not None]
    if run["total"]:
        return int(run["total"])
    found = max((int(p) for p in promised if p), default=0) or max(planned_for, default=0)
    # A plan that the run has left behind says nothing of its end.
    return found if found >= run["generations"] and found else None


def _head(data: RunData) -> RunHead:
    run = data.run
    address = f"/runs/{quote(run['id'], safe='')}"
    environment = run["environment"]
    # The whole of a commit is below, with the rest of the environment.
    shown = (("host", None), ("commit", 10))
    links = {"commit": commit_link(environment)}
    facts = [
        HeadFact(name, str(environment[name])[:upto], links.get(name))
        for name, upto in shown
        if environment.get(name)
    ]
    if run["peak_bytes"] is not None:
        facts.append(HeadFact("peak", formats.size(run["peak_bytes"])))
    return RunHead(
        id=run["id"],
        name=run["name"],
        project=run["project"],
        project_href=search_for(run["project"], "project"),
        state=run["state"],
        ending=ending_view.ending(run),
        ended=ending_view.is_over(run),
        unit=run["unit"],
        progress=progress(run, data.verdict),
        done=run["generations"],
        planned=planned_total(run, data.verdict),
        started_at=run["started_at"],
        started=formats.clock(run["started_at"]),
        seen_at=run["last_seen_at"],
        seen=formats.clock(run["last_seen_at"]),
        started_seconds=unix(run["started_at"]),
        tags=tuple(run["tags"]),
        facts=tuple(facts),
        fragments_href=f"{address}/fragments",
        lines_href=f"{address}/lines",
        live_href=f"/api/v1{address}/live",
        requests_href=f"/api/v1{address}/requests",
        offers_cleanup=_offers_cleanup(data.events),
        revision=run["revision"],
        share=share_run(run["id"], data.asked),
    )


def _offers_cleanup(events: Sequence[Json]) -> bool:
    """Whether the program has registered a cleanup that it may be asked for; the newest word of each counts."""
    words = {e["name"]: e["data"] for e in events if e["kind"] == "register_cleanup"}
    return any(word.get("on_request") is True for word in words.values())


def process_label(process: Json) -> str:
    """The same for every attempt of one rank, so that its lines join."""
    return f"rank {process['rank']} {process['role']}"


def _process_choices(data: RunData) -> tuple[ProcessChoice, ...]:
    labels = list(dict.fromkeys(process_label(each) for each in data.run["processes"]))
    return tuple(
        ProcessChoice(label, "?" + urlencode({"process": label}), label == data.process)
        for label in labels
    )


def _sections(data: RunData) -> list[Section | None]:
    run, axis, unit = data.run, data.axis, data.run["unit"]
    palette = palette_of(run, data.books)
    by_phase = axis.unit == "generation"
    end = "generation_end" if by_phase else None
    read_end = _at_ends(data.read, end)
    resident = charts.memory_chart(axis, read_end(charts.MEMORY_SERIES), end)
    devices = read_end(charts.GPU_SERIES)
    titles = sections.type_lines(data.types)
    # A run that was uploaded later was last seen long after its end.
    wall = unix(run["ended_at"] or run["last_seen_at"]) - unix(run["started_at"])
    client = {p.name: _last(p) for p in data.read(_CLIENT, None, None)}
    trend = trend_chart(data, palette)
    return [
        sections.trend(trend, unit, trend_note(data)),
        ending_view.end(run, data.snapshots),
        promises((data.verdict or {}).get("fixes", ()), unit),
        planned(data.verdict, unit),
        sections.books(charts.books_chart(axis, palette, data.books), data.books, unit)
        if by_phase
        else None,
        waterfall(data.books, palette, unit, data.asked.get("g", ""), data.end_bytes, data.asked)
        if by_phase
        else None,
        sections.memory(
            resident,
            unit,
            {p.name: _last(p) for p in read_end(("allocator.kept_bytes",))},
            _phase_peaks(data.read),
            exact_peaks=run["environment"].get("exact_peaks") is True,
            accounted=_accounted(data, read_end),
        ),
        sections.gpu(
            charts.gpu_chart(axis, devices, end), unit, {p.name: _last(p) for p in devices}
        ),
        sections.types(
            charts.counts_chart("types", axis, read_end(tuple(titles)), titles, end),
            data.types,
            unit,
        ),
        calculator(data.verdict, data.types, data.holders, unit, data.asked),
        inventory.holders(data.holders),
        sections.tensors(
            charts.counts_chart("tensors", axis, read_end(tuple(_TENSORS)), _TENSORS, end), unit
        ),
        sections.containers(_fill_chart(data, read_end), data.stores, unit),
        inventory.large_objects(data.large_objects),
        sections.gauges(_gauge_chart(axis, read_end, end), unit),
        inventory.expectations(data.expectations),
        notes(notes_of(run, data.events), unit),
        inventory.events(data.events, unit, run["environment"], fix_effects(trend.marks)),
        sections.seconds(charts.seconds_chart(axis, palette, data.books), unit)
        if by_phase
        else None,
        inventory.processes(run["processes"]),
        ending_view.delivery(run["processes"]),
        ending_view.attempts(run),
        ending_view.lines(run),
        sections.cost(client, wall, run["environment"].get("native")),
        inventory.snapshots(data.snapshots, unit),
        inventory.environment(run["environment"], run["config"]),
    ]


def _phase_peaks(read: ReadSeries) -> dict[str, float]:
    """The highest of each phase; where several snapshots share a point, the highest of those."""
    found: dict[str, float] = {}
    for points in read((_PHASE_PEAK,), "*", "phase_end"):
        seen = [value for value in (points.high or points.y) if value is not None]
        if points.phase and seen:
            found[points.phase] = max(found.get(points.phase, 0.0), *seen)
    return found


def _at_ends(read: ReadSeries, kind: str | None) -> Callable[[Sequence[str]], Sequence[Points]]:
    return lambda names: read(names, None, kind) if names else ()


def in_phase_order(run: Json, books: Books) -> Books:
    """Lines as the phases run, nested ones after the phase they are in, and what lies outside of all last."""
    top = list(dict.fromkeys(name.split("/")[0] for name in [*run["phases"], *run["phases_seen"]]))

    def order(line: BookLine) -> tuple[int, str]:
        first = line.name.split("/")[0]
        if line.name in NO_PHASE:
            return len(top) + 1 + NO_PHASE.index(line.name), ""
        return top.index(first) if first in top else len(top), line.name

    return replace(books, lines=tuple(sorted(books.lines, key=order)))


def palette_of(run: Json, books: Books) -> Palette:
    """Declared phases first: their colours do not depend on what happens to run."""
    booked = (line.name for line in books.lines if line.name not in NO_PHASE)
    return Palette.of([*run["phases"], *run["phases_seen"], *booked])


def _accounted(data: RunData, read_end: Callable[[Sequence[str]], Sequence[Points]]) -> str:
    private = summed(read_end(charts.PRIVATE), charts.PRIVATE)
    last = {points.name: _last(points) for points in read_end(SOURCES)}
    return accounted(_last(private[0]) if private else None, last, data.census)


def trend_chart(data: RunData, palette: Palette) -> Chart:
    private, rss = _lines(data, charts.PRIVATE), _lines(data, ("process.rss_bytes",))
    ends = next((points for points in private or rss if points.phase is None), None)
    happened = marks(
        data.run, data.events, notes_of(data.run, data.events), data.incidents, data.verdict, ends,
        data.axis, data.clock,
    )  # fmt: skip
    return charts.trend_chart(data.axis, palette, private, rss, data.verdict, happened)


def _lines(data: RunData, names: tuple[str, ...]) -> list[Points]:
    """One line for each phase end and one for the generation end; without generations, one through all snapshots."""
    if data.axis.unit == "time":
        return summed(data.read(names, None, None), names)
    phases = summed(data.read(names, "*", "phase_end"), names)
    return [*phases, *summed(data.read(names, None, "generation_end"), names)]


def summed(points: Sequence[Points], names: tuple[str, ...]) -> list[Points]:
    """One line per phase from several series; lines whose first series was not measured are left out."""
    by_phase: dict[str | None, dict[str, Points]] = defaultdict(dict)
    for each in points:
        by_phase[each.phase][each.name] = each
    return [
        add_up([found[name] for name in names if name in found])
        for found in by_phase.values()
        if names[0] in found and any(y is not None for y in found[names[0]].y)
    ]


def trend_note(data: RunData) -> str:
    """How much of the memory is private, and whether the lines are RSS for want of a split."""
    growth = (data.verdict or {}).get("growth_bytes_per_generation")
    if growth is None:
        return ""
    unit = data.run["unit"]
    rate = f"Private memory changes by {formats.interval(growth, formats.change)} per {unit}."
    return f"{rate} {course(data.verdict, unit)}".strip()


def _fill_chart(
    data: RunData, read_end: Callable[[Sequence[str]], Sequence[Points]]
) -> Chart | None:
    capacities = {store.name: store.capacity for store in data.stores if store.capacity}
    return charts.fill_chart(
        data.axis, read_end(tuple(f"tracked.{name}.length" for name in capacities)), capacities
    )


def _gauge_chart(
    axis: Axis, read_end: Callable[[Sequence[str]], Sequence[Points]], kind: str | None
) -> Chart | None:
    points = read_end(("gauge.*",))
    titles = {each.name: each.name.removeprefix("gauge.") for each in points}
    return charts.counts_chart("gauges", axis, points, titles, kind, unit="number", y_title="value")


def _last(points: Points) -> float | None:
    return next((y for y in reversed(points.y) if y is not None), None)

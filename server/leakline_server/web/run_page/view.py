"""The template context of a run's page, built from RunData. No I/O: pages.py reads the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import quote, urlencode

from leakline.analysis.assertions.declared_limits import GENERATIONS
from leakline.analysis.findings.verdict_summary import course_lines
from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.analysis.memory.memory_kinds import sizes_of_children
from leakline.analysis.results import to_json
from leakline.analysis.status import ACTIVE
from leakline.report.verdict_facts import NOT_PRIVATE, graph_rates, leading_finding
from leakline.text_format import count_of, plural
from leakline.transport.oom_inference import ended_as

from ...charts.chart_parts import PRIVATE, Chart, Points
from ...store.runs.runs import LISTENING, unix
from ..alerts.view import channels
from ..expectations.view import count_forms, expectations
from ..rendering import evidence_sections, number_formats
from ..rendering.page_contexts import (
    AxisLink,
    Bar,
    HeadFact,
    RunChoice,
    RunHead,
    RunPage,
    Section,
    Tab,
    share_run,
)
from ..rendering.table_cells import commit_link
from ..search_query import search_for
from . import counted_objects, inventory_tables, process_sections
from .annotations import timeline
from .changes_panel import changes_panel, ends_named, ranges
from .counted_objects import accounted
from .fix_effects import effects, ticks
from .process_sections import children, growth_of
from .run_charts import PHASE_PEAK, Drawn, draw, in_phase_order, palette_of
from .run_data import (
    TABS,
    Json,
    RunData,
    has_several,
    last_of,
    own_growth,
    process_label,
    summed,
)
from .verdict_view import (
    facts,
    findings_title,
    findings_view,
    mutings_of,
    past_forecasts,
    status_of,
    verdict_view,
)

# Icons for the browser tab.
_ICONS: Final = {each: f"/static/images/favicon-{each}.svg" for each in ACTIVE}
# The number of processes on the first screen.
BARS_SHOWN: Final = 6
_CLIENT: Final = (
    "client.seconds", "client.background_seconds", "client.pause_seconds", "client.bytes",
)  # fmt: skip


def run_page(data: RunData) -> RunPage:
    data = replace(data, phase_accounts=in_phase_order(data.run, data.phase_accounts))
    run, unit = data.run, data.run["unit"]
    drawn = draw(data, palette_of(run, data.phase_accounts))
    findings = (data.verdict or {}).get("findings", ())
    processes = _process_bars(data, drawn.ends)
    status = (data.verdict or {}).get("status", "learning")
    mutings = mutings_of(
        run["project"], [each["fingerprint"] for each in data.incidents], _here(data)
    )
    return RunPage(
        title=_title(data),
        icon=_ICONS.get(status, "/static/images/favicon.svg"),
        run=_head(data),
        verdict=replace(
            verdict_view(data.verdict, over=process_sections.is_over(run)),
            ending=process_sections.ended_badly(run, data.snapshots),
        ),
        facts=facts(data.verdict, unit, over=process_sections.is_over(run)),
        findings=findings_view(findings, unit, data.said, mutings),
        findings_title=findings_title(findings),
        memory=evidence_sections.trend(drawn.charts["trend"], unit, _trend_note(data), _axes(data)),
        changes=changes_panel(data),
        phases=evidence_sections.phase_bars(data.phase_accounts, findings),
        phases_note=evidence_sections.why_phases_differ(findings),
        processes=processes[:BARS_SHOWN] if len(processes) > 1 else (),
        more_processes=processes[BARS_SHOWN:],
        left_out=_left_out(run),
        asked=tuple(data.asked.items()),
        tabs=tuple(_tabs(data, drawn)),
    )


def _here(data: RunData) -> str:
    """Return the page's address; forms redirect to this address when they are done."""
    asked = data.open_tab | data.asked
    return f"/runs/{quote(data.run['id'], safe='')}{f'?{urlencode(asked)}' if asked else ''}"


def _axes(data: RunData) -> tuple[AxisLink, ...]:
    """Return links that switch the axis between generations and time, if the run has generations."""
    if not data.run["generations"]:
        return ()
    rest = data.open_tab | data.asked
    by_time = data.axis.unit == "time"
    of_unit = urlencode({name: value for name, value in rest.items() if name != "axis"})
    return (
        AxisLink(data.run["unit"], f"?{of_unit}", not by_time),
        AxisLink("time", f"?{urlencode(rest | {'axis': 'time'})}", by_time),
    )


def _tabs(data: RunData, drawn: Drawn) -> Iterator[Tab]:
    whole = len(data.tabs) > 1
    for name, title in TABS.items():
        if name == "gpu" and not data.has_gpu:
            continue
        asked = {"tab": name} | data.asked | ({"x": data.x} if data.x else {})
        shown = name in data.tabs
        yield Tab(
            name,
            title,
            f"#tab-{name}" if whole else f"?{urlencode(asked)}#tabs",
            shown and not whole,
            process_sections.lost_words(data.run) if name == "info" else "",
            tuple(each for each in _SECTIONS[name](data, drawn) if each) if shown else (),
            ticks(data.verdict) if shown and name == "events" else (),
        )


def _title(data: RunData) -> str:
    """Return a title such as ``12/160 leaking · night-run`` that stays readable in a background tab."""
    run, planned = data.run, _planned_total(data.run, data.verdict)
    done = f"{run['generations']:,}/{planned:,}" if planned else progress(run, data.verdict)
    status = (data.verdict or {}).get("status", "learning")
    word = "" if status == "ok" else status_of(status).word.lower()
    return f"{' '.join(filter(None, (done, word)))} · {run['name']}"


def progress(run: Json, verdict: Json | None = None) -> str:
    """Return the progress, such as ``12 of 25 generations``, or ``2 h 5 min`` without generations."""
    if run["unit"] in UNITS_OF_TIME:
        until = unix(run["ended_at"] or run["last_seen_at"])
        return number_formats.seconds(max(0.0, until - unix(run["started_at"])))
    done, total, unit = run["generations"], _planned_total(run, verdict), run["unit"]
    if total:
        return f"{done:,} of {total:,} {plural(unit, total)}"
    return count_of(done, unit)


def _planned_total(run: Json, verdict: Json | None = None) -> int | None:
    """Return the planned number of generations from the run, a fix's promise or an assertion."""
    if run["unit"] in UNITS_OF_TIME:
        return None
    assertions = (verdict or {}).get("assertions") or ()
    promised = [
        each["low"]
        for each in assertions
        if each["origin"] == "fix" and each["metric"] == GENERATIONS
    ]
    # The last generation of a plan is shown as declared, because a program may count from 0 or 1.
    planned_for = [each["last"] for each in assertions if each["last"] is not None]
    if run["total"]:
        return int(run["total"])
    found = max((int(p) for p in promised if p), default=0) or max(planned_for, default=0)
    # A plan that the run has exceeded does not predict its end.
    return found if found >= run["generations"] and found else None


def _head(data: RunData) -> RunHead:
    run = data.run
    address = f"/runs/{quote(run['id'], safe='')}"
    environment = run["environment"]
    # The full commit hash is below, with the rest of the environment.
    shown = (("host", None), ("commit", 10))
    links = {"commit": commit_link(environment)}
    facts = [
        HeadFact(name, str(environment[name])[:end], links.get(name))
        for name, end in shown
        if environment.get(name)
    ]
    if run["peak_bytes"] is not None:
        facts.append(HeadFact("peak RSS", number_formats.size(run["peak_bytes"])))
    return RunHead(
        id=run["id"],
        name=run["name"],
        project=run["project"],
        project_href=search_for(run["project"], "project"),
        state=run["state"],
        reason=run["reason"],
        end_inferred=run["end_inferred"],
        ending=ended_as(run["state"], run["reason"]),
        listens=run["state"] in LISTENING,
        unit=run["unit"],
        progress=progress(run, data.verdict),
        done=run["generations"],
        planned=_planned_total(run, data.verdict),
        started_at=run["started_at"],
        started=number_formats.clock(run["started_at"]),
        seen_at=run["last_seen_at"],
        seen=number_formats.clock(run["last_seen_at"]),
        quiet_seconds=round(max(0.0, data.read_at - unix(run["last_seen_at"])), 1),
        tags=tuple(run["tags"]),
        facts=tuple(facts),
        fragments_href=f"{address}/fragments",
        lines_href=f"{address}/lines",
        changes_href=f"{address}/changes",
        live_href=f"/api/v1{address}/live",
        requests_href=f"/api/v1{address}/requests",
        offers_cleanup=_offers_cleanup(data.events),
        revision=run["revision"],
        share=share_run(run["id"], data.chosen_process, public=data.public),
        previous=RunChoice(data.previous["id"], data.previous["name"]) if data.previous else None,
        here=_here(data),
        channels=channels(data.webhooks),
    )


def _offers_cleanup(events: Sequence[Json]) -> bool:
    """Return True if a cleanup can be requested; the newest registration of each name counts."""
    words = {e["name"]: e["data"] for e in events if e["kind"] == "register_cleanup"}
    return any(word.get("on_request") is True for word in words.values())


_Sections = list[Section | None]


def _objects(data: RunData, drawn: Drawn) -> _Sections:
    run, unit, charts = data.run, data.run["unit"], drawn.charts
    last = {p.name: last_of(p) for p in drawn.ends}
    whose = _whose(run)
    return [
        types_section(data, charts.get("types")),
        inventory_tables.holders(data.holders, whose),
        expectations(_checks(data), unit, count_forms(run, data.stable, data.accepted)),
        evidence_sections.tensors(charts.get("tensors"), unit),
        evidence_sections.containers(charts.get("fill"), data.containers, unit),
        inventory_tables.large_objects(data.large_objects, whose),
        evidence_sections.memory(
            charts.get("memory"),
            unit,
            last,
            _phase_peaks(drawn.phases),
            exact_peaks=run["environment"].get("exact_peaks") is True,
            accounted=_accounted(data, drawn.ends, last),
        ),
    ]


def types_section(data: RunData, chart: Chart | None) -> Section:
    """Return the section of types, for the entire run or for the selected range."""
    process = data.process if has_several(data.run) else None
    newest = next(iter(data.phase_accounts.generations[-1:]), None)
    rates = graph_rates(data.verdict)
    found = counted_objects.types(chart, data.types, data.run["unit"], process, newest, rates)
    found = replace(found, ranges=ranges(data))
    if data.changes is None:
        return found
    rows = counted_objects.types_between(data.changes, data.types, *ends_named(data))
    empty = "No type was counted near both ends of the range."
    return replace(found, table=rows if rows.rows else None, empty=empty)


def _phases(data: RunData, drawn: Drawn) -> _Sections:
    unit, charts = data.run["unit"], drawn.charts
    by_phase = data.axis.unit == "generation"
    return [
        evidence_sections.phase_accounts(charts.get("phases"), data.phase_accounts, unit)
        if by_phase
        else None,
        evidence_sections.seconds(charts.get("seconds"), unit),
        children(charts.get("children"), unit, data.process if has_several(data.run) else None),
        evidence_sections.gauges(charts.get("gauges"), unit),
    ]


def _gpu(data: RunData, drawn: Drawn) -> _Sections:
    last = {p.name: last_of(p) for p in drawn.ends}
    return [evidence_sections.gpu(drawn.charts.get("gpu"), data.run["unit"], last)]


def _events(data: RunData, drawn: Drawn) -> _Sections:
    run, unit = data.run, data.run["unit"]
    return [
        process_sections.end(run, data.snapshots),
        effects(data.effects, unit, run["environment"]),
        process_sections.lines(run),
        timeline(run, data.events, data.alerts, drawn.effects, _whose(run), bool(data.webhooks)),
    ]


def _info(data: RunData, drawn: Drawn) -> _Sections:
    run, verdict = data.run, data.verdict or {}
    # Prefer the end: `last_seen_at` of a run that was uploaded later is much later.
    wall = unix(run["ended_at"] or run["last_seen_at"]) - unix(run["started_at"])
    client = {p.name: last_of(p) for p in data.read(_CLIENT, None, None)}
    return [
        inventory_tables.processes(
            run["processes"],
            data.snapshots,
            verdict.get("findings", ()),
            run["unit"],
            run["processes_left_out"],
        ),
        process_sections.delivery(run["processes"]),
        process_sections.attempts(run, data.verdict),
        past_forecasts(verdict.get("forecast_score"), run["unit"]),
        evidence_sections.cost(client, wall, run["environment"].get("native")),
        inventory_tables.environment(run["environment"], run["config"]),
    ]


_SECTIONS: Final[Mapping[str, Callable[[RunData, Drawn], _Sections]]] = {
    "objects": _objects, "phases": _phases, "gpu": _gpu, "events": _events, "info": _info,
}  # fmt: skip


def _whose(run: Json) -> dict[str, str]:
    return {each["instance"]: process_label(each) for each in run["processes"]}


def _process_bars(data: RunData, ends: Sequence[Points]) -> tuple[Bar, ...]:
    """Return bars for the ranks and for the children of the selected rank, fastest growth first.

    The selected process is always among the visible bars. A rank's link leads to that rank's lines
    and keeps the current tab open.
    """
    run = data.run
    grown: dict[str, float | None] = {}
    for each in run["processes"]:
        growth, label = each["growth_bytes_per_generation"], process_label(each)
        if growth is not None:
            grown[label] = float(growth["estimate"])
        # Keep the previous attempt's estimate until the current attempt has one: a rank that has just
        # been resumed has no estimate yet.
        grown.setdefault(label, None)
    ranks = set(grown)
    children = sizes_of_children(each.name for each in ends)
    # The growth of a rank is per generation or, without generations, per second or minute. The
    # growth of a child is per unit of the axis, which may be hours. If the viewer chose time for a
    # run with generations, the child's growth per generation is unknown.
    by_time = data.axis.unit == "time"
    steps = data.axis.seconds / UNITS_OF_TIME.get(run["unit"], math.nan) if by_time else 1
    for each in ends:
        if each.name in children:
            rate = growth_of(each)
            is_known = rate is not None and not math.isnan(steps)
            grown[children[each.name]] = (rate or 0) / steps if is_known else None
    most = max((value for value in grown.values() if value), default=0)
    names = sorted(grown, key=lambda name: -(grown[name] or 0))
    if data.process in names[BARS_SHOWN:]:
        names.remove(data.process)
        names.insert(BARS_SHOWN - 1, data.process)
    return tuple(
        Bar(
            name,
            "unknown" if (value := grown[name]) is None else number_formats.change(value),
            100 * max(value or 0, 0) / most if most > 0 else 0,
            href=f"?{urlencode(data.asked | {'process': name} | data.open_tab)}"
            if len(ranks) > 1 and name in ranks
            else "",
            chosen=name == data.process,
        )
        for name in names
    )


def _left_out(run: Json) -> str:
    """Return a sentence with the number of processes that the page omits."""
    left_out = run["processes_left_out"]
    return (
        f"{count_of(left_out, 'more process')} {'is' if left_out == 1 else 'are'} not listed."
        if left_out
        else ""
    )


def _checks(data: RunData) -> list[Json]:
    """Return the verdict's assertions with current counts: accepted counts may be newer than the verdict."""
    found = (data.verdict or {}).get("assertions") or ()
    rest = [each for each in found if each["origin"] not in ("expect", "accepted")]
    return [*rest, *to_json(data.counts)]


def _phase_peaks(phases: Sequence[Points]) -> dict[str, float]:
    """Return the highest peak of each phase; a point may combine several snapshots."""
    found: dict[str, float] = {}
    for points in phases:
        seen = [value for value in (points.high or points.y) if value is not None]
        if points.name == PHASE_PEAK and points.phase and seen:
            found[points.phase] = max(found.get(points.phase, 0.0), *seen)
    return found


def _accounted(data: RunData, ends: Sequence[Points], last: Mapping[str, float | None]) -> str:
    private = summed(ends, PRIVATE)
    newest = next(iter(data.phase_accounts.generations[-1:]), None)
    at = (data.census or {}).get("generation")
    older = at if at is not None and newest is not None and at < newest else None
    coverage = accounted(last_of(private[0]) if private else None, last, data.census)
    if not coverage or older is None:
        return coverage
    return f"{coverage} Other objects are from the census at {data.run['unit']} {older:,}."


def _trend_note(data: RunData) -> str:
    """Return a sentence with private memory's growth rate, in total and for the selected process."""
    growth = (data.verdict or {}).get("growth_bytes_per_generation")
    if growth is None:
        return ""
    unit = data.run["unit"]
    memory = "Memory of tensors" if "tfjs_backend" in data.run["environment"] else "Private memory"
    text = f"{number_formats.interval(growth, number_formats.change)} per {unit}"
    rate = f"{memory} changes by {text}."
    if has_several(data.run):
        own = own_growth(data.run, data.process)
        known = (
            "at an unknown rate"
            if own is None
            else f"by {number_formats.interval(own, number_formats.change)}"
        )
        rate = (
            f"{memory} of all processes together changes by {text}; the memory of {data.process}, "
            f"which is shown, changes {known}."
        )
    return f"{_of_finding(data.verdict)}{rate} {' '.join(course_lines(data.verdict or {}, unit))}".strip()


def _of_finding(verdict: Json | None) -> str:
    """Return a sentence with the leading finding's growth, or an empty string for private memory."""
    finding = leading_finding(verdict)
    memory = NOT_PRIVATE.get(finding["kind"]) if finding is not None else None
    if verdict is None or finding is None or memory is None:
        return ""
    text = number_formats.interval(finding["growth_bytes_per_generation"], number_formats.change)
    return f"{memory}: {text} per {verdict['unit']}. "

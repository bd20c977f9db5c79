"""The charts on a run's page, over the entire axis or a range. No I/O."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Final

from leakline.analysis.memory.memory_by_phase import NO_PHASE
from leakline.analysis.memory.memory_kinds import CHILD_PREFIX, of_ranks, sizes_of_children
from leakline.analysis.results import PhaseAccount, PhaseAccounts
from leakline.report.verdict_facts import NOT_PRIVATE

from ...charts import chart_builder
from ...charts.chart_parts import (
    JS_PRIVATE,
    PRIVATE,
    Chart,
    Group,
    Line,
    Palette,
    Points,
    add_up_processes,
    budget_levels,
    until_others,
    with_named_last,
)
from ...store.runs.runs import unix
from ..axis_zoom import Stretch
from .annotations import fix_effects, marks, notes_of
from .counted_objects import SOURCES, type_lines
from .inventory_tables import Effects
from .run_data import RunData, own_verdict, process_label, summed
from .verdict_view import leading_finding

Json = Mapping[str, Any]

_TENSORS: Final = {
    "tensors.count": "tensors", "tensors.graph_count": "tensors with a graph", "arrays.count": "NumPy arrays",
    "figures.open": "open figures", "tfjs.tensors": "TensorFlow.js tensors",
    "tfjs.buffers": "TensorFlow.js buffers",
}  # fmt: skip
# Kind of a finding whose memory is not private to the process -> (toggle, groups of series that may
# show the growth). The first group that was read is drawn.
_OUTSIDE: Final[Mapping[str, tuple[Group, tuple[tuple[str, ...], ...]]]] = {
    "children": (
        Group("children", NOT_PRIVATE["children"]),
        (("children.uss_bytes",), ("children.pss_bytes",)),
    ),
    "shared_memory": (
        Group("shared", NOT_PRIVATE["shared_memory"]),
        (("process.shared_bytes", "shm.run_bytes"),),
    ),
    "external": (
        Group("outside", NOT_PRIVATE["external"]),
        (("shm.bytes", "cgroup.slab_unreclaimable_bytes"),),
    ),
    "gpu": (
        Group("gpu", NOT_PRIVATE["gpu"]),
        (
            ("cuda.*.allocated_bytes", "gpu.*.outside_bytes", "mps.allocated_bytes"),
            ("gpu.*.process_bytes",),
        ),
    ),
    "gpu_fragmentation": (
        Group("gpu", NOT_PRIVATE["gpu_fragmentation"]),
        (("cuda.*.reserved_bytes",),),
    ),
}
# The first series that was read is used. Runs with more than MAX_LAYERS processes are not stacked.
_CHILDREN: Final = ("children.uss_bytes", "children.pss_bytes")
CHILDREN_LAYER: Final = "child processes"
MAX_LAYERS: Final = 32
_FRAMES: Final = "js.frames_per_second"
RSS: Final = ("process.rss_bytes",)
PHASE_PEAK: Final = "process.phase_peak_bytes"
_TREND: Final = (*PRIVATE, *JS_PRIVATE, *RSS)
# Tab of the page -> the series of its charts, at generation ends. The names of types and containers
# are added to these series.
_OF_TAB: Final = {
    "objects": (*chart_builder.MEMORY_SERIES, *_TENSORS, *SOURCES),
    "phases": ("gauge.*", _FRAMES),
    "gpu": chart_builder.GPU_SERIES,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
    """The charts that share the page's axis, by id, and the data read for the charts.

    The charts are the trend and, from the open tabs, each chart with data. Texts next to the charts
    use the data as well.
    """

    charts: Mapping[str, Chart]
    effects: Effects
    # Series at generation ends (at all snapshots if there are no generations), and at phase ends.
    ends: Sequence[Points]
    phases: Sequence[Points]


def draw(data: RunData, palette: Palette) -> Drawn:
    axis, kind, by_phase = data.axis, data.kind, data.axis.unit == "generation"
    finding = leading_finding(data.verdict) or {"kind": ""}
    wanted = [
        *_TREND,
        f"{CHILD_PREFIX}*",
        *chain.from_iterable(_OUTSIDE.get(finding["kind"], (None, ()))[1]),
    ]
    titles, capacities = {}, {}
    for tab in data.tabs:
        wanted += _OF_TAB.get(tab, ())
    if "objects" in data.tabs:
        titles = type_lines(data.types)
        capacities = {
            f"{kind}.{store.name}.length": store.capacity
            for store in data.containers
            if store.capacity
            for kind in ("tracked", "container")
        }
    # Read all series together: the store decodes phases, kinds and generations once per read.
    ends = data.read(tuple(dict.fromkeys((*wanted, *titles, *capacities))), None, kind)
    phases = data.read((*(_TREND if by_phase else ()), PHASE_PEAK), "*", "phase_end")
    lines = [*phases, *ends]
    private = summed(lines, PRIVATE) or summed(lines, JS_PRIVATE)
    effects = fix_effects(data.events, data.verdict, data.effects, data.run["unit"])
    found: list[Chart | None] = [_trend(data, palette, private, summed(lines, RSS), ends, effects)]
    if "objects" in data.tabs:
        found += [
            chart_builder.memory_chart(axis, ends),
            _types(data, ends, titles),
            chart_builder.counts_chart("tensors", axis, ends, _TENSORS),
            chart_builder.fill_chart(axis, ends, capacities),
        ]
    if "phases" in data.tabs:
        found += [_gauges(data, ends), _children(data, ends)]
        if by_phase:
            found += [
                _phase_accounts(data, palette),
                chart_builder.seconds_chart(axis, palette, data.phase_accounts),
            ]
    if "gpu" in data.tabs:
        found.append(chart_builder.gpu_chart(axis, ends))
    return Drawn({each.id: each for each in found if each is not None}, effects, ends, phases)


def zoomed_lines(data: RunData, stretch: Stretch) -> dict[str, tuple[Line, ...]]:
    """Return the lines by chart id; ``data`` must be limited to ``stretch``."""
    phase_accounts = in_phase_order(data.run, data.phase_accounts)
    first, last = math.floor(stretch.first), math.ceil(stretch.last)
    data = replace(data, phase_accounts=chart_builder.accounts_within(phase_accounts, first, last))
    charts = draw(data, palette_of(data.run, data.phase_accounts)).charts
    return {name: chart.lines for name, chart in charts.items()}


def in_phase_order(run: Json, phase_accounts: PhaseAccounts) -> PhaseAccounts:
    """Sort phases by execution order, with nested phases after their parent.

    Memory outside all phases comes last.
    """
    top = list(dict.fromkeys(name.split("/")[0] for name in [*run["phases"], *run["phases_seen"]]))

    def order(line: PhaseAccount) -> tuple[int, str]:
        first = line.name.split("/")[0]
        if line.name in NO_PHASE:
            return len(top) + 1 + NO_PHASE.index(line.name), ""
        return top.index(first) if first in top else len(top), line.name

    return replace(phase_accounts, lines=tuple(sorted(phase_accounts.lines, key=order)))


def palette_of(run: Json, phase_accounts: PhaseAccounts) -> Palette:
    """Return the colours of the phases.

    Declared phases come first, so that their colours do not depend on which phases ran.
    """
    booked = (line.name for line in phase_accounts.lines if line.name not in NO_PHASE)
    return Palette.of([*run["phases"], *run["phases_seen"], *booked])


def _trend(
    data: RunData,
    palette: Palette,
    private: Sequence[Points],
    rss: Sequence[Points],
    ends: Sequence[Points],
    effects: Effects,
) -> Chart:
    happened = marks(
        data.run, data.events, notes_of(data.run, data.events), data.incidents, data.alerts, effects,
        data.axis, data.clock,
    )  # fmt: skip
    verdict = own_verdict(data.run, data.verdict, data.process)
    shown, whole = verdict, data.verdict
    if data.chosen_axis:
        shown, whole = in_time(data, verdict), in_time(data, data.verdict)
    return chart_builder.trend_chart(
        data.axis, palette, private, rss, shown, happened, _named(ends, verdict), _total(data), whole,
        [*_blamed(verdict)[:1], *_blamed(data.verdict)[1:]],
    )  # fmt: skip


def in_time(data: RunData, verdict: Json | None) -> Json | None:
    """Convert the verdict of a run with generations to minutes, as far as possible.

    The start of growth and the limit are kept; growth per generation has no equivalent per minute.
    """
    clock, begun = data.clock, unix(data.run["started_at"])
    if verdict is None or not clock.times:
        return verdict

    def ended(generation: float) -> float:
        place = bisect_left(clock.generations, generation)
        time = (
            begun
            if generation < clock.generations[0]
            else clock.times[min(place, len(clock.times) - 1)]
        )
        return (time - begun) / 60

    def placed(finding: Json) -> Json:
        start = finding["started_at_generation"]
        if not start:
            return finding
        # Growth began between the end of the previous generation and the end of this one.
        low, high = ended(start["low"] - 1) + 0.5, ended(start["high"]) - 0.5
        return {**finding, "started_at_generation": {**start, "low": low, "high": high}}

    return {
        **verdict,
        "unit": "minute",
        "growth_bytes_per_generation": None,
        "oom": {**verdict["oom"], "generation": None},
        "findings": [placed(each) for each in verdict["findings"]],
    }


def _blamed(verdict: Json | None) -> list[str]:
    """Return the names of the phase line and process line that the leading finding blames."""
    finding = leading_finding(verdict)
    if finding is None:
        return ["", ""]
    phase = finding.get("phase_path") or finding["phase"]
    process = CHILDREN_LAYER if finding["kind"] == "children" else finding.get("process")
    return [f"after {phase}", process or ""]


def _total(data: RunData) -> dict[str, Points]:
    """Return each process's private memory (or RSS) at generation ends, and the sum over all children.

    The result is empty if the run has too many processes for their curves to be distinguished.
    """
    # The newest attempt of each process decides whether the process is over.
    over = {process_label(each): is_over(each) for each in data.run["processes"]}
    if len(over) > MAX_LAYERS or data.run["processes_left_out"]:
        return {}
    layers: dict[str, tuple[Points, bool]] = {}
    children: list[tuple[Points, bool]] = []
    several = len({each["rank"] for each in data.run["processes"]}) > 1
    for label, ended in over.items():
        read = data.read_of(label)(
            (*_TREND, *_CHILDREN, *map(of_ranks, _CHILDREN)), None, data.kind
        )
        found = next(filter(None, (summed(read, each) for each in (PRIVATE, JS_PRIVATE, RSS))), [])
        if found:
            layers[label] = found[0], ended
        by_name = {each.name: each for each in read}
        for name in [name for name in _CHILDREN if name in by_name][:1]:
            ranks = by_name.get(of_ranks(name)) if several else None
            children.append((_without(by_name[name], ranks), ended))
    total = dict(zip(layers, until_others(list(layers.values())), strict=True))
    if children and layers:
        of_each = until_others([*children, *layers.values()])[: len(children)]
        total[CHILDREN_LAYER] = add_up_processes(of_each)
    return total


def is_over(process: Json) -> bool:
    """Return True if the process has ended; a process that fell silent may still be alive."""
    return process["ended_at"] is not None and process["end_state"] != "silent"


def _without(children: Points, ranks: Points | None) -> Points:
    """Subtract the ranks that a process started: each rank is drawn as a separate layer."""
    if ranks is None:
        return children
    # If the ranks have no reading at this x, no ranks existed or the sum does not include the ranks.
    out = {x: y or 0.0 for x, y in zip(ranks.x, ranks.y, strict=True)}
    y = [
        None if each is None else max(0.0, each - out.get(x, 0.0))
        for x, each in zip(children.x, children.y, strict=True)
    ]
    return replace(children, y=y, low=None, high=None)


def _named(ends: Sequence[Points], verdict: Json | None) -> tuple[Group, Sequence[Points]] | None:
    """Return the series that show the growth of the leading finding.

    Return None if the memory is private, or if no such series was read.
    """
    finding = leading_finding(verdict)
    group, series = _OUTSIDE.get(finding["kind"] if finding else "", (None, ()))
    for names in series:
        found = [p for p in ends if any(fnmatchcase(p.name, name) for name in names)]
        found = [p for p in found if any(y is not None for y in p.y)]
        if group is not None and found:
            return group, found
    return None


def _phase_accounts(data: RunData, palette: Palette) -> Chart | None:
    levels = budget_levels(data.verdict, data.phase_accounts)
    return chart_builder.phases_chart(data.axis, palette, data.phase_accounts, levels=levels)


def _types(data: RunData, ends: Sequence[Points], titles: Mapping[str, str]) -> Chart | None:
    suspects = (leading_finding(data.verdict) or {}).get("suspects", ())
    blamed = [titles.get(f"type.{each['name']}.count", "") for each in suspects]
    chart = chart_builder.counts_chart("types", data.axis, ends, titles)
    return chart and replace(chart, lines=tuple(with_named_last(chart.lines, blamed)))


def _gauges(data: RunData, ends: Sequence[Points]) -> Chart | None:
    names = [p.name for p in ends if p.name.startswith("gauge.") or p.name == _FRAMES]
    titles = {
        name: "frames per second" if name == _FRAMES else name.removeprefix("gauge.")
        for name in names
    }
    return chart_builder.counts_chart(
        "gauges", data.axis, ends, titles, unit="number", y_title="value"
    )


def _children(data: RunData, ends: Sequence[Points]) -> Chart | None:
    titles = sizes_of_children(each.name for each in ends)
    return chart_builder.counts_chart(
        "children", data.axis, ends, titles, unit="bytes", y_title="memory"
    )

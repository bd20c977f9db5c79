"""Builds chart columns and annotations from points and a verdict; the browser draws them (static/js/figure.js).

This layer between the store and the page imports no web framework and contains no SQL.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

from leakline.analysis.results import PhaseAccount, PhaseAccounts

from .chart_parts import (
    COLOURS,
    HORIZON,
    JS_PRIVATE,
    SYMBOLS,
    Axis,
    Chart,
    Cone,
    Draw,
    Group,
    Level,
    Line,
    Mark,
    Palette,
    Points,
    Unit,
    add_up_processes,
    forecast,
    plan_bands,
    start_bands,
    with_named_last,
)

_Value = TypeVar("_Value")

# Kinds of memory that the total contains in addition to private memory.
_IN_TOTAL: Final = ("children",)
# With more generations than this, neighbouring bars are merged into one bar that shows their mean.
MAX_BARS: Final = 160


def trend_chart(
    axis: Axis,
    palette: Palette,
    private: Sequence[Points],
    rss: Sequence[Points],
    verdict: Mapping[str, Any] | None,
    marks: Sequence[Mark] = (),
    named: tuple[Group, Sequence[Points]] | None = None,
    total: Mapping[str, Points] = MappingProxyType({}),
    whole: Mapping[str, Any] | None = None,
    blamed: Collection[str] = (),
) -> Chart:
    """Return the chart of the memory trend.

    The run is shown as one layer per process (``total``). One process is shown as lines of its memory after each phase
    and at the end of each generation.

    ``verdict`` is the process's verdict, ``whole`` the run's. ``named`` is the memory outside the process that grows in
    the leading finding. If that memory is not part of the total, its group is shown first, because the marked start of
    the growth must be on a rising line. ``blamed`` contains the names of the lines that the verdict mentions.
    """
    # Lines of a group are hidden until the group is selected, so lines have no group if there is only one group.
    names = ("private", "rss") if (private and rss) or named or total else (None, None)
    # The generation end comes first: later lines are drawn on top, and the phases matter most.
    lines = sorted(
        [
            *(_phase_line(axis, points, palette, names[0]) for points in private),
            *(_phase_line(axis, points, palette, names[1]) for points in rss),
        ],
        key=lambda line: palette.order.get(line.phase or "", -1),
    )
    last = _last_point(private or rss)
    cone, levels = forecast(verdict, last, axis, _first_x(private or rss))
    # The RSS forecast uses the growth of private memory, but starts at the last RSS value.
    of_rss = (
        forecast(verdict, _last_point(rss), axis, _first_x(rss))[0] if private and rss else None
    )
    bands = plan_bands(verdict, axis, private, rss)
    title = "Tensors" if private and private[0].name in JS_PRIVATE else "Private"
    groups: tuple[Group, ...] = (
        (Group("private", title), Group("rss", "RSS")) if private and rss else ()
    )
    if bands and all(band.group == "rss" for band in bands):
        # The planned bands must be visible initially.
        groups = groups[::-1]
    starts = start_bands(verdict, axis)
    if named:
        # The forecast is for private memory, which is not what grows in this finding.
        cone, of_rss = None, None
        label, found = named[0].label, named[1]
        for place, points in enumerate(found):
            name = label if len(found) == 1 else points.name
            line = _named_line(points, name, 1 + place % COLOURS)
            lines.append(replace(line, group=named[0].id))
        own = (("private", title, private), ("rss", "RSS", rss))
        groups = (named[0], *(Group(each, word) for each, word, read in own if read))
        starts = tuple(replace(band, group=named[0].id) for band in starts)
    cones: dict[str, Cone | None] = {} if of_rss is None else {"rss": of_rss}
    if total:
        lines += _layers(axis, total)
        own_groups = groups or (Group("private", title) if private else Group("rss", "RSS"),)
        first = Group("total", "Total")
        groups = (first, *own_groups)
        if named and named[0].id not in _IN_TOTAL:
            groups = (own_groups[0], first, *own_groups[1:])
        cones = {each.id: cone if each.id == "private" else of_rss for each in own_groups}
        ends = add_up_processes(tuple(total.values()))
        cone, levels = forecast(whole, _last_point([ends]), axis, _first_x([ends]))
        if _is_behind(ends, tuple(total.values())):
            cone = None
        if whole != verdict or named:
            starts = (
                *(replace(band, group="total") for band in start_bands(whole, axis)),
                *(
                    replace(band, group=each.id)
                    for each in own_groups
                    for band in starts
                    if band.group in (None, each.id)
                ),
            )
    return Chart(
        id="trend",
        unit="bytes",
        y_title="memory",
        x_title=axis.title,
        x_unit=axis.unit,
        x_seconds=axis.seconds,
        lines=tuple(with_named_last(lines, blamed)),
        bands=(*starts, *bands),
        levels=levels,
        cone=cone,
        cones=cones,
        marks=tuple(marks),
        groups=groups,
    )


def _is_behind(ends: Points, layers: Sequence[Points]) -> bool:
    """Return True if the sum ends long before the layers, so that a forecast from the end of the sum is useless."""
    first, last = _first_x([ends]), max((each.x[-1] for each in layers if each.x), default=0.0)
    return bool(ends.x) and last - ends.x[-1] > max(2.0, HORIZON * (last - first))


def _layers(axis: Axis, total: Mapping[str, Points]) -> list[Line]:
    """Return one line for a single process, and stacked areas for several processes."""
    if len(total) == 1:
        (points,) = total.values()
        line = _phase_line(axis, points, Palette(), "total")
        return [replace(line, colour=1)]
    return [
        replace(_named_line(points, name, 1 + place % COLOURS, draw="area"), group="total")
        for place, (name, points) in enumerate(total.items())
    ]


def _phase_line(axis: Axis, points: Points, palette: Palette, group: str | None) -> Line:
    phase = points.phase
    whole = "memory" if axis.unit == "time" else "generation end"
    line = Line(
        name=f"after {phase}" if phase else whole,
        x=points.x, y=points.y, low=points.low, high=points.high,
        # Nested phases would clutter the chart; users can enable them in the legend.
        hidden=bool(phase and "/" in phase),
        group=group,
        process=points.process,
        series=points.name,
        phase=phase,
    )  # fmt: skip
    return palette.paint(line, phase) if phase else line


def _last_point(lines: Sequence[Points]) -> tuple[float, float] | None:
    ends = [
        (x, y)
        for points in lines
        if points.phase is None
        for x, y in zip(points.x, points.y, strict=True)
        if y is not None
    ]
    return ends[-1] if ends else None


def _first_x(lines: Sequence[Points]) -> float:
    return min((points.x[0] for points in lines if points.x), default=0)


def phases_chart(
    axis: Axis,
    palette: Palette,
    phase_accounts: PhaseAccounts,
    chart_id: str = "phases",
    levels: tuple[Level, ...] = (),
) -> Chart | None:
    """Return a chart of the growth of each phase, stacked per generation, with points for the sums."""
    if not phase_accounts.generations:
        return None
    step = -(-len(phase_accounts.generations) // MAX_BARS)
    x = [_mean(part) for part in _chunks(phase_accounts.generations, step)]
    bars = [
        palette.paint(
            Line(line.name, x, _per_generation(line.bytes, phase_accounts, step), draw="bar"),
            line.name,
        )
        for line in phase_accounts.lines
        if any(line.bytes)
    ]
    total = Line(
        name="sum",
        x=x,
        y=_per_generation(phase_accounts.total, phase_accounts, step),
        draw="points",
        colour=0,
    )
    return Chart(
        id=chart_id, unit="bytes", y_title=f"growth per {axis.title}", x_title=axis.title,
        lines=(*bars, total), levels=levels,
    )  # fmt: skip


def _per_generation(
    values: Sequence[float], phase_accounts: PhaseAccounts, step: int
) -> list[float]:
    """Return the mean per generation of each group of ``step`` entries; an entry may span several generations."""
    spans = [phase_accounts.span(i) for i in range(len(values))]
    parts = zip(_chunks(values, step), _chunks(spans, step), strict=True)
    return [sum(amounts) / sum(counts) for amounts, counts in parts]


def accounts_within(phase_accounts: PhaseAccounts, first: float, last: float) -> PhaseAccounts:
    """Return the phase accounts of the generations from ``first`` to ``last``."""
    kept = [
        i for i, generation in enumerate(phase_accounts.generations) if first <= generation <= last
    ]
    at = slice(kept[0], kept[-1] + 1) if kept else slice(0, 0)
    lines = tuple(
        PhaseAccount(line.name, line.bytes[at], line.seconds[at], line.executions[at])
        for line in phase_accounts.lines
    )
    return PhaseAccounts(
        phase_accounts.generations[at], lines, phase_accounts.total[at], phase_accounts.spans[at]
    )


def same_scale(phase_accounts: Sequence[PhaseAccounts]) -> tuple[float, float]:
    """Return the lowest and highest y value of several stacked phase charts, with a margin of 5 %."""
    highs, lows = [0.0], [0.0]
    for each in phase_accounts:
        for i, column in enumerate(zip(*(line.bytes for line in each.lines), strict=True)):
            highs.append(sum(value for value in column if value > 0) / each.span(i))
            lows.append(sum(value for value in column if value < 0) / each.span(i))
    return 1.05 * min(lows), 1.05 * max(highs)


def seconds_chart(axis: Axis, palette: Palette, phase_accounts: PhaseAccounts) -> Chart | None:
    """Return a chart of the time spent in each phase, stacked per generation."""
    timed = [line for line in phase_accounts.lines if any(line.seconds)]
    if not timed or not phase_accounts.generations:
        return None
    step = -(-len(phase_accounts.generations) // MAX_BARS)
    x = [_mean(part) for part in _chunks(phase_accounts.generations, step)]
    lines = [
        palette.paint(
            Line(
                line.name,
                x,
                [_mean([s or 0 for s in part]) for part in _chunks(line.seconds, step)],
                draw="bar",
            ),
            line.name,
        )
        for line in timed
    ]
    return Chart(
        id="seconds", unit="seconds", y_title=f"time per {axis.title}", x_title=axis.title,
        lines=tuple(lines),
    )  # fmt: skip


def _chunks(values: Sequence[_Value], step: int) -> list[Sequence[_Value]]:
    return [values[i : i + step] for i in range(0, len(values), step)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# Series -> (title, colour). The first three add up to the resident memory.
_SPLIT_AREAS: Final = {
    "process.anon_bytes": ("anonymous (private)", 1),
    "process.file_bytes": ("files", 3),
    "process.shared_bytes": ("shared", 4),
}
_SPLIT_LINES: Final = {
    "process.rss_bytes": ("RSS", 5, False),
    "process.swap_bytes": ("swapped out", 8, True),
    "children.pss_bytes": ("child processes", 2, False),
    "allocator.in_use_bytes": ("C allocator in use", 6, True),
    "allocator.kept_bytes": ("kept by the C allocator", 6, False),
    "cgroup.used_bytes": ("whole container", 7, True),
    "js.heap_bytes": ("JavaScript heap", 6, False),
    "js.array_buffer_bytes": ("array buffers", 3, True),
    "js.page_bytes": ("the whole page", 7, False),
    "tfjs.gpu_bytes": ("textures of TensorFlow.js", 2, False),
}
MEMORY_SERIES: Final = (*_SPLIT_AREAS, *_SPLIT_LINES)


def memory_chart(axis: Axis, points: Sequence[Points]) -> Chart | None:
    """Return a chart with resident memory by kind as stacked areas, and other kinds of memory as lines."""
    by_name = {p.name: p for p in points if _measured(p)}
    areas = [
        _named_line(by_name[name], title, colour, draw="area")
        for name, (title, colour) in _SPLIT_AREAS.items()
        if name in by_name
    ]
    lines = [
        _named_line(
            by_name[name],
            title,
            colour,
            hidden=hidden,
            dash=1 if name.startswith("allocator") else 0,
        )
        for name, (title, colour, hidden) in _SPLIT_LINES.items()
        if name in by_name and any(by_name[name].y)
    ]
    return _chart("memory", "bytes", "memory", axis, [*areas, *lines])


# Metric of a device -> (title, colour index, hidden until enabled in the legend).
_GPU_WORDS: Final = {
    "allocated_bytes": ("allocated", 0, False),
    "reserved_bytes": ("reserved", 1, False),
    "inactive_split_bytes": ("split and idle", 2, False),
    "used_bytes": ("in use, driver", 3, False),
    "driver_bytes": ("in use, driver", 3, False),
    "process_bytes": ("this process, driver", 4, True),
    "outside_bytes": ("outside torch", 5, False),
    "active_bytes": ("active", 6, True),
}
GPU_SERIES: Final = ("cuda.*", "gpu.*", "mps.*")
_DEVICE: Final = re.compile(r"(?:(?P<by>cuda|gpu)\.(?P<device>\d+)|mps)\.(?P<what>\w+)")


def gpu_chart(axis: Axis, points: Sequence[Points]) -> Chart | None:
    """Return a chart of the memory that torch and the driver report for each device that the process uses."""
    devices = [(p, found) for p in points if _measured(p) and (found := _DEVICE.fullmatch(p.name))]
    used = {found["device"] for _, found in devices if found["by"] == "cuda"}
    lines = []
    for p, found in devices:
        device, what = found["device"], found["what"]
        if what not in _GPU_WORDS or (used and found["by"] == "gpu" and device not in used):
            # Before torch initializes a device, the driver reports all devices that the process can see; skip the
            # unused ones.
            continue
        title, place, hidden = _GPU_WORDS[what]
        name = "Metal" if device is None else f"GPU {device}"
        line = _named_line(
            p,
            f"{name} {title}",
            1 + place % COLOURS,
            hidden=hidden,
            dash=int(device or 0) % 5,
        )
        lines.append(line)
    return _chart("gpu", "bytes", "GPU memory", axis, lines)


def counts_chart(
    chart_id: str, axis: Axis, points: Sequence[Points], titles: Mapping[str, str],
    *, unit: Unit = "count", y_title: str = "count",
) -> Chart | None:  # fmt: skip
    """Return a chart with one line per series in ``titles``, in that order."""
    by_name = {p.name: p for p in points if _measured(p)}
    lines = [
        _named_line(by_name[name], title, 1 + i % COLOURS, dash=i // COLOURS, symbol=i % SYMBOLS)
        for i, (name, title) in enumerate((n, t) for n, t in titles.items() if n in by_name)
    ]
    return _chart(chart_id, unit, y_title, axis, lines)


def fill_chart(axis: Axis, points: Sequence[Points], capacities: Mapping[str, int]) -> Chart | None:
    """Return a chart of the fill level of tracked containers. ``capacities`` maps each series to its capacity."""
    lines = []
    for place, p in enumerate(p for p in points if p.name in capacities and _measured(p)):
        name = p.name.partition(".")[2].removesuffix(".length")
        capacity = capacities[p.name]
        full = replace(
            p,
            y=_shares(p.y, capacity),
            low=p.low and _shares(p.low, capacity),
            high=p.high and _shares(p.high, capacity),
        )
        lines.append(_named_line(full, name, 1 + place % COLOURS, symbol=place % SYMBOLS))
    chart = _chart("fill", "share", "share of capacity", axis, lines)
    return chart and replace(chart, levels=(Level(1.0, "capacity", "filling"),))


def _shares(values: Sequence[float | None], whole: int) -> list[float | None]:
    return [None if value is None else value / whole for value in values]


def overlay_chart(axis: Axis, before: Points | None, after: Points | None) -> Chart | None:
    """Return a chart that overlays the generation ends of two runs on one axis."""
    pairs = ((before, "before", 2, 1), (after, "after", 1, 0))
    lines = [
        Line(
            name=title, x=p.x, y=p.y, low=p.low, high=p.high, colour=colour, dash=dash, symbol=dash
        )
        for p, title, colour, dash in pairs
        if p is not None
    ]
    return _chart("overlay", "bytes", "private memory", axis, lines)


def _measured(points: Points) -> bool:
    return any(y is not None for y in points.y)


def _named_line(
    points: Points, title: str, colour: int, *,
    draw: Draw = "line", hidden: bool = False, dash: int = 0, symbol: int = 0,
) -> Line:  # fmt: skip
    return Line(
        name=title, x=points.x, y=points.y, colour=colour, dash=dash, symbol=symbol, draw=draw, hidden=hidden,
        low=None if draw == "area" else points.low, high=None if draw == "area" else points.high,
        process=points.process, series=points.name, phase=points.phase,
    )  # fmt: skip


def _chart(
    chart_id: str, unit: Unit, y_title: str, axis: Axis, lines: Sequence[Line]
) -> Chart | None:
    if not lines:
        return None
    return Chart(
        id=chart_id, unit=unit, y_title=y_title, x_title=axis.title, x_unit=axis.unit, x_seconds=axis.seconds,
        lines=tuple(lines),
    )  # fmt: skip

"""The immutable parts of a chart that are sent to the browser, and functions that combine lines and create annotations
(start of growth, planned bands, forecast). Pure.

Sizes are in bytes, times in seconds; the browser chooses the most readable units (static/js/figure.js).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

from leakline.analysis.assertions.declared_limits import KEPT_BY_GENERATION
from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.analysis.results import OomForecast, PhaseAccounts, to_json
from leakline.analysis.run_history import TENSOR_BYTES

Unit = Literal["bytes", "count", "seconds", "share", "number"]
Draw = Literal["line", "bar", "area", "points"]

# Private memory is the sum of these series.
PRIVATE: Final = ("process.anon_bytes", "process.swap_bytes")
# With TensorFlow.js, private memory is the memory of its tensors.
JS_PRIVATE: Final = (TENSOR_BYTES,)
COLOURS: Final = 8
SYMBOLS: Final = 8


@dataclass(frozen=True, slots=True)
class Points:
    """The points of one line. ``low`` and ``high`` are the extremes in each point, or None if they all equal ``y``."""

    name: str
    process: str
    phase: str | None
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    colour: int = 0
    dash: int = 0
    symbol: int = 0
    draw: Draw = "line"
    hidden: bool = False
    group: str | None = None
    # The process, series and phase that the line shows.
    process: str | None = None
    series: str | None = None
    phase: str | None = None
    # Whether the verdict names this line.
    named: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A highlighted range of x, over the full height or between ``low`` and ``high``.

    ``group`` is the id of the group of lines with which the band is shown.
    """

    first: float
    last: float
    label: str
    tone: str = "confirmed"
    low: float | None = None
    high: float | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line. For a ``limit`` far above the lines, only the label is shown, because drawing the level would
    flatten the lines.
    """

    value: float
    label: str
    tone: str = "confirmed"
    limit: bool = False


@dataclass(frozen=True, slots=True)
class Cone:
    label: str
    x: tuple[float, ...]
    low: tuple[float, ...]
    estimate: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A marked x value; ``text`` is its tooltip in short lines."""

    x: float
    label: str
    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A set of lines. The page shows one group at a time, and people switch between the groups."""

    id: str
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    id: str
    unit: Unit
    y_title: str
    x_title: str
    lines: tuple[Line, ...]
    x_unit: Literal["generation", "time"] = "generation"
    x_seconds: float = 1.0  # seconds per unit of x if x is time
    bands: tuple[Band, ...] = ()
    levels: tuple[Level, ...] = ()
    cone: Cone | None = None
    # Forecasts by group, for groups whose lines do not end at the point where ``cone`` starts.
    cones: Mapping[str, Cone | None] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    groups: tuple[Group, ...] = ()
    # Set if two charts are shown side by side and must share a scale.
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """The x-axis that all charts of a page share. ``title`` is the run's own name for its unit."""

    title: str
    unit: Literal["generation", "time"] = "generation"
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Palette:
    """One colour, dash and symbol per phase, the same on every chart of a page."""

    order: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(names: Iterable[str]) -> Palette:
        return Palette({name: place for place, name in enumerate(dict.fromkeys(names))})

    def paint(self, line: Line, name: str) -> Line:
        place = self.order.get(name)
        if place is None:
            return replace(line, dash=2)
        return replace(
            line, colour=1 + place % COLOURS, dash=place // COLOURS, symbol=place % SYMBOLS
        )


def to_script(chart: Chart) -> str:
    """Return JSON that is safe inside a script tag: it cannot contain ``</script>``."""
    text = msgspec.json.encode(chart).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def points_of(item: Mapping[str, Any], x: Sequence[float]) -> Points:
    """Convert a line from the store to points at these x values."""
    last, low, high = item["last"], item["min"], item["max"]
    # Draw extremes only if they differ from the line.
    banded = low != last or high != last
    return Points(
        item["name"], item["process"], item["phase"], x, last,
        low if banded else None, high if banded else None,
    )  # fmt: skip


def add_up(parts: Sequence[Points]) -> Points:
    """Return the sum of several series at the first series' x values; other series' missing values count as 0."""
    first, *rest = parts
    if not rest:
        return first
    y = _sum(first.x, [(part.x, part.y) for part in parts])
    if all(part.low is None and part.high is None for part in parts):
        return replace(first, y=y, low=None, high=None)
    # For simultaneous values, the extremes of the sum lie within the sums of the extremes.
    low = _sum(first.x, [(part.x, part.y if part.low is None else part.low) for part in parts])
    high = _sum(first.x, [(part.x, part.y if part.high is None else part.high) for part in parts])
    return replace(first, y=y, low=low, high=high)


def _sum(
    xs: Sequence[float], columns: Sequence[tuple[Sequence[float], Sequence[float | None]]]
) -> list[float | None]:
    """Add the columns; the sum is None where the first column is None."""
    (_, first), *rest = columns
    others = [dict(zip(x, values, strict=True)) for x, values in rest]
    return [
        None if value is None else value + sum(other.get(x) or 0 for other in others)
        for x, value in zip(xs, first, strict=True)
    ]


def with_named_last(lines: Sequence[Line], names: Collection[str]) -> list[Line]:
    """Move the lines that the verdict names to the end, so that they are drawn on top."""
    found = [replace(line, named=line.name in names) for line in lines]
    return sorted(found, key=lambda line: line.named)


def until_others(parts: Sequence[tuple[Points, bool]]) -> list[Points]:
    """Extend the points of ended processes with zeros, up to the end of the other processes.

    ``parts`` contains pairs (points, whether the process has ended).

    The memory of a process that has ended is free, while that of a live process without data is unknown. A process that
    is at most two of its own steps behind is taken to have ended together with the others.
    """
    end = max((points.x[-1] for points, _ in parts if points.x), default=0.0)
    return [_carried_on(points, end) if over else points for points, over in parts]


def step_of(x: Sequence[float]) -> float:
    """Return the distance on the x-axis between the last two readings."""
    return x[-1] - x[-2] if len(x) > 1 else 1.0


def is_behind(last: float, step: float, end: float) -> bool:
    """Return True if a process with this last reading ended before the others, whose last reading is at ``end``."""
    return end - last > 2 * step


def _carried_on(points: Points, end: float) -> Points:
    if not points.x:
        return points
    last, step = points.x[-1], step_of(points.x)
    if not is_behind(last, step, end):
        return points
    more = [0.0, 0.0]
    return replace(
        points,
        x=[*points.x, last + step, end],
        y=[*points.y, *more],
        low=None if points.low is None else [*points.low, *more],
        high=None if points.high is None else [*points.high, *more],
    )


def add_up_processes(parts: Sequence[Points]) -> Points:
    """Add up the memory of processes until one process has no more readings: a missing reading is unknown, not zero.

    Values between two readings of a process are interpolated, and its first value applies before its first reading, as
    in the chart's layers.
    """
    known = [found for found in map(_known, parts) if found.x]
    if not known:
        return parts[0]
    longest = max(known, key=lambda points: len(points.x))
    end = min(points.x[-1] for points in known)
    xs = [*(x for x in longest.x if x < end), end]
    y = [sum(_at(points, x) for points in known) for x in xs]
    return replace(longest, x=xs, y=y, low=None, high=None)


def _known(points: Points) -> Points:
    kept = [i for i, y in enumerate(points.y) if y is not None]
    return replace(points, x=[points.x[i] for i in kept], y=[points.y[i] for i in kept])


def _at(points: Points, x: float) -> float:
    place = bisect_left(points.x, x)
    after = points.y[min(place, len(points.x) - 1)] or 0.0
    if place in (0, len(points.x)) or points.x[place] == x:
        return after
    before, (x0, x1) = points.y[place - 1] or 0.0, points.x[place - 1 : place + 1]
    return before + (after - before) * (x - x0) / (x1 - x0)


def join_attempts(attempts: Sequence[Points]) -> Points:
    """Join the same series of one rank across its attempts, oldest first.

    Generations that a later attempt repeated replace the same generations of the earlier attempt.
    """
    joined = attempts[0]
    for later in attempts[1:]:
        if not later.x:
            continue
        keep = [i for i, x in enumerate(joined.x) if x < later.x[0]]
        joined = replace(
            later,
            x=[*(joined.x[i] for i in keep), *later.x],
            y=[*(joined.y[i] for i in keep), *later.y],
            low=_joined(joined, joined.low, keep, later, later.low),
            high=_joined(joined, joined.high, keep, later, later.high),
        )
    return joined


def _joined(
    before: Points, edge: Sequence[float | None] | None, keep: Sequence[int],
    after: Points, later_edge: Sequence[float | None] | None,
) -> list[float | None] | None:  # fmt: skip
    """Join the lower or upper edges of two attempts. If an attempt has no edge, use its line as the edge."""
    if edge is None and later_edge is None:
        return None
    old = before.y if edge is None else edge
    return [*(old[i] for i in keep), *(after.y if later_edge is None else later_edge)]


MAX_BANDS: Final = 40
# The forecast extends beyond the run by this share of the run's length. It extends up to the limit if the limit is no
# further away than the run is long or, at a risk of reaching it, this many times as long. Further away, the readings
# would be a dot, but a limit that is reached before the planned end is always shown.
HORIZON: Final = 0.25
HORIZON_AT_RISK: Final = 4.0
# A budget of several times the highest bar would flatten all bars.
FAR: Final = 3.0


def _one_unit(verdict: Mapping[str, Any] | None, axis: Axis) -> float | None:
    """Return the length of the verdict's unit on the axis, or None if the units do not match."""
    seconds = UNITS_OF_TIME.get((verdict or {}).get("unit", ""))
    if axis.unit == "generation":
        return 1.0 if seconds is None else None
    return None if seconds is None else seconds / axis.seconds


def start_bands(verdict: Mapping[str, Any] | None, axis: Axis) -> tuple[Band, ...]:
    """Return the interval in which the largest leak started, as a band widened by half a generation on each side."""
    one = _one_unit(verdict, axis)
    if one is None:
        return ()
    for finding in (verdict or {}).get("findings", ()):
        start = finding["started_at_generation"]
        if finding["status"] in ("watch", "suspected", "confirmed", "recovered") and start:
            label = "growth starts" if finding["status"] == "watch" else "leak starts"
            tone = "watch" if finding["status"] == "watch" else "confirmed"
            return (Band((start["low"] - 0.5) * one, (start["high"] + 0.5) * one, label, tone),)
    return ()


def plan_bands(
    verdict: Mapping[str, Any] | None, axis: Axis, private: Sequence[Points], rss: Sequence[Points]
) -> tuple[Band, ...]:
    """Return planned memory bands, which are drawn behind the lines to which they apply.

    A band without an upper bound is left out, and a band without an end extends to the end of the lines.
    """
    shown = {PRIVATE[0]: ("private", private), "process.rss_bytes": ("rss", rss)}
    found: dict[tuple[float, ...], Band] = {}
    for check in (verdict or {}).get("assertions") or ():
        group, lines = shown.get(check["metric"], (None, ()))
        end = max((points.x[-1] for points in lines if points.x), default=None)
        if (
            check["origin"] != "band"
            or axis.unit != "generation"
            or end is None
            or check["high"] is None
        ):
            continue
        last = max(end, check["first"]) if check["last"] is None else check["last"]
        tone = "watch" if check["state"] == "broken" else "ok"
        place = (check["first"] - 0.5, last + 0.5, check["low"] or 0, check["high"])
        found[place] = Band(
            place[0], place[1], "plan", tone, place[2], place[3],
            group if private and rss else None,
        )  # fmt: skip
    return tuple(found.values())[:MAX_BANDS]


def forecast(
    verdict: Mapping[str, Any] | None, last: tuple[float, float] | None, axis: Axis, first_x: float
) -> tuple[Cone | None, tuple[Level, ...]]:
    """Return a cone that extrapolates the growth, and the level of the memory limit."""
    growth = (verdict or {}).get("growth_bytes_per_generation")
    one = _one_unit(verdict, axis)
    if verdict is None or last is None:
        return None, ()
    # A device limit does not belong on a chart of process memory.
    oom = verdict["oom"] if verdict["oom"]["limit_source"] != "device" else to_json(OomForecast())
    limit = oom["limit_bytes"]
    leaking = verdict["status"] in ("watch", "suspected", "confirmed")
    if one is None or not growth or not leaking or growth["estimate"] <= 0:
        return None, _limit(oom)
    seen = last[0] - first_x
    end = last[0] + max(2.0 * one, HORIZON * seen)
    full = oom["generation"]
    is_at_risk = oom["risk"] != "none"
    furthest = max(2.0 * one, seen * (HORIZON_AT_RISK if is_at_risk else 1.0))
    is_planned = is_at_risk and oom.get("planned") is not None
    if full and (is_planned or full["estimate"] * one - last[0] <= furthest):
        end = max(end, full["estimate"] * one + 0.05 * seen)
    per_x = {side: growth[side] / one for side in ("low", "estimate", "high")}
    cone = _cone(last, per_x, end, limit or 0)
    return cone, _limit(oom)


def _limit(oom: Mapping[str, Any]) -> tuple[Level, ...]:
    limit, source = oom["limit_bytes"], limit_word(oom["limit_source"])
    return (Level(limit, f"limit ({source})", limit=True),) if limit else ()


def _cone(last: tuple[float, float], growth: Mapping[str, float], end: float, limit: float) -> Cone:
    """Return a straight cone, capped where its upper edge would flatten the chart."""
    x0, y0 = last
    low, middle, high = (max(growth[side], 0) for side in ("low", "estimate", "high"))
    highest = 1.25 * max(limit, y0 + middle * (end - x0))
    capped = x0 + (highest - y0) / high if high > 0 else end
    x = (x0, capped, end) if x0 < capped < end else (x0, end)
    return Cone(
        "forecast", x, tuple(y0 + low * (at - x0) for at in x), tuple(y0 + middle * (at - x0) for at in x),
        tuple(min(y0 + high * (at - x0), highest) for at in x),
    )  # fmt: skip


def limit_word(source: str | None) -> str:
    return {
        "cgroup": "container",
        "system": "machine",
        "user": "set by you",
        "device": "device",
    }.get(source or "", "unknown")


def budget_levels(
    verdict: Mapping[str, Any] | None, phase_accounts: PhaseAccounts
) -> tuple[Level, ...]:
    """Return the levels of budgets that apply to every generation, except for levels far above the bars."""
    near = FAR * max(
        (abs(each) / phase_accounts.span(i) for i, each in enumerate(phase_accounts.total)),
        default=0,
    )
    levels = [
        check
        for check in (verdict or {}).get("assertions") or ()
        if check["origin"] == "budget" and check["metric"] == KEPT_BY_GENERATION
    ]
    bounds = {
        (check[name], label, tone)
        for check in levels
        for name, label, tone in (("high", "budget", "watch"), ("leak", "leak threshold", "confirmed"))
        if check[name] is not None and check[name] <= near
    }  # fmt: skip
    return tuple(Level(*bound) for bound in sorted(bounds))

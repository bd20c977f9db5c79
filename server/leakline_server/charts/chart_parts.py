"""What a chart is made of: the frozen parts that travel to the browser, and how lines are put together.

All sizes are bytes, all times seconds; the browser picks the unit that reads best (static/js/figure.js).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

from leakline.analysis.run_history import TENSOR_BYTES

Unit = Literal["bytes", "count", "seconds", "share", "number"]
Draw = Literal["line", "bar", "area", "points"]

# Private memory is their sum.
PRIVATE: Final = ("process.anon_bytes", "process.swap_bytes")
# With TensorFlow.js it is what its tensors take.
JS_PRIVATE: Final = (TENSOR_BYTES,)
COLOURS: Final = 8
SYMBOLS: Final = 8


@dataclass(frozen=True, slots=True)
class Points:
    """One line as the store gives it. ``low`` and ``high`` only where several snapshots share a point."""

    name: str
    process: str
    phase: str | None
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Which snapshots of the live stream continue a line; its value is the sum of the named samples."""

    names: tuple[str, ...]
    process: str
    phase: str | None
    kind: str | None


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
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of x over the whole height, or between ``low`` and ``high``; ``group`` as that of a line."""

    first: float
    last: float
    label: str
    tone: str = "confirmed"
    low: float | None = None
    high: float | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Level:
    value: float
    label: str
    tone: str = "confirmed"


@dataclass(frozen=True, slots=True)
class Cone:
    label: str
    x: tuple[float, ...]
    low: tuple[float, ...]
    estimate: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """``text`` is told when one points at it; its lines are short."""

    x: float
    label: str
    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Lines of one group are shown at a time; the page has a switch between them."""

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
    x_seconds: float = 1.0  # seconds per unit of x, where x is time
    bands: tuple[Band, ...] = ()
    levels: tuple[Level, ...] = ()
    cone: Cone | None = None
    # By group, where the lines of one end elsewhere than those that ``cone`` goes on from.
    cones: Mapping[str, Cone] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    groups: tuple[Group, ...] = ()
    # Where two charts are read side by side and must share a scale.
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """What all charts of a page share. ``title`` is the run's own name for its unit."""

    title: str
    unit: Literal["generation", "time"] = "generation"
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Palette:
    """One colour, dash and symbol for each phase, the same on every chart of a page."""

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
    """JSON that may stand inside a script tag: no ``</script>`` can be spelled in it."""
    text = msgspec.json.encode(chart).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def points_of(item: Mapping[str, Any], x: Sequence[float]) -> Points:
    """Of an item as the store gives it, at these x."""
    last, low, high = item["last"], item["min"], item["max"]
    # Extremes are drawn only where they differ from the line.
    banded = low != last or high != last
    return Points(
        item["name"], item["process"], item["phase"], x, last,
        low if banded else None, high if banded else None,
    )  # fmt: skip


def add_up(parts: Sequence[Points]) -> Points:
    """The sum of several series at the x of the first; what was not measured there counts nothing."""
    first, *rest = parts
    if not rest:
        return first
    y = _sum(first.x, [(part.x, part.y) for part in parts])
    if all(part.low is None and part.high is None for part in parts):
        return replace(first, y=y, low=None, high=None)
    # Of what moves at the same time, the extremes of the sum lie within the sums of the extremes.
    low = _sum(first.x, [(part.x, part.y if part.low is None else part.low) for part in parts])
    high = _sum(first.x, [(part.x, part.y if part.high is None else part.high) for part in parts])
    return replace(first, y=y, low=low, high=high)


def _sum(
    xs: Sequence[float], columns: Sequence[tuple[Sequence[float], Sequence[float | None]]]
) -> list[float | None]:
    """Unknown where the first column is."""
    (_, first), *rest = columns
    others = [dict(zip(x, values, strict=True)) for x, values in rest]
    return [
        None if value is None else value + sum(other.get(x) or 0 for other in others)
        for x, value in zip(xs, first, strict=True)
    ]


def join_attempts(attempts: Sequence[Points]) -> Points:
    """The same series of one rank over its attempts, oldest first.

    What a later attempt did again replaces what the earlier one had seen of it.
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
    """An attempt whose points stand for one snapshot each has its line as its edge."""
    if edge is None and later_edge is None:
        return None
    old = before.y if edge is None else edge
    return [*(old[i] for i in keep), *(after.y if later_edge is None else later_edge)]

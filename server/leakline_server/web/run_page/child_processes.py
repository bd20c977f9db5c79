"""The child processes that are told one by one -> their section: a line each, and what grows."""

from __future__ import annotations

from dataclasses import replace

from leakline.analysis.statistics.trend import floor_slope

from ...charts.chart_parts import Chart, Line
from ..rendering import number_formats
from ..rendering.page_contexts import Cell, Figure, Section
from ..rendering.table_cells import Field, code, table

# Lines that are seen at once; the legend brings in the rest.
_SHOWN = 8
_FEW = 3


def children(chart: Chart | None, unit: str, process: str | None = None) -> Section | None:
    """``process``: the one of several whose children are shown."""
    if chart is None:
        return None
    how = (
        f"Memory that each child process{f' of {process}' if process else ''} has for itself, by the name that the "
        "program gave it or by what it is there for; a name that is free goes to the next child of the kind. The 16 "
        "largest are told one by one, the rest together as “other”."
    )
    by_generation = chart.x_unit == "generation"
    ranked = sorted(chart.lines, key=lambda line: (-(_rate(line) or 0.0), line.name))
    shown = {line.name for line in ranked[:_SHOWN]}
    chart = replace(
        chart, lines=tuple(replace(line, hidden=line.name not in shown) for line in chart.lines)
    )
    heads = ["child", "#first", "#last", *([f"#growth per {unit}"] if by_generation else [])]
    found = table(heads, [_row(line, by_generation) for line in ranked], tall=False)
    figure = Figure(chart, f"Memory of each child process, {unit} by {unit}.", low=True)
    return Section("children", "Child processes", how, figure, found, short="Children")


def _row(line: Line, by_generation: bool) -> list[Field]:
    known = [y for y in line.y if y is not None]
    row: list[Field] = [
        code(line.name),
        number_formats.size(known[0]),
        number_formats.size(known[-1]),
    ]
    if by_generation:
        rate = _rate(line)
        row.append(Cell("unknown", absent=True) if rate is None else number_formats.change(rate))
    return row


def _rate(line: Line) -> float | None:
    """Bytes for each step of the axis; None of one that was read too seldom to tell."""
    points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
    if len(points) < _FEW:
        return None
    return floor_slope([x for x, _ in points], [y for _, y in points]).estimate

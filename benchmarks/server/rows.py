"""The results of a part of the benchmark: lines of its table, and the figures with targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from benchmarks import printing

# Heading and format of each figure of a line, in the order of the columns.
COLUMNS: Final[Mapping[str, tuple[str, str]]] = {
    "runs": ("runs", "{:,.0f}"),
    "cpu_per_million": ("CPU s per million samples", "{:.4f}"),
    "compaction_cpu": ("of which compaction", "{:.4f}"),
    "us_per_snapshot": ("µs per snapshot", "{:,.1f}"),
    "us_per_request": ("µs per request", "{:,.0f}"),
    "snapshots_per_cpu_second": ("snapshots per CPU s", "{:,.0f}"),
    "ratio": ("Leakline is × better", "{:,.2f}"),
    "per_second": ("snapshots/s, one core", "{:,.0f}"),
    "analysis_cpu_seconds": ("analysis, CPU s", "{:.2f}"),
    "memory_mib": ("memory MiB", "{:,.0f}"),
    "running_bytes": ("B per sample, running", "{:.3f}"),
    "stopped_bytes": ("B per sample, stopped", "{:.3f}"),
    "compaction_per_million": ("compaction, s per million", "{:.4f}"),
    "ten_thousand_ms": ("10,000 ms", "{:,.1f}"),
    "hundred_thousand_ms": ("100,000 ms", "{:,.1f}"),
    "million_ms": ("1,000,000 ms", "{:,.1f}"),
    "cold_ms": ("1,000,000 cold ms", "{:,.1f}"),
    "spikes": ("spikes of 40 kept", "{:.0f}"),
    "p50_ms": ("p50 ms", "{:,.2f}"),
    "p99_ms": ("p99 ms", "{:,.2f}"),
    "sealed": ("snapshots sealed meanwhile", "{:,.0f}"),
    "cores": ("cores used", "{:.2f}"),
    "ms": ("ms", "{:,.1f}"),
    "kib": ("KiB", "{:,.0f}"),
    "files": ("files", "{:,.0f}"),
    "calls": ("Python calls", "{:,.0f}"),
    "events": ("events delivered", "{:,.0f}"),
    "us_per_event": ("µs per event", "{:.1f}"),
    "first_chart_ms": ("first chart, ms", "{:,.0f}"),
    "opened_ms": ("all charts in view, ms", "{:,.0f}"),
    "wire_kb": ("kB over the wire", "{:,.0f}"),
    "ms_per_update": ("main thread ms per update", "{:.1f}"),
    "drawn": ("charts drawn in view", "{:,.0f}"),
    "drawn_outside": ("out of view", "{:,.0f}"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a part's table. ``missing`` is the reason why it has no figures."""

    name: str
    figures: Mapping[str, float] = field(default_factory=dict)
    missing: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with a target: ``value`` at least or at most ``bound``. ``missing`` is why there is none."""

    name: str
    bound: float
    value: float | None = None
    at_least: bool = False
    unit: str = ""
    missing: str = ""
    note: str = ""

    @property
    def holds(self) -> bool:
        if self.value is None:
            return False
        if self.at_least:
            return self.value >= self.bound / printing.SCALE
        return self.value <= self.bound * printing.SCALE

    def verdict(self) -> str:
        if self.value is None:
            return f"not measured: {self.missing}"
        return "ok" if self.holds else "SHORT"

    def measured(self) -> str:
        return "" if self.value is None else f"{_short(self.value)}{self.unit}"

    def target(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:,g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    lines: Sequence[Line]
    figures: Sequence[Figure] = ()


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def part_table(part: Part, markdown: bool = False) -> str:
    keys = [key for key in COLUMNS if any(key in line.figures for line in part.lines)]
    rows = [["", *(COLUMNS[key][0] for key in keys), ""]]
    for line in part.lines:
        cells = [COLUMNS[k][1].format(line.figures[k]) if k in line.figures else "" for k in keys]
        told = f"not measured: {line.missing}" if line.missing else line.note
        rows.append([line.name, *cells, told])
    left = [True, *[False] * len(keys), True]
    write = printing.markdown_table if markdown else printing.text_table
    return write(part.title, rows, left)


def figure_table(title: str, figures: Iterable[Figure], markdown: bool = False) -> str:
    rows = [["work", "measured", "target", "", ""]]
    rows += [[f.name, f.measured(), f.target(), f.verdict(), f.note] for f in figures]
    write = printing.markdown_table if markdown else printing.text_table
    return write(title, rows, [True, False, False, True, True])


def to_json(part: Part) -> dict[str, Any]:
    return {
        "title": part.title,
        "lines": [asdict(line) for line in part.lines],
        "figures": [{**asdict(f), "verdict": f.verdict()} for f in part.figures],
    }

"""A built report -> text for a terminal or a log. Sizes in GiB with two decimals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ..analysis.results import to_json
from ..console.snapshot_text import OBJECT_ROWS, ObjectCount, banner, snapshot_lines
from ..snapshot import DEFAULT_PROJECT, LargeObject
from ..text_format import format_bytes, format_gib, format_number, format_share
from .document import verdict_lines
from .report_data import SECONDS, ObjectChange, ProcessReport, Report, TrendRow

TREND_ROWS: Final = 60
PEAK_ROWS: Final = 16
EXACT_PEAKS: Final = "exact: the kernel's mark was reset at each snapshot"
SEEN_PEAKS: Final = "as seen by background readings and new highs; exact_peaks=True sees all"


def signed_gib(size: float | None) -> str:
    return "" if size is None else format_gib(size, "+")


def render(report: Report) -> str:
    header = report.header
    project = header.project or DEFAULT_PROJECT
    lines = [f"Run {header.name} ({header.id}), project {project}"]
    for process in report.processes:
        if len(report.processes) > 1:
            lines += ["", process.title]
        lines += _snapshot(process)
        lines += _containers(process.snapshot)
        lines += _gauges(process, header.unit)
        lines += _trend(process.trend)
        lines += _growth(process)
        lines += _peaks(process, exact=bool(header.environment.get("exact_peaks")))
    lines += _large(report.large_objects)
    lines += _endings(report)
    lines += _verdict_rows(report)
    return "\n".join(lines)


def _snapshot(process: ProcessReport) -> Iterator[str]:
    counts = [ObjectCount(row.name, row.last, row.expected) for row in process.objects]
    yield from snapshot_lines(process.label, process.snapshot, counts)


def _containers(values: Mapping[str, float]) -> Iterator[str]:
    """``   replay:    15,680 of 50,000 (31 %)    1.20 GiB``"""
    names = [
        series.removeprefix("tracked.").removesuffix(".length")
        for series in sorted(values)
        if series.startswith("tracked.") and series.endswith(".length")
    ]
    if names:
        yield "Tracked containers:"
    for name in names:
        length, capacity = values[f"tracked.{name}.length"], values.get(f"tracked.{name}.capacity")
        fill = f" of {capacity:,.0f} ({format_share(length / capacity)})" if capacity else ""
        size, beside = (values.get(f"tracked.{name}.{of}") for of in ("bytes", "device_bytes"))
        told = "" if size is None else f"   {format_bytes(size)}"
        if beside and size is not None:
            told += f", {format_bytes(size - beside)} of it on the host, {format_bytes(beside)} on devices"
        yield f"   {name + ':':<40}{length:>10,.0f}{fill}{told}"


def _gauges(process: ProcessReport, unit: str) -> Iterator[str]:
    values, mean = process.snapshot, process.seconds_per_generation
    gauges = [series for series in sorted(values) if series.startswith("gauge.")]
    if gauges:
        yield "Gauges:"
    for series in gauges:
        yield f"   {series.removeprefix('gauge.') + ':':<40}{format_number(values[series]):>10}"
    if mean is not None and SECONDS in values:
        yield f"Time per {unit}: {values[SECONDS]:,.2f} s, {mean:,.2f} s on average"


def _trend(rows: tuple[TrendRow, ...]) -> Iterator[str]:
    yield from banner("MEMORY TREND")
    yield f"{'':<44}{'RAM':>10} {'change':>11} {'same phase':>11}"
    for row in _ends(rows):
        if row is None:
            yield f"   ... {len(rows) - TREND_ROWS} rows left out ..."
            continue
        label = row.label if len(row.label) <= 42 else row.label[:39] + "..."
        change = "baseline" if row.since_previous is None else signed_gib(row.since_previous)
        line = f"{label:<42}{format_gib(row.memory_bytes):>12} {change:>11} {signed_gib(row.since_same_phase):>11}"
        yield line.rstrip()


def _ends(rows: tuple[TrendRow, ...]) -> Iterable[TrendRow | None]:
    """The first and the last rows of a long table; None stands for those between."""
    if len(rows) <= TREND_ROWS:
        return rows
    head = TREND_ROWS // 4
    return (*rows[:head], None, *rows[head - TREND_ROWS :])


def _growth(process: ProcessReport) -> Iterator[str]:
    first, last = process.first, process.last
    if first is None or last is None:
        return
    yield from banner("MEMORY GROWTH")
    grown = last.memory_bytes - first.memory_bytes
    share = 100 * grown / max(1, first.memory_bytes)
    yield f"   from:    {format_gib(first.memory_bytes):>12}   {first.label}"
    yield f"   to:      {format_gib(last.memory_bytes):>12}   {last.label}"
    yield f"   growth:  {signed_gib(grown):>12}   ({share:+.1f} %)"
    changed = [row for row in process.objects if row.last != row.first or row.expected is not None]
    if changed:
        yield "   objects:"
    for row in changed[:OBJECT_ROWS]:
        yield _object_line(row)


def _peaks(process: ProcessReport, *, exact: bool) -> Iterator[str]:
    if not process.peaks:
        return
    yield from banner("PEAK MEMORY BY PHASE")
    yield f"   {EXACT_PEAKS if exact else SEEN_PEAKS}"
    for phase, size in process.peaks[:PEAK_ROWS]:
        yield f"   {phase if len(phase) <= 48 else phase[:45] + '...':<48}{format_gib(size):>14}"


def _object_line(row: ObjectChange) -> str:
    rating = f"  {'not known yet' if row.rating == 'unknown' else row.rating}"
    expected = "" if row.expected is None else f" (expected {row.expected})"
    counts = f"{row.first:>10,} -> {row.last:>10,}  {row.last - row.first:>+10,}"
    return f"      {row.name:<36}{counts}{rating}{expected}"


def _large(objects: tuple[LargeObject, ...]) -> Iterator[str]:
    if not objects:
        return
    yield from banner("LARGE OBJECTS")
    for thing in objects:
        where = f"   {thing.holder}" if thing.holder else ""
        yield f"   {thing.bytes / 2**20:>12,.2f} MiB   {thing.type} {thing.detail}{where}".rstrip()


def _endings(report: Report) -> Iterator[str]:
    if report.endings:
        yield from banner("HOW IT ENDED")
    for ending in report.endings:
        yield f"{ending.who}: {ending.how}"
        if ending.lines:
            yield "   last lines:"
        yield from (f"   | {line}" for line in ending.lines)


def _verdict_rows(report: Report) -> Iterator[str]:
    yield from banner("VERDICT")
    yield from verdict_lines(to_json(report.verdict), banners=True)
    if report.lost:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(report.lost.items()))
        yield from ("", f"Not recorded or not sent: {counts}")

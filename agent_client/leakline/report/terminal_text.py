"""Formats a run as text for a terminal: the report of a recording, and a frame of `leakline top`.

A report shows sizes in GiB with two decimals. A frame is made from API responses, with or without colours. No function
prints or has other side effects.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..analysis.results import to_json
from ..console import OBJECT_ROWS, ObjectCount, banner, snapshot_lines
from ..core.phase_accounting import RESERVED_PHASES
from ..snapshot import DEFAULT_PROJECT, LargeObject
from ..text_format import (
    count_of,
    format_bytes,
    format_change,
    format_count,
    format_count_change,
    format_gib,
    format_number,
    format_share,
    printable,
    worded,
)
from .document import verdict_lines
from .report_data import SECONDS, ObjectChange, ProcessReport, Report, TrendRow
from .verdict_facts import forecast, graph_rates, is_forecast_known, next_to_finding, with_graphs

TREND_ROWS: Final = 60
PEAK_ROWS: Final = 16
EXACT_PEAKS: Final = "exact: the kernel's peak counter was reset at each snapshot"
SEEN_PEAKS: Final = (
    "approximate: from background readings and new maxima; exact_peaks=True records every peak"
)


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
        lines += _gauges(process, report.verdict.unit)
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
    """Yield lines such as ``   replay:    15,680 of 50,000 (31 %)    1.20 GiB``."""
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
        size, on_devices = (values.get(f"tracked.{name}.{of}") for of in ("bytes", "device_bytes"))
        size_text = "" if size is None else f"   {format_bytes(size)}"
        if on_devices and size is not None:
            size_text += f", {format_bytes(size - on_devices)} of it on the host, {format_bytes(on_devices)} on devices"
        yield f"   {name + ':':<40}{length:>10,.0f}{fill}{size_text}"


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
    """Return the first and the last rows of a long table, with a single None in place of the omitted rows."""
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


Json = Mapping[str, Any]

BARS: Final = "▁▂▃▄▅▆▇█"
PHASES_SHOWN: Final = 6
TYPES_SHOWN: Final = 8
NARROWEST: Final = 40
# ANSI codes for bold, dim, red, yellow and green.
_BOLD, _DIM, _RED, _YELLOW, _GREEN = "1", "2", "31", "33", "32"
_COLOURS: Final = {
    "confirmed": _RED, "suspected": _RED, "watch": _YELLOW, "filling": _YELLOW, "ok": _GREEN, "recovered": _GREEN,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shown:
    """The API responses about one run. ``note``: a message of the viewer, for example that the server is down."""

    run: Json
    verdict: Json
    phases: Json
    types: Sequence[Json]
    note: str = ""


def frame(shown: Shown, width: int = 80, height: int = 0, *, colours: bool = False) -> list[str]:
    """Return lines of at most ``width`` columns. If ``height`` is not 0, return at most ``height`` lines."""
    width = max(NARROWEST, width)
    paint = _painted if colours else _plain
    lines = [paint(cut(text, width), style) for text, style in _lines(shown, width)]
    return lines[:height] if height else lines


def brief(shown: Shown) -> str:
    """Return the run's state and verdict in one line, for output that is not a terminal."""
    run, verdict = shown.run, shown.verdict
    parts = [
        run["state"],
        progress(run),
        _memory(run),
        worded(verdict["status"], verdict["summary"]),
    ]
    return "  ".join(plain(part) for part in parts if part)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return a bar chart of at most ``width`` characters.

    Each character shows the maximum of several values. It is blank if all these values are missing.
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    columns = min(width, len(values))
    low, high = min(known), max(known)
    drawn = []
    for column in range(columns):
        part = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        here = [value for value in part if value is not None]
        drawn.append(_bar(max(here), low, high) if here else " ")
    return "".join(drawn)


def progress(run: Json) -> str:
    """Return text such as ``14 of 25 generations``, or an empty string for a program without generations."""
    if not run["generations"]:
        return ""
    if run["total"]:
        return f"{format_count(run['generations'])} of {count_of(run['total'], run['unit'])}"
    return count_of(run["generations"], run["unit"])


def plain(text: str) -> str:
    """Return the text without terminal control characters, because names come from programs."""
    return printable(text)


def cut(text: str, width: int) -> str:
    """Return the text cut to ``width`` columns of the terminal. Wide characters take two columns."""
    text = plain(text)
    if columns(text) <= width:
        return text
    while text and columns(text) > width - 1:
        text = text[:-1]
    return f"{text}…"


def columns(text: str) -> int:
    return sum(_columns_of(character) for character in text)


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _lines(shown: Shown, width: int) -> Iterator[tuple[str, str]]:
    run, verdict = shown.run, shown.verdict
    counted = progress(run)
    yield (
        f"{run['project']}/{run['name']}  {run['state']}{f'  {counted}' if counted else ''}",
        _BOLD,
    )
    yield from ((line, _COLOURS.get(verdict["status"], "")) for line in _verdict(verdict, width))
    if shown.note:
        yield shown.note, _YELLOW
    yield "", ""
    yield _memory(run), ""
    trend = sparkline(run["sparkline"], width - 8)
    if trend:
        yield f"trend   {trend}", ""
    growth = verdict["growth_bytes_per_generation"]
    if growth is not None:
        rate = f"{format_change(growth['estimate'])} per {verdict['unit']}"
        yield f"growth  {rate}{next_to_finding(verdict)}", ""
    oom = verdict["oom"]
    if is_forecast_known(oom):
        style = _RED if oom["risk"] in ("high", "critical") else ""
        said = forecast(oom, verdict["unit"])
        yield from ((line, style) for line in _wrapped("forecast ", said, width))
    yield from _table("phase", "newest", "in all", _phases(shown.phases), width)
    unit = verdict["unit"]
    yield from _table("type", "count", f"per {unit}", _types(shown.types, verdict), width)


def _verdict(verdict: Json, width: int) -> Iterator[str]:
    """Yield the status and summary of the verdict, wrapped to ``width`` columns."""
    return _wrapped(f"{verdict['status']}:", verdict["summary"], width)


def _wrapped(line: str, text: str, width: int) -> Iterator[str]:
    """Yield ``line`` followed by the words of ``text``, wrapped to ``width`` columns."""
    for word in plain(text).split():
        if columns(line) + 1 + columns(word) > width:
            yield line
            line = f"  {word}"
        else:
            line += f" {word}"
    yield line


def _memory(run: Json) -> str:
    if run["rss_bytes"] is None:
        return "memory  not read yet"
    peak = f", peak {format_bytes(run['peak_bytes'])}" if run["peak_bytes"] is not None else ""
    return f"memory  {format_bytes(run['rss_bytes'])}{peak}"


def _phases(phases: Json) -> Iterator[tuple[str, str, str]]:
    """Yield (phase, newest growth, total growth), largest total first. Yields nothing for a program without phases."""
    found = []
    if all(line["name"] in RESERVED_PHASES for line in phases["lines"]):
        return
    for line in phases["lines"]:
        known = [size for size in line["bytes"] if size is not None]
        if known and any(known):
            found.append((sum(known), line["name"], known[-1]))
    for total, name, newest in sorted(found, key=lambda row: -row[0])[:PHASES_SHOWN]:
        yield name, format_change(newest), format_change(total)


def _types(types: Sequence[Json], verdict: Json) -> Iterator[tuple[str, str, str]]:
    """Yield (type, count, rate): suspects in the verdict's order, followed by the types that grow fastest."""
    suspects = [
        s["name"] for f in verdict["findings"] for s in f["suspects"] if s["role"] == "type"
    ]
    place = {name: number for number, name in reversed(list(enumerate(suspects)))}
    graphs = graph_rates(verdict)
    ranked = sorted(
        types,
        key=lambda row: (place.get(row["name"], len(place)), row["rating"] != "grows", -_rate(row)),
    )
    for row in ranked[:TYPES_SHOWN]:
        rate = _rate(row)
        yield (
            with_graphs(row["name"], row["name"], graphs),
            "" if row["last_count"] is None else format_count(row["last_count"]),
            format_count_change(rate) if rate else "",
        )


def _rate(row: Json) -> float:
    rate = row["count_per_generation"]
    return 0.0 if rate is None else float(rate["estimate"])


def _table(
    title: str, first: str, second: str, rows: Iterator[tuple[str, str, str]], width: int
) -> Iterator[tuple[str, str]]:
    listed = list(rows)
    if not listed:
        return
    names = max(8, width - 32)
    yield "", ""
    yield f"{title:<{names}}{first:>14}{second:>18}", _DIM
    for name, one, other in listed:
        shown = cut(name, names - 1)
        yield f"{shown}{' ' * (names - columns(shown))}{one:>14}{other:>18}", ""


def _bar(value: float, low: float, high: float) -> str:
    if high <= low:
        return BARS[0]
    return BARS[round((value - low) / (high - low) * (len(BARS) - 1))]


def _plain(text: str, _style: str) -> str:
    return text.rstrip()


def _painted(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text

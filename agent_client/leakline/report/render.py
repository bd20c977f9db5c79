"""A built report -> text for a terminal or a log. Sizes in GiB with two decimals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ..snapshot import LargeObject
from .build import ObjectChange, ProcessReport, Report, TrendRow

WIDTH: Final = 78
TREND_ROWS: Final = 60
OBJECT_ROWS: Final = 24
_MEMORY_ROWS: Final = (
    ("RSS (actual RAM)", "process.rss_bytes"), ("anonymous", "process.anon_bytes"),
    ("file-backed", "process.file_bytes"), ("shared", "process.shared_bytes"),
    ("swapped out", "process.swap_bytes"), ("VMS (virtual)", "process.vms_bytes"),
    ("peak", "process.peak_bytes"), ("container in use", "cgroup.used_bytes"),
    ("container limit", "cgroup.limit_bytes"), ("system available", "system.available_bytes"),
)  # fmt: skip
_COUNT_ROWS: Final = (
    ("tensors", "tensors.count"), ("tensors with a graph", "tensors.graph_count"), ("arrays", "arrays.count"),
    ("open figures", "figures.open"), ("Python objects", "python.objects"),
)  # fmt: skip


def gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def signed_gib(size: float | None) -> str:
    return "" if size is None else f"{size / 2**30:+.2f} GiB"


def render(report: Report) -> str:
    header = report.header
    lines = [f"Run {header.name} ({header.id}), project {header.project}"]
    for process in report.processes:
        if len(report.processes) > 1:
            lines += ["", process.title]
        lines += _snapshot(process)
        lines += _trend(process.trend)
        lines += _growth(process)
    lines += _large(report.large_objects)
    lines += _verdict(report)
    return "\n".join(lines)


def _banner(title: str) -> list[str]:
    return ["", "=" * WIDTH, title, "=" * WIDTH]


def _snapshot(process: ProcessReport) -> Iterator[str]:
    yield from _banner(f"MEMORY SNAPSHOT: {process.label}")
    values = process.snapshot
    yield "Process memory:"
    for title, series in _MEMORY_ROWS:
        if series in values:
            yield f"   {title + ':':<24}{gib(values[series]):>14}"
    yield from _gpus(process)
    yield "Objects:"
    for title, series in _COUNT_ROWS:
        if series in values:
            yield f"   {title + ':':<40}{values[series]:>10,.0f}"
    for row in process.objects[:OBJECT_ROWS]:
        note = "" if row.expected is None else f"   <- should be {row.expected}"
        yield f"   {row.name + ':':<40}{row.last:>10,}{note}"


def _gpus(process: ProcessReport) -> Iterator[str]:
    for series, value in sorted(process.snapshot.items()):
        if series.startswith(("cuda.", "gpu.")) and series.endswith("_bytes"):
            yield f"   {series + ':':<32}{gib(value):>14}"


def _trend(rows: tuple[TrendRow, ...]) -> Iterator[str]:
    yield from _banner("MEMORY TREND")
    yield f"{'':<44}{'RAM':>10} {'change':>11} {'same phase':>11}"
    for row in _ends(rows):
        if row is None:
            yield f"   ... {len(rows) - TREND_ROWS} rows left out ..."
            continue
        label = row.label if len(row.label) <= 42 else row.label[:39] + "..."
        change = "baseline" if row.since_previous is None else signed_gib(row.since_previous)
        line = f"{label:<42}{gib(row.memory_bytes):>12} {change:>11} {signed_gib(row.since_same_phase):>11}"
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
    yield from _banner("MEMORY GROWTH")
    grown = last.memory_bytes - first.memory_bytes
    share = 100 * grown / max(1, first.memory_bytes)
    yield f"   from:    {gib(first.memory_bytes):>12}   {first.label}"
    yield f"   to:      {gib(last.memory_bytes):>12}   {last.label}"
    yield f"   growth:  {signed_gib(grown):>12}   ({share:+.1f} %)"
    changed = [row for row in process.objects if row.last != row.first or row.expected is not None]
    if changed:
        yield "   objects:"
    for row in changed[:OBJECT_ROWS]:
        yield _object_line(row)


def _object_line(row: ObjectChange) -> str:
    rating = "" if row.rating == "steady" else f"  {row.rating}"
    expected = "" if row.expected is None else f" (expected {row.expected})"
    counts = f"{row.first:>10,} -> {row.last:>10,}  {row.last - row.first:>+10,}"
    return f"      {row.name:<36}{counts}{rating}{expected}"


def _large(objects: tuple[LargeObject, ...]) -> Iterator[str]:
    if not objects:
        return
    yield from _banner("LARGE OBJECTS")
    for thing in objects:
        where = f"   {thing.holder}" if thing.holder else ""
        yield f"   {thing.bytes / 2**20:>12,.2f} MiB   {thing.type} {thing.detail}{where}".rstrip()


def _verdict(report: Report) -> Iterator[str]:
    verdict = report.verdict
    yield from _banner("VERDICT")
    yield f"{verdict.status}: {verdict.summary}"
    for finding in verdict.findings:
        yield f"   [{finding.status}] {finding.kind} in {finding.phase or 'several phases'}"
        yield from (f"      {line}" for line in (*finding.evidence, *finding.advice))
    for ruled in verdict.ruled_out:
        yield f"   ruled out: {ruled.phase}, {ruled.reason}"
    if report.lost:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(report.lost.items()))
        yield f"Not recorded or not sent: {counts}"

"""Evidence sections of a page: an explanation, a chart and a table for each result of the analysis.

Each function returns one section, or None if the run has no such data, and does no I/O. Sections
without a chart are in inventory_tables.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from leakline.analysis.results import ContainerFill, PhaseAccount, PhaseAccounts
from leakline.analysis.status import ACTIVE
from leakline.report.verdict_facts import OUTSIDE_NAMES
from leakline.text_format import format_times, join_words, plural

from ...charts.chart_parts import Chart
from . import number_formats
from .page_contexts import AxisLink, Bar, Choice, Figure, Section, Sign, Table
from .table_cells import Field, code, rated, shown, table

# The number of rows that a table shows; the API has all rows.
MAX_ROWS: Final = 100
# The number of phases on the first screen.
PHASE_BARS: Final = 6
# Below this duration, the overhead share is not representative: the first heap scans are the most
# expensive.
SHARE_KNOWN_SECONDS: Final = 60.0
# Kind of a mark -> its label, as in static/js/marks.js. If several marks share a position, the
# first of these kinds determines the symbol.
SIGNS: Final = {
    "fix": "fix", "incident": "incident", "alert": "alert", "exception": "exception", "attempt": "next attempt",
    "note": "note", "mark": "mark", "cleanup": "cleanup",
}  # fmt: skip
_FILL_STATUS: Final = {
    "filling": "filling", "full": "ok", "over": "confirmed", "unbounded": "watch", "steady": "ok",
}  # fmt: skip
_WRITE: Final[Mapping[str, Callable[[float | None], str]]] = {
    "bytes": number_formats.size, "seconds": number_formats.seconds, "share": number_formats.percent,
}  # fmt: skip


def trend(chart: Chart, unit: str, note: str, axes: tuple[AxisLink, ...] = ()) -> Section:
    if not chart.lines:
        how = "Memory after each phase, as soon as there is a reading."
        return Section("trend", "Memory", how, empty="Nothing has been measured yet.")
    how = "Look at the floor, not the peaks."
    what = f"Memory at the end of every {unit}."
    if chart.x_unit == "time":
        what = "Memory over time."
    choices = tuple(Choice(each.id, each.label, i == 0) for i, each in enumerate(chart.groups))
    figure = Figure(chart, f"{what} {note}".strip(), choices, axes=axes)
    table = line_table(chart, unit)
    return Section("trend", "Memory", how, figure, table, True, note, signs=_signs(chart))


def _signs(chart: Chart) -> tuple[Sign, ...]:
    kinds = {mark.kind for mark in chart.marks}
    return tuple(Sign(kind, word) for kind, word in SIGNS.items() if kind in kinds)


def line_table(chart: Chart, unit: str) -> Table | None:
    """Return a table of the first group of lines: one row per x, newest first."""
    first = chart.groups[0].id if chart.groups else None
    lines = [line for line in chart.lines if line.group == first]
    columns = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    xs = sorted({x for line in lines for x in line.x}, reverse=True)
    if not xs:
        return None
    write = _WRITE.get(chart.unit, number_formats.count)
    rows = [[f"{x:,.10g}", *(write(column.get(x)) for column in columns)] for x in xs[:MAX_ROWS]]
    heads = [f"#{chart.x_title}", *(f"#{line.name}" for line in lines)]
    what = unit if chart.x_unit == "generation" else "reading"
    return table(heads, rows, caption=shown(len(rows), len(xs), what))


def phase_bars(found: PhaseAccounts, findings: Sequence[Mapping[str, Any]]) -> tuple[Bar, ...]:
    """Return a bar for each phase's mean growth, largest first; the leaking phase is marked."""
    generations = found.count()
    means = [(sum(line.bytes) / generations, line.name) for line in found.lines if any(line.bytes)]
    means = sorted(means, reverse=True)[:PHASE_BARS]
    most = max((abs(mean) for mean, _ in means), default=0)
    leaks = [each for each in findings[:1] if each["status"] in ACTIVE]
    causes = [each.get("phase_path") or each["phase"] for each in leaks]
    return tuple(
        Bar(
            OUTSIDE_NAMES.get(name, name),
            number_formats.change(mean),
            100 * max(mean, 0) / most if most > 0 else 0,
            "cause" if name in causes else "",
        )
        for mean, name in means
    )


def why_phases_differ(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the evidence that explains why the first finding does not name the charged phase."""
    said = findings[0]["evidence"] if findings else ()
    return next((each for each in said if each.startswith("Created in ")), "")


def phase_accounts(chart: Chart | None, found: PhaseAccounts, unit: str) -> Section:
    how = (
        f"Every change in private memory between two {unit} ends is charged to the phase that was "
        "open. Changes outside all phases are charged to “between”, or to “other_threads” while "
        "only another thread had a phase open. Bars above zero show memory that was kept, and bars "
        "below zero memory that was released; the tick marks the sum."
    )
    if chart is None or not found.generations:
        empty = f"Growth by phase needs two whole {plural(unit, 2)}."
        return Section("phases", f"Growth of each {unit}", how, empty=empty)
    figure = Figure(chart, f"Growth per {unit}, stacked by phase.")
    table, note = _phases_table(found, unit), _outside(found, unit)
    return Section("phases", f"Growth of each {unit}", how, figure, table, note=note)


def _phases_table(found: PhaseAccounts, unit: str) -> Table:
    whole, generations = sum(found.total), found.count()
    heads = (
        "phase",
        f"#mean per {unit}",
        "#whole run",
        "#share",
        f"#last {unit}",
        "#time, mean",
        "#executions",
    )
    sums = ("sum", number_formats.change(whole / generations), number_formats.change(whole),
    "100 %" if whole > 0 else "–",
            number_formats.change(found.total[-1]), "", "")  # fmt: skip
    rows = [_phase_row(line, whole, generations) for line in found.lines]
    return table(heads, rows, tall=False, sums=sums)


def _phase_row(line: PhaseAccount, whole: float, generations: int) -> list[Field]:
    kept = sum(line.bytes)
    seconds = [each for each in line.seconds if each is not None]
    return [
        code(line.name), number_formats.change(kept / generations), number_formats.change(kept),
        number_formats.percent(kept / whole) if whole > 0 else "–", number_formats.change(line.bytes[-1]),
        number_formats.seconds(_mean(seconds)), f"{sum(line.executions):,}",
    ]  # fmt: skip


def _outside(found: PhaseAccounts, unit: str) -> str:
    between = next((line for line in found.lines if line.name == "between"), None)
    whole = sum(found.total)
    if between is None or whole <= 0 or sum(between.bytes) <= 0.05 * whole:
        return ""
    return f"{number_formats.percent(sum(between.bytes) / whole)} of the growth was outside all phases of the {unit}."


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def memory(
    chart: Chart | None,
    unit: str,
    last: Mapping[str, float | None],
    peaks: Mapping[str, float],
    *,
    exact_peaks: bool,
    accounted: str = "",
) -> Section | None:
    """Return the memory section.

    ``peaks`` is the highest resident memory of each phase; ``accounted`` is a sentence about
    the memory of counted objects.
    """
    how = (
        "The stack is resident memory. Anonymous memory was allocated by the program itself. Files are mapped from "
        "disk, and the system may drop them. Shared memory counts for every process that maps it. Only anonymous "
        "memory can leak."
    )
    kept = last.get("allocator.kept_bytes")
    notes = []
    if kept:
        notes.append(
            f"The C allocator keeps {number_formats.size(kept)} of freed memory for reuse."
        )
    if peaks:
        phase = max(peaks, key=lambda name: (peaks[name], name))
        who = (
            "exact: the kernel's high-water mark was reset at each snapshot"
            if exact_peaks
            else "from background readings and new highs of the kernel's high-water mark"
        )
        notes.append(
            f"Highest resident memory inside a phase: {number_formats.size(peaks[phase])} in {phase} ({who})."
        )
    note = " ".join([*notes, *([accounted] if accounted else [])])
    return _plain("memory", "Memory breakdown", how, chart, unit, note=note)


def gpu(chart: Chart | None, unit: str, last: Mapping[str, float | None]) -> Section | None:
    how = (
        "Allocated memory is held by live tensors; active memory also includes blocks that streams "
        "have not finished with. Reserved memory is memory that torch keeps for reuse, and "
        "“split and idle” is reserved memory that cannot be returned. None of these values includes "
        "memory outside torch. The driver reports all memory, but not its use: “outside torch” "
        "covers contexts, NCCL and other libraries, and “in use” includes other processes. Reserved "
        "memory far above allocated memory means fragmentation. A missing line means that the value "
        "is unknown, such as process memory in most containers."
    )
    return _plain("gpu", "GPU memory", how, chart, unit, note=_failures(last))


def _failures(last: Mapping[str, float | None]) -> str:
    """Describe the failures of torch's allocator on all devices: retries and out-of-memory errors."""
    retries, ooms = (
        sum(v or 0 for name, v in last.items() if name.startswith("cuda.") and name.endswith(what))
        for what in (".retries", ".ooms")
    )
    sentences = []
    if retries:
        sentences.append(f"emptied its cache and tried again {format_times(retries)}")
    if ooms:
        sentences.append(f"ran out of memory {format_times(ooms)}")
    return f"torch {join_words(sentences)}." if sentences else ""


def tensors(chart: Chart | None, unit: str) -> Section | None:
    how = (
        "Tensors are counted in each heap scan, and TensorFlow.js tensors at each snapshot. A tensor "
        "that still carries an autograd graph keeps everything that the graph saved. Outside a "
        "training step, the number of these tensors should return to its earlier level."
    )
    return _plain("tensors", "Tensors and arrays", how, chart, unit)


def containers(chart: Chart | None, stores: Sequence[ContainerFill], unit: str) -> Section | None:
    if not stores:
        return None
    how = (
        "A container with a declared capacity is not a leak while it fills: its growth is "
        "subtracted before the trend is assessed."
    )
    heads = [
        "container",
        "#items",
        "#capacity",
        "#full",
        "#bytes",
        "#bytes when full",
        f"#full at {unit}",
        "state",
    ]
    rows = list(map(_container_row, stores))
    if any(each.device_bytes is not None for each in stores):
        # Insert both columns right after the bytes column, which contains their sum.
        heads[5:5] = ["#on the host", "#on devices"]
        for row, each in zip(rows, stores, strict=True):
            row[5:5] = [
                number_formats.size(each.host_bytes),
                number_formats.size(each.device_bytes),
            ]
    figure = (
        Figure(chart, "Fill of the tracked containers, as a share of capacity.", low=True)
        if chart
        else None
    )
    found = table(heads, rows, tall=False)
    return Section("containers", "Tracked containers", how, figure, found)


def _container_row(each: ContainerFill) -> list[Field]:
    bounded = each.capacity is not None and each.capacity > 0
    return [
        code(each.name), number_formats.count(each.length),
        number_formats.count(each.capacity) if bounded else "none declared",
        number_formats.percent(each.length / each.capacity) if each.capacity else "–", number_formats.size(each.bytes),
        number_formats.size(each.ceiling_bytes) if bounded else "–",
        "–" if each.full_at_generation is None else f"{each.full_at_generation:,.0f}",
        rated(each.state, _FILL_STATUS[each.state]),
    ]  # fmt: skip


def gauges(chart: Chart | None, unit: str) -> Section | None:
    how = "Numbers reported by the training script, and the frame rate of a page."
    return _plain("gauges", "Gauges", how, chart, unit)


def seconds(chart: Chart | None, unit: str) -> Section | None:
    how = (
        f"The time of each {unit}, charged to phases in the same way as memory. Time that rises with "
        "memory indicates swapping, or a scan over something that grows."
    )
    return _plain("seconds", "Time per phase", how, chart, unit)


def _share(spent: float, wall_seconds: float | None) -> str:
    """Return the overhead share, or a note if initial heap scans still dominate a short run."""
    if wall_seconds is None or wall_seconds < SHARE_KNOWN_SECONDS:
        return f"not known yet: shown after {number_formats.seconds(SHARE_KNOWN_SECONDS)}"
    return number_formats.percent(spent / wall_seconds, 3)


def cost(
    last: Mapping[str, float | None], wall_seconds: float | None, native: object = None
) -> Section | None:
    """Return the overhead section.

    ``native`` is True if the native module is used, the reason why it is missing, or None if
    unknown.
    """
    spent = last.get("client.seconds")
    if spent is None:
        return None
    background = last.get("client.background_seconds")
    in_all = spent + (background or 0.0)
    rows = (
        ("time spent measuring", number_formats.seconds(spent)),
        ("time spent recording and sending, on other threads", number_formats.seconds(background)),
        (
            "share of the run's time",
            _share(in_all, wall_seconds),
        ),
        ("longest recent pause", number_formats.seconds(last.get("client.pause_seconds"))),
        ("memory held", number_formats.size(last.get("client.bytes"))),
    )
    how = "Measured by the client itself, in the training process."
    if native is True:
        how += " Its native module scans the heap."
    elif native:
        how += f" It scans the heap in pure Python, and therefore less often: {native}."
    return Section(
        "cost",
        "Overhead",
        how,
        table=table(("what", "#cost"), rows, tall=False),
    )


def _plain(
    section_id: str,
    title: str,
    how: str,
    chart: Chart | None,
    unit: str,
    *,
    note: str = "",
) -> Section | None:
    if chart is None:
        return None
    figure = Figure(chart, f"{title}, {unit} by {unit}.", low=True)
    return Section(section_id, title, how, figure, line_table(chart, unit), True, note)

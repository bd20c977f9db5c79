"""Sections about processes: how they ended, delivery of snapshots, attempts, log lines, children.

The list of runs uses the same words for ends. These functions do no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from leakline.analysis.statistics.trend import floor_slope
from leakline.text_format import count_of, format_span
from leakline.transport.oom_inference import ended_as
from leakline.transport.spool_format import DROPPED, THINNED

from ...charts.chart_parts import Chart, Line, Points
from ...store.runs import lifecycle
from ...store.runs.runs import unix
from ..rendering import number_formats
from ..rendering.page_contexts import Cell, Figure, Section
from ..rendering.table_cells import Field, at_iso, code, commit_link, rated, table

# The number of lines shown at first; the legend can show the others.
_SHOWN = 8
_FEW = 3


def children(chart: Chart | None, unit: str, process: str | None = None) -> Section | None:
    """Return the section of child processes; ``process`` is set if the run has several processes."""
    if chart is None:
        return None
    how = (
        f"Private memory of each child process{f' of {process}' if process else ''}. A child is "
        "listed by the name that the program gave it or, without a name, by its purpose. A name "
        "that becomes free is reused for the next child of the same kind. The 16 largest children "
        "are listed individually, and all others together as “other”."
    )
    by_generation = chart.x_unit == "generation"
    ranked = sorted(chart.lines, key=lambda line: (-(growth_of(line) or 0.0), line.name))
    shown = {line.name for line in ranked[:_SHOWN]}
    chart = replace(
        chart, lines=tuple(replace(line, hidden=line.name not in shown) for line in chart.lines)
    )
    heads = ["child", "#first", "#last", *([f"#growth per {unit}"] if by_generation else [])]
    found = table(heads, [_row(line, by_generation) for line in ranked], tall=False)
    figure = Figure(chart, f"Memory of each child process, {unit} by {unit}.", low=True)
    return Section("children", "Child processes", how, figure, found)


def _row(line: Line, by_generation: bool) -> list[Field]:
    known = [y for y in line.y if y is not None]
    row: list[Field] = [
        code(line.name),
        number_formats.size(known[0]),
        number_formats.size(known[-1]),
    ]
    if by_generation:
        rate = growth_of(line)
        row.append(Cell("unknown", absent=True) if rate is None else number_formats.change(rate))
    return row


def growth_of(line: Line | Points) -> float | None:
    """Return the growth in bytes per axis unit, or None for fewer than three readings."""
    points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
    if len(points) < _FEW:
        return None
    return floor_slope([x for x, _ in points], [y for _, y in points]).estimate


Json = Mapping[str, Any]
COMMIT_SHOWN: Final = 10
CHANGES_SHOWN: Final = 6
# Final states for which the page shows the last readings.
_SUDDEN: Final = ("failed", "interrupted", "killed", "silent")
_STATUS: Final = {
    "failed": "confirmed", "interrupted": "watch", "killed": "confirmed", "silent": "watch",
}  # fmt: skip
# Loss reason -> its meaning and what to do about it.
_REASONS: Final = {
    "queue_full": "The disk could not keep up with the snapshots. Check whether the disk is slow or full.",
    "recording_failed": "Recording failed inside Leakline. The training script printed the "
                        "reason once, on stderr.",
    "spool_thinned": "The file on disk reached its size limit, so every other frequent "
                     "snapshot was dropped; generation ends are kept. Raise "
                     "LEAKLINE_SPOOL_LIMIT for longer outages.",
    "spool_full": "The file on disk reached its size limit, so the oldest snapshots were "
                  "dropped. Raise LEAKLINE_SPOOL_LIMIT, or run leakline sync during training.",
    "spool_damaged": "The file on disk was damaged before it was uploaded, and these snapshots could not be read.",
    "memory_full": "No file could be written, and the buffer in memory was full. Free disk space "
                   "or set LEAKLINE_DIR.",
    "refused": "The server rejected these snapshots as invalid; the server's log names the field. Client and "
               "server may have different versions.",
    "too_large": "A snapshot exceeded the server's size limit. Count fewer classes, or report fewer gauges.",
    "thinned": "These snapshots were not taken, to stay within the overhead budget. Raise "
               "LEAKLINE_MAX_OVERHEAD to take more snapshots.",
    "events": "More events occurred between two snapshots than one snapshot can hold.",
    "gauges": "The run has more gauges than allowed.",
    "phases_over_limit": "The run has more phases than allowed. The remaining phases are recorded as "
                         "one phase, “other”.",
    "types_over_limit": "The run has more types than allowed. The remaining types are counted together, as type.other.",
    "clock_ahead": "The process's clock was minutes ahead. These snapshots have the server's time.",
    "clock_behind": "The process's clock was minutes behind. The times of these snapshots "
                    "were shifted accordingly.",
    "series_over_limit": "The run has more series than allowed. Values of the remaining series "
                         "are missing, but the snapshots are stored.",
}  # fmt: skip


def is_over(run: Json) -> bool:
    """Return True if no more data is expected.

    An end inferred from silence is not final: the process may report again.
    """
    return run["state"] in ("finished", "failed", "interrupted") or (
        run["state"] == "killed" and not run["end_inferred"]
    )


def end(run: Json, snapshots: Sequence[Json]) -> Section | None:
    """Describe how a run ended that did not finish normally, with the last readings of each process."""
    if run["state"] not in _SUDDEN:
        return None
    newest = max((p["attempt"] for p in run["processes"]), default=0)
    last: dict[str, Json] = {}
    for row in snapshots:
        last.setdefault(row["process"], row)
    of_attempt = [p for p in run["processes"] if p["attempt"] == newest]
    read = [(each, last[each["instance"]]) for each in of_attempt if each["instance"] in last]
    heads = (
        "#rank",
        "how",
        "ended",
        "#RSS",
        "#container use",
        "#share of limit",
        "#available on host",
        "where",
    )
    rows = [_last_row(process, row) for process, row in read]
    return Section(
        "end", "How it ended", _how_known(run), note=_ending_sentence(run, read),
        table=table(heads, rows, tall=False) if rows else None, empty="No process has reported.",
    )  # fmt: skip


def ended_badly(run: Json, snapshots: Sequence[Json]) -> str:
    """Return the note of `end` for the page header, or an empty string for a running or finished run."""
    section = end(run, snapshots)
    return section.note if section else ""


def _how_known(run: Json) -> str:
    if run["state"] == "silent":
        return "No end was reported, and the last readings do not show why the run fell silent."
    if run["end_inferred"] and run["state"] == "killed":
        return "Inferred from the run's silence and last readings, because a killed process cannot report its end."
    return "The end as reported, with the last readings before it."


def _ending_sentence(run: Json, read: Sequence[tuple[Json, Json]]) -> str:
    """Describe the run's end and the last reading of the process that ended worst."""
    said = [_sentence(ended_as(run["state"], run["reason"]))]
    if run["state"] == "silent":
        # The page header already shows how long the run has been silent, to the second.
        said = ["The run stopped sending without reporting an end."]
    why = run["reason"].partition(":")[2].strip()
    if run["state"] == "killed" and why:
        said.append(_sentence(why))
    if read:
        said.append(_last_reading(run, *max(read, key=lambda pair: _badness(pair[0]))))
    return " ".join(said)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _last_reading(run: Json, process: Json, row: Json) -> str:
    samples = row["samples"]
    resident = samples.get("process.rss_bytes")
    limit = samples.get("cgroup.limit_bytes")
    reading = "no memory reading" if resident is None else f"RSS {number_formats.size(resident)}"
    if limit:
        reading += f" of a limit of {number_formats.size(limit)}"
    where = row["label"] or row["kind"]
    if row["generation"] is not None and f"{run['unit']} {row['generation']}" not in where:
        where = f"{run['unit']} {row['generation']}, {where}"
    return f"Last reading of rank {process['rank']}: {reading} at {where}{_before(process, row)}."


def _before(process: Json, row: Json) -> str:
    """Describe the time from the last reading to the end, both by the process's clock.

    An inferred end has a time from the server's clock, so the two times cannot be compared.
    """
    if process["ended_at"] is None or process["end_inferred"]:
        return ""
    seconds = unix(process["ended_at"]) - row["time"]
    return f", {number_formats.seconds(seconds)} before the end" if seconds >= 0 else ""


def _last_row(process: Json, row: Json) -> list[Field]:
    samples = row["samples"]
    used, limit = samples.get("cgroup.used_bytes"), samples.get("cgroup.limit_bytes")
    return [
        f"{process['rank']}", process_end(process, process["attempt"]), at_iso(process["ended_at"]),
        number_formats.size(samples.get("process.rss_bytes")), number_formats.size(used),
        number_formats.percent(used / limit) if used is not None and limit else "no limit",
        number_formats.size(samples.get("system.available_bytes")), row["label"] or row["kind"],
    ]  # fmt: skip


def process_end(process: Json, newest: int) -> Cell:
    """Describe a process's end; only processes of the ``newest`` attempt can still be running."""
    state = process["end_state"]
    if state is None:
        return (
            Cell("running") if process["attempt"] >= newest else rated("no end reported", "watch")
        )
    text = ended_as(state, process["end_reason"])
    return rated(text, _STATUS[state]) if state in _STATUS else Cell(text)


def delivery(found: Sequence[Json]) -> Section | None:
    """Return the table of deliveries: for each process, taken = stored + lost + pending."""
    if not found:
        return None
    heads = (
        "#rank",
        "role",
        "#attempt",
        "#taken",
        "#stored",
        "#lost",
        "#pending",
        "loss reasons",
    )
    how = (
        "Each process numbers its snapshots. Each snapshot is stored here, lost (counted by reason), "
        "or pending: it is on the training machine's disk until leakline sync or the next start uploads it."
    )
    seen = dict.fromkeys(r for each in found for r, number in each["lost"].items() if number)
    note = " ".join(f"{_word(r).capitalize()}: {_REASONS[r]}" for r in seen if r in _REASONS)
    rows = [_delivery_row(each) for each in found]
    return Section(
        "delivery", "Data completeness", how, table=table(heads, rows, tall=False), note=note
    )


def lost_words(run: Json) -> str:
    """Describe the number of lost snapshots; return an empty string if no snapshot was lost."""
    lost = sum(
        number
        for each in run["processes"]
        for reason, number in each["lost"].items()
        if reason in DROPPED
    )
    return f"{count_of(lost, 'snapshot')} lost" if lost else ""


def _delivery_row(process: Json) -> list[Field]:
    lost = {reason: number for reason, number in process["lost"].items() if number}
    gone = sum(number for reason, number in lost.items() if reason in DROPPED | THINNED)
    # The server knows the highest sequence number received, but not how many snapshots came later.
    missing = max(0, process["taken"] - process["stored"] - process["left_out"] - gone)
    losses = ", ".join(f"{_word(reason)} {number:,}" for reason, number in lost.items())
    if process["left_out"]:
        losses = ", ".join(filter(None, (losses, f"thinned on the server {process['left_out']:,}")))
    return [
        f"{process['rank']}", process["role"], f"{process['attempt']}", f"{process['taken']:,}",
        f"{process['stored']:,}", rated(f"{gone:,}", "watch") if gone else "0", f"{missing:,}", losses or "–",
    ]  # fmt: skip


def _word(reason: str) -> str:
    return reason.replace("_", " ")


def attempts(run: Json, verdict: Json | None = None) -> Section | None:
    """Return the table of attempts: environment, end and, for a resumed run, growth of each attempt."""
    found = run["attempts"]
    if not found:
        return None
    rows = []
    before: Json = {}
    # Older servers stored verdicts without attempts.
    grown = {each["attempt"]: each for each in (verdict or {}).get("attempts", ())}
    for attempt in found:
        packages = attempt["environment"].get("packages") or {}
        first, *rest = _attempt_row(attempt, run["processes"], packages, before)
        own = _growth_cells(grown.get(attempt["number"])) if grown else []
        rows.append([first, *own, *rest])
        before = packages
    growth = (f"#{run['unit']}s", "#repeated", f"#growth per {run['unit']}") if grown else ()
    heads = ("#attempt", *growth, "started", "ended", "how", "commit", "command line", "packages")
    how = (
        "An attempt is one execution of the run. Resuming the run under the same id starts the next "
        "attempt, which continues the curve."
    )
    if grown:
        how += (
            f" Growth is the growth of private memory within the attempt. If a {run['unit']} was "
            "repeated, the repetition counts."
        )
    return Section(
        "attempts", "Restarts", how, table=table(heads, rows[::-1], tall=False),
        note=_lives(len(found), run["attempts_left_out"]),
    )  # fmt: skip


def _lives(shown: int, left_out: int) -> str:
    count = shown + left_out
    if count == 1:
        return ""
    those = f", showing {shown:,}" if left_out else ""
    return f"{count_of(count, 'attempt')}, newest first{those}."


def _attempt_row(
    attempt: Json, processes: Sequence[Json], packages: Mapping[str, Any], before: Mapping[str, Any]
) -> list[Field]:
    own = [p for p in processes if p["attempt"] == attempt["number"]]
    own = [p for p in own if p["role"] == "main"] or own
    newest = max((p["attempt"] for p in processes), default=0)
    goes_on = attempt["number"] == newest and any(p["end_state"] is None for p in own)
    worst = max(own, key=_badness, default=None)
    ends = [p["ended_at"] for p in own if p["ended_at"]]
    environment = attempt["environment"]
    return [
        f"{attempt['number']}", at_iso(attempt["started_at"]),
        at_iso(None if goes_on else max(ends, default=None)),
        Cell("–") if worst is None else Cell("running") if goes_on else process_end(worst, newest),
        _commit(environment), code(_line(environment.get("command_line"))), _packages(packages, before),
    ]  # fmt: skip


def _growth_cells(own: Json | None) -> list[Field]:
    """Return an attempt's generations, repeated generations and growth.

    ``own`` is None if no generation ended in the attempt.
    """
    if own is None:
        return [Cell("none ended", absent=True), "–", Cell("unknown", absent=True)]
    growth = own["growth_bytes_per_generation"]
    rate = (
        Cell("unknown", absent=True)
        if growth is None
        else number_formats.interval(growth, number_formats.change)
    )
    return [_stretch(own["generations"]), _stretch(own["again"]), rate]


def _stretch(found: Json | None) -> str:
    if found is None:
        return "–"
    return format_span(found["first"], found["last"])


def _badness(process: Json) -> tuple[bool, int]:
    """Return a sort key for how badly a process ended; main processes rank above child processes."""
    bad = lifecycle.how_bad(process["end_state"], process["end_reason"])
    return process["role"] == "main", bad


def _commit(environment: Json) -> Cell:
    commit = environment.get("commit")
    if not commit:
        return Cell("unknown", absent=True)
    dirty = environment.get("dirty")
    changed = "" if dirty is False else " with changes" if dirty else ", changes unknown"
    text, link = f"{str(commit)[:COMMIT_SHOWN]}{changed}", commit_link(environment)
    return Cell(text, title=str(commit), href=link, outside=link is not None)


def _line(arguments: Any) -> str:
    return (
        " ".join(map(str, arguments)) if isinstance(arguments, (list, tuple)) else arguments or ""
    )


def _packages(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    if not now:
        return number_formats.NOT_MEASURED
    count = count_of(len(now), "package")
    if not before:
        return count
    changed = [
        *(f"{name} {before[name]} → {now[name]}" for name in now if name in before and before[name] != now[name]),
        *(f"{name} {now[name]} is new" for name in now if name not in before),
        *(f"{name} is gone" for name in before if name not in now),
    ]  # fmt: skip
    more = f" and {len(changed) - CHANGES_SHOWN:,} more" if len(changed) > CHANGES_SHOWN else ""
    return f"{count}; {', '.join(changed[:CHANGES_SHOWN])}{more}" if changed else f"{count}, as before"  # fmt: skip


def lines(run: Json) -> Section | None:
    """Return the last log lines of each process, with the newest attempt last.

    The section is folded unless the run ended badly.
    """
    said = sorted(
        (p for p in run["processes"] if p["log_lines"]), key=lambda p: (p["attempt"], -p["rank"])
    )
    if not said:
        return None
    # A column is needed only if its values differ.
    columns = [
        (name, f"#{name}") for name in ("attempt", "rank") if len({p[name] for p in said}) > 1
    ]
    rows: list[list[Field]] = [
        [*(f"{p[name]}" for name, _ in columns), code(line)]
        for p in said
        for line in p["log_lines"]
    ]
    how = (
        "The last lines that each process printed and logged, if sending lines is enabled; the "
        "newest lines are at the end. Text that looks like a secret is masked, but patterns cannot "
        "recognize every secret."
    )
    found = table((*(head for _, head in columns), "line"), rows)
    fold = run["state"] not in _SUDDEN
    left_out = sum(p["log_lines_left_out"] for p in run["processes"])
    note = (
        f"{left_out:,} more lines are not shown, because lines of other processes come first."
        if left_out
        else ""
    )
    return Section("lines", "Last lines", how, table=found, fold=fold, note=note)

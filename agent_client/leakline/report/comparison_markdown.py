"""Formats a comparison of two runs as a document, as a short text for an issue, and as CSV.

Both the server and `leakline compare` pass in the JSON of `GET /api/v1/compare`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..text_format import format_count
from .document import Origin, checked, made
from .document_blocks import (
    MARKDOWN,
    TERMINAL,
    Block,
    Facts,
    Heading,
    Headline,
    Sentence,
    Style,
    Table,
    markdown_text,
    section,
    terminal_lines,
)
from .verdict_facts import (
    change_interval,
    change_rows,
    compared,
    finding_line,
    gauge_rows,
    interval,
    memory_title,
    percent,
    survival_line,
)

Json = Mapping[str, Any]

PHASES_SHOWN: Final = 40
TYPES_SHOWN: Final = 20
DIFFERENCES_SHOWN: Final = 40
_CHANGES: Final = (("gone", "Gone"), ("still", "Still there"), ("new", "New"))
# The command line differs between any two runs and is longer than all other values; only the JSON contains it.
_LEFT_OUT: Final = ("command_line",)


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """Name, id and progress of one of the two runs."""

    project: str
    name: str
    id: str
    progress: str


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    comparison: Json
    before: ComparedRun
    after: ComparedRun
    origin: Origin
    unit: str = "generation"


def comparison_markdown(report: ComparisonReport) -> str:
    name, text, *_ = MARKDOWN
    before, after = report.before, report.after
    sides = [
        (
            "project / name",
            *(name(f"{side.project} / {side.name}") for side in (before, after)),
            "",
        ),
        ("run", name(before.id), name(after.id), ""),
        ("progress", text(before.progress), text(after.progress), ""),
    ]
    title = Heading(1, f"{text(before.name)} → {text(after.name)}")
    blocks = _blocks(report.comparison, report.unit, MARKDOWN, sides)
    return markdown_text([title, *blocks, made(report.origin)])


def comparison_lines(comparison: Json, unit: str) -> Iterator[str]:
    """Yield the comparison as lines for a terminal."""
    return terminal_lines(_blocks(comparison, unit, TERMINAL))


def comparison_csv(comparison: Json, unit: str) -> str:
    """Return both runs' growth, memory, peak, time and gauges as CSV with a header row.

    Values that were not measured are empty, never zero.
    """
    text = io.StringIO()
    write = csv.writer(text).writerow
    write(("what", "unit", "before", "after", "change_percent"))
    for what, of, change in _measured(comparison, unit):
        write(
            (what, of, _plain(change["before"]), _plain(change["after"]), change["change_percent"])
        )
    return text.getvalue()


def _measured(comparison: Json, unit: str) -> Iterator[tuple[str, str, Json]]:
    yield f"growth per {unit}", "bytes", comparison["growth_bytes_per_generation"]
    if comparison.get("memory_after"):
        yield memory_title(comparison, unit), "bytes", comparison["memory_after"]
    yield "peak memory", "bytes", comparison["peak_bytes"]
    yield f"time per {unit}", "seconds", comparison["seconds_per_generation"]
    for each in comparison.get("by_gauge") or ():
        yield f"gauge {each['gauge']}", "", each


def _plain(value: Any) -> float | None:
    """Return the estimate of an interval, or ``value`` itself if it is a number."""
    found: float | None = value["estimate"] if isinstance(value, Mapping) else value
    return found


def comparison_issue_text(report: ComparisonReport) -> str:
    """Return the comparison in about a dozen lines of Markdown, readable as plain text."""
    found, (name, text, _, nothing) = report.comparison, MARKDOWN
    unit = text(report.unit)
    facts = []
    for title, side in (("Before", report.before), ("After", report.after)):
        who = f"{name(f'{side.project} / {side.name}')} ({name(side.id)})"
        facts.append((title, f"{who}, {text(side.progress)}"))
    for what, before, after, change in change_rows(found, unit):
        between = f"{before or nothing} → {after or nothing}"
        facts.append((what.capitalize(), f"{between}{f' ({change})' if change else ''}"))
    difference = found["growth_bytes_per_generation"].get("difference")
    if difference is not None:
        facts.append(("Difference", change_interval(difference, f" per {unit}")))
    for key, title in _CHANGES:
        facts += [(title, finding_line(each, name)) for each in found["findings"][key][:3]]
    if report.origin.link:
        facts.append(("Page", report.origin.link))
    return markdown_text([Headline(found["outcome"], found["summary"]), Facts(facts)])


def _blocks(
    found: Json, declared_unit: str, style: Style, sides: Sequence[tuple[str, ...]] = ()
) -> Iterator[Block]:
    unit = style.text(declared_unit)
    heads = ("", "#before", "#after", "#change")
    changes = [
        (what, *(cell or style.nothing for cell in cells))
        for what, *cells in change_rows(found, unit)
    ]
    gauges = [
        (style.name(gauge), *(cell or style.nothing for cell in cells))
        for gauge, *cells in gauge_rows(found)
    ]
    findings = [
        (title, line)
        for key, title in _CHANGES
        for line in [finding_line(each, style.name) for each in found["findings"][key]]
        or ["nothing"]
    ]
    yield Headline(found["outcome"], found["summary"])
    yield Table(heads, [*sides, *changes])
    yield Sentence(_support(found, unit))
    yield Sentence(style.text(survival_line(found)))
    yield from section("Findings", Facts(findings))
    yield from checked(found, declared_unit)
    yield from section("By phase", _phases(found["by_phase"], unit, style))
    yield from section("By type", _types(found["by_type"], unit, style))
    yield from section("Gauges", Table(("gauge", *heads[1:]), gauges))
    yield from section("Environment", _environment(found["environment_changes"], style))


def _support(found: Json, unit: str) -> str:
    if not found["generations_compared"]:
        return f"The two runs have no {unit}s in common."
    over = f"Compared over {compared(found, unit)} that both runs have"
    difference = found["growth_bytes_per_generation"].get("difference")
    if difference is None:
        return f"{over}."
    return f"{over}; the difference is {change_interval(difference, f' per {unit}')}."


def _phases(changes: Sequence[Json], unit: str, style: Style) -> Table:
    heads = ("phase", f"#before, per {unit}", f"#after, per {unit}", "#difference", "#change")
    rows = [
        (
            style.name(each["phase"]),
            *(
                interval(each[side]) if each[side] else style.nothing
                for side in ("before", "after")
            ),
            change_interval(each["difference"]),
            percent(each["change_percent"]) or style.nothing,
        )
        for each in changes[:PHASES_SHOWN]
    ]
    return Table(heads, rows)


def _types(changes: Sequence[Json], unit: str, style: Style) -> Table:
    heads = ("type", f"#before, per {unit}", f"#after, per {unit}", "#last before", "#last after")
    names = ("before_per_generation", "after_per_generation", "before_last", "after_last")
    rows = [
        (
            style.name(each["type"]),
            *(style.nothing if each[of] is None else format_count(each[of]) for of in names),
        )
        for each in changes[:TYPES_SHOWN]
    ]
    return Table(heads, rows)


def _environment(changes: Mapping[str, Sequence[Any]], style: Style) -> Table:
    rows = [
        (style.name(name), _version(old, name, new, style), _version(new, name, old, style))
        for name, (old, new) in changes.items()
        if name not in _LEFT_OUT
    ]
    return Table(("what", "before", "after"), rows[:DIFFERENCES_SHOWN])


def _version(value: object, name: str, other: object, style: Style) -> str:
    """Return the value. If it is missing, return "not installed" for a package and "not recorded" for anything else."""
    if value is not None:
        return style.name(value)
    is_package = name != "python" and re.match(r"\d+\.\d", str(other)) is not None
    return "not installed" if is_package else "not recorded"

"""Two runs compared as Markdown, whole, or as the few lines that people paste into an issue.

Of the JSON that `GET /api/v1/compare` answers, for the server and for `leakline compare --markdown` alike.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..analysis.summary import effect_lines, promise_lines
from ..markup import NOTHING, bullets, code, escape, headline, table
from ..text_format import format_count
from .facts import (
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
from .markdown import Origin, made, titled

Json = Mapping[str, Any]

PHASES_SHOWN: Final = 40
TYPES_SHOWN: Final = 20
DIFFERENCES_SHOWN: Final = 40
# Beside what is still there and what is new.
_CHANGES: Final = (("gone", "Gone"), ("still", "Still there"), ("new", "New"))
# Always another one, and longer than all else.
_LEFT_OUT: Final = ("command_line",)


@dataclass(frozen=True, slots=True)
class SideTold:
    """One of the two runs."""

    project: str
    name: str
    id: str
    progress: str


@dataclass(frozen=True, slots=True)
class ComparisonTold:
    comparison: Json
    before: SideTold
    after: SideTold
    origin: Origin
    unit: str = "generation"


def comparison_markdown(told: ComparisonTold) -> str:
    """Ends with a line end."""
    found, unit = told.comparison, escape(told.unit)
    heads = ("", "#before", "#after", "#change")
    parts = [
        [f"# {escape(told.before.name)} → {escape(told.after.name)}", "", _headline(found), ""],
        table(heads, _changes(told, unit)),
        [_support(found, unit), "", *_survival(found)],
        _findings(found["findings"]),
        titled("What each fix has done", bullets(effect_lines(found.get("effects") or ()))),
        titled("What the fix promised", bullets(promise_lines(found.get("fixes") or ()))),
        titled("By phase", _phases(found["by_phase"], unit)),
        titled("By type", _types(found["by_type"], unit)),
        titled("Beside memory", _gauges(found)),
        titled("Environment", _environment(found["environment_changes"])),
        [made(told.origin)],
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def comparison_csv(comparison: Json, unit: str) -> str:
    """The table of before and after as numbers: growth, memory, peak, time and gauges, below a head.

    What was not measured stays empty, never zero.
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
    """Of an estimate its middle."""
    found: float | None = value["estimate"] if isinstance(value, Mapping) else value
    return found


def comparison_issue_text(told: ComparisonTold) -> str:
    """A dozen lines, which read as plain text as well."""
    found, unit = told.comparison, escape(told.unit)
    lines = [_headline(found), ""]
    for title, side in (("Before", told.before), ("After", told.after)):
        lines.append(f"- {title}: {_side(side)}")
    for what, before, after, change in change_rows(found, unit):
        between = f"{before or NOTHING} → {after or NOTHING}"
        lines.append(f"- {what.capitalize()}: {between}{f' ({change})' if change else ''}")
    difference = found["growth_bytes_per_generation"].get("difference")
    if difference is not None:
        lines.append(f"- Difference: {change_interval(difference, f' per {unit}')}")
    for key, title in _CHANGES:
        lines += [f"- {title}: {finding_line(each, code)}" for each in found["findings"][key][:3]]
    if told.origin.link:
        lines.append(f"- Page: {told.origin.link}")
    return "\n".join(lines) + "\n"


def _headline(found: Json) -> str:
    return headline(str(found["outcome"]).replace("_", " ").capitalize(), found["summary"])


def _side(side: SideTold) -> str:
    name = code(f"{side.project} / {side.name}")
    return f"{name} ({code(side.id)}), {escape(side.progress)}"


def _changes(told: ComparisonTold, unit: str) -> Iterator[tuple[str, ...]]:
    for title, of in (("project / name", "name"), ("run", "id"), ("progress", "progress")):
        yield title, *(_of(side, of) for side in (told.before, told.after)), ""
    for what, before, after, change in change_rows(told.comparison, unit):
        yield what, before or NOTHING, after or NOTHING, change or NOTHING


def _of(side: SideTold, what: str) -> str:
    if what == "name":
        return code(f"{side.project} / {side.name}")
    return code(side.id) if what == "id" else escape(side.progress)


def _support(found: Json, unit: str) -> str:
    if not found["generations_compared"]:
        return f"The two runs have no {unit}s in common."
    over = f"Compared over {compared(found, unit)} that both runs have"
    difference = found["growth_bytes_per_generation"].get("difference")
    if difference is None:
        return f"{over}."
    return f"{over}; the difference is {change_interval(difference, f' per {unit}')}."


def _findings(found: Json) -> Iterator[str]:
    yield from ("## Findings", "")
    for key, title in _CHANGES:
        told = [finding_line(each, code) for each in found[key]]
        yield from ((f"- {title}: {each}" for each in told) if told else (f"- {title}: nothing",))
    yield ""


def _survival(found: Json) -> tuple[str, ...]:
    line = survival_line(found)
    return (escape(line), "") if line else ()


def _gauges(found: Json) -> Iterator[str]:
    rows = [
        (code(name), before or NOTHING, after or NOTHING, change or NOTHING)
        for name, before, after, change in gauge_rows(found)
    ]
    yield from table(("gauge", "#before", "#after", "#change"), rows)


def _phases(changes: Sequence[Json], unit: str) -> Iterator[str]:
    heads = ("phase", f"#before, per {unit}", f"#after, per {unit}", "#difference", "#change")
    rows = [
        (
            code(each["phase"]),
            *(interval(each[side]) if each[side] else NOTHING for side in ("before", "after")),
            change_interval(each["difference"]),
            percent(each["change_percent"]) or NOTHING,
        )
        for each in changes[:PHASES_SHOWN]
    ]
    yield from table(heads, rows)


def _types(changes: Sequence[Json], unit: str) -> Iterator[str]:
    heads = ("type", f"#before, per {unit}", f"#after, per {unit}", "#last before", "#last after")
    rows = [
        (
            code(each["type"]),
            *(_number(each[name]) for name in ("before_per_generation", "after_per_generation")),
            *(_number(each[name]) for name in ("before_last", "after_last")),
        )
        for each in changes[:TYPES_SHOWN]
    ]
    yield from table(heads, rows)


def _number(value: float | None) -> str:
    return NOTHING if value is None else format_count(value)


def _environment(changes: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    rows = [
        (code(name), *(NOTHING if value is None else code(value) for value in pair))
        for name, pair in changes.items()
        if name not in _LEFT_OUT
    ]
    yield from table(("what", "before", "after"), rows[:DIFFERENCES_SHOWN])

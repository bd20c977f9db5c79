"""A comparison in its JSON form and the two runs -> the context of ``/compare``. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, urlencode

from leakline.analysis.results import Books

from .. import charts
from ..chart_parts import Axis, Line, Palette, Points
from . import formats
from .contexts import ChangeTile, ComparePage, Figure, FindingGroup, Section, Side
from .promises import promises
from .run_view import in_phase_order, palette_of, progress
from .sections import books as books_section
from .sections import line_table
from .sharing import share_comparison
from .tables import Field, code, rated, table
from .verdict_view import findings_view, outcome_of, plural, status_of
from .waterfall_view import mean_steps, reach, steps_table, waterfall_chart
from .zoom import Stretch

Json = Mapping[str, Any]
# Changes smaller than this are drawn as neither better nor worse.
SAME_PERCENT: Final = 5.0
MAX_ROWS: Final = 60


def compare_page(
    before: Json,
    after: Json,
    comparison: Json,
    trends: Sequence[Points | None],
    books: Sequence[Books],
) -> ComparePage:
    """``before`` and ``after`` are runs as the API gives them; ``trends`` their generation ends."""
    unit, axis = before["unit"], Axis(before["unit"])
    books = [in_phase_order(run, each) for run, each in zip((before, after), books, strict=True)]
    return ComparePage(
        title=f"{before['name']} → {after['name']}",
        before=_side(before),
        after=_side(after),
        swap_href=_address("/compare", after, before),
        outcome=outcome_of(comparison["outcome"]),
        sentence=comparison["summary"],
        support=_support(comparison, unit),
        changes=_changes(comparison, unit),
        sections=tuple(_sections(axis, comparison, trends, unit)),
        books=_books(axis, (before, after), books, unit),
        findings=_findings(comparison, unit),
        share=share_comparison(before["id"], after["id"]),
        lines_href=_address("/compare/lines", before, after),
    )


def compared_lines(
    before: Json, after: Json, trends: Sequence[Points | None], books: Sequence[Books], stretch: Stretch,
) -> dict[str, tuple[Line, ...]]:  # fmt: skip
    """Chart -> its lines over a stretch of the axis, of which ``trends`` are."""
    axis, ends = Axis(before["unit"]), (math.floor(stretch.first), math.ceil(stretch.last))
    found = [
        in_phase_order(run, charts.books_within(each, *ends))
        for run, each in zip((before, after), books, strict=True)
    ]
    drawn = [_overlay(axis, trends, axis.title), *_books(axis, (before, after), found, axis.title)]
    return {
        section.figure.chart.id: section.figure.chart.lines
        for section in drawn
        if section.figure is not None and section.figure.chart.x_unit != "step"
    }


def _address(path: str, before: Json, after: Json) -> str:
    return f"{path}?{urlencode({'before': before['id'], 'after': after['id']})}"


def _side(run: Json) -> Side:
    href = f"/runs/{quote(run['id'], safe='')}"
    return Side(
        run["id"], run["name"], run["project"], href, status_of(run["status"]), progress(run)
    )


def _support(comparison: Json, unit: str) -> str:
    number = comparison["generations_compared"]
    meaning = outcome_of(comparison["outcome"]).meaning
    return f"{meaning} Compared over {number:,} {plural(unit, number)} that both runs have."


def _changes(comparison: Json, unit: str) -> tuple[ChangeTile, ...]:
    growth = comparison["growth_bytes_per_generation"]
    apart = growth["difference"]
    difference = f" · difference {formats.interval(apart, formats.change)}" if apart else ""
    return (
        _change("GROWTH", f"per {unit}{difference}", growth, formats.change),
        _change("PEAK", "highest resident memory", comparison["peak_bytes"], formats.size),
        _change("TIME", f"per {unit}", comparison["seconds_per_generation"], formats.seconds),
    )


def _change(label: str, what: str, found: Json, write: Any) -> ChangeTile:
    before, after = _estimate(found["before"]), _estimate(found["after"])
    percent = found["change_percent"]
    detail = f"{write(before)} → {write(after)} {what}"
    if percent is None:
        return ChangeTile(label, formats.NOT_MEASURED if after is None else write(after), detail)
    return ChangeTile(label, formats.percent_change(percent), detail, _better(percent))


def _better(percent: float | None) -> str | None:
    if percent is None or abs(percent) < SAME_PERCENT:
        return None
    return "ok" if percent < 0 else "confirmed"


def _estimate(value: Any) -> float | None:
    return value.get("estimate") if isinstance(value, Mapping) else value


def _sections(
    axis: Axis, comparison: Json, trends: Sequence[Points | None], unit: str
) -> list[Section]:
    found = [
        _overlay(axis, trends, unit),
        promises(comparison["fixes"], unit),
        _by_phase(comparison["by_phase"], unit),
        _by_type(comparison["by_type"], unit),
        _environment(comparison["environment_changes"]),
    ]
    return [section for section in found if section is not None]


def _overlay(axis: Axis, trends: Sequence[Points | None], unit: str) -> Section:
    how = (
        f"Private memory at the end of each {unit} of both runs. What matters is how steeply a line climbs, not how "
        "high it starts."
    )
    chart = charts.overlay_chart(axis, *trends)
    if chart is None:
        return Section("overlay", "Both runs", how, empty=f"No whole {unit} has been measured yet.")
    figure = Figure(chart, f"Memory of both runs at each {unit} end.")
    return Section("overlay", "Both runs", how, figure, line_table(chart, unit), fold=True)


def _books(
    axis: Axis, runs: Sequence[Json], found: Sequence[Books], unit: str
) -> tuple[Section, ...]:
    """Side by side, with one colour per phase for both."""
    merged = Palette.of(
        name
        for run, books in zip(runs, found, strict=True)
        for name in palette_of(run, books).order
    )
    how = "Growth booked to each phase; both charts have one scale."
    made = _sums(merged, found, unit)
    for side, books in zip(("before", "after"), found, strict=True):
        chart = charts.books_chart(axis, merged, books, f"books-{side}")
        chart = chart and replace(chart, y_range=charts.same_scale(found))
        section = books_section(chart, books, unit)
        made.append(
            Section(f"books-{side}", f"The books, {side}", how, section.figure,
                    section.table, True, section.note, section.empty)
        )  # fmt: skip
    return tuple(made)


def _sums(palette: Palette, found: Sequence[Books], unit: str) -> list[Section]:
    """The mean of each run's books as a sum, both on one scale; nothing unless both have books."""
    if not all(books.generations for books in found):
        return []
    steps = [mean_steps(books) for books in found]
    how = (
        f"What the mean {unit} adds to memory, phase by phase, from top to bottom: to the right is kept, to the left "
        "is given back, and the last bar is the sum. Both charts have one scale."
    )
    return [
        Section(
            f"sum-{side}", f"The mean {unit}, {side}", how,
            Figure(waterfall_chart(each, palette, unit, f"sum-{side}", reach(steps)),
                   f"What the mean {unit} of the run {side} added to memory, step by step."),
            steps_table(each), fold=True,
        )
        for side, each in zip(("before", "after"), steps, strict=True)
    ]  # fmt: skip


def _by_phase(changes: Sequence[Json], unit: str) -> Section | None:
    if not changes:
        return None
    heads = ("phase", "#before", "#after", "#difference", "#change")
    rows: list[list[Field]] = [
        [
            code(each["phase"]),
            formats.interval(each["before"], formats.change),
            formats.interval(each["after"], formats.change),
            formats.interval(each["difference"], formats.change),
            _percent_cell(each["change_percent"]),
        ]
        for each in changes
    ]  # fmt: skip
    how = f"Growth of private memory per {unit}, with the 90 % interval."
    return Section("by-phase", "By phase", how, table=table(heads, rows, tall=False))


def _percent_cell(percent: float | None) -> Field:
    text = "–" if percent is None else formats.percent_change(percent)
    status = _better(percent)
    return rated(text, status) if status else text


def _by_type(changes: Sequence[Json], unit: str) -> Section | None:
    if not changes:
        return None
    heads = (
        "type",
        f"#before, per {unit}",
        f"#after, per {unit}",
        "#last count before",
        "#last count after",
    )
    rows: list[list[Field]] = [
        [
            code(each["type"]), formats.rate(each["before_per_generation"]), formats.rate(each["after_per_generation"]),
            formats.count(each["before_last"]), formats.count(each["after_last"]),
        ]
        for each in changes[:MAX_ROWS]
    ]  # fmt: skip
    how = "Live instances that changed between the runs. Types that grow in neither are left out."
    return Section("by-type", "By type", how, table=table(heads, rows))


def _environment(changes: Mapping[str, Sequence[Any]]) -> Section | None:
    how = "What differs between the two jobs, besides what was meant to."
    if not changes:
        return Section("environment", "Environment", how, empty="No difference was recorded.")
    rows = [(code(name), _said(pair[0]), _said(pair[1])) for name, pair in changes.items()]
    return Section(
        "environment",
        "Environment",
        how,
        table=table(("what", "before", "after"), rows, tall=False),
    )


def _said(value: Any) -> str:
    return "–" if value is None else str(value)


def _findings(comparison: Json, unit: str) -> tuple[FindingGroup, ...]:
    words = {"gone": ("Gone", "No finding went away."), "still": ("Still there", "Nothing is still leaking."),
             "new": ("New", "Nothing new.")}  # fmt: skip
    return tuple(
        FindingGroup(title, findings_view(comparison["findings"][key], unit), empty)
        for key, (title, empty) in words.items()
    )

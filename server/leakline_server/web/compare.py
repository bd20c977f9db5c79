"""The template context of ``/compare``, built from a comparison in the API's JSON format. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlencode

from leakline.analysis.comparison.run_comparison import warm_up
from leakline.analysis.findings.gauges import SAME_PERCENT as GAUGES_SAME
from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.analysis.results import PhaseAccounts
from leakline.report.verdict_facts import compared, memory_title
from leakline.text_format import format_number, plural

from ..charts import chart_builder
from ..charts.chart_parts import Axis, Chart, Line, Palette, Points
from .axis_zoom import Stretch
from .expectations.view import expectations
from .rendering import number_formats
from .rendering.evidence_sections import line_table
from .rendering.evidence_sections import phase_accounts as phases_section
from .rendering.page_contexts import Figure, FindingView, Section, Share, Status, share_comparison
from .rendering.table_cells import Field, code, rated, table
from .run_page.fix_effects import effects
from .run_page.run_charts import in_phase_order, palette_of
from .run_page.verdict_view import findings_view, outcome_of, status_of
from .run_page.view import progress

Json = Mapping[str, Any]
# Changes smaller than this are shown as neither better nor worse.
SAME_PERCENT: Final = 5.0
MAX_ROWS: Final = 60
# Shown if the units differ, below the sentence that names both units.
_APART: Final = (
    "Nothing was compared per unit. The peaks cover the entire runs, and no finding can be reported "
    "as gone."
)
SIDES: Final = ("before", "after")


@dataclass(frozen=True, slots=True)
class Side:
    id: str
    name: str
    project: str
    href: str
    status: Status
    progress: str


@dataclass(frozen=True, slots=True)
class ChangeTile:
    label: str
    value: str
    detail: str
    status: str | None = None


@dataclass(frozen=True, slots=True)
class FindingGroup:
    title: str
    findings: tuple[FindingView, ...]
    empty: str


@dataclass(frozen=True, slots=True)
class ComparePage:
    """The template context of ``/compare``."""

    title: str
    before: Side
    after: Side
    swap_href: str
    outcome: Status
    sentence: str
    support: str
    changes: tuple[ChangeTile, ...]
    sections: tuple[Section, ...]
    phase_accounts: tuple[Section, ...]
    findings: tuple[FindingGroup, ...]
    share: Share
    lines_href: str


def compare_page(
    before: Json,
    after: Json,
    comparison: Json,
    trends: Sequence[Points | None],
    phase_accounts: Sequence[PhaseAccounts],
    process: str | None = None,
) -> ComparePage:
    """Return the template context for two runs in the API's JSON format.

    ``trends`` is each run's memory at generation ends. If ``process`` is given, ``trends`` covers
    only that process.
    """
    unit, axis = before["unit"], axis_of(before)
    alike = unit == after["unit"]
    phase_accounts = [
        in_phase_order(run, each) for run, each in zip((before, after), phase_accounts, strict=True)
    ]
    return ComparePage(
        title=f"{before['name']} → {after['name']}",
        before=_side(before),
        after=_side(after),
        swap_href=_address("/compare", after, before),
        outcome=outcome_of(comparison["outcome"]),
        sentence=comparison["summary"],
        support=_support(comparison, unit) if alike else _APART,
        changes=_changes(comparison, unit),
        sections=tuple(
            _sections(
                _axis_of_both(before, after),
                comparison,
                trends,
                unit,
                process,
                after["environment"],
            )
        ),
        phase_accounts=_phase_accounts(axis, (before, after), phase_accounts, unit)
        if _has_phases(axis) and alike
        else (),
        findings=_findings(comparison, unit),
        share=share_comparison(before["id"], after["id"]),
        lines_href=_address("/compare/lines", before, after),
    )


def compared_lines(
    before: Json,
    after: Json,
    trends: Sequence[Points | None],
    phase_accounts: Sequence[PhaseAccounts],
    stretch: Stretch,
) -> dict[str, tuple[Line, ...]]:
    """Return the lines by chart id within ``stretch``; ``trends`` must cover the same range."""
    axis, ends = _axis_of_both(before, after), (math.floor(stretch.first), math.ceil(stretch.last))
    if axis is None:
        return {}
    drawn = [chart_builder.overlay_chart(axis, *trends)]
    if _has_phases(axis):
        found = [
            in_phase_order(run, chart_builder.accounts_within(each, *ends))
            for run, each in zip((before, after), phase_accounts, strict=True)
        ]
        drawn += _phases_charts(axis, _merged((before, after), found), found)
    return {chart.id: chart.lines for chart in drawn if chart is not None}


def axis_of(run: Json) -> Axis:
    """Return a run's axis: generations, or minutes if the program does not count generations."""
    if run["unit"] in UNITS_OF_TIME:
        return Axis("minutes since the start", "time", UNITS_OF_TIME["minute"])
    return Axis(run["unit"])


def _has_phases(axis: Axis) -> bool:
    """Return True if the runs count generations.

    Without generations, growth is not charged to phases. The phase accounts are per second and do
    not fit an axis in minutes.
    """
    return axis.unit == "generation"


def _axis_of_both(before: Json, after: Json) -> Axis | None:
    """Return the axis that both runs share, or None if their units differ."""
    axis = axis_of(before)
    return axis if axis == axis_of(after) else None


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
    return f"{meaning} Compared over {compared(comparison, unit)} that both runs have.{_without(number, unit)}"


def _without(generations: int, unit: str) -> str:
    """Return a sentence that explains why the compared growth differs from each run's own growth."""
    first = warm_up(generations)
    if not first:
        return ""
    left_out = f"the first {first} {plural(unit, first)}" if first > 1 else f"the first {unit}"
    return (
        f" Growth excludes {left_out} as warm-up; the list of runs shows the growth of each run "
        f"over its newest {plural(unit, 2)}."
    )


def _changes(comparison: Json, unit: str) -> tuple[ChangeTile, ...]:
    growth = comparison["growth_bytes_per_generation"]
    apart = growth["difference"]
    difference = (
        f" · difference {number_formats.interval(apart, number_formats.change)}" if apart else ""
    )
    return (
        _change("GROWTH", f"per {unit}{difference}", growth, number_formats.change),
        *_memory_after(comparison, unit),
        _change("PEAK", "highest memory", comparison["peak_bytes"], number_formats.size),
        _change(
            "TIME", f"per {unit}", comparison["seconds_per_generation"], number_formats.seconds
        ),
    )


def _memory_after(comparison: Json, unit: str) -> list[ChangeTile]:
    found = comparison.get("memory_after")
    if found is None:
        return []
    return [_change(_when(found, unit), memory_title(comparison, unit), found, number_formats.size)]


def _when(found: Json, unit: str) -> str:
    if unit in UNITS_OF_TIME:
        return f"AT {unit.upper()} {found['generation']:,}"
    return f"AFTER {found['generations']:,}"


def _change(label: str, what: str, found: Json, write: Any) -> ChangeTile:
    before, after = _estimate(found["before"]), _estimate(found["after"])
    percent = found["change_percent"]
    detail = f"{write(before)} → {write(after)} {what}"
    if percent is None:
        return ChangeTile(
            label, number_formats.NOT_MEASURED if after is None else write(after), detail
        )
    return ChangeTile(label, number_formats.percent_change(percent), detail, _rating(found))


def _rating(change: Json) -> str | None:
    """Return the status of a change, or None if the interval of the difference contains zero.

    Values without an interval, such as peaks, may differ by chance and get no colour.
    """
    apart = change.get("difference")
    if apart is None or apart["low"] <= 0 <= apart["high"]:
        return None
    return _better(change["change_percent"])


def _better(percent: float | None) -> str | None:
    if percent is None or abs(percent) < SAME_PERCENT:
        return None
    return "ok" if percent < 0 else "confirmed"


def _estimate(value: Any) -> float | None:
    return value.get("estimate") if isinstance(value, Mapping) else value


def _sections(
    axis: Axis | None,
    comparison: Json,
    trends: Sequence[Points | None],
    unit: str,
    process: str | None,
    environment: Json,
) -> list[Section]:
    """Return the sections; ``environment`` belongs to the second run, whose fixes are shown."""
    found = [
        _overlay(axis, trends, unit, process),
        effects(comparison["effects"], unit, environment),
        expectations(comparison["assertions"], unit),
        _by_phase(comparison["by_phase"], unit),
        _by_type(comparison["by_type"], unit),
        _gauges(comparison["by_gauge"], unit),
        _survival(comparison["survival"]),
        _environment(comparison["environment_changes"]),
    ]
    return [section for section in found if section is not None]


def _overlay(
    axis: Axis | None, trends: Sequence[Points | None], unit: str, process: str | None
) -> Section:
    if axis is None:
        how = "Private memory of both runs on one axis."
        empty = "The runs count different units, so they cannot share an axis."
        return Section("overlay", "Both runs", how, empty=empty)
    when = f"at the end of each {unit}" if axis.unit == "generation" else "over time"
    whose = f"of {process} in" if process else "of"
    how = (
        f"Private memory {whose} both runs, {when}. What matters is how steeply a line climbs, not "
        "how high it starts."
    )
    chart = chart_builder.overlay_chart(axis, *trends)
    if chart is None:
        return Section("overlay", "Both runs", how, empty=f"No whole {unit} has been measured yet.")
    figure = Figure(chart, f"Memory of both runs {when}.")
    return Section("overlay", "Both runs", how, figure, line_table(chart, unit), fold=True)


def _phase_accounts(
    axis: Axis, runs: Sequence[Json], found: Sequence[PhaseAccounts], unit: str
) -> tuple[Section, ...]:
    """Return the phase charts of both runs; a phase has the same colour in both charts."""
    how = "Growth charged to each phase; both charts use the same scale."
    made = []
    drawn = _phases_charts(axis, _merged(runs, found), found)
    for side, phase_accounts, chart in zip(SIDES, found, drawn, strict=True):
        section = phases_section(chart, phase_accounts, unit)
        made.append(
            Section(f"phases-{side}", f"Memory by phase, {side}", how, section.figure,
                    section.table, True, section.note, section.empty)
        )  # fmt: skip
    return tuple(made)


def _merged(runs: Sequence[Json], found: Sequence[PhaseAccounts]) -> Palette:
    return Palette.of(
        name
        for run, phase_accounts in zip(runs, found, strict=True)
        for name in palette_of(run, phase_accounts).order
    )


def _phases_charts(
    axis: Axis, palette: Palette, found: Sequence[PhaseAccounts]
) -> list[Chart | None]:
    scale = chart_builder.same_scale(found)
    drawn = [
        chart_builder.phases_chart(axis, palette, phase_accounts, f"phases-{side}")
        for side, phase_accounts in zip(SIDES, found, strict=True)
    ]
    return [chart and replace(chart, y_range=scale) for chart in drawn]


def _by_phase(changes: Sequence[Json], unit: str) -> Section | None:
    if not changes:
        return None
    # The change comes first: with three intervals, the last column is cut off on most screens.
    heads = ("phase", "#change", "#before", "#after", "#difference")
    rows: list[list[Field]] = [
        [
            code(each["phase"]),
            _percent_cell(each),
            number_formats.interval(each["before"], number_formats.change),
            number_formats.interval(each["after"], number_formats.change),
            number_formats.interval(each["difference"], number_formats.change),
        ]
        for each in changes
    ]  # fmt: skip
    how = f"Growth of private memory per {unit}, with the 90 % interval."
    return Section("by-phase", "By phase", how, table=table(heads, rows, tall=False))


def _percent_cell(change: Json) -> Field:
    percent = change["change_percent"]
    text = "–" if percent is None else number_formats.percent_change(percent)
    status = _rating(change)
    return rated(text, status) if status else text


def _by_type(changes: Sequence[Json], unit: str) -> Section | None:
    if not changes:
        return None
    heads = (
        "type",
        f"#before, per {unit}",
        f"#after, per {unit}",
        "#difference",
        "#change",
        "#last before",
        "#last after",
    )
    rows: list[list[Field]] = [
        [
            code(each["type"]), number_formats.rate(each["before_per_generation"]),
            number_formats.rate(each["after_per_generation"]),
            number_formats.interval(each["difference"], number_formats.rate), _percent_cell(each),
            number_formats.count(each["before_last"]), number_formats.count(each["after_last"]),
        ]
        for each in changes[:MAX_ROWS]
    ]  # fmt: skip
    how = (
        f"Growth of live instances in both runs, per {unit}; the difference has a 90 % interval. "
        "Types named by findings come first, followed by the program's classes, types that grow "
        "along with these classes, and types that grow in neither run."
    )
    return Section("by-type", "By type", how, table=table(heads, rows))


def _gauges(changes: Sequence[Json], unit: str) -> Section | None:
    if not changes:
        return None
    rows = [_gauge_row(each) for each in changes]
    how = (
        f"Values that the program reported besides memory: medians over the {plural(unit, 2)} that "
        f"both runs have. A difference below {GAUGES_SAME:.0f} % counts as no change."
    )
    heads = ("gauge", "#before", "#after", "#change")
    return Section("by-gauge", "Besides memory", how, table=table(heads, rows, tall=False))


def _gauge_row(each: Json) -> list[Field]:
    numbers = ("–" if each[side] is None else format_number(each[side]) for side in SIDES)
    percent = each["change_percent"]
    change = "–" if percent is None else number_formats.percent_change(percent)
    return [code(each["gauge"]), *numbers, "no change" if each["same"] else change]


def _survival(found: Json | None) -> Section | None:
    if found is None:
        return None
    how = "The last generation of each run, and the point at which the run would run out of memory if growth continues."
    return Section("survival", "How far runs get", how, note=found["sentence"])


def _environment(changes: Mapping[str, Sequence[Any]]) -> Section | None:
    how = "Differences between the two runs, besides the intended change."
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
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return "–" if value is None else str(value)


def _findings(comparison: Json, unit: str) -> tuple[FindingGroup, ...]:
    words = {"gone": ("Gone", "No finding went away."), "still": ("Still there", "No finding remains."),
             "new": ("New", "No new finding.")}  # fmt: skip
    return tuple(
        FindingGroup(title, findings_view(comparison["findings"][key], unit), empty)
        for key, (title, empty) in words.items()
    )

"""Objects by type as a section of a run's page: how many there are, how that changed, and what to think of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from leakline.analysis.results import TypeGrowth, to_json
from leakline.analysis.status import GROWING
from leakline.report.verdict_facts import rating_words, with_graphs

from ...charts.chart_parts import Chart
from ..rendering import number_formats
from ..rendering.evidence_sections import MAX_ROWS
from ..rendering.page_contexts import Cell, Figure, Section
from ..rendering.table_cells import Field, code, rated, sparkline, table
from .verdict_view import short_name

MAX_TYPE_LINES: Final = 8


def types(
    chart: Chart | None,
    grown: Sequence[TypeGrowth],
    unit: str,
    process: str | None = None,
    newest: int | None = None,
    graphs: Mapping[str, float] = MappingProxyType({}),
) -> Section:
    """``process``: the one of several whose lines are shown; the numbers are those of all. ``newest``: generation that
    has ended, which a count may be older than. ``graphs``: how many more of a type with a graph a finding names."""
    how = (
        "Live instances by exact type. A type that gains the same number in every "
        f"{unit} and has a holder is the usual shape of a leak; lists and dicts follow their owners. Bytes are what "
        "the objects themselves own. Of a type that a finding names, the rates are those of the finding; first, last "
        "and change are of the whole run."
    )
    heads = [
        "type",
        "rating",
        f"history, {process}" if process else "history",
        "#first",
        "#last",
        "#change",
        f"#per {unit}",
        "#bytes",
        f"#bytes per {unit}",
        "held by",
        "grows in",
    ]
    ranked = grown[:MAX_ROWS]
    lines = {line.source.names[0]: line.y for line in (chart.lines if chart else ()) if line.source}
    figure = Figure(chart, "Live instances of the types that grow.", low=True) if chart else None
    rows = [_type_row(each, lines.get(f"type.{each.name}.count", ()), graphs) for each in ranked]
    # Behind what every run has, so that who holds it stays in sight.
    if any(each.created_at_least is not None for each in ranked):
        heads += ["#created, at least", "#freed, at least"]
        how += " Of watched classes it tells how many were created and freed: at least so many; last are alive."
        for row, each in zip(rows, ranked, strict=True):
            row += [_least(each.created_at_least), _least(each.freed_at_least)]
    if any(_is_older(each, newest) for each in ranked):
        heads.append(f"#counted at {unit}")
        how += f" Where the last look at a type is older than {unit} {newest:,}, the table says of which it is."
        for row, each in zip(rows, ranked, strict=True):
            row.append(number_formats.count(each.last_generation))
    found = table(heads, rows) if ranked else None
    return Section(
        "types",
        "Objects by type",
        how,
        figure,
        found,
        empty="No type has been counted yet.",
        short="Objects",
    )


def _type_row(
    each: TypeGrowth, history: Sequence[float | None], graphs: Mapping[str, float]
) -> list[Field]:
    rate = each.count_per_generation.estimate if each.count_per_generation else None
    line = sparkline(history, "Instances", number_formats.count)
    return [
        code(each.name), rated(rating_words(to_json(each)), _rating_status(each)),
        Cell("", sparkline=line) if line else Cell("–"), number_formats.count(each.first_count),
        number_formats.count(each.last_count),
        f"{each.last_count - each.first_count:+,}", with_graphs(number_formats.rate(rate), each.name, graphs),
        number_formats.size(each.bytes), number_formats.change(each.bytes_per_generation), code(each.holder),
        code(each.phase),
    ]  # fmt: skip


def _is_older(each: TypeGrowth, newest: int | None) -> bool:
    return newest is not None and each.last_generation is not None and each.last_generation < newest


def _least(count: int | None) -> str:
    return "–" if count is None else number_formats.count(count)


def _rating_status(each: TypeGrowth) -> str:
    """A broken promise is worse than a growth that its finding tells of."""
    if each.change_rating == "problem":
        return "confirmed" if each.rating == "problem" else "watch"
    return "learning" if each.change_rating == "unknown" else "ok"


def suspects_first(
    grown: Sequence[TypeGrowth], verdict: Mapping[str, Any] | None
) -> tuple[TypeGrowth, ...]:
    """What findings name before all else: a type whose bytes nobody has measured comes late by itself."""
    found = [f for f in (verdict or {}).get("findings", ()) if f["status"] in GROWING]
    named = {suspect["name"] for finding in found for suspect in finding["suspects"][:1]}
    return tuple(sorted(grown, key=lambda each: each.name not in named))


def type_lines(grown: Sequence[TypeGrowth]) -> dict[str, str]:
    """Series -> title of the types worth a line; the analysis has put those that grow first."""
    worth = [each for each in grown if each.rating != "steady"][:MAX_TYPE_LINES]
    return {f"type.{each.name}.count": short_name(each.name) for each in worth}

"""Objects by type on a run's page: counts, changes and ratings.

The module also describes how much of the private memory the objects account for, and which memory
no source can see. Its functions do no I/O.
"""

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
from ..rendering.page_contexts import Cell, Figure, Section, Table
from ..rendering.table_cells import Field, code, rated, shown, sparkline, table
from .verdict_view import short_name

Json = Mapping[str, Any]
# Series that are measured during or alongside a heap scan.
SOURCES: Final = (
    "arrays.bytes", "tensors.bytes", "tensors.device_bytes", "tensors.graph_bytes", "allocator.kept_bytes",
)  # fmt: skip
_UNSEEN: Final = (
    "No source covers native libraries, buffers that no Python object owns, thread stacks, or gaps between "
    "objects."
)
_ARRAYS: Final = ("numpy.ndarray",)
_COUNTED_APART: Final = ("numpy.", "torch.")


def accounted(private: float | None, last: Mapping[str, float | None], census: Json | None) -> str:
    """Return a sentence with the share of private memory that is accounted for.

    The sentence is empty if private memory is unknown or no source has reported. ``last`` holds the newest
    value of each series in SOURCES. Parts that were not measured are named, and never counted as zero.
    """
    if not private or private <= 0:
        return ""
    found = _parts(last, census)
    parts = {name: size for name, size in found.items() if size is not None}
    missing = [name for name, size in found.items() if size is None]
    if not parts:
        return ""
    listed = ", ".join(
        f"{name} {number_formats.size(size)}"
        for name, size in sorted(parts.items(), key=lambda p: -p[1])
    )
    share, whole = sum(parts.values()) / private, f"{number_formats.size(private)} private memory"
    if share > 1:
        said = (
            f"The counted memory exceeds the {whole}, because some of the counted memory is shared "
            f"or swapped out, or has been freed since: {listed}."
        )
    else:
        said = f"{number_formats.percent(share)} of {whole} is accounted for: {listed}."
    unknown = f" Not measured: {', '.join(missing)}." if missing else ""
    return f"{said}{unknown} {_UNSEEN}"


def _parts(last: Mapping[str, float | None], census: Json | None) -> dict[str, float | None]:
    tensors = last.get("tensors.bytes")
    if tensors is not None:
        on_devices = last.get("tensors.device_bytes") or 0.0
        tensors = max(tensors - on_devices, 0.0) + (last.get("tensors.graph_bytes") or 0.0)
    arrays = last.get("arrays.bytes")
    return {
        "arrays": _own_bytes(census, _ARRAYS) if arrays is None else arrays,
        "tensors": tensors,
        "other objects": _own_bytes(census),
        "freed but kept by the C allocator": last.get("allocator.kept_bytes"),
    }


def _own_bytes(census: Json | None, begin: tuple[str, ...] = ()) -> float | None:
    """Return the bytes of counted objects whose type names start with ``begin``.

    Without ``begin``, return the bytes of all types that are not counted separately.
    """
    rows: Sequence[Sequence[Any]] = (census or {}).get("types") or ()
    among = [
        row[2]
        for row in rows
        if row[2] is not None
        and (str(row[0]).startswith(begin) if begin else not str(row[0]).startswith(_COUNTED_APART))
    ]
    return float(sum(among)) if among else None


MAX_TYPE_LINES: Final = 8


def types(
    chart: Chart | None,
    grown: Sequence[TypeGrowth],
    unit: str,
    process: str | None = None,
    newest: int | None = None,
    graphs: Mapping[str, float] = MappingProxyType({}),
) -> Section:
    """Return the section with the table of types and its chart.

    ``process`` names the process whose lines are shown, if the run has several processes; the
    numbers cover all processes. ``newest`` is the last generation that ended; counts may be older.
    ``graphs`` maps types to the rate of instances with an autograd graph, as reported by a finding.
    """
    how = (
        "Live instances by exact type. The usual sign of a leak is a type that gains the same "
        f"number of instances in every {unit} and has a holder; lists and dicts grow along with "
        "their owners. Bytes count only memory that the objects themselves own. Types named by a "
        "finding show the finding's rates. First, last and change cover the whole run unless a range is chosen."
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
    lines = {line.series: line.y for line in (chart.lines if chart else ())}
    figure = Figure(chart, "Live instances of the types that grow.", low=True) if chart else None
    rows = [_type_row(each, lines.get(f"type.{each.name}.count", ()), graphs) for each in ranked]
    # These columns come last, so that the holder stays visible.
    if any(each.created_at_least is not None for each in ranked):
        heads += ["#created, at least", "#freed, at least"]
        how += (
            " For watched classes, the table also shows lower bounds on the numbers of instances "
            "created and freed; “last” is the number of live instances."
        )
        for row, each in zip(rows, ranked, strict=True):
            row += [_least(each.created_at_least), _least(each.freed_at_least)]
    if any(_is_older(each, newest) for each in ranked):
        heads.append(f"#counted at {unit}")
        how += f" If a type was last counted before {unit} {newest:,}, the table shows when it was counted."
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
    )


def types_between(found: Json, grown: Sequence[TypeGrowth], first: str, last: str) -> Table:
    """Return the table of types at two points, labelled ``first`` and ``last``.

    ``found`` contains the changes from `read_changes`.
    """
    unit = found["unit"]
    known = {each.name: each for each in grown}
    rows: list[list[Field]] = [
        [
            code(row["type"]),
            rated(rating_words(to_json(of)), _rating_status(of)),
            _counted(found, row, "before"),
            _counted(found, row, "after"),
            number_formats.rate(row["count_change"]),
            number_formats.rate(row["count_per_generation"]),
            number_formats.change(row["bytes_change"]),
            code(of.holder),
            code(of.phase),
        ]
        for row in found["types"][:MAX_ROWS]
        if (of := known.get(row["type"]))
    ]
    heads = (
        "type", "rating", f"#{first}", f"#{last}", "#change", f"#per {unit}", "#bytes gained", "held by", "grows in",
    )  # fmt: skip
    return table(
        heads, rows, caption=shown(len(rows), len(found["types"]), "type", "largest gain first")
    )


def _counted(found: Json, row: Json, when: str) -> str:
    """Return the number of instances, with the count's generation if older than the point."""
    count, at = number_formats.count(row[f"count_{when}"]), row[f"counted_{when}_at"]
    is_older = row[f"count_{when}"] is not None and found["axis"] == "generation" and at < found[when]  # fmt: skip
    return f"{count} (at {at:,})" if is_older else count


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
    """Return a rating's status; a broken promise is worse than growth that a finding reports."""
    if each.change_rating == "problem":
        return "confirmed" if each.rating == "problem" else "watch"
    return "learning" if each.change_rating == "unknown" else "ok"


def suspects_first(
    grown: Sequence[TypeGrowth], verdict: Mapping[str, Any] | None
) -> tuple[TypeGrowth, ...]:
    """Return the types, starting with the types that findings name.

    Without this order, types whose bytes were not measured would be near the end.
    """
    found = [f for f in (verdict or {}).get("findings", ()) if f["status"] in GROWING]
    named = {suspect["name"] for finding in found for suspect in finding["suspects"][:1]}
    return tuple(sorted(grown, key=lambda each: each.name not in named))


def type_lines(grown: Sequence[TypeGrowth]) -> dict[str, str]:
    """Return the titles of the types to draw, by series; growing types come first in ``grown``."""
    worth = [each for each in grown if each.rating != "steady"][:MAX_TYPE_LINES]
    return {f"type.{each.name}.count": short_name(each.name) for each in worth}

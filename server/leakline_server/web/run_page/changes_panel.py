"""The panel with the changes between two points, and the range links of the table of types. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from leakline.report.verdict_facts import OUTSIDE_NAMES
from leakline.text_format import count_of, plural

from ...charts.chart_parts import Axis
from ..axis_zoom import TwoPoints, text_of
from ..rendering import number_formats
from ..rendering.page_contexts import Bar, RangeChanges, RangeForm, RangeLink, RankedChanges
from .range_changes import unit_on
from .run_data import Json, RunData
from .verdict_view import short_name

BARS_SHOWN: Final = 6
# Links show the newest 10 and the newest 50 units.
_NEWEST: Final = (10, 50)


def changes_panel(data: RunData) -> RangeChanges | None:
    """Return the panel, or None if the run does not have two points to compare yet."""
    if data.recorded is None:
        return None
    form, whole = _form(data, data.recorded), f"?{urlencode(data.open_tab | data.asked)}"
    if data.changes is None:
        title = "Nothing to compare" if data.no_changes else ""
        return RangeChanges(form, title, data.no_changes, whole_href=whole)
    found = data.changes
    lists = (
        _ranked("Objects by type", found["types"], _type_name, _type_text, "No type was counted at both points."),
        _ranked("Phases", found["phases"], _phase_name, _bytes_text, "No phase is known to have changed."),
        _ranked("Processes", found["processes"], _process_name, _text_of_process(found), "No process has readings."),
    )  # fmt: skip
    title = f"Changes between {between(found, data.axis, ' and ')}"
    return RangeChanges(form, title, _sentence(found), lists, whole)


def between(found: Json, axis: Axis, joined: str = " to ") -> str:
    """Return a range such as ``generation 12 to 40`` or ``5 to 20 minutes since the start``."""
    ends = (_number(found["before"], axis), _number(found["after"], axis))
    words = (axis.title, joined.join(ends))
    return " ".join(words if axis.unit == "generation" else words[::-1])


def nothing_between(data: RunData, known: TwoPoints) -> str:
    """Explain why a range does not contain two points, and what to do."""
    what = f"two {data.run['unit']} ends" if data.axis.unit == "generation" else "two readings"
    all_of_it = between({"before": known.first, "after": known.last}, data.axis)
    return f"The visible range does not contain {what}. Choose a wider range within {all_of_it}."


def ends_named(data: RunData) -> tuple[str, str]:
    """Return the ends of the range, such as ``at generation 12`` or ``after 5 min``."""
    found, axis = data.changes or {}, data.axis
    ends = (found["before"], found["after"])
    if axis.unit == "generation":
        return f"at {axis.title} {ends[0]:,}", f"at {axis.title} {ends[1]:,}"
    return f"after {number_formats.seconds(ends[0])}", f"after {number_formats.seconds(ends[1])}"


def _number(point: float, axis: Axis) -> str:
    return f"{point:,}" if axis.unit == "generation" else f"{point / axis.seconds:,.4g}"


def _form(data: RunData, known: TwoPoints) -> RangeForm:
    """Return the form. It depends only on the selected range, so that live updates keep user input."""
    axis = data.axis
    by_generation = axis.unit == "generation"
    scale = 1.0 if by_generation else axis.seconds
    first = last = ""
    if data.changes is not None:
        first, last = (f"{data.changes[end] / scale:.9g}" for end in ("before", "after"))
    return RangeForm(
        f"/runs/{quote(data.run['id'], safe='')}", tuple((data.open_tab | data.asked).items()), axis.title, first, last,
        f"{known.first / scale:.9g}", "1" if by_generation else "any",
    )  # fmt: skip


def ranges(data: RunData) -> tuple[RangeLink, ...]:
    """Return links to the whole run, to its newest units, and to any other selected range."""
    address, known = {"tab": "objects"} | data.asked, data.recorded
    unit, each_unit = unit_on(data.run, data.axis)
    shown = ""
    if data.changes is not None:
        points = TwoPoints(data.changes["before"], data.changes["after"])
        shown = text_of(points, data.axis)
    links = [RangeLink("Whole run", f"?{urlencode(address)}#types", data.changes is None)]
    for newest in _NEWEST:
        if known is None:
            break
        first = known.last - newest * each_unit
        if first > known.first:
            x = text_of(TwoPoints(first, known.last), data.axis)
            asked = urlencode(address | {"x": x})
            links.append(RangeLink(f"Last {count_of(newest, unit)}", f"?{asked}#types", x == shown))
    if data.changes is not None and not any(each.chosen for each in links):
        asked = urlencode(address | {"x": data.x})
        label = between(data.changes, data.axis)
        links.append(RangeLink(label[:1].upper() + label[1:], f"?{asked}#types", True))
    return tuple(links)


def _sentence(found: Json) -> str:
    total, unit = found["total"], found["unit"]
    if total["bytes_change"] is None:
        memory = "The total private memory of all processes and their children is unknown at one or both points."
    else:
        memory = (
            f"Private memory of all processes and their children: {number_formats.size(total['bytes_before'])} to "
            f"{number_formats.size(total['bytes_after'])}, {number_formats.change(total['bytes_change'])}, "
            f"{number_formats.change(total['bytes_per_generation'])} per {unit}."
        )
    said = [memory]
    booked = found["booked"]
    if booked and booked["first"] > found["before"] + 1:
        units = plural(unit, 2)
        said.append(
            f"The phase figures cover only {units} {booked['first']:,} to {booked['last']:,}: older "
            f"{units} are merged into groups, and groups that begin before the range are left out."
        )
    if found["processes_left_out"]:
        said.append(f"{found['processes_left_out']:,} more processes were not read.")
    return " ".join(said)


_Row = Mapping[str, Any]


def _ranked(
    title: str, rows: Sequence[_Row], name: Callable[[_Row], str], text: Callable[[_Row], str], empty: str
) -> RankedChanges:  # fmt: skip
    moved = [
        row for row in rows if row["bytes_change"] or row.get("count_change") or _is_unknown(row)
    ]
    shown = moved[:BARS_SHOWN]
    # If no change in bytes is known, the bars compare counts.
    by = "bytes_change" if any(row["bytes_change"] for row in shown) else "count_change"
    most = max((row.get(by) or 0 for row in shown), default=0)
    bars = tuple(
        Bar(name(row), text(row), 100 * max(row.get(by) or 0, 0) / most if most > 0 else 0)
        for row in shown
    )
    rest = f"{len(moved) - len(shown):,} more" if len(moved) > len(shown) else ""
    return RankedChanges(title, bars, rest, "Nothing changed." if rows else empty)


def _is_unknown(row: _Row) -> bool:
    return row["bytes_change"] is None and row.get("count_change") is None


def _type_name(row: _Row) -> str:
    return short_name(str(row["type"]))


def _phase_name(row: _Row) -> str:
    name = str(row["phase"])
    return OUTSIDE_NAMES.get(name, name)


def _process_name(row: _Row) -> str:
    return str(row["process"])


def _bytes_text(row: _Row) -> str:
    return "unknown" if row["bytes_change"] is None else number_formats.change(row["bytes_change"])


def _text_of_process(found: Json) -> Callable[[_Row], str]:
    """Return a function that describes a row.

    The description includes the time of the last reading if the later point has no reading.
    """

    def text(row: _Row) -> str:
        at, said = row["read_after_at"], _bytes_text(row)
        is_older = found["axis"] == "generation" and at is not None and at < found["after"]
        return f"{said} (last read at {at:,})" if is_older else said

    return text


def _type_text(row: _Row) -> str:
    """Return the change in bytes and in count; bytes are not measured for every type."""
    if _is_unknown(row):
        return "unknown"
    count = "" if row["count_change"] is None else number_formats.rate(row["count_change"])
    size = "" if row["bytes_change"] is None else number_formats.change(row["bytes_change"])
    return ", ".join(each for each in (size, count) if each)

"""Sections that consist of a table: large objects, holders, events, processes, environment.

The tables are built from the API's JSON, so that the page and the API cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from leakline.analysis.findings.cleanup_effects import freed_by
from leakline.analysis.results import SEVERITY
from leakline.analysis.run_history import amount_of
from leakline.text_format import format_range

from ...store.ingest import clock_skew
from ..rendering import number_formats
from ..rendering.page_contexts import Cell, Section, Table
from ..rendering.table_cells import Field, at, at_iso, code, code_link, place, rated, table
from .process_sections import process_end
from .verdict_view import status_of

Json = Mapping[str, Any]
# (name, time) of a fix -> short lines that describe its effects.
Effects = Mapping[tuple[str, float], Sequence[str]]
MAX_ROWS: Final = 100
_CLOCKS_SHOWN: Final = 3


def large_objects(found: Sequence[Json], whose: Mapping[str, str]) -> Section | None:
    """Return the table of the largest objects.

    ``whose`` maps instances to the labels of their processes, which are shown for several processes.
    """
    if not found:
        return None
    how = (
        "The largest single objects in the last heap scan. Each buffer counts once, no matter "
        "how many objects refer to it."
    )
    made = by_process(("type", "#bytes", "detail", "held by"), found, _large_object, whose)
    return Section("large-objects", "Large objects", how, table=made)


def _large_object(each: Json) -> list[Field]:
    size, detail = number_formats.size(each["bytes"]), each.get("detail") or "–"
    return [code(each["type"]), size, detail, code(each.get("holder"))]


def by_process(
    heads: Sequence[str], found: Sequence[Json], row_of: Callable[[Json], list[Field]], whose: Mapping[str, str]
) -> Table:  # fmt: skip
    """Return a table, with a process column if the rows belong to several processes."""
    rows = [row_of(each) for each in found[:MAX_ROWS]]
    labels = [whose.get(each.get("process", ""), "–") for each in found[:MAX_ROWS]]
    if len(set(labels)) > 1:
        heads = (*heads, "process")
        rows = [[*row, label] for row, label in zip(rows, labels, strict=True)]
    return table(heads, rows)


def holders(found: Sequence[Json], whose: Mapping[str, str]) -> Section | None:
    """Return the table of holders of growing objects; ``whose`` is the same as for `large_objects`."""
    if not found:
        return None
    how = (
        "Reference paths from the program's variables to the growing objects. Release the objects "
        "that the last name in a path holds."
    )
    heads = ("type", "kept alive by", "#instances", "#bytes per instance")
    made = by_process(heads, found, _holder, whose)
    return Section("holders", "Held by", how, table=made)


def _holder(each: Json) -> list[Field]:
    number, size = number_formats.count(each["count"]), number_formats.size(each.get("bytes_each"))
    return [code(each["type"]), code(each["path"]), number, size]


# The number of types shown for one cleanup.
_COUNTS_SHOWN: Final = 3


def event_row(event: Json, environment: Json, effects: Effects) -> list[Field]:
    """Return the row of an event: generation, time, kind, name, phase and description.

    ``environment`` identifies the run's code version, for links; ``effects`` are the effects of all
    fixes.
    """
    write = _WRITTEN.get(event["kind"], _other_event)
    happened = write(event["data"])
    if event["kind"] == "fix":
        happened = _fix(event, happened, environment, effects)
    return [
        place(event["generation"]),
        at(event["time"]),
        event["kind"],
        event["name"],
        event.get("phase") or "–",
        happened,
    ]


def _fix(event: Json, cell: Cell, environment: Json, effects: Effects) -> Cell:
    """Append a fix's effects to its cell, and link the cell to the fix's code location, if known."""
    code_at = code_link(environment, event["data"].get("location"))
    effect = effects.get((event["name"], event["time"]), ())
    text = "; ".join(filter(None, (cell.text if cell.text != "–" else "", *effect)))
    return replace(cell, text=text or "–", href=code_at, outside=code_at is not None)


def _other_event(data: Json) -> Cell:
    parts = [
        str(data[key])
        for key in ("text", "link", "outcome", "type", "phase", "location")
        if data.get(key)
    ]
    return Cell(" ".join(parts) or "–")


def _collection(data: Json) -> Cell:
    freed, seconds = _number(data, "freed"), _number(data, "seconds")
    if freed is None:
        return Cell(number_formats.NOT_MEASURED, absent=True)
    took = f" in {number_formats.seconds(seconds)}" if seconds is not None else ""
    objects = f"{number_formats.count(freed)} {'object' if freed == 1 else 'objects'}"
    return Cell(f"freed {objects}{_of_bytes(data, freed)}{took}")


def _of_bytes(data: Json, freed: float) -> str:
    """Describe the drop in resident memory across a collection.

    The drop is a lower bound on the memory freed, because the allocator keeps some of it.
    """
    if not freed:
        return ""
    pair = data.get("resident_bytes")
    before, after = map(amount_of, pair) if isinstance(pair, list) and len(pair) == 2 else (0, 0)
    fell = (before or 0) - (after or 0) if before is not None and after is not None else 0
    return f", at least {number_formats.size(fell)}," if fell > 0 else " of unknown size"


def collection_words(data: Json) -> str:
    """Describe the result of a collection."""
    return _collection(data).text


def _cleanup(data: Json) -> Cell:
    freed, seconds = freed_by(data), _number(data, "seconds")
    if not freed.known:
        return Cell(number_formats.NOT_MEASURED, absent=True)
    took = f" in {number_formats.seconds(seconds)}" if seconds is not None else ""
    sentence = f"freed {freed.words}{took}{_counts(data)}"
    if data.get("error"):
        return rated(f"failed with {data['error']}; {sentence}", "watch")
    if data.get("because"):
        sentence += f"; it ran because {data['because']}"
    return Cell(sentence) if freed.something else rated(sentence, "watch")


def cleanup_words(data: Json) -> str:
    """Describe the result of a cleanup."""
    return _cleanup(data).text


def _counts(data: Json) -> str:
    """Describe the types with fewer instances after the cleanup, largest decrease first."""
    pairs = (data.get("counts") or {}).items()
    fewer = sorted((after - before, name, before, after) for name, (before, after) in pairs)
    parts = [
        f"{name} {number_formats.count(before)} → {number_formats.count(after)}"
        for change, name, before, after in fewer[:_COUNTS_SHOWN]
        if change < 0
    ]
    return f"; {', '.join(parts)}" if parts else ""


def _registered(data: Json) -> Cell:
    when = data.get("when")
    if isinstance(when, list) and len(when) == 2:
        when = f"while {when[0]} is above {when[1]}"
    elif when:
        when = f"at status {when} or worse"
    ways = [way for way in ("on request" if data.get("on_request") else "", when) if way]
    return Cell(f"registered: {', '.join(ways) or 'only by the program'}")


_WRITTEN: Final[Mapping[str, Callable[[Json], Cell]]] = {
    "cleanup": _cleanup,
    "collection": _collection,
    "register_cleanup": _registered,
}


def _number(data: Json, name: str) -> float | None:
    """Return a number, or None for an invalid value; older servers stored such values without validation."""
    value = data.get(name)
    return value if isinstance(value, (int, float)) else None


def alert_words(payload: Json) -> str:
    """Return an alert's text without the run's name, which the page already shows."""
    rule = payload.get("rule")
    if rule is None:
        return str(payload["summary"])
    state = "fired" if rule["status"] == "firing" else "resolved"
    return f"{rule['name']} {state}: {payload['summary']}"


def processes(
    found: Sequence[Json],
    newest_snapshots: Sequence[Json] = (),
    findings: Sequence[Json] = (),
    unit: str = "generation",
    left_out: int = 0,
) -> Section:
    """Return the table of processes and ranks.

    ``newest_snapshots`` are from all processes, newest first; a process may have none. ``left_out``
    is the number of processes that are not in ``found``.
    """
    how = (
        "The growth of each process's private memory, and the finding that names the process. The "
        "growth of the run is the sum over ranks; the attempts of a rank count as one process. "
        "Memory values are from the newest snapshots."
    )
    # The most important columns come first, because narrow screens cut off the last columns.
    heads = (
        "#rank", "role", f"#growth per {unit}", "finding", "how", "#90 % interval", "#private", "#RSS", "started",
        "last seen", "ended", "#attempt", "#pid", "host",
    )  # fmt: skip
    newest = max((each["attempt"] for each in found), default=0)
    status = {each["fingerprint"]: each["status"] for each in findings}
    lasts = {(each["rank"], each["role"]): each for each in found}
    last: dict[str, Json] = {}
    for row in newest_snapshots:
        last.setdefault(row["process"], row["samples"])
    rows = [
        _process_row(
            each,
            (
                _growth(each, lasts[each["rank"], each["role"]]),
                _named(each, status),
                process_end(each, newest),
                _interval(each["growth_bytes_per_generation"]),
            ),
            last.get(each["instance"]),
        )
        for each in found
    ]
    return Section(
        "processes", "Processes and ranks", how, table=table(heads, rows, tall=False) if rows else None,
        note=" ".join(filter(None, (_left_out_words(len(found), left_out), _clock_words(found)))),
        empty="No process has reported yet.",
    )  # fmt: skip


def _clock_words(found: Sequence[Json]) -> str:
    """Return a sentence about hosts whose clocks were wrong when their processes joined.

    The sentence names each host once. Times from these hosts were corrected, and the clocks may
    have been set since then.
    """
    lying = {
        each["host"] or f"rank {each['rank']}": each["clock_skew_seconds"]
        for each in found
        if clock_skew.lies(each["clock_skew_seconds"])
    }
    if not lying:
        return ""
    parts = [
        f"{host} was {number_formats.seconds(abs(skew))} {'behind' if skew > 0 else 'ahead of'} the server"
        for host, skew in list(lying.items())[:_CLOCKS_SHOWN]
    ]
    more = f", and {len(lying) - len(parts):,} more" if len(lying) > len(parts) else ""
    wrong = f"{', '.join(parts)}{more}"
    return (
        f"Clocks were wrong at first contact: {wrong}. Times were corrected to the server's "
        "clock. Synchronize these clocks with NTP."
    )


def _left_out_words(shown: int, left_out: int) -> str:
    if not left_out:
        return ""
    return (
        f"Showing {shown:,} of {shown + left_out:,} processes. Processes named by a finding come "
        "first, followed by the newest attempts, starting with processes that ended badly."
    )


def _growth(each: Json, last: Json) -> Field:
    """Return the growth cell; ``last`` is the newest process of the same rank and role."""
    growth = each["growth_bytes_per_generation"]
    if growth is not None:
        return number_formats.change(growth["estimate"])
    if last["attempt"] > each["attempt"] and last["growth_bytes_per_generation"] is not None:
        why = "All attempts of a rank form one curve"
        return Cell(f"in attempt {last['attempt']}", title=why, absent=True)
    return Cell("unknown", absent=True)


def _interval(growth: Json | None) -> str:
    if growth is None:
        return "–"
    return format_range(growth["low"], growth["high"], number_formats.change) or "–"


def _named(each: Json, status: Mapping[str, str]) -> Field:
    """Return the worst status of the findings that name a process."""
    found = [status[name] for name in each["findings"] if name in status]
    if not found:
        return "–"
    worst = max(found, key=SEVERITY.index)
    return Cell(status_of(worst).word, status=worst, href="#findings")


def _process_row(each: Json, leaks: Sequence[Field], last: Json | None) -> list[Field]:
    memory = ["–", "–"]
    if last is not None:
        names = ("process.anon_bytes", "process.rss_bytes")
        memory = [number_formats.size(last.get(name)) for name in names]
    return [
        f"{each['rank']}", each["role"], *leaks, *memory,
        at_iso(each["started_at"]), at_iso(each["last_seen_at"]), at_iso(each["ended_at"]),
        f"{each['attempt']}", f"{each['pid']}", each["host"] or "–",
    ]  # fmt: skip


def environment(found: Json, config: Json) -> Section | None:
    flat = {**_flat(found), **{f"config {key}": value for key, value in _flat(config).items()}}
    if not flat:
        return None
    rows = [(key, code(str(value))) for key, value in flat.items()]
    how = "As reported by the process when it joined."
    return Section("environment", "Environment", how, table=table(("what", "value"), rows), fold=True)  # fmt: skip


def _flat(found: Json) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, Mapping):
            flat.update({f"{key} {inner}": each for inner, each in value.items()})
        else:
            flat[key] = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return flat

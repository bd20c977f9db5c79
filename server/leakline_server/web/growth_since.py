"""Growth from a snapshot that the viewer names to the newest one: memory in size and percent, and counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from leakline.analysis.contracts import counted_type

from . import formats
from .contexts import Ask, AskField, Section
from .tables import Field, code, table

Json = Mapping[str, Any]
SINCE: Final = "since"
MEMORY: Final = "process.rss_bytes"
ROWS_SHOWN: Final = 24


def growth_since(
    snapshots: Sequence[Json], ends: Mapping[int, float], unit: str, address: Mapping[str, str]
) -> Section | None:
    """None before there are two snapshots with memory.

    ``snapshots``: of one process, the newest first. ``ends``: generation -> resident memory at its end, for those that
    are not among them. ``address``: what the address of the page says, the label or the generation among it.
    """
    known = [each for each in snapshots if each["samples"].get(MEMORY) is not None]
    if len(known) < 2:
        return None
    asked = address.get(SINCE, "").strip()
    note, rows = _told(known, ends, unit, asked)
    others = tuple((n, v) for n, v in address.items() if n != SINCE and v)
    ask = Ask(SINCE, (), (AskField(SINCE, f"label or {unit}", asked, "text"),), others, "Show")
    how = (
        f"Growth from a snapshot of your choice to the newest one: the label of one of the newest {len(known)}, or the "
        f"number of any {unit}."
    )
    heads = ("type", "#then", "#now", "#change")
    made = table(heads, rows, tall=False) if rows else None
    return Section(
        "since", "Growth since", how, note=note, table=made, short="Growth since", ask=ask
    )


def _told(
    known: Sequence[Json], ends: Mapping[int, float], unit: str, asked: str
) -> tuple[str, list[list[Field]]]:
    newest = known[0]
    if not asked:
        return _growth(known[-1], newest), _changes(known[-1], newest)
    then = next((each for each in known if asked in (each["label"], each["kind"])), None)
    if then is not None:
        return _growth(then, newest), _changes(then, newest)
    if asked.isascii() and asked.isdecimal() and len(asked) < 10 and int(asked) in ends:
        label = f"{unit} {int(asked):,}: end"
        return _growth({"label": label, "samples": {MEMORY: ends[int(asked)]}}, newest), []
    return f"No snapshot is called {asked}, and no {unit} has that number.", []


def _growth(then: Json, now: Json) -> str:
    before, after = then["samples"][MEMORY], now["samples"][MEMORY]
    share = f" ({100 * (after - before) / before:+.1f} %)" if before else ""
    names = (each["label"] or each.get("kind", "") for each in (then, now))
    return (
        f"From {' to '.join(names)}: {formats.size(before)} to {formats.size(after)}, "
        f"{formats.change(after - before)}{share}."
    )


def _changes(then: Json, now: Json) -> list[list[Field]]:
    """Of types that both snapshots have counted, those that changed most."""
    pairs = [
        (name, then["samples"].get(series), count)
        for series, count in now["samples"].items()
        if count is not None and (name := counted_type(series)) is not None
    ]
    both = [(name, old, new) for name, old, new in pairs if old is not None]
    both.sort(key=lambda row: (-abs(row[2] - row[1]), row[0]))
    return [
        [code(name), formats.count(old), formats.count(new), f"{new - old:+,.0f}"]
        for name, old, new in both[:ROWS_SHOWN]
    ]

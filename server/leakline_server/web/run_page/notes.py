"""What people wrote down beside a run: notes of the program (``run.note``) and of people (PATCH). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..rendering.page_contexts import Cell, Section
from ..rendering.table_cells import Field, at, place, shown, table, web_link

Json = Mapping[str, Any]
MAX_ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class Note:
    """``time`` in Unix seconds; None for one that a server stored without it."""

    time: float | None
    generation: int | None
    by: str
    text: str
    link: object


def notes_of(run: Json, events: Sequence[Json]) -> list[Note]:
    """Newest first."""
    told = [
        Note(e["time"], e["generation"], "the program", str(e["data"].get("text") or ""), e["data"].get("link"))
        for e in events
        if e["kind"] == "note"
    ]  # fmt: skip
    people = [
        Note(
            _seconds(n.get("at")),
            None,
            "a program" if n.get("added") else "a person",
            str(n.get("text") or ""),
            n.get("link"),
        )
        for n in run["notes"]
    ]
    return sorted((n for n in (*told, *people) if n.text or n.link), key=lambda n: -(n.time or 0.0))


def notes(found: Sequence[Note], unit: str) -> Section | None:
    if not found:
        return None
    how = "What was written down, newest first. A link leads to another site, named by its host."
    rows = [_row(each) for each in found[:MAX_ROWS]]
    heads = ("time", f"#{unit}", "by", "note", "link")
    caption = shown(len(rows), len(found), "note")
    return Section("notes", "Notes", how, table=table(heads, rows, caption=caption))


def _row(note: Note) -> list[Field]:
    time = at(note.time) if note.time is not None else Cell("–")
    return [time, place(note.generation), note.by, note.text or "–", _link(note.link)]


def _link(link: object) -> Cell:
    """One that leads nowhere on the web is shown as the text it is."""
    if not link:
        return Cell("–")
    return web_link(link) or Cell(str(link)[:200])


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

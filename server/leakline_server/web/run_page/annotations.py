"""Marks on a run's trend, with hover texts: events, attempts, incidents, alerts and notes.

Notes come from the program (``run.note``) and from people (PATCH). These functions do no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from leakline.analysis.assertions.declared_limits import GROWTH, STATE_WORDS
from leakline.analysis.run_history import RunHistory
from leakline.text_format import worded

from ...alerts.alert_payload import FIRED, OOM_RISK
from ...charts.chart_parts import Axis, Mark
from ...store.runs.runs import unix
from ..rendering import number_formats
from ..rendering.page_contexts import Cell, Section
from ..rendering.table_cells import Field, at, place, shown, web_link
from .fix_effects import effect_line
from .inventory_tables import (
    MAX_ROWS,
    Effects,
    alert_words,
    by_process,
    cleanup_words,
    collection_words,
    event_row,
)

# Kinds of events that get a row; rows for notes are added separately.
_LISTED: Final = (
    "mark", "cleanup", "register_cleanup", "exception", "warning", "fix", "collection",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Note:
    """A note; ``time`` is in Unix seconds, or None if unknown."""

    time: float | None
    generation: int | None
    by: str
    text: str
    link: object


def notes_of(run: Json, events: Sequence[Json]) -> list[Note]:
    """Return all notes, newest first."""
    from_run = [
        Note(e["time"], e["generation"], "the program", str(e["data"].get("text") or ""), e["data"].get("link"))
        for e in events
        if e["kind"] == "note"
    ]  # fmt: skip
    people = [
        Note(
            _seconds(n.get("at")),
            n.get("generation"),
            "a program" if n.get("added") else "a person",
            str(n.get("text") or ""),
            n.get("link"),
        )
        for n in run["notes"]
    ]
    return sorted(
        (n for n in (*from_run, *people) if n.text or n.link), key=lambda n: -(n.time or 0.0)
    )


def timeline(
    run: Json, events: Sequence[Json], alerts: Sequence[Json], effects: Effects,
    whose: Mapping[str, str] = MappingProxyType({}), any_webhook: bool = True,
) -> Section | None:  # fmt: skip
    """Return a table of everything that happened, newest first: events, alerts and notes.

    ``alerts`` are {event, created_at in Unix seconds, payload}; ``effects`` are the effects of
    fixes. ``whose`` maps instances to the labels of their processes, which are shown for
    several processes.
    """
    environment = run["environment"]
    happened: list[tuple[float, str, list[Field]]] = [
        (each["time"], each.get("process", ""), event_row(each, environment, effects))
        for each in events
        if each["kind"] in _LISTED
    ]
    happened += [(each["created_at"], "", _alert_row(each)) for each in alerts]
    happened += [(each.time or 0.0, "", _note_row(each)) for each in notes_of(run, events)]
    if not happened:
        return None
    happened.sort(key=lambda each: -each[0])
    rows = [{"process": process, "row": row} for _, process, row in happened[:MAX_ROWS]]
    heads = (f"#{run['unit']}", "time", "kind", "name", "phase", "what happened")
    made = by_process(heads, rows, lambda each: each["row"], whose)
    caption = shown(len(rows), len(happened), "event")
    how = "A cleanup that frees nothing is marked: it costs time without any effect."
    if alerts and not any_webhook:
        how += " No webhook is set up, so the alerts were not sent. Add a webhook on the Alerts page (/alerts)."
    return Section("events", "What happened", how, table=replace(made, caption=caption))


def _alert_row(alert: Json) -> list[Field]:
    generation = place(alert["payload"]["when"].get("generation"))
    said = alert_words(alert["payload"])
    return [generation, at(alert["created_at"]), "alert", alert["event"], "–", said]


def _note_row(note: Note) -> list[Field]:
    time = at(note.time) if note.time is not None else Cell("–")
    text, link = note.text, _link(note.link)
    if text and link.href:
        link = replace(link, text=f"{text} ({link.text})")
    elif text:
        link = Cell(text if link.text == "–" else f"{text} ({link.text})")
    return [place(note.generation), time, "note", f"by {note.by}", "–", link]


def _link(link: object) -> Cell:
    """Return a cell with a link, or with plain text for a value that is not a web address."""
    if not link:
        return Cell("–")
    return web_link(link) or Cell(str(link)[:200])


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


Json = Mapping[str, Any]
MAX_MARKS: Final = 60
MAX_CLEANUPS: Final = 300
MAX_COLLECTIONS: Final = 100
MAX_CACHES: Final = 60
MAX_TEXT: Final = 160
MAX_LINES: Final = 6
# The alerts that get a mark; incidents already have separate marks.
SHOWN_ALERTS: Final = (FIRED, OOM_RISK)


@dataclass(frozen=True, slots=True)
class Clock:
    """The end times of generations (Unix seconds, ascending), and the generation numbers."""

    times: Sequence[float]
    generations: Sequence[float]


NO_CLOCK: Final[Clock] = Clock((), ())


def clock_of(past: RunHistory) -> Clock:
    """Return the first rank's clock, covering all attempts."""
    first = next(iter(past.processes), None)
    moments = sorted(
        (time, generation)
        for process in past.processes
        if first is not None and (process.rank, process.role) == (first.rank, first.role)
        for time, generation, kind in zip(
            process.time, process.generation, process.kind, strict=True
        )
        if kind == "generation_end" and generation is not None
    )
    return Clock([time for time, _ in moments], [generation for _, generation in moments])


def _place_on(axis: Axis, clock: Clock, started: float) -> Callable[[float, float | None], float | None]:  # fmt: skip
    """Return a function that maps a time and generation to x; x is None if no generation has ended."""

    def place(time: float, generation: float | None) -> float | None:
        if axis.unit == "time":
            return (time - started) / axis.seconds
        if generation is not None:
            return generation
        if not clock.times:
            return None
        # Events within a generation are placed at the generation's end, where its reading is.
        return clock.generations[min(bisect_left(clock.times, time), len(clock.times) - 1)]

    return place


def marks(
    run: Json, events: Sequence[Json], notes: Sequence[Note], incidents: Sequence[Json], alerts: Sequence[Json],
    effects: Effects, axis: Axis, clock: Clock,
) -> tuple[Mark, ...]:  # fmt: skip
    """Return the marks on the trend; ``effects`` come from `fix_effects`."""
    place = _place_on(axis, clock, unix(run["started_at"]))
    # No mark is placed after this time: a run that was uploaded later is analysed long after its end.
    heard = unix(run["last_seen_at"])
    rare: list[tuple[float | None, str, str, str]] = []
    cleanups: list[tuple[float | None, str, str, str]] = []
    collections: list[tuple[float | None, str, str, str]] = []
    caches: list[tuple[float | None, str, str, str]] = []
    for event in events:
        x = place(event["time"], event["generation"])
        if event["kind"] == "cleanup":
            text = f"{event['name']}: {cleanup_words(event['data'])}"
            cleanups.append((x, event["name"], "cleanup", text))
        elif event["kind"] == "collection":
            text = f"full collection: {collection_words(event['data'])}"
            collections.append((x, "full collection", "cleanup", text))
        elif event["kind"] == "fix":
            text = "\n".join([event["name"], *effects.get((event["name"], event["time"]), ())])
            rare.append((x, event["name"], "fix", text))
        elif event["kind"] == "mark" and event["data"].keys() & {"freed_bytes_at_least", "worker"}:
            # This mark reports memory that an allocator released, possibly in every generation, or the
            # scan of a child process; it was not set by a person.
            caches.append((x, event["name"], "mark", _with_text(event)))
        elif event["kind"] in ("mark", "exception"):
            rare.append((x, event["name"], event["kind"], _with_text(event)))
    for note in notes:
        x = None if note.time is None else place(note.time, note.generation)
        rare.append((x, note.text, "note", note.text))
    for incident in incidents:
        x = place(min(unix(incident["first_seen_at"]), heard), None)
        rare.append((x, "incident", "incident", worded(incident["status"], incident["summary"])))
    for alert in alerts:
        if alert["event"] not in SHOWN_ALERTS:
            continue
        x = place(min(alert["created_at"], heard), alert["payload"]["when"].get("generation"))
        rare.append((x, "alert", "alert", alert_words(alert["payload"])))
    # The first attempt needs no mark, because it coincides with the start of the run.
    for attempt in run["attempts"][0 if run["attempts_left_out"] else 1 :]:
        x = place(unix(attempt["started_at"]), None)
        rare.append((x, "attempt", "attempt", f"attempt {attempt['number']} begins"))
    # Only the newest marks of each kind are kept; cleanups never displace rare events.
    chosen = [
        *_newest(rare, MAX_MARKS), *_newest(cleanups, MAX_CLEANUPS),
        *_newest(collections, MAX_COLLECTIONS), *_newest(caches, MAX_CACHES),
    ]  # fmt: skip
    return tuple(Mark(x, label[:MAX_TEXT], kind, _wrapped(text)) for x, label, kind, text in chosen)


def fix_effects(
    events: Sequence[Json], verdict: Json | None, effects: Sequence[Json], unit: str
) -> Effects:
    """Return the effects of each fix event, for its mark and for the table of events.

    ``effects`` come from `effects_shown`.
    """
    return {
        (event["name"], event["time"]): _effect(event, verdict, effects, unit)
        for event in events
        if event["kind"] == "fix"
    }


def _with_text(event: Json) -> str:
    """Return an event's name, followed by its text, if any."""
    text = event["data"].get("text")
    return f"{event['name']}: {text}" if isinstance(text, str) and text else str(event["name"])


def _newest(
    found: Sequence[tuple[float | None, str, str, str]], most: int
) -> list[tuple[float, str, str, str]]:
    placed = [(x, label, kind, text) for x, label, kind, text in found if x is not None]
    return sorted(placed, key=lambda mark: mark[0])[-most:]


def _effect(event: Json, verdict: Json | None, effects: Sequence[Json], unit: str) -> list[str]:
    """Describe the effects of a fix, and compare its promises with later measurements."""
    name = event["name"]
    # Before ``since``, the fix had another form, which counts as a different fix.
    lines = [
        effect_line(each, unit)
        for each in effects
        if each["fix"] == name and event["time"] >= each["since"]
    ]
    for check in (verdict or {}).get("assertions") or ():
        if (check["origin"], check["name"], check["metric"]) == ("fix", name, GROWTH):
            word = STATE_WORDS[check["state"]]
            measured = check["measured"]
            said = "nothing measured yet"
            if measured:
                said = f"measured {number_formats.change(measured['estimate'])}"
            lines.append(
                f"promised {number_formats.size(check['high'])} per {unit}, {said}: {word}"
            )
    return lines


def _wrapped(text: str) -> str:
    """Limit the number and length of lines, because a hover text cannot be scrolled."""
    lines = text.split("\n")[:MAX_LINES]
    return "\n".join(f"{line[: MAX_TEXT - 1]}…" if len(line) > MAX_TEXT else line for line in lines)

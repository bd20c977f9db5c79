"""Changing, ending and listing runs, and the summaries that pages and the API show.

The row of a run contains a sparkline of its memory with at most 64 values, so that the list of runs reads no other
table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, get_args

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, Row, exists, func, or_, select, update

from leakline.analysis.assertions.expected_counts import with_accepted
from leakline.analysis.findings.verdict_summary import Priority
from leakline.analysis.results import SEVERITY, OomForecast, to_json
from leakline.analysis.run_history import declared_expectations
from leakline.analysis.status import GROWING
from leakline.transport.oom_inference import said_at_end

from ...limits import MAX_ATTEMPTS_LISTED, MAX_NOTES, MAX_NOTES_BYTES, MAX_PAGE
from ..alerts import assertions
from ..details import load_events
from ..engine import lowered, reading, writing
from ..ingest import clock_skew
from ..ingest.project_quota import Allowance, add_bytes
from ..maintenance import corruption
from ..maintenance.retention_policy import FOREVER, PerProject
from ..maintenance.run_deletion import IS_DELETED
from ..schema import ENDED, STATES, attempts, processes, runs, series
from . import lifecycle, process_list
from .process_list import LIVED, iso, iso_or_none, unix
from .run_order import NEWEST, BadCursor, Order, places, read_cursor, write_cursor

__all__ = ["ENDED", "LIVED", "STATES", "BadCursor", "iso", "iso_or_none", "unix"]

State = Literal["running", "finished", "failed", "interrupted", "killed", "silent"]
# States in which a run may still receive requests; a silent run may resume.
LISTENING: Final = ("running", "silent")
# Used like a state in filters, although a deleted run also has a real state, which it keeps when it is restored.
DELETED: Final = "deleted"
# Search fields of the list besides name, project, tags, state and dates.
Match = Literal["config", "host", "commit", "phase", "type"]
MATCHES: Final[tuple[Match, ...]] = get_args(Match)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes to a run. None leaves a field unchanged, and ``notes`` are added to the existing notes.

    ``only_adds``: the request has an ingest token, whose notes must not displace users' notes. ``browser``: the
    request has a browser token.
    """

    state: str | None = None
    ended_at: float | None = None
    reason: str | None = None
    instance: str | None = None
    name: str | None = None
    tags: tuple[str, ...] | None = None
    notes: tuple[Mapping[str, Any], ...] = ()
    only_adds: bool = False
    browser: bool = False


class NoRoomForNotes(Exception):
    """Raised when a new note does not fit within the limits."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Filters of the list of runs. A run must satisfy all filters.

    Each of ``statuses`` is a verdict status, a run state or "deleted". Deleted runs are listed only with "deleted".
    Each of ``words`` must occur in the name, project or id. ``matches`` are (field, text) pairs. Times are Unix
    seconds.
    """

    projects: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    limit: int = 50
    cursor: str | None = None
    order: Order = NEWEST
    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    matches: tuple[tuple[Match, str], ...] = ()
    started_from: float | None = None
    started_before: float | None = None


def change_run(
    engine: Engine,
    run_id: str,
    changes: Changes,
    now: float,
    bytes_per_day: PerProject = FOREVER,
) -> dict[str, Any] | None:
    """Apply changes and return the new RunSummary, or None if the run does not exist.

    Raises TooMuchStored if the project's quota for today is used up, and NoRoomForNotes.
    """
    with writing(engine) as connection:
        # Two ranks may report their ends at the same time, and the last rank to end ends the run, so lock the run
        # first.
        row = locked(connection, run_id)
        if row is None:
            return None
        values: dict[str, Any] = {"revision": runs.c.revision + 1}
        if changes.state is not None:
            # Only a process reports a state, so this counts as a sign of life, unlike notes and tags.
            ended_at = now
            if changes.ended_at is not None:
                skew = clock_skew.of_process(connection, run_id, changes.instance)
                ended_at = clock_skew.moment(changes.ended_at, now, skew)
            values |= {"last_seen_at": now} | lifecycle.reported_end(
                connection, row, changes.state, changes.reason or "", ended_at, changes.instance
            )
        if changes.name is not None:
            values["name"] = changes.name
        if changes.tags is not None:
            values["tags"] = _dump(list(dict.fromkeys(changes.tags)))
        if changes.notes:
            more = [{"at": now, "added": changes.only_adds, **note} for note in changes.notes]
            size = len(msgspec.json.encode(more))
            allowed = Allowance(bytes=bytes_per_day.of(row.project), browser=changes.browser)
            add_bytes(connection, row.project, size, now, allowed)
            kept = _newest([*msgspec.json.decode(row.notes), *more])
            # If there is too little room, the oldest notes are dropped. A user's request is refused only if its newest
            # note does not fit; a token's request is refused unless all of its notes are kept.
            needed = more[0] if changes.only_adds else more[-1]
            if not any(each is needed for each in kept):
                raise NoRoomForNotes
            values["notes"] = _dump(kept)
        connection.execute(update(runs).where(runs.c.id == run_id).values(**values))
    return get_summary(engine, run_id)


def _newest(notes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the newest notes within the limits; notes ``added`` with an ingest token get only the remaining room."""
    kept: set[int] = set()
    room = MAX_NOTES_BYTES
    for added in (False, True):
        for at in reversed(range(len(notes))):
            # A note without this field is from an older version and may have been written by a person.
            if notes[at].get("added", False) is not added:
                continue
            size = len(msgspec.json.encode(notes[at]))
            if size > room or len(kept) == MAX_NOTES:
                break
            room -= size
            kept.add(at)
    return [notes[at] for at in sorted(kept)]


def list_runs(engine: Engine, filters: RunFilter) -> dict[str, Any]:
    """Return {"items": [RunSummary], "next": cursor or None}. Raises BadCursor."""
    limit, order = max(1, min(filters.limit, MAX_PAGE)), filters.order
    after = None if filters.cursor is None else read_cursor(order, filters.cursor)
    with engine.connect() as connection:
        found = places(connection, order, after, limit + 1, _wanted(filters))
        # Rows are long, so read only the rows of this page.
        ids = [place.run_id for place in found[:limit]]
        rows = connection.execute(select(*_LISTED).where(runs.c.id.in_(ids))).all()
        parts = corruption.parts_of(connection, ids)
    by_id = {row.id: summary(row, parts.get(row.id, ())) for row in rows}
    return {
        # A run may have been removed between the two queries.
        "items": [by_id[run_id] for run_id in ids if run_id in by_id],
        "next": write_cursor(order, found[limit - 1]) if len(found) > limit else None,
    }


def count_by_status(engine: Engine, filters: RunFilter) -> dict[str, int]:
    """Return the number of runs with each verdict status. Verdict statuses in ``filters`` are ignored."""
    others = tuple(each for each in filters.statuses if each not in SEVERITY)
    wanted = _wanted(replace(filters, statuses=others))
    query = select(runs.c.status, func.count()).where(*wanted).group_by(runs.c.status)
    with engine.connect() as connection:
        return dict(map(tuple, connection.execute(query)))


def _wanted(filters: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter, cheap conditions first."""
    wanted: list[ColumnElement[bool]] = [IS_DELETED if DELETED in filters.statuses else ~IS_DELETED]
    wanted += [runs.c.project == project for project in filters.projects]
    if filters.started_from is not None:
        wanted.append(runs.c.started_at >= filters.started_from)
    if filters.started_before is not None:
        wanted.append(runs.c.started_at < filters.started_before)
    for status in filters.statuses:
        if status != DELETED:
            wanted.append((runs.c.status if status in SEVERITY else runs.c.state) == status)
    # Searching one joined string takes half the time. No term can match across parts, because terms have no line
    # breaks.
    among = runs.c.name + "\n" + runs.c.project + "\n" + runs.c.id
    wanted += [_has(among, word) for word in filters.words]
    # Do not use LIKE, which ignores case on SQLite but not on Postgres: tags must match exactly.
    wanted += [func.replace(runs.c.tags, _dump(tag), "") != runs.c.tags for tag in filters.tags]
    return wanted + [_MATCHING[what](text) for what, text in filters.matches]


def _has(text: ColumnElement[str], needle: str) -> ColumnElement[bool]:
    """Return the condition that the text contains ``needle``, ignoring case."""
    return _small(text, needle).contains(_needle(needle), autoescape=True)


def _small(text: ColumnElement[str], needle: str) -> ColumnElement[str]:
    # For ASCII, SQLite's own lower() is sufficient and takes a third of the time.
    return func.lower(text) if needle.isascii() else lowered(text)


def _needle(text: str) -> str:
    return text.lower().replace("\x00", "")


def _has_config(wanted: str) -> ColumnElement[bool]:
    """Return the condition of a configuration search: ``key=value`` at any depth, or any other text as a substring."""
    key, equals, value = wanted.partition("=")
    if not equals:
        return _has(runs.c.config, wanted)
    values = dict.fromkeys((value, _dump(value), *_as_json(value)))
    return or_(
        *(_has(runs.c.config, f"{_dump(key)}:{each}{end}") for each in values for end in ",}")
    )


def _as_json(value: str) -> Sequence[str]:
    """Return the JSON forms of a number or None that was typed in Python syntax, or () for any other string."""
    if value == "None":
        return ("null",)
    try:
        number = float(value)
    except ValueError:
        return ()
    if not math.isfinite(number):
        return ()
    is_whole = number.is_integer() and abs(number) < 2**63
    return (_dump(number), _dump(int(number))) if is_whole else (_dump(number),)


def _has_process_on(host: str) -> ColumnElement[bool]:
    of_run = processes.c.run_id == runs.c.id
    return exists().where(of_run, _has(processes.c.host, host))


def _counts_type(name: str) -> ColumnElement[bool]:
    """Return the condition that the run has a series ``type.<name>.<measure>`` whose type name contains this text."""
    escaped = re.sub("([%_/])", r"/\1", _needle(name))
    counted = _small(series.c.name, name).like(f"type.%{escaped}%.%", escape="/")
    return exists().where(series.c.run_id == runs.c.id, counted)


_MATCHING: Final[Mapping[Match, Callable[[str], ColumnElement[bool]]]] = {
    "config": _has_config,
    "host": _has_process_on,
    "commit": lambda start: _has(runs.c.environment, f'"commit":{_dump(start)[:-1]}'),
    "phase": lambda name: _has(runs.c.phases_seen, _dump(name)[1:-1]),
    "type": _counts_type,
}


def baseline_of(engine: Engine, run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the project's newest run with the tag ``baseline`` that began before this run, or None."""
    return _newest_before(engine, run, ("baseline",))


def previous_of(engine: Engine, run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the project's newest run that began before this run, or None."""
    return _newest_before(engine, run, ())


def _newest_before(
    engine: Engine, run: Mapping[str, Any], tags: tuple[str, ...]
) -> dict[str, Any] | None:
    began = select(runs.c.started_at).where(runs.c.id == run["id"]).scalar_subquery()
    wanted = _wanted(RunFilter(projects=(run["project"],), tags=tags))
    newest = select(*_LISTED).where(*wanted, runs.c.started_at < began)
    with engine.connect() as connection:
        found = connection.execute(newest.order_by(runs.c.started_at.desc()).limit(1)).first()
    return None if found is None else summary(found)


def projects(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(runs.c.project).distinct().order_by(runs.c.project)))


def get_summary(engine: Engine, run_id: str) -> dict[str, Any] | None:
    """Return the RunSummary of one run, or None if the run does not exist."""
    with engine.connect() as connection:
        row = row_of(connection, run_id)
        return None if row is None else summary(row, _damaged(connection, run_id))


def project_of(engine: Engine, run_id: str) -> str | None:
    """Return the project of a run, or None if the run does not exist."""
    with engine.connect() as connection:
        found: str | None = connection.scalar(select(runs.c.project).where(runs.c.id == run_id))
    return found


def get_run(engine: Engine, run_id: str) -> dict[str, Any] | None:
    """Return the RunSummary and all other details of a run, or None if the run does not exist."""
    with reading(engine) as connection:
        row = row_of(connection, run_id)
        if row is None:
            return None
        names = connection.scalars(
            select(series.c.name).where(series.c.run_id == run_id).order_by(series.c.name)
        ).all()
        left_out, listed = _attempts(connection, run_id)
        of_run = process_list.of_run(connection, run_id, row.verdict)
        return summary(row, _damaged(connection, run_id)) | {
            "config": msgspec.json.decode(row.config),
            "environment": msgspec.json.decode(row.environment),
            "phases": msgspec.json.decode(row.phases),
            "phases_seen": msgspec.json.decode(row.phases_seen),
            "processes": of_run.processes,
            "processes_left_out": of_run.left_out,
            "attempts": listed,
            "attempts_left_out": left_out,
            "series": list(names),
            "expectations": _expectations(connection, row),
            "verdict_is_current": row.examined >= row.revision,
            "notes": msgspec.json.decode(row.notes),
        }


def _expectations(connection: Connection, row: Row[Any]) -> list[dict[str, Any]]:
    """Return the declared expectations, and the accepted counts of types without a declared expectation."""
    declared = declared_expectations(load_events(connection, row.id))
    found = with_accepted(declared, assertions.expected_of(connection, row))
    return [asdict(each) for each in found]


def live_runs(engine: Engine, limit: int) -> tuple[list[dict[str, Any]], int]:
    """Return (RunSummaries of running runs, number of all running runs).

    Up to ``limit`` RunSummaries are returned, most recently seen first.
    """
    alive = (runs.c.state == "running", ~IS_DELETED)
    newest = select(*_LISTED).where(*alive).order_by(runs.c.last_seen_at.desc()).limit(limit)
    with reading(engine) as connection:
        rows = connection.execute(newest).all()
        parts = corruption.parts_of(connection, [row.id for row in rows])
        found = [summary(row, parts.get(row.id, ())) for row in rows]
        count = len(found)
        if count == limit:
            count = connection.scalar(select(func.count()).select_from(runs).where(*alive)) or 0
    return found, count


class _Found(msgspec.Struct):
    status: str = "ok"
    priority: str = "minor"
    growth_bytes_per_generation: Any = None
    suspects: list[msgspec.Raw] = []


class _Said(msgspec.Struct):
    """The part of a verdict that lists show; decoding only this part is faster."""

    unit: str = ""
    summary: str = "No verdict yet"
    generations: int = 0
    generations_passed: int | None = None
    growth_bytes_per_generation: Any = None
    oom: msgspec.Raw = msgspec.Raw(msgspec.json.encode(to_json(OomForecast())))
    findings: list[_Found] = []


_decode_said: Final = msgspec.json.Decoder(_Said).decode
_LISTED: Final = tuple(
    runs.c[name]
    for name in (
        "id", "project", "name", "unit", "total", "tags", "state", "reason", "end_inferred", "attempt", "status",
        "first_generation", "last_generation", "verdict", "started_at", "last_seen_at", "ended_at", "rss_bytes",
        "peak_bytes", "sparkline", "revision",
    )
)  # fmt: skip


def summary(row: Row[Any], damaged: Sequence[str] = ()) -> dict[str, Any]:
    """Return the RunSummary of a row of ``runs`` as plain JSON. ``damaged``: the run's quarantined parts."""
    verdict = _Said() if row.verdict is None else _decode_said(row.verdict)
    return {
        "id": row.id,
        "project": row.project,
        "name": row.name,
        "unit": _unit(row, verdict),
        "total": row.total,
        "tags": msgspec.json.decode(row.tags),
        "state": row.state,
        "reason": row.reason,
        "end_inferred": row.end_inferred,
        "attempt": row.attempt,
        "status": row.status,
        "priority": _priority(verdict.findings),
        "summary": corruption.sentence(damaged, row.verdict, _sentence(row, verdict)),
        "generations": _generations(row, verdict),
        "growth_bytes_per_generation": verdict.growth_bytes_per_generation,
        "leading_growth_bytes_per_generation": next(
            (f.growth_bytes_per_generation for f in verdict.findings if f.status in GROWING), None
        ),
        "oom": msgspec.json.decode(verdict.oom),
        "started_at": iso(row.started_at),
        "last_seen_at": iso(row.last_seen_at),
        "ended_at": iso_or_none(row.ended_at),
        "rss_bytes": row.rss_bytes,
        "peak_bytes": row.peak_bytes,
        "sparkline": msgspec.json.decode(row.sparkline).get("values", []),
        "revision": row.revision,
        "url": f"/runs/{row.id}",
    }


def _damaged(connection: Connection, run_id: str) -> Sequence[str]:
    return corruption.parts_of(connection, [run_id]).get(run_id, ())


def _sentence(row: Row[Any], verdict: _Said) -> str:
    said = {
        "summary": verdict.summary, "status": row.status, "unit": _unit(row, verdict),
        "generations": verdict.generations, "generations_passed": verdict.generations_passed,
        "growth_bytes_per_generation": verdict.growth_bytes_per_generation,
        "findings": [{"status": f.status, "suspects": f.suspects} for f in verdict.findings],
    }  # fmt: skip
    return said_at_end(said, row.state, row.reason)


def _priority(findings: Sequence[_Found]) -> str | None:
    """Return the highest priority of the findings that leak or may leak, or None without such findings."""
    found = {each.priority for each in findings if each.status in GROWING}
    return next((name for name in get_args(Priority) if name in found), None)


def _unit(row: Row[Any], verdict: _Said) -> str:
    """Return the verdict's unit if the run reported no generation, otherwise the run's own unit."""
    return verdict.unit if verdict.unit and row.first_generation is None else str(row.unit)


def _generations(row: Row[Any], verdict: _Said) -> int:
    # A program without generations is analyzed by minutes, which must not be shown as generations.
    if row.first_generation is None:
        return 0
    return verdict.generations or int(row.last_generation - row.first_generation)


def _attempts(connection: Connection, run_id: str) -> tuple[int, list[dict[str, Any]]]:
    """Return (number of attempts left out, newest MAX_ATTEMPTS_LISTED attempts in order)."""
    of_run = attempts.c.run_id == run_id
    newest = select(attempts).where(of_run).order_by(attempts.c.number.desc())
    found = connection.execute(newest.limit(MAX_ATTEMPTS_LISTED)).all()
    count = len(found)
    if count == MAX_ATTEMPTS_LISTED:
        count = connection.scalar(select(func.count()).select_from(attempts).where(of_run)) or 0
    return count - len(found), [
        {
            "number": row.number,
            "started_at": iso(row.started_at),
            "environment": msgspec.json.decode(row.environment),
        }
        for row in reversed(found)
    ]


def row_of(connection: Connection, run_id: str) -> Row[Any] | None:
    if "\x00" in run_id:
        # Postgres raises an error for text with NUL characters.
        return None
    return connection.execute(select(runs).where(runs.c.id == run_id)).first()


def locked(connection: Connection, run_id: str) -> Row[Any] | None:
    """Lock a run until the transaction ends. Return its row, or None if the run does not exist."""
    if "\x00" in run_id:
        return None
    query = select(runs).where(runs.c.id == run_id).with_for_update(key_share=True)
    return connection.execute(query).first()


def _dump(value: Any) -> str:
    return msgspec.json.encode(value).decode()


MAX_POINTS_KEPT: Final = 64


@dataclass(slots=True)
class Sparkline:
    """A fixed-size curve of maxima: each value is the largest of ``per`` readings.

    When the curve is full, neighbouring values are merged and ``per`` doubles.
    """

    per: int = 1
    filled: int = 0  # number of readings in the last value
    values: list[int] = field(default_factory=list)

    def add(self, readings: Sequence[int]) -> None:
        at = 0
        while at < len(readings):
            if self.values and self.filled < self.per:
                more = readings[at : at + self.per - self.filled]
                self.values[-1] = max(self.values[-1], max(more))
                self.filled += len(more)
                at += len(more)
                continue
            if len(self.values) == MAX_POINTS_KEPT:
                self.values = [
                    max(pair) for pair in zip(self.values[::2], self.values[1::2], strict=True)
                ]
                self.per *= 2
            self.values.append(readings[at])
            self.filled = 1
            at += 1

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Sparkline:
        return msgspec.json.decode(text, type=cls)

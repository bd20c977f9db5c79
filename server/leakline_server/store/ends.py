"""How processes and runs end: as they say, as whoever found what they left says, or as their silence tells.

A run ends with the last process of its newest attempt, as the one that ended worst. What a process did not say itself
is presumed: a word of it takes that back. Whoever changes an end locks the run first, then the rows of its processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    and_,
    case,
    func,
    or_,
    select,
    update,
)

from leakline.kills import MEMORY

from .last_readings import why_killed
from .tables import processes, runs

# What a process says of its end -> the state that is kept.
STATES: Final[Mapping[str, str]] = {
    "finished": "finished",
    "failed": "failed",
    "terminated": "killed",
    "killed": "killed",
    "silent": "silent",
}
# What only somebody else says of a process: who is killed says nothing.
_FOUND: Final = ("killed", "silent")
# One rank fails or vanishes, and the launcher ends the others, by a signal that they tell of or by one they cannot.
_WORSE: Final = ("finished", "killed", "silent", "failed")
_MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class Silence:
    """Since when nothing was heard, in Unix seconds: of what is silent, and of what last readings say was killed."""

    before: float
    soon: float


@dataclass(frozen=True, slots=True)
class Vanished:
    """A process that its last readings say was killed, while others of its run go on."""

    run_id: str
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Concluded:
    """What silence tells: ids of runs that fell silent or were killed, and processes that others outlived."""

    runs: tuple[str, ...] = ()
    processes: tuple[Vanished, ...] = ()


def told(
    connection: Connection,
    run: Row[Any],
    state: str,
    reason: str,
    ended_at: float,
    instance: str | None,
) -> dict[str, Any]:
    """A process ends, or without ``instance`` the whole run. The columns of the run that change with it."""
    if state == "running":
        return _ends("running", "", None)
    if instance is None:
        return _ends(STATES[state], reason, ended_at)
    _end_process(connection, run.id, instance, state, reason, ended_at)
    of_attempt = _of_newest_attempt(connection, run.id)
    others = all(process.instance != instance for process in of_attempt)
    if of_attempt and (others or any(process.end_state is None for process in of_attempt)):
        # Others go on, or what ended was an attempt before this one.
        return {}
    if not of_attempt:
        return _ends(STATES[state], reason, ended_at)
    return _as_the_worst(of_attempt)


def how_bad(state: str | None, reason: str) -> int:
    """Of several ends, the one with the highest number is what people must know. ``state`` as it is kept."""
    if _is_memory(reason):
        return len(_WORSE)
    return _WORSE.index(state) if state else -1


def _is_memory(reason: str) -> bool:
    return reason.split(":")[0] == MEMORY


def _as_the_worst(of_attempt: Sequence[Row[Any]]) -> dict[str, Any]:
    """The end of a run all of whose processes have ended."""
    worst = max(of_attempt, key=lambda p: how_bad(p.end_state, p.end_reason))
    ended_at = max(p.ended_at for p in of_attempt)
    reason = worst.end_reason
    if len(of_attempt) > 1 and _is_memory(reason):
        reason = f"{reason} (rank {worst.rank})"
    return _ends(worst.end_state, reason, ended_at, any(p.presumed for p in of_attempt))


def _ends(
    state: str, reason: str, ended_at: float | None, presumed: bool = False
) -> dict[str, Any]:
    return {"state": state, "reason": reason, "ended_at": ended_at, "presumed": presumed}


def _end_process(
    connection: Connection, run_id: str, instance: str, state: str, reason: str, ended_at: float
) -> None:
    """``state`` as it is said."""
    same = and_(processes.c.run_id == run_id, processes.c.instance == instance)
    found = state in _FOUND
    if found:
        # Somebody found what it left behind, and knows less than it has said itself.
        same = and_(same, processes.c.end_state.is_(None) | processes.c.presumed)
    connection.execute(
        update(processes)
        .where(same)
        .values(ended_at=ended_at, end_state=STATES[state], end_reason=reason, presumed=found)
    )


def _of_newest_attempt(connection: Connection, run_id: str) -> list[Row[Any]]:
    """Of its main processes: those that they start end when they like."""
    rows = connection.execute(select(processes).where(processes.c.run_id == run_id)).all()
    rows = [row for row in rows if row.role == _MAIN] or rows
    newest_attempt = max((row.attempt for row in rows), default=0)
    return [row for row in rows if row.attempt == newest_attempt]


def anybody_silent(engine: Engine, silence: Silence) -> bool:
    """Whether `conclude` may have anything to do."""
    with engine.connect() as connection:
        silence = _in_view_of_all(connection, silence)
        quiet = connection.execute(select(runs.c.id).where(_quiet(silence.before)).limit(1))
        vanished = connection.execute(_vanished(silence.soon).limit(1))
        return quiet.first() is not None or vanished.first() is not None


def conclude(connection: Connection, silence: Silence) -> Concluded:
    """What silence tells of running runs and of their processes. The caller commits."""
    silence = _in_view_of_all(connection, silence)
    of_vanished = _vanished(silence.soon).with_only_columns(processes.c.run_id)
    some = or_(runs.c.id.in_(of_vanished), _quiet(silence.soon))
    over: list[str] = []
    beside: list[Vanished] = []
    # All who lock several take them in this order, which is that of the database: its collation may not be Python's.
    for run_id in connection.scalars(select(runs.c.id).where(some).order_by(runs.c.id)).all():
        going = and_(runs.c.id == run_id, runs.c.state == "running")
        query = select(runs).where(going).with_for_update(key_share=True)
        run = connection.execute(query).first()
        if run is None:
            # It ended in this moment.
            continue
        killed = _end_vanished(connection, run_id, silence)
        values = _over(connection, run, silence)
        if values:
            over.append(run_id)
        else:
            beside += killed
        if values or killed:
            revision = runs.c.revision + 1
            # Nothing was heard, so there is nothing to examine.
            examined = case((runs.c.examined == runs.c.revision, revision), else_=runs.c.examined)
            changed = update(runs).where(runs.c.id == run_id)
            connection.execute(changed.values(**values, revision=revision, examined=examined))
    return Concluded(tuple(over), tuple(beside))


def _in_view_of_all(connection: Connection, silence: Silence) -> Silence:
    """When nobody at all was heard of, it may be the server that nobody reached: then nothing is concluded soon."""
    heard = connection.scalar(select(func.max(runs.c.last_seen_at)))
    return (
        silence
        if heard is not None and heard >= silence.soon
        else replace(silence, soon=silence.before)
    )


def _end_vanished(connection: Connection, run_id: str, silence: Silence) -> list[Vanished]:
    """End the processes of a run that vanished. Returns its main processes that were killed."""
    killed = []
    for process in connection.execute(_vanished(silence.soon, run_id)).all():
        reason = why_killed(connection, process)
        if reason is None and process.last_seen_at >= silence.before:
            continue
        connection.execute(
            update(processes).where(processes.c.run_id == run_id, processes.c.id == process.id).values(
                ended_at=process.last_seen_at, end_state="silent" if reason is None else "killed",
                end_reason=reason or "", presumed=True,
            )
        )  # fmt: skip
        if reason is not None and process.role == _MAIN:
            killed.append(Vanished(run_id, process.rank, reason))
    return killed


def _over(connection: Connection, run: Row[Any], silence: Silence) -> dict[str, Any]:
    """How a run ended all of whose processes have, or of which nothing is heard; empty while it goes on."""
    of_attempt = _of_newest_attempt(connection, run.id)
    if of_attempt and all(p.end_state and p.attempt == run.attempt for p in of_attempt):
        values = _as_the_worst(of_attempt)
        if values["state"] != "silent":
            return values
    return {"state": "silent"} if run.last_seen_at < silence.before else {}


def _quiet(before: float) -> ColumnElement[bool]:
    return and_(runs.c.state == "running", runs.c.last_seen_at < before)


def _vanished(before: float, run_id: str | None = None) -> Select[Any]:
    """Processes of the newest attempt of running runs that have not spoken since, nor said that they end."""
    query = (
        select(processes)
        .join(runs, runs.c.id == processes.c.run_id)
        .where(
            runs.c.state == "running",
            processes.c.attempt == runs.c.attempt,
            processes.c.end_state.is_(None),
            processes.c.last_seen_at < before,
        )
    )
    return query if run_id is None else query.where(runs.c.id == run_id)

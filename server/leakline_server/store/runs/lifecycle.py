"""How processes and runs end: as they say, as the finder of their spool says, or concluded from their silence.

A run ends with the last process of its newest attempt, as the one that ended worst. What a process did not say itself
is inferred: a word of it takes that back. Whoever changes an end locks the run first, then the rows of its processes.

Why a process vanished is inferred from its last readings and those of the other processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    and_,
    case,
    func,
    select,
    update,
)

from leakline.transport.oom_inference import (
    EVIDENCE,
    FRESH_SECONDS,
    INTERRUPTED,
    MEMORY,
    killed_for_memory,
    last_readings,
)

from ..columns import TIME
from ..engine import reading
from ..schema import Key, processes, runs
from ..series import Stored, read, read_between, series_ids

_KILLS: Final = "cgroup.kills"
# Of the newest snapshots of a process, so many are read; then so many times as many, until they reach back far enough.
_ROWS: Final = 200
_FACTOR: Final = 8
_MOST_ROWS: Final = _ROWS * _FACTOR**3

# (Unix seconds by the clock of the process, samples)
_Moment = tuple[float, dict[str, Any]]


def why_killed(connection: Connection, process: Row[Any]) -> str | None:
    """The reason as it is reported, or None without evidence. ``process``: its row."""
    moments = _readings(connection, process)
    if not moments:
        return None
    return killed_for_memory(
        last_readings(moments), _kills_since(connection, process, moments[-1][0])
    )


def _kills_since(connection: Connection, process: Row[Any], died_at: float) -> int:
    """How many more kills the other processes of the run on the same machine have seen since, each in its own group."""
    query = select(processes).where(
        processes.c.run_id == process.run_id,
        processes.c.host == process.host,
        processes.c.id != process.id,
        processes.c.last_seen_at >= process.last_seen_at,
    )
    others = connection.execute(query).all()
    seen = (_risen(_readings(connection, other, died_at), died_at) for other in others)
    return max(seen, default=0)


def _risen(moments: Iterable[tuple[float, Mapping[str, Any]]], died_at: float) -> int:
    counted = [(at, samples[_KILLS]) for at, samples in moments if _KILLS in samples]
    before = [kills for at, kills in counted if at <= died_at]
    return int(counted[-1][1] - before[-1]) if before else 0


def _readings(
    connection: Connection, process: Row[Any], since: float | None = None
) -> list[_Moment]:
    """Of its snapshots, in order, from a minute before ``since`` or before the newest, where those are not too many.

    A minute, because not every snapshot has every series.
    """
    numbered = series_ids(connection, process.run_id)
    names = {numbered[name]: name for name in EVIDENCE if name in numbered}
    stored = read(connection, Key(process.run_id, process.id), names)
    rows = _ROWS
    while True:
        newest = stored.newest(rows)
        moments = _moments(newest)
        if len(newest) == len(stored) or rows >= _MOST_ROWS:
            return moments
        newest_at = moments[-1][0] if moments else 0.0
        if moments and moments[0][0] <= min(newest_at, since or newest_at) - FRESH_SECONDS:
            return moments
        rows *= _FACTOR


def _moments(stored: Stored) -> list[_Moment]:
    if not stored.stretches:
        return []
    names, among = stored.names, stored.stretches
    low, high = min(s.first for s in among), max(s.last for s in among)
    block = read_between(stored.connection, stored.key, (TIME, *names), names, low, high)
    columns = {name: block.numbers(number).to_list() for number, name in names.items()}
    return [
        (at, {name: values[i] for name, values in columns.items() if values[i] is not None})
        for i, at in enumerate(block.numbers(TIME).to_list())
        if at is not None
    ]


# What a process says of its end -> the state that is kept.
STATES: Final[Mapping[str, str]] = {
    "finished": "finished",
    "failed": "failed",
    "terminated": "killed",
    "interrupted": "interrupted",
    "killed": "killed",
    "silent": "silent",
}
# What only somebody else says of a process: who is killed says nothing.
_FOUND: Final = ("killed", "silent")
# One rank fails or vanishes, and the launcher ends the others, by a signal that they tell of or by one they cannot.
_WORSE: Final = ("finished", "interrupted", "killed", "silent", "failed")
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
    """What follows from silence: ids of runs that fell silent or were killed, and processes that others outlived."""

    runs: tuple[str, ...] = ()
    processes: tuple[Vanished, ...] = ()


class Moment(NamedTuple):
    """A process that was last heard of then, in Unix seconds."""

    run_id: str
    process_id: int
    last_seen_at: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a process vanished, None when nothing says; as of the transaction ``stored`` of its run."""

    stored: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Suspects:
    """Runs of which silence may tell something, and what is known of each process that vanished."""

    silence: Silence
    runs: tuple[str, ...]
    evidence: Mapping[Moment, Evidence]


def reported_end(
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
        return _ends(_kept_state(state, reason), reason, ended_at)
    _end_process(connection, run.id, instance, state, reason, ended_at)
    of_attempt = _of_newest_attempt(connection, run.id)
    others = all(process.instance != instance for process in of_attempt)
    if of_attempt and (others or any(process.end_state is None for process in of_attempt)):
        # Others go on, or what ended was an attempt before this one.
        return {}
    if not of_attempt:
        return _ends(_kept_state(state, reason), reason, ended_at)
    return _as_the_worst(of_attempt)


def _kept_state(state: str, reason: str) -> str:
    """Return the state that is kept of an end. What Ctrl-C ended was interrupted by a person, not killed."""
    if state == "terminated" and reason in INTERRUPTED:
        return "interrupted"
    return STATES[state]


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
    return _ends(worst.end_state, reason, ended_at, any(p.end_inferred for p in of_attempt))


def _ends(
    state: str, reason: str, ended_at: float | None, end_inferred: bool = False
) -> dict[str, Any]:
    return {"state": state, "reason": reason, "ended_at": ended_at, "end_inferred": end_inferred}


def _end_process(
    connection: Connection, run_id: str, instance: str, state: str, reason: str, ended_at: float
) -> None:
    """``state`` as it is said."""
    same = and_(processes.c.run_id == run_id, processes.c.instance == instance)
    found = state in _FOUND
    if found:
        # Somebody found what it left behind, and knows less than it has said itself.
        same = and_(same, processes.c.end_state.is_(None) | processes.c.end_inferred)
    connection.execute(
        update(processes)
        .where(same)
        .values(
            ended_at=ended_at,
            end_state=_kept_state(state, reason),
            end_reason=reason,
            end_inferred=found,
        )
    )


def _of_newest_attempt(connection: Connection, run_id: str) -> list[Row[Any]]:
    """Of its main processes: those that they start end when they like."""
    rows = connection.execute(select(processes).where(processes.c.run_id == run_id)).all()
    rows = [row for row in rows if row.role == _MAIN] or rows
    newest_attempt = max((row.attempt for row in rows), default=0)
    return [row for row in rows if row.attempt == newest_attempt]


def suspects(engine: Engine, silence: Silence, before: Suspects | None = None) -> Suspects:
    """Whom `conclude` has to look at. Reads alone: what a process left last may lie in many rows, and nobody else
    writes to an SQLite while one does.

    ``before``: what the last call returned, so that of runs that said nothing since nothing is read again.
    """
    known = {} if before is None else before.evidence
    with reading(engine) as connection:
        silence = _in_view_of_all(connection, silence)
        evidence = {}
        for process in connection.execute(_vanished(silence.soon)).all():
            moment = _moment(process)
            found = known.get(moment)
            if found is None or found.stored != process.of_run:
                found = Evidence(process.of_run, why_killed(connection, process))
            evidence[moment] = found
        unheard = connection.scalars(select(runs.c.id).where(_quiet(silence.soon))).all()
    # Those of which no process vanished may have none left that goes on.
    over = set(unheard) - {moment.run_id for moment in evidence}
    for moment, found in evidence.items():
        if found.reason is not None or moment.last_seen_at < silence.before:
            over.add(moment.run_id)
    return Suspects(silence, tuple(sorted(over)), evidence)


def conclude(connection: Connection, found: Suspects, run_ids: Iterable[str]) -> Concluded:
    """Conclude the end of silent runs, if they still run, and of their processes. The caller commits."""
    over: list[str] = []
    vanished: list[Vanished] = []
    # All who lock several take them in this order, which is that of the database: its collation may not be Python's.
    in_order = select(runs.c.id).where(runs.c.id.in_(list(run_ids))).order_by(runs.c.id)
    for run_id in connection.scalars(in_order).all():
        going = and_(runs.c.id == run_id, runs.c.state == "running")
        query = select(runs).where(going).with_for_update(key_share=True)
        run = connection.execute(query).first()
        if run is None:
            # It ended in this moment.
            continue
        killed = _end_vanished(connection, run_id, found)
        values = _over(connection, run, found.silence)
        if values:
            over.append(run_id)
        else:
            vanished += killed
        if values or killed:
            revision = runs.c.revision + 1
            # Nothing was heard, so there is nothing to examine.
            examined = case((runs.c.examined == runs.c.revision, revision), else_=runs.c.examined)
            changed = update(runs).where(runs.c.id == run_id)
            connection.execute(changed.values(**values, revision=revision, examined=examined))
    return Concluded(tuple(over), tuple(vanished))


def _in_view_of_all(connection: Connection, silence: Silence) -> Silence:
    """When nobody at all was heard of, it may be the server that nobody reached: then nothing is concluded soon."""
    heard = connection.scalar(select(func.max(runs.c.last_seen_at)))
    return (
        silence
        if heard is not None and heard >= silence.soon
        else replace(silence, soon=silence.before)
    )


def _end_vanished(connection: Connection, run_id: str, found: Suspects) -> list[Vanished]:
    """End the processes of a run that vanished. Returns its main processes that were killed."""
    killed = []
    for process in connection.execute(_vanished(found.silence.soon, run_id)).all():
        evidence = found.evidence.get(_moment(process))
        if evidence is None:
            # It has joined or spoken since.
            continue
        # What others next to it have reported since may say why.
        as_before = evidence.reason is not None or evidence.stored == process.of_run
        reason = evidence.reason if as_before else why_killed(connection, process)
        if reason is None and process.last_seen_at >= found.silence.before:
            continue
        connection.execute(
            update(processes).where(processes.c.run_id == run_id, processes.c.id == process.id).values(
                ended_at=process.last_seen_at, end_state="silent" if reason is None else "killed",
                end_reason=reason or "", end_inferred=True,
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


def _moment(process: Row[Any]) -> Moment:
    return Moment(process.run_id, process.id, process.last_seen_at)


def _quiet(before: float) -> ColumnElement[bool]:
    return and_(runs.c.state == "running", runs.c.last_seen_at < before)


def _vanished(before: float, run_id: str | None = None) -> Select[Any]:
    """Processes of the newest attempt of running runs that have not spoken since, nor said that they end."""
    query = (
        select(processes, runs.c.stored.label("of_run"))
        .join(runs, runs.c.id == processes.c.run_id)
        .where(
            runs.c.state == "running",
            processes.c.attempt == runs.c.attempt,
            processes.c.end_state.is_(None),
            processes.c.last_seen_at < before,
        )
    )
    return query if run_id is None else query.where(runs.c.id == run_id)

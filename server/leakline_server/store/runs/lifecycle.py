"""The ends of processes and runs: reported by the process, found by spool recovery, or inferred from silence.

A run ends when the last process of its newest attempt ends, and gets the worst end state of that attempt's processes.
An end that the process did not report itself is inferred, and is revoked if the process sends data again. To change an
end, lock the run first, then the rows of its processes.

The reason why a process vanished is inferred from its own last readings and the last readings of other processes.
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
# First, the newest _ROWS snapshots of a process are read. If they do not go back far enough, _FACTOR times as many are
# read, up to _MOST_ROWS.
_ROWS: Final = 200
_FACTOR: Final = 8
_MOST_ROWS: Final = _ROWS * _FACTOR**3

# (Unix seconds by the process's clock, values by series name)
_Moment = tuple[float, dict[str, Any]]


def why_killed(connection: Connection, process: Row[Any]) -> str | None:
    """Return the reason why a process was killed, in the format of reported reasons, or None without evidence."""
    moments = _readings(connection, process)
    if not moments:
        return None
    return killed_for_memory(
        last_readings(moments), _kills_since(connection, process, moments[-1][0])
    )


def _kills_since(connection: Connection, process: Row[Any], died_at: float) -> int:
    """Return the number of OOM kills since ``died_at`` seen by the run's other processes on the same host.

    Each process counts the kills in its own cgroup; the result is the highest of these counts.
    """
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
    """Return a process's last readings in order, from a minute before ``since`` (default: the newest snapshot).

    The extra minute is needed because not every snapshot has every series. At most _MOST_ROWS snapshots are read.
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


# The stored end state for each reported end state.
STATES: Final[Mapping[str, str]] = {
    "finished": "finished",
    "failed": "failed",
    "terminated": "killed",
    "interrupted": "interrupted",
    "killed": "killed",
    "silent": "silent",
}
# End states that a process cannot report itself, so that others report them on its behalf.
_FOUND: Final = ("killed", "silent")
# End states from best to worst. When one rank fails or vanishes, the launcher ends the others with signals, which show
# up as interrupted or killed, so the original failure ranks above these states.
_WORSE: Final = ("finished", "interrupted", "killed", "silent", "failed")
_MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class Silence:
    """Thresholds for `last_seen_at`, in Unix seconds.

    A process last seen before ``before`` counts as silent. A process last seen before ``soon`` counts as killed if its
    last readings indicate a kill.
    """

    before: float
    soon: float


@dataclass(frozen=True, slots=True)
class Vanished:
    """A process that was killed, judging by its last readings, while other processes of its run continue."""

    run_id: str
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Concluded:
    """The inferred ends: ids of runs that fell silent or were killed, and killed processes of live runs."""

    runs: tuple[str, ...] = ()
    processes: tuple[Vanished, ...] = ()


class Moment(NamedTuple):
    """A process, and the time when it was last seen, in Unix seconds."""

    run_id: str
    process_id: int
    last_seen_at: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a process vanished; ``reason`` is None if unknown.

    ``stored`` is the value of the run's ``stored`` column when the reason was determined. If that value has changed,
    the evidence is outdated.
    """

    stored: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Suspects:
    """Runs that may have ended silently, and the evidence for each process that vanished."""

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
    """Record the reported end of a process, or of the run if ``instance`` is None.

    Return the columns of the run to update; the result is empty if the run does not end with this process.
    """
    if state == "running":
        return _ends("running", "", None)
    if instance is None:
        return _ends(_kept_state(state, reason), reason, ended_at)
    _end_process(connection, run.id, instance, state, reason, ended_at)
    of_attempt = _of_newest_attempt(connection, run.id)
    others = all(process.instance != instance for process in of_attempt)
    if of_attempt and (others or any(process.end_state is None for process in of_attempt)):
        # Other processes are still running, or the process that ended belonged to an earlier attempt.
        return {}
    if not of_attempt:
        return _ends(_kept_state(state, reason), reason, ended_at)
    return _as_the_worst(of_attempt)


def _kept_state(state: str, reason: str) -> str:
    """Return the state to store for a reported end. A process ended by Ctrl-C was interrupted, not killed."""
    if state == "terminated" and reason in INTERRUPTED:
        return "interrupted"
    return STATES[state]


def how_bad(state: str | None, reason: str) -> int:
    """Return the rank of an end state; a run gets the state with the highest rank. Lack of memory ranks highest."""
    if _is_memory(reason):
        return len(_WORSE)
    return _WORSE.index(state) if state else -1


def _is_memory(reason: str) -> bool:
    return reason.split(":")[0] == MEMORY


def _as_the_worst(of_attempt: Sequence[Row[Any]]) -> dict[str, Any]:
    """Return the columns to update for a run whose processes have all ended."""
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
    """Store the end of a process; ``state`` is the reported end state."""
    same = and_(processes.c.run_id == run_id, processes.c.instance == instance)
    found = state in _FOUND
    if found:
        # This end was inferred from a recovered spool, so it must not replace an end that the process itself reported.
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
    """Return the main processes of the newest attempt; child processes may end at any time."""
    rows = connection.execute(select(processes).where(processes.c.run_id == run_id)).all()
    rows = [row for row in rows if row.role == _MAIN] or rows
    newest_attempt = max((row.attempt for row in rows), default=0)
    return [row for row in rows if row.attempt == newest_attempt]


def suspects(engine: Engine, silence: Silence, before: Suspects | None = None) -> Suspects:
    """Return the runs that `conclude` must check.

    Nothing is written here, because a process's last readings may take many rows, and a write transaction blocks all
    other writers of an SQLite database. ``before`` is the result of the last call, so that processes of runs without
    new data are not read again.
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
    # If no process of such a run has vanished, all of its processes may have ended.
    over = set(unheard) - {moment.run_id for moment in evidence}
    for moment, found in evidence.items():
        if found.reason is not None or moment.last_seen_at < silence.before:
            over.add(moment.run_id)
    return Suspects(silence, tuple(sorted(over)), evidence)


def conclude(connection: Connection, found: Suspects, run_ids: Iterable[str]) -> Concluded:
    """End silent runs that are still marked as running, and their processes. The caller commits."""
    over: list[str] = []
    vanished: list[Vanished] = []
    # All writers that lock several runs use this order, so they cannot deadlock. The database sorts the ids, because
    # its collation may differ from Python's.
    in_order = select(runs.c.id).where(runs.c.id.in_(list(run_ids))).order_by(runs.c.id)
    for run_id in connection.scalars(in_order).all():
        going = and_(runs.c.id == run_id, runs.c.state == "running")
        query = select(runs).where(going).with_for_update(key_share=True)
        run = connection.execute(query).first()
        if run is None:
            # The run has ended in the meantime.
            continue
        killed = _end_vanished(connection, run_id, found)
        values = _over(connection, run, found.silence)
        if values:
            over.append(run_id)
        else:
            vanished += killed
        if values or killed:
            revision = runs.c.revision + 1
            # There is no new data, so the run need not be examined again.
            examined = case((runs.c.examined == runs.c.revision, revision), else_=runs.c.examined)
            changed = update(runs).where(runs.c.id == run_id)
            connection.execute(changed.values(**values, revision=revision, examined=examined))
    return Concluded(tuple(over), tuple(vanished))


def _in_view_of_all(connection: Connection, silence: Silence) -> Silence:
    """Return the thresholds, with ``soon`` set to ``before`` if no run at all was seen since ``soon``.

    In that case the server may have been unreachable, so no end is inferred early.
    """
    heard = connection.scalar(select(func.max(runs.c.last_seen_at)))
    return (
        silence
        if heard is not None and heard >= silence.soon
        else replace(silence, soon=silence.before)
    )


def _end_vanished(connection: Connection, run_id: str, found: Suspects) -> list[Vanished]:
    """End the vanished processes of a run, and return the main processes that were killed."""
    killed = []
    for process in connection.execute(_vanished(found.silence.soon, run_id)).all():
        evidence = found.evidence.get(_moment(process))
        if evidence is None:
            # The process joined or sent data after the evidence was collected.
            continue
        # New data of other processes may reveal the reason.
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
    """Return the columns to update if all processes of a run have ended or the run is silent, otherwise {}."""
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
    """Return the query for processes that have not ended and were last seen before ``before``.

    Only the newest attempts of running runs are searched.
    """
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

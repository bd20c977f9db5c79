"""Registration: a process creates a run, joins it, or begins its next attempt.

The attempt that a process reports may be wrong: a process that is resumed on another machine cannot see earlier
attempts. So the server numbers attempts by the start times of their processes. Two processes of one rank belong to two
attempts; the ranks of one launch belong to the same attempt. If an earlier attempt is reported later, it is inserted
where it belongs, and the attempts that began after it are renumbered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    and_,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.snapshot import DEFAULT_UNIT, ProcessIdentity, RunHeader

from ...limits import MAX_DECLARED_PHASES, MAX_RUN_ATTEMPTS, MAX_RUN_PROCESSES, MAX_RUN_TAGS
from ..engine import writing
from ..ingest import clock_skew
from ..ingest.ingest_cache import MAIN, next_process
from ..ingest.project_quota import UNBOUNDED, Allowance, add_bytes, begin_run
from ..schema import attempts, processes, runs
from .runs import ENDED, locked

# All processes of a launch start within this time.
LAUNCH_SECONDS: Final = 600.0
# The highest attempt number that a process may report, which is the highest that the columns can store.
LAST_ATTEMPT: Final = 2**31 - 1
# A rank that starts after LAUNCH_SECONDS may join an attempt that was seen within this time.
ALIVE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Joined:
    """The result for a process that creates or joins a run."""

    id: str
    created: bool
    attempt: int


class OtherProject(Exception):
    """Raised when the run already exists in another project."""

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self.project = project


class OtherProcess(Exception):
    """Raised when the instance is already known with a different rank."""

    def __init__(self, instance: str, field: str, stored: int, sent: int) -> None:
        super().__init__(instance, field, stored, sent)
        self.instance, self.field, self.stored, self.sent = instance, field, stored, sent


class TooManyProcesses(Exception):
    """Raised when the run has reached its limit of processes."""


class TooManyAttempts(Exception):
    """Raised when the run has reached its limit of attempts."""


class NotAsResumed(Exception):
    """Raised when the process may not join because of the header's ``resume``."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The attempt number of a process. ``moves``: this number and all higher numbers must first be increased by one."""

    number: int
    moves: bool = False


def join_run(
    engine: Engine,
    header: RunHeader,
    now: float,
    process: ProcessIdentity | None = None,
    allowed: Allowance = UNBOUNDED,
    sent_at: float | None = None,
) -> Joined:
    """Create a run, or join an existing run as a new process or as a process that has already registered.

    A known process does not change a run that has ended, so uploading a spool twice has no further effect; a new
    process of the newest attempt sets the run to running. Without ``process``, joining an ended run begins its next
    attempt. ``sent_at``: the current time by the clock of the process, used to correct its start time. Raises
    OtherProject, OtherProcess, NotAsResumed, TooManyProcesses, TooManyAttempts and TooManyProjects; TooManyRuns and
    TooMuchStored if the daily quota ``allowed`` is exceeded.
    """
    skew = clock_skew.skew(sent_at, now)
    header = replace(header, started_at=clock_skew.moment(header.started_at, now, skew))
    if process is not None and process.role != MAIN:
        # A child process belongs to the run of its parent, whose registration may come later.
        header = replace(header, resume="allow")
    try:
        return _join(engine, header, now, process, skew, allowed)
    except IntegrityError:
        # Another rank created the run at the same time, so join it.
        return _join(engine, header, now, process, skew, allowed)


def _join(
    engine: Engine,
    header: RunHeader,
    now: float,
    process: ProcessIdentity | None,
    skew: float | None,
    allowed: Allowance,
) -> Joined:
    with writing(engine) as connection:
        row = locked(connection, header.id)
        if row is None:
            if header.resume == "must":
                raise NotAsResumed
            joined, changed = _begin(connection, header, process, now, allowed)
        elif row.project != header.project:
            raise OtherProject(row.project)
        elif process is None:
            if header.resume == "never":
                raise NotAsResumed
            joined, changed = _resume(connection, header, row, now)
        else:
            joined, changed = _join_as(connection, header, row, process, now)
        if process is not None:
            clock_skew.note(connection, header.id, process.instance, skew)
        if changed:
            size = len(msgspec.json.encode(changed))
            add_bytes(connection, header.project, size, now, allowed)
    return joined


# The newly written data, whose size counts towards the quota.
_Told = tuple[Any, ...]


def _begin(
    connection: Connection,
    header: RunHeader,
    process: ProcessIdentity | None,
    now: float,
    allowed: Allowance,
) -> tuple[Joined, _Told]:
    attempt = 1 if process is None else process.attempt
    _create(connection, header, attempt, now)
    begin_run(connection, header.project, now, allowed)
    if process is not None:
        _introduce(connection, header, process, attempt, now)
    # The environment is stored twice, with the run and with its attempt.
    return Joined(header.id, True, attempt), (header, header.environment, process)


def _join_as(
    connection: Connection, header: RunHeader, row: Row[Any], process: ProcessIdentity, now: float
) -> tuple[Joined, _Told]:
    known = _known(connection, header.id, process)
    if known is None:
        return _take_in(connection, header, row, process, now)
    if row.state not in ENDED:
        _note(connection, header, row, now)
    return Joined(header.id, False, known), ()


def place(
    process: ProcessIdentity,
    started_at: float,
    mains: Sequence[Any],
    begun: Mapping[int, float],
    *,
    live: bool,
) -> Placed:
    """Return the attempt of a new process.

    ``mains``: rank, attempt and started_at of the known main processes. ``begun``: the start time of each attempt.
    ``live``: the process has just started, and the run is sending data.

    1. The attempt lies between the attempts of the same rank's processes that started before and after the new process.
    2. The attempt in that range with the nearest start time is chosen if the process may belong to that launch, or if
       the process is live and the attempt is the newest.
    3. Otherwise, the process begins a new attempt.
    """
    own = [p for p in mains if p.rank == process.rank]
    before = [p for p in own if p.started_at <= started_at]
    if process.role != MAIN:
        newest = max(before, key=lambda p: p.started_at, default=None)
        return Placed(process.attempt if newest is None else newest.attempt)
    low = max((p.attempt for p in before), default=0) + 1
    high = min((p.attempt for p in own if p.started_at > started_at), default=None)
    if high is None and max(begun.values(), default=started_at) <= started_at + LAUNCH_SECONDS:
        # The process belongs to the newest launch, so its attempt number may include attempts that were never reported
        # to this server. The attempt number of a process that is reported late may be outdated, so it is ignored.
        low = max(low, process.attempt)
    between = [n for n in begun if low <= n and (high is None or n < high)]
    nearest = min(between, key=lambda n: abs(begun[n] - started_at), default=None)
    if nearest is not None:
        of_one_launch = abs(begun[nearest] - started_at) <= LAUNCH_SECONDS
        if of_one_launch or (live and nearest == max(begun)):
            return Placed(nearest)
    earlier = (n for n, at in begun.items() if at <= started_at and (high is None or n < high))
    number = max(low, max(earlier, default=0) + 1)
    return Placed(number, number in begun)


def _take_in(
    connection: Connection, header: RunHeader, row: Row[Any], process: ProcessIdentity, now: float
) -> tuple[Joined, _Told]:
    """Add a new process to the run."""
    mains = _mains(connection, header.id)
    begun = _begun(connection, header.id, mains)
    heard = row.state == "running" and now - row.last_seen_at <= ALIVE_SECONDS
    live = heard and now - header.started_at <= LAUNCH_SECONDS
    placed = place(process, header.started_at, mains, begun, live=live)
    is_first = not mains or (not placed.moves and placed.number == min(begun))
    if header.resume == "never" and not is_first:
        # Other ranks of the launch that has created the run may join it. A child may have been reported before them.
        raise NotAsResumed
    newest = max(placed.number, max(row.attempt, *begun, 0) + placed.moves)
    if newest > LAST_ATTEMPT:
        raise TooManyAttempts
    if placed.moves:
        _move_up(connection, header.id, placed.number)
    is_newest = placed.number == newest
    describes = process.role == MAIN and all(
        p.attempt + (placed.moves and p.attempt >= placed.number) != placed.number for p in mains
    )
    values: dict[str, Any] = {
        "attempt": newest, "started_at": min(row.started_at, header.started_at),
    }  # fmt: skip
    if is_newest and (process.role == MAIN or row.state not in ENDED):
        # A late upload of an earlier attempt, or a child process, does not revive an ended run.
        values |= {"state": "running", "reason": "", "ended_at": None, "end_inferred": False}
        values["last_seen_at"] = now
    if is_newest and (describes or newest > row.attempt):
        values["environment"] = _dump(header.environment)
    _introduce(connection, header, process, placed.number, now)
    anew = _describe(connection, header, placed.number, header.started_at, anew=describes)
    _note(connection, header, row, now, **values)
    return Joined(header.id, False, placed.number), (process, *_environments(header, values, anew))


def _environments(header: RunHeader, values: Mapping[str, Any], anew: bool) -> _Told:
    """Return the environment once for each row that stores it: the run's row and the attempt's row."""
    return (header.environment,) * (("environment" in values) + anew)


def _resume(
    connection: Connection, header: RunHeader, row: Row[Any], now: float
) -> tuple[Joined, _Told]:
    """Join the run without naming a process."""
    attempt = int(row.attempt) + (row.state in ENDED)
    if attempt > LAST_ATTEMPT:
        raise TooManyAttempts
    values: dict[str, Any] = {
        "attempt": attempt,
        "state": "running",
        "reason": "",
        "ended_at": None,
    }
    if attempt > row.attempt:
        values["environment"] = _dump(header.environment)
    _note(connection, header, row, now, **values, end_inferred=False, last_seen_at=now)
    anew = _describe(connection, header, attempt, now)
    return Joined(header.id, False, attempt), _environments(header, values, anew)


def _note(
    connection: Connection, header: RunHeader, row: Row[Any], now: float, **values: Any
) -> None:
    """Update the run's row from a header."""
    if row.state == "running":
        values.setdefault("last_seen_at", now)
    connection.execute(
        update(runs).where(runs.c.id == header.id).values(
            revision=runs.c.revision + 1,
            # A run that was counted in time units may begin to report a unit of its own, and the first generation may
            # be called an epoch.
            unit=header.unit if _is_open(row) else row.unit,
            total=row.total if header.total is None else header.total,
            phases=_dump(_union(msgspec.json.decode(row.phases), header.phases, MAX_DECLARED_PHASES)),
            tags=_dump(_union(msgspec.json.decode(row.tags), header.tags, MAX_RUN_TAGS)), **values,
        )
    )  # fmt: skip


def _is_open(row: Row[Any]) -> bool:
    """Return True if the program may still determine what its generations are called."""
    return row.unit in UNITS_OF_TIME or (row.unit == DEFAULT_UNIT and row.last_generation is None)


def _known(connection: Connection, run_id: str, process: ProcessIdentity) -> int | None:
    """Return the attempt of a process that has already joined, otherwise None. Raises OtherProcess."""
    same = and_(processes.c.run_id == run_id, processes.c.instance == process.instance)
    there = connection.execute(select(processes.c.rank, processes.c.attempt).where(same)).first()
    if there is None:
        return None
    if there.rank != process.rank:
        raise OtherProcess(process.instance, "rank", there.rank, process.rank)
    return int(there.attempt)


def _mains(connection: Connection, run_id: str) -> Sequence[Any]:
    columns = processes.c.rank, processes.c.attempt, processes.c.started_at
    query = select(*columns).where(processes.c.run_id == run_id, processes.c.role == MAIN)
    return list(connection.execute(query))


def _begun(connection: Connection, run_id: str, mains: Sequence[Any]) -> dict[int, float]:
    """Return the start time of the first process of each attempt."""
    query = select(attempts.c.number, attempts.c.started_at).where(attempts.c.run_id == run_id)
    begun = {row.number: row.started_at for row in connection.execute(query)}
    for process in mains:
        # If a process has sent batches but never registered, its attempt has no row.
        at = begun.get(process.attempt, process.started_at)
        begun[process.attempt] = min(at, process.started_at)
    return begun


def _move_up(connection: Connection, run_id: str, first: int) -> None:
    # A child's attempt is the number that it reported. The highest possible number cannot be incremented.
    among = processes.c.attempt.between(first, LAST_ATTEMPT - 1)
    later = and_(processes.c.run_id == run_id, among)
    connection.execute(update(processes).where(later).values(attempt=processes.c.attempt + 1))
    # Attempt numbers must be unique at all times, so renumber via negative numbers, which are otherwise unused.
    later = and_(attempts.c.run_id == run_id, attempts.c.number >= first)
    connection.execute(update(attempts).where(later).values(number=-attempts.c.number - 1))
    moved = and_(attempts.c.run_id == run_id, attempts.c.number < 0)
    connection.execute(update(attempts).where(moved).values(number=-attempts.c.number))


def _introduce(
    connection: Connection, header: RunHeader, process: ProcessIdentity, attempt: int, now: float
) -> None:
    """Insert the row of a joining process, so that the run does not end before this process does."""
    number = next_process(connection, header.id)
    if number > MAX_RUN_PROCESSES:
        raise TooManyProcesses
    connection.execute(
        insert(processes).values(
            run_id=header.id, id=number, instance=process.instance,
            rank=process.rank, role=process.role, pid=process.pid, host=process.host, attempt=attempt,
            started_at=header.started_at, last_seen_at=now,
        )
    )  # fmt: skip


def _create(connection: Connection, header: RunHeader, attempt: int, now: float) -> None:
    connection.execute(
        insert(runs).values(
            id=header.id, project=header.project, name=header.name, unit=header.unit, total=header.total,
            tags=_dump(list(dict.fromkeys(header.tags))), phases=_dump(header.phases),
            config=_dump(header.config), environment=_dump(header.environment),
            state="running", started_at=header.started_at, created_at=now, last_seen_at=now, revision=1,
            attempt=attempt,
        )
    )  # fmt: skip
    _describe(connection, header, attempt, header.started_at)


def _describe(
    connection: Connection, header: RunHeader, number: int, at: float, *, anew: bool = False
) -> bool:
    """Store the description of an attempt, and return True if it was written.

    The first process of an attempt describes it. ``anew``: the process is the attempt's first main process, and its
    description replaces the description of a child process that joined before it.
    """
    of_run = attempts.c.run_id == header.id
    same = and_(of_run, attempts.c.number == number)
    described = {"started_at": at, "environment": _dump(header.environment)}
    if connection.scalar(_how_many(same)):
        if anew:
            connection.execute(update(attempts).where(same).values(**described))
        return anew
    if (connection.scalar(_how_many(of_run)) or 0) >= MAX_RUN_ATTEMPTS:
        raise TooManyAttempts
    connection.execute(insert(attempts).values(run_id=header.id, number=number, **described))
    return True


def _how_many(which: ColumnElement[bool]) -> Select[int]:
    return select(func.count()).select_from(attempts).where(which)


def _union(there: Sequence[str], more: Sequence[str], most: int) -> list[str]:
    """Return up to ``most`` items of both sequences in order, without duplicates."""
    return list(dict.fromkeys((*there, *more)))[:most]


def _dump(value: Any) -> str:
    return msgspec.json.encode(value).decode()

"""The writer's in-memory cache of runs and processes, loaded from the tables on first use."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, RowMapping, func, insert, select, update

from leakline.snapshot import ProcessIdentity

from ...limits import MAX_RUN_SERIES as MAX_SERIES
from ..runs.runs import Sparkline
from ..schema import Key, batches, of, processes, removals, runs, series
from ..series import stored_numbers
from . import clock_skew
from .incoming_batch import Incoming

# The role of a process that is not a child.
MAIN: Final = "main"
# The memory of a child process counts only if the child was seen within this time.
CHILD_SECONDS: Final = 30.0
MAX_NUMBERED: Final = 64
# The shared mappings of series names to ids, the most recently used mapping last, and the lock for these mappings.
_LOCK: Final = threading.Lock()
_NUMBERED: Final[dict[tuple[tuple[str, int], ...], Mapping[str, int]]] = {}


class Intervals:
    """The stored sequence numbers of a process as sorted, disjoint ranges, both ends included.

    Almost always, this is a single range. Several ranges occur only if the client thinned its data or a batch arrived
    late.
    """

    def __init__(self, stretches: Iterable[tuple[int, int]] = ()) -> None:
        self._stretches: list[tuple[int, int]] = []
        for first, last in stretches:
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._stretches)

    def add(self, first: int, last: int) -> None:
        """Add a range, and merge it with adjacent and overlapping ranges."""
        at = bisect_right(self._stretches, (first, last))
        if at and self._stretches[at - 1][1] >= first - 1:
            at -= 1
            first = self._stretches[at][0]
        end = at
        while end < len(self._stretches) and self._stretches[end][0] <= last + 1:
            last = max(last, self._stretches[end][1])
            end += 1
        self._stretches[at:end] = [(first, last)]

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of a range that are not stored."""
        gaps = []
        at = bisect_right(self._stretches, (first, last))
        if at and self._stretches[at - 1][1] >= first:
            at -= 1
        for low, high in self._stretches[at:]:
            if low > last:
                break
            if low > first:
                gaps.append((first, low - 1))
            first = max(first, high + 1)
        if first <= last:
            gaps.append((first, last))
        return gaps


@dataclass(slots=True)
class ProcessState:
    id: int
    identity: ProcessIdentity
    known: Intervals
    waiting: int  # snapshots not sealed yet
    rss_bytes: int | None = None
    peak_bytes: int | None = None
    lost: dict[str, int] = field(default_factory=dict)
    newest_sequence: int = -1
    # When the process was last seen, by the server's clock.
    seen_at: float = 0.0
    # Batches received since the process was last sealed.
    waiting_batches: int = 0
    # Server clock minus the process's clock, as stored; None if unknown.
    skew: float | None = None


@dataclass(slots=True)
class RunState:
    id: str
    project: str
    # Series ids by name; the mapping may be shared with other runs (`numbered`).
    names: Mapping[str, int]
    phases: dict[str, None]
    sparkline: Sparkline
    first_generation: int | None
    last_generation: int | None
    processes: dict[str, ProcessState]
    # The values in the table when the row was last read or written. A run that was removed and started again has a
    # different `created_at`.
    attempt: int
    stored: int
    revision: int
    created_at: float
    # The total RSS of the main processes by attempt; None until it is first needed. Cached, because summing
    # up thousands of ranks for each batch is too expensive.
    _mains: dict[int, int] | None = None

    @property
    def size(self) -> int:
        """The size of the cached state in cache entries (see MAX_ENTRIES_IN_MEMORY)."""
        return 32 + len(self.names) + 16 * len(self.processes)

    @property
    def room(self) -> int:
        """The number of series that may still be added to the run."""
        return max(0, MAX_SERIES - len(self.names))

    def note_rss(self, process: ProcessState, rss_bytes: int) -> None:
        if self._mains is not None and process.identity.role == MAIN:
            attempt = process.identity.attempt
            change = rss_bytes - (process.rss_bytes or 0)
            self._mains[attempt] = self._mains.get(attempt, 0) + change
        process.rss_bytes = rss_bytes

    def bytes_of_others(self, process: ProcessState) -> int:
        """Return the total RSS in bytes of the other main processes in the attempt of ``process``.

        The sparkline in the list of runs shows the sum over all main processes of an attempt.
        """
        if self._mains is None:
            self._mains = defaultdict(int)
            for each in self.processes.values():
                if each.identity.role == MAIN:
                    self._mains[each.identity.attempt] += each.rss_bytes or 0
        return self._mains.get(process.identity.attempt, 0) - (process.rss_bytes or 0)

    def forget_sums(self) -> None:
        """Discard the cached sums after processes were reloaded."""
        self._mains = None

    def memory(self, now: float) -> dict[str, int | None]:
        """Return the newest attempt's total memory, by statement parameter. Children count only if seen recently."""
        newest = max((p.identity.attempt for p in self.processes.values()), default=1)
        alive = [
            p for p in self.processes.values()
            if p.identity.attempt == newest
            and (p.identity.role == MAIN or p.seen_at > now - CHILD_SECONDS)
        ]  # fmt: skip
        return {
            "b_rss": _sum(p.rss_bytes for p in alive),
            "b_peak": _sum(p.peak_bytes for p in alive),
        }


def numbered(names: Mapping[str, int]) -> Mapping[str, int]:
    """Return an equal mapping shared with other runs, because a mapping takes half of a run's cache space."""
    key = tuple(names.items())
    with _LOCK:
        shared = _NUMBERED.pop(key, names)
        _NUMBERED[key] = shared
        if len(_NUMBERED) > MAX_NUMBERED:
            del _NUMBERED[next(iter(_NUMBERED))]
    return shared


def _sum(values: Iterable[int | None]) -> int | None:
    present = [v for v in values if v is not None]
    return sum(present) if present else None


def new_process(connection: Connection, run: RunState, batch: Incoming) -> ProcessState:
    """Return the state of a process that is not in the cache. Insert its row if it has not registered."""
    who, times = batch.process, batch.columns.time.tolist()[:1]
    skew = clock_skew.skew_of(batch.columns, batch.received_at)
    same = (processes.c.run_id == run.id, processes.c.instance == who.instance)
    row = connection.execute(select(processes).where(*same)).mappings().first()
    if row is not None:
        known = dict(row)
        if known["clock_skew_seconds"] is not None:
            skew = known["clock_skew_seconds"]
        known["clock_skew_seconds"] = skew
        times = [clock_skew.moment(time, batch.received_at, skew) for time in times]
        began = {"started_at": min([row["started_at"], *times])}
        first = {"clock_skew_seconds": skew} | began
        connection.execute(update(processes).where(*same).values(**first))
        state = _load_process(connection, known)
        run.forget_sums()
    else:
        times = [clock_skew.moment(time, batch.received_at, skew) for time in times]
        statement = (
            insert(processes)
            .values(
                run_id=run.id,
                id=next_process(connection, run.id),
                instance=who.instance,
                rank=who.rank,
                role=who.role,
                pid=who.pid,
                host=who.host,
                attempt=who.attempt,
                started_at=times[0] if times else batch.received_at,
                last_seen_at=batch.received_at,
                clock_skew_seconds=skew,
            )
            .returning(processes.c.id)
        )
        number = int(connection.execute(statement).scalar_one())
        state = ProcessState(number, who, Intervals(), 0, skew=skew)
    run.processes[who.instance] = state
    return state


def next_process(connection: Connection, run_id: str) -> int:
    """Return the number for a new process of a run. The caller must have locked the run's row."""
    newest = select(func.max(processes.c.id)).where(processes.c.run_id == run_id)
    # Rows of a removed run with the same id may not have been purged yet.
    before = select(removals.c.processes).where(removals.c.run_id == run_id)
    there = connection.execute(select(newest.scalar_subquery(), before.scalar_subquery())).one()
    return max(number or 0 for number in there) + 1


def load_run(connection: Connection, run_id: str) -> RunState | None:
    row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().first()
    if row is None:
        return None
    state = _state(connection, row)
    b = batches.c
    counted = select(b.process_id, func.sum(b.count)).where(b.run_id == run_id)
    waiting = {n: int(count) for n, count in connection.execute(counted.group_by(b.process_id))}
    known: defaultdict[int, Intervals] = defaultdict(Intervals)
    for number, first, last in stored_numbers(connection, run_id):
        known[number].add(first, last)
    found = connection.execute(select(processes).where(processes.c.run_id == run_id)).mappings()
    for p in found.all():
        of_one = known[p["id"]], waiting.get(p["id"], 0)
        state.processes[p["instance"]] = _process(dict(p), *of_one)
    return state


def catch_up(connection: Connection, run: RunState) -> None:
    """Reload the data of a run that another server has changed. The caller must have locked the run's row."""
    row = connection.execute(select(runs).where(runs.c.id == run.id)).mappings().one()
    now = _state(connection, row, run.names)
    now.processes = run.processes
    revision, stored, attempt = run.revision, run.stored, run.attempt
    for name in RunState.__slots__:
        setattr(run, name, getattr(now, name))
    moved = select(processes).where(processes.c.run_id == run.id, processes.c.stored > stored)
    for p in connection.execute(moved).mappings().all():
        state = run.processes.get(p["instance"])
        since = -1 if state is None else revision
        run.processes[p["instance"]] = _load_process(connection, dict(p), state, since)
    if run.attempt != attempt:
        number_anew(connection, run, run.attempt)


def _state(
    connection: Connection, row: RowMapping, names: Mapping[str, int] | None = None
) -> RunState:
    """Return the state of a run without its processes. ``names``: known series ids, which are not read again."""
    names = names or {}
    newer = (
        select(series.c.name, series.c.id)
        .where(series.c.run_id == row["id"], series.c.id > max(names.values(), default=0))
        .order_by(series.c.id)
    )
    added = {sys.intern(name): number for name, number in connection.execute(newer).all()}
    return RunState(
        row["id"],
        row["project"],
        numbered({**names, **added}) if added else names,
        dict.fromkeys(msgspec.json.decode(row["phases_seen"])),
        Sparkline.from_json(row["sparkline"]),
        row["first_generation"],
        row["last_generation"],
        {},
        row["attempt"],
        row["stored"],
        row["revision"],
        row["created_at"],
    )


def number_anew(connection: Connection, run: RunState, attempt: int) -> None:
    """Reload the attempt number of each process; ``attempt`` is the run's newest attempt."""
    run.attempt = attempt
    run.forget_sums()
    columns = processes.c.instance, processes.c.attempt
    for row in connection.execute(select(*columns).where(processes.c.run_id == run.id)):
        process = run.processes.get(row.instance)
        if process is not None:
            process.identity = replace(process.identity, attempt=row.attempt)


def _load_process(
    connection: Connection,
    row: dict[str, Any],
    before: ProcessState | None = None,
    since: int = -1,
) -> ProcessState:
    """Load the state of a process. ``before``: its state at revision ``since``; if given, only newer data is read."""
    key = Key(row["run_id"], row["id"])
    waiting = connection.execute(
        select(func.coalesce(func.sum(batches.c.count), 0)).where(of(batches, key))
    ).scalar_one()
    known = Intervals() if before is None else before.known
    for _, first, last in stored_numbers(connection, *key, since):
        known.add(first, last)
    return _process(row, known, int(waiting))


def _process(row: Mapping[str, Any], known: Intervals, waiting: int) -> ProcessState:
    identity = ProcessIdentity(
        row["instance"], row["rank"], row["pid"], row["host"], row["role"], row["attempt"]
    )
    return ProcessState(
        row["id"],
        identity,
        known,
        waiting,
        row["rss_bytes"],
        row["peak_bytes"],
        msgspec.json.decode(row["lost"]),
        max((last for _, last in known), default=-1),
        row["last_seen_at"],
        skew=row["clock_skew_seconds"],
    )

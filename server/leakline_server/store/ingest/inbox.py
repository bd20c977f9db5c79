"""Accepting batches: each snapshot is stored durably and exactly once, even if it is sent again or to another server.

`Inbox.store` writes all waiting batches in the caller's transaction:

1. lock the rows of the runs, and reread the runs that another server has changed
2. find the run and process; a new process gets a row
3. determine which sequence numbers are new; snapshots already stored must have the same values, or the batch is refused
   as a contradiction
4. write the batches, new series names and details, and increment the revision of each affected run

The state of runs and processes is cached in memory and loaded from the tables on first use, so step 3 needs no query. A
run's ``stored`` counts the transactions that stored its batches; a process's ``stored`` is the run's count at the time
when the process's batches were last stored. If the cached count of a locked run equals the stored count, the cache is
current; otherwise the counts of its processes show which processes have changed. The cache is changed before the
transaction commits: after a failure, call `forget`.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    case,
    func,
    insert,
    null,
    or_,
    select,
    update,
)

from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.snapshot import DEFAULT_UNIT

from ...limits import MAX_LOST_REASONS, MAX_RUN_PROCESSES
from ..columns import compress
from ..details import keep_lines
from ..engine import Many
from ..maintenance.retention_policy import FOREVER, PerProject
from ..schema import BLOCK, Key, details, divided, processes, runs, series
from ..series import MIN_SNAPSHOTS, append, enough
from . import clock_skew, incoming_batch, wire_types
from .cardinality import fold
from .duplicates import contradiction
from .incoming_batch import (
    Accepted,
    BatchColumns,
    Incoming,
    OtherIdentity,
    Outcome,
    TooManyBytes,
    TooManyProcesses,
    UnknownRun,
)
from .ingest_cache import (
    MAIN,
    ProcessState,
    RunState,
    catch_up,
    load_run,
    new_process,
    number_anew,
    numbered,
)
from .project_quota import Intake, by_browsers, patience_seconds

# The capacity of the cache in entries of about 100 bytes, enough for some 17,000 runs with 65 series each. If more runs
# send data in turn, each batch reloads its run.
MAX_ENTRIES_IN_MEMORY: Final = 2_000_000
# Another server's clock may be ahead by up to this much. A time further ahead is ignored, because it was written before
# a clock was corrected.
OTHER_CLOCK_SECONDS: Final = 3_600.0


_Rows = tuple[int, int, int]


@dataclass(slots=True)
class _Plan:
    """The rows that one transaction writes."""

    batches: list[dict[str, Any]] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    series: list[dict[str, Any]] = field(default_factory=list)
    # The second item is the time of the newest batch, by the server's clock.
    runs: dict[str, tuple[RunState, float]] = field(default_factory=dict)
    processes: dict[Key, tuple[ProcessState, float]] = field(default_factory=dict)
    # Batches of this transaction, for detecting contradictions: they cannot be read from the database yet.
    bodies: dict[Key, list[tuple[int, BatchColumns]]] = field(default_factory=dict)
    # (project, rows before, rows after) for each batch sent with a browser token.
    by_browsers: list[tuple[str, _Rows, _Rows]] = field(default_factory=list)

    @property
    def rows(self) -> _Rows:
        """The numbers of planned rows: (batches, details, series)."""
        return len(self.batches), len(self.details), len(self.series)


class Inbox:
    """Stores batches. One thread must call all methods except `project_of` and `count_new_names`."""

    def __init__(self, bytes_per_day: PerProject = FOREVER) -> None:
        self._runs: OrderedDict[str, RunState] = OrderedDict()
        self._intake = Intake(bytes_per_day)
        # The cached size of each run at its last transaction, and the sum of these sizes.
        self._sizes: dict[str, int] = {}
        self._size = 0

    def project_of(self, run_id: str) -> str | None:
        """Return the project of a run, or None if the run is not in the cache."""
        known = self._runs.get(run_id)
        return None if known is None else known.project

    def count_new_names(self, batch: Incoming) -> int:
        """Return the number of series in the batch that are new to its run.

        If the run is not cached, all series count as new.
        """
        known = self._runs.get(batch.run_id)
        names = batch.columns.names()
        return len(names) - (0 if known is None else sum(map(known.names.__contains__, names)))

    def forget(self, run_ids: Iterable[str]) -> None:
        """Remove runs from the cache, for example because a failed transaction made their cached state wrong."""
        for run_id in run_ids:
            self._runs.pop(run_id, None)
            self._size -= self._sizes.pop(run_id, 0)

    def store(
        self, connection: Connection, waiting: Sequence[Incoming]
    ) -> tuple[list[Outcome], list[Key]]:
        """Store batches. Return (outcomes in the same order, processes with enough waiting batches to seal)."""
        plan = _Plan()
        self._lock(connection, {batch.run_id for batch in waiting if "\x00" not in batch.run_id})
        outcomes = [self._plan(connection, plan, batch) for batch in waiting]
        _write(connection, plan)
        if plan.batches:
            self._intake.add(connection, _sizes(plan), waiting[0].received_at)
        self._forget_the_oldest({batch.run_id for batch in waiting})
        ready = [
            key for key, (process, _) in plan.processes.items()
            if enough(process.waiting, process.waiting_batches)
        ]  # fmt: skip
        return outcomes, ready

    def _forget_the_oldest(self, grown: Iterable[str]) -> None:
        for run_id in grown:
            if run_id in self._runs:
                size = self._runs[run_id].size
                self._size += size - self._sizes.get(run_id, 0)
                self._sizes[run_id] = size
        while self._size > MAX_ENTRIES_IN_MEMORY and len(self._runs) > 1:
            self.forget([next(iter(self._runs))])

    def _lock(self, connection: Connection, run_ids: Iterable[str]) -> None:
        """Lock the rows of the runs until the end of the transaction, and bring the cache up to date."""
        there = set()
        for row in connection.execute(_LOCK, {"b_runs": sorted(run_ids)}).all():
            there.add(row.id)
            state = self._runs.get(row.id)
            if state is None or state.created_at != row.created_at:
                # The run is not in the cache, or the cached run was removed and a new run has its id.
                state = load_run(connection, row.id)
                assert state is not None
                self._runs[row.id] = state
            elif state.stored != row.stored:
                catch_up(connection, state)
            elif state.attempt != row.attempt:
                # Another attempt has begun, or an earlier attempt was reported late and changed the attempt numbers of
                # processes.
                number_anew(connection, state, row.attempt)
            state.revision = row.revision
            self._runs.move_to_end(row.id)
        self.forget(run_id for run_id in run_ids if run_id not in there)

    def sealed(self, key: Key, count: int) -> None:
        """Record that ``count`` snapshots of the process were sealed.

        If ``count`` is 0, nothing was sealed, and sealing is retried when more snapshots have arrived.
        """
        if key.run_id in self._runs:
            for process in self._runs[key.run_id].processes.values():
                if process.id == key.process_id:
                    process.waiting = max(0, process.waiting - count)
                    if not count and enough(process.waiting, process.waiting_batches):
                        process.waiting = BLOCK - MIN_SNAPSHOTS
                    process.waiting_batches = 0

    def _plan(self, connection: Connection, plan: _Plan, batch: Incoming) -> Outcome:
        run = self._runs.get(batch.run_id)
        if run is None or batch.project not in (None, run.project):
            return UnknownRun(batch.run_id)
        process = run.processes.get(batch.process.instance)
        if process is None:
            if len(run.processes) >= MAX_RUN_PROCESSES:
                return TooManyProcesses(run.id, MAX_RUN_PROCESSES)
            process = new_process(connection, run, batch)
        other = _other_identity(process, batch)
        if other is not None:
            return other
        last = batch.first_sequence + batch.count - 1
        gaps = process.known.missing(batch.first_sequence, last) if batch.count else []
        new = sum(high - low + 1 for low, high in gaps)
        if new < batch.count:
            unwritten = plan.bodies.get(Key(run.id, process.id), ())
            folded = replace(batch, columns=fold(run, batch.columns).columns)
            differs = contradiction(connection, run, process, folded, gaps, unwritten)
            if differs is not None:
                return differs
        if gaps:
            full = self._intake.limit_passed(
                connection, run.project, batch.received_at, batch.browser
            )
            if full is not None:
                wait = patience_seconds(batch.received_at)
                return TooManyBytes(run.project, full.limit, wait, full.browser)
        more_lost = _merge_lost(process.lost, batch.lost)
        if not gaps and not more_lost:
            # Without new data, do not update the run: uploading an old spool must not make it look alive.
            return Accepted(0)
        plan.runs[run.id] = (run, batch.received_at)
        plan.processes[Key(run.id, process.id)] = (process, batch.received_at)
        process.seen_at = max(process.seen_at, batch.received_at)
        before = plan.rows
        for gap in gaps:
            for low, high in divided(*gap):
                _plan_rows(plan, run, process, batch, low, high)
        if batch.browser:
            plan.by_browsers.append((run.project, before, plan.rows))
        return Accepted(new)


def _other_identity(process: ProcessState, batch: Incoming) -> OtherIdentity | None:
    """Return a refusal if the process is known with a different rank, otherwise None.

    A different attempt is accepted, because the server may know the right number (`run_registration.py`).
    """
    stored, sent = process.identity, batch.process
    if stored.rank != sent.rank:
        return OtherIdentity(sent.instance, "rank", stored.rank, sent.rank)
    return None


def _count(process: ProcessState, numbers: Mapping[str, int]) -> None:
    """Add the server's own counts, by reason, to the losses that the process has reported."""
    for reason, number in numbers.items():
        if number:
            process.lost[reason] = process.lost.get(reason, 0) + number


def _sizes(plan: _Plan) -> dict[str, int]:
    """Return the number of bytes to store for each project, and for each project's browser tokens."""
    found: dict[str, int] = {}
    for row in (*plan.batches, *plan.details, *plan.series):
        project = plan.runs[row["run_id"]][0].project
        found[project] = found.get(project, 0) + _size(row)
    for project, before, after in plan.by_browsers:
        added = zip((plan.batches, plan.details, plan.series), before, after, strict=True)
        size = sum(_size(row) for rows, first, end in added for row in rows[first:end])
        found[by_browsers(project)] = found.get(by_browsers(project), 0) + size
    return found


def _size(row: Mapping[str, Any]) -> int:
    """Return the size of a row in bytes: the size of its body or, for a series, of its name."""
    return len(row["body"]) if "body" in row else len(row["name"].encode())


def _merge_lost(known: dict[str, int], sent: Mapping[str, int]) -> bool:
    """Merge running totals. Return True if any total grew. Totals only grow, so a resent old batch changes nothing."""
    grew = False
    for reason, number in sent.items():
        if number > known.get(reason, -1) and (reason in known or len(known) < MAX_LOST_REASONS):
            known[reason] = number
            grew = True
    return grew


def _plan_rows(
    plan: _Plan, run: RunState, process: ProcessState, batch: Incoming, low: int, high: int
) -> None:
    columns = batch.columns
    if high - low + 1 < batch.count:
        columns = columns.slice(low - batch.first_sequence, high + 1 - batch.first_sequence)
    if process.skew is None:
        process.skew = clock_skew.skew_of(columns, batch.received_at)
    columns, righted = clock_skew.righted(columns, batch.received_at, process.skew)
    folded = fold(run, columns)
    _count(process, {**folded.counted, **righted})
    columns = _number_names(plan, run, process, folded.columns)
    plan.batches.append(
        {
            "run_id": run.id,
            "process_id": process.id,
            "first_sequence": low,
            "count": len(columns),
            "revision": run.revision + 1,
            "received_at": batch.received_at,
            "body": incoming_batch.pack(columns, run.names),
        }
    )
    plan.bodies.setdefault(Key(run.id, process.id), []).append((low, columns))
    if batch.details:
        plan.details += _detail_rows(run, process, batch, low, high)
    process.known.add(low, high)
    process.waiting += len(columns)
    process.waiting_batches += 1
    _observe(run, process, columns, high)


def _number_names(
    plan: _Plan, run: RunState, process: ProcessState, columns: BatchColumns
) -> BatchColumns:
    """Assign ids to new series; series beyond the limit are removed from the columns, and their values are counted."""
    names = columns.names()
    # All names are almost always known already, and this check for that case runs in C.
    if all(map(run.names.__contains__, names)):
        return columns
    new = [name for name in names if name not in run.names]
    kept, over = new[: run.room], new[run.room :]
    newest = max(run.names.values(), default=0)
    # Intern the names, because many runs use the same names.
    added = {sys.intern(name): newest + n for n, name in enumerate(kept, 1)}
    run.names = numbered({**run.names, **added})
    plan.series += [
        {"run_id": run.id, "id": number, "name": name} for name, number in added.items()
    ]
    if not over:
        return columns
    left_out = set(over)
    for name, column in columns.series():
        if name in left_out:
            values = len(column) if column.present is None else int(column.present.sum())
            _count(process, {"series_over_limit": values})
    return columns.without(left_out)


def _detail_rows(
    run: RunState, process: ProcessState, batch: Incoming, low: int, high: int
) -> Iterable[dict[str, Any]]:
    for kind, found in batch.details.items():
        rows = [row for row in found if low <= row.sequence <= high]
        if kind == "events":
            rows = clock_skew.righted_events(rows, batch.received_at, process.skew)
        # The censuses of each snapshot get a row of their own, because they are read one at a time.
        alone = groupby(sorted(rows, key=_sequence), _sequence) if kind == "census" else ()
        for of_row in [list(of_one) for _, of_one in alone] or ([rows] if rows else []):
            at = of_row[0].sequence - batch.first_sequence
            yield {
                "run_id": run.id,
                "process_id": process.id,
                "kind": kind,
                "sequence": of_row[0].sequence,
                "generation": batch.columns.generation[at],
                "revision": run.revision + 1,
                "body": compress(wire_types.encode(of_row)),
            }


_sequence: Final = attrgetter("sequence")


def _observe(
    run: RunState, process: ProcessState, columns: BatchColumns, last_sequence: int
) -> None:
    """Update the values that the list of runs shows, so that the list never has to read chunks."""
    generations = {g for g in columns.generation if g is not None}
    if generations:
        low, high = min(generations), max(generations)
        run.first_generation = (
            low if run.first_generation is None else min(low, run.first_generation)
        )
        run.last_generation = (
            high if run.last_generation is None else max(high, run.last_generation)
        )
    for phase in dict.fromkeys(columns.phase):
        if phase:
            run.phases.setdefault(phase)
    values = _present(columns, "process.rss_bytes")
    if values:
        if last_sequence > process.newest_sequence:
            run.note_rss(process, values[-1])
        peaks = _present(columns, "process.peak_bytes")
        process.peak_bytes = max(process.peak_bytes or 0, max(values), max(peaks, default=0))
        if process.identity.role == MAIN:
            others = run.bytes_of_others(process)
            run.sparkline.add([value + others for value in values])
    process.newest_sequence = max(process.newest_sequence, last_sequence)


def _present(columns: BatchColumns, name: str) -> list[int]:
    column = columns.numbers(name)
    if column is None:
        return []
    values = column.values if column.present is None else column.values[column.present]
    found: list[int] = values.astype(np.int64, copy=False).tolist()
    return found


def _write(connection: Connection, plan: _Plan) -> None:
    if not plan.runs:
        return
    if plan.series:
        _INSERT_SERIES(connection, plan.series)
    _TOUCH_RUN(connection, [_touched_run(run, now) for run, now in plan.runs.values()])
    touched = [
        _touched_process(key, plan.runs[key.run_id][0], *what)
        for key, what in plan.processes.items()
    ]
    _TOUCH_PROCESS(connection, touched)
    if plan.batches:
        append(connection, plan.batches)
    lines = [row for row in plan.details if row["kind"] == "log"]
    others = [row for row in plan.details if row["kind"] != "log"]
    if others:
        _INSERT_DETAILS(connection, others)
    if lines:
        keep_lines(connection, lines)


def _not_before(last: ColumnElement[float]) -> ColumnElement[float]:
    """Return the expression for the new `last_seen_at`: now, or the stored time if it is slightly ahead.

    A stored time that is ahead was written by another server whose clock is ahead; with an earlier time, that server
    would consider the run silent.
    """
    now: ColumnElement[float] = bindparam("b_now", type_=last.type)
    return case((last.between(now, now + OTHER_CLOCK_SECONDS), last), else_=now)


# Statements are built once, because building a statement costs more than executing it.
_LOCK: Final = (
    select(runs.c.id, runs.c.created_at, runs.c.stored, runs.c.revision, runs.c.attempt)
    .where(runs.c.id.in_(bindparam("b_runs", expanding=True)))
    # All writers that lock several rows use this order, so they cannot deadlock.
    .order_by(runs.c.id)
    .with_for_update(key_share=True)
)
_INSERT_SERIES: Final = Many(insert(series), as_arrays=True)
_INSERT_DETAILS: Final = Many(insert(details))
_IS_SILENT: Final = or_(runs.c.state == "silent", runs.c.end_inferred)
_WAS_SILENT: Final = or_(processes.c.end_state == "silent", processes.c.end_inferred)
_TOUCH_RUN: Final = Many(
    update(runs)
    .where(runs.c.id == bindparam("b_run"))
    .values(
        revision=runs.c.revision + 1,
        stored=runs.c.stored + 1,
        last_seen_at=_not_before(runs.c.last_seen_at),
        # New data revives a run only if its end was inferred: a finished run stays finished when its last batches are
        # late.
        state=case((_IS_SILENT, "running"), else_=runs.c.state),
        reason=case((_IS_SILENT, ""), else_=runs.c.reason),
        ended_at=case((_IS_SILENT, null()), else_=runs.c.ended_at),
        end_inferred=False,
        # A run that was counted in time units has reported generations. The verdict counts them from then on.
        unit=case(
            (
                or_(*(runs.c.unit == unit for unit in UNITS_OF_TIME)),
                func.coalesce(bindparam("b_unit", type_=runs.c.unit.type), runs.c.unit),
            ),
            else_=runs.c.unit,
        ),
        first_generation=bindparam("b_first"),
        last_generation=bindparam("b_last"),
        phases_seen=bindparam("b_phases"),
        sparkline=bindparam("b_spark"),
        rss_bytes=bindparam("b_rss"),
        peak_bytes=bindparam("b_peak"),
    )
)
_TOUCH_PROCESS: Final = Many(
    update(processes)
    .where(processes.c.run_id == bindparam("b_run"), processes.c.id == bindparam("b_process"))
    .values(
        stored=bindparam("b_stored"),
        last_seen_at=_not_before(processes.c.last_seen_at),
        end_state=case((_WAS_SILENT, null()), else_=processes.c.end_state),
        end_reason=case((_WAS_SILENT, ""), else_=processes.c.end_reason),
        ended_at=case((_WAS_SILENT, null()), else_=processes.c.ended_at),
        end_inferred=False,
        rss_bytes=bindparam("b_rss"),
        peak_bytes=bindparam("b_peak"),
        lost=bindparam("b_losses"),
        clock_skew_seconds=func.coalesce(
            processes.c.clock_skew_seconds,
            bindparam("b_skew", type_=processes.c.clock_skew_seconds.type),
        ),
    )
)


def _touched_run(run: RunState, now: float) -> dict[str, Any]:
    run.stored += 1
    run.revision += 1
    return {
        "b_run": run.id,
        "b_now": now,
        "b_unit": None if run.first_generation is None else DEFAULT_UNIT,
        "b_first": run.first_generation,
        "b_last": run.last_generation,
        "b_phases": _json(list(run.phases)),
        "b_spark": run.sparkline.to_json(),
        **run.memory(now),
    }


def _touched_process(key: Key, run: RunState, process: ProcessState, now: float) -> dict[str, Any]:
    return {
        "b_run": key.run_id,
        "b_process": key.process_id,
        # This transaction writes the same number for the run.
        "b_stored": run.stored,
        "b_now": now,
        "b_rss": process.rss_bytes,
        "b_peak": process.peak_bytes,
        "b_losses": _json(process.lost),
        "b_skew": process.skew,
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

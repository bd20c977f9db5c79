"""Accepting batches: one durable row each, exactly once, whatever is sent again.

`Inbox.store` takes everything that waits into the caller's one transaction:

1. find run and process; a process that is new gets its row
2. decide which sequence numbers are new; what is there already must say the same, or the batch is a contradiction
3. bring each touched run to its next revision, with its newest readings
4. write the batches, the new series names and the details

What is known of runs and processes is kept in memory and is built from the tables when it is first needed, so
step 2 costs no query. Nothing in memory is true until the transaction is: after a failure, call `forget`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, bindparam, case, insert, update

from . import wire
from .codec import compress
from .doubles import contradiction
from .incoming import Accepted, Incoming, OtherIdentity, Outcome, UnknownRun
from .known import ProcessState, RunState, load_run, new_process
from .tables import batches, details, processes, runs, series

MAX_PHASES_LISTED: Final = 64
MAX_LOST_REASONS: Final = 32
MAX_RUNS_IN_MEMORY: Final = 2_000


@dataclass(slots=True)
class _Plan:
    """What one transaction writes."""

    batches: list[tuple[RunState, dict[str, Any]]] = field(default_factory=list)
    details: list[tuple[RunState, dict[str, Any]]] = field(default_factory=list)
    series: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, tuple[RunState, float]] = field(default_factory=dict)
    processes: dict[int, tuple[ProcessState, float]] = field(default_factory=dict)
    # Batches of this very transaction, for comparing: they cannot be read back yet.
    bodies: dict[int, list[tuple[int, wire.Columns]]] = field(default_factory=dict)


class Inbox:
    """Used by one thread."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, RunState] = OrderedDict()

    def forget(self) -> None:
        """After a failed transaction: what was planned did not happen."""
        self._runs.clear()

    def store(self, connection: Connection, waiting: Iterable[Incoming]) -> list[Outcome]:
        plan = _Plan()
        outcomes = [self._plan(connection, plan, batch) for batch in waiting]
        _write(connection, plan)
        while len(self._runs) > MAX_RUNS_IN_MEMORY:
            self._runs.popitem(last=False)
        return outcomes

    def waiting(self, run_ids: Iterable[str]) -> dict[int, int]:
        """Process id -> snapshots that are not sealed, of these runs."""
        states = [self._runs[r] for r in run_ids if r in self._runs]
        return {p.id: p.waiting for state in states for p in state.processes.values()}

    def sealed(self, run_id: str, process_id: int, count: int) -> None:
        if run_id in self._runs:
            for process in self._runs[run_id].processes.values():
                if process.id == process_id:
                    process.waiting -= count

    def _plan(self, connection: Connection, plan: _Plan, batch: Incoming) -> Outcome:
        run = self._run(connection, batch.run_id)
        if run is None:
            return UnknownRun(batch.run_id)
        process = run.processes.get(batch.process.instance)
        if process is None:
            process = new_process(connection, run, batch)
        other = _other_identity(process, batch)
        if other is not None:
            return other
        last = batch.first_sequence + batch.count - 1
        gaps = process.known.missing(batch.first_sequence, last) if batch.count else []
        new = sum(high - low + 1 for low, high in gaps)
        if new < batch.count:
            unwritten = plan.bodies.get(process.id, ())
            differs = contradiction(connection, run, process, batch, gaps, unwritten)
            if differs is not None:
                return differs
        more_lost = _merge_lost(process.lost, batch.lost)
        if batch.count and not gaps and not more_lost:
            # Nothing new: an upload of an old spool must not make a run look alive.
            return Accepted(0)
        self._note(plan, run, process, batch)
        for low, high in gaps:
            _plan_rows(plan, run, process, batch, low, high)
        return Accepted(new)

    def _note(self, plan: _Plan, run: RunState, process: ProcessState, batch: Incoming) -> None:
        plan.runs[run.id] = (run, batch.received_at)
        plan.processes[process.id] = (process, batch.received_at)

    def _run(self, connection: Connection, run_id: str) -> RunState | None:
        state = self._runs.get(run_id)
        if state is None:
            state = load_run(connection, run_id)
            if state is None:
                return None
            self._runs[run_id] = state
        self._runs.move_to_end(run_id)
        return state


def _other_identity(process: ProcessState, batch: Incoming) -> OtherIdentity | None:
    """An instance is one process, which has one rank and one attempt: the first it named stand."""
    stored, sent = process.identity, batch.process
    if stored.rank != sent.rank:
        return OtherIdentity(sent.instance, "rank", stored.rank, sent.rank)
    if stored.attempt != sent.attempt:
        return OtherIdentity(sent.instance, "attempt", stored.attempt, sent.attempt)
    return None


def _merge_lost(known: dict[str, int], sent: Mapping[str, int]) -> bool:
    """Running totals only grow, so an old batch that is sent again takes nothing back. True: something grew."""
    grew = False
    for reason, number in sent.items():
        if number > known.get(reason, -1) and (reason in known or len(known) < MAX_LOST_REASONS):
            known[reason] = number
            grew = True
    return grew


def _plan_rows(
    plan: _Plan, run: RunState, process: ProcessState, batch: Incoming, low: int, high: int
) -> None:
    start, stop = low - batch.first_sequence, high + 1 - batch.first_sequence
    whole = stop - start == batch.count
    columns = batch.columns if whole else wire.slice_columns(batch.columns, start, stop)
    columns, changed = _fold_names(plan, run, process, columns)
    raw = batch.raw if whole and not changed else None
    body = wire.encode(wire.StoredBody(columns)) if raw is None else raw
    row = {
        "run_id": run.id,
        "process_id": process.id,
        "first_sequence": low,
        "count": stop - start,
        "received_at": batch.received_at,
        "body": compress(body),
    }
    plan.batches.append((run, row))
    plan.bodies.setdefault(process.id, []).append((low, columns))
    plan.details += [(run, d) for d in _detail_rows(run, process, batch, low, high)]
    process.known.add(low, high)
    process.waiting += stop - start
    _observe(run, process, columns, high)


def _fold_names(
    plan: _Plan, run: RunState, process: ProcessState, columns: wire.Columns
) -> tuple[wire.Columns, bool]:
    """Number the names that are new; past the bound they are left out, and counted. True: some were."""
    new = [name for name in columns.series if name not in run.names]
    kept, over = new[: run.room], new[run.room :]
    run.names.update(kept)
    plan.series += [{"run_id": run.id, "name": name} for name in kept]
    if over:
        # A copy: after a failure the batch is planned again, as it came.
        columns = wire.slice_columns(columns, 0, len(columns.time))
    for name in over:
        left_out = sum(v is not None for v in columns.series.pop(name))
        process.lost["series_over_limit"] = process.lost.get("series_over_limit", 0) + left_out
    return columns, bool(over)


def _detail_rows(
    run: RunState, process: ProcessState, batch: Incoming, low: int, high: int
) -> Iterable[dict[str, Any]]:
    for kind, found in batch.details.items():
        rows = [row for row in found if low <= row.sequence <= high]
        # Each census stands alone, because one of them is asked for at a time.
        for packed in [[row] for row in rows] if kind == "census" else [rows] if rows else []:
            at = packed[0].sequence - batch.first_sequence
            yield {
                "run_id": run.id,
                "process_id": process.id,
                "kind": kind,
                "sequence": packed[0].sequence,
                "generation": batch.columns.generation[at],
                "body": compress(wire.encode(packed)),
            }


def _observe(
    run: RunState, process: ProcessState, columns: wire.Columns, last_sequence: int
) -> None:
    """Keep what the list of runs shows, so that it never has to open a chunk."""
    generations = [g for g in columns.generation if g is not None]
    if generations:
        low, high = min(generations), max(generations)
        run.first_generation = (
            low if run.first_generation is None else min(low, run.first_generation)
        )
        run.last_generation = (
            high if run.last_generation is None else max(high, run.last_generation)
        )
    for phase in columns.phase:
        if phase and phase not in run.phases and len(run.phases) < MAX_PHASES_LISTED:
            run.phases[phase] = None
    resident = columns.series.get("process.rss_bytes", ())
    values = [int(v) for v in resident if v is not None]
    peaks = [int(v) for v in columns.series.get("process.peak_bytes", ()) if v is not None]
    if values:
        if last_sequence > process.newest_sequence:
            process.rss_bytes = values[-1]
        process.peak_bytes = max(process.peak_bytes or 0, *values, *peaks)
        if process.identity.rank == 0 and process.identity.role == "main":
            run.sparkline.add(values)
    process.newest_sequence = max(process.newest_sequence, last_sequence)


def _write(connection: Connection, plan: _Plan) -> None:
    if plan.series:
        connection.execute(_INSERT_SERIES, plan.series)
    revision = {run_id: _touch_run(connection, *what) for run_id, what in plan.runs.items()}
    if plan.processes:
        touched = [_process_values(process, now) for process, now in plan.processes.values()]
        connection.execute(_TOUCH_PROCESS, touched)
    for statement, planned in ((_INSERT_BATCHES, plan.batches), (_INSERT_DETAILS, plan.details)):
        if planned:
            rows = [row | {"revision": revision[run.id]} for run, row in planned]
            connection.execute(statement, rows)


# Statements are made once: making one costs more than executing it.
_INSERT_SERIES: Final = insert(series)
_INSERT_BATCHES: Final = insert(batches)
_INSERT_DETAILS: Final = insert(details)
_TOUCH_RUN: Final = (
    update(runs)
    .where(runs.c.id == bindparam("b_run"))
    .values(
        revision=runs.c.revision + 1,
        last_seen_at=bindparam("b_now"),
        # Only silence ends by a word; a finished run stays finished when its last batches come late.
        state=case((runs.c.state == "silent", "running"), else_=runs.c.state),
        first_generation=bindparam("b_first"),
        last_generation=bindparam("b_last"),
        phases_seen=bindparam("b_phases"),
        sparkline=bindparam("b_spark"),
        rss_bytes=bindparam("b_rss"),
        peak_bytes=bindparam("b_peak"),
    )
    .returning(runs.c.revision)
)
_TOUCH_PROCESS: Final = (
    update(processes)
    .where(processes.c.id == bindparam("b_process"))
    .values(
        last_seen_at=bindparam("b_now"),
        rss_bytes=bindparam("b_rss"),
        peak_bytes=bindparam("b_peak"),
        lost=bindparam("b_losses"),
    )
)


def _touch_run(connection: Connection, run: RunState, now: float) -> int:
    attempt = max((p.identity.attempt for p in run.processes.values()), default=1)
    alive = [p for p in run.processes.values() if p.identity.attempt == attempt]
    values = {
        "b_run": run.id,
        "b_now": now,
        "b_first": run.first_generation,
        "b_last": run.last_generation,
        "b_phases": _json(list(run.phases)),
        "b_spark": run.sparkline.to_json(),
        "b_rss": _sum(p.rss_bytes for p in alive),
        "b_peak": _sum(p.peak_bytes for p in alive),
    }
    return int(connection.execute(_TOUCH_RUN, values).scalar_one())


def _process_values(process: ProcessState, now: float) -> dict[str, Any]:
    return {
        "b_process": process.id,
        "b_now": now,
        "b_rss": process.rss_bytes,
        "b_peak": process.peak_bytes,
        "b_losses": _json(process.lost),
    }


def _sum(values: Iterable[int | None]) -> int | None:
    present = [v for v in values if v is not None]
    return sum(present) if present else None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Connection, bindparam, case, func, insert, select, update

from leakline.snapshot import ProcessIdentity

from . import wire
from .codec import compress
from .columns import COLUMNS, SEQUENCE, Stretch, read, series_ids, stretches
from .intervals import Intervals
from .sparkline import Sparkline
from .tables import batches, details, processes, runs, segments, series

MAX_SERIES: Final = 6_000
MAX_PHASES_LISTED: Final = 64
MAX_RUNS_IN_MEMORY: Final = 2_000

DetailKind = Literal["events", "large_objects", "census", "holders"]


@dataclass(frozen=True, slots=True)
class Incoming:
    """A checked batch. ``raw`` is its JSON as it came, when nothing had to be put right in it."""

    run_id: str
    process: ProcessIdentity
    first_sequence: int
    count: int
    columns: wire.Columns
    raw: bytes | None
    details: dict[DetailKind, Sequence[Any]]
    lost: dict[str, int]
    received_at: float


@dataclass(frozen=True, slots=True)
class Accepted:
    """``count`` snapshots were new. 0: all of it was there already."""

    count: int


@dataclass(frozen=True, slots=True)
class UnknownRun:
    run_id: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The snapshot with this number is stored with another value of ``field``."""

    sequence: int
    field: str
    stored: Any
    sent: Any


Outcome = Accepted | UnknownRun | Contradiction


@dataclass(slots=True)
class _ProcessState:
    id: int
    identity: ProcessIdentity
    known: Intervals
    waiting: int  # snapshots not sealed yet
    rss_bytes: int | None = None
    peak_bytes: int | None = None
    lost: dict[str, int] = field(default_factory=dict)
    newest_sequence: int = -1


@dataclass(slots=True)
class _RunState:
    id: str
    names: set[str]
    phases: dict[str, None]
    sparkline: Sparkline
    first_generation: int | None
    last_generation: int | None
    processes: dict[str, _ProcessState]


@dataclass(slots=True)
class _Plan:
    """What one transaction writes."""

    batches: list[tuple[_RunState, dict[str, Any]]] = field(default_factory=list)
    details: list[tuple[_RunState, dict[str, Any]]] = field(default_factory=list)
    series: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, tuple[_RunState, float]] = field(default_factory=dict)
    processes: dict[int, tuple[_ProcessState, float]] = field(default_factory=dict)
    # Batches of this very transaction, for comparing: they cannot be read back yet.
    bodies: dict[int, list[tuple[int, wire.Columns]]] = field(default_factory=dict)


class Inbox:
    """Used by one thread."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, _RunState] = OrderedDict()

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
            process = _new_process(connection, run, batch)
        last = batch.first_sequence + batch.count - 1
        gaps = process.known.missing(batch.first_sequence, last) if batch.count else []
        new = sum(high - low + 1 for low, high in gaps)
        if new < batch.count:
            contradiction = _contradiction(connection, plan, run, process, batch, gaps)
            if contradiction is not None:
                return contradiction
        self._note(plan, run, process, batch)
        for low, high in gaps:
            _plan_rows(plan, run, process, batch, low, high)
        return Accepted(new)

    def _note(self, plan: _Plan, run: _RunState, process: _ProcessState, batch: Incoming) -> None:
        process.lost.update(batch.lost)
        plan.runs[run.id] = (run, batch.received_at)
        plan.processes[process.id] = (process, batch.received_at)

    def _run(self, connection: Connection, run_id: str) -> _RunState | None:
        state = self._runs.get(run_id)
        if state is None:
            state = _load_run(connection, run_id)
            if state is None:
                return None
            self._runs[run_id] = state
        self._runs.move_to_end(run_id)
        return state


def _plan_rows(
    plan: _Plan, run: _RunState, process: _ProcessState, batch: Incoming, low: int, high: int
) -> None:
    start, stop = low - batch.first_sequence, high + 1 - batch.first_sequence
    whole = stop - start == batch.count
    columns = batch.columns if whole else wire.slice_columns(batch.columns, start, stop)
    changed = _fold_names(plan, run, process, columns)
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


def _fold_names(plan: _Plan, run: _RunState, process: _ProcessState, columns: wire.Columns) -> bool:
    """Number the names that are new; past the bound they are left out, and counted."""
    new = [name for name in columns.series if name not in run.names]
    room = MAX_SERIES - len(run.names)
    kept, over = new[:room], new[room:]
    run.names.update(kept)
    plan.series += [{"run_id": run.id, "name": name} for name in kept]
    for name in over:
        left_out = sum(v is not None for v in columns.series.pop(name))
        process.lost["series_over_limit"] = process.lost.get("series_over_limit", 0) + left_out
    return bool(over)


def _detail_rows(
    run: _RunState, process: _ProcessState, batch: Incoming, low: int, high: int
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
    run: _RunState, process: _ProcessState, columns: wire.Columns, last_sequence: int
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


def _touch_run(connection: Connection, run: _RunState, now: float) -> int:
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


def _process_values(process: _ProcessState, now: float) -> dict[str, Any]:
    return {
        "b_process": process.id,
        "b_now": now,
        "b_rss": process.rss_bytes,
        "b_peak": process.peak_bytes,
        "b_losses": _json(process.lost),
    }


def _contradiction(
    connection: Connection,
    plan: _Plan,
    run: _RunState,
    process: _ProcessState,
    batch: Incoming,
    gaps: Sequence[tuple[int, int]],
) -> Contradiction | None:
    """The first difference between what is stored and what was sent again.

    The client always sends the same numbers for a snapshot, so a difference means that two processes share an
    instance name, or that the spool of one was edited: neither may silently win.
    """
    sent = _rows(batch.first_sequence, batch.columns)
    for low, high in gaps:
        for sequence in range(low, high + 1):
            sent.pop(sequence, None)
    stored = _stored_rows(connection, plan, run, process, min(sent), max(sent))
    for sequence, fields in sent.items():
        there = stored.get(sequence, {})
        for name in fields.keys() | there.keys():
            # What was over the limit of series was never stored.
            over = name not in run.names and name not in _FIELDS and len(run.names) >= MAX_SERIES
            if fields.get(name) != there.get(name) and not over:
                return Contradiction(sequence, name, there.get(name), fields.get(name))
    return None


_FIELDS: Final = ("time", "monotonic", "generation", "phase", "label", "kind")


def _rows(first: int, columns: wire.Columns) -> dict[int, dict[str, Any]]:
    """Sequence number -> what is not null, by name."""
    named: dict[str, Sequence[Any]] = {
        **columns.series,
        "time": columns.time,
        "monotonic": columns.monotonic,
        "generation": columns.generation,
        "phase": columns.phase,
        "label": columns.label,
        "kind": wire.kinds_of(columns),
    }
    rows: dict[int, dict[str, Any]] = {first + i: {} for i in range(len(columns.time))}
    for name, values in named.items():
        for i, value in enumerate(values):
            if value is not None:
                rows[first + i][name] = value
    return rows


def _stored_rows(
    connection: Connection, plan: _Plan, run: _RunState, process: _ProcessState, low: int, high: int
) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for first, columns in plan.bodies.get(process.id, ()):
        if first <= high and first + len(columns.time) > low:
            found.update(_rows(first, columns))
    among = [s for s in stretches(connection, process.id) if s.first <= high and s.last >= low]
    if among:
        found.update(_read_rows(connection, run.id, process.id, among))
    return found


def _read_rows(
    connection: Connection, run_id: str, process_id: int, among: Sequence[Stretch]
) -> dict[int, dict[str, Any]]:
    names = {number: name for name, number in series_ids(connection, run_id).items()}
    labels = {**names, **dict(zip(COLUMNS[1:], _FIELDS, strict=True))}
    block = read(connection, process_id, tuple(labels), names, among)
    sequence = block.numbers(SEQUENCE).values.tolist()
    rows: dict[int, dict[str, Any]] = {s: {} for s in sequence}
    for number, name in labels.items():
        for at, value in zip(sequence, block.columns[number].to_list(), strict=True):
            if value is not None:
                rows[at][name] = value
    return rows


def _new_process(connection: Connection, run: _RunState, batch: Incoming) -> _ProcessState:
    """A process not seen since the run was loaded: it may have introduced itself without a batch."""
    who, times = batch.process, batch.columns.time
    skew = batch.received_at - times[-1] if times else None
    same = (processes.c.run_id == run.id, processes.c.instance == who.instance)
    row = connection.execute(select(processes).where(*same)).mappings().first()
    if row is not None:
        first = {"clock_skew_seconds": skew} | ({"started_at": times[0]} if times else {})
        connection.execute(update(processes).where(*same).values(**first))
        state = _load_process(connection, dict(row))
    else:
        statement = (
            insert(processes)
            .values(
                run_id=run.id,
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
        state = _ProcessState(number, who, Intervals(), 0)
    run.processes[who.instance] = state
    return state


def _load_run(connection: Connection, run_id: str) -> _RunState | None:
    row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().first()
    if row is None:
        return None
    state = _RunState(
        run_id,
        set(series_ids(connection, run_id)),
        dict.fromkeys(msgspec.json.decode(row["phases_seen"])),
        Sparkline.from_json(row["sparkline"]),
        row["first_generation"],
        row["last_generation"],
        {},
    )
    found = connection.execute(select(processes).where(processes.c.run_id == run_id)).mappings()
    for p in found.all():
        state.processes[p["instance"]] = _load_process(connection, dict(p))
    return state


def _load_process(connection: Connection, row: dict[str, Any]) -> _ProcessState:
    identity = ProcessIdentity(
        row["instance"], row["rank"], row["pid"], row["host"], row["role"], row["attempt"]
    )
    waiting = connection.execute(
        select(func.coalesce(func.sum(batches.c.count), 0)).where(batches.c.process_id == row["id"])
    ).scalar_one()
    known = Intervals(_stored_stretches(connection, row["id"]))
    return _ProcessState(
        row["id"],
        identity,
        known,
        int(waiting),
        row["rss_bytes"],
        row["peak_bytes"],
        msgspec.json.decode(row["lost"]),
        max((last for _, last in known), default=-1),
    )


def _stored_stretches(connection: Connection, process_id: int) -> Iterable[tuple[int, int]]:
    for first, count in connection.execute(
        select(batches.c.first_sequence, batches.c.count).where(batches.c.process_id == process_id)
    ):
        yield first, first + count - 1
    columns = segments.c.first_sequence, segments.c.last_sequence, segments.c.count
    holed = []
    for first, last, count in connection.execute(
        select(*columns).where(segments.c.process_id == process_id)
    ):
        if last - first + 1 == count:
            yield first, last
        else:
            holed.append(Stretch(first, last, count, sealed=True))
    if holed:
        holed.sort(key=lambda s: s.first)
        block = read(connection, process_id, (), {}, holed)
        yield from ((s, s) for s in block.numbers(SEQUENCE).values.tolist())


def _sum(values: Iterable[int | None]) -> int | None:
    present = [v for v in values if v is not None]
    return sum(present) if present else None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

"""What the writer knows of runs and processes without asking: built from the tables when it is first needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, func, insert, select, update

from leakline.snapshot import ProcessIdentity

from .columns import SEQUENCE, Stretch, read, series_ids
from .incoming import Incoming
from .intervals import Intervals
from .sparkline import Sparkline
from .tables import batches, processes, runs, segments

MAX_SERIES: Final = 6_000


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


@dataclass(slots=True)
class RunState:
    id: str
    names: set[str]
    phases: dict[str, None]
    sparkline: Sparkline
    first_generation: int | None
    last_generation: int | None
    processes: dict[str, ProcessState]

    @property
    def room(self) -> int:
        """How many series the run may still begin."""
        return max(0, MAX_SERIES - len(self.names))


def new_process(connection: Connection, run: RunState, batch: Incoming) -> ProcessState:
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
        state = ProcessState(number, who, Intervals(), 0)
    run.processes[who.instance] = state
    return state


def load_run(connection: Connection, run_id: str) -> RunState | None:
    row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().first()
    if row is None:
        return None
    state = RunState(
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


def _load_process(connection: Connection, row: dict[str, Any]) -> ProcessState:
    identity = ProcessIdentity(
        row["instance"], row["rank"], row["pid"], row["host"], row["role"], row["attempt"]
    )
    waiting = connection.execute(
        select(func.coalesce(func.sum(batches.c.count), 0)).where(batches.c.process_id == row["id"])
    ).scalar_one()
    known = Intervals(_stored_stretches(connection, row["id"]))
    return ProcessState(
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

"""Several servers take batches of the same processes: every snapshot is stored once, whoever took which of it."""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, func, select, update
from tests.server.stored import LATER

from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot, batch_to_wire
from leakline_server import ingest
from leakline_server.store import compaction, damage, last_readings, sealing
from leakline_server.store.columns import (
    SEQUENCE,
    TIME,
    Key,
    read,
    reading,
    series_ids,
    stretches,
)
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.inbox import Inbox
from leakline_server.store.incoming import Accepted, Incoming
from leakline_server.store.joining import join_run
from leakline_server.store.tables import batches, chunks, details, processes, runs, series


class Killed(Exception):
    """In place of a server that ends before its transaction does."""


@dataclass(frozen=True)
class Send:
    server: int
    rank: int
    first: int
    count: int
    killed: bool


@dataclass(frozen=True)
class Seal:
    rank: int


sends = st.builds(
    Send,
    server=st.integers(0, 1),
    rank=st.integers(0, 1),
    first=st.integers(0, 40),
    count=st.integers(1, 25),
    killed=st.integers(0, 9).map(lambda n: n == 0),
)
steps = st.lists(st.one_of(sends, sends, sends, st.builds(Seal, st.integers(0, 1))), max_size=25)
numbers = iter(range(10**6))


def new_run(engine: Engine) -> str:
    run_id = f"run-{next(numbers)}"
    header = RunHeader(
        id=run_id, project="p", name="n", unit="generation", total=None, started_at=1.0
    )
    join_run(engine, header, 1.0)
    return run_id


def snapshot(rank: int, sequence: int) -> Snapshot:
    """Every number has values of its own, and some have a series or an event that others have not."""
    samples: dict[str, int | float] = {
        "process.rss_bytes": 2**30 + 4096 * sequence + rank,
        "still.count": 7,
        f"type.T{sequence // 10}.count": sequence,
    }
    if sequence % 3 == 0:
        samples["some.seconds"] = sequence / 3
    time = 1000.0 + sequence
    events = (Event(sequence, time, "mark", f"m{sequence}"),) if sequence % 8 == 0 else ()
    return Snapshot(
        sequence, time, time, sequence // 4, "train", None, "phase_end", samples, events
    )


def batch(run_id: str, rank: int, first: int, count: int) -> Incoming:
    who = ProcessIdentity(f"p{rank}", rank, rank, "host")
    sent = batch_to_wire(Batch(who, tuple(snapshot(rank, first + i) for i in range(count))))
    return ingest.check(run_id, json.dumps(sent).encode(), 2_000.0)


def store(engine: Engine, inbox: Inbox, found: Sequence[Incoming], *, killed: bool = False) -> int:
    """How many snapshots were new."""
    try:
        with writing(engine) as connection:
            outcomes, _ = inbox.store(connection, found)
            if killed:
                raise Killed
    except Exception:
        inbox.forget({each.run_id for each in found})
        raise
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    assert len(accepted) == len(found), outcomes
    return sum(outcome.count for outcome in accepted)


def seal(engine: Engine, run_id: str, rank: int) -> None:
    number = process_number(engine, run_id, rank)
    if number is not None:
        with writing(engine) as connection:
            mine = batches.c.run_id == run_id, batches.c.process_id == number
            connection.execute(update(batches).where(*mine).values(received_at=0.0))
        sealing.seal_one(engine, Key(run_id, number), LATER)


def process_number(engine: Engine, run_id: str, rank: int) -> int | None:
    query = select(processes.c.id).where(
        processes.c.run_id == run_id, processes.c.instance == f"p{rank}"
    )
    with engine.connect() as connection:
        return connection.execute(query).scalar_one_or_none()


def check(engine: Engine, run_id: str, sent: dict[int, set[int]]) -> None:
    """Everything that was acknowledged is there once, with its values; and nothing else."""
    for rank, expected in sent.items():
        number = process_number(engine, run_id, rank)
        if not expected:
            continue
        assert number is not None
        with reading(engine) as connection:
            numbered = series_ids(connection, run_id)
            names = {n: name for name, n in numbered.items()}
            key = Key(run_id, number)
            block = read(connection, key, (TIME, *names), names, stretches(connection, key))
        assert block.numbers(SEQUENCE).values.tolist() == sorted(expected)
        values_of = {name: block.columns[n].to_list() for n, name in names.items()}
        for i, sequence in enumerate(sorted(expected)):
            there = {name: values[i] for name, values in values_of.items() if values[i] is not None}
            assert there == dict(snapshot(rank, sequence).samples)
        newest = max(expected)
        assert stored_bytes(engine, run_id, rank) == 2**30 + 4096 * newest + rank
    present = [2**30 + 4096 * max(s) + rank for rank, s in sent.items() if s]
    everything = sorted(set().union(*sent.values()))
    ends = (everything[0] // 4, everything[-1] // 4) if everything else (None, None)
    columns = runs.c.rss_bytes, runs.c.first_generation, runs.c.last_generation
    with engine.connect() as connection:
        row = connection.execute(select(*columns).where(runs.c.id == run_id)).one()
    assert tuple(row) == (sum(present) if present else None, *ends)
    with engine.connect() as connection:
        names_there = connection.scalars(select(series.c.id).where(series.c.run_id == run_id)).all()
        assert sorted(names_there) == list(range(1, len(names_there) + 1))


def stored_bytes(engine: Engine, run_id: str, rank: int) -> int | None:
    query = select(processes.c.rss_bytes).where(
        processes.c.run_id == run_id, processes.c.instance == f"p{rank}"
    )
    with engine.connect() as connection:
        return connection.execute(query).scalar_one()


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_every_snapshot_is_stored_once_whichever_server_takes_it(
    engine: Engine, did: list[Send | Seal]
) -> None:
    run_id = new_run(engine)
    servers = [Inbox(), Inbox()]
    sent: dict[int, set[int]] = {0: set(), 1: set()}
    for step in did:
        if isinstance(step, Seal):
            seal(engine, run_id, step.rank)
            continue
        found = batch(run_id, step.rank, step.first, step.count)
        if step.killed:
            with pytest.raises(Killed):
                store(engine, servers[step.server], [found], killed=True)
            servers[step.server] = Inbox()
        numbers_sent = set(range(step.first, step.first + step.count))
        accepted = store(engine, servers[step.server], [found])
        assert accepted == len(numbers_sent - sent[step.rank])
        sent[step.rank] |= numbers_sent
    check(engine, run_id, sent)


def test_servers_that_take_the_same_batches_at_once_store_them_once(engine: Engine) -> None:
    """Each in its own order and in its own pieces, as a proxy may bring retries."""
    run_ids = [new_run(engine) for _ in range(3)]
    together = threading.Barrier(3)

    def serve(seed: int) -> int:
        order, inbox, own = (
            random.Random(seed),
            Inbox(),
            open_engine(engine.url.render_as_string(hide_password=False)),
        )
        pieces = [
            (run_id, rank, first)
            for run_id in run_ids
            for rank in (0, 1)
            for first in range(0, 100, 10)
        ]
        order.shuffle(pieces)
        accepted = 0
        together.wait()
        for at in range(0, len(pieces), 4):
            group = [batch(r, rank, first, 13 + seed) for r, rank, first in pieces[at : at + 4]]
            accepted += store(own, inbox, group)
        own.dispose()
        return accepted

    with ThreadPoolExecutor(3) as pool:
        accepted = sum(pool.map(serve, range(3)))
    everything = set(range(105))
    assert accepted == len(run_ids) * 2 * len(everything)
    for run_id in run_ids:
        check(engine, run_id, {0: everything, 1: everything})


def test_an_event_is_stored_once(engine: Engine) -> None:
    run_id, servers = new_run(engine), [Inbox(), Inbox()]
    store(engine, servers[0], [batch(run_id, 0, 0, 20)])
    store(engine, servers[1], [batch(run_id, 0, 10, 20)])
    store(engine, servers[0], [batch(run_id, 0, 5, 30)])
    query = select(details.c.sequence).where(details.c.run_id == run_id)
    with engine.connect() as connection:
        assert sorted(connection.scalars(query)) == [0, 24, 32]


def test_a_server_reads_only_what_moved(engine: Engine) -> None:
    """A process of which the other server has taken nothing is not read again."""
    run_id, servers = new_run(engine), [Inbox(), Inbox()]
    store(engine, servers[0], [batch(run_id, 0, 0, 5), batch(run_id, 1, 0, 5)])
    store(engine, servers[1], [batch(run_id, 1, 5, 5)])
    kept = servers[0]._runs[run_id].processes["p0"]
    store(engine, servers[0], [batch(run_id, 1, 8, 4)])
    assert servers[0]._runs[run_id].processes["p0"] is kept
    check(engine, run_id, {0: set(range(5)), 1: set(range(12))})


def test_what_is_read_of_a_large_run_is_what_moved(engine: Engine) -> None:
    """Rows of processes and series, which a run may have thousands of."""
    run_id, servers = new_run(engine), [Inbox(), Inbox()]
    store(engine, servers[0], [batch(run_id, rank, 0, 30) for rank in range(12)])
    store(engine, servers[1], [batch(run_id, 3, 30, 5)])
    asked = []

    def ask(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if statement.startswith("SELECT") and re.search("FROM (processes|series)", statement):
            asked.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", ask)
    store(engine, servers[0], [batch(run_id, 5, 30, 5)])
    event.remove(engine, "before_cursor_execute", ask)
    with writing(engine) as connection:
        # What this transaction has changed since counts as well.
        rows = [connection.exec_driver_sql(*each).all() for each in asked]
    assert [len(found) for found in rows] == [1, 2]
    check(engine, run_id, {r: set(range(35 if r in (3, 5) else 30)) for r in range(12)})


def test_another_attempt_is_known_to_whoever_reads_what_moved(engine: Engine) -> None:
    run_id, servers = new_run(engine), [Inbox(), Inbox()]
    store(engine, servers[0], [batch(run_id, 0, 0, 5), batch(run_id, 1, 0, 5)])
    with writing(engine) as connection:
        connection.execute(update(runs).where(runs.c.id == run_id).values(attempt=2))
        first = processes.c.run_id == run_id, processes.c.instance == "p0"
        connection.execute(update(processes).where(*first).values(attempt=2))
    store(engine, servers[1], [batch(run_id, 1, 5, 5)])
    store(engine, servers[0], [batch(run_id, 1, 8, 4)])
    known = servers[0]._runs[run_id]
    attempts = {name: process.identity.attempt for name, process in known.processes.items()}
    assert (known.attempt, attempts) == (2, {"p0": 2, "p1": 1})


def test_the_numbers_of_a_run_and_its_processes_count_what_was_written(engine: Engine) -> None:
    run_id, inbox = new_run(engine), Inbox()
    store(engine, inbox, [batch(run_id, 0, 0, 5), batch(run_id, 0, 5, 5)])
    store(engine, inbox, [batch(run_id, 1, 0, 5)])
    store(engine, inbox, [batch(run_id, 0, 0, 10)])
    with engine.connect() as connection:
        of_run = select(runs.c.stored).where(runs.c.id == run_id)
        of_processes = select(processes.c.stored).where(processes.c.run_id == run_id)
        assert connection.execute(of_run).scalar_one() == 2
        assert connection.scalars(of_processes.order_by(processes.c.id)).all() == [1, 2]


def test_a_run_that_begins_anew_by_the_same_name_is_not_taken_for_the_old_one(
    engine: Engine,
) -> None:
    run_id, inbox = new_run(engine), Inbox()
    store(engine, inbox, [batch(run_id, 0, 0, 10)])
    with writing(engine) as connection:
        for table in (batches, series, processes, details):
            connection.execute(table.delete().where(table.c.run_id == run_id))
        connection.execute(runs.delete().where(runs.c.id == run_id))
    header = RunHeader(
        id=run_id, project="p", name="n", unit="generation", total=None, started_at=1.0
    )
    join_run(engine, header, 5.0)
    store(engine, Inbox(), [batch(run_id, 0, 90, 10)])
    assert store(engine, inbox, [batch(run_id, 0, 0, 10)]) == 10
    check(engine, run_id, {0: {*range(10), *range(90, 100)}})


def test_a_batch_that_contradicts_what_another_server_took_is_refused(engine: Engine) -> None:
    run_id, servers = new_run(engine), [Inbox(), Inbox()]
    store(engine, servers[0], [batch(run_id, 0, 0, 10)])
    store(engine, servers[1], [batch(run_id, 0, 10, 10)])
    other: Any = batch(run_id, 0, 12, 10)
    other.columns.time[:] += 1.0
    with writing(engine) as connection:
        ((outcome,), _) = servers[0].store(connection, [other])
    assert (outcome.sequence, outcome.field) == (12, "time")
    with engine.connect() as connection:
        total = select(func.sum(batches.c.count)).where(batches.c.run_id == run_id)
        assert connection.execute(total).scalar_one() == 20


@contextlib.contextmanager
def meanwhile(engine: Engine, do: Callable[[], object], *after: str) -> Iterator[None]:
    """After every question about these tables, somebody else does something before the next."""

    def asked(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if any(f"FROM {table}" in statement for table in after):
            do()

    event.listen(engine, "after_cursor_execute", asked)
    try:
        yield
    finally:
        event.remove(engine, "after_cursor_execute", asked)


@pytest.fixture
def other(engine: Engine) -> Iterator[Engine]:
    """The engine of another server on the same database."""
    found = open_engine(engine.url.render_as_string(hide_password=False))
    yield found
    found.dispose()


# On SQLite, who writes has one view, and is alone.
on_postgres = pytest.mark.parametrize(
    "database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


def with_gaps(engine: Engine, run_id: str, inbox: Inbox) -> set[int]:
    """Two segments with a gap after every ten snapshots."""
    sent: set[int] = set()
    for start in (0, 400):
        for first in range(start, start + 400, 20):
            store(engine, inbox, [batch(run_id, 0, first, 10)])
            sent |= set(range(first, first + 10))
        seal(engine, run_id, 0)
    return sent


@on_postgres
def test_what_is_compacted_while_a_server_loads_the_process_is_still_known(
    engine: Engine, other: Engine
) -> None:
    run_id = new_run(engine)
    sent, key = with_gaps(engine, run_id, Inbox()), Key(run_id, 1)
    moved = []
    with meanwhile(engine, lambda: moved.append(compaction.compact(other, key, LATER)), "segments"):
        assert store(engine, Inbox(), [batch(run_id, 0, first, 10) for first in (0, 780)]) == 0
    assert max(moved) == len(sent)
    assert damage.count(engine) == 0
    check(engine, run_id, {0: sent})


def to_be_moved_twice(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, *, sealed: bool
) -> tuple[str, Inbox]:
    """A run whose snapshots wait to be sealed and then compacted, or for that alone."""
    monkeypatch.setattr(sealing, "_is_block", lambda *_: False)
    run_id, inbox = new_run(engine), Inbox()
    if sealed:
        with_gaps(engine, run_id, inbox)
    else:
        store(engine, inbox, [batch(run_id, 0, 0, 100)])
    return run_id, inbox


@on_postgres
@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_moved_while_a_batch_is_compared_still_contradicts_it(
    sealed: bool, engine: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, inbox = to_be_moved_twice(engine, monkeypatch, sealed=sealed)
    key = Key(run_id, 1)
    wrong: Any = batch(run_id, 0, 4, 3)
    wrong.columns.time[:] += 1.0
    moved = []

    def move() -> None:
        if not sealed:
            seal(other, run_id, 0)
        moved.append(compaction.compact(other, key, LATER))

    with meanwhile(engine, move, "batches", "segments"), writing(engine) as connection:
        ((outcome,), _) = inbox.store(connection, [wrong])
    assert max(moved) > 0
    assert (outcome.sequence, outcome.field) == (4, "time")
    assert damage.count(engine) == 0


@on_postgres
@pytest.mark.parametrize("sealed", [False, True])
def test_last_readings_that_are_moved_while_they_are_read_are_read_once(
    sealed: bool, engine: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, _ = to_be_moved_twice(engine, monkeypatch, sealed=sealed)
    key = Key(run_id, 1)
    with engine.connect() as connection:
        process = connection.execute(select(processes).where(processes.c.run_id == run_id)).one()
        expected = last_readings._readings(connection, process)
    moved = []

    def move() -> None:
        if not sealed:
            seal(other, run_id, 0)
        moved.append(compaction.compact(other, key, LATER))

    with meanwhile(engine, move, "batches", "segments"), engine.connect() as connection:
        found = last_readings._readings(connection, process)
    assert max(moved) > 0
    assert [at for at, _ in found] == sorted({at for at, _ in found})
    assert found[-100:] == expected[-100:]
    assert damage.count(engine) == 0


@on_postgres
def test_of_all_that_waits_only_what_a_segment_takes_is_read_and_held(engine: Engine) -> None:
    run_id, inbox = new_run(engine), Inbox()
    for first in range(0, 2000, 200):
        store(engine, inbox, [batch(run_id, 0, first + i, 5) for i in range(0, 200, 5)])
    read_bodies = []

    def asked(_connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("SELECT") and "batches.body" in statement:
            read_bodies.append(cursor.rowcount)

    event.listen(engine, "after_cursor_execute", asked)
    assert sealing.seal_one(engine, Key(run_id, 1), 2.0).snapshots == 1_280
    event.remove(engine, "after_cursor_execute", asked)
    assert read_bodies == [256]
    check(engine, run_id, {0: set(range(2000))})


def test_a_process_whose_numbers_are_damaged_is_not_stored_twice(engine: Engine) -> None:
    run_id = new_run(engine)
    with_gaps(engine, run_id, Inbox())
    with writing(engine) as connection:
        numbers_of = chunks.c.run_id == run_id, chunks.c.series_id == SEQUENCE
        connection.execute(update(chunks).where(*numbers_of).values(blob=b"damaged"))
    assert store(engine, Inbox(), [batch(run_id, 0, first, 10) for first in (0, 780, 790)]) == 10
    assert damage.count(engine) == 2


def test_a_server_whose_clock_is_behind_makes_nothing_look_silent(engine: Engine) -> None:
    """To one whose clock is ahead. A clock that was far ahead and is set right is believed again."""
    run_id, ahead, behind = new_run(engine), Inbox(), Inbox()
    seen = (
        select(runs.c.last_seen_at, processes.c.last_seen_at)
        .join_from(runs, processes, processes.c.run_id == runs.c.id)
        .where(runs.c.id == run_id)
    )
    heard = []
    steps = (
        (ahead, 1_100.0),
        (behind, 1_000.0),
        (ahead, 1_101.0),
        (ahead, 9_000.0),
        (behind, 1_002.0),
    )
    for first, (inbox, now) in enumerate(steps):
        store(engine, inbox, [replace(batch(run_id, 0, first, 1), received_at=now)])
        with engine.connect() as connection:
            heard.append(tuple(connection.execute(seen).one()))
    assert heard == [(at, at) for at in (1_100.0, 1_100.0, 1_101.0, 9_000.0, 1_002.0)]

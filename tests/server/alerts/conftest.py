"""A receiver of webhooks: a real HTTP server on loopback that notes what it gets and answers as told."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert

from leakline_server.store.alerts.alert_rows import Alert
from leakline_server.store.engine import writing
from leakline_server.store.schema import incidents, runs

sys.path.insert(0, str(Path(__file__).parent))

NOW = 1_760_000_000.0


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


@dataclass
class Receiver:
    """``answers`` are given in order, the last one for ever: a status, or a status with headers."""

    url: str = ""
    answers: list[int | tuple[int, dict[str, str]]] = field(default_factory=lambda: [204])
    received: list[Received] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def note(self, received: Received) -> tuple[int, dict[str, str]]:
        with self.arrived:
            self.received.append(received)
            self.arrived.notify_all()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer if isinstance(answer, tuple) else (answer, {})

    def wait_for(self, count: int, seconds: float = 10) -> list[Received]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.received) >= count, seconds), (
                f"{len(self.received)} of {count} messages came within {seconds} s"
            )
            return list(self.received)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    noted = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, extra = noted.note(Received(self.path, headers, body, time.time()))
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    noted.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield noted
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def answering() -> Iterator[RawServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield RawServer(listener)


class RawServer:
    """A server that answers with exact bytes, as slowly as told, to one connection."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        self.sent_bytes = 0

    def send(self, *pieces: bytes, every_seconds: float = 0.0) -> None:
        threading.Thread(target=self._serve, args=(pieces, every_seconds), daemon=True).start()

    def _serve(self, pieces: tuple[bytes, ...], every_seconds: float) -> None:
        pause = threading.Event()
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(65_536)
            try:
                for piece in pieces:
                    connection.sendall(piece)
                    self.sent_bytes += len(piece)
                    pause.wait(every_seconds)
            except OSError:
                # The other side has had enough: what the test is about.
                return


@pytest.fixture
def alert(engine: Engine) -> Alert:
    """The first alert of an incident, whose run and incident are rows and which is none yet itself."""
    with writing(engine) as connection:
        connection.execute(
            insert(runs).values(
                id="r1", project="erl-trading", name="before-fix", unit="generation", state="running",
                started_at=NOW, created_at=NOW, last_seen_at=NOW,
            )
        )  # fmt: skip
        connection.execute(
            insert(incidents).values(
                id="i1", run_id="r1", fingerprint="f1", status="suspected", kind="objects", phase=None,
                summary="…", first_seen_at=NOW, changed_at=NOW, finding="{}",
            )
        )  # fmt: skip
    return Alert(
        "msg_1", "r1", "i1", "incident.suspected", NOW, {"title": "Leak", "link": "/runs/r1"}
    )

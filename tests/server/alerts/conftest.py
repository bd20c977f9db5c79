"""A webhook receiver on loopback, and the leak and the run that the alerts of these tests are about."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from sqlalchemy import Engine, Table, insert, select
from tests.server.stored import put_run

from leakline.analysis.results import Finding, Interval, Suspect, Verdict
from leakline_server.alerts.alert_payload import ExaminedRun
from leakline_server.store.alerts.alert_rows import Alert
from leakline_server.store.engine import writing
from leakline_server.store.schema import deliveries, incidents

NOW = 1_760_000_000.0
GIB = 2.0**30
FINDING = Finding(
    fingerprint="f1", status="confirmed", kind="objects", phase="evaluate_population", phase_share=0.97,
    suspects=(Suspect("trading.TradingEnvironment", "type", 16.0, 7.1 * GIB),),
    growth_bytes_per_generation=Interval(7.1 * GIB, 6.9 * GIB, 7.3 * GIB),
    started_at_generation=Interval(1, 1, 2), confidence=0.99,
)  # fmt: skip
VERDICT = Verdict("r1", "generation", 25, "confirmed", "…", None, None)
RUN = ExaminedRun("r1", "erl-trading", "before-fix", VERDICT, NOW)


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


@dataclass
class Receiver:
    """A receiver; ``answers`` are used in order and the last one repeats: a status, or a status with headers."""

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


HEAD = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def service(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Yield host and port of a service that reads each request and then calls ``answer``."""

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def rows(engine: Engine, table: Table = deliveries) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(table).order_by(table.c.id)))


@pytest.fixture
def alert(engine: Engine) -> Alert:
    """Return the first alert of an incident; the run and the incident are stored, the alert is not."""
    with writing(engine) as connection:
        at = dict.fromkeys(("started_at", "created_at", "last_seen_at"), NOW)
        put_run(connection, "r1", project="erl-trading", name="before-fix", state="running", **at)
        connection.execute(
            insert(incidents).values(
                id="i1", run_id="r1", fingerprint="f1", status="suspected", kind="objects", phase=None,
                summary="…", first_seen_at=NOW, changed_at=NOW, finding="{}",
            )
        )  # fmt: skip
    return Alert(
        "msg_1", "r1", "i1", "incident.suspected", NOW, {"title": "Leak", "link": "/runs/r1"}
    )

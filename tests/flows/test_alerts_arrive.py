"""Alerts arrive in time, at least once, and whatever else is broken: real servers on SQLite, real receivers."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from standardwebhooks import Webhook as Verifier
from tests.flows.conftest import Server

from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot, batch_to_wire
from leakline.transport.http_delivery import request_json
from leakline_server.alerts.sending.signing import make_secret

pytestmark = pytest.mark.flow

MIB: Final = 2**20
GENERATIONS: Final = 12
# Until something comes, on a machine that does other things as well; how soon it comes is asked of its time.
WAIT_SECONDS: Final = 90.0
URGENT: Final = ("incident.suspected", "incident.confirmed", "contract.violated", "oom.risk")


@dataclass(frozen=True)
class Received:
    """One POST. ``at`` is Unix seconds when its body had come."""

    at: float
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str) -> dict[str, Any]:
        return dict(Verifier(secret).verify(self.body, self.headers))


@dataclass
class Receiver:
    """A real HTTP server. ``before_answer`` runs when a message has come and is not answered yet."""

    before_answer: Callable[[], None] = lambda: None
    received: list[Received] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.server_port}/hook"

    def wait_for(
        self, enough: Callable[[list[Received]], object], seconds: float
    ) -> list[Received]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: enough(self.received), seconds), (
                f"not within {seconds} s: {[r.body[:80] for r in self.received]}"
            )
            return list(self.received)


@pytest.fixture
def receive() -> Iterator[Callable[..., Receiver]]:
    started: list[ThreadingHTTPServer] = []

    def start(before_answer: Callable[[], None] = lambda: None) -> Receiver:
        receiver = Receiver(before_answer)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                with receiver.arrived:
                    receiver.received.append(Received(time.time(), headers, body))
                    receiver.arrived.notify_all()
                receiver.before_answer()
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        # Who asked may be dead when the answer is ready.
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        receiver.server = server
        started.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return receiver

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def call(server: Server, method: str, path: str, body: Any = None) -> Any:
    return request_json(server.address, method, path, body)


def rows(server: Server, query: str, *values: object) -> list[tuple[Any, ...]]:
    """From the database file itself, also when the server is gone."""
    database = server.folder / ".leakline-server" / "leakline.db"
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
        return connection.execute(query, values).fetchall()


@pytest.fixture
def serve(start_server: Callable[..., Server], tmp_path: Path) -> Callable[..., Server]:
    return partial(start_server, tmp_path, LEAKLINE_WEBHOOK_ALLOW="127.0.0.0/8")


def train(server: Server, run: str, generations: int = GENERATIONS) -> None:
    """A run whose first phase keeps 16 objects and 100 MiB of every generation."""
    header = RunHeader(run, "erl-trading", run, "generation", 25, time.time() - 600)
    call(server, "POST", "/runs", asdict(header))
    snapshots = tuple(s for generation in range(generations) for s in of_generation(generation))
    process = ProcessIdentity(f"instance-{run}", pid=1, host="example")
    call(server, "POST", f"/runs/{run}/batches", batch_to_wire(Batch(process, snapshots)))


def of_generation(generation: int) -> list[Snapshot]:
    anon_bytes, alive = (150 + 100 * (generation + 1)) * MIB, 16 * (generation + 1)
    samples: dict[str, Any] = {
        "process.rss_bytes": anon_bytes + 50 * MIB,
        "process.anon_bytes": anon_bytes,
        "type.trading.TradingEnvironment.count": alive,
        "type.trading.TradingEnvironment.bytes": alive * 6 * MIB,
    }
    phase_accounts = {
        "phase.evaluate.bytes": 100 * MIB, "phase.train.bytes": 0, "phase.evaluate.executions": 1,
        "phase.train.executions": 1, "phase.between.bytes": 0, "phase.leakline.bytes": 0, "generation.seconds": 3.0,
    }  # fmt: skip
    moments: list[tuple[str | None, str, dict[str, Any]]] = [
        ("evaluate", "phase_end", samples),
        ("train", "phase_end", samples),
        (None, "generation_end", {**samples, **phase_accounts}),
    ]
    at = time.time() - 600
    return [
        Snapshot(3 * generation + i, at + 3 * generation + i, 3.0 * generation + i, generation, phase,
                 f"generation {generation}: {phase or 'end'}", kind, values)
        for i, (phase, kind, values) in enumerate(moments)
    ]  # fmt: skip


def incidents_of(received: list[Received]) -> set[str]:
    """The runs of which something urgent has come."""
    messages = [json.loads(r.body) for r in received]
    return {m["data"]["run"]["id"] for m in messages if m["type"] in URGENT}


@pytest.mark.long
def test_urgent_alerts_are_attempted_within_five_seconds_of_their_verdict(
    serve: Callable[..., Server], receive: Callable[..., Receiver]
) -> None:
    receiver, secret = receive(), make_secret()
    server = serve(LEAKLINE_WEBHOOK_URL=receiver.url, LEAKLINE_WEBHOOK_SECRET=secret)
    runs = {f"r{i}" for i in range(6)}
    for run in sorted(runs):
        train(server, run)
    received = receiver.wait_for(lambda so_far: incidents_of(so_far) == runs, WAIT_SECONDS)
    told_at = dict(rows(server, "SELECT id, created_at FROM alerts WHERE urgent"))
    first = {one.id: one for one in reversed(received)}
    urgent = {message_id: one for message_id, one in first.items() if message_id in told_at}
    assert incidents_of(list(urgent.values())) == runs
    waits = [one.at - told_at[message_id] for message_id, one in urgent.items()]
    assert max(waits) < 5, waits
    for one in received:
        assert one.verified(secret)["data"]["link"].startswith(server.address)


@pytest.mark.soak
def test_an_alert_whose_sender_is_killed_before_it_noted_the_answer_arrives_again(
    serve: Callable[..., Server], receive: Callable[..., Receiver], eventually: Any
) -> None:
    secret = make_secret()
    settings = {"LEAKLINE_WEBHOOK_SECRET": secret}
    killed = threading.Event()

    def kill_the_server_once() -> None:
        if not killed.is_set():
            killed.set()
            server.process.kill()
            server.process.wait(10)

    receiver = receive(kill_the_server_once)
    server = serve(LEAKLINE_WEBHOOK_URL=receiver.url, **settings)
    train(server, "r1")
    (before, *_) = receiver.wait_for(len, WAIT_SECONDS)
    eventually(lambda: server.process.poll() is not None)
    # What is left is the claim of a process that is no more, and no try.
    state = "SELECT state, attempts FROM deliveries WHERE alert_id = ?"
    assert rows(server, state, before.id) == [("claimed", 1)]
    assert rows(server, "SELECT count(*) FROM delivery_attempts") == [(0,)]

    again = serve(LEAKLINE_WEBHOOK_URL=receiver.url, **settings)
    received = receiver.wait_for(
        lambda so_far: [one.id for one in so_far].count(before.id) == 2, WAIT_SECONDS
    )
    first, second = (one for one in received if one.id == before.id)
    assert first.verified(secret)["data"]["incident"] == second.verified(secret)["data"]["incident"]
    assert first.headers["webhook-timestamp"] < second.headers["webhook-timestamp"]
    eventually(lambda: rows(again, state, before.id) == [("delivered", 2)])


@pytest.mark.long
def test_an_address_that_never_answers_delays_no_other_by_more_than_a_second(
    serve: Callable[..., Server], receive: Callable[..., Receiver]
) -> None:
    over = threading.Event()
    dead = receive(over.wait)
    alive = [receive(), receive()]
    server = serve()
    # The dead one first, where a queue would stop.
    secrets = [
        call(server, "POST", "/webhooks", {"url": one.url, "name": f"{i}"})["secret"]
        for i, one in enumerate([dead, *alive])
    ]
    runs = {f"r{i}" for i in range(4)}
    try:
        train(server, "r0")
        dead.wait_for(len, WAIT_SECONDS)
        # From here on a message hangs there, and another after it.
        for run in sorted(runs - {"r0"}):
            train(server, run)
        told = [
            one.wait_for(lambda so_far: incidents_of(so_far) == runs, WAIT_SECONDS) for one in alive
        ]
        hanging = len(dead.received)
    finally:
        over.set()
    told_at = dict(rows(server, "SELECT id, created_at FROM alerts"))
    for secret, received in zip(secrets[1:], told, strict=True):
        assert {one.verified(secret)["data"]["run"]["id"] for one in received} == runs
        waits = [one.at - told_at[one.id] for one in received]
        assert max(waits) <= 1, waits
    assert 1 <= hanging < len(told[0])

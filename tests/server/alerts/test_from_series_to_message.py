"""Walk two through a real server process: snapshots in, a signed message out, each change told once."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from standardwebhooks import Webhook as Verifier

from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot, batch_to_wire
from leakline_server.store.tables import deliveries

pytestmark = pytest.mark.flow

MIB = 2**20
PROCESS = ProcessIdentity("instance-1", pid=1, host="example")
TEN_MINUTES = 600.0


@dataclass
class Server:
    """`leakline serve` as its own process, on the database of ``engine``."""

    folder: Path
    settings: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LEAKLINE_")}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "leakline", "serve", "--port", str(self.port)],
                cwd=self.folder, env={**clean, **self.settings}, stdout=log, stderr=log,
            )  # fmt: skip
        _until_ready(self)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/v1{path}", method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)


@pytest.fixture
def server(engine: Engine, receiver: Any, tmp_path: Path) -> Iterator[Server]:
    running = Server(
        tmp_path,
        {
            "LEAKLINE_DATABASE_URL": engine.url.render_as_string(hide_password=False),
            "LEAKLINE_WEBHOOK_URL": receiver.url,
            "LEAKLINE_WEBHOOK_ALLOW": "127.0.0.0/8",
        },
    )
    running.start()
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.terminate()
        running.process.wait(10)


def test_a_leaking_series_becomes_a_signed_message_within_five_seconds_and_each_change_is_told_once(
    server: Server, receiver: Any, engine: Engine
) -> None:
    server.call("POST", "/runs", header())
    generation = train_until(server, "suspected")
    known_at = time.time()
    (suspected,) = receiver.wait_for(1)
    assert suspected.at - known_at < 5

    (secret,) = re.findall(r"whsec_\S+", server.log)
    told = Verifier(secret).verify(suspected.body, suspected.headers)
    data = told["data"]
    assert told["type"] == "incident.suspected"
    assert data["where"]["phase"] == "evaluate_population"
    assert data["what"]["suspects"][0]["name"] == "trading.TradingEnvironment"
    assert data["how_much"]["growth_bytes_per_generation"]["estimate"] == pytest.approx(
        100 * MIB, rel=0.1
    )
    assert data["when"]["started_at_generation"]["estimate"] <= 1
    assert data["advice"]
    assert data["forecast"]["risk"] == "none"
    assert data["link"] == f"http://127.0.0.1:{server.port}/runs/r1"

    # Killed and started again in the middle: nothing is told twice, and the secret stays. Killed before it is noted
    # that a message was taken, it would send that again, under the same id.
    _until(lambda: _states(engine) == ["delivered"])
    server.kill()
    server.start()
    train_until(server, "confirmed", generation + 1)
    _, confirmed = receiver.wait_for(2)
    told = Verifier(secret).verify(confirmed.body, confirmed.headers)
    assert told["type"] == "incident.confirmed"
    assert len(receiver.received) == 2
    assert server.log.count("whsec_") == 1


def test_a_message_nobody_took_before_the_server_was_killed_arrives_after_it_is_back(
    server: Server, receiver: Any, engine: Engine
) -> None:
    receiver.answers = [500, 204]
    server.call("POST", "/runs", header())
    train_until(server, "suspected")
    receiver.wait_for(1)
    _until(lambda: _states(engine) == ["pending"])
    server.kill()
    server.start()
    refused, taken = receiver.wait_for(2, seconds=40)
    assert refused.headers["webhook-id"] == taken.headers["webhook-id"]


def test_what_was_accepted_and_not_yet_examined_when_the_server_was_killed_is_told_after_it_is_back(
    server: Server, receiver: Any
) -> None:
    server.call("POST", "/runs", header())
    for generation in range(12):
        # All but the first are accepted sooner than the run may be examined again.
        server.call("POST", "/runs/r1/batches", batch(generation))
    server.kill()
    server.start()
    receiver.wait_for(1)


def test_a_healthy_series_is_not_told(server: Server, receiver: Any) -> None:
    server.call("POST", "/runs", header())
    for generation in range(12):
        server.call("POST", "/runs/r1/batches", batch(generation, growth_bytes=0, count=0))
    _until(lambda: server.call("GET", "/runs/r1/verdict")["generations"] == 12)
    assert server.call("GET", "/runs/r1/verdict")["status"] == "ok"
    assert receiver.received == []


def train_until(server: Server, status: str, first_generation: int = 0) -> int:
    """Send generation after generation until the verdict has this status; the last one sent."""
    for generation in range(first_generation, 40):
        server.call("POST", "/runs/r1/batches", batch(generation))
        seen = generation + 1
        _until(lambda seen=seen: server.call("GET", "/runs/r1/verdict")["generations"] == seen)
        if server.call("GET", "/runs/r1/verdict")["status"] == status:
            return generation
    raise AssertionError(f"never {status}")


def header() -> dict[str, Any]:
    started_at = time.time() - TEN_MINUTES
    return asdict(RunHeader("r1", "erl-trading", "before-fix", "generation", 25, started_at))


def batch(generation: int, growth_bytes: int = 100 * MIB, count: int = 16) -> dict[str, Any]:
    """The ends of two phases and of the generation; the first phase keeps what grows."""
    anon_bytes = 150 * MIB + (generation + 1) * growth_bytes
    alive = (generation + 1) * count
    samples = {
        "process.rss_bytes": anon_bytes + 50 * MIB,
        "process.anon_bytes": anon_bytes,
        "type.trading.TradingEnvironment.count": alive,
        "type.trading.TradingEnvironment.bytes": alive * 6 * MIB,
    }
    books = {
        "phase.evaluate_population.bytes": growth_bytes, "phase.train_population.bytes": 0,
        "phase.evaluate_population.executions": 1, "phase.train_population.executions": 1,
        "phase.between.bytes": 0, "phase.leakline.bytes": 0, "generation.seconds": 3.0,
    }  # fmt: skip
    at = [
        ("evaluate_population", "phase_end", samples),
        ("train_population", "phase_end", samples),
        (None, "generation_end", {**samples, **books}),
    ]
    started = time.time() - TEN_MINUTES
    snapshots = tuple(
        Snapshot(3 * generation + i, started + 3 * generation + i, 3.0 * generation + i, generation, phase,
                 f"generation {generation}: after {phase}" if phase else f"generation {generation}: end", kind, values)
        for i, (phase, kind, values) in enumerate(at)
    )  # fmt: skip
    return batch_to_wire(Batch(PROCESS, snapshots))


def _states(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(deliveries.c.state)))


def _until_ready(server: Server) -> None:
    def ready() -> bool:
        assert server.process is not None
        assert server.process.poll() is None, server.log
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/readyz", timeout=5):
                return True
        except OSError:
            return False

    _until(ready)


def _until(holds: Any, seconds: float = 30) -> None:
    waiting, deadline = threading.Event(), time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        waiting.wait(0.05)

"""Count the files and Python calls that a phase end, a batch, an examination and a message take.

    make bench-flows                  prints the table, then the targets
    make bench-flows CHECK=1          exits with 1 when a path exceeds its target
    BENCH_ARGS="--json FILE --markdown FILE"

Counts, not times: they differ little between machines. A small leaking training sends to a server in this process;
the calls of each thread are counted separately, after everything has been called a few times. A file is part of the
path of a reading when its functions are called at least half as often as there are readings. Files of probes are left
out: each probe is one. The examined run is generated and always the same: sixty series, six snapshots in each
generation, one leak.
"""

from __future__ import annotations

import http.server
import os
import platform
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, ClassVar, Final

import uvicorn
from benchmarks.detection.soak import recorded
from benchmarks.program import Program
from benchmarks.server.load import Failed
from benchmarks.server.rows import Figure, Line, Part

import leakline
from leakline.snapshot import (
    CONTENT_TYPE,
    Batch,
    ProcessIdentity,
    RunHeader,
    Snapshot,
    batch_to_bytes,
)
from leakline.transport.batching import SNAPSHOTS_PER_BATCH
from leakline.transport.http_delivery import Delivery, accepted_body, pack, request_json
from leakline.transport.sender import announcement
from leakline_server.app import create_app
from leakline_server.client_connections import Connection
from leakline_server.config import Config
from leakline_server.store import leases
from leakline_server.store.engine import Engine
from leakline_server.workers.examination_worker import Examiner, Wakes

from .counting import Calls, Count

GENERATIONS: Final = 48
# Generations that are not counted, so that every function has been called once.
STARTED_AFTER: Final = 8
PHASES: Final = ("collect", "train", "evaluate")
# Pause after each phase: without it, one thread would take many readings at the same time.
PAUSE_SECONDS: Final = 0.03
PATIENCE_SECONDS: Final = 60.0
LOOP: Final = "event loop"
MAIN: Final = "MainThread"
KEPT: Final = list["Kept"]()


class Kept:
    """The class that the training leaks."""

    def __init__(self, number: int) -> None:
        self.numbers = [float(number)] * 1_000


class _Receiver(http.server.BaseHTTPRequestHandler):
    taken: ClassVar[int] = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()
        type(self).taken += 1

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


@dataclass(frozen=True, slots=True)
class CodePath:
    """The calls of one thread for ``units`` of the same work. ``most_files`` and ``most_calls`` are the targets."""

    name: str
    count: Count
    units: int
    most_files: int
    most_calls: int | None = None

    def line(self) -> Line:
        files, calls = len(self.count.files(self.units)), self.count.calls / self.units
        return Line(self.name, {"files": files, "calls": calls})

    def figures(self) -> Iterator[Figure]:
        yield Figure(f"files: {self.name}", self.most_files, len(self.count.files(self.units)))
        if self.most_calls is not None:
            yield Figure(f"calls: {self.name}", self.most_calls, self.count.calls / self.units)


@contextmanager
def _receiving() -> Iterator[http.server.ThreadingHTTPServer]:
    """Run the server that receives messages."""
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    threading.Thread(target=receiver.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        receiver.server_close()


@contextmanager
def _serving(folder: Path, receiver: int) -> Iterator[tuple[Engine, str]]:
    url, hook = f"sqlite:///{folder}/flows.db", f"http://127.0.0.1:{receiver}/"
    app = create_app(
        Config(database_url=url, webhook_url=hook, webhook_allow=(ip_network("127.0.0.1/32"),))
    )
    with socket.create_server(("127.0.0.1", 0)) as opened:
        settings = uvicorn.Config(app, log_level="error", access_log=False, ws="none", http=Connection)  # fmt: skip
        server = uvicorn.Server(settings)
        given = {"sockets": [opened]}
        loop = threading.Thread(target=server.run, kwargs=given, name=LOOP, daemon=True)
        loop.start()
        _until(lambda: server.started, "the server does not start")
        try:
            yield app.state.services.engine, f"http://127.0.0.1:{opened.getsockname()[1]}"
        finally:
            server.should_exit = True
            loop.join(PATIENCE_SECONDS)


def _until(holds: Callable[[], Any], otherwise: str) -> None:
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(otherwise)
        pause.wait(0.02)


def _train(run: leakline.Run, generations: range) -> None:
    for number in generations:
        with run.generation(number):
            for phase in PHASES:
                with run.phase(phase):
                    KEPT.extend(Kept(number) for _ in range(40))
                time.sleep(PAUSE_SECONDS)


def _sent(address: str) -> str:
    """Send a generated run and return its id."""
    history = recorded(GENERATIONS)
    (process,) = history.processes
    identity = ProcessIdentity(process.instance, 0, os.getpid(), "bench", "main", 1)
    header = RunHeader(
        history.run, "flows", history.run, history.unit, GENERATIONS, process.time[0]
    )
    request_json(address, "POST", "/runs", announcement(header, identity))
    snapshots = tuple(
        Snapshot(
            i, process.time[i], process.monotonic[i], process.generation[i], process.phase[i], "", process.kind[i],
            {name: value for name, column in process.series.items() if (value := column[i]) is not None},
        )
        for i in range(len(process))
    )  # fmt: skip
    delivery = Delivery(address)
    for first in range(0, len(snapshots), SNAPSHOTS_PER_BATCH):
        batch = Batch(identity, snapshots[first : first + SNAPSHOTS_PER_BATCH])
        body = pack(batch_to_bytes(batch), CONTENT_TYPE)
        accepted_body(delivery.request("POST", f"/runs/{history.run}/batches", body), address)
    return history.run


def _paths() -> Iterator[CodePath]:
    calls, examining = Calls(), Calls()
    with tempfile.TemporaryDirectory() as name:
        with (
            calls.watch(),
            _receiving() as receiver,
            _serving(Path(name), receiver.server_port) as (engine, address),
        ):
            run = leakline.init(
                "flows", name="flows", server=address, mode="online", quiet=True, directory=name
            )
            _train(run, range(STARTED_AFTER))
            with calls.counted():
                _train(run, range(STARTED_AFTER, GENERATIONS))
            of, delivering = calls.take(), _Receiver.taken
            with calls.counted():
                run.finish()
                _until(lambda: _Receiver.taken > delivering, "no message arrives")
                time.sleep(PAUSE_SECONDS)
                messages = _Receiver.taken - delivering
            made_up = _sent(address)
            _until(lambda: _is_examined(engine, made_up), "the server does not examine the run")
        # The examiner of the server is idle now; nothing is cached from its examination.
        with examining.watch(), examining.counted():
            Examiner(engine, PATIENCE_SECONDS, Wakes(lambda run: None, lambda: None)).examine(
                made_up
            )
    ends = (GENERATIONS - STARTED_AFTER) * (len(PHASES) + 1)
    sent = of["leakline-sender"].of("sender.py", "_send")
    yield CodePath("a phase end, training thread", of[MAIN], ends, 8)
    yield CodePath("a snapshot, recorder thread", of["leakline-recorder"], ends, 9)
    yield CodePath("a batch, sender thread", of["leakline-sender"], sent, 8)
    yield CodePath("a batch, the server's event loop", of[LOOP], sent, 8)
    yield CodePath("a batch, the server's writer thread", of["leakline-writer"], sent, 10)
    yield CodePath(
        f"an examination of {GENERATIONS} generations",
        examining.take()[MAIN],
        1,
        40,
        most_calls=50_000,
    )
    yield CodePath(
        "a message, the thread that delivers it", calls.take()["leakline-deliver-1"], messages, 10
    )


def _is_examined(engine: Engine, run: str) -> bool:
    found = leases.examined(engine, run)
    return found is not None and 0 < found.revision <= found.examined


def measure() -> list[Part]:
    paths = list(_paths())
    return [
        Part(
            "files and Python calls per path; probes count as calls only",
            [path.line() for path in paths],
            [figure for path in paths for figure in path.figures()],
        )
    ]


PROGRAM: Final = Program("flows", __doc__, {"paths": measure}, shortened=False)


def main() -> int:
    return PROGRAM.run(f"{platform.python_implementation()} {platform.python_version()}")


if __name__ == "__main__":
    sys.exit(main())

"""A server under its own client and under load: a fixed rate of snapshots, with response times and memory."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil

# Per snapshot, as in C11 of our reliability figures.
TYPES: Final = 40
PER_BATCH: Final = 10
RUNS: Final = 10
SELF: Final = "leakline-itself"


@dataclass
class Figures:
    """Seconds and time of each response; (time, resident bytes) of the server and of its analysis process."""

    answers: list[tuple[float, float]] = field(default_factory=list)
    resident: list[tuple[float, float]] = field(default_factory=list)
    analysis: list[tuple[float, float]] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    def p99(self, since: float = 0.0) -> float:
        seconds = sorted(took for at, took in self.answers if at >= since)
        return seconds[int(len(seconds) * 0.99)]

    def snapshots_a_second(self) -> float:
        at = sorted(at for at, _ in self.answers)
        return (len(at) - 1) * PER_BATCH / (at[-1] - at[0])


def median_between(resident: list[tuple[float, float]], first: float, last: float) -> float:
    """Return the median of the resident bytes in this interval."""
    return statistics.median(bytes_ for at, bytes_ in resident if first <= at <= last)


class Watched:
    """`leakline run -- leakline serve`: a server that sends its own measurements to itself."""

    def __init__(self, folder: Path, per: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("LEAKLINE_")
        }
        self._log = (folder / "server.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leakline", "run", "--per", per, "--name", "itself", "--",
             sys.executable, "-m", "leakline", "serve", "--port", str(self.port)],
            cwd=folder, stdout=self._log, stderr=subprocess.STDOUT,
            env={**kept, "LEAKLINE_RUN_ID": SELF, "LEAKLINE_SERVER": f"http://127.0.0.1:{self.port}"},
        )  # fmt: skip
        self._until_it_answers()

    @property
    def log(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text()

    def get(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            raw = answer.read()
        assert answer.status == 200, raw
        return (
            json.loads(raw)
            if answer.headers.get_content_type() == "application/json"
            else raw.decode()
        )

    def verdict(self) -> dict[str, Any]:
        return dict(self.get(f"/api/v1/runs/{SELF}/verdict"))

    def resident_bytes(self) -> float:
        told = [line for line in self.get("/metrics").splitlines() if not line.startswith("#")]
        (found,) = [
            line.split()[1] for line in told if line.startswith("process_resident_memory_bytes")
        ]
        return float(found)

    def analysis_bytes(self) -> int | None:
        """Return the resident bytes of the analysis process, the only child of the server; None if there is none."""
        (server,) = psutil.Process(self.process.pid).children()
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in server.children():
                return int(child.memory_info().rss)
        return None

    def stop(self) -> int:
        """Stop the server and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()

    def _until_it_answers(self) -> None:
        pause, deadline = threading.Event(), time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
                self.get("/readyz")
                return
            assert self.process.poll() is None and time.monotonic() < deadline, self.log
            pause.wait(0.05)


@contextlib.contextmanager
def watched(folder: Path, per: str) -> Iterator[Watched]:
    server = Watched(folder, per)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


class Training(threading.Thread):
    """One of `RUNS` healthy trainings that together send snapshots at a fixed rate, each batch on schedule."""

    def __init__(
        self, port: int, number: int, per_second: float, until: float, figures: Figures
    ) -> None:
        super().__init__(daemon=True)
        self._number, self._until, self._figures = number, until, figures
        self._every = RUNS * PER_BATCH / per_second
        self._noise = random.Random(number)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self._pause = threading.Event()

    def run(self) -> None:
        name = f"load-{self._number}"
        self._post("/api/v1/runs", {"id": name, "project": "load", "name": name})
        due, sequence = time.monotonic() + self._every * self._number / RUNS, 0
        while due < self._until:
            self._pause.wait(max(0.0, due - time.monotonic()))
            began = time.monotonic()
            self._post(f"/api/v1/runs/{name}/batches", self._batch(sequence))
            self._figures.answers.append((time.monotonic(), time.monotonic() - began))
            sequence += PER_BATCH
            due += self._every
        self._connection.close()

    def _post(self, path: str, body: Any) -> None:
        self._connection.request(
            "POST", path, json.dumps(body), {"content-type": "application/json"}
        )
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status not in (200, 201):
            self._figures.refused.append((answer.status, said.decode()))

    def _batch(self, first: int) -> dict[str, Any]:
        """Return a batch with one snapshot per generation; counts and memory vary around a level."""
        count = range(PER_BATCH)
        series = {
            f"type.app.Class{i}.count": [1_000 * i + self._noise.randrange(50) for _ in count]
            for i in range(TYPES)
        }
        series["process.rss_bytes"] = [2**30 + self._noise.randrange(2**20) for _ in count]
        now = time.time()
        return {
            "version": 1,
            "process": {"instance": f"load-{self._number}", "rank": 0, "pid": 1, "host": "load"},
            "first_sequence": first,
            "count": PER_BATCH,
            "columns": {
                "time": [now + i / 1e3 for i in count],
                "monotonic": [time.monotonic() + i / 1e3 for i in count],
                "generation": [first + i for i in count],
                "kind": ["generation_end"] * PER_BATCH,
                "series": series,
            },
        }


def load(server: Watched, per_second: float, seconds: float) -> Figures:
    """Send for this many seconds; meanwhile read the memory of the server four times a second."""
    figures = Figures()
    until = time.monotonic() + seconds
    trainings = [Training(server.port, n, per_second, until, figures) for n in range(RUNS)]
    for training in trainings:
        training.start()
    pause = threading.Event()
    while time.monotonic() < until:
        figures.resident.append((time.monotonic(), server.resident_bytes()))
        if (analysis := server.analysis_bytes()) is not None:
            figures.analysis.append((time.monotonic(), analysis))
        pause.wait(min(1.0, seconds / 50))
    for training in trainings:
        training.join(30)
        assert not training.is_alive(), server.log
    return figures


@dataclass
class Crowd:
    """A process in which one project sends batches of new names over many connections."""

    process: multiprocessing.process.BaseProcess
    _waited: Connection

    def waited(self) -> list[float]:
        """Return the seconds that each of its batches took, with all refusals, once it has ended."""
        found: list[float] = self._waited.recv()
        self.process.join(60)
        return found


def start_crowd(port: int, connections: int, names: int, seconds: float) -> Crowd:
    """Start a process in which a project sends batches of ``names`` new names over that many connections."""
    context = multiprocessing.get_context("spawn")
    waited, told = context.Pipe(duplex=False)
    crowd = context.Process(
        target=_crowd, args=(port, connections, names, seconds, told), daemon=True
    )
    crowd.start()
    return Crowd(crowd, waited)


def _crowd(port: int, connections: int, names: int, seconds: float, told: Connection) -> None:
    until, waited = time.monotonic() + seconds, list[float]()
    threads = [
        threading.Thread(target=_burden, args=(port, number, names, until, waited))
        for number in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.send(waited)


def _burden(port: int, number: int, names: int, until: float, waited: list[float]) -> None:
    """Begin one run after the other and send each a batch of new names; retry immediately when refused."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(path: str, body: dict[str, Any]) -> None:
        status = 429
        while status == 429 and time.monotonic() < until:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            status = answer.status

    for n in itertools.count():
        name = f"crowd-{number}-{n}"
        post("/api/v1/runs", {"id": name, "project": "crowd", "name": name})
        columns = {
            "time": [time.time()],
            "series": {f"gauge.{name}.{i}": [i] for i in range(names)},
        }
        process = {"instance": name, "rank": 0, "pid": 1, "host": "crowd"}
        began = time.monotonic()
        post(
            f"/api/v1/runs/{name}/batches",
            {"version": 1, "process": process, "first_sequence": 0, "count": 1, "columns": columns},
        )
        waited.append(time.monotonic() - began)
        if time.monotonic() >= until:
            return


@dataclass(frozen=True)
class Waits:
    """Waits of others: 99 % of their responses took at most this many seconds, without a crowd and with it."""

    alone: float
    crowded: float
    refused: list[tuple[int, str]]
    # Half of the batches of the crowd took at least this long.
    of_the_crowd: float


def beside_a_crowd(port: int, alone: float = 4.0) -> Waits:
    """Send 500 snapshots a second of ten projects; after ``alone`` seconds, add 8 seconds of batches with 4,000 new
    names each over 40 connections of another project.
    """
    figures, began = Figures(), time.monotonic()
    until = began + alone + 9.0
    trainings = [Training(port, n, 500, until, figures) for n in range(10)]
    for training in trainings:
        training.start()
    threading.Event().wait(alone)
    # The start of the process is not measured.
    crowd = start_crowd(port, 40, 4_000, seconds=8.0)
    begun = time.monotonic()
    for training in trainings:
        training.join(60)
    waited = crowd.waited()
    before = Figures([answer for answer in figures.answers if answer[0] < begun])
    return Waits(
        before.p99(began + 1.0),
        figures.p99(begun + 1.0),
        figures.refused,
        statistics.median(waited),
    )

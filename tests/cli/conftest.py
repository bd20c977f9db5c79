"""A real server with generated runs, and the program called as from a shell."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.programs import Place
from tests.json_batches import batch_to_wire
from tests.server.alerts.conftest import receiver  # noqa: F401

from leakline.cli import main
from leakline.snapshot import (
    Batch,
    Event,
    ProcessIdentity,
    RunHeader,
    Snapshot,
    header_to_wire,
)
from leakline.transport.http_delivery import request_json

MIB = 2**20
STARTED = 1_760_000_000.0
GENERATIONS = 14
DOCS = Path(__file__).resolve().parents[2] / "docs"
# Recorded logs of other programs.
LOGS = Path(__file__).resolve().parents[1] / "data" / "imports"


@dataclass(frozen=True)
class Said:
    """Output and exit status of a command."""

    status: int
    output: str
    errors: str

    @property
    def error(self) -> str:
        (line,) = self.errors.splitlines()
        return line


Leakline = Callable[..., Said]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("LEAKLINE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def leakline(capsys: pytest.CaptureFixture[str]) -> Leakline:
    """Return a function that calls the program; usage errors give an exit status as in a shell."""

    def call(*arguments: str) -> Said:
        capsys.readouterr()
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        printed = capsys.readouterr()
        return Said(status, printed.out, printed.err)

    return call


@pytest.fixture
def ask(leakline: Leakline, server: str) -> Leakline:
    """Return a function that calls the program with the address of the shared server."""
    return lambda *arguments: leakline(*arguments, "--server", server)


def made_snapshots(leak_bytes: int) -> Iterator[Snapshot]:
    """Yield one phase and the end of each generation; a leaking run gains 16 environments per generation."""
    promises = {"growth_bytes_per_generation": MIB, "generations": GENERATIONS}
    fix = {"phase": "train", "location": "app.py:7", "promises": promises}
    band = {"first": 0, "last": 4, "low_bytes": None, "high_bytes": 460 * MIB}
    budget = {"normal_bytes": 100 * MIB, "leak_bytes": 1024 * MIB}
    declared = (
        Event(1, STARTED, "watch", "app.Environment"),
        Event(1, STARTED, "fix", "let them go", data=fix),
        Event(1, STARTED, "band", "process.rss_bytes", data=band),
        Event(1, STARTED, "budget", "run", data=budget),
    )
    at_the_end = {
        "phase.evaluate.bytes": leak_bytes,
        "phase.between.bytes": 0,
        "generation.seconds": 2.0,
    }
    for number in range(2 * GENERATIONS):
        generation, end = divmod(number, 2)
        kept = generation + 1 if leak_bytes else 0
        resident = 400 * MIB + kept * leak_bytes
        yield Snapshot(
            sequence=number + 1,
            time=STARTED + number,
            monotonic=float(number),
            generation=generation,
            phase=None if end else "evaluate",
            label=f"generation {generation}: {'end' if end else 'after evaluate'}",
            kind="generation_end" if end else "phase_end",
            samples={
                "process.rss_bytes": resident,
                "process.anon_bytes": resident - 100 * MIB,
                "type.app.Environment.count": 16 + (16 * kept if leak_bytes else 0),
                **(at_the_end if end else {}),
            },
            events=() if number else declared,
        )


def by_the_minute(snapshots: Iterable[Snapshot]) -> Iterator[Snapshot]:
    yield from by_the_second(snapshots, apart=60.0)


def by_the_second(snapshots: Iterable[Snapshot], apart: float = 1.0) -> Iterator[Snapshot]:
    """Yield the generation ends ``apart`` seconds from each other, as of a program that declares no generations."""
    ends = (snapshot for snapshot in snapshots if snapshot.kind == "generation_end")
    for number, each in enumerate(ends):
        at = number * apart
        yield replace(each, generation=None, events=(), time=STARTED + at, monotonic=at)


@contextmanager
def banner_of_server(folder: Path, **environment: str) -> Iterator[tuple[str, str]]:
    """Start a server with its own database; yield the two lines that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "leakline", "serve", "--port", "0"],
        cwd=folder, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    assert process.stdout is not None
    yield process.stdout.readline(), process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)


def address_in(line: str) -> str:
    return "http://" + line.split("http://")[1].split()[0]


@contextmanager
def serving(folder: Path, **environment: str) -> Iterator[str]:
    """Start a server with its own database; yield its address."""
    with banner_of_server(folder, **environment) as (first, _):
        yield address_in(first)


def post_runs(address: str) -> None:
    """Send app/leaking (twice, once fixed) and app/fixed."""
    # The older run of the same name must not be taken for the newest.
    for number, (name, leak) in enumerate((("leaking", 0), ("leaking", 20 * MIB), ("fixed", 0))):
        post_run(address, f"run{number}", f"app/{name}", leak, started=STARTED + number, total=25)


@pytest.fixture(scope="session")
def banner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The two lines printed by the shared server."""
    with banner_of_server(tmp_path_factory.mktemp("server")) as lines:
        yield lines


@pytest.fixture(scope="session")
def server(banner: tuple[str, str]) -> str:
    """The address of the shared server; tests may send runs to it."""
    address = address_in(banner[0])
    post_runs(address)
    return address


def post_run(
    address: str,
    run: str,
    name: str,
    *leaks: int,
    unit: str = "generation",
    started: float = STARTED,
    total: int | None = None,
    counted: Callable[[Iterable[Snapshot]], Iterable[Snapshot]] = tuple,
    environment: Mapping[str, Any] | None = None,
    **end: str,
) -> None:
    """Send a run with one process for each of ``leaks``; return when the server has analyzed it."""
    project, _, name = name.partition("/")
    header = RunHeader(run, project, name, unit, total, started, environment=environment or {})
    request_json(address, "POST", "/runs", header_to_wire(header))
    for rank, leak in enumerate(leaks):
        process = ProcessIdentity(f"rank {rank} of {run}", rank=rank)
        batch = batch_to_wire(Batch(process, tuple(counted(made_snapshots(leak)))))
        request_json(address, "POST", f"/runs/{run}/batches", batch)
    request_json(address, "PATCH", f"/runs/{run}", {"state": "finished", **end})
    if leaks:
        wait_for_verdict(address, run, lambda found: found["generations"] >= GENERATIONS)


def wait_for_verdict(address: str, run: str, is_whole: Callable[[dict[str, Any]], bool]) -> None:
    pause, deadline = threading.Event(), time.monotonic() + 20
    while not is_whole(request_json(address, "GET", f"/runs/{run}/verdict")):
        assert time.monotonic() < deadline
        pause.wait(0.05)


def page_at(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return str(answer.read().decode())


@pytest.fixture
def nowhere() -> str:
    """An address where no server answers."""
    return "http://127.0.0.1:9"


@pytest.fixture
def mlflow(tmp_path: Path) -> Path:
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as database:
        database.executescript((LOGS / "mlflow.sql").read_text())
    database.close()
    return path


@pytest.fixture
def read(leakline: Leakline, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that imports a file into a spool and returns the JSON output."""

    def call(path: Path, *more: str) -> dict[str, Any]:
        out = tmp_path / "out.spool"
        out.unlink(missing_ok=True)
        said = leakline("import", str(path), "--out", str(out), "--json", *more)
        assert said.status == 0, said.errors
        answer: dict[str, Any] = json.loads(said.output)
        return answer

    return call

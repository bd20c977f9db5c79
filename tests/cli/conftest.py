"""A real server with two made-up runs, and the program called as from a shell."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.old_logs import FILES
from tests.cli.programs import Place

from leakline.cli import main
from leakline.delivery import request_json
from leakline.snapshot import (
    Batch,
    Event,
    ProcessIdentity,
    RunHeader,
    Snapshot,
    batch_to_wire,
    header_to_wire,
)

MIB = 2**20
STARTED = 1_760_000_000.0
GENERATIONS = 14


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit status."""

    status: int
    output: str
    errors: str


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("LEAKLINE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def leakline(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Call the program; wrong use ends it as it ends a shell command."""

    def call(*arguments: str) -> Said:
        capsys.readouterr()
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        printed = capsys.readouterr()
        return Said(status, printed.out, printed.err)

    return call


def made_snapshots(leak_bytes: int) -> Iterator[Snapshot]:
    """One phase and the end of each generation; 16 environments more each time when it leaks."""
    declared = (Event(1, STARTED, "watch", "app.Environment"), _fix(), *_plan())
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
                **(_end_of_generation(leak_bytes) if end else {}),
            },
            events=() if number else declared,
        )


def _fix() -> Event:
    promises = {"growth_bytes_per_generation": MIB, "generations": GENERATIONS}
    data = {"phase": "train", "location": "app.py:7", "promises": promises}
    return Event(1, STARTED, "fix", "let them go", data=data)


def _plan() -> tuple[Event, ...]:
    band = {"first": 0, "last": 4, "low_bytes": None, "high_bytes": 460 * MIB}
    budget = {"normal_bytes": 100 * MIB, "leak_bytes": 1024 * MIB}
    return (
        Event(1, STARTED, "band", "process.rss_bytes", data=band),
        Event(1, STARTED, "budget", "run", data=budget),
    )


def _end_of_generation(leak_bytes: int) -> dict[str, float]:
    return {
        "phase.evaluate.bytes": leak_bytes,
        "phase.between.bytes": 0,
        "generation.seconds": 2.0,
    }


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve app/leaking (twice, once fixed) and app/fixed from a database of its own; yield the address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "leakline", "serve", "--port", "0"],
        cwd=folder, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    address = "http://" + process.stdout.readline().split("http://")[1].split()[0]
    # The older run of the same name must not be taken for the newest.
    for number, (name, leak) in enumerate((("leaking", 0), ("leaking", 20 * MIB), ("fixed", 0))):
        post_run(
            address,
            RunHeader(f"run{number}", "app", name, "generation", 25, STARTED + number),
            leak,
        )
    yield address
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that all tests share, and may send runs to."""
    with serving(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture
def fresh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server whose newest run is app/fixed, whatever other tests have sent."""
    with serving(tmp_path_factory.mktemp("fresh-server")) as address:
        yield address


def by_the_minute(snapshots: Iterable[Snapshot]) -> Iterator[Snapshot]:
    """The ends of the generations, as of a program that declares none."""
    ends = (snapshot for snapshot in snapshots if snapshot.kind == "generation_end")
    for number, each in enumerate(ends):
        at = 60.0 * number
        yield replace(each, generation=None, events=(), time=STARTED + at, monotonic=at)


def by_the_second(snapshots: Iterable[Snapshot], apart: float = 1.0) -> Iterator[Snapshot]:
    """As by_the_minute, and young enough to be counted by seconds; so many of them ``apart``."""
    for number, each in enumerate(by_the_minute(snapshots)):
        at = number * apart
        yield replace(each, time=STARTED + at, monotonic=at)


def post_run(
    address: str,
    header: RunHeader,
    leak: int,
    counted: Callable[[Iterable[Snapshot]], Iterable[Snapshot]] = tuple,
) -> None:
    """Returns when the server has looked at it."""
    request_json(address, "POST", "/runs", header_to_wire(header))
    batch = Batch(ProcessIdentity(f"process of {header.id}"), tuple(counted(made_snapshots(leak))))
    request_json(address, "POST", f"/runs/{header.id}/batches", batch_to_wire(batch))
    request_json(address, "PATCH", f"/runs/{header.id}", {"state": "finished"})
    wait_for_verdict(address, header.id, lambda found: found["generations"] >= GENERATIONS)


def wait_for_verdict(address: str, run: str, is_whole: Callable[[dict[str, Any]], bool]) -> None:
    pause, deadline = threading.Event(), time.monotonic() + 20
    while not is_whole(request_json(address, "GET", f"/runs/{run}/verdict")):
        assert time.monotonic() < deadline
        pause.wait(0.05)


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """An address at which nothing answers."""
    return "http://127.0.0.1:9"


@pytest.fixture
def mlflow(tmp_path: Path) -> Path:
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as database:
        database.executescript((FILES / "mlflow.sql").read_text())
    database.close()
    return path


@pytest.fixture
def read(leakline: Callable[..., Said], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Import into a spool, and what was said of it."""

    def call(path: Path, *more: str) -> dict[str, Any]:
        out = tmp_path / "out.spool"
        out.unlink(missing_ok=True)
        said = leakline("import", str(path), "--out", str(out), "--json", *more)
        assert said.status == 0, said.errors
        answer: dict[str, Any] = json.loads(said.output)
        return answer

    return call

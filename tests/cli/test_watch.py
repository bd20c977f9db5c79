"""`leakline watch`: real processes, seen from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.programs import Place

from leakline.transport.http_delivery import request_json

GROWS = """
import sys, time
kept = []
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    kept.append(bytearray(500_000))
    time.sleep(0.05)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A process that knows nothing of us, once it says that it is ready."""
    started: list[subprocess.Popen[str]] = []

    def begin(text: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text), *arguments],
            cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        started.append(process)
        return process

    yield begin
    for process in started:
        process.send_signal(signal.SIGINT)
        process.communicate()


def watching(place: Place, pid: int, *options: str) -> tuple[subprocess.Popen[str], str]:
    """With what it says at its start, once its first snapshot is on disk."""
    watch = subprocess.Popen(
        [sys.executable, "-m", "leakline", "watch", str(pid), "--mode", "offline", *options],
        cwd=place.folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watch.stderr is not None
    line = watch.stderr.readline()
    pause, deadline = threading.Event(), time.monotonic() + 20
    while not any(each.snapshots for each in place.recorded()):
        assert time.monotonic() < deadline
        pause.wait(0.02)
    return watch, line


@pytest.mark.parametrize(
    ("pid", "status", "why"),
    [
        ("0", 2, "PID"),
        ("-5", 2, ""),
        ("x", 2, "invalid int"),
        (str(2**22 + 7), 1, "there is no process"),
    ],
)
def test_what_is_no_process_is_one_line(leakline: Any, pid: str, status: int, why: str) -> None:
    said = leakline("watch", pid)
    assert (said.status, said.output) == (status, "")
    assert why in said.error


def test_a_process_that_is_dead_has_nothing_to_watch(leakline: Any) -> None:
    # Nobody has asked how it ended: its number is still taken.
    process = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    said = leakline("watch", str(process.pid))
    assert (said.status, "ended already" in said.errors) == (1, True)
    process.wait()


def test_children_are_told_of(place: Place, start: Start) -> None:
    process = start(
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print("ready", flush=True)
        try:
            child.wait()
        finally:
            child.kill()
        """
    )
    watch, _ = watching(place, process.pid)
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=30)
    (recorded,) = place.recorded()
    first = recorded.snapshots[0].samples
    assert first["children.count"] == 1
    assert first["children.uss_bytes"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_watching_leaves_the_process_alone(
    place: Place, start: Start, server: str, ask: Any, leakline: Any, number: signal.Signals
) -> None:
    process = start(GROWS, "60")
    watch, line = watching(place, process.pid, "--mode", "online", "--server", server)
    watch.send_signal(number)
    _, errors = watch.communicate(timeout=30)
    assert (watch.returncode, "Traceback" in errors) == (0, False)
    assert process.poll() is None
    run = request_json(server, "GET", f"/runs/{line.rpartition('/')[2].strip()}")
    why = "watched no longer; the program was still running"
    assert (run["state"], run["reason"]) == ("finished", why)
    assert run["rss_bytes"] > 0
    # Nobody is in a hurry here: the verdict is waited for. That the program is short nobody knows.
    said = errors.splitlines()[-1]
    assert said.startswith("leakline: learning: ") and f" -> {server}/runs/" in said
    assert "--per second" not in said
    (listed,) = [each for each in ask("runs").output.splitlines() if run["id"] in each]
    # Of minutes it has no generations, which is not none.
    assert re.search(r" finished {2,}[\d.]+ [KMG]iB ", listed)
    assert f"attempt 1: {why}\n" in leakline("report", str(place.folder / ".leakline")).output


def test_a_program_that_ended_while_it_was_watched_is_told_how_a_short_one_is_judged(
    place: Place, start: Start
) -> None:
    process = start(GROWS, "60")
    watch, _ = watching(place, process.pid)
    process.kill()
    _, errors = watch.communicate(timeout=60)
    assert "; for a program this short: leakline watch --per second; " in errors.splitlines()[-1]


@pytest.mark.long
def test_growth_seen_from_outside_is_not_called_memory_outside_python(
    start: Start, place: Place, leakline: Any
) -> None:
    """It keeps bytearrays: nobody outside can tell those from what a C extension keeps."""
    process = start(GROWS, "15")
    watch, _ = watching(place, process.pid, "--per", "second")
    watch.communicate(timeout=60)
    report = leakline("report", str(place.folder / ".leakline")).output
    told = report.partition("VERDICT")[2]
    assert re.search(r"Memory grows by \S+ MiB per second.*; from outside nobody can tell", told)
    assert "Start it with `leakline run -- ...` or put `leakline.init` into it" in told
    assert "C extensions" not in told
    assert "no counted Python object" not in told

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

from leakline.delivery import request_json
from leakline.snapshot import Snapshot
from leakline.spool import read_batches, read_end, read_header

GROWS = """
import sys, time
kept = []
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    kept.append(bytearray(500_000))
    time.sleep(0.05)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A process that knows nothing of us, once it says that it is ready."""
    started: list[subprocess.Popen[str]] = []

    def begin(text: str, *arguments: str) -> subprocess.Popen[str]:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(text))
        process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        started.append(process)
        return process

    yield begin
    for process in started:
        process.send_signal(signal.SIGINT)
        process.communicate()


def watching(folder: Path, pid: int, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "leakline", "watch", str(pid), "--mode", "offline", *options],
        cwd=folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def recorded(folder: Path) -> tuple[Any, dict[str, Any] | None, list[Snapshot]]:
    (path,) = (folder / ".leakline").rglob("*.spool")
    return (
        read_header(path),
        read_end(path),
        [s for b in read_batches(path) for s in b.snapshots],
    )


def first_line(folder: Path, watch: subprocess.Popen[str]) -> str:
    """What it says at its start, once its first snapshot is on disk."""
    assert watch.stderr is not None
    line = watch.stderr.readline()
    pause, deadline = threading.Event(), time.monotonic() + 20
    while not list((folder / ".leakline").rglob("*.spool")) or not recorded(folder)[2]:
        assert time.monotonic() < deadline
        pause.wait(0.02)
    return line


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
    assert why in said.errors
    assert len(said.errors.splitlines()) == 1


def test_a_process_that_is_dead_has_nothing_to_watch(leakline: Any) -> None:
    # Nobody has asked how it ended: its number is still taken.
    process = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    said = leakline("watch", str(process.pid))
    assert (said.status, "ended already" in said.errors) == (1, True)
    process.wait()


def test_children_are_told_of(tmp_path: Path, start: Any) -> None:
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
    watch = watching(tmp_path, process.pid)
    first_line(tmp_path, watch)
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=30)
    _, _, snapshots = recorded(tmp_path)
    assert snapshots[0].samples["children.count"] == 1
    assert snapshots[0].samples["children.uss_bytes"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_watching_leaves_the_process_alone(
    tmp_path: Path, start: Any, server: str, leakline: Any, number: signal.Signals
) -> None:
    process = start(GROWS, "60")
    watch = watching(tmp_path, process.pid, "--mode", "online", "--server", server)
    line = first_line(tmp_path, watch)
    watch.send_signal(number)
    _, errors = watch.communicate(timeout=30)
    assert (watch.returncode, "Traceback" in errors) == (0, False)
    assert process.poll() is None
    run = request_json(server, "GET", f"/runs/{line.rpartition('/')[2].strip()}")
    assert (run["state"], run["reason"]) == (
        "finished",
        "watched no longer; the program was still running",
    )
    assert run["rss_bytes"] > 0
    # Nobody is in a hurry here: the verdict is waited for. That the program is short nobody knows.
    said = errors.splitlines()[-1]
    assert said.startswith("leakline: learning: ") and f" -> {server}/runs/" in said
    assert "--per second" not in said
    (listed,) = [
        e for e in leakline("runs", "--server", server).output.splitlines() if run["id"] in e
    ]
    # Of minutes it has no generations, which is not none.
    assert re.search(r" finished {2,}[\d.]+ [KMG]iB ", listed)
    reported = leakline("report", str(tmp_path / ".leakline")).output
    assert "attempt 1: watched no longer; the program was still running\n" in reported


def test_a_program_that_ended_while_it_was_watched_is_told_how_a_short_one_is_judged(
    tmp_path: Path, start: Any
) -> None:
    process = start(GROWS, "60")
    watch = watching(tmp_path, process.pid)
    first_line(tmp_path, watch)
    process.kill()
    _, errors = watch.communicate(timeout=60)
    assert "; for a program this short: leakline watch --per second; " in errors.splitlines()[-1]


def test_growth_seen_from_outside_is_not_called_memory_outside_python(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """It keeps bytearrays: nobody outside can tell those from what a C extension keeps."""
    process = start(GROWS, "15")
    watch = watching(tmp_path, process.pid, "--per", "second")
    first_line(tmp_path, watch)
    watch.communicate(timeout=60)
    done = subprocess.run(
        [sys.executable, "-m", "leakline", "report", ".leakline"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = done.stdout.partition("VERDICT")[2]
    assert re.search(r"Memory grows by \S+ MiB per second.*; from outside nobody can tell", told)
    assert "Start it with `leakline run -- ...` or put `leakline.init` into it" in told
    assert "C extensions" not in told
    assert "no counted Python object" not in told

"""`leakline demo` with real trainings, and its end without leftovers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]

# Documented limit for Ctrl-C.
END_SECONDS = 2.0


class Demo:
    def __init__(self, folder: Path, *arguments: str) -> None:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("LEAKLINE_")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leakline", "demo", *arguments],
            cwd=folder, env={**kept, "PYTHONUNBUFFERED": "1"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.seen = ""

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen += line
            if text in line:
                return
        raise AssertionError(f"the demo ended before {text!r}: {self.seen}")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def interrupt(self) -> float:
        """Send Ctrl-C and return the seconds until the process has exited."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        self.seen += self.process.communicate(timeout=20)[0]
        return time.monotonic() - began


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Any]:
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        started.append(Demo(tmp_path, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.interrupt()


@pytest.mark.long
def test_ctrl_c_during_a_training_ends_everything(demo: Any) -> None:
    running = demo("--port", "0", "--generations", "100")
    running.read_until("generation 0")
    children = running.children()
    # The server, its analysis process, and the training.
    assert len(children) == 3
    assert running.interrupt() < END_SECONDS
    assert "Traceback" not in running.seen
    assert not [child for child in children if child.is_running()]


@pytest.mark.long
def test_it_exits_with_three_addresses_and_reports_the_port_in_use(demo: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        # The first generation does not train yet: the buffer is not ready.
        running = demo("--port", str(port), "--generations", "1", "--exit")
        seen, _ = running.process.communicate(timeout=300)
    assert running.process.returncode == 0, seen
    assert f"port {port} is in use; using " in seen
    for title in ("before", "after", "comparison"):
        (line,) = [line for line in seen.splitlines() if line.startswith(f"{title} ")]
        assert "http://127.0.0.1:" in line


@pytest.mark.leaks
def test_the_misdiagnosis_story_shows_the_skipped_phase_and_the_leak(
    demo: Any,
) -> None:
    running = demo("--port", "0", "--story", "misdiagnosis", "--generations", "10", "--exit")
    seen, _ = running.process.communicate(timeout=500)
    assert running.process.returncode == 0, seen
    told = {
        title: next(line for line in seen.splitlines() if line.startswith(f"{title} "))
        for title in ("blamed", "promised", "in fact")
    }
    assert "train_population never ran, so the promise was not tested." in told["blamed"]
    assert "broken: Memory grows by " in told["promised"]
    assert "times the 1.00 MiB promised." in told["promised"]
    assert "evaluate_population keeps 16 TradingEnvironment per generation" in told["in fact"]
    # The trainer itself reports twenty times that it skipped the training phase.
    assert seen.count("buffer not ready: ") == 20

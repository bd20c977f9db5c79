"""`leakline drill` with a real server, webhook and training, all of which are gone afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.flows.conftest import clean_environment

from leakline.cli.commands.drill import KINDS, TRAINING

pytestmark = [pytest.mark.flow, pytest.mark.timeout(300)]

# Documented limit for Ctrl-C.
END_SECONDS = 2.0
# Enough for a suspected leak.
GENERATIONS = "12"

Drill = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "leakline", "drill", *arguments],
                cwd=tmp_path, text=True,
                # Scans as often as generations of half a second allow.
                env=clean_environment(TMPDIR=str(tmp_path), LEAKLINE_MAX_OVERHEAD="0.2"),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)


def lives(process: psutil.Process) -> bool:
    """Return True if a process runs; an orphan is a zombie until the init process reaps it, which may take a while."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.long
def test_a_planted_leak_of_each_kind_is_found(drill: Drill, tmp_path: Path) -> None:
    process = drill("--generations", GENERATIONS)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, output + errors
    assert errors == ""
    assert re.findall(r"^(\w+): ", output, re.M) == [*KINDS]
    assert output.count(" right ") == 6 * len(KINDS)
    # On a busy machine the first alert may already be about a confirmed leak.
    alerts = r"alert\? +right  correctly signed: incident\.(?:suspected|confirmed)"
    assert len(re.findall(alerts, output)) == len(KINDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_leak_without_time_to_show_fails_the_drill(drill: Drill) -> None:
    process = drill("objects", "--generations", "2")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 1, output + errors
    assert "found?       WRONG  not found within 2 generations" in output
    assert "alert?       WRONG  none came" in output


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM]
)
def test_an_interrupt_ends_everything_and_leaves_nothing(
    drill: Drill, tmp_path: Path, eventually: Callable[..., Any], number: signal.Signals
) -> None:
    process = drill("objects", "--generations", "200")
    below = psutil.Process(process.pid)
    eventually(lambda: len(below.children(recursive=True)) == 2)
    (folder,) = tmp_path.glob("leakline-drill-*")
    eventually(lambda: list(folder.glob("spools/*")))
    children = below.children(recursive=True)
    began = time.monotonic()
    os.kill(process.pid, number)
    output, errors = process.communicate(timeout=20)
    assert time.monotonic() - began < END_SECONDS
    assert process.returncode == 130
    assert "Traceback" not in output + errors
    assert not [child for child in children if lives(child)]
    assert list(tmp_path.iterdir()) == []


MEASURE = """
import json, psutil, sys
from drill_training import Trainer

own, grow = psutil.Process(), getattr(Trainer(sys.argv[1]), sys.argv[1])
for _ in range(3):
    grow()
before = own.memory_full_info().uss
planted = sum(grow() for _ in range(10))
print(json.dumps([planted, own.memory_full_info().uss - before]))
"""


# Graphs need torch, which takes seconds to import.
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.long if k == "graph" else ()) for k in KINDS]
)
def test_planted_bytes_match_what_the_kernel_reports(kind: str) -> None:
    """Compare the planted bytes with the kernel's, without a run. The first generations also import and warm up."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, kind],
        cwd=TRAINING.parent, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    planted, gained = json.loads(done.stdout)
    assert planted > 0
    assert gained == pytest.approx(planted, rel=0.1)

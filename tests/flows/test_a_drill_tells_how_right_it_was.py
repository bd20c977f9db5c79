"""`leakline drill` for real: server, webhook and training are processes, and nothing of them stays."""

from __future__ import annotations

import json
import os
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

pytestmark = [pytest.mark.flow, pytest.mark.timeout(300)]

# What Ctrl-C promises.
END_SECONDS = 2.0
# Class counts need few generations; this many are also enough to confirm with two witnesses.
GENERATIONS = "20"

Drill = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "leakline", "drill", *arguments],
                cwd=tmp_path, env=clean_environment(TMPDIR=str(tmp_path)), text=True,
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
    """A child of a process that was ended is buried by the machine's first process, which may take its time."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def answers(output: str) -> dict[str, dict[str, Any]]:
    (one,) = json.loads(output)["drills"]
    return {answer["question"]: answer for answer in one["answers"]}


def test_a_planted_leak_is_found_and_told(drill: Drill, tmp_path: Path) -> None:
    process = drill("history", "--json", "--generations", GENERATIONS)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    assert errors == ""
    found = answers(output)
    assert found["when"]["suspected_after"] <= int(GENERATIONS)
    assert found["where"]["phase"] == "collect"
    assert found["what"]["place"] == 1
    assert found["webhook"]["signatures_valid"]
    assert "incident.suspected" in found["webhook"]["events"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_healthy_training_is_left_in_peace(drill: Drill, tmp_path: Path) -> None:
    process = drill("bounded_cache", "--generations", GENERATIONS)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    assert "quiet?       right" in output
    assert "webhook?     right  none came" in output
    assert list(tmp_path.iterdir()) == []


def test_a_leak_that_had_no_time_to_show_is_a_failed_drill(drill: Drill) -> None:
    process = drill("native", "--generations", "3")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 1, output + errors
    assert "found?       WRONG  not found within 3 generations" in output
    assert "webhook?     WRONG  none came" in output


def test_the_folder_is_kept_when_asked_for(drill: Drill, tmp_path: Path) -> None:
    process = drill("flat", "--generations", "2", "--keep")
    _, errors = process.communicate(timeout=120)
    (kept,) = tmp_path.iterdir()
    assert f"kept: {kept}" in errors
    assert (kept / "leakline.db").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything_and_leaves_nothing(
    drill: Drill, tmp_path: Path, eventually: Callable[..., Any], number: signal.Signals
) -> None:
    # The kind with a process of its own below the training.
    process = drill("children", "--generations", "200")
    below = psutil.Process(process.pid)
    eventually(lambda: len(below.children(recursive=True)) == 3)
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

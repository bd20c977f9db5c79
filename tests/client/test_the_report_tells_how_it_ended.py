"""`leakline report` of a run that failed, was told to end or was killed: how, and its last lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.report import report_text

START = """
import os, signal, sys, time
import leakline
run = leakline.init(mode="offline", quiet=True, log_lines=True)
run.generation(0)
print("epoch 0: loss 0.5", flush=True)
"""


@pytest.fixture
def train(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    def start(code: str) -> Any:
        script = tmp_path / "train.py"
        script.write_text(START + textwrap.dedent(code))
        return subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ),
        )  # fmt: skip

    return start


def section(text: str) -> list[str]:
    """The lines of how it ended."""
    lines = text.splitlines()
    if "HOW IT ENDED" not in lines:
        return []
    start = lines.index("HOW IT ENDED") + 2
    return lines[start : next(i for i in range(start, len(lines)) if lines[i].startswith("="))]


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("raise ValueError('planned')", "failed: ValueError"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", "killed by SIGTERM"),
        ("raise MemoryError", "failed: MemoryError"),
    ],
)
def test_an_end_is_told_with_its_last_lines(
    train: Any, spool_directory: Path, code: str, how: str
) -> None:
    train(code).communicate(timeout=60)
    first, *rest = section(report_text(spool_directory))
    assert first.startswith("rank 0, process ")
    assert first.endswith(f"attempt 1: {how}")
    assert rest[:2] == ["   last lines:", "   | epoch 0: loss 0.5"]


def test_a_killed_process_ended_without_a_word(
    train: Any, spool_directory: Path, until: Any
) -> None:
    process = train("time.sleep(60)")
    process.stdout.readline()
    until(lambda: _lines(spool_directory), 30)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    told = section(report_text(spool_directory))
    assert told[0].endswith("attempt 1: without a word")
    assert "   | epoch 0: loss 0.5" in told


def _lines(directory: Path) -> list[str]:
    from leakline.spool import read_batches

    return [
        line
        for path in directory.rglob("*.spool")
        for batch in read_batches(path)
        for snapshot in batch.snapshots
        for event in snapshot.events
        if event.kind == "log"
        for line in event.data["lines"]
    ]


def test_a_run_that_goes_on_or_finished_has_no_such_part(spool_directory: Path) -> None:
    run = leakline.init(mode="offline", quiet=True, log_lines=True)
    run.generation(0)
    assert section(run.report()) == []
    run.finish()
    assert section(report_text(spool_directory)) == []

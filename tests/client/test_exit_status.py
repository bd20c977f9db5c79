"""The exit status with which a program ends itself, as far as it is known while Python runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leakline.exit_status import end_of
from leakline.spool import read_end

PROGRAM = """
import os, signal, sys, threading
import leakline
run = leakline.init(mode="offline", quiet=True)
run.generation(0)
{code}
"""
# A SystemExit that is caught and referred to until the end.
KEPT = """kept = []
try:
    sys.exit(4)
except SystemExit as error:
    kept.append(error)
"""


@pytest.mark.parametrize(
    ("code", "status", "end"),
    [
        ("sys.exit()", 0, ("finished", "")),
        ("sys.exit(None)", 0, ("finished", "")),
        ("sys.exit(7)", 7, ("failed", "exit status 7")),
        ("sys.exit('no data set')", 1, ("failed", "exit status 1")),
        ("sys.exit(130)", 130, ("terminated", "SIGINT")),
        ("exit(7)", 7, ("failed", "exit status 7")),
        ("with run.phase('train'): raise SystemExit(7)", 7, ("failed", "exit status 7")),
        ("try:\n    sys.exit(7)\nexcept SystemExit:\n    pass", 0, ("finished", "")),
        ("try:\n    sys.exit(7)\nfinally:\n    run.mark('last words')", 7, ("failed", "exit status 7")),
        (f"{KEPT}run.generation(1)", 0, ("finished", "")),
        (f"{KEPT}try:\n    sys.exit(7)\nfinally:\n    kept.clear()", 7, ("failed", "exit status 7")),
        ("try:\n    sys.exit(7)\nfinally:\n    run.generation(1)", 7, ("failed", "exit status 7")),
        (f"{KEPT}run.generation(1)\nwith run.phase('a'): raise kept[0]", 4, ("failed", "exit status 4")),
        ("threading.Thread(target=sys.exit, args=(7,)).start()", 0, ("finished", "")),
        ("run.finish()\nsys.exit(7)", 7, ("finished", "")),
    ],
)  # fmt: skip
def test_a_run_ends_as_its_program_does(
    tmp_path: Path, spool_directory: Path, code: str, status: int, end: tuple[str, str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(code=code))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    (path,) = spool_directory.rglob("*.spool")
    found: dict[str, Any] = read_end(path) or {}
    assert (found["state"], found["reason"]) == end


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (0, ("finished", "")),
        (1, ("failed", "exit status 1")),
        (-signal.SIGKILL, ("terminated", "SIGKILL")),
        (-signal.SIGINT, ("terminated", "SIGINT")),
        (-64, ("terminated", "SIGRTMAX")),
        (128 + signal.SIGINT, ("terminated", "SIGINT")),
        (128 + signal.SIGKILL, ("terminated", "SIGKILL")),
        (128 + signal.SIGHUP, ("failed", "exit status 129")),
        (255, ("failed", "exit status 255")),
    ],
)
def test_an_exit_status_has_an_end(status: int, end: tuple[str, str]) -> None:
    assert end_of(status) == end

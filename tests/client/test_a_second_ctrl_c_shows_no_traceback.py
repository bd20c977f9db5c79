"""Ctrl-C while a run is finished at the exit: the program ends as it would, and our code is not shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal
import leakline
from leakline.run import Run

run = leakline.init(project="p", name="n")
leave = Run._leave

def interrupted(self, end):
    os.kill(os.getpid(), signal.SIGINT)
    leave(self, end)

Run._leave = interrupted
raise SystemExit(3)
"""


def test_a_ctrl_c_within_our_finish_leaves_the_exit_of_the_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=30,
        env={**os.environ, "LEAKLINE_SERVER": "http://127.0.0.1:9"},
    )  # fmt: skip
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr

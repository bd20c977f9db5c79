"""The banner of `leakline serve`: a port that is not the default is named to trainings and commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def test_another_port_is_told_with_what_trainings_need(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "leakline", "serve", "--port", "0"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        first, second = process.stdout.readline(), process.stdout.readline()
    finally:
        process.terminate()
        process.communicate(timeout=30)
    found = re.match(r"Leakline serves (http://127\.0\.0\.1:\d+)\S*  \(Ctrl-C ends it\)", first)
    assert found is not None, first
    assert second == f"trainings and commands need: export LEAKLINE_SERVER={found[1]}\n"

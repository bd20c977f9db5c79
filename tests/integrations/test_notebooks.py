"""Cells of a notebook, run by IPython's own shell in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.cli.programs import Place
from tests.flows.conftest import clean_environment

SHELL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.loads(sys.stdin.read()):
    ended = shell.run_cell(cell, store_history=True)
    print("cell", repr(ended.result), type(ended.error_in_exec).__name__, file=sys.stderr)
"""


def run_cells(folder: Path, *cells: str) -> tuple[list[str], str]:
    """Return the value and the exception of each cell, and everything that the cells print."""
    done = subprocess.run(
        [sys.executable, "-c", SHELL], input=json.dumps([textwrap.dedent(cell) for cell in cells]),
        cwd=folder, env=clean_environment(LEAKLINE_MODE="offline", IPYTHONDIR=str(folder)),
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    said = [line.removeprefix("cell ") for line in lines if line.startswith("cell ")]
    return said, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


def phases(folder: Path) -> list[tuple[int | None, str | None]]:
    (run,) = Place(folder).recorded()
    return [(s.generation, s.phase) for s in run.snapshots if s.kind == "phase_end"]


INIT = """
%load_ext leakline
import leakline
run = leakline.init("notebook", quiet=True)
"""


def test_a_cell_is_a_phase_with_its_value_and_names(tmp_path: Path) -> None:
    cells = ["%%leakline train\nx = 20\nx + 1", "%%leakline\ny = !echo 4", "x, y, run.finish()"]
    said, _ = run_cells(tmp_path, INIT, *cells)
    assert said == ["None NoneType", "21 NoneType", "None NoneType", "(20, ['4'], None) NoneType"]
    assert phases(tmp_path) == [(None, "train"), (None, "cell")]


def test_an_exception_of_a_cell_is_raised_once_and_with_its_line(tmp_path: Path) -> None:
    said, printed = run_cells(tmp_path, INIT, "%%leakline train\nx = 0\n1 / x", "x", "run.finish()")
    assert said[1:3] == ["None ZeroDivisionError", "0 NoneType"]
    assert printed.count("ZeroDivisionError: division by zero") == 1
    assert "1 / x" in printed
    assert phases(tmp_path) == [(None, "train")]


def test_a_cell_that_runs_again_continues_the_generations_with_one_warning(tmp_path: Path) -> None:
    loop = """
    %%leakline again
    for epoch in range(3):
        run.epoch(epoch)
    """
    start = INIT.replace(", quiet=True", "")
    said, printed = run_cells(tmp_path, start, loop, loop, loop, "run.finish()")
    assert all(line == "None NoneType" for line in said)
    assert printed.count("counting continues from there") == 1
    (run,) = Place(tmp_path).recorded()
    ends: list[Any] = [s.generation for s in run.snapshots if s.kind == "generation_end"]
    assert ends == list(range(9))
    assert run.header.unit == "epoch"


def test_cells_run_without_a_run(tmp_path: Path) -> None:
    said, _ = run_cells(tmp_path, "%load_ext leakline", "%%leakline train\n7")
    assert said[1] == "7 NoneType"

"""Logs from current versions of W&B, MLflow, psrecord and mprof, read by `leakline import`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.flows.conftest import clean_environment

from .conftest import PROGRAMS, Ended

MIB = 2**20
TOOL_SECONDS = 120.0


def imported(folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "leakline", "import", *arguments, "--out", "out.spool", "--json"],
        cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=TOOL_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def growth(answer: dict[str, Any]) -> float:
    return float(answer["verdict"]["growth_bytes_per_generation"]["estimate"])


def test_an_offline_wandb_run_is_imported(
    run_program: Callable[..., Ended], tmp_path: Path
) -> None:
    ended = run_program("logs_to_wandb", "")
    assert ended.status == 0, ended.errors
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    for path in (log, log.parent):
        answer = imported(tmp_path, str(path.relative_to(tmp_path)))
        assert (answer["format"], answer["project"], answer["name"]) == (
            "wandb",
            "leaky",
            "before-fix",
        )
        assert answer["verdict"]["unit"] == "epoch" and answer["readings"] >= 8
        assert growth(answer) == pytest.approx(8 * MIB, rel=0.15)


def test_an_mlflow_database_is_imported(run_program: Callable[..., Ended], tmp_path: Path) -> None:
    ended = run_program("logs_to_mlflow", "")
    assert ended.status == 0, ended.errors
    answer = imported(tmp_path, "mlflow.db")
    assert (answer["format"], answer["project"], answer["name"]) == (
        "mlflow",
        "leaky",
        "before-fix",
    )
    assert (answer["verdict"]["unit"], answer["verdict"]["generations"]) == ("step", 12)
    # Memory of MLflow itself in its first steps, a MiB or more in some, is within the tolerance.
    assert growth(answer) == pytest.approx(32 * MIB, rel=0.15)


@pytest.mark.parametrize(
    ("form", "command"),
    [
        ("psrecord", ("psrecord", "{program}", "--log", "out.txt", "--interval", "0.2")),
        ("mprof", ("mprof", "run", "-o", "out.txt", "-T", "0.2", "{program}")),
    ],
)
def test_the_log_of_an_external_recorder_is_imported(
    tmp_path: Path, form: str, command: tuple[str, ...]
) -> None:
    program = f"{sys.executable} {PROGRAMS / 'keeps_memory.py'}"
    tool = Path(sys.executable).with_name(command[0])
    words = [word.format(program=program) for word in command[1:]]
    if form == "mprof":
        words[-1:] = program.split()
    subprocess.run(
        [tool, *words], cwd=tmp_path, check=True, capture_output=True, timeout=TOOL_SECONDS
    )
    answer = imported(tmp_path, "out.txt")
    assert answer["format"] == form and answer["readings"] >= 8

"""CPU of the training process for logging a snapshot with each tracker's own client, without a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from typing import Final

from .feeding import full_or_short, log_progress
from .machine import on_server_core
from .rows import Line, Part
from .samples import SAMPLES
from .subjects import ROOT, Absent, peers_python

SNAPSHOTS: Final = full_or_short(150, 30)
OURS: Final = "Leakline, offline"
# Name of each in the table, and its module.
LOGGERS: Final = {
    OURS: "leakline", "W&B, offline": "wandb", "MLflow, SQLite": "mlflow", "trackio, local": "trackio",
    "Aim, local": "aim",
}  # fmt: skip


def measure() -> list[Part]:
    lines = [_measured(name, module) for name, module in LOGGERS.items()]
    ours = lines[0].figures.get("cpu_per_million")
    title = (
        f"loggers without a server: CPU of the trainer, {SNAPSHOTS} snapshots of {SAMPLES} numbers"
    )
    return [Part(title, [_with_ratio(line, ours) for line in lines])]


def _measured(name: str, module: str) -> Line:
    try:
        python = sys.executable if name == OURS else peers_python(module)
    except Absent as error:
        return Line(name, missing=str(error))
    log_progress(f"logging through {name}")
    with tempfile.TemporaryDirectory(
        prefix="leakline-bench-", ignore_cleanup_errors=True
    ) as folder:
        command = [python, "-m", "benchmarks.server.tracked", module, str(SAMPLES), str(SNAPSHOTS)]
        ended = subprocess.run(
            on_server_core([*command, folder]), cwd=folder, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    if ended.returncode:
        return Line(name, missing=(ended.stderr.strip().splitlines() or ["it failed"])[-1])
    cpu, wall = json.loads(ended.stdout.splitlines()[-1])
    figures = {
        "cpu_per_million": cpu / (SNAPSHOTS * SAMPLES) * 1e6,
        "us_per_snapshot": cpu / SNAPSHOTS * 1e6,
        "per_second": SNAPSHOTS / wall,
    }
    return Line(name, figures)


def _with_ratio(line: Line, ours: float | None) -> Line:
    if line.name == OURS or ours is None or not line.figures:
        return line
    return replace(line, figures={**line.figures, "ratio": line.figures["cpu_per_million"] / ours})

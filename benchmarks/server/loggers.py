"""Aim, which is no server: what its ``track`` costs the trainer itself."""

from __future__ import annotations

import json
import subprocess
import tempfile
from typing import Final

from .feeding import full_or_short
from .machine import on_server_core
from .rows import Line, Part
from .samples import SAMPLES
from .subjects import Absent, peers_python

SNAPSHOTS: Final = full_or_short(150, 30)
_TRACK: Final = """
import json, sys, time
from aim import Run
names, snapshots = int(sys.argv[1]), int(sys.argv[2])
run = Run(repo=sys.argv[3], system_tracking_interval=None, capture_terminal_logs=False, log_system_params=False)
began, wall = time.process_time(), time.perf_counter()
for step in range(snapshots):
    for name in range(names):
        run.track(step * name, name=f"series_{name}", step=step)
run.close()
print(json.dumps([time.process_time() - began, time.perf_counter() - wall]))
"""


def measure() -> list[Part]:
    title = "loggers without a server: CPU of the trainer"
    try:
        command = [peers_python("aim"), "-c", _TRACK, str(SAMPLES), str(SNAPSHOTS)]
    except Absent as error:
        return [Part(title, [Line("Aim, local", missing=str(error))])]
    with tempfile.TemporaryDirectory(prefix="leakline-bench-") as folder:
        ended = subprocess.run(
            on_server_core([*command, folder]),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if ended.returncode:
        why = (ended.stderr.strip().splitlines() or ["it failed"])[-1]
        return [Part(title, [Line("Aim, local", missing=why)])]
    cpu, wall = json.loads(ended.stdout.splitlines()[-1])
    figures = {
        "cpu_per_million": cpu / (SNAPSHOTS * SAMPLES) * 1e6,
        "snapshots_per_cpu_second": SNAPSHOTS / cpu,
        "per_second": SNAPSHOTS / wall,
    }
    return [Part(title, [Line("Aim, local", figures)])]

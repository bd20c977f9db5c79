"""Log snapshots with one tracker's own client in this process, and print the cost as JSON.

Each tracker runs in its own environment, so this module imports only what all of them have. The clock runs from the
first snapshot until the tracker has finished, for the process and everything it has started: W&B writes in a separate
process.

example: python -m benchmarks.server.tracked aim 65 150 /tmp/folder
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.server.machine import cpu_seconds

Snapshot = dict[str, float]
# A function that logs a step with its snapshot, and one that ends the run.
Opened = tuple[Callable[[int, Snapshot], object], Callable[[], object]]


def leakline(folder: Path) -> Opened:
    """Log gauges and a snapshot. Leakline also reads memory and counts objects, as it always does."""
    # With an overhead limit, snapshots at this rate would be thinned out.
    os.environ["LEAKLINE_MAX_OVERHEAD"] = "1"
    run: Any = import_module("leakline").init(
        "benchmark", mode="offline", quiet=True, directory=folder
    )

    def log(step: int, snapshot: Snapshot) -> None:
        run.generation(step)
        for name, value in snapshot.items():
            run.gauge(name, value)
        run.snapshot("logged")

    return log, run.finish


def aim(folder: Path) -> Opened:
    run: Any = import_module("aim").Run(
        repo=str(folder), system_tracking_interval=None,
        capture_terminal_logs=False, log_system_params=False,
    )  # fmt: skip

    def log(step: int, snapshot: Snapshot) -> None:
        for name, value in snapshot.items():
            run.track(value, name=name, step=step)

    return log, run.close


def wandb(folder: Path) -> Opened:
    client: Any = import_module("wandb")
    run = client.init(
        project="benchmark", mode="offline", dir=str(folder),
        settings=client.Settings(console="off", x_disable_stats=True, silent=True),
    )  # fmt: skip
    return lambda step, snapshot: run.log(snapshot, step=step), run.finish


def mlflow(folder: Path) -> Opened:
    client: Any = import_module("mlflow")
    client.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    client.start_run()
    return lambda step, snapshot: client.log_metrics(snapshot, step=step), client.end_run


def trackio(folder: Path) -> Opened:
    os.environ["TRACKIO_DIR"] = str(folder)
    client: Any = import_module("trackio")
    client.init(project="benchmark", embed=False, auto_log_gpu=False, auto_log_cpu=False)
    return lambda step, snapshot: client.log(snapshot, step=step), client.finish


TRACKERS: Final[dict[str, Callable[[Path], Opened]]] = {
    "leakline": leakline, "wandb": wandb, "mlflow": mlflow, "trackio": trackio, "aim": aim,
}  # fmt: skip


def main(tracker: str, names: int, snapshots: int, folder: Path) -> None:
    log, done = TRACKERS[tracker](folder)
    me = os.getpid()
    cpu, wall = cpu_seconds([me]), time.perf_counter()
    for step in range(snapshots):
        log(step, {f"series_{name}": float(step * name) for name in range(names)})
    done()
    print(json.dumps([cpu_seconds([me]) - cpu, time.perf_counter() - wall]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))

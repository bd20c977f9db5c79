"""Measure the cost of Leakline's server, and compare it with alternatives in the same run.

    make bench-peers                  installs VictoriaMetrics, Prometheus, InfluxDB, trackio, MLflow, Aim, W&B
    make bench-server                 prints a table for each part, then every figure with its target
    make bench-server CHECK=1         exits with 1 when a target is missed or could not be measured; lists the rows
                                      that were not selected

    ROWS=ingest,runs                  any of ingest, runs, latency, disk, reads, overlay, list, fanout, loggers, kills
    KILLS=200                         of each kind of server, instead of 20
    SHORT=1                           one short pass, to check that it works; CHECK=1 always fails with it
    BENCH_ARGS="--json FILE --markdown FILE"

The measured server has one core to itself, the driver has the others. Peers take turns and receive the same samples:
65 numbers per snapshot. CPU is that of all processes of a server until it is idle again; by then Leakline has sealed
all full blocks, and the cost of sealing the rest of the finished runs and of compaction is measured separately and
added. Leakline's analysis, which no peer has and which is limited by time, is listed separately.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import Final

from benchmarks.program import Program

from . import disk, fanout, ingest, kills, latency, listing, loggers, many_runs, reading
from .feeding import SHORT
from .machine import SERVER_CORE, end_with_all_that_was_started, pin_driver

PROGRAM: Final = Program(
    "server",
    __doc__,
    {
        "ingest": ingest.measure,
        "runs": many_runs.measure,
        "latency": latency.measure,
        "disk": disk.measure,
        "reads": reading.measure,
        "overlay": reading.overlay,
        "list": listing.measure,
        "fanout": fanout.measure,
        "loggers": loggers.measure,
        "kills": kills.measure,
    },
    SHORT,
)


def main() -> int:
    end_with_all_that_was_started()
    pin_driver()
    return PROGRAM.run(
        f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()},"
        f" {os.cpu_count()} cores (servers on core {SERVER_CORE}), load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())

"""What Leakline's server costs, in one run beside what a user could take instead.

    make bench-peers           brings VictoriaMetrics, Prometheus, InfluxDB, trackio, MLflow, Aim, W&B
    make bench-server                 prints a table for each part, then every figure with what it is held to
    make bench-server CHECK=1         ends with 1 when a figure falls short, or could not be measured; says which rows
                                      were not asked for

    ROWS=ingest,runs                  of ingest, runs, latency, disk, reads, overlay, list, fanout, loggers, kills
    KILLS=200                         of each kind of server, instead of 20
    SHORT=1                           everything once and less of it: to see that it runs; no CHECK=1 passes with it
    BENCH_ARGS="--json FILE --markdown FILE"

Who is measured has one core to itself, who measures has the others. Peers take turns and get the same samples: 65
numbers a snapshot. CPU is that of all processes of a server until it is quiet again; ours has sealed all blocks
that are full by then, and what the rest of the finished runs and compaction take is measured apart and added.
Leakline's analysis, which no peer has and which is bounded by time, is told apart.
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

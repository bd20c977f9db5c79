"""What Leakline's server costs, in one run beside what a user could take instead.

    make bench-server-peers           brings the others: VictoriaMetrics, Prometheus, InfluxDB, trackio, MLflow, Aim
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

import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from typing import Final

from benchmarks.printing import options as read_options

from . import disk, fanout, ingest, kills, latency, listing, loggers, many_runs, reading
from .feeding import SHORT
from .load import Failed
from .machine import SERVER_CORE, end_with_all_that_was_started, pin_driver
from .rows import Figure, Line, Part, figure_table, part_table, to_json

ROWS: Final[dict[str, Callable[[], list[Part]]]] = {
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
}


def main() -> int:
    options = read_options("server", __doc__, "all parts")
    asked = _asked()
    end_with_all_that_was_started()
    pin_driver()
    print(_machine(), flush=True)
    parts: list[Part] = []
    for name in asked:
        began = time.monotonic()
        found = _measured(name)
        for part in found:
            print("\n" + part_table(part), end="", flush=True)
        print(f"({name}: {time.monotonic() - began:.0f} s)", flush=True)
        parts += found
    figures = [figure for part in parts for figure in part.figures]
    print("\n" + figure_table("what is held", figures))
    if options.json is not None:
        told = {"machine": _machine(), "parts": [to_json(part) for part in parts]}
        options.json.write_text(json.dumps(told, indent=1))
    if options.markdown is not None:
        tables = [figure_table("what is held", figures, markdown=True)]
        tables += [part_table(part, markdown=True) for part in parts]
        options.markdown.write_text("\n".join((_machine(), "", *tables)))
    return check(figures, asked, SHORT) if os.environ.get("CHECK") else 0


def _measured(name: str) -> list[Part]:
    """What breaks off costs its own figures, not those of the others."""
    try:
        return ROWS[name]()
    except (Failed, OSError, KeyError) as error:
        why = f"{type(error).__name__}: {error}"
        traceback.print_exc()
        return [
            Part(f"{name} broke off", [Line(name, missing=why)], [Figure(name, 0, missing=why)])
        ]


def _asked() -> list[str]:
    asked = os.environ.get("ROWS")
    if not asked:
        return list(ROWS)
    names = asked.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise SystemExit(f"bench-server: ROWS has {unknown[0]!r}; use some of {','.join(ROWS)}")
    return [name for name in ROWS if name in names]


def check(figures: list[Figure], asked: list[str], shortened: bool) -> int:
    """The exit status. Says what falls short, and what this says nothing about."""
    short = [figure for figure in figures if not figure.holds]
    for figure in short:
        told = (
            f"{figure.measured()} is not {figure.target()}"
            if figure.value is not None
            else figure.verdict()
        )
        _say(f"{figure.name}: {told}")
    left_out = [name for name in ROWS if name not in asked]
    if left_out:
        _say(f"not checked, because ROWS leaves it out: {', '.join(left_out)}")
    if shortened:
        _say("SHORT=1 measures less than what is held, so CHECK=1 fails with it")
    if not figures:
        _say("these rows hold no figure; CHECK=1 has nothing to check")
    return 1 if short or shortened or not figures else 0


def _say(what: str) -> None:
    print(f"bench-server: {what}", file=sys.stderr)


def _machine() -> str:
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()},"
        f" {os.cpu_count()} cores (servers on core {SERVER_CORE}), load {os.getloadavg()[0]:.1f}"
        + (", SHORT: figures are not to be believed" if SHORT else "")
    )


if __name__ == "__main__":
    sys.exit(main())

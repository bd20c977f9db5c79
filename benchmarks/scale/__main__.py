"""Simulate thousands of training processes that post recorded snapshots, and print the servers' cost per process.

    python -m benchmarks.scale                                   1,000 and 10,000 processes, one server on SQLite
    python -m benchmarks.scale --database postgres --servers 3   several servers on one Postgres, used in turn
    python -m benchmarks.scale --server http://a:8765 --server http://b:8765 --processes 20000
    python -m benchmarks.scale --recorded .leakline/RUN          a client's recording instead of a small training

Every process joins a run and takes a snapshot every ``--interval`` seconds; it posts ``--together`` snapshots per
request, over its own connection and to the servers in turn, as behind a proxy. A client sends a snapshot 0.3 s after
taking it, which is ``--together 1``. CPU and memory are read from each server's /metrics and from a Postgres started
here; the analysis is listed separately. All of it shares the machine with the simulator. Within a minute nothing is
sealed or compacted: costs are those of ingest, and memory and disk those of young runs. If `--seconds` is long enough
for sealing, the table shows how many snapshots were sealed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import quantiles
from typing import Final

from benchmarks.printing import markdown_table, text_table
from benchmarks.server.bodies import request
from benchmarks.server.load import Due, Load, Plan, closed, drive
from benchmarks.server.machine import end_with_all_that_was_started

from .recording import Process, Recording, of_spool, recorded_now
from .servers import Reading, Servers, given, settled, started

JOINING: Final = 16


@dataclass(frozen=True, slots=True)
class Step:
    """One number of processes: what was posted, and what the servers used."""

    processes: int
    seconds: float
    load: Load
    empty: Reading
    before: Reading
    after: Reading
    settled: Reading
    together: int
    interval: float
    numbers_each: float
    joining_seconds: float
    simulator_cpu: float

    @property
    def snapshots(self) -> int:
        refused = sum(n for status, n in self.load.statuses.items() if status >= 300)
        return (self.load.requests - refused) * self.together

    def figures(self) -> dict[str, float]:
        points = self.snapshots * self.numbers_each
        cpu = self.settled.cpu - self.before.cpu - self.analysis
        database = self.settled.database_cpu - self.before.database_cpu
        disk = self.settled.disk - self.empty.disk
        percentiles = quantiles(self.load.seconds[""], n=100)
        return {
            "requests_per_second": self.load.requests / self.seconds,
            "points_per_second": points / self.seconds,
            "server_us_per_snapshot": cpu / self.snapshots * 1e6,
            "database_us_per_snapshot": database / self.snapshots * 1e6,
            "ns_per_point": (cpu + database) / points * 1e9,
            "cores_per_thousand": (cpu + database) / self.snapshots / self.interval * 1e3,
            "analysis_cores": self.analysis / self.seconds,
            "memory_mib": self.after.memory_mib,
            "kib_per_process": (self.after.memory_mib - self.empty.memory_mib)
            * 1024
            / self.processes,
            "disk_kib_per_process": disk / 1024 / self.processes,
            "p50_ms": percentiles[49] * 1e3,
            "p99_ms": percentiles[98] * 1e3,
            "sealed": self.settled.sealed - self.before.sealed,
            "refused": sum(n for status, n in self.load.statuses.items() if status >= 300),
            "joined_per_second": self.processes / self.joining_seconds,
            "simulator_cores": self.simulator_cpu / self.seconds,
        }

    @property
    def analysis(self) -> float:
        return self.settled.analysis - self.before.analysis


ROWS: Final = {
    "requests_per_second": ("requests per second", "{:,.0f}"),
    "points_per_second": ("points per second", "{:,.0f}"),
    "server_us_per_snapshot": ("server CPU per snapshot, µs", "{:,.0f}"),
    "database_us_per_snapshot": ("Postgres CPU per snapshot, µs", "{:,.0f}"),
    "ns_per_point": ("CPU per point, ns", "{:,.0f}"),
    "cores_per_thousand": ("cores for 1,000 processes", "{:.3f}"),
    "analysis_cores": ("analysis, cores", "{:.2f}"),
    "memory_mib": ("memory of the servers, MiB", "{:,.0f}"),
    "kib_per_process": ("memory per process, KiB", "{:,.1f}"),
    "disk_kib_per_process": ("disk per process, KiB: names, verdict, unsealed data", "{:,.1f}"),
    "p50_ms": ("answer p50, ms", "{:,.1f}"),
    "p99_ms": ("answer p99, ms", "{:,.1f}"),
    "sealed": ("snapshots sealed during the run", "{:,.0f}"),
    "refused": ("requests refused (429, 503)", "{:,.0f}"),
    "joined_per_second": ("processes joined per second", "{:,.0f}"),
    "simulator_cores": ("simulator, cores", "{:.2f}"),
}


def main() -> int:
    options = _options()
    end_with_all_that_was_started()
    _allow_sockets(max(options.processes))
    recording = of_spool(options.recorded) if options.recorded else recorded_now()
    print(
        f"{len(recording.snapshots)} recorded snapshots of {recording.series_each:.0f} numbers",
        flush=True,
    )
    steps = []
    for processes in options.processes:
        steps.append(_fresh(options, recording, processes))
        print(_table(steps[-1:]), flush=True)
    if len(steps) > 1:
        print(_table(steps))
    if options.markdown is not None:
        options.markdown.write_text(_table(steps, markdown=True))
    if options.json is not None:
        told = [{"processes": s.processes, **s.figures()} for s in steps]
        options.json.write_text(json.dumps(told, indent=1))
    return 0


def _fresh(options: argparse.Namespace, recording: Recording, processes: int) -> Step:
    if options.server:
        return _step(given(options.server), options, recording, processes)
    with started(options.database, options.servers) as servers:
        return _step(servers, options, recording, processes)


def _step(
    servers: Servers, options: argparse.Namespace, recording: Recording, processes: int
) -> Step:
    name = f"scale-{int(time.time())}"
    rng = random.Random(processes)
    simulated = [
        Process(
            recording, f"{name}-{i}", i % options.ranks, rng.randrange(len(recording.snapshots))
        )
        for i in range(processes)
    ]
    runs = [f"{name}-{i // options.ranks}" for i in range(processes)]
    empty, began = servers.read(), time.perf_counter()
    _join(servers, runs, simulated)
    joining = time.perf_counter() - began
    period = options.interval * options.together
    # Every process posts once before the measurement, so that the servers know it.
    drive(_plans(servers, runs, simulated, options, rng, period), patient=True)
    before, used, began = settled(servers), time.process_time(), time.perf_counter()
    load = drive(_plans(servers, runs, simulated, options, rng, options.seconds), patient=True)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    after = servers.read()
    return Step(
        processes, seconds, load, empty, before, after, settled(servers), options.together,
        options.interval, recording.series_each, joining, used,
    )  # fmt: skip


def _join(servers: Servers, runs: Sequence[str], simulated: Sequence[Process]) -> None:
    def joined(run: str, process: Process) -> bytes:
        body = json.dumps({"id": run, "project": "scale", "name": run, "process": process.identity})
        headers = {"content-type": "application/json"}
        return request("POST", "/api/v1/runs", body.encode(), headers)

    for at, address in enumerate(servers.addresses):
        mine = list(zip(runs, simulated, strict=True))[at :: len(servers.addresses)]
        closed(address, [[joined(*each) for each in mine[i::JOINING]] for i in range(JOINING)])


def _plans(
    servers: Servers, runs: Sequence[str], simulated: Sequence[Process],
    options: argparse.Namespace, rng: random.Random, seconds: float,
) -> list[Plan]:  # fmt: skip
    """Return a plan for each process; its first post is at a random time within the period."""
    period = options.interval * options.together
    return [
        Plan(
            servers.addresses[i % len(servers.addresses)],
            _posts(run, process, options, period, rng.uniform(0.01, period), seconds),
        )
        for i, (run, process) in enumerate(zip(runs, simulated, strict=True))
    ]


def _posts(
    run: str,
    process: Process,
    options: argparse.Namespace,
    period: float,
    first: float,
    seconds: float,
) -> Iterator[Due]:
    for i in count():
        due = first + i * period
        if due > seconds:
            return
        yield due, partial(_post, run, process, options.together, options.interval)


def _post(run: str, process: Process, together: int, interval: float) -> bytes:
    body, compressed = process.body(together, interval)
    headers = {"content-type": "application/json"}
    if compressed:
        headers["content-encoding"] = "gzip"
    return request("POST", f"/api/v1/runs/{run}/batches", body, headers)


def _table(steps: Sequence[Step], markdown: bool = False) -> str:
    figures = [step.figures() for step in steps]
    lines = [["processes", *(f"{step.processes:,}" for step in steps)]]
    lines += [[head, *(form.format(f[key]) for f in figures)] for key, (head, form) in ROWS.items()]
    first = steps[0]
    title = f"one snapshot every {first.interval:g} s, {first.together} per request, for {first.seconds:.0f} s"
    write = markdown_table if markdown else text_table
    return write(title, lines, [True, *[False] * len(steps)])


def _allow_sockets(processes: int) -> None:
    """Raise the limit of open files: one socket per process, here and in the servers started from here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < hard < processes + 200:
        raise SystemExit(
            f"benchmarks.scale: {processes} processes need as many sockets, and {hard} may be open here;"
            " raise the limit (ulimit -Hn) or use fewer processes"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser.add_argument("--processes", type=numbers, default=[1_000, 10_000], metavar="N,N")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes per run")
    parser.add_argument(
        "--server",
        action="append",
        metavar="URL",
        help="address of a running server; repeat it for several",
    )
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument(
        "--servers", type=int, default=1, metavar="N", help="servers to start on one Postgres"
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="seconds between two snapshots",
    )
    parser.add_argument(
        "--together", type=int, default=1, metavar="N", help="snapshots per request"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="seconds of posting"
    )
    parser.add_argument(
        "--recorded", type=Path, metavar="PATH", help="a spool, or a folder with one"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.database == "sqlite" and options.servers != 1:
        parser.error("several servers need --database postgres")
    return options


if __name__ == "__main__":
    sys.exit(main())

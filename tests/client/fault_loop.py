"""A real training loop in its own process against a faulty server, and what that costs the loop.

Our threads can delay one iteration by at most the CPU time they use in it, and by at most the time by which it was too
long. The smaller of the two is counted as ours, so a busy machine does not distort the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tests.client.faults import FaultServer

from leakline.transport.http_delivery import Delivery
from leakline.transport.spool_format import DROPPED, THINNED
from leakline.transport.spool_upload import upload

LOOP: Final = """
import functools, hashlib, json, statistics, sys, threading, time
import leakline
import leakline.transport.sender, leakline.core.pipeline

# Simulate an outage of hours in seconds: a hundred times as many attempts, which still take a small part of the time.
leakline.transport.sender.FIRST_PAUSE_SECONDS = leakline.transport.sender.LONGEST_PAUSE_SECONDS = 0.3
leakline.core.pipeline.Delivery = functools.partial(leakline.core.pipeline.Delivery, timeout_seconds=0.3)
seconds, waiting = {seconds}, {waiting}
run = leakline.init(mode={mode!r}, server={server!r}, quiet=False)
sender = run._chain.sender
block = b"x" * 400_000
ours = [t.ident for t in threading.enumerate() if t.name.startswith("leakline-")]
# Figures in /proc for a running thread are as old as the last tick, up to 10 ms; its own clock is exact.
clocks = [time.pthread_getcpuclockid(ident) for ident in ours]

def our_cpu():
    return sum(map(time.clock_gettime, clocks))

def work():
    # Half of the work holds the interpreter lock, and half releases it.
    for _ in range(8):
        sum(range(12_000))
        hashlib.sha256(block)

def train(until):
    walls, stalls, calls = [], [], [0.0]
    begun, cpu = time.perf_counter(), our_cpu()
    while not until(time.perf_counter() - begun):
        before, started = our_cpu(), time.perf_counter()
        work()
        walls.append(time.perf_counter() - started)
        stalls.append(our_cpu() - before)
        if len(walls) % 20 == 0:
            called, busy = time.perf_counter(), time.thread_time()
            with run.generation(len(walls) // 20), run.phase("train"):
                pass
            calls.append(time.perf_counter() - called - (time.thread_time() - busy))
    usual = statistics.median(walls)
    ours = [min(max(0.0, wall - usual), cpu) for wall, cpu in zip(walls, stalls)]
    calls.sort()
    return {{
        "iterations": len(walls), "work_seconds": usual, "longest_stall": max(ours),
        "longest_wait": calls[-1], "usual_wait": calls[len(calls) * 99 // 100],
        "share": (our_cpu() - cpu) / (time.perf_counter() - begun),
        "held_up": sum(ours) / sum(walls),
    }}

def peak_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

def say(what):
    print(json.dumps(what), flush=True)

train(lambda took: took > 0.5)
say(train(lambda took: took > seconds))
loop = run._chain.loop
for number in range(waiting):
    # One snapshot in ten seconds, by the clock of the snapshots.
    loop._wall_clock = lambda: time.time() - 10 * (waiting - number)
    run.snapshot("background")
    # The queue is bounded, so do not add snapshots faster than they are recorded.
    if number % 500 == 499:
        run._chain.recorder.flush(30)
loop._wall_clock = time.time
say({{"peak_bytes": peak_bytes(), "failures": sender.failures if sender else 0}})
sys.stdin.readline()
is_behind = run._chain.outbox.pending if sender is not None else lambda: False
say(train(lambda took: took > seconds and (took > 60 or not is_behind())))
run.finish()
say({{"peak_bytes": peak_bytes(), "lost": run._chain.recorder._losses.totals()}})
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of an outage: the ``outage`` and ``after`` parts reported by the loop, and peak memory in bytes."""

    outage: dict[str, Any]
    after: dict[str, Any]
    peak_bytes: int
    failures: int
    lost: dict[str, int]

    @property
    def longest_stall_seconds(self) -> float:
        return max(self.outage["longest_stall"], self.after["longest_stall"])

    @property
    def held_up(self) -> float:
        """Share of the loop's time lost during the outage and the catch-up together."""
        both = (self.outage, self.after)
        seconds = [part["iterations"] * part["work_seconds"] for part in both]
        return sum(p["held_up"] * s for p, s in zip(both, seconds, strict=True)) / sum(seconds)


def train(
    folder: Path, server: FaultServer, mode: str, seconds: float, waiting: int, kind: str = "online"
) -> Cost:
    """Run the loop through an outage of ``seconds`` with ``waiting`` extra snapshots, and up to a minute after it.

    Snapshots that have not arrived by then are synced.
    """
    server.set(mode)
    script = folder / "loop.py"
    text = LOOP.format(seconds=seconds, waiting=waiting, mode=kind, server=server.address)
    script.write_text(text)
    environment = {
        **os.environ,
        "LEAKLINE_DIR": str(folder / "spool"),
        "LEAKLINE_MAX_OVERHEAD": "0.01",
    }
    said = folder / "stderr"
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        stderr=said.open("w"),
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        outage, figures = _line(process.stdout), _line(process.stdout)
        server.set("healthy")
        process.stdin.write("\n")
        process.stdin.flush()
        after, last = _line(process.stdout), _line(process.stdout)
        # Nothing of ours may appear in the program's stdout.
        assert process.stdout.read() == ""
        assert process.wait(60) == 0, said.read_text()
    finally:
        process.kill()
        process.wait()
    if kind == "online":
        (path,) = (folder / "spool").rglob("*.spool")
        upload(path, Delivery(server.address))
    lines = said.read_text().splitlines()
    # At most: the start, the unreachable server, its recovery, what is left to sync, and the verdict.
    assert len(lines) <= 5, lines
    # Other reasons count snapshots that were never taken.
    lost = {reason: n for reason, n in last["lost"].items() if reason in DROPPED | THINNED}
    return Cost(outage, after, figures["peak_bytes"], figures["failures"], lost)


def _line(stdout: IO[str]) -> dict[str, Any]:
    return dict(json.loads(stdout.readline()))

"""Trainings that are killed at random moments and then synced: compare what they recorded with what the server has.

A training notes each snapshot in shared memory, which outlives it, with its time and a unique number.
"""

from __future__ import annotations

import mmap
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from leakline.transport.http_delivery import request_json

TRAINING: Final = """
import mmap, os, random, struct, time
import leakline, leakline.settings

# A spool this small is rewritten several times a second.
leakline.settings.SMALLEST_SPOOL_LIMIT_BYTES = 0
stamps = mmap.mmap(os.open(os.environ["STAMPS"], os.O_RDWR), 0)

def stamp(snapshot):
    ticket = snapshot.samples.get("gauge.ticket", -1)
    struct.pack_into("<dd", stamps, 16 * snapshot.sequence, ticket, snapshot.monotonic)

run = leakline.init()
run._chain.loop.listeners.append(stamp)
noise, ticket, generation = random.Random(), 0, 0
while True:
    run.generation(generation)
    for _ in range(5):
        ticket += 1
        run.gauge("ticket", ticket)
        for i in range(int(os.environ["GAUGES"])):
            run.gauge(f"noise_{i}", noise.random())
        with run.phase("train"):
            time.sleep(0.002)
    generation += 1
"""
SNAPSHOTS: Final = 1 << 14
# One core is left for the server: a training without CPU time records late.
AT_ONCE: Final = max(1, (os.cpu_count() or 1) - 1)


@dataclass
class Figures:
    """Totals over all kills. ``lost_seconds``: from the last snapshot on the server to the last one taken."""

    kills: int = 0
    taken: int = 0
    stored: int = 0
    rewriting: int = 0
    lost_seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lost = self.lost_seconds
        return (
            f"{self.kills} kills, {self.rewriting} in a rewrite; {self.stored} of {self.taken} snapshots stored; "
            f"lost at the end: median {statistics.median(lost):.3f} s, at most {max(lost):.3f} s"
        )


class Victim:
    """A training that will be killed."""

    def __init__(self, folder: Path, name: str, server: str | None, *, small: bool) -> None:
        self.name, self.online, self.small = name, server is not None, small
        self.spools = folder / "spools" / name
        stamps = folder / f"{name}.stamps"
        stamps.write_bytes(bytes(16 * SNAPSHOTS))
        with stamps.open("r+b") as file:
            self._stamps = mmap.mmap(file.fileno(), 0)
        more = {"LEAKLINE_SPOOL_LIMIT": "64 KiB"} if small else {}
        where = {"LEAKLINE_MODE": "offline"} if server is None else {"LEAKLINE_SERVER": server}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINING], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={
                **os.environ, **more, **where, "LEAKLINE_DIR": str(folder / "spools"), "LEAKLINE_RUN_ID": name,
                "LEAKLINE_QUIET": "1", "LEAKLINE_MAX_OVERHEAD": "1", "STAMPS": str(stamps),
                "GAUGES": "120" if small else "10",
            },
        )  # fmt: skip

    def kill(self, after_seconds: float, *, at_start: bool, in_rewrite: bool) -> str:
        """Kill it some time after it began to record, and return its output.

        ``at_start``: counted from the start of the process; ``in_rewrite``: then wait for its next spool rewrite.
        """
        pause, deadline = threading.Event(), time.monotonic() + 60
        while not (at_start or self.taken()):
            assert self.process.poll() is None, self._said()
            assert time.monotonic() < deadline, "it never began"
            pause.wait(0.005)
        pause.wait(after_seconds)
        deadline = time.monotonic() + 3
        while in_rewrite and not list(self.spools.glob("*.rewrite")):
            if time.monotonic() > deadline:
                break
            pause.wait(0.0005)
        self.process.kill()
        return self._said()

    def _said(self) -> str:
        return self.process.communicate()[1].decode()

    def taken(self) -> dict[int, tuple[float, float]]:
        """Return sequence number -> (ticket, monotonic seconds)."""
        rows = struct.iter_unpack("<dd", self._stamps)
        return {n: row for n, row in enumerate(rows) if row[1]}


@contextmanager
def real_server(folder: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "leakline", "serve", "--port", "0"], cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None
    # Drain the log so that it cannot fill the pipe.
    threading.Thread(target=process.stdout.read, daemon=True).start()
    try:
        yield found[0]
    finally:
        process.terminate()
        process.wait(timeout=30)


def kill_and_sync(folder: Path, kills: int, seed: int = 1) -> Figures:
    """Kill ``kills`` trainings, with and without a server and some with a small spool; sync and compare."""
    chance, figures = random.Random(seed), Figures()
    with real_server(folder) as server:
        victims = []
        for first in range(0, kills, AT_ONCE):
            group = [
                Victim(
                    folder, f"kill-{number}", server if number % 2 else None, small=number % 4 >= 2
                )
                for number in range(first, min(first + AT_ONCE, kills))
            ]
            for victim in group:
                said = victim.kill(
                    chance.uniform(0, 1.5), at_start=chance.random() < 0.1,
                    in_rewrite=victim.small and chance.random() < 0.5,
                )  # fmt: skip
                figures.wrong += [f"{victim.name} said {said!r}"] if said else []
            victims += group
        figures.rewriting = len(list((folder / "spools").rglob("*.rewrite")))
        said = [sync(folder / "spools", server) for _ in range(2)]
        if re.search(r"[1-9]\d* snapshots sent", said[1]):
            figures.wrong.append(f"a second sync sent more: {said[1]}")
        for victim in victims:
            _compare(victim, server, figures)
    return figures


def sync(spools: Path, server: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "leakline", "sync", str(spools), "--server", server],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def _compare(victim: Victim, server: str, figures: Figures) -> None:
    taken, figures.kills = victim.taken(), figures.kills + 1
    if not list(victim.spools.glob("*.spool")):
        figures.wrong += [f"{victim.name} recorded nothing"] if taken else []
        return
    stored = _stored(server, victim.name)
    # A snapshot may have been put before the kill without being noted.
    newest = max(taken, default=1)
    figures.taken, figures.stored = figures.taken + newest, figures.stored + len(stored)
    for sequence, ticket in stored.items():
        noted = taken.get(sequence)
        if noted is not None and ticket != noted[0]:
            figures.wrong.append(f"{victim.name}: snapshot {sequence} has {ticket}, not {noted[0]}")
        if noted is None and sequence not in (1, newest + 1):
            figures.wrong.append(f"{victim.name}: snapshot {sequence} was never taken")
    last = max(stored, default=0)
    if not victim.small and sorted(stored) != list(range(1, last + 1)):
        figures.wrong.append(f"{victim.name}: there are holes before {last}")
    if taken:
        begun = min(seconds for _, seconds in taken.values())
        reached = taken[last][1] if last in taken else begun
        figures.lost_seconds.append(max(0.0, taken[newest][1] - reached))


def _stored(server: str, run: str) -> dict[int, float | None]:
    """Return sequence number -> ticket as stored on the server; fail on duplicates."""
    tickets = dict(_points(server, run, "gauge.ticket"))
    # Every snapshot of the training thread has this series.
    found = {
        sequence: tickets.get(sequence, -1) for sequence, _ in _points(server, run, "client.bytes")
    }
    details: dict[str, Any] = request_json(server, "GET", f"/runs/{run}")
    assert details["id"] == run
    return found


def _points(server: str, run: str, name: str) -> list[tuple[int, float]]:
    path = f"/runs/{run}/series?name={name}&x=sequence&points=20000"
    items = request_json(server, "GET", path)["items"]
    points = [
        (int(x), float(value))
        for item in items
        for x, value in zip(item["x"], item["last"], strict=True)
    ]
    assert len({sequence for sequence, _ in points}) == len(points), f"{run} has some twice"
    return points

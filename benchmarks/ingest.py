"""What a stored snapshot costs the server, against a floor measured in the same run.

The floor is a plain ASGI application on the same HTTP server that reads the same bodies and answers the same
answer, and does nothing else: no decoding, no checks, no disk. A snapshot has 65 samples (12 that move with every
snapshot, 15 that move slowly, 38 that stand still), runs are fed at the same time over kept connections, and every
batch is acknowledged only after it is on disk. CPU is that of the server process, user and system, sealing included;
what the analysis of the runs costs beside it is bounded by time and not by samples, and is told apart.

example: python benchmarks/ingest.py            CHECK=1 python benchmarks/ingest.py
"""

from __future__ import annotations

import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leakline.snapshot import Batch, ProcessIdentity, Snapshot, batch_to_wire

RUNS: Final = 8
SNAPSHOTS_PER_RUN: Final = {200: 4_000, 20: 1_000}
REPEATS: Final = 3
SAMPLES: Final = 65
# Server CPU as a multiple of the floor's. Two busy cores gave 31 to 39 and 14 to 21; the margin is for noise.
BOUNDS: Final = {200: 60.0, 20: 32.0}

ECHO: Final = """
import sys, uvicorn
ANSWER = b'{"accepted":0,"requests":[]}'
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"28")]})
    await send({"type": "http.response.body", "body": ANSWER})
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False, lifespan="off")
"""


@dataclass(frozen=True)
class Cost:
    cpu_seconds: float
    examine_seconds: float
    wall_seconds: float
    snapshots: int

    @property
    def per_million_samples(self) -> float:
        return self.cpu_seconds / (self.snapshots * SAMPLES) * 1e6

    @property
    def snapshots_per_second(self) -> float:
        return self.snapshots / self.wall_seconds


def snapshot(sequence: int, run: int) -> Snapshot:
    generation, phase = divmod(sequence, 4)
    samples: dict[str, int | float] = {
        f"process.busy_{i}_bytes": 2**30
        + run * 4096
        + sequence * 4096 * (i + 1)
        + (sequence * 7919 * i) % 65_536
        for i in range(12)
    }
    samples |= {f"type.slow.T{i}.count": 100 * i + generation // (i + 1) for i in range(15)}
    samples |= {f"type.still.T{i}.count": 1000 + i for i in range(SAMPLES - 27)}
    name = f"phase_{phase}"
    return Snapshot(
        sequence, 1.76e9 + sequence * 0.5, 10 + sequence * 0.5, generation, name,
        f"generation {generation}: after {name}", "phase_end", samples,
    )  # fmt: skip


def bodies(size: int, repeat: int) -> list[list[bytes]]:
    """Bodies of every run, made before anything is timed."""
    made = []
    for run in range(RUNS):
        who = ProcessIdentity(f"r{repeat}-{run}", 0, run, "bench")
        made.append(
            [
                json.dumps(
                    batch_to_wire(Batch(who, tuple(snapshot(first + i, run) for i in range(size)))),
                    separators=(",", ":"),
                ).encode()
                for first in range(0, SNAPSHOTS_PER_RUN[size], size)
            ]
        )
    return made


def feed(port: int, path: Callable[[int], str], what: Sequence[Sequence[bytes]]) -> None:
    def send(run: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for body in what[run]:
            connection.request("POST", path(run), body, {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise SystemExit(f"status {answer.status}: {answer.read().decode()}")
            answer.read()
        connection.close()

    threads = [threading.Thread(target=send, args=(run,)) for run in range(len(what))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cpu_seconds(pid: int) -> float:
    """Of all threads alive, to the nanosecond: the floor is far below the tick of /proc/<pid>/stat."""
    return (
        sum(
            int(task.read_text().split()[0])
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat")
        )
        / 1e9
    )


def measure(
    pid: int, port: int, path: Callable[[int], str], what: Sequence[Sequence[bytes]], size: int
) -> Cost:
    examined, before, began = examine_seconds(port), cpu_seconds(pid), time.perf_counter()
    feed(port, path, what)
    wall = time.perf_counter() - began
    settle(pid, port)
    examining = examine_seconds(port) - examined
    return Cost(cpu_seconds(pid) - before - examining, examining, wall, sum(map(len, what)) * size)


def settle(pid: int, port: int) -> None:
    """Sealing comes after the answers; it is part of the cost."""
    while True:
        before = cpu_seconds(pid) - examine_seconds(port)
        time.sleep(0.5)
        if cpu_seconds(pid) - examine_seconds(port) - before < 0.03:
            return


def examine_seconds(port: int) -> float:
    """CPU of the analysis so far; 0 for the floor, which has none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r"^leakline_examine_cpu_seconds_total ([\d.e+-]+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("POST", "/", b"")
            connection.getresponse().read()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def create_runs(port: int, repeat: int, size: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for run in range(RUNS):
        connection.request("POST", "/api/v1/runs", json.dumps({"id": f"b{size}-{repeat}-{run}"}))
        connection.getresponse().read()


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="leakline-bench-") as folder:
        ports = free_port(), free_port()
        servers = [
            subprocess.Popen([sys.executable, "-c", ECHO, str(ports[0])]),
            subprocess.Popen(
                [sys.executable, "-m", "leakline", "serve", "--port", str(ports[1])],
                cwd=folder, stdout=subprocess.DEVNULL,
            ),
        ]  # fmt: skip
        try:
            for port in ports:
                wait_for(port)
            costs = [row for size in SNAPSHOTS_PER_RUN for row in compare(servers, ports, size)]
            stored = Path(folder, ".leakline", "leakline.db").stat().st_size
        finally:
            for server in servers:
                server.terminate()
                server.wait(10)
    return report(costs, stored)


def compare(
    servers: Sequence[Any], ports: Sequence[int], size: int
) -> list[tuple[int, Cost, Cost]]:
    rows = []
    for repeat in range(REPEATS):
        what = bodies(size, repeat)
        create_runs(ports[1], repeat, size)
        floor = measure(servers[0].pid, ports[0], lambda _: "/", what, size)
        path = f"/api/v1/runs/b{size}-{repeat}-{{}}/batches"
        ours = measure(servers[1].pid, ports[1], path.format, what, size)
        rows.append((size, floor, ours))
    return rows


def report(costs: Sequence[tuple[int, Cost, Cost]], stored_bytes: int) -> int:
    print(
        "batch  floor s CPU/Msample  leakline s CPU/Msample   ratio  snapshots/s (wall)  analysis s CPU beside it"
    )
    failed = False
    for size in SNAPSHOTS_PER_RUN:
        rows = [(floor, ours) for s, floor, ours in costs if s == size]
        floor = statistics.median(f.per_million_samples for f, _ in rows)
        ours = statistics.median(o.per_million_samples for _, o in rows)
        speed = statistics.median(o.snapshots_per_second for _, o in rows)
        beside = sum(o.examine_seconds for _, o in rows)
        print(
            f"{size:5}  {floor:19.4f}  {ours:22.4f}  {ours / floor:6.1f}  {speed:18.0f}  {beside:24.1f}"
        )
        if os.environ.get("CHECK") and ours / floor > BOUNDS[size]:
            print(f"batch {size}: more than {BOUNDS[size]} times the floor")
            failed = True
    samples = sum(ours.snapshots for _, _, ours in costs) * SAMPLES
    print(f"on disk: {stored_bytes / samples:.2f} bytes a sample, free pages included")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

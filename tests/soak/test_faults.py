"""Each fault of a server: the loop is at most 1 % slower, stalls for at most 5 ms, and uses at most 10 MB more memory.

FAULT_SECONDS (10) of outage each, then FAULT_WAITING (10080) more snapshots, as after 24 hours; then the server is
healthy again and the loop continues for up to a minute while they are sent. FAULT_MODES selects the modes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.client.fault_loop import Cost, train
from tests.client.faults import MODES, FaultServer

SECONDS = float(os.environ.get("FAULT_SECONDS", "10"))
# A sample every ten seconds and a generation every minute for 24 hours.
WAITING = int(os.environ.get("FAULT_WAITING", str(8640 + 1440)))
CHOSEN = os.environ.get("FAULT_MODES", ",".join(("healthy", *MODES))).split(",")
SLOWDOWN, STALL_SECONDS, MEMORY_BYTES = 0.01, 0.005, 10 * 10**6


def test_no_fault_of_a_server_harms_the_training(
    tmp_path: Path, faulty: FaultServer, report: Callable[[object], None]
) -> None:
    names = "slowdown", "stall ms", "wait ms", "outage CPU", "after CPU", "MB more", "tries"
    report(" " * 16 + "".join(f"{name:>12}" for name in names))
    failed = []
    offline = train(_folder(tmp_path, "offline"), faulty, "healthy", SECONDS, WAITING, "offline")
    report(_row("offline", offline, offline))
    for mode in CHOSEN:
        faulty.batches.clear()
        cost = train(_folder(tmp_path, mode), faulty, mode, SECONDS, WAITING)
        report(_row(mode, cost, offline))
        arrived = sorted(faulty.sequences)
        if cost.lost or arrived != list(range(1, len(arrived) + 1)) or len(arrived) <= WAITING:
            failed.append(f"{mode}: {len(arrived)} arrived, lost {cost.lost}")
        if cost.held_up > SLOWDOWN:
            failed.append(f"{mode}: {cost.held_up:.2%} slower")
        if cost.longest_stall_seconds > STALL_SECONDS:
            failed.append(f"{mode}: a stall of {cost.longest_stall_seconds * 1000:.1f} ms")
        if cost.peak_bytes - offline.peak_bytes > MEMORY_BYTES:
            failed.append(f"{mode}: {(cost.peak_bytes - offline.peak_bytes) / 1e6:.1f} MB more")
    assert failed == []


def _folder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


def _row(name: str, cost: Cost, offline: Cost) -> str:
    more = (cost.peak_bytes - offline.peak_bytes) / 1e6
    wait = max(cost.outage["usual_wait"], cost.after["usual_wait"])
    figures = (
        f"{cost.held_up:.2%}", f"{cost.longest_stall_seconds * 1000:.2f}", f"{wait * 1000:.2f}",
        f"{cost.outage['share']:.2%}", f"{cost.after['share']:.2%}", f"{more:.1f}", f"{cost.failures}",
    )  # fmt: skip
    return f"{name:16}" + "".join(f"{figure:>12}" for figure in figures)

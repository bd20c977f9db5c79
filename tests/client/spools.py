"""Helpers that make snapshots of one process and its spool, and read the spool back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot
from leakline.transport.spool_file import Outbox, SpoolFile
from leakline.transport.spool_format import read_batches

HEADER: Final = RunHeader(
    "run-1", "project", "name", "generation", 25, 100.0, ("evaluate",), ("tag",)
)
PROCESS: Final = ProcessIdentity("instance-1", rank=0, pid=1, host="here")
SERVER: Final = "http://127.0.0.1:8765"
END: Final = {"state": "finished", "ended_at": 2.0, "reason": ""}
KIB: Final = 1024


def snapshot(
    sequence: int,
    kind: str = "phase_end",
    samples: dict[str, Any] | None = None,
    *,
    rss: int | None = None,
    phase: str = "train",
    **more: Any,
) -> Snapshot:
    """Return a snapshot; with ``samples`` None it has twenty series of random values."""
    noise = random.Random(sequence)
    if samples is None:
        samples = {f"type.T{i}.count": noise.randrange(10**9) for i in range(20)}
        samples["process.rss_bytes"] = 1000 + sequence if rss is None else rss
    of = phase if kind == "phase_end" else None
    return Snapshot(sequence, 1.0, 2.0, 0, of, f"label {sequence}", kind, samples, **more)


def batch(*snapshots: Snapshot | int) -> Batch:
    """Return a batch; a number stands for the snapshot with that sequence number."""
    return Batch(PROCESS, tuple(snapshot(s) if isinstance(s, int) else s for s in snapshots))


def spool(folder: Path, limit: int = 2**20) -> SpoolFile:
    return SpoolFile(folder / "run-1" / "instance-1.spool", HEADER, PROCESS, limit)


def append_until(
    file: SpoolFile | Outbox,
    done: Callable[[], object],
    last: int = 0,
    make: Callable[[int], Snapshot] = snapshot,
    together: int = 1,
) -> int:
    """Append snapshots after ``last`` until ``done()`` is true; return the last number."""
    while not done():
        file.append(batch(*(make(last + i) for i in range(1, together + 1))))
        last += together
        assert last < 50_000
    return last


def rewritten(file: SpoolFile) -> Callable[[], bool]:
    """Return a function that is true once another file has replaced the current one."""
    inode = file.path.stat().st_ino
    return lambda: file.path.stat().st_ino != inode


def numbers(batches: Iterable[Batch]) -> list[int]:
    return [snapshot.sequence for batch in batches for snapshot in batch.snapshots]


def sequences(path: Path) -> list[int]:
    return numbers(read_batches(path))


def given_out(outbox: Outbox | SpoolFile) -> list[int]:
    """Return the numbers of all snapshots given to a server that accepts everything."""
    given: list[int] = []
    while outbox.pending():
        batches, mark = outbox.unsent()
        given += numbers(batches)
        outbox.accept(mark, SERVER)
    return given

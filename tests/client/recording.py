"""A clock, private memory allocated by tests, and what their runs have recorded."""

from __future__ import annotations

import mmap
import os
from itertools import pairwise
from pathlib import Path
from typing import Final

from leakline.snapshot import Event, Snapshot
from leakline.transport.spool_format import read_batches

MIB: Final = 2**20


class Clock:
    """A clock that a test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def fresh_pages(size: int) -> mmap.mmap:
    """Return touched memory that bypasses the allocator, which may have free memory from other tests."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, mmap.PAGESIZE):
        pages[at] = 1
    return pages


def snapshots_of(directory: Path) -> list[Snapshot]:
    """Return everything recorded under ``directory``, by file and sequence number."""
    return [
        snapshot
        for path in sorted(directory.rglob("*.spool"))
        # The process has created the file but not written its header yet.
        if path.stat().st_size
        for batch in read_batches(path)
        for snapshot in batch.snapshots
    ]


def recorded() -> list[Snapshot]:
    """Return the snapshots of all runs of this test."""
    return snapshots_of(Path(os.environ["LEAKLINE_DIR"]))


def events(*kinds: str) -> list[Event]:
    return [event for s in recorded() for event in s.events if event.kind in kinds]


def phases() -> list[str | None]:
    """Return the phases that have ended."""
    return [s.phase for s in recorded() if s.kind == "phase_end"]


def generation_ends() -> list[Snapshot]:
    return [s for s in recorded() if s.kind == "generation_end"]


def booked(snapshot: Snapshot) -> int:
    """Return the bytes on all lines of the phase accounts."""
    return sum(
        int(value)
        for name, value in snapshot.samples.items()
        if name.startswith("phase.") and name.endswith(".bytes")
    )


def private(snapshot: Snapshot) -> int:
    samples = snapshot.samples
    return int(samples["process.anon_bytes"]) + int(samples.get("process.swap_bytes", 0))


def books_close(ends: list[Snapshot]) -> bool:
    """Return True if the lines sum to the change of private memory between all generation ends."""
    assert len(ends) > 1
    return all(booked(b) == private(b) - private(a) for a, b in pairwise(ends))

"""Measure the client's own memory: private bytes of a process with and without it, after many snapshots.

example: python -m benchmarks.client.memory 10000 leakline
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from .children import run_child
from .rows import Row
from .timing import MB, private_bytes
from .training import Nothing

SNAPSHOTS: Final = int(os.environ.get("SNAPSHOTS", "10000"))
REPEATS: Final = 3
PHASES_PER_GENERATION: Final = 10
TABLE: Final = "memory of the client"


def memory() -> Iterator[Row]:
    """Yield medians of the differences between pairs of processes with the same work, one of them observed."""
    runs = [
        [
            json.loads(run_child("memory", str(SNAPSHOTS), tool)[-1])
            for tool in ("leakline", "nothing")
        ]
        for _ in range(REPEATS)
    ]
    begun = median((observed["begun"] - bare["begun"]) / MB for observed, bare in runs)
    tenth = median((observed["tenth"] - bare["tenth"]) / MB for observed, bare in runs)
    ended = median((observed["ended"] - bare["ended"]) / MB for observed, bare in runs)
    taken = median(observed["snapshots"] for observed, _ in runs)
    yield Row(TABLE, "after init, import included", {"client_mb": begun})
    yield Row(TABLE, f"after {SNAPSHOTS // 10:,} phases", {"client_mb": tenth})
    each = 1e6 * (ended - tenth) / max(1, 0.9 * taken)
    yield Row(
        TABLE, f"after {SNAPSHOTS:,} phases", {"client_mb": ended, "per_snapshot_bytes": each},
        {"client_mb": 10.0}, note=f"{taken:,.0f} snapshots taken", raw={"runs": runs},
    )  # fmt: skip


def main(snapshots: int, tool: str) -> None:
    """Run a program that keeps nothing and whose phases follow each other without pauses."""
    if tool == "nothing":
        _report(Nothing(), snapshots)
        return
    # Without an overhead limit, every phase end takes a snapshot.
    os.environ["LEAKLINE_MAX_OVERHEAD"] = "1"
    import leakline

    with tempfile.TemporaryDirectory() as folder:
        run = leakline.init("benchmark", mode="offline", quiet=True, directory=folder)
        _report(run, snapshots)
        run.finish()


def _report(run: Any, snapshots: int) -> None:
    begun = _settled()
    _phases(run, snapshots // 10)
    tenth = _settled()
    _phases(run, snapshots - snapshots // 10)
    found = {"begun": begun, "tenth": tenth, "ended": _settled(), "snapshots": _taken(run)}
    print(json.dumps(found))


def _phases(run: Any, snapshots: int) -> None:
    for number in range(snapshots):
        if number % PHASES_PER_GENERATION == 0:
            run.generation(number // PHASES_PER_GENERATION)
        with run.phase("work"):
            sum(range(1_000))


def _settled() -> int:
    gc.collect()
    return private_bytes()


def _taken(run: Any) -> int:
    loop = getattr(run, "_loop", None)
    return 0 if loop is None else int(loop._sequence)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

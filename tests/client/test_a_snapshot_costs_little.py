"""What a snapshot costs the training thread: taking it, with and without children, and handing it over."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest

import leakline
from leakline.budget import Governor
from leakline.recorder import Losses, Recorder
from leakline.sampler import GENERATION, Sampler
from leakline.snapshot import ProcessIdentity, Snapshot

pytestmark = pytest.mark.alone

CHILDREN = 16


def percentile(seconds: Sequence[float], which: int) -> float:
    return quantiles(seconds, n=100)[which - 1]


def timed(work: Callable[[], Any], times: int) -> list[float]:
    """Seconds of each, in CPU time of this thread: the machine that runs the tests is shared."""
    found = []
    for _ in range(times):
        started = time.thread_time()
        work()
        found.append(time.thread_time() - started)
    return found


@pytest.fixture
def children() -> Iterator[list[int]]:
    code = "import sys; sys.stdin.read()"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        for _ in range(CHILDREN)
    ]
    yield [child.pid for child in started]
    for child in started:
        child.communicate()


def read(sampler: Sampler) -> dict[str, Any]:
    """All that a generation end reads, without a census."""
    return sampler._ask(GENERATION, "manual")


def test_a_snapshot_takes_a_millisecond_at_most() -> None:
    sampler = Sampler(Governor(1.0))
    read(sampler)
    assert percentile(timed(lambda: read(sampler), 300), 95) <= 0.001


def test_a_snapshot_of_a_process_with_sixteen_children_takes_six(children: list[int]) -> None:
    sampler = Sampler(Governor(1.0))
    assert read(sampler)["children.count"] == CHILDREN
    # Most of it is the kernel's, which lists all processes and adds up the pages of ours: on a slow machine, no more
    # than twice what that takes. Both are measured in turn, so that what else the machine does reaches both alike.
    asked = [
        *Path("/proc").glob("[0-9]*/stat"),
        *(Path(f"/proc/{pid}/smaps_rollup") for pid in children),
    ]

    def ask_the_kernel() -> None:
        for path in asked:
            with suppress(OSError), path.open("rb", buffering=0) as file:
                file.read()

    taken, floor = zip(
        *((*timed(lambda: read(sampler), 1), *timed(ask_the_kernel, 1)) for _ in range(100)),
        strict=True,
    )
    assert percentile(taken, 95) <= 0.006 or median(taken) <= 2 * median(floor)


def test_handing_a_snapshot_over_takes_fifty_microseconds_at_most() -> None:
    class Nowhere:
        def append(self, batch: Any) -> None:
            return

        def append_end(self, end: Any) -> None:
            return

        def lost(self) -> dict[str, int]:
            return {}

    recorder = Recorder(Nowhere(), ProcessIdentity("i"), Losses(), queue_limit=10**6)  # type: ignore[arg-type]
    recorder.start()
    samples = {f"type.T{i}.count": i for i in range(40)}
    taken = Snapshot(1, 1.0, 1.0, 0, None, "end", "generation_end", samples)
    seconds = timed(lambda: recorder.put(taken), 5000)
    assert recorder.close({"state": "finished"}, 10)
    assert percentile(seconds, 99) <= 50e-6


def test_the_whole_of_a_phase_end_takes_a_millisecond_at_most(offline: leakline.Run) -> None:
    offline.generation(0)

    def phase() -> None:
        with offline.phase("train"):
            pass

    phase()
    assert percentile(timed(phase, 300), 95) <= 0.001

"""What is read at every phase end, in a process like one that trains: torch loaded, thousands of classes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest

pytestmark = pytest.mark.alone

# CPU seconds of one phase end, on a machine that runs the loop below in so many.
ALLOWED_SECONDS: Final = 0.5e-3
LOOP_SECONDS: Final = 1.0e-3
CLASSES_AT_LEAST: Final = 4_000

# On its own: what other tests have left in this process would be measured as well.
PROGRAM: Final = """
import json, statistics, time
import torch
from leakline.budget import Governor
from leakline.probes.program import all_classes
from leakline.sampler import Sampler

made = [type(f"Made{number}", (), {}) for number in range(2_000)]
held = [[number] for number in range(10)]

def seconds(work, times):
    taken = []
    for _ in range(times):
        started = time.thread_time()
        work()
        taken.append(time.thread_time() - started)
    return statistics.median(taken)

def loop():
    total = 0
    for number in range(20_000):
        total += number & 3
    return total

# The clock of this thread: on a busy machine no reading may seem dear, and be left out of what is measured.
sampler = Sampler(Governor(1.0, 1_000.0), time.thread_time)
sampler.start()
for cls in made[:32]:
    sampler.watch(f"{cls.__module__}.{cls.__name__}")
for number, one in enumerate(held):
    sampler.track(f"held{number}", one, None)
sampler.measure("baseline")
names = sorted(sampler.measure("phase_end").samples)
told = {
    "loop": seconds(loop, 50),
    "phase": seconds(lambda: sampler.measure("phase_end"), 200),
    "nested": seconds(lambda: sampler.measure("phase_end", nested=True), 200),
    "classes": sum(1 for _ in all_classes()),
    "names": names,
}
sampler.stop()
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, float]:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def _leeway(told: dict[str, float]) -> float:
    """How much slower this machine is, or is just now."""
    return max(1.0, told["loop"] / LOOP_SECONDS)


def test_a_phase_end_costs_half_a_millisecond_at_most(told: dict[str, float]) -> None:
    assert told["classes"] >= CLASSES_AT_LEAST
    assert told["phase"] <= ALLOWED_SECONDS * _leeway(told)


def test_a_nested_phase_end_costs_half_of_that(told: dict[str, float]) -> None:
    assert told["nested"] <= ALLOWED_SECONDS / 2 * _leeway(told)


def test_the_figures_of_a_phase_end_are_all_there(told: dict[str, list[str]]) -> None:
    expected = {
        "process.rss_bytes", "process.anon_bytes", "process.peak_bytes", "process.threads",
        "process.open_files", "python.collections", "python.collector_pending",
        "type.__main__.Made0.count", "type.__main__.Made31.count", "tracked.held9.length",
    }  # fmt: skip
    assert expected <= set(told["names"])

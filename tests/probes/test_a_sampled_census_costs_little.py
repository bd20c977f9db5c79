"""The sampled census against the fastest pure pass over the collector's list, in one process and in turns."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from time import process_time, pthread_getcpuclockid, thread_time

import pytest

from leakline.probes.native import native, why_not_native
from leakline.probes.process import read_private_bytes
from leakline.probes.sampled import SampledCensus, take_sample, why_no_sample

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(native() is None, reason=f"no native module: {why_not_native()}"),
]


class Agent:
    def __init__(self, number: int) -> None:
        self.number, self.name, self.memory = number, str(number), [number]


def aged_heap(objects: int) -> list[object]:
    """About this many objects that the collector lists, listed in another order than they were made in."""
    kept: list[object] = []
    for i in range(objects // 8):
        kept += [Agent(i), {"key": i, "value": [i, i + 1]}, (i, [i]), {i}]
    random.Random(1).shuffle(kept)
    shuffled = list(kept)
    kept.clear()
    gc.collect()
    return shuffled


def sample(every: int) -> SampledCensus:
    taken = take_sample(every)
    assert taken is not None, why_no_sample()
    return taken


def reference() -> None:
    Counter(map(type, gc.get_objects()))


def least_seconds(works: dict[str, Callable[[], object]], turns: int = 4) -> dict[str, float]:
    """The least CPU time of each, in turns, so that a busy machine slows all of them."""
    least = dict.fromkeys(works, float("inf"))
    for _ in range(turns):
        for name, work in works.items():
            started = thread_time()
            work()
            least[name] = min(least[name], thread_time() - started)
    return least


def test_one_pool_of_sixteen_costs_a_small_part_of_a_pass() -> None:
    heap = aged_heap(300_000)
    sample(16)
    least = least_seconds(
        {"reference": reference, "sampled": lambda: sample(16), "full": lambda: sample(1)}
    )
    ratios = {name: seconds / least["reference"] for name, seconds in least.items()}
    # Measured 0.02 and 0.15 here, 0.08 and 0.51 where the caches hold this heap whole and the reference costs nothing;
    # 0.012 and 0.14 at 1 million objects, 0.005 and 0.07 at 5 million. The target, 0.06, is one of a million objects
    # and held by the benchmark.
    assert ratios["sampled"] <= 0.1, ratios
    assert ratios["sampled"] <= 0.25 * ratios["full"], ratios
    assert ratios["full"] <= 1, ratios
    assert len(heap) > 100_000


def test_it_tells_what_it_cost() -> None:
    before = process_time()
    taken = sample(1)
    assert 0 < taken.seconds <= process_time() - before


def test_other_memory_of_the_program_costs_nothing() -> None:
    heap = aged_heap(100_000)
    alone = least_seconds({"sampled": lambda: sample(4)})["sampled"]
    pools = sample(1).pools
    memory = [bytearray(b"x") * (32 << 20) for _ in range(16)]
    beside = least_seconds({"sampled": lambda: sample(4)})["sampled"]
    # Half a gigabyte has 30,000 places where a pool could begin.
    assert sample(1).pools == pytest.approx(pools, rel=0.05)
    assert beside < 2 * alone
    assert (len(memory), len(heap) > 0) == (16, True)


def test_the_program_goes_on_during_a_scan() -> None:
    """The clock of the scanning thread, read by another one: with the lock held it would jump by whole scans."""
    heap = aged_heap(400_000)
    long = max(0.01, least_seconds({"full": lambda: sample(1)})["full"] / 3)
    done, seen = threading.Event(), threading.Event()

    def scan() -> None:
        for _ in range(8):
            sample(1)
        done.set()
        # A thread that has ended has no clock.
        seen.wait()

    scanner = threading.Thread(target=scan)
    scanner.start()
    clock = pthread_getcpuclockid(scanner.ident or 0)
    at_once, last = 0.0, time.clock_gettime(clock)
    while not done.is_set():
        now = time.clock_gettime(clock)
        at_once += now - last if now - last > long else 0
        last = now
    seen.set()
    scanner.join()
    assert at_once < 0.5 * last, f"{at_once:.3f} s of {last:.3f} s passed in jumps"
    assert len(heap) > 100_000


def test_hundreds_of_samples_leave_nothing_behind() -> None:
    heap = aged_heap(50_000)
    for _ in range(20):
        sample(16)
    gc.collect()
    blocks, private = sys.getallocatedblocks(), read_private_bytes()
    for _ in range(150):
        sample(16)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 200
    after = read_private_bytes()
    if private is not None and after is not None:
        assert after - private < 1 << 20
    assert len(heap) > 10_000

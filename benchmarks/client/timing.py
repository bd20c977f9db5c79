"""Clocks: CPU seconds in turns with a reference, the longest pause of a concurrent thread, and peak memory."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Final

REPEATS: Final = int(os.environ.get("REPEATS", "5"))
# A scan that takes longer than this is not repeated for a median.
PATIENCE_SECONDS: Final = 5.0
TICK_SECONDS: Final = 0.0005
MB: Final = 1e6
# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
_T95: Final = (
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
)  # fmt: skip


def reference() -> None:
    """Run the fastest pure Python pass over the tracked objects: the reference for every scan."""
    Counter(map(type, gc.get_objects()))


@dataclass(frozen=True, slots=True)
class Cost:
    """Median CPU milliseconds of a scan and of the reference that took turns with it."""

    milliseconds: float
    reference_milliseconds: float
    repeats: int

    @property
    def ratio(self) -> float:
        return self.milliseconds / self.reference_milliseconds


def in_turns(look: Callable[[], object], repeats: int = REPEATS) -> Cost:
    """Measure the CPU time of the entire process, since a scan may use other threads."""
    looks: list[float] = []
    references: list[float] = []
    for _ in range(repeats):
        for times, work in ((references, reference), (looks, look)):
            started = time.process_time()
            work()
            times.append(time.process_time() - started)
        if sum(looks) > PATIENCE_SECONDS:
            break
    return Cost(median(looks) * 1e3, median(references) * 1e3, len(looks))


def each(look: Callable[[], object], times: int = 20, repeats: int = 7) -> float:
    """Return the median CPU milliseconds of one of many short scans."""
    look()
    found = []
    for _ in range(repeats):
        started = time.process_time()
        for _ in range(times):
            look()
        found.append((time.process_time() - started) / times)
    return median(found) * 1e3


class Ticker:
    """A thread that wants to run every half millisecond while the thread that created it works.

    A gap is the CPU time of the working thread between two ticks, so time that other processes take from both threads
    does not count.
    """

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._stop = threading.Event()
        self._gap = 0.0
        self._thread = threading.Thread(target=self._tick, name="ticker", daemon=True)

    def __enter__(self) -> Ticker:
        self._last = time.clock_gettime(self._clock)
        self._thread.start()
        # Exclude the start of the thread.
        time.sleep(0.01)
        self._gap = 0.0
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def gap_ms(self) -> float:
        return self._gap * 1e3

    def _tick(self) -> None:
        while not self._stop.is_set():
            time.sleep(TICK_SECONDS)
            now = time.clock_gettime(self._clock)
            self._gap = max(self._gap, now - self._last)
            self._last = now


def longest_gap_ms(look: Callable[[], object], repeats: int = 3) -> float:
    """Return the longest time in milliseconds that a ticking thread could not run, over all repeats."""
    return max(once(look).gap_ms for _ in range(repeats))


def busy(seconds: float = 1.0) -> None:
    """Compute in Python without any scan, to measure the cost of thread switching alone."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for _ in range(200):
            pass


def private_bytes() -> int:
    """Return anonymous resident memory plus swap of this process in bytes."""
    return _status("RssAnon") + _status("VmSwap")


@dataclass(frozen=True, slots=True)
class Once:
    """The first call of a scan: its result and its cost."""

    answer: Any
    cpu_ms: float
    wall_ms: float
    gap_ms: float
    peak_mb: float


def once(look: Callable[[], Any]) -> Once:
    """Call a scan while a ticking thread runs."""
    # Return freed memory to the system, or the peak would not show in the high-water mark.
    ctypes.CDLL(None).malloc_trim(0)
    # Resets the high-water mark to the current resident memory.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    with Ticker() as ticker:
        cpu, wall = time.process_time(), time.perf_counter()
        answer = look()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak = max(0, _status("VmHWM") - before)
    return Once(answer, cpu * 1e3, wall * 1e3, ticker.gap_ms, peak / MB)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean ratio with its 95 % interval, which a single pair does not have."""

    middle: float
    low: float | None = None
    high: float | None = None

    def figures(self, name: str) -> dict[str, float]:
        """Return the figures of a row: ``<name>_ratio``, ``<name>_low``, ``<name>_high``."""
        figures = {f"{name}_ratio": self.middle}
        if self.low is not None and self.high is not None:
            figures |= {f"{name}_low": self.low, f"{name}_high": self.high}
        return figures


def ratio_interval(with_it: Sequence[float], without: Sequence[float]) -> Interval:
    """Return the mean ratio of paired runs with an interval from Student's t, computed on logarithms."""
    logs = [math.log(a / b) for a, b in zip(with_it, without, strict=True)]
    middle = fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(middle))
    t = _T95[min(len(logs) - 1, len(_T95)) - 1]
    half = t * stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))

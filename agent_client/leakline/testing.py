"""Measures repeated calls of a function as generations of a run, and judges the memory that the calls retain.

The pytest plugin uses this module. The measurements are the same as in a training run, but without a spool, a
background thread or a server.
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from . import run as runs
from .analysis import examine
from .analysis.results import Verdict
from .analysis.run_history import history_from_batches
from .core.training_loop import Loop
from .errors import BadArgument
from .run import Run
from .sampling.overhead_budget import Governor
from .sampling.run_requests import RequestBox
from .sampling.sampler import Sampler
from .settings import Settings
from .snapshot import Batch, ProcessIdentity, RunHeader, Snapshot
from .text_format import count_of, format_bytes, size_bytes
from .transport.recorder import Losses

DEFAULT_MAX_GROWTH: Final = "1 MiB"
DEFAULT_GENERATIONS: Final = 6
# With fewer generations, a trend in memory cannot be recognized.
LEAST_GENERATIONS: Final = 5
# A test has no other work to delay, so the entire heap may be scanned in one step.
MAX_PAUSE_SECONDS: Final = 10.0
LEAKING: Final = ("suspected", "confirmed")
NAMES_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Allowed:
    """Settings of a test. ``max_growth_bytes`` is the limit per generation, ``warm_up`` the number of warm-up calls."""

    max_growth_bytes: float
    generations: int = DEFAULT_GENERATIONS
    warm_up: int = 1
    collect: bool = True


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a test.

    ``growth_bytes`` is the lower bound of the growth per generation, or None after too few generations.
    """

    verdict: Verdict
    growth_bytes: float | None
    is_leak: bool


def allowed(
    max_growth: object = DEFAULT_MAX_GROWTH, generations: object = DEFAULT_GENERATIONS,
    warm_up: object = 1, collect: object = True,
) -> Allowed:  # fmt: skip
    """Return the settings given by the marker's arguments. Raises BadArgument."""
    if isinstance(max_growth, bool) or not isinstance(max_growth, (int, float, str)):
        raise BadArgument(
            "max_growth", max_growth, 'must be a size such as "1 MiB", or a number of bytes'
        )
    size = size_bytes(max_growth, "max_growth") if isinstance(max_growth, str) else max_growth
    if not 0 <= size < 2.0**63:
        raise BadArgument("max_growth", max_growth, "must be zero or more")
    return Allowed(
        size,
        _number(generations, "generations", LEAST_GENERATIONS),
        _number(warm_up, "warm_up", 0),
        bool(collect),
    )


def _number(value: object, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadArgument(name, value, f"must be a whole number, at least {least}")
    return value


class MeasuredRun(Run):
    """A run that exists only in memory. `leakline.current()` returns it, so calls in the tested code are measured."""

    def __init__(self, collect: bool = True) -> None:
        super().__init__()
        governor = Governor(1.0, start_credit_seconds=60.0, max_pause_seconds=MAX_PAUSE_SECONDS)
        requests = RequestBox()
        self._collect = collect
        self._snapshots: list[Snapshot] = []
        sampler = Sampler(governor, requests=requests)
        self._loop = Loop("generation", sampler, governor, Losses(), self._snapshots.append)
        self._chain: Any = SimpleNamespace(requests=requests)
        self._before: Run | None = None

    def __enter__(self) -> MeasuredRun:
        assert self._loop is not None
        self._before, runs._active = runs._active, self
        self._settle()
        self._loop.sampler.start()
        self._loop.baseline()
        return self

    def __exit__(self, *_: object) -> None:
        loop, self._loop = self._loop, None
        runs._active = self._before
        if loop is not None:
            self._settle()
            try:
                loop.finish()
            finally:
                loop.sampler.stop()
                loop.sampler.forget()

    def end_generation(self) -> None:
        """End the generation after a garbage collection, so that garbage does not count as growth."""
        self._settle()
        self._end_generation(None)

    def judged(self, limit: Allowed) -> Judged:
        """Return the result after the run has ended."""
        process = ProcessIdentity("here", pid=os.getpid())
        header = RunHeader("here", "pytest", "test", "generation", None, 0.0)
        history = history_from_batches(header, [Batch(process, tuple(self._snapshots))], ended=True)
        verdict = examine(history)
        growth = verdict.growth_bytes_per_generation
        # Judge by the lower bound: a leak grows over most of the test, unlike a cache that fills in two of six calls.
        least = None if growth is None else max(growth.low, 0.0)
        leaks = [f for f in verdict.findings if f.status in LEAKING]
        worst = max((f.growth_bytes_per_generation.low for f in leaks), default=0.0)
        most = max(least or 0.0, worst)
        is_leak = most > limit.max_growth_bytes
        return Judged(verdict, most if growth is not None else None, is_leak)

    def finish(self) -> None:
        """Do nothing: the run ends with the test."""

    def _make_way(self, settings: Settings) -> Settings:
        # If the tested code starts its own run, the test's run stays in place.
        return settings

    def _call_back(self, *, last: bool = False) -> None:
        pass

    def _clean_up(self) -> None:
        pass

    def _settle(self) -> None:
        if self._collect:
            gc.collect()


def named(verdict: Verdict, *roles: str) -> tuple[str, ...]:
    """Return the names of leak suspects with one of the given roles, most likely suspects first."""
    leaks = [finding for finding in verdict.findings if finding.status in LEAKING]
    names = (s.name for f in leaks for s in f.suspects if s.role in roles)
    return tuple(dict.fromkeys(names))


def failure_text(judged: Judged, limit: Allowed) -> str:
    """Return the failure message: the memory retained per call, the verdict and the holders."""
    growth = format_bytes(judged.growth_bytes or 0.0)
    most, warm_up = format_bytes(limit.max_growth_bytes), count_of(limit.warm_up, "warm-up call")
    lines = [
        f"leakline: the test retains at least {growth} per call after {warm_up}; the limit is {most}",
        judged.verdict.summary,
    ]
    kept = named(judged.verdict, "type")[:NAMES_SHOWN]
    holders = named(judged.verdict, "holder", "container")[:NAMES_SHOWN]
    lines += [f"retained: {', '.join(kept)}"] if kept else []
    lines += [f"held by: {', '.join(holders)}"] if holders else []
    advice = next((a for f in judged.verdict.findings for a in f.advice), None)
    return "\n".join([*lines, *([f"advice: {advice}"] if advice else [])])

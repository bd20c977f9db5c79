"""One long run watched from start to end: cost of each examination, size of the cache, and number of incidents.

The run has sixty series, of which a fifth are noisy and some grow, six snapshots in each generation, and one leak. It
is examined after each generation with the cache of the previous examination, on as much of the run as the store
returns, as the server does. The clock is CPU time of the examination alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from leakline.analysis import RunHistory, examine
from leakline.analysis.generation_axis import thinned
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.run_history import ProcessHistory, Value
from leakline.analysis.status import ACTIVE
from leakline.probes.heap.marginal_size import marginal_bytes
from leakline.snapshot import Event

from .figure import Figure
from .shares import quantile

_PHASES: Final = ("collect", "collect/episode", "train", "evaluate", "evolve")
_MIB: Final = 2**20
_STEADY: Final = 36
_NOISY: Final = 12
# The leak: instances added in each generation, kept in one phase.
_EACH: Final = 16
_CAPACITY: Final = 100_000
_TENTH: Final = 10
_OBJECTS: Final = 2_000_000


@dataclass(slots=True)
class Soak:
    """Results by examination. ``anew`` has the cost of a few examinations without a cache."""

    seconds: list[float] = field(default_factory=list)
    anew: list[float] = field(default_factory=list)
    incidents: set[str] = field(default_factory=set)
    state_bytes: int = 0


def soak(generations: int) -> Soak:
    run, kept, found = _Recording(), Kept(), Soak()
    for generation in range(generations):
        run.go_on()
        history = thinned(run.history())
        began = time.process_time()
        verdict = examine(history, kept)
        found.seconds.append(time.process_time() - began)
        found.incidents |= {f.fingerprint for f in verdict.findings if f.status in ACTIVE}
        if (generation + 1) % max(1, generations // 4) == 0:
            began = time.process_time()
            anew = examine(history)
            found.anew.append(time.process_time() - began)
            assert anew == verdict, "the cache has changed a result"
    size = marginal_bytes([kept], objects_visited=_OBJECTS)
    assert size is not None, "the cache is too large to be sized"
    found.state_bytes = size
    return found


def recorded(generations: int) -> RunHistory:
    """Return the run after this many generations."""
    run = _Recording()
    for _ in range(generations):
        run.go_on()
    return run.history()


def soak_figures(found: Soak) -> list[Figure]:
    """Return A9 and A10. The ratio can be compared between machines, the milliseconds cannot."""
    n = len(found.seconds)
    # The first examinations have little data.
    tenth = max(1, n // _TENTH)
    flat = median(found.seconds[-tenth:]) / median(found.seconds[tenth : 2 * tenth])
    p95 = quantile(found.seconds, 0.95)
    saved = found.anew[-1] / median(found.seconds[-tenth:])
    kib = found.state_bytes / 1024 / len(_PHASES)
    run = f"of {n:,} generations, 60 series"
    return [
        Figure("A9", f"incidents of one leak, {run}", len(found.incidents), "x", most=1.1),
        Figure("A10", f"one examination, 95th percentile, {run}", 1e3 * p95, "ms", most=2.0),
        Figure("A10", "the same without the cache, times as expensive", saved, "x"),
        Figure("A10", "size of the cache, per phase", kib, "KiB", most=64.0),
        Figure("A10", "last tenth of the examinations against the second", flat, "x", most=1.2),
    ]  # fmt: skip


class _Recording:
    """The run so far, one generation longer with each step."""

    def __init__(self) -> None:
        self._random = random.Random(7)
        self._rows: dict[str, list[Value]] = {name: [] for name in self._names()}
        self._kind: list[str] = []
        self._phase: list[str | None] = []
        self._generation: list[int | None] = []
        self._envs, self._items = 2, 0
        self._private = 400.0 * _MIB
        self._done = 0
        self._add("baseline", None, None)

    @staticmethod
    def _names() -> list[str]:
        counts = [f"type.library.Class{i}.count" for i in range(_STEADY + _NOISY)]
        return [
            "process.anon_bytes", "process.rss_bytes", "tracked.replay.length", "tracked.replay.bytes",
            "type.app.Environment.count", "container.app.kept.length", *counts,
            *(f"phase.{name}.bytes" for name in (*_PHASES, "between")),
        ]  # fmt: skip

    def go_on(self) -> None:
        before = self._private
        booked = dict.fromkeys((*_PHASES, "between"), 0.0)
        for phase in _PHASES:
            if phase == "collect":
                self._envs += _EACH
                self._private += 2 * _MIB
                self._items = min(_CAPACITY, self._items + 2_000)
            self._add("phase_end", self._done, phase)
            booked[phase], before = self._private - before, self._private
        self._add("generation_end", self._done, None, booked)
        self._done += 1

    def _add(
        self,
        kind: str,
        generation: int | None,
        phase: str | None,
        booked: dict[str, float] | None = None,
    ) -> None:
        draw = self._random
        self._kind.append(kind)
        self._phase.append(phase)
        self._generation.append(generation)
        private = round(self._private + draw.gauss(0, _MIB))
        values: dict[str, Value] = {
            "process.anon_bytes": private, "process.rss_bytes": private + 90 * _MIB,
            "tracked.replay.length": self._items, "tracked.replay.bytes": 400 * self._items,
            "type.app.Environment.count": self._envs, "container.app.kept.length": self._envs - 2,
        }  # fmt: skip
        values |= {f"phase.{name}.bytes": round(size) for name, size in (booked or {}).items()}
        for i in range(_STEADY + _NOISY):
            values[f"type.library.Class{i}.count"] = (
                100 + i + (i >= _STEADY and draw.randint(-4, 4))
            )
        for name, column in self._rows.items():
            column.append(values.get(name))

    def history(self) -> RunHistory:
        n = len(self._kind)
        times: Sequence[float] = [float(i) for i in range(n)]
        process = ProcessHistory(
            "p", 0, "main", 1, range(n), times, times, self._generation, self._phase, [""] * n, self._kind, self._rows,
        )  # fmt: skip
        track = Event(0, 0.0, "track", "replay", data={"capacity": _CAPACITY})
        return RunHistory(
            "soak", phases=_PHASES, processes=(process,), events=(track,), capacities={"replay": _CAPACITY},
            limit_bytes=64 * 2**30,
        )  # fmt: skip

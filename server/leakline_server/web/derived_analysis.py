"""What the analysis derives from a run, kept for as long as the run stays as it is.

Reading a history takes long for a long run, and every viewer of a page asks for the same. A run changes only with its
revision, which names an answer; what is kept are the answers, never the histories. Where an answer takes long, the one
before it is given at once, and the next is worked out meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from leakline import analysis
from leakline.analysis.comparison.comparison_results import Comparison
from leakline.analysis.findings.verdict_summary import DEFAULTS, Priorities
from leakline.analysis.results import (
    AssertionCheck,
    ContainerFill,
    PhaseAccounts,
    StableCount,
    TypeGrowth,
)
from leakline.analysis.run_history import RunHistory

from ..store.engine import DATABASE_ERRORS, Engine, without_content
from ..store.runs import run_history
from ..store.series import CorruptChunk
from .run_page.annotations import Clock, clock_of

MAX_RUNS: Final = 32
MAX_COMPARISONS: Final = 16
# What takes longer than this is not waited for again, and takes at most a tenth of a core.
SLOW_SECONDS: Final = 0.25
REST_FACTOR: Final = 9
# Nobody waits for the next one.
AFTER_SECONDS: Final = 1.0
# Older than this, an answer is waited for all the same.
STALE_SECONDS: Final = 60.0

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")
# A run at one of its revisions.
Version = tuple[str, int]

log = logging.getLogger("leakline")


@dataclass(frozen=True, slots=True)
class Derived:
    """``read_between``: the first and the last reading in Unix seconds, None without one."""

    phase_accounts: PhaseAccounts
    types: tuple[TypeGrowth, ...]
    containers: tuple[ContainerFill, ...]
    counts: tuple[AssertionCheck, ...]
    stable: tuple[StableCount, ...]
    clock: Clock
    read_between: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class _Of:
    """``took``, ``at``: how many seconds, and when by ``time.monotonic`` it was done."""

    revision: int
    derived: Derived
    took: float
    at: float

    @property
    def is_slow(self) -> bool:
        return self.took > SLOW_SECONDS

    @property
    def may_be_renewed(self) -> bool:
        return time.monotonic() - self.at > REST_FACTOR * self.took


def _in_background(work: Callable[[], None]) -> None:
    """After whoever asked has the page: both at once would keep it from coming."""
    timer = threading.Timer(AFTER_SECONDS, work)
    timer.name, timer.daemon = "leakline-derive", True
    timer.start()


class Derivations:
    """For any thread. Every method raises NoSuchRun. ``run_later`` does work that nobody waits for."""

    def __init__(
        self,
        engine: Engine,
        run_later: Callable[[Callable[[], None]], None] = _in_background,
        priorities: Priorities = DEFAULTS,
    ) -> None:
        self._engine, self._run_later, self._priorities = engine, run_later, priorities
        self._runs: _Newest[str, _Of] = _Newest(MAX_RUNS)
        self._comparisons: _Newest[tuple[Version, Version], Comparison] = _Newest(MAX_COMPARISONS)
        self._lately: _Newest[tuple[str, str], tuple[float, Comparison]] = _Newest(MAX_COMPARISONS)
        self._lock = threading.Lock()
        self._renewing: set[str] = set()

    def of(self, run_id: str, *, at_once: bool = False) -> Derived:
        """Of the run as it is; ``at_once``: where that takes long, as it was up to STALE_SECONDS ago."""
        known, revision = self._runs.get(run_id), run_history.revision(self._engine, run_id)
        if known is not None and known.revision == revision:
            return known.derived
        # A lower revision is of a run that was removed and begun again.
        if known is None or not (at_once and known.is_slow and known.revision < revision):
            return self._derive(run_id).derived
        if time.monotonic() - known.at > STALE_SECONDS:
            return self._derive(run_id).derived
        if known.may_be_renewed:
            self._renew(run_id)
        return known.derived

    def compare(self, before: str, after: str, *, at_once: bool = False) -> Comparison:
        """Of both runs as they are; ``at_once``: or as they were up to STALE_SECONDS ago."""
        lately = self._lately.get((before, after)) if at_once else None
        if lately is not None and time.monotonic() - lately[0] <= STALE_SECONDS:
            return lately[1]
        found = self._comparisons.get((self._version(before), self._version(after)))
        if found is None:
            both = run_history.load_to_compare(self._engine, before, after)
            (older, older_revision), (newer, newer_revision) = both
            key = ((before, older_revision), (after, newer_revision))
            found = self._comparisons.put(key, analysis.compare(older, newer, self._priorities))
        self._lately.put((before, after), (time.monotonic(), found))
        return found

    def _derive(self, run_id: str) -> _Of:
        began = time.monotonic()
        past, revision = run_history.load_for_pages(self._engine, run_id)
        derived = _derived(past)
        now = time.monotonic()
        return self._runs.put(run_id, _Of(revision, derived, now - began, now))

    def _renew(self, run_id: str) -> None:
        """One at a time of each run."""
        with self._lock:
            if run_id in self._renewing:
                return
            self._renewing.add(run_id)

        def work() -> None:
            try:
                self._derive(run_id)
            except (run_history.NoSuchRun, *DATABASE_ERRORS, CorruptChunk) as error:
                log.info("could not derive what run %s shows: %s", run_id, without_content(error))
            finally:
                with self._lock:
                    self._renewing.discard(run_id)

        self._run_later(work)

    def _version(self, run_id: str) -> Version:
        return run_id, run_history.revision(self._engine, run_id)


def _derived(past: RunHistory) -> Derived:
    times = [time for process in past.processes for time in process.time]
    return Derived(
        analysis.phase_accounts(past),
        tuple(analysis.type_growth(past)),
        tuple(analysis.container_fill(past)),
        analysis.check_counts(past),
        tuple(analysis.stable_counts(past)),
        clock_of(past),
        (min(times), max(times)) if times else None,
    )


class _Newest(Generic[Key, Answer]):
    """The answers used last."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._kept: OrderedDict[Key, Answer] = OrderedDict()

    def get(self, key: Key) -> Answer | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Key, answer: Answer) -> Answer:
        with self._lock:
            self._kept[key] = answer
            self._kept.move_to_end(key)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return answer

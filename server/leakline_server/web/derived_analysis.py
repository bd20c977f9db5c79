"""A cache of the results that the analysis derives from runs.

Loading the history of a long run is slow, and every viewer of a page needs the same results.
Results are cached by revision, which changes whenever the run changes; histories are not cached.
If computing a result is slow, the previous result is returned, and a new result is computed in the
background.
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
# Results that took longer than SLOW_SECONDS to compute may be served stale. Renewing one result
# uses at most a tenth of a core.
SLOW_SECONDS: Final = 0.25
REST_FACTOR: Final = 9
# The delay before a background renewal; no request waits for it.
AFTER_SECONDS: Final = 1.0
# A request waits for a new result if the cached result is older than this.
STALE_SECONDS: Final = 60.0

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")
# A run id and one of the run's revisions.
Version = tuple[str, int]

log = logging.getLogger("leakline")


@dataclass(frozen=True, slots=True)
class Derived:
    """Results for one run; ``read_between`` contains the Unix times of the first and last reading."""

    phase_accounts: PhaseAccounts
    types: tuple[TypeGrowth, ...]
    containers: tuple[ContainerFill, ...]
    counts: tuple[AssertionCheck, ...]
    stable: tuple[StableCount, ...]
    clock: Clock
    read_between: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class _Of:
    """A cached result. Computing it took ``took`` seconds and ended at ``at`` (``time.monotonic``)."""

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
    """Run ``work`` on a thread after a delay, so that the current request stays fast."""
    timer = threading.Timer(AFTER_SECONDS, work)
    timer.name, timer.daemon = "leakline-derive", True
    timer.start()


class Derivations:
    """A thread-safe cache of derived results and comparisons. `of` and `compare` raise NoSuchRun.

    ``run_later`` runs renewals in the background.
    """

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
        """Return the results for the current state of the run.

        With ``at_once``, results that are slow to compute may be up to STALE_SECONDS old.
        """
        known, revision = self._runs.get(run_id), run_history.revision(self._engine, run_id)
        if known is not None and known.revision == revision:
            return known.derived
        # A lower revision means that the run was removed and created again.
        if known is None or not (at_once and known.is_slow and known.revision < revision):
            return self._derive(run_id).derived
        if time.monotonic() - known.at > STALE_SECONDS:
            return self._derive(run_id).derived
        if known.may_be_renewed:
            self._renew(run_id)
        return known.derived

    def compare(self, before: str, after: str, *, at_once: bool = False) -> Comparison:
        """Compare two runs; with ``at_once``, the result may be up to STALE_SECONDS old."""
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
        """Renew a run's results in the background; do nothing if a renewal is already running."""
        with self._lock:
            if run_id in self._renewing:
                return
            self._renewing.add(run_id)

        def work() -> None:
            try:
                self._derive(run_id)
            except (run_history.NoSuchRun, *DATABASE_ERRORS, CorruptChunk) as error:
                log.info(
                    "cannot derive the page data of run %s: %s", run_id, without_content(error)
                )
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
    """A thread-safe LRU cache."""

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

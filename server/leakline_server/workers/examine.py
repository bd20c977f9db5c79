"""Looks at runs that have news: walk two, up to the alert's row.

1. Take the next run with news that may be looked at now, and that no other server looks at.
2. Read its history, ask the analysis for the verdict, and hold the rules that people set against it.
3. Save verdict and findings, and the alerts and deliveries of what changed, in one transaction.
4. Wake whoever waits for the run or for deliveries.

Besides, runs that said nothing for a while are marked silent, or killed where their last readings say so, which is told
too; the next batch makes them running again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from leakline import analysis
from leakline.analysis.history import RunHistory
from leakline.analysis.kept import Kept
from leakline.analysis.results import Verdict, to_json

from ..alerts.rule_alerts import looks_at
from ..figures import ExaminerFigures
from ..store import alerts, ends, examining, findings, runs
from ..store.codec import CorruptChunk
from ..store.engine import DATABASE_ERRORS, Engine, writing
from ..store.history import NoSuchRun, load_for_examination
from ..store.watching import has_other_servers
from . import telling

# One run is examined at most this often, and at most these shares of one core go into it and into all of them.
MIN_INTERVAL_SECONDS: Final = 0.5
MAX_SHARE_OF_ONE_RUN: Final = 0.25
MAX_SHARE: Final = 0.5
SILENCE_CHECK_SECONDS: Final = 5.0
# At the start: runs heard of this recently, and not more than these, so that runs with news now hardly wait.
CATCH_UP_SECONDS: Final = 86_400.0
CATCH_UP_RUNS: Final = 50
# A run that another server examines is tried again after this.
ELSEWHERE_SECONDS: Final = 0.1
# News that a server took in and did not examine, because it died, are seen by the others: of runs that said nothing
# for this long, and did not long ago.
LEFT_BEHIND_SECONDS: Final = 5.0
LEFT_BEHIND_WITHIN_SECONDS: Final = 120.0
# Of so many runs, the newest examined, it is known up to where that was here.
REMEMBERED_RUNS: Final = 16_384
# Of so many runs, the newest examined, what their last examination worked out is kept for the next.
KEPT_RUNS: Final = 64

log = logging.getLogger("leakline")


@dataclass(frozen=True, slots=True)
class Wakes:
    """Whom to tell what happened."""

    run: Callable[[str], None]
    deliveries: Callable[[], None]
    # Of a run that goes on.
    verdict: Callable[[Verdict], None] = lambda verdict: None


class Examiner:
    """`once` is what its thread repeats; `news` may be called from any thread. ``clock`` is monotonic seconds."""

    def __init__(
        self,
        engine: Engine,
        silent_after_seconds: float,
        wakes: Wakes,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine, self._silent_after, self._wakes = engine, silent_after_seconds, wakes
        self._clock, self._now = clock, now
        self._lock = threading.Lock()
        self._waiting: dict[str, None] = {}
        # Those of them that have just ended.
        self._ended: set[str] = set()
        # Run id -> when it may be examined again.
        self._not_before: dict[str, float] = {}
        # A server that was not there has heard nobody: it listens for as long before it calls a run silent.
        self._next_silence_check = clock() + silent_after_seconds
        # Run id -> when to try again, of those that another server examined.
        self._put_off: dict[str, float] = {}
        # Run id -> up to which revision this one has examined it. The thread's alone.
        self._examined: dict[str, int] = {}
        self._next_left_behind = clock() + LEFT_BEHIND_SECONDS
        self._rest_until = 0.0
        # By run, the one examined last at the end. The thread's alone.
        self._kept: dict[str, Kept] = {}
        self.figures = ExaminerFigures()
        self._caught_up = False

    def news(self, run_id: str, *, ended: bool = False) -> bool:
        """``ended``: somebody waits for the last verdict, so the run is looked at without a rest.

        Whether that is new: one that waits already needs no other call of `once`.
        """
        with self._lock:
            new = run_id not in self._waiting or ended
            self._waiting[run_id] = None
            if ended:
                self._ended.add(run_id)
            return new

    def once(self) -> float:
        """Examine one run. Returns the seconds until there may be something to do."""
        if not self._caught_up:
            self._catch_up()
        if self._clock() >= self._next_silence_check:
            self._next_silence_check = self._clock() + SILENCE_CHECK_SECONDS
            self._mark_silent()
        if has_other_servers(self._engine) and self._clock() >= self._next_left_behind:
            self._next_left_behind = self._clock() + LEFT_BEHIND_SECONDS
            self._take_over()
        if self._clock() < self._rest_until and not self._ended:
            return self._rest_until - self._clock()
        run_id, wait_seconds = self._next()
        if run_id is None:
            return min(wait_seconds, SILENCE_CHECK_SECONDS)
        started, cpu_before = self._clock(), time.thread_time()
        looked = True
        try:
            looked = self._examine_alone(run_id)
        except NoSuchRun:
            log.info("run %s is gone", run_id)
        except (*DATABASE_ERRORS, CorruptChunk) as error:
            log.error("could not examine run %s: %s", run_id, error)
            self.news(run_id)
        if not looked:
            return 0.0
        return self._account(run_id, self._clock() - started, time.thread_time() - cpu_before)

    def _examine_alone(self, run_id: str) -> bool:
        """False when another server does or did. Raises NoSuchRun."""
        with examining.alone(self._engine, run_id) as ours:
            if not ours:
                self._try_again_soon(run_id)
                return False
            found = examining.examined(self._engine, run_id)
            if found is None:
                raise NoSuchRun(run_id)
            here = self._examined.get(run_id, 0)
            if found.examined > here and found.revision <= found.examined:
                return False
            self.examine(run_id)
            return True

    def _try_again_soon(self, run_id: str) -> None:
        with self._lock:
            self._waiting.setdefault(run_id, None)
            self._put_off[run_id] = self._clock() + ELSEWHERE_SECONDS

    def _account(self, run_id: str, took_seconds: float, cpu_seconds: float) -> float:
        """Returns how long to rest before the next run, so that training on this machine hardly notices."""
        self.figures.examinations += 1
        self.figures.cpu_seconds += cpu_seconds
        pause = max(MIN_INTERVAL_SECONDS, took_seconds * (1 / MAX_SHARE_OF_ONE_RUN - 1))
        self._not_before[run_id] = self._clock() + pause
        self._rest_until = self._clock() + took_seconds * (1 / MAX_SHARE - 1)
        return self._rest_until - self._clock()

    def examine(self, run_id: str) -> Verdict:
        """Examine a run now. Raises NoSuchRun."""
        history, seen = load_for_examination(self._engine, run_id)
        verdict = analysis.examine(history, self._kept_of(run_id))
        run = runs.get_summary(self._engine, run_id)
        if run is None:
            raise NoSuchRun(run_id)
        delivered = self._save(run, verdict, history, seen)
        self._wakes.run(run_id)
        if run["state"] == "running":
            self._wakes.verdict(verdict)
        else:
            self._kept.pop(run_id, None)
        if delivered:
            self._wakes.deliveries()
        return verdict

    def _kept_of(self, run_id: str) -> Kept:
        """What is lost with it, or with the process, is worked out anew: no answer rests on it."""
        kept = self._kept.pop(run_id) if run_id in self._kept else Kept()
        self._kept[run_id] = kept
        while len(self._kept) > KEPT_RUNS:
            del self._kept[next(iter(self._kept))]
        return kept

    def _save(self, run: dict[str, Any], verdict: Verdict, history: RunHistory, seen: int) -> int:
        """One transaction, after what takes long: from its end, an alert exists whatever happens to this process."""
        now = self._now()
        looks = looks_at(self._engine, history, verdict.oom, run["project"], run["name"], now)
        with writing(self._engine) as connection:
            before = examining.begin_saving(connection, verdict.run, seen)
            if before is None:
                # Another server has seen more, or the run was removed.
                return 0
            changes = findings.save(connection, verdict, to_json(verdict), now)
            examined = telling.examined_run(connection, run, verdict, now)
            new = telling.alerts_of(connection, looks, changes, examined)
            delivered = alerts.add(connection, new)
            upto = examining.saved(connection, verdict.run, seen, before)
        self._remember(verdict.run, upto)
        return delivered

    def _remember(self, run_id: str, upto: int) -> None:
        self._examined.pop(run_id, None)
        self._examined[run_id] = upto
        while len(self._examined) > REMEMBERED_RUNS:
            del self._examined[next(iter(self._examined))]

    def _next(self) -> tuple[str | None, float]:
        now = self._clock()
        with self._lock:
            soonest = min(self._waiting, key=self._may_be_examined_at, default=None)
            if soonest is None:
                self._not_before = {r: at for r, at in self._not_before.items() if at > now}
                return None, SILENCE_CHECK_SECONDS
            wait_seconds = self._may_be_examined_at(soonest) - now
            if wait_seconds > 0:
                return None, wait_seconds
            del self._waiting[soonest]
            self._put_off.pop(soonest, None)
            self._ended.discard(soonest)
            return soonest, 0.0

    def _may_be_examined_at(self, run_id: str) -> float:
        if run_id in self._put_off:
            return self._put_off[run_id]
        return 0.0 if run_id in self._ended else self._not_before.get(run_id, 0.0)

    def _catch_up(self) -> None:
        """What was accepted just before a server ended was never looked at, and nobody else will say so."""
        now = self._now()
        try:
            for run_id in examining.unexamined(
                self._engine, now - CATCH_UP_SECONDS, now, CATCH_UP_RUNS
            ):
                self.news(run_id)
            self._caught_up = True
        except DATABASE_ERRORS as error:
            log.error("could not look for runs not yet examined: %s", error)

    def _take_over(self) -> None:
        now = self._now()
        since, before = now - LEFT_BEHIND_WITHIN_SECONDS, now - LEFT_BEHIND_SECONDS
        try:
            for run_id in examining.unexamined(self._engine, since, before, CATCH_UP_RUNS):
                self.news(run_id)
        except DATABASE_ERRORS as error:
            log.error("could not look for runs not yet examined: %s", error)

    def _mark_silent(self) -> None:
        now = self._now()
        # Evidence of a kill makes sure sooner; it is three times as long as a live client takes.
        silence = ends.Silence(now - self._silent_after, now - self._silent_after / 2)
        try:
            if not ends.anybody_silent(self._engine, silence):
                return
            with writing(self._engine) as connection:
                concluded = ends.conclude(connection, silence)
                new = telling.alerts_of_silence(connection, concluded, now)
                delivered = alerts.add(connection, new)
        except (*DATABASE_ERRORS, CorruptChunk) as error:
            log.error("could not look for silent runs: %s", error)
            return
        for run_id in (*concluded.runs, *(process.run_id for process in concluded.processes)):
            self._wakes.run(run_id)
        if delivered:
            self._wakes.deliveries()

"""The examination of runs with new data, which writes the resulting alerts to the database.

1. Take the next run that is due and that no other server is examining.
2. Load, examine and save the run (`examination.py`). One transaction saves everything, so the alerts exist even if
   this process dies afterwards.
3. If others changed the run's data in the meantime, examine the run again.
4. Wake the workers and viewers that are waiting for the run or for deliveries.

In addition, runs that have sent no data for a while are marked as silent, or as killed if their last readings suggest
it. Alerts are written for these runs too; their next batch sets them back to running.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from leakline.analysis.results import Verdict

from ..alerts.alert_payload import ExaminedRun
from ..alerts.run_alerts import (
    RUN,
    end_alert,
    is_quiet,
    quiet_from,
    silent_alert,
    vanished_alert,
)
from ..store import examinations, findings, incident_groups, leases
from ..store.alerts import alert_rows
from ..store.alerts.alert_rows import Alert, AlertHistory
from ..store.engine import DATABASE_ERRORS, Connection, Engine, without_content, writing
from ..store.examinations import ChangedMeanwhile
from ..store.leases import has_other_servers
from ..store.maintenance import disk_space, quarantine, run_deletion
from ..store.runs import lifecycle, runs
from ..store.runs.lifecycle import Concluded
from ..store.runs.run_history import NoSuchRun
from ..store.series import CorruptChunk
from ..worker_thread import ExaminerFigures
from .examination import CannotLook, Closed, Look, Looking, NoRoom, examined_run


def _alerts_of_silence(connection: Connection, concluded: Concluded, now: float) -> list[Alert]:
    """Return alerts for runs that fell silent or were killed, and for killed processes of runs that continue."""
    found = [
        _of_silent_run(connection, run_id, now)
        for run_id in concluded.runs
        if not run_deletion.is_deleted(connection, run_id)
    ]
    for vanished in concluded.processes:
        if run_deletion.is_deleted(connection, vanished.run_id):
            continue
        examined = _examined_last(connection, vanished.run_id, now)
        found.append(vanished_alert(examined, vanished.rank, vanished.reason))
    return [alert for alert in found if alert is not None]


def _of_silent_run(connection: Connection, run_id: str, now: float) -> Alert | None:
    examined = _examined_last(connection, run_id, now)
    if examined.state != "silent":
        return end_alert(examined)
    history = alert_rows.alert_histories(connection, examined.id).get(RUN, AlertHistory())
    if is_quiet(examined, history):
        alert_rows.keep_quiet(connection, examined.id, RUN, quiet_from(now))
    return silent_alert(examined, history)


def _examined_last(connection: Connection, run_id: str, now: float) -> ExaminedRun:
    """Return the run with the verdict from its last examination."""
    row = runs.row_of(connection, run_id)
    assert row is not None
    run = runs.summary(row)
    verdict = findings.verdict_of(connection, run_id, run["unit"])
    return examined_run(run, verdict, now, incident_groups.began_at(connection, run_id))


# Limits on examinations: the minimum interval per run, and the shares of one core for one run and for all runs.
MIN_INTERVAL_SECONDS: Final = 0.5
MAX_SHARE_OF_ONE_RUN: Final = 0.25
MAX_SHARE: Final = 0.5
SILENCE_CHECK_SECONDS: Final = 5.0
# At startup, only this many runs with data in this period are examined, so that runs with new data hardly wait.
CATCH_UP_SECONDS: Final = 86_400.0
CATCH_UP_RUNS: Final = 50
# The number of runs ended in one transaction, which limits how long batches wait for the write lock.
CONCLUDED_AT_ONCE: Final = 8
# How long to wait before retrying a run that another server is examining.
ELSEWHERE_SECONDS: Final = 0.1
# How long to wait before retrying a run that could not be examined.
FAILED_SECONDS: Final = 5.0
# How long to wait before retrying a run after a database error or with damaged data.
DATABASE_FAILED_SECONDS: Final = 30.0
# If a server dies before it has examined new data, other servers examine the runs whose last data is older than the
# first period and newer than the second.
LEFT_BEHIND_SECONDS: Final = 5.0
LEFT_BEHIND_WITHIN_SECONDS: Final = 120.0
# The examined revision is remembered for this many of the most recently examined runs.
REMEMBERED_RUNS: Final = 16_384

log = logging.getLogger("leakline")


@dataclass(frozen=True, slots=True)
class Wakes:
    """Functions to call after an examination."""

    run: Callable[[str], None]
    deliveries: Callable[[], None]
    # Called for a run that is still running.
    verdict: Callable[[Verdict], None] = lambda verdict: None


class Examiner:
    """Examines runs with new data. Its thread repeats `once`, and `news` may be called from any thread.

    ``look`` performs the examination, by default on this thread. ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        engine: Engine,
        silent_after_seconds: float,
        wakes: Wakes,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        look: Look | None = None,
    ) -> None:
        self._engine, self._silent_after, self._wakes = engine, silent_after_seconds, wakes
        self._clock, self._now = clock, now
        self._look = look or Looking(engine, now)
        self._lock = threading.Lock()
        self._waiting: dict[str, None] = {}
        # Waiting runs that have ended since their last examination.
        self._ended: set[str] = set()
        # Run id -> time from which it may be examined again.
        self._not_before: dict[str, float] = {}
        # While a server is down it receives no data, so after startup it waits before it marks runs as silent.
        self._next_silence_check = clock() + silent_after_seconds
        # The result of the last search for silent runs.
        self._suspects: lifecycle.Suspects | None = None
        # Run id -> time of the next attempt, for runs that another server was examining or whose examination failed.
        self._put_off: dict[str, float] = {}
        # Run id -> revision up to which this server has examined it. Used only by the worker's thread.
        self._examined: dict[str, int] = {}
        self._next_left_behind = clock() + LEFT_BEHIND_SECONDS
        self._rest_until = 0.0
        # The run that is being examined.
        self._at: str | None = None
        self.figures = ExaminerFigures()
        self._caught_up = False

    def news(self, run_id: str, *, ended: bool = False) -> bool:
        """Queue a run for examination.

        If ``ended`` is True, the run is examined without a pause, because somebody is waiting for its final verdict.
        Return True if `once` must be woken, because the run was not queued yet or has ended.
        """
        with self._lock:
            new = run_id not in self._waiting or ended
            self._waiting[run_id] = None
            if ended:
                self._ended.add(run_id)
            return new

    def once(self) -> float:
        """Examine one run. Return the seconds until another run may be due."""
        self._at = None
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
        self._at, looked = run_id, True
        started, cpu_before = self._clock(), time.thread_time()
        try:
            looked = self._examine_alone(run_id)
        except NoSuchRun:
            log.info("run %s was removed", run_id)
        except Closed:
            return SILENCE_CHECK_SECONDS
        except ChangedMeanwhile:
            self._try_again_soon(run_id, ELSEWHERE_SECONDS)
        except CannotLook as error:
            # If this run makes the analysis process crash, the delay gives other runs a turn.
            self._tell(f"could not examine run {run_id}", error)
            self._try_again_soon(run_id, FAILED_SECONDS)
        except CorruptChunk as error:
            self._tell(f"could not examine run {run_id}", error)
            self._try_again_soon(run_id, DATABASE_FAILED_SECONDS)
        except DATABASE_ERRORS as error:
            self._tell(f"could not examine run {run_id}", error)
            self._try_again_soon(run_id, DATABASE_FAILED_SECONDS)
            # A full disk or an unavailable database affects all runs.
            self._rest_until = self._clock() + FAILED_SECONDS
            return FAILED_SECONDS
        if not looked:
            return 0.0
        return self._account(run_id, self._clock() - started, time.thread_time() - cpu_before)

    def failed(self, of_damage: bool | None) -> str:
        """Postpone the run after an unexpected error; return the message to log."""
        if self._at is None:
            return ""
        # Retry even if the cause is unknown, because no new data triggers an examination of a run that has ended.
        if of_damage is not False:
            self._try_again_soon(self._at, FAILED_SECONDS)
        return f"could not examine run {self._at}"

    def _examine_alone(self, run_id: str) -> bool:
        """Examine the run unless another server is examining it or has examined it. Return True if this call examined
        the run. Raises NoSuchRun.
        """
        with leases.alone(self._engine, run_id) as ours:
            if not ours:
                self._try_again_soon(run_id, ELSEWHERE_SECONDS)
                return False
            found = leases.examined(self._engine, run_id)
            if found is None:
                raise NoSuchRun(run_id)
            here = self._examined.get(run_id, 0)
            if found.examined > here and found.revision <= found.examined:
                return False
            self.examine(run_id)
            return True

    def _tell(self, what: str, error: Exception) -> None:
        if isinstance(error, NoRoom):
            disk_space.mark_full(self._engine, disk_space.AGAIN_SECONDS)
        elif not quarantine.is_logged(self._engine, error):
            log.error("%s: %s", what, without_content(error))

    def _try_again_soon(self, run_id: str, seconds: float) -> None:
        with self._lock:
            self._waiting.setdefault(run_id, None)
            self._put_off[run_id] = self._clock() + seconds

    def _account(self, run_id: str, took_seconds: float, cpu_seconds: float) -> float:
        """Record the cost of an examination, and return how many seconds to pause before the next examination.

        The pause keeps the effect on training on this machine small.
        """
        self.figures.examinations += 1
        self.figures.cpu_seconds += cpu_seconds
        pause = max(MIN_INTERVAL_SECONDS, took_seconds * (1 / MAX_SHARE_OF_ONE_RUN - 1))
        self._not_before[run_id] = self._clock() + pause
        self._rest_until = self._clock() + took_seconds * (1 / MAX_SHARE - 1)
        return self._rest_until - self._clock()

    def examine(self, run_id: str) -> Verdict:
        """Examine a run now. Raises NoSuchRun, ChangedMeanwhile, and the errors of `Look`."""
        examined = self._look(run_id)
        self.figures.cpu_seconds += examined.cpu_seconds
        saved = examinations.save(self._engine, examined)
        # The result is None if another server has examined newer data, or if the run was removed.
        revision, deliveries = saved or (0, 0)
        if saved is not None:
            self._remember(run_id, revision)
        self._wakes.run(run_id)
        if examined.run["state"] == "running":
            self._wakes.verdict(examined.verdict)
        else:
            self._look.forget(run_id)
        if deliveries:
            self._wakes.deliveries()
        return examined.verdict

    def _remember(self, run_id: str, end: int) -> None:
        self._examined.pop(run_id, None)
        self._examined[run_id] = end
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
        """Queue runs with data that no server has examined, because nothing else would trigger their examination."""
        now = self._now()
        try:
            for run_id in leases.unexamined(
                self._engine, now - CATCH_UP_SECONDS, now, CATCH_UP_RUNS
            ):
                self.news(run_id)
            self._caught_up = True
        except DATABASE_ERRORS as error:
            self._tell("could not search for unexamined runs", error)

    def _take_over(self) -> None:
        now = self._now()
        since, before = now - LEFT_BEHIND_WITHIN_SECONDS, now - LEFT_BEHIND_SECONDS
        try:
            for run_id in leases.unexamined(self._engine, since, before, CATCH_UP_RUNS):
                self.news(run_id)
        except DATABASE_ERRORS as error:
            self._tell("could not search for unexamined runs", error)

    def _mark_silent(self) -> None:
        now = self._now()
        # With evidence of a kill, half the silence is enough; this is still longer than the interval at which a live
        # client sends data.
        silence = lifecycle.Silence(now - self._silent_after, now - self._silent_after / 2)
        try:
            self._suspects = found = lifecycle.suspects(self._engine, silence, self._suspects)
            for first in range(0, len(found.runs), CONCLUDED_AT_ONCE):
                self._conclude(found, found.runs[first : first + CONCLUDED_AT_ONCE], now)
        except (*DATABASE_ERRORS, CorruptChunk) as error:
            self._tell("could not search for silent runs", error)

    def _conclude(self, found: lifecycle.Suspects, run_ids: Sequence[str], now: float) -> None:
        with writing(self._engine) as connection:
            concluded = lifecycle.conclude(connection, found, run_ids)
            new = _alerts_of_silence(connection, concluded, now)
            delivered = alert_rows.add(connection, new)
        for run_id in (*concluded.runs, *(process.run_id for process in concluded.processes)):
            self._wakes.run(run_id)
        if delivered:
            self._wakes.deliveries()

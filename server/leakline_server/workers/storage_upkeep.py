"""Maintenance of stored data: sealing, compaction, thinning and removal, in small steps so that ingest has priority.

`Sealer` seals the snapshots of the processes that the writer reports, and searches for paused processes and for
processes left by an earlier server. `Compactor` compacts sealed segments on another thread. `Retainer`:

1. Remove a run that a user deleted, once the time to undo the deletion is over (`store/maintenance/run_deletion.py`).
2. Delete some rows of a removed run.
3. Measure the size of runs with new data.
4. Decide which runs to remove and which to thin (`store/maintenance/retention_policy.py`).
5. Remove one of these runs, or thin one segment of a run (`store/maintenance/retention_steps.py`).
6. Return some of an SQLite file's free space to the file system.

If several servers use one database, only one of them runs these steps at a time.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ..store import leases, series
from ..store.engine import DATABASE_ERRORS, Engine, without_content
from ..store.leases import has_other_servers
from ..store.maintenance import (
    disk_space,
    quarantine,
    retention_policy,
    run_deletion,
    storage_sizes,
)
from ..store.maintenance.retention_policy import Limits
from ..store.maintenance.retention_steps import Keeping, rest_after
from ..store.series import CorruptChunk, Key
from ..worker_thread import CompactorFigures, RetainerFigures, SealerFigures

LOOK_SECONDS: Final = 30.0
# How long a process is skipped after a failure, so that it does not delay other processes.
PAUSE_SECONDS: Final = 300.0
# How long a run's unsealed data is checked after the run's last batch: long enough for the run to count as idle.
NEWS_SECONDS: Final = 900.0
# The share of one core that compaction may use.
MAX_SHARE: Final = 0.25

log = logging.getLogger("leakline")


class Sealer:
    """Seals the snapshots of processes; its thread repeats `once`.

    ``sealed`` is called on that thread with a process and the number of its sealed snapshots, or 0 if the process had
    fewer unsealed snapshots than expected.
    """

    def __init__(self, engine: Engine, sealed: Callable[[Key, int], None]) -> None:
        self._engine, self._sealed = engine, sealed
        # The writer's thread appends to this queue.
        self._wanted: deque[Key] = deque()
        # Process -> whether any of its snapshots have been sealed since it became due.
        self._due: dict[Key, bool] = {}
        # Process whose sealing or compaction failed -> monotonic time at which its pause ends.
        self._paused: dict[Key, float] = {}
        # The process that `once` is sealing.
        self._at: Key | None = None
        self._next_look = 0.0
        # Whether all processes have been checked once.
        self._looked = False
        self.figures = SealerFigures()

    def want(self, keys: Iterable[Key]) -> None:
        """Queue processes with enough unsealed snapshots. May be called from any thread."""
        self._wanted.extend(keys)

    def once(self) -> float:
        """Seal one segment. Return the seconds to pause."""
        self._at = None
        self._add(self._newly_wanted())
        if self._due:
            self._seal(next(iter(self._due)))
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._look()
        return 0.0 if self._due or self._wanted else LOOK_SECONDS

    def _newly_wanted(self) -> list[Key]:
        return [self._wanted.popleft() for _ in range(len(self._wanted))]

    def _seal(self, key: Key) -> None:
        self._at = key
        started, count, more = time.perf_counter(), 0, False
        try:
            count, more = series.seal(self._engine, key, time.time())
        except (*DATABASE_ERRORS, CorruptChunk) as error:
            is_logged = quarantine.is_logged(self._engine, error)
            what = self.failed(is_logged)
            if not is_logged:
                log.error("%s: %s", what, without_content(error))
            return
        if count or not self._due[key]:
            # There is no need to report that nothing was left after a sealed segment.
            self._sealed(key, count)
        self.figures.snapshots += count
        self.figures.seconds += time.perf_counter() - started
        # Batches that arrived during sealing have not been sealed yet.
        wanted = self._newly_wanted()
        if count and (more or key in wanted):
            self._due[key] = True
        else:
            del self._due[key]
        self._add(wanted)
        self._at = None

    def failed(self, _of_damage: bool | None) -> str:
        """Skip this process for a while after an error, so that other processes continue; return the message to log."""
        if self._at is None:
            return ""
        self._paused[self._at] = time.monotonic() + PAUSE_SECONDS
        if not self._due.pop(self._at, True):
            self._sealed(self._at, 0)
        return f"could not seal batches of run {self._at.run_id}; trying again later"

    def _add(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key not in self._paused:
                self._due.setdefault(key, False)

    def _look(self) -> None:
        now = time.monotonic()
        self._paused = {key: until for key, until in self._paused.items() if until > now}
        since = time.time() - NEWS_SECONDS if self._looked else None
        try:
            self._add(series.due_to_seal(self._engine, time.time(), since))
        except DATABASE_ERRORS as error:
            if not quarantine.is_logged(self._engine, error):
                log.error("could not search for batches to seal: %s", without_content(error))
            return
        self._looked = True


class Compactor:
    """Compacts small segments into one large segment at a time, with pauses that give other work priority.

    Its thread repeats `once`. Several servers on one database may each have a compactor.
    """

    def __init__(self, engine: Engine, now: Callable[[], float] = time.time) -> None:
        self._engine, self._now = engine, now
        self._due: deque[Key] = deque()
        # Process whose sealing or compaction failed -> monotonic time at which its pause ends.
        self._paused: dict[Key, float] = {}
        # The process that `once` is compacting.
        self._at: Key | None = None
        self.figures = CompactorFigures()

    def once(self) -> float:
        """Compact one segment. Return the seconds to pause."""
        self._at = None
        if not self._due:
            try:
                self._look()
            except DATABASE_ERRORS as error:
                if not quarantine.is_logged(self._engine, error):
                    log.error(
                        "could not search for stored snapshots to compact: %s",
                        without_content(error),
                    )
        return self._next() if self._due else LOOK_SECONDS

    def _look(self) -> None:
        now = time.monotonic()
        self._paused = {key: until for key, until in self._paused.items() if until > now}
        due = series.due_to_compact(self._engine, self._now())
        self._due.extend(key for key in due if key not in self._paused)

    def _next(self) -> float:
        self._at, started = self._due[0], time.perf_counter()
        try:
            count = series.compact(self._engine, self._at, self._now())
        except DATABASE_ERRORS as error:
            is_logged = quarantine.is_logged(self._engine, error)
            what = self.failed(is_logged)
            if not is_logged:
                log.error("%s: %s", what, without_content(error))
            # The database may be unavailable for all processes.
            return LOOK_SECONDS
        seconds = time.perf_counter() - started
        self.figures.snapshots += count
        self.figures.seconds += seconds
        if not count:
            self._due.popleft()
        # If no process is due, search again after LOOK_SECONDS, not immediately.
        return seconds * (1 / MAX_SHARE - 1) if self._due else LOOK_SECONDS

    def failed(self, _of_damage: bool | None) -> str:
        """Skip this process for a while after an error, so that other processes continue; return the message to log."""
        if self._at is None:
            return ""
        self._due.popleft()
        self._paused[self._at] = time.monotonic() + PAUSE_SECONDS
        run_id = self._at.run_id
        return f"could not compact stored snapshots of run {run_id}; trying again later"


IDLE_SECONDS: Final = 5.0
MEASURE_SECONDS: Final = 30.0
# The interval for measuring all runs, even runs without recent data, which may have been thinned, compacted or never
# measured.
MEASURE_ALL_SECONDS: Final = 3_600.0
# The first decision is delayed, because a server that has just started must first process the waiting batches.
FIRST_DECISION_SECONDS: Final = 60.0
DECISION_SECONDS: Final = 600.0
BACK_OFF_SECONDS: Final = 5.0
LEASE: Final = "retaining"
LEASE_SECONDS: Final = 60.0


class Retainer:
    """Deletes runs and applies the retention policy; its thread repeats `once`. ``clock`` returns monotonic seconds,
    ``now`` returns Unix seconds.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        gone: Callable[[str], None] = lambda run_id: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine, self._limits, self._gone = engine, limits, gone
        self._clock, self._now = clock, now
        self._several, self._owner = has_other_servers(engine), secrets.token_hex(8)
        self._lease_until = 0.0
        self._next_measure = self._next_measure_of_all = clock()
        self._next_decision = clock() + FIRST_DECISION_SECONDS
        self._keeping = Keeping(engine, limits)
        self._too_large: set[str] = set()
        self.figures = RetainerFigures()

    def once(self) -> float:
        """Perform one step. Return the seconds to pause after it."""
        began = self._clock()
        try:
            worked = self._is_its_turn() and self._step()
        except DATABASE_ERRORS as error:
            if not quarantine.is_logged(self._engine, error):
                log.error("could not remove or thin old runs: %s", without_content(error))
            return BACK_OFF_SECONDS
        return rest_after(self._clock() - began) if worked else IDLE_SECONDS

    def decide_now(self) -> None:
        """Make the next step decide which runs to remove and thin, regardless of the time of the last decision."""
        self._next_decision = self._clock()

    def _is_its_turn(self) -> bool:
        if self._several and self._clock() >= self._lease_until:
            if not leases.take(self._engine, LEASE, self._owner, self._now(), LEASE_SECONDS):
                return False
            self._lease_until = self._clock() + LEASE_SECONDS / 2
        return True

    def _step(self) -> bool:
        return (
            self._remove_deleted()
            or run_deletion.sweep(self._engine, self._now())
            or self._measure()
            or self._decide()
            or self._remove_next()
            or self._thin_next()
            or disk_space.give_back(self._engine)
        )

    def _measure(self) -> bool:
        if self._clock() < self._next_measure:
            return False
        all_due = self._clock() >= self._next_measure_of_all
        since = None if all_due else self._now() - 2 * storage_sizes.SETTLED_SECONDS
        counted = storage_sizes.measure(self._engine, self._now(), since)
        if counted < storage_sizes.RUNS_PER_STEP:
            self._next_measure = self._clock() + MEASURE_SECONDS
            if all_due:
                self._next_measure_of_all = self._clock() + MEASURE_ALL_SECONDS
        return counted > 0

    def _decide(self) -> bool:
        if self._clock() < self._next_decision:
            return False
        self._next_decision = self._clock() + DECISION_SECONDS
        decision = retention_policy.decide(self._engine, self._limits, self._now())
        to_thin = retention_policy.to_thin(self._engine, self._limits, self._now())
        self._keeping.decided(decision.going, to_thin)
        for project in decision.too_large:
            if project.project not in self._too_large:
                log.warning(
                    "project %s uses %d bytes, more than the %d bytes of LEAKLINE_KEEP_BYTES; its remaining runs are "
                    "kept because they are live, or tagged keep or baseline",
                    project.project, project.bytes, project.limit,
                )  # fmt: skip
        self._too_large = {project.project for project in decision.too_large}
        return True

    def _remove_deleted(self) -> bool:
        gone = run_deletion.remove_next(self._engine, self._now())
        if gone is None:
            return False
        log.warning(
            "removed run %s (%s, project %s): deleted by a user",
            gone.run_id, gone.name, gone.project,
        )  # fmt: skip
        self._gone(gone.run_id)
        return True

    def _remove_next(self) -> bool:
        done = self._keeping.remove_next(self._now())
        if done is None:
            return False
        going, removed = done
        if removed == "removed":
            self.figures.removed_runs += 1
            log.warning(
                "removed run %s (%s, project %s): %s",
                going.run_id, going.name, going.project,
                "older than LEAKLINE_KEEP_DAYS" if going.why == "age" else "project larger than LEAKLINE_KEEP_BYTES",
            )  # fmt: skip
            self._gone(going.run_id)
        return True

    def _thin_next(self) -> bool:
        left_out = self._keeping.thin_next(self._now())
        self.figures.thinned_snapshots += left_out or 0
        return left_out is not None

"""Removes, thins and gives back, one short step at a time, with a rest after each: ingest goes first.

1. Remove a run that people deleted, when the time to undo it is over (`store/maintenance/run_deletion.py`).
2. Delete some rows of a run that is gone.
3. Count the size of runs that have news.
4. Decide which runs are to go, and which are to be thinned (`store/maintenance/retention_policy.py`).
5. Remove one of them, or thin one stretch of one (`store/maintenance/retention_steps.py`).
6. Give some of the free space of an SQLite file back.

Of several servers on one database, one does it at a time.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Final

from ..store import leases
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
from ..worker_thread import RetainerFigures

IDLE_SECONDS: Final = 5.0
MEASURE_SECONDS: Final = 30.0
# Of runs that nothing was heard of for hours: thinned, compacted, or counted by nobody yet.
MEASURE_ALL_SECONDS: Final = 3_600.0
# A server that has just started first takes in what waits for it.
FIRST_DECISION_SECONDS: Final = 60.0
DECISION_SECONDS: Final = 600.0
BACK_OFF_SECONDS: Final = 5.0
LEASE: Final = "retaining"
LEASE_SECONDS: Final = 60.0

log = logging.getLogger("leakline")


class Retainer:
    """`once` is what its thread repeats. ``clock`` is monotonic seconds, ``now`` Unix seconds."""

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
        """One step. Returns how many seconds to rest after it."""
        began = self._clock()
        try:
            worked = self._is_its_turn() and self._step()
        except DATABASE_ERRORS as error:
            if not quarantine.is_told(self._engine, error):
                log.error("could not remove or thin old runs: %s", without_content(error))
            return BACK_OFF_SECONDS
        return rest_after(self._clock() - began) if worked else IDLE_SECONDS

    def decide_now(self) -> None:
        """At the next step, whenever the last time was."""
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
                    "project %s has %d bytes, more than the %d of LEAKLINE_KEEP_BYTES: what is left in it is live, or "
                    "tagged keep or baseline",
                    project.project, project.bytes, project.limit,
                )  # fmt: skip
        self._too_large = {project.project for project in decision.too_large}
        return True

    def _remove_deleted(self) -> bool:
        gone = run_deletion.remove_next(self._engine, self._now())
        if gone is None:
            return False
        log.warning(
            "removed run %s (%s, project %s): deleted on the page",
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
                "older than LEAKLINE_KEEP_DAYS" if going.why == "age" else "project above LEAKLINE_KEEP_BYTES",
            )  # fmt: skip
            self._gone(going.run_id)
        return True

    def _thin_next(self) -> bool:
        left_out = self._keeping.thin_next(self._now())
        self.figures.thinned_snapshots += left_out or 0
        return left_out is not None

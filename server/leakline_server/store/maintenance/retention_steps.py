"""Doing what retention decided, one short step at a time: a run removed, or a stretch of one thinned.

A decision may be old when its turn comes, so each step looks at the run again: what was tagged or heard of meanwhile
stays. What a step could not do, because somebody else had the rows or the database failed, is found again by the end
of the run, or by the next decision.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, Row

from ..engine import DATABASE_ERRORS, Engine
from ..series.column_reader import Key
from . import purge, retention_policy, run_thinning
from .purge import Removed
from .retention_policy import Going, Limits

# What is left of a run after so many times is damaged, or somebody works on it.
MAX_ROUNDS: Final = 3
# After a step as long as it took, so that at most half of the time is spent with it, and at least this.
REST_SECONDS: Final = 0.005


def rest_after(seconds: float) -> float:
    """How many seconds to leave the database to others after a step that took so long."""
    return max(REST_SECONDS, seconds)


class Keeping:
    """What is to go and to be thinned, and how far that is."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine, self._limits = engine, limits
        self._going: deque[Going] = deque()
        # (id, revision)
        self._to_thin: deque[tuple[str, int]] = deque()
        # Of the run that is being thinned: the stretches left, how often they were looked for, and whether one failed.
        self._thinning: tuple[str, int] | None = None
        self._stretches: deque[tuple[Key, int]] = deque()
        self._rounds, self._failed = 0, False

    def decided(self, going: Iterable[Going], to_thin: Iterable[tuple[str, int]]) -> None:
        """From now on this is what is to be done, after the run that is being thinned."""
        self._going, self._to_thin = deque(going), deque(to_thin)

    def remove_next(self, now: float) -> tuple[Going, Removed] | None:
        """Remove a run, if it still is to go. None: there is none left. Raises one of DATABASE_ERRORS."""
        if not self._going:
            return None
        going = self._going.popleft()
        still = functools.partial(self._still_goes, going)
        return going, purge.remove(self._engine, going.run_id, now, still)

    def thin_next(self, now: float) -> int | None:
        """Thin a stretch, or look for some. Returns how many snapshots it left out; None when there is nothing to do.

        Raises one of DATABASE_ERRORS.
        """
        if self._thinning is None:
            if not self._to_thin:
                return None
            self._thinning, self._rounds = self._to_thin.popleft(), 0
        run_id, revision = self._thinning
        if self._stretches:
            return self._thin(now)
        left = run_thinning.whole(self._engine, run_id)
        if left and self._rounds < MAX_ROUNDS:
            self._stretches, self._failed = deque(left), False
            self._rounds += 1
            return 0
        if not self._failed:
            run_thinning.mark_done(self._engine, run_id, revision)
        self._thinning = None
        return 0

    def _still_goes(self, going: Going, connection: Connection, run: Row[Any]) -> bool:
        return retention_policy.still_goes(connection, going, self._limits, run)

    def _thin(self, now: float) -> int:
        key, first_sequence = self._stretches.popleft()
        try:
            if not retention_policy.may_be_thinned(self._engine, self._limits, key.run_id, now):
                self._stretches.clear()
                self._thinning = None
                return 0
            return run_thinning.thin(self._engine, key, first_sequence).snapshots
        except DATABASE_ERRORS:
            self._failed = True
            raise

"""Retention work in short steps. Each step removes one run or thins out one segment.

A decision may be outdated by the time it is carried out, so each step checks the run again: runs that have since been
tagged or sent data are kept. Work that a step could not do, because the rows were locked or the database failed, is
retried in another round for the run or after the next decision.

Thinning reduces the sealed segments of runs that ended long ago to their most informative snapshots. In each segment
these are the first and last snapshot, every generation end (without generations, the last snapshot of each minute), and
for each series the snapshots with its first, last, lowest and highest value. So the statistics of a chunk row (first,
last, minimum, maximum) do not change, and every curve keeps its spikes. Events, censuses, holders and large objects are
not touched. Dropped snapshots that are sent again count as already stored.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, Row, update

from ..columns import COLUMNS, GENERATION, KIND, MONOTONIC, Array, Numbers
from ..engine import DATABASE_ERRORS, Engine, writing
from ..schema import Key, sizes
from ..series import Block, drop, undropped
from . import retention_policy, run_deletion
from .retention_policy import Going, Limits
from .run_deletion import Removed

MINUTE_SECONDS: Final = 60.0
_END: Final = "generation_end"


def mark_done(engine: Engine, run_id: str, revision: int) -> None:
    """Record that the run is completely thinned at this revision, and have its size measured again."""
    with writing(engine, durable=False) as connection:
        this = sizes.c.run_id == run_id
        connection.execute(update(sizes).where(this).values(thinned=revision, measured_at=0.0))


def kept(block: Block) -> Array:
    """Return a mask of the snapshots to keep in a segment."""
    count = len(block)
    keep = np.zeros(count, dtype=bool)
    keep[[0, -1]] = True
    keep |= _ends(block)
    for number, column in block.columns.items():
        if number in COLUMNS or not isinstance(column, Numbers):
            continue
        there = np.arange(count) if column.present is None else np.flatnonzero(column.present)
        if len(there):
            values = column.values[there]
            keep[there[[0, -1, int(values.argmin()), int(values.argmax())]]] = True
    return keep


def _ends(block: Block) -> Array:
    generation = block.numbers(GENERATION)
    if generation.present is None or generation.present.any():
        return block.texts(KIND).equal(_END)
    minute = block.numbers(MONOTONIC).values // MINUTE_SECONDS
    last: Array = np.append(minute[1:] != minute[:-1], True)
    return last


# Segments that are left after this many rounds are damaged, or another server is changing them.
MAX_ROUNDS: Final = 3
# The minimum pause after a step. The pause is as long as the step took, so that at most half of the time is spent on
# retention.
REST_SECONDS: Final = 0.005


def rest_after(seconds: float) -> float:
    """Return how many seconds to pause after a step that took ``seconds``."""
    return max(REST_SECONDS, seconds)


class Keeping:
    """The pending retention work, and its progress."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine, self._limits = engine, limits
        self._going: deque[Going] = deque()
        # (id, revision)
        self._to_thin: deque[tuple[str, int]] = deque()
        # The run that is being thinned, its remaining segments, the rounds so far, and whether a step has failed.
        self._thinning: tuple[str, int] | None = None
        self._stretches: deque[tuple[Key, int]] = deque()
        self._rounds, self._failed = 0, False

    def decided(self, going: Iterable[Going], to_thin: Iterable[tuple[str, int]]) -> None:
        """Replace the pending work; the run that is being thinned is finished first."""
        self._going, self._to_thin = deque(going), deque(to_thin)

    def remove_next(self, now: float) -> tuple[Going, Removed] | None:
        """Remove the next run if the decision still holds. Return the run and the result, or None if no run is left.

        Raises one of DATABASE_ERRORS.
        """
        if not self._going:
            return None
        going = self._going.popleft()
        still = functools.partial(self._still_goes, going)
        return going, run_deletion.remove(self._engine, going.run_id, now, still)

    def thin_next(self, now: float) -> int | None:
        """Thin out one segment, or find the segments of the next run. Return the number of dropped snapshots.

        Return None if there is nothing to do. Raises one of DATABASE_ERRORS.
        """
        if self._thinning is None:
            if not self._to_thin:
                return None
            self._thinning, self._rounds = self._to_thin.popleft(), 0
        run_id, revision = self._thinning
        if self._stretches:
            return self._thin(now)
        left = undropped(self._engine, run_id)
        if left and self._rounds < MAX_ROUNDS:
            self._stretches, self._failed = deque(left), False
            self._rounds += 1
            return 0
        if not self._failed:
            mark_done(self._engine, run_id, revision)
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
            return drop(self._engine, key, first_sequence, kept).snapshots
        except DATABASE_ERRORS:
            self._failed = True
            raise

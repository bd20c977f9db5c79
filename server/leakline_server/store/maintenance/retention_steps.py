"""Doing what retention decided, one short step at a time: a run removed, or a stretch of one thinned.

A decision may be old when its turn comes, so each step looks at the run again: what was tagged or heard of meanwhile
stays. What a step could not do, because somebody else had the rows or the database failed, is found again by the end
of the run, or by the next decision.

Thinning is for what is sealed: of a run that ended long ago, the snapshots that tell the story stay. Of each sealed
stretch these stay: its first and its last snapshot, every generation end (of a program without generations, the last
of each minute), and for each series the snapshots where it is first and last there, lowest and highest. So the
numbers of a chunk row (first, last, minimum, maximum) are the same before and after, and every curve keeps its
spikes. Events, censuses, holders and large objects are not touched. What is sent of it again is taken for known.
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
    """Nothing of the run is left to thin, as long as it stays at this revision. Its size is counted again."""
    with writing(engine, durable=False) as connection:
        this = sizes.c.run_id == run_id
        connection.execute(update(sizes).where(this).values(thinned=revision, measured_at=0.0))


def kept(block: Block) -> Array:
    """Which snapshots of a stretch stay: a mask."""
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
        return going, run_deletion.remove(self._engine, going.run_id, now, still)

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

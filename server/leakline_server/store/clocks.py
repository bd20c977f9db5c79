"""Clocks that lie: what says to be of further ahead than clocks differ is taken to be of now, and that is told.

Snapshots are in order by their numbers, and durations are of the clock that never jumps, so only the moment that is
shown changes. A time of the past may be true: old recordings are uploaded. What was sent first counts: the same
snapshot, sent again, says another time than the one that is stored, and is no contradiction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..limits import MAX_AHEAD_SECONDS
from .batch_columns import BatchColumns

# The reason under which snapshots are counted (`ProcessState.lost`).
AHEAD: Final = "clock_ahead"


def moment(time: float, now: float) -> float:
    """A time that somebody has told, no later than can be."""
    return now if time > now + MAX_AHEAD_SECONDS else time


def clamped(columns: BatchColumns, now: float) -> tuple[BatchColumns, int]:
    """The columns without times of the future, and how many there were."""
    if not len(columns) or columns.time.max() <= now + MAX_AHEAD_SECONDS:
        return columns, 0
    ahead = columns.time > now + MAX_AHEAD_SECONDS
    return replace(columns, time=np.where(ahead, now, columns.time)), int(ahead.sum())


def clamp_events(events: Sequence[Any], now: float) -> None:
    """Those of `wire.Event`, in place."""
    for event in events:
        event.time = moment(event.time, now)

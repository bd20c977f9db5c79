"""Clocks that lie, further from the server's than clocks differ: their times are corrected, and that is reported.

- One that is ahead reports times of the future: they become the moment in which they were received.
- One that is behind cannot be recognised by its times alone, because a time of the past may be true: old recordings are
  uploaded. But a process that joins says what its clock says while it asks (``sent_at``), however old the snapshots
  are that it brings. Where that is behind, its times move by as much. But NTP may set a clock right while a program
  runs: a time that would move into the future comes from a clock that is right by now, and stays as it was sent.

Snapshots are in order by their numbers, and durations are of the clock that never jumps, so only the moment that is
shown changes. What was sent first counts: the same snapshot, sent again, says another time than the one that is
stored, and is no contradiction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np
from sqlalchemy import Connection, select, update

from ...limits import MAX_SKEW_SECONDS
from ..schema import processes
from .incoming_batch import BatchColumns
from .wire_types import Event

# The reasons under which snapshots are counted (`ProcessState.lost`).
AHEAD: Final = "clock_ahead"
BEHIND: Final = "clock_behind"


def skew(sent_at: float | None, now: float) -> float | None:
    """Seconds by which the server's clock is ahead of one that said ``sent_at`` when it asked; None: it did not say."""
    return None if sent_at is None else now - sent_at


def skew_of(columns: BatchColumns, now: float) -> float | None:
    """The same, of a process that did not say: by its newest time, unless that is old, and may be true."""
    if not len(columns):
        return None
    seconds = now - float(columns.time[-1])
    return seconds if seconds <= MAX_SKEW_SECONDS else None


def lies(skew_seconds: float | None) -> bool:
    return skew_seconds is not None and abs(skew_seconds) > MAX_SKEW_SECONDS


def lag(skew_seconds: float | None) -> float:
    """Seconds that are to be added to the times of a clock that is behind; 0 where it is not, or nobody knows."""
    return skew_seconds if skew_seconds is not None and skew_seconds > MAX_SKEW_SECONDS else 0.0


def moment(time: float, now: float, skew_seconds: float | None = None) -> float:
    """Return the corrected time of a client: no later than possible."""
    latest = now + MAX_SKEW_SECONDS
    moved = time + lag(skew_seconds)
    if moved <= latest:
        return moved
    return now if time > latest else time


def righted(
    columns: BatchColumns, now: float, skew_seconds: float | None
) -> tuple[BatchColumns, dict[str, int]]:
    """The columns with times that can be, and of how many snapshots they were changed, by reason."""
    late, latest = lag(skew_seconds), now + MAX_SKEW_SECONDS
    counted = {}
    if late and len(columns) and columns.time.min() + late <= latest:
        behind = columns.time + late <= latest
        counted[BEHIND] = int(behind.sum())
        columns = replace(columns, time=np.where(behind, columns.time + late, columns.time))
    if len(columns) and columns.time.max() > latest:
        ahead = columns.time > latest
        counted[AHEAD] = int(ahead.sum())
        columns = replace(columns, time=np.where(ahead, now, columns.time))
    return columns, counted


def righted_events(events: Sequence[Event], now: float, skew_seconds: float | None) -> list[Event]:
    return [
        msgspec.structs.replace(each, time=moment(each.time, now, skew_seconds)) for each in events
    ]


def note(connection: Connection, run_id: str, instance: str, skew_seconds: float | None) -> None:
    """Of a process that says what its clock says. What was measured first stands: times were put right by it."""
    if skew_seconds is not None:
        p = processes.c
        first = (p.run_id == run_id, p.instance == instance, p.clock_skew_seconds.is_(None))
        connection.execute(update(processes).where(*first).values(clock_skew_seconds=skew_seconds))


def of_process(connection: Connection, run_id: str, instance: str | None) -> float | None:
    """What is known of the clock of a process; None also where there is none such."""
    if instance is None:
        return None
    p = processes.c
    found: float | None = connection.scalar(
        select(p.clock_skew_seconds).where(p.run_id == run_id, p.instance == instance)
    )
    return found

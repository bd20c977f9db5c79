"""Correction of client clocks that differ from the server's clock by more than MAX_SKEW_SECONDS.

- A clock that is ahead produces times in the future, which are replaced by the time of receipt.
- A clock that is behind cannot be detected from its times alone, because times in the past may be correct when old
  recordings are uploaded. But a process sends its current time (``sent_at``) when it joins, no matter how old its
  snapshots are. If that time is behind the server's time, the snapshot times are shifted by the difference. NTP may
  correct the clock while the program runs: a time that the shift would move into the future comes from a corrected
  clock and is not shifted.

Snapshots are ordered by sequence number, and durations use a monotonic clock, so a correction changes only the times
that are shown. Corrections are counted by reason and reported. The version stored first counts: the time of a resent
snapshot may differ from its stored, corrected time, and that difference is not a contradiction.
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

# Keys in `ProcessState.lost` for the counts of snapshots with corrected times.
AHEAD: Final = "clock_ahead"
BEHIND: Final = "clock_behind"


def skew(sent_at: float | None, now: float) -> float | None:
    """Return the server's time minus the client's time in seconds, or None if the client did not send its time."""
    return None if sent_at is None else now - sent_at


def skew_of(columns: BatchColumns, now: float) -> float | None:
    """Estimate the skew in seconds from the newest snapshot of a process that did not send its current time.

    Return None if there are no snapshots, or if the newest snapshot is old, because an old time may be correct.
    """
    if not len(columns):
        return None
    seconds = now - float(columns.time[-1])
    return seconds if seconds <= MAX_SKEW_SECONDS else None


def lies(skew_seconds: float | None) -> bool:
    return skew_seconds is not None and abs(skew_seconds) > MAX_SKEW_SECONDS


def lag(skew_seconds: float | None) -> float:
    """Return the seconds to add to the times of a clock that is behind; 0 for any other clock or an unknown skew."""
    return skew_seconds if skew_seconds is not None and skew_seconds > MAX_SKEW_SECONDS else 0.0


def moment(time: float, now: float, skew_seconds: float | None = None) -> float:
    """Return a client's time after correction, at most MAX_SKEW_SECONDS in the future."""
    latest = now + MAX_SKEW_SECONDS
    moved = time + lag(skew_seconds)
    if moved <= latest:
        return moved
    return now if time > latest else time


def righted(
    columns: BatchColumns, now: float, skew_seconds: float | None
) -> tuple[BatchColumns, dict[str, int]]:
    """Return the columns with corrected times, and the number of changed snapshots by reason."""
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
    """Store the clock skew of a process. The first measurement is kept, because stored times were corrected with it."""
    if skew_seconds is not None:
        p = processes.c
        first = (p.run_id == run_id, p.instance == instance, p.clock_skew_seconds.is_(None))
        connection.execute(update(processes).where(*first).values(clock_skew_seconds=skew_seconds))


def of_process(connection: Connection, run_id: str, instance: str | None) -> float | None:
    """Return the stored clock skew of a process in seconds, or None if the skew or the process is unknown."""
    if instance is None:
        return None
    p = processes.c
    found: float | None = connection.scalar(
        select(p.clock_skew_seconds).where(p.run_id == run_id, p.instance == instance)
    )
    return found

"""Background readings between snapshots: memory every second, and a full snapshot every ten seconds.

The recorder's thread takes these readings, each of which takes microseconds. Without them, an hour without a phase end,
or a peak between two phase ends, would leave no record.

As memory runs out, readings become more frequent, and each reading is reported: the kernel kills a process without
notice, and users need the last snapshot before the kill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ..probes.memory.system_memory import Headroom, read_headroom
from ..snapshot import Number
from .sampler import Sampler

REPORT_EVERY_SECONDS: Final = 10.0
# Number of readings planned until memory runs out at the highest recent growth rate, and the
# shortest interval between two readings.
READINGS_LEFT: Final = 10
SHORTEST_SECONDS: Final = 0.02
# How long a growth rate stays valid: a training run that pauses for a moment usually continues to
# grow at the same rate.
SPEED_HOLDS_SECONDS: Final = 1.0
# Every reading is reported only while less than this time and less than this share of the limit
# remain: memory that is allocated and freed in each generation, well below the limit, is not a
# danger.
REPORT_BELOW_SECONDS: Final = 5.0
REPORT_BELOW_SHARE: Final = 0.15
# A program that runs close to its limit must not fill the spool: at most this many readings are
# reported in a row, and then one reading every two seconds.
MOST_REPORTED: Final = 100
SECONDS_EACH: Final = 2.0


class Approach:
    """An estimate of the time until memory runs out. ``clock`` returns monotonic seconds."""

    def __init__(
        self,
        read: Callable[[], Headroom | None] = read_headroom,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self._before: tuple[float, int] | None = None
        # The growth rate in bytes per second, and when it was measured.
        self._speed, self._speed_at = 0.0, clock()
        self._credit, self._credited_at = float(MOST_REPORTED), clock()
        self.look()

    def look(self) -> tuple[float, bool]:
        """Return (seconds until memory runs out, True if this reading must be reported).

        The time is infinite if free memory has not shrunk recently.
        """
        now, room = self._clock(), self._read()
        if room is None:
            return float("inf"), False
        shrunk = self._has_shrunk(now, room.left)
        if now - self._speed_at > SPEED_HOLDS_SECONDS or not self._speed:
            return float("inf"), False
        seconds = room.left / self._speed
        near = seconds < REPORT_BELOW_SECONDS and room.left < REPORT_BELOW_SHARE * room.limit
        return seconds, shrunk and near and self._may_tell(now)

    def _has_shrunk(self, now: float, left: int) -> bool:
        """Return True if free memory has shrunk since the previous reading, and update the rate.

        A higher rate from the last second is kept.
        """
        before, self._before = self._before, (now, left)
        if before is None or now <= before[0] or left >= before[1]:
            return False
        speed = (before[1] - left) / (now - before[0])
        if speed >= self._speed or now - self._speed_at > SPEED_HOLDS_SECONDS:
            self._speed, self._speed_at = speed, now
        return True

    def _may_tell(self, now: float) -> bool:
        earned = (now - self._credited_at) / SECONDS_EACH
        self._credit, self._credited_at = min(MOST_REPORTED, self._credit + earned), now
        if self._credit < 1:
            return False
        self._credit -= 1
        return True


class BackgroundFold:
    """A source of `sample` snapshots. ``tick`` returns the seconds until its next call.

    A snapshot is due every ten seconds, or at each reading if readings are less frequent. It is due immediately if
    memory is about to run out or ``has_news`` returns True.
    """

    def __init__(
        self,
        sampler: Sampler,
        emit: Callable[[Mapping[str, Number]], None],
        interval_seconds: float = 1.0,
        has_news: Callable[[], bool] = lambda: False,
        approach: Approach | None = None,
    ) -> None:
        self._sampler, self._emit, self._has_news = sampler, emit, has_news
        self._approach = Approach() if approach is None else approach
        self._interval = self._pause = interval_seconds
        self._unreported_seconds = 0.0

    def tick(self) -> float:
        """Take a reading, report it if due, and return the seconds until the next reading."""
        self._unreported_seconds += self._pause
        left, urgent = self._approach.look()
        if self._is_due() or urgent or self._has_news():
            self._unreported_seconds = 0.0
            self._emit(self._sampler.sample())
        else:
            self._sampler.look()
        self._pause = min(self._interval, max(SHORTEST_SECONDS, left / READINGS_LEFT))
        return self._pause

    def _is_due(self) -> bool:
        return self._unreported_seconds > REPORT_EVERY_SECONDS - self._interval / 2

"""Between two snapshots: how high memory is, every second; and every ten seconds a snapshot of its own.

It runs on the recorder's thread and reads what costs microseconds, so that a training that has no phase end for
an hour is still seen, and a peak between two ends as well.

Where memory is about to run out, it reads more often the nearer that is, and reports each reading: the kernel kills
without a word, and the last snapshot before that is the one people need.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ..probes.memory.system_memory import Headroom, read_headroom
from ..snapshot import Number
from .sampler import Sampler

REPORT_EVERY_SECONDS: Final = 10.0
# Ten readings in the time that is left, at the highest speed of late; but not oftener than this.
READINGS_LEFT: Final = 10
SHORTEST_SECONDS: Final = 0.02
# A training that rests for a moment will go on as before: a reading without growth is no reason to look away.
SPEED_HOLDS_SECONDS: Final = 1.0
# Reported one by one when so little time is left, and so little of the limit: what is allocated and freed again in each
# generation of a program with room to spare is no approach.
REPORT_BELOW_SECONDS: Final = 5.0
REPORT_BELOW_SHARE: Final = 0.15
# A program that lives at its limit must not fill the spool: so many at once, and one more every two seconds.
MOST_REPORTED: Final = 100
SECONDS_EACH: Final = 2.0


class Approach:
    """How soon memory runs out. ``clock`` gives seconds that only rise."""

    def __init__(
        self,
        read: Callable[[], Headroom | None] = read_headroom,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self._before: tuple[float, int] | None = None
        # Bytes a second, and when it was measured.
        self._speed, self._speed_at = 0.0, clock()
        self._credit, self._credited_at = float(MOST_REPORTED), clock()
        self.look()

    def look(self) -> tuple[float, bool]:
        """(seconds until memory runs out, infinite where it has not shrunk of late; whether to tell of it)."""
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
        """Since the look before; then its speed counts, unless it was higher a moment ago."""
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
    """``tick``, called when it says, reports a `sample` snapshot every ten seconds, or at each rarer reading; and
    at once where memory is about to run out, or where ``has_news`` says that something waits to be reported.
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
        """Seconds until it is due again."""
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

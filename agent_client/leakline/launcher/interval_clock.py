"""One interval of time after the other, for what declares no generations: a thread of ours ends them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from ..analysis.generation_axis import COUNTED_BY_SECONDS_UP_TO, UNITS_OF_TIME
from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread
from ..text_format import count_of

# Of an interval, how much later than it begins the next one is measured: never before, or two would be in one.
LATE: Final = 0.05


class Intervals:
    """``end`` is called with a label at the end of each interval of ``unit``, first one unit after the start.

    ``then`` is called on the same thread ``then_seconds`` after the start, and again when it says: None is never.
    """

    def __init__(
        self,
        unit: str,
        end: Callable[[str], None],
        then: Callable[[], float | None] = lambda: None,
        then_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unit, self._end, self._then, self._clock = unit, end, then, clock
        self._guard = Guard("measuring an interval")
        self._started = clock()
        self._then_at: float | None = self._started + then_seconds
        self._number = 0
        self._over = threading.Event()
        self._thread = OurThread("intervals", self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No interval begins to be measured after this."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(max(0.0, self._next() - self._clock())):
            with self._guard:
                self._do_what_is_due()

    def _next(self) -> float:
        due = self._due()
        return due if self._then_at is None else min(due, self._then_at)

    def _due(self) -> float:
        return self._started + (self._number + 1 + LATE) * UNITS_OF_TIME[self._unit]

    def _do_what_is_due(self) -> None:
        now = self._clock()
        if self._then_at is not None and now >= self._then_at:
            seconds = self._then()
            self._then_at = None if seconds is None else now + seconds
        if now < self._due():
            return
        if self._unit == "second" and now - self._started > COUNTED_BY_SECONDS_UP_TO:
            self._unit = "minute"
        # Not one more: after a suspended machine there is nothing to catch up with.
        self._number = int((now - self._started) / UNITS_OF_TIME[self._unit])
        self._end(f"after {count_of(self._number, self._unit)}")

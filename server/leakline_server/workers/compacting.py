"""Makes large segments of small ones, a segment at a time, and rests in between: who writes or reads comes first."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ..figures import CompactorFigures
from ..store import compaction, set_aside
from ..store.columns import Key
from ..store.engine import DATABASE_ERRORS, Engine, without_content

LOOK_SECONDS: Final = 30.0
# Of one core, while there is something to do.
MAX_SHARE: Final = 0.25
# What could not be compacted is tried again after so long, and holds up nothing else until then.
PAUSE_SECONDS: Final = 300.0

log = logging.getLogger("leakline")


class Compactor:
    """`once` is what its thread repeats. Several servers on one database may each have one."""

    def __init__(self, engine: Engine, now: Callable[[], float] = time.time) -> None:
        self._engine, self._now = engine, now
        self._due: deque[Key] = deque()
        # Until when, by the monotonic clock.
        self._paused: dict[Key, float] = {}
        self.figures = CompactorFigures()

    def once(self) -> float:
        """One segment. Returns how many seconds to rest."""
        if not self._due:
            try:
                self._look()
            except DATABASE_ERRORS as error:
                if not set_aside.is_told(self._engine, error):
                    log.error(
                        "could not look for stored snapshots to compact: %s", without_content(error)
                    )
        return self._next() if self._due else LOOK_SECONDS

    def _look(self) -> None:
        now = time.monotonic()
        self._paused = {key: until for key, until in self._paused.items() if until > now}
        due = compaction.due(self._engine, self._now())
        self._due.extend(key for key in due if key not in self._paused)

    def _next(self) -> float:
        key, started = self._due[0], time.perf_counter()
        count = 0
        try:
            count = compaction.compact(self._engine, key, self._now())
        except Exception as error:
            # Whatever it is, it is this process's: the next is tried.
            self._paused[key] = time.monotonic() + PAUSE_SECONDS
            foreseen = isinstance(error, DATABASE_ERRORS)
            if not set_aside.is_told(self._engine, error):
                log.error(
                    "could not compact stored snapshots of run %s, which is tried again later: %s",
                    key.run_id, without_content(error), exc_info=not foreseen,
                )  # fmt: skip
            if foreseen:
                # The database may be away, for all of them.
                self._due.popleft()
                return LOOK_SECONDS
        seconds = time.perf_counter() - started
        self.figures.snapshots += count
        self.figures.seconds += seconds
        if not count:
            self._due.popleft()
        # Where nothing is left, what is due is looked for again later and not at once.
        return seconds * (1 / MAX_SHARE - 1) if self._due else LOOK_SECONDS

"""Seals what waits, a segment at a time, beside the thread that writes batches: whoever sends waits for neither long.

Told by the writer which processes have enough; looks for itself for what was left by an earlier server and for what
has paused. What was sealed is compacted by another thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ..store.engine import DATABASE_ERRORS, Engine, without_content
from ..store.maintenance import quarantine
from ..store.series import compaction, sealing
from ..store.series.chunk_codec import CorruptChunk
from ..store.series.column_reader import Key
from ..worker_thread import CompactorFigures, SealerFigures

LOOK_SECONDS: Final = 30.0
# What could not be sealed or compacted is tried again after so long, and holds up nothing else until then.
PAUSE_SECONDS: Final = 300.0
# What waits of a run is looked at for so long after its last news: until it was idle, and tried once more.
NEWS_SECONDS: Final = 900.0
# Of one core, while there is something to compact.
MAX_SHARE: Final = 0.25

log = logging.getLogger("leakline")


class Sealer:
    """`once` is what its thread repeats. ``sealed`` is told, on that thread, how many snapshots of a process were; 0
    where less waits than was thought.
    """

    def __init__(self, engine: Engine, sealed: Callable[[Key, int], None]) -> None:
        self._engine, self._sealed = engine, sealed
        # From the writer's thread.
        self._wanted: deque[Key] = deque()
        # Whether something of it was sealed since it is due.
        self._due: dict[Key, bool] = {}
        # What could not be sealed, and until when it is left, by the monotonic clock.
        self._paused: dict[Key, float] = {}
        self._next_look = 0.0
        # Everything was looked at once.
        self._looked = False
        self.figures = SealerFigures()

    def want(self, keys: Iterable[Key]) -> None:
        """Enough of these waits; from any thread."""
        self._wanted.extend(keys)

    def once(self) -> float:
        """One segment. Returns how many seconds to rest."""
        self._add(self._newly_wanted())
        if self._due:
            self._seal(next(iter(self._due)))
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._look()
        return 0.0 if self._due or self._wanted else LOOK_SECONDS

    def _newly_wanted(self) -> list[Key]:
        return [self._wanted.popleft() for _ in range(len(self._wanted))]

    def _seal(self, key: Key) -> None:
        started, count, more = time.perf_counter(), 0, False
        try:
            count, more = sealing.seal_one(self._engine, key, time.time())
        except Exception as error:
            # Whatever it is, it is this process's: the others are sealed.
            self._paused[key] = time.monotonic() + PAUSE_SECONDS
            if not quarantine.is_told(self._engine, error):
                log.error(
                    "could not seal batches of run %s, which is tried again later: %s",
                    key.run_id, without_content(error),
                    exc_info=not isinstance(error, (*DATABASE_ERRORS, CorruptChunk)),
                )  # fmt: skip
        if count or not self._due[key]:
            # That nothing is left says nothing new to who has just been told of a segment.
            self._sealed(key, count)
        self.figures.snapshots += count
        self.figures.seconds += time.perf_counter() - started
        # What came meanwhile is not among what was looked at.
        wanted = self._newly_wanted()
        if count and (more or key in wanted):
            self._due[key] = True
        else:
            del self._due[key]
        self._add(wanted)

    def _add(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key not in self._paused:
                self._due.setdefault(key, False)

    def _look(self) -> None:
        now = time.monotonic()
        self._paused = {key: until for key, until in self._paused.items() if until > now}
        since = time.time() - NEWS_SECONDS if self._looked else None
        try:
            self._add(sealing.due(self._engine, time.time(), since))
        except DATABASE_ERRORS as error:
            if not quarantine.is_told(self._engine, error):
                log.error("could not look for batches to seal: %s", without_content(error))
            return
        self._looked = True


class Compactor:
    """Make large segments of small ones, one at a time, with rests in between: whoever writes or reads comes first.

    `once` is what its thread repeats. Several servers on one database may each have one.
    """

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
                if not quarantine.is_told(self._engine, error):
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
            if not quarantine.is_told(self._engine, error):
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

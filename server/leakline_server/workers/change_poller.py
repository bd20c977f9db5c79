"""Keeps up with the other servers on the same database: the runs that are watched here, and what processes are asked.

On SQLite there is no other; then it writes what was answered here, and is woken for that. It looks at the runs all
the same, once in a while: the command line may have removed one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from ..live_updates import Live
from ..run_requests import Requests
from ..store.engine import DATABASE_ERRORS, Engine, without_content
from ..store.leases import has_other_servers, revisions
from ..store.maintenance import quarantine

# How long a page may be behind what another server took in, and a process behind what was asked there.
RUNS_SECONDS: Final = 0.25
REQUESTS_SECONDS: Final = 1.0
ALONE_SECONDS: Final = 60.0
BACK_OFF_SECONDS: Final = 1.0

log = logging.getLogger("leakline")


class Watcher:
    """`once` is what its thread repeats. ``clock`` is monotonic seconds."""

    def __init__(
        self,
        engine: Engine,
        live: Live,
        requests: Requests,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._live, self._requests, self._clock = engine, live, requests, clock
        self._several = has_other_servers(engine)
        self._next_requests = clock()
        self._failed = False

    def news(self) -> None:
        """A batch has answered a request; before the thread is woken."""
        self._next_requests = self._clock()

    def once(self) -> float:
        """Look once. Returns the seconds until the next look."""
        try:
            self._look()
        except DATABASE_ERRORS as error:
            if not quarantine.after(self._engine, error) and not self._failed:
                log.warning(
                    "what other servers do waits for the database: %s", without_content(error)
                )
            self._failed = True
            return BACK_OFF_SECONDS
        self._failed = False
        return RUNS_SECONDS if self._several else ALONE_SECONDS

    def _look(self) -> None:
        if self._clock() >= self._next_requests:
            self._next_requests = self._clock() + (
                REQUESTS_SECONDS if self._several else ALONE_SECONDS
            )
            self._requests.refresh()
        watched = self._live.watched
        if watched:
            found = revisions(self._engine, watched)
            # One that is gone has news as well: its pages end.
            self._live.wake_behind({run_id: found.get(run_id) for run_id in watched})

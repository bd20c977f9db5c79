"""Worker threads and their counters for `/metrics`. No other code catches unexpected exceptions.

Each counter is written by one thread and may be read by any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

BACK_OFF_SECONDS: Final = 1.0

log = logging.getLogger("leakline")


class Worker:
    """A thread that calls ``once`` repeatedly. `wake` ends a wait early.

    ``once`` returns how many seconds to wait at most. After an unexpected error, ``is_over`` returns whether the cause
    is already fixed and logged (None: unknown). ``failed`` receives this value, postpones the item that caused the
    error, and returns the message to log.
    """

    def __init__(
        self,
        name: str,
        once: Callable[[], float],
        is_over: Callable[[Exception], bool | None] = lambda error: False,
        failed: Callable[[bool | None], str] = lambda is_over: "",
    ) -> None:
        self._once, self._is_over, self._failed = once, is_over, failed
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"leakline-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._news.set()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Let the current step finish, then stop."""
        self._stopping.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def attempt(self, once: Callable[[], float] | None = None) -> float:
        """Call ``once`` on the calling thread. Return its result, or BACK_OFF_SECONDS after an error."""
        try:
            return (once or self._once)()
        except Exception as error:
            # If the worker ended here, one run's error would stop alerts or ingest for all runs. The log has the cause.
            is_over = self._is_over(error)
            what = self._failed(is_over) or f"{threading.current_thread().name}: unexpected error"
            if not is_over:
                log.exception("%s", what)
            return BACK_OFF_SECONDS

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._news.clear()
            wait_seconds = self.attempt()
            if wait_seconds > 0:
                self._news.wait(wait_seconds)


@dataclass(slots=True)
class WriterFigures:
    commits: int = 0
    commit_seconds: float = 0.0
    batches: int = 0
    snapshots: int = 0
    repeated_batches: int = 0
    failures: int = 0
    # True while the database rejects writes for a reason other than a full disk or the content of a batch.
    refused: bool = False


@dataclass(slots=True)
class SealerFigures:
    snapshots: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class ExaminerFigures:
    """The examiner's counters. ``cpu_seconds`` is the CPU time of its thread and of the analysis process."""

    examinations: int = 0
    cpu_seconds: float = 0.0


@dataclass(slots=True)
class CompactorFigures:
    snapshots: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class RetainerFigures:
    removed_runs: int = 0
    thinned_snapshots: int = 0

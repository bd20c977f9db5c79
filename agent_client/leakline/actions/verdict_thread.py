"""The verdict of this process, worked out beside the training thread: one look at a time, a thread for each.

A look takes tenths of a second where much is measured, and cannot be done in slices of our own. The interpreter lets
the training thread in between, so it stands still for little longer than the interpreter's switch interval at one time;
what a look costs is charged to the budget. The thread refers to what was recorded, to nothing of the program's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread
from ..snapshot import Batch, ProcessIdentity, RunHeader, Snapshot
from .verdict_events import VerdictEvents

if TYPE_CHECKING:
    from ..analysis.results import Verdict


@dataclass(frozen=True, slots=True)
class Look:
    """What one gave. ``verdict`` is None where it failed; ``seconds`` of CPU.

    ``longest_stop``: seconds for which the training thread may have stood still at one time.
    """

    verdict: Verdict | None
    happened: frozenset[str]
    seconds: float
    longest_stop: float


class VerdictThread:
    """Everything but the looking belongs to the training thread."""

    def __init__(self, header: RunHeader, process: ProcessIdentity) -> None:
        self._header, self._process = header, process
        self._guard = Guard("working out the verdict")
        self._thread: OurThread | None = None
        self._found: list[Look] = []
        # Both are used by one look after the other. The first is an `analysis.kept.Kept`.
        self._kept: Any = None
        self._events = VerdictEvents()

    def prepare(self) -> None:
        """Load the analysis, here: a child that is forked while another thread imports could never import the same."""
        from ..analysis.incremental_cache import Kept

        self._kept = Kept()

    @property
    def is_free(self) -> bool:
        """Nothing is under way, and nothing waits to be taken."""
        return self._thread is None

    def begin(self, snapshots: Sequence[Snapshot]) -> None:
        """Look at these, which nobody changes. Only while it is free, and after `prepare`."""
        self._found = []
        thread = OurThread("verdict", self._run, snapshots, self._found)
        thread.start()
        self._thread = thread

    def wait(self, timeout_seconds: float) -> None:
        """Until nothing is under way."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def take(self) -> Look | None:
        """What the look under way has given, once; None while there is nothing."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return self._found.pop()

    def _run(self, snapshots: Sequence[Snapshot], found: list[Look]) -> None:
        started = time.thread_time()
        verdict, happened = None, frozenset[str]()
        with self._guard:
            verdict = self._examined(snapshots)
            happened = frozenset(self._events.since_last(verdict))
        seconds = time.thread_time() - started
        found.append(Look(verdict, happened, seconds, min(seconds, sys.getswitchinterval())))

    def _examined(self, snapshots: Sequence[Snapshot]) -> Verdict:
        # Lazily: a run without callbacks never loads the analysis before its end.
        from ..analysis import examine
        from ..analysis.run_history import history_from_batches

        batch = Batch(self._process, tuple(snapshots))
        return examine(history_from_batches(self._header, [batch]), self._kept)

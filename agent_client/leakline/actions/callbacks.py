"""`run.on(event, callback)`: the verdict inside the training process, at generation ends and by budget.

The same analysis as everywhere, over what this process has recorded: it needs no server, and knows no other rank. It is
worked out beside the training thread from one generation end on, and told at the first one after it is done.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ..errors import BadArgument
from ..sampling.overhead_budget import Governor
from ..snapshot import ProcessIdentity, RunHeader, Snapshot
from .snapshot_eviction import thinned
from .verdict_events import EVENTS
from .verdict_thread import VerdictThread

if TYPE_CHECKING:
    from ..analysis.results import Verdict

Callback = Callable[[Any], object]

# What the analysis gets to see.
KEPT_SNAPSHOTS: Final = 512
# CPU seconds of the first look, as long as little is recorded.
FIRST_LOOK_SECONDS: Final = 0.01
# At the end of a run, how long what is under way is waited for.
LAST_LOOK_SECONDS: Final = 0.5
# Statuses that get worse in this order: a callback for one also hears of what is worse.
LADDER: Final = ("watch", "suspected", "confirmed")
OTHERS: Final = ("learning", "ok", "filling", "recovered")
HEARD: Final = (*OTHERS, *LADDER, *EVENTS)


def check(event: object, callback: object) -> None:
    """Raises BadArgument, with the names there are."""
    if not isinstance(event, str) or event not in HEARD:
        raise BadArgument("event", event, f"must be one of {', '.join(HEARD)}")
    if not callable(callback):
        raise BadArgument("callback", f"<{type(callback).__name__}>", "must be callable")


class VerdictWatch:
    """Keeps the snapshots it is given, examines them, and says which callbacks are due."""

    def __init__(self, header: RunHeader, process: ProcessIdentity, governor: Governor) -> None:
        self._governor = governor
        self._callbacks: list[tuple[str, Callback]] = []
        self._due: deque[tuple[Callback, Verdict]] = deque()
        self._snapshots: list[Snapshot] = []
        # The recorder's thread adds samples. Reentrant: a signal handler may end the run in the middle of it.
        self._lock = threading.RLock()
        # Not yet looked at, and not yet answered with what was found.
        self._news = self._ended = False
        self._follows = self._is_over = False
        self._beside = VerdictThread(header, process)
        self.status = "learning"
        # The newest that was found.
        self.newest: Verdict | None = None

    @property
    def follows(self) -> bool:
        """Whether anybody wants to know of the verdict."""
        return self._follows

    def follow(self, past: Iterable[Snapshot] = ()) -> None:
        """From now on; ``past``: what was taken before. Only the first call begins."""
        if not (self._follows or self._is_over):
            with self._governor.measuring("verdict", set_up=True):
                self._beside.prepare()
            self._keep(past)
            self._follows = True

    def add(self, event: str, callback: Callback) -> None:
        """``event`` is one of HEARD."""
        self._callbacks.append((event, callback))

    def see(self, snapshot: Snapshot) -> None:
        """Remember a snapshot, when anybody wants to hear of the verdict."""
        if self._follows:
            self._keep([snapshot])
            if snapshot.kind == "generation_end":
                self._ended = self._news = True

    def forget(self) -> None:
        """Let go of the callbacks, and of what they hold of the program. Nothing of ours goes on after this."""
        self._is_over, self._follows = True, False
        self._callbacks.clear()
        self._due.clear()
        self._snapshots.clear()
        self.newest = None
        self._beside.wait(LAST_LOOK_SECONDS)

    def examine(self) -> None:
        """After a generation's end: take what was found, and have what is new looked at where the budget has room."""
        if self._ended:
            self._ended = False
            self._take()
            self._begin()

    def conclude(self) -> None:
        """The last chance of what is new; not for long."""
        if not self._callbacks:
            return
        deadline = time.monotonic() + LAST_LOOK_SECONDS
        self._beside.wait(LAST_LOOK_SECONDS)
        self._take()
        # What has come since that began.
        self._begin()
        self._beside.wait(max(0.0, deadline - time.monotonic()))
        self._take()

    def due(self) -> Iterator[tuple[Callback, Verdict]]:
        """What to call now, each once, outside of any guard: where one raises, the others are still due."""
        while self._due:
            yield self._due.popleft()

    def _keep(self, snapshots: Iterable[Snapshot]) -> None:
        with self._lock:
            self._snapshots += [_small(snapshot) for snapshot in snapshots]
            while len(self._snapshots) > KEPT_SNAPSHOTS:
                self._snapshots = thinned(self._snapshots, KEPT_SNAPSHOTS)

    def _begin(self) -> None:
        if self._is_over or not (self._news and self._beside.is_free):
            return
        if self._governor.allows("verdict", FIRST_LOOK_SECONDS):
            self._news = False
            with self._governor.measuring("verdict_begun"):
                self._beside.begin(self._snapshots[:])

    def _take(self) -> None:
        look = self._beside.take()
        if look is None:
            return
        self._governor.charge_beside("verdict", look.seconds, look.longest_stop)
        if look.verdict is None:
            return
        verdict, before, self.status = look.verdict, self.status, look.verdict.status
        self.newest = verdict
        self._due.extend(
            (callback, verdict)
            for event, callback in self._callbacks
            if event in look.happened or _reached(event, before, verdict.status)
        )


def _small(snapshot: Snapshot) -> Snapshot:
    """For keeping. The census is the largest part and the analysis has its numbers as series; it reads no lines."""
    # Each snapshot brings names of its own, which take more than the numbers.
    samples = {sys.intern(name): value for name, value in snapshot.samples.items()}
    events = tuple(event for event in snapshot.events if event.kind != "log")
    return replace(snapshot, samples=samples, events=events, census=None, large_objects=())


def is_at_least(status: str, wanted: str) -> bool:
    """Whether a status of the ladder has been reached, or a worse one."""
    return _height(status) >= _height(wanted) > 0


def _reached(wanted: str, before: str, now: str) -> bool:
    if wanted not in LADDER:
        return now == wanted and before != wanted
    return is_at_least(now, wanted) and not is_at_least(before, wanted)


def _height(status: str) -> int:
    return LADDER.index(status) + 1 if status in LADDER else 0

"""`run.on(event, callback)`: the verdict inside the training process, at generation ends and by budget.

The same analysis as everywhere, over what this process has recorded: it needs no server, and knows no other rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from .budget import Governor
from .errors import BadArgument
from .snapshot import Batch, ProcessIdentity, RunHeader, Snapshot
from .verdict_events import EVENTS, VerdictEvents

if TYPE_CHECKING:
    from .analysis.results import Verdict

Callback = Callable[[Any], object]

# What the analysis gets to see; when full, every second phase end goes, generation ends stay.
KEPT_SNAPSHOTS: Final = 512
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
        self._header, self._process, self._governor = header, process, governor
        self._callbacks: list[tuple[str, Callback]] = []
        self._due: deque[tuple[Callback, Verdict]] = deque()
        self._snapshots: list[Snapshot] = []
        self._follows = self._news = False
        self._events = VerdictEvents()
        self.status = "learning"

    @property
    def follows(self) -> bool:
        """Whether anybody wants to know of the verdict."""
        return self._follows

    def follow(self, past: Iterable[Snapshot] = ()) -> None:
        """From now on; ``past``: what was taken before. Only the first call begins."""
        if not self._follows:
            self._snapshots.extend(past)
            self._follows = True

    def add(self, event: str, callback: Callback) -> None:
        """``event`` is one of HEARD."""
        self._callbacks.append((event, callback))

    def see(self, snapshot: Snapshot) -> None:
        """Remember a snapshot, when anybody wants to hear of the verdict."""
        if not self._follows:
            return
        # The census is the largest part and the analysis has its numbers as series.
        self._snapshots.append(replace(snapshot, census=None, large_objects=()))
        self._news = self._news or snapshot.kind == "generation_end"
        if len(self._snapshots) > KEPT_SNAPSHOTS:
            self._thin()

    def forget(self) -> None:
        """Let go of the callbacks, and of what they hold of the program."""
        self._callbacks.clear()
        self._due.clear()
        self._snapshots.clear()

    def examine(self) -> None:
        """Look at what is new, where the budget has room for it."""
        if not (self._news and self._governor.allows("verdict", 0.01)):
            return
        self._news = False
        with self._governor.measuring("verdict"):
            verdict = self._examined()
            happened = self._events.since_last(verdict)
        before, self.status = self.status, verdict.status
        self._due.extend(
            (callback, verdict)
            for event, callback in self._callbacks
            if event in happened or _reached(event, before, verdict.status)
        )

    def due(self) -> Iterator[tuple[Callback, Verdict]]:
        """What to call now, each once, outside of any guard: where one raises, the others are still due."""
        while self._due:
            yield self._due.popleft()

    def _examined(self) -> Verdict:
        # Lazily: a run without callbacks never loads the analysis before its end.
        from .analysis import examine
        from .analysis.history import history_from_batches

        batch = Batch(self._process, tuple(self._snapshots))
        return examine(history_from_batches(self._header, [batch]))

    def _thin(self) -> None:
        frequent = 0
        kept = []
        for snapshot in self._snapshots:
            frequent += snapshot.kind in ("phase_end", "sample")
            if snapshot.kind not in ("phase_end", "sample") or frequent % 2:
                kept.append(snapshot)
        # Generation ends alone may be too many: then every second of those as well.
        self._snapshots = kept if len(kept) <= KEPT_SNAPSHOTS * 3 // 4 else kept[::2]


def is_at_least(status: str, wanted: str) -> bool:
    """Whether a status of the ladder has been reached, or a worse one."""
    return _height(status) >= _height(wanted) > 0


def _reached(wanted: str, before: str, now: str) -> bool:
    if wanted not in LADDER:
        return now == wanted and before != wanted
    return is_at_least(now, wanted) and not is_at_least(before, wanted)


def _height(status: str) -> int:
    return LADDER.index(status) + 1 if status in LADDER else 0

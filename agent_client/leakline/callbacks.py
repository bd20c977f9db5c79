"""`run.on(status, callback)`: the verdict inside the training process, at generation ends and by budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from .budget import Governor
from .errors import BadArgument
from .snapshot import Batch, ProcessIdentity, RunHeader, Snapshot

if TYPE_CHECKING:
    from .analysis.results import Verdict

# What the analysis gets to see; when full, every second phase end goes, generation ends stay.
KEPT_SNAPSHOTS: Final = 512
# Statuses that get worse in this order: a callback for one also hears of what is worse.
LADDER: Final = ("watch", "suspected", "confirmed")
OTHERS: Final = ("learning", "ok", "filling", "recovered")


class VerdictWatch:
    """Keeps the snapshots it is given, examines them, and says which callbacks are due."""

    def __init__(self, header: RunHeader, process: ProcessIdentity, governor: Governor) -> None:
        self._header, self._process, self._governor = header, process, governor
        self._callbacks: list[tuple[str, Callable[[Any], object]]] = []
        self._snapshots: list[Snapshot] = []
        self._status = "learning"
        self._news = False

    def add(
        self, status: str, callback: Callable[[Any], object], past: Iterable[Snapshot] = ()
    ) -> None:
        """``past``: what was taken before the first callback. Raises BadArgument."""
        if status not in (*LADDER, *OTHERS):
            raise BadArgument("status", status, f"must be one of {', '.join((*OTHERS, *LADDER))}")
        if not callable(callback):
            raise BadArgument("callback", f"<{type(callback).__name__}>", "must be callable")
        if not self._callbacks:
            self._snapshots.extend(past)
        self._callbacks.append((status, callback))

    def see(self, snapshot: Snapshot) -> None:
        """Remember a snapshot, when anybody wants to hear of the verdict."""
        if not self._callbacks:
            return
        # The census is the largest part and the analysis has its numbers as series.
        self._snapshots.append(replace(snapshot, census=None, large_objects=()))
        self._news = self._news or snapshot.kind == "generation_end"
        if len(self._snapshots) > KEPT_SNAPSHOTS:
            self._thin()

    def forget(self) -> None:
        """Let go of the callbacks, and of what they hold of the program."""
        self._callbacks.clear()
        self._snapshots.clear()

    def due(self) -> list[tuple[Callable[[Any], object], Verdict]]:
        """The callbacks to call now, with the verdict. The caller calls them outside of any guard."""
        if not (self._news and self._governor.allows("verdict", 0.01)):
            return []
        self._news = False
        with self._governor.measuring("verdict"):
            verdict = self._examine()
        before, self._status = self._status, verdict.status
        return [
            (call, verdict)
            for status, call in self._callbacks
            if _reached(status, before, verdict.status)
        ]

    def _examine(self) -> Verdict:
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


def _reached(wanted: str, before: str, now: str) -> bool:
    if wanted not in LADDER:
        return now == wanted and before != wanted
    return _height(before) < _height(wanted) <= _height(now)


def _height(status: str) -> int:
    return LADDER.index(status) + 1 if status in LADDER else 0

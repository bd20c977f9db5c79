"""How the processes of a run ended that did not finish, and their last lines, where they were allowed to keep them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..snapshot import Batch, ProcessIdentity
from ..transport.oom_inference import (
    UNWATCHED,
    death_of,
    ended_as,
    killed_for_memory,
    last_readings,
)
from ..transport.spool_format import Record, is_live

LINES_SHOWN: Final = 50
# Of the newest ones, with the last readings.
SNAPSHOTS_READ: Final = 200


@dataclass(frozen=True, slots=True)
class Ending:
    """``state`` and ``reason`` as noted in the spool, or as the last readings show."""

    process: ProcessIdentity
    state: str
    reason: str
    lines: tuple[str, ...] = ()
    is_noted: bool = True

    @property
    def who(self) -> str:
        who = self.process
        return f"rank {who.rank}, process {who.pid} on {who.host}, attempt {who.attempt}"

    @property
    def how(self) -> str:
        if self.state == "silent":
            return "without a word"
        death = death_of(self.state, self.reason)
        how = ended_as(self.state, self.reason)
        if death is not None and death.detail:
            how += f", {death.detail}"
        return how if self.is_noted else f"without a word; {how}"


def ending_of(
    path: Path, who: ProcessIdentity, batches: Sequence[Batch], end: Record | None
) -> Ending | None:
    """Return how a process ended whose last record is ``end``; None if it finished, or goes on as far as is known."""
    if end is None and is_live(path):
        return None
    lines = tuple(deque(_lines(batches), maxlen=LINES_SHOWN))
    if end is None:
        moments = [(s.time, s.samples) for batch in batches for s in batch.snapshots]
        reason = killed_for_memory(last_readings(moments[-SNAPSHOTS_READ:])) or ""
        return Ending(who, "killed" if reason else "silent", reason, lines, is_noted=False)
    told = end.payload()
    state, reason = str(told["state"]), str(told.get("reason") or "")
    if state == "finished" and reason != UNWATCHED:
        return None
    return Ending(who, state, reason, lines)


def _lines(batches: Sequence[Batch]) -> Iterator[str]:
    for batch in batches:
        for snapshot in batch.snapshots:
            for event in snapshot.events:
                if event.kind == "log":
                    yield from event.data["lines"]

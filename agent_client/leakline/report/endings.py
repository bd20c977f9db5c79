"""How the processes of a run ended that did not finish, and their last lines, where they were allowed to keep them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..endings import INTERRUPTED, UNWATCHED
from ..kills import killed_for_memory, last_readings
from ..snapshot import Batch, ProcessIdentity
from ..spool import is_live, read_end

LINES_SHOWN: Final = 50
# Of the newest ones, with the last readings.
SNAPSHOTS_READ: Final = 200


@dataclass(frozen=True, slots=True)
class Ending:
    who: str
    how: str
    lines: tuple[str, ...] = ()


def ending_of(path: Path, who: ProcessIdentity, batches: Sequence[Batch]) -> Ending | None:
    """None of a process that finished, or goes on as far as is known here. Raises SpoolError."""
    how = _how(path, batches)
    if how is None:
        return None
    title = f"rank {who.rank}, process {who.pid} on {who.host}, attempt {who.attempt}"
    return Ending(title, how, tuple(deque(_lines(batches), maxlen=LINES_SHOWN)))


def _how(path: Path, batches: Sequence[Batch]) -> str | None:
    end = read_end(path)
    if end is None:
        if is_live(path):
            return None
        moments = [(s.time, s.samples) for batch in batches for s in batch.snapshots]
        last = last_readings(moments[-SNAPSHOTS_READ:])
        reason = killed_for_memory(last)
        return "without a word" if reason is None else f"without a word; killed by {reason}"
    reason = str(end.get("reason") or "")
    if end["state"] == "failed":
        return f"failed: {reason}" if reason else "failed"
    if end["state"] == "terminated":
        if reason in INTERRUPTED:
            return "interrupted by Ctrl-C"
        return f"terminated by {reason}" if reason else "terminated"
    if end["state"] == "killed":
        return f"killed by {reason}" if reason else "killed"
    if end["state"] == "silent":
        return "without a word"
    return reason if reason == UNWATCHED else None


def _lines(batches: Sequence[Batch]) -> Iterator[str]:
    for batch in batches:
        for snapshot in batch.snapshots:
            for event in snapshot.events:
                if event.kind == "log":
                    yield from event.data["lines"]

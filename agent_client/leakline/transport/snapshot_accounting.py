"""Where every snapshot of a process has gone: taken = sent + thinned + dropped + pending.

Each of the five is counted on its own, where it happens, so that the sum says whether one got lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# Found in what a process has recorded, when that was read back.
DAMAGED: Final = "spool_damaged"
THINNED: Final = frozenset({"spool_thinned"})
# Reasons of losses that are snapshots; other reasons count events, gauges, and what was not taken at all.
DROPPED: Final = frozenset(
    {"queue_full", "recording_failed", "spool_full", "memory_full", "refused", "too_large", DAMAGED}
)


@dataclass(frozen=True, slots=True)
class Account:
    """In snapshots. ``pending``: in the queue, in the recorder's hand, in the spool or in memory."""

    taken: int
    sent: int
    pending: int
    lost: Mapping[str, int] = field(default_factory=dict)

    @property
    def thinned(self) -> int:
        return sum(self.lost.get(reason, 0) for reason in THINNED)

    @property
    def dropped(self) -> int:
        return sum(self.lost.get(reason, 0) for reason in DROPPED)

    @property
    def closes(self) -> bool:
        return self.taken == self.sent + self.thinned + self.dropped + self.pending

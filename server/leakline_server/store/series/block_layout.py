"""Where the sequence numbers of a process are cut: at multiples of BLOCK.

No batch row, no full segment and no packed row of details reaches across such a number, so that charts of any width
find whole segments, and a full block becomes a compacted segment in one step. Databases of older versions hold batches
that do; what they are sealed into is cut by compaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

BLOCK: Final = 4_096


def edge(sequence: int) -> int:
    """The first sequence number of the next block."""
    return (sequence // BLOCK + 1) * BLOCK


def divided(low: int, high: int) -> Iterator[tuple[int, int]]:
    """The numbers from ``low`` to ``high``, block by block: the first and the last of each."""
    while low <= high:
        yield low, min(high, edge(low) - 1)
        low = edge(low)

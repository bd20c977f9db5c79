"""Whether private memory rises lastingly: a reason to scan the heap, whatever the counts between two scans say.

Arrays, bytes and strings are only counted by a heap scan: a queue of them that grows shows in memory alone.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# The lows of so many generation ends are compared with those of as many before: what swings comes down within them.
_ENDS: Final = 4
# A rise of the low by less than this, or than this share of it, is what heaps do while they settle.
_LEAST_BYTES: Final = 2 * 2**20
_LEAST_SHARE: Final = 0.01


class RisingMemory:
    """Given one reading at each generation end."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=2 * _ENDS)

    def note(self, private_bytes: float) -> bool:
        """Return True if the lowest of the newest readings lies above the lowest before by an amount that matters."""
        self._newest.append(private_bytes)
        if len(self._newest) < 2 * _ENDS:
            return False
        readings = list(self._newest)
        before, now = min(readings[:_ENDS]), min(readings[_ENDS:])
        return now - before >= max(_LEAST_BYTES, _LEAST_SHARE * before)

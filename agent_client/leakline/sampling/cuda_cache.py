"""What torch's allocators give back to a device: reported where it is seen, whoever emptied the cache.

Readings are snapshots. Between two of them an allocator may have given back more and taken some of it again, so what is
seen is the least of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..snapshot import Number
from ..text_format import format_bytes

# What an allocator keeps for itself of a device.
KEPT: Final = (".reserved_bytes", ".driver_bytes")
# A fall by less is a block here and there: an emptied cache gives back what it has.
LEAST_BYTES: Final = 32 * 2**20
LEAST_SHARE: Final = 0.05
# Reported one by one up to here, then only one that gave back twice as much as any before it.
REPORTED_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class CacheFall:
    """Bytes that an allocator kept of ``device`` ("cuda.0") at one reading and at the next."""

    device: str
    before: Number
    after: Number

    @property
    def event(self) -> tuple[str, dict[str, object]]:
        """(name, data) of its event."""
        text = (
            f"gave at least {format_bytes(self.before - self.after)} back to the device:"
            f" {format_bytes(self.before)} kept before, {format_bytes(self.after)} after"
        )
        data: dict[str, object] = {
            "device": self.device,
            "reserved_bytes": [self.before, self.after],
            "freed_bytes_at_least": self.before - self.after,
            "text": text,
        }
        return f"cache of {self.device}", data


@dataclass(slots=True)
class CacheFalls:
    """``see`` every reading in its order; whoever calls keeps threads apart."""

    _kept: dict[str, Number] = field(default_factory=dict)
    _reported: int = 0
    _most: Number = 0

    def see(self, samples: Mapping[str, Number], *, tell: bool = True) -> list[CacheFall]:
        """Return falls since the reading before, of series of devices.

        ``tell=False``: others report this one, a cleanup what it freed.
        """
        found = []
        for name, now in samples.items():
            if name.endswith(KEPT):
                before, self._kept[name] = self._kept.get(name, now), now
                fall = CacheFall(name.rpartition(".")[0], before, now)
                if tell and self._is_worth_reporting(fall):
                    found.append(fall)
        return found

    def _is_worth_reporting(self, fall: CacheFall) -> bool:
        size = fall.before - fall.after
        if size < max(LEAST_BYTES, LEAST_SHARE * fall.before):
            return False
        if self._reported >= REPORTED_LIMIT and size < 2 * self._most:
            return False
        self._reported += 1
        self._most = max(self._most, size)
        return True

"""What keeps objects alive, as a path of names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakline.snapshot import Holder


@dataclass(frozen=True, slots=True)
class FoundHolder:
    """What keeps ``count`` objects of ``type`` alive; ``to_holder`` gives it the sequence number it travels with."""

    type: str
    path: str
    count: int
    bytes_each: int | None

    def to_holder(self, sequence: int) -> Holder:
        return Holder(sequence, self.type, self.path, self.count, self.bytes_each)


def find_holders(types: Sequence[type], budget_seconds: float) -> list[FoundHolder]:
    """What keeps the newest instances of ``types`` alive, within a time budget."""
    return []

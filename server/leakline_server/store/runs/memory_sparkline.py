"""A run's memory in at most 64 numbers, kept in its row so that the list of runs opens nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

MAX_POINTS_KEPT: Final = 64


@dataclass(slots=True)
class Sparkline:
    """Each value is the largest of ``per`` readings; when it is full, neighbours are joined and ``per`` doubles."""

    per: int = 1
    filled: int = 0  # readings in the last value
    values: list[int] = field(default_factory=list)

    def add(self, readings: Sequence[int]) -> None:
        at = 0
        while at < len(readings):
            if self.values and self.filled < self.per:
                more = readings[at : at + self.per - self.filled]
                self.values[-1] = max(self.values[-1], max(more))
                self.filled += len(more)
                at += len(more)
                continue
            if len(self.values) == MAX_POINTS_KEPT:
                self.values = [
                    max(pair) for pair in zip(self.values[::2], self.values[1::2], strict=True)
                ]
                self.per *= 2
            self.values.append(readings[at])
            self.filled = 1
            at += 1

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Sparkline:
        return msgspec.json.decode(text, type=cls)

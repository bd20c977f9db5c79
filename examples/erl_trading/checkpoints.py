"""What a checkpoint of the population would hold, and checkpoints on their way to where they are kept."""

from __future__ import annotations

import copy
import io
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .agent import DDPGAgent

Checkpoint = list[dict[str, dict[str, Any]]]


def deep_copies(population: Sequence[DDPGAgent]) -> Checkpoint:
    """Deep copies of all state dicts: as much memory again as the population, while they live."""
    return [copy.deepcopy(agent.state()) for agent in population]


@dataclass(frozen=True)
class Upload:
    """A copy of one agent's state: the agent goes on training while it waits."""

    generation: int
    state: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, agent: DDPGAgent, generation: int) -> Upload:
        return cls(generation, copy.deepcopy(agent.state()))


@dataclass
class CheckpointUploads:
    """``stalled``: the connection hangs, and nothing that waits is ever sent."""

    stalled: bool = False
    sent_bytes: int = 0
    pending: deque[Upload] = field(default_factory=deque)

    def add(self, upload: Upload) -> None:
        self.pending.append(upload)
        while self.pending and not self.stalled:
            self._send(self.pending.popleft())

    def _send(self, upload: Upload) -> None:
        packed = io.BytesIO()
        torch.save(upload.state, packed)
        self.sent_bytes += packed.tell()


def best_checkpoint(checkpoint: Checkpoint, best: int) -> dict[str, dict[str, Any]]:
    return checkpoint[best]

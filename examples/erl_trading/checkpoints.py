"""Checkpoints of the population, and their upload."""

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
    """Return deep copies of all state dicts, which take as much memory as the population."""
    return [copy.deepcopy(agent.state()) for agent in population]


@dataclass(frozen=True)
class Upload:
    """A copy of one agent's state: the agent continues to train while the upload is pending."""

    generation: int
    state: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, agent: DDPGAgent, generation: int) -> Upload:
        return cls(generation, copy.deepcopy(agent.state()))


@dataclass
class CheckpointUploads:
    """A queue of uploads. ``stalled`` simulates a hanging connection, so that pending uploads are never sent."""

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

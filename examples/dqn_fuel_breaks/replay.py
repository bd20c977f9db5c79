"""The replay buffer: the newest transitions, sampled in favour of surprising ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .environment import BLOCKS, PLANES, Cells


@dataclass(frozen=True)
class Batch:
    """Tensors of (batch, ...): observations from 0 to 1, actions as indices."""

    observations: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_observations: torch.Tensor
    going_on: torch.Tensor  # 0 where the episode ended


class ReplayBuffer:
    """The newest ``capacity`` transitions, in arrays whose pages are allocated when they are first written.

    ``priorities`` has the agent's error for each transition when it was added: numbers, or tensors if attached.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.observations = np.zeros((capacity, PLANES, BLOCKS, BLOCKS), dtype=np.uint8)
        self.next_observations = np.zeros_like(self.observations)
        self.actions = np.zeros(capacity, dtype=np.int64)
        self.rewards = np.zeros(capacity, dtype=np.float32)
        self.going_on = np.zeros(capacity, dtype=np.float32)
        self.priorities: list[Any] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self.priorities)

    def add(
        self, observation: Cells, action: int, reward: float, following: Cells, done: bool, priority: Any
    ) -> None:  # fmt: skip
        row = self._added % self.capacity
        self.observations[row], self.next_observations[row] = observation, following
        self.actions[row], self.rewards[row] = action, reward
        self.going_on[row] = 0.0 if done else 1.0
        if row < len(self.priorities):
            self.priorities[row] = priority
        else:
            self.priorities.append(priority)
        self._added += 1

    def sample(self, size: int, random: np.random.Generator) -> Batch:
        """Sample ``size`` transitions, each the more surprising one of a random pair."""
        pairs = random.integers(0, len(self), (size, 2))
        rows = np.array([max(pair, key=self._priority) for pair in pairs])
        return Batch(
            as_planes(self.observations[rows]),
            torch.from_numpy(self.actions[rows]),
            torch.from_numpy(self.rewards[rows]),
            as_planes(self.next_observations[rows]),
            torch.from_numpy(self.going_on[rows]),
        )

    def _priority(self, row: int) -> float:
        found = self.priorities[row]
        return float(found.item() if isinstance(found, torch.Tensor) else found)


def as_planes(observations: Cells) -> torch.Tensor:
    """Return observations as floats from 0 to 1 for the network."""
    return torch.from_numpy(observations).float() / 255.0

"""The replay buffer with the transitions of the entire population."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .environment import OBSERVATION_SIZE
from .market import ASSETS


@dataclass(frozen=True)
class Experience:
    """A sample of transitions. Tensors of (batch, ...), float32."""

    observations: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_observations: torch.Tensor
    going_on: torch.Tensor  # 0 where the episode ended


class ReplayBuffer:
    """The newest ``capacity`` transitions.

    The arrays have their full size from the start, but the system allocates their pages when they are first written:
    the process grows until the buffer is full, and no further.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.observations = np.zeros((capacity, OBSERVATION_SIZE), dtype=np.float32)
        self.next_observations = np.zeros((capacity, OBSERVATION_SIZE), dtype=np.float32)
        self.actions = np.zeros((capacity, ASSETS), dtype=np.float32)
        self.rewards = np.zeros((capacity, 1), dtype=np.float32)
        self.going_on = np.zeros((capacity, 1), dtype=np.float32)
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self.capacity)

    def add(
        self,
        observation: NDArray[np.float64],
        action: NDArray[np.float64],
        reward: float,
        next_observation: NDArray[np.float64],
        done: bool,
    ) -> None:
        row = self._added % self.capacity
        self.observations[row] = observation
        self.actions[row] = action
        self.rewards[row] = reward
        self.next_observations[row] = next_observation
        self.going_on[row] = 0.0 if done else 1.0
        self._added += 1

    def sample(self, size: int, random: np.random.Generator) -> Experience:
        rows = random.integers(0, len(self), size)
        return Experience(
            torch.from_numpy(self.observations[rows]),
            torch.from_numpy(self.actions[rows]),
            torch.from_numpy(self.rewards[rows]),
            torch.from_numpy(self.next_observations[rows]),
            torch.from_numpy(self.going_on[rows]),
        )

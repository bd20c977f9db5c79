"""The DQN: a network that rates each block as a place to dig, its target network, and its training history."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from .environment import ACTIONS, PLANES, Cells
from .replay import Batch, ReplayBuffer, as_planes

CHANNELS: Final = 16
DISCOUNT: Final = 0.95
LEARNING_RATE: Final = 1e-3
BATCH_SIZE: Final = 16
TARGET_EVERY: Final = 50
NUMBERS_KEPT: Final = 1_000
VALUES_KEPT: Final = 200


def _network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(PLANES, CHANNELS, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, 1, 1),
        nn.Flatten(),
    )


class DQNAgent:
    """A DQN agent. ``bounded`` limits its histories; ``attached`` makes `surprise` return tensors with their graphs."""

    def __init__(self, *, bounded: bool = True, attached: bool = False) -> None:
        self.attached = attached
        self.online, self.target = _network(), _network()
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)
        self.optimiser = torch.optim.Adam(self.online.parameters(), LEARNING_RATE)
        self.training_steps = 0
        self.losses = _history(NUMBERS_KEPT if bounded else None)
        self.rewards = _history(NUMBERS_KEPT if bounded else None)
        # Plain lists, because the log is written as JSON.
        self.values = _history(VALUES_KEPT if bounded else None)

    def act(
        self, observations: Cells, curiosity: float, random: np.random.Generator
    ) -> tuple[list[int], torch.Tensor]:
        """Return the blocks to dig and the estimated value of each, (environments,)."""
        with torch.set_grad_enabled(self.attached):
            values = self.online(as_planes(observations))
        best = values.argmax(dim=1).tolist()
        chosen = [
            int(random.integers(ACTIONS)) if random.random() < curiosity else block
            for block in best
        ]
        return chosen, values[torch.arange(len(chosen)), torch.tensor(chosen)]

    def surprise(
        self, expected: torch.Tensor, rewards: Sequence[float], following: Cells, done: bool
    ) -> list[Any]:
        """Return the agent's error for each transition: numbers, or tensors with their graphs if ``attached``."""
        wanted = self._worth(
            torch.as_tensor(rewards).float(), as_planes(following), torch.tensor(float(not done))
        )
        wrong = (wanted - expected).abs()
        return list(wrong) if self.attached else wrong.tolist()

    def note(self, rewards: Sequence[float], observations: Cells) -> None:
        """Record the rewards and values of a step for the log, for each environment."""
        with torch.no_grad():
            values = self.target(as_planes(observations)).tolist()
        self.rewards.extend(float(reward) for reward in rewards)
        self.values.extend(values)

    def train(self, replay: ReplayBuffer, random: np.random.Generator) -> None:
        batch = replay.sample(BATCH_SIZE, random)
        values = self.online(batch.observations).gather(1, batch.actions[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(values, self._wanted(batch))
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self.losses.append(loss.item())
        self.training_steps += 1
        if self.training_steps % TARGET_EVERY == 0:
            self.target.load_state_dict(self.online.state_dict())

    def cleanup_memory(self) -> None:
        """Free what is not needed between two training steps."""
        gc.collect()
        # The C allocator keeps freed memory for reuse; malloc_trim exists only in glibc.
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _wanted(self, batch: Batch) -> torch.Tensor:
        return self._worth(batch.rewards, batch.next_observations, batch.going_on)

    @torch.no_grad()
    def _worth(
        self, rewards: torch.Tensor, following: torch.Tensor, going_on: torch.Tensor
    ) -> torch.Tensor:
        best: torch.Tensor = self.target(following).amax(dim=1)
        return rewards + DISCOUNT * going_on * best


def _history(kept: int | None) -> Any:
    return [] if kept is None else deque(maxlen=kept)

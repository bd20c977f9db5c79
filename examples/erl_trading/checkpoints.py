"""What a checkpoint of the population would hold."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from .agent import DDPGAgent

Checkpoint = list[dict[str, dict[str, Any]]]


def deep_copies(population: Sequence[DDPGAgent]) -> Checkpoint:
    """Deep copies of all state dicts: as much memory again as the population, while they live."""
    return [copy.deepcopy(agent.state()) for agent in population]


def best_checkpoint(checkpoint: Checkpoint, best: int) -> dict[str, dict[str, Any]]:
    return checkpoint[best]

"""Several fires stepped in parallel, so that the network decides for all of them with one call."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .environment import Cells, FireEnvironment

STEP_TIMES_KEPT: Final = 100


class VectorisedFireEnvironment:
    def __init__(self, seed: int, count: int) -> None:
        self.environments = [FireEnvironment(seed + number) for number in range(count)]
        self.step_times: deque[float] = deque(maxlen=STEP_TIMES_KEPT)

    def __len__(self) -> int:
        return len(self.environments)

    def reset(self, episode: int) -> Cells:
        """Start a different fire in each; return observations of (environments, PLANES, BLOCKS, BLOCKS)."""
        first = episode * len(self)
        return np.stack([each.reset(first + i) for i, each in enumerate(self.environments)])

    def step(self, actions: Sequence[int]) -> tuple[Cells, NDArray[np.float64], bool]:
        """Step all environments; all end their episodes in the same step."""
        began = time.perf_counter()
        steps = [each.step(a) for each, a in zip(self.environments, actions, strict=True)]
        self.step_times.append(time.perf_counter() - began)
        observations, rewards, done = zip(*steps, strict=True)
        return np.stack(observations), np.asarray(rewards), all(done)

    def cleanup_memory(self) -> None:
        """Drop the frames of finished episodes."""
        for each in self.environments:
            if each.is_over():
                each.frames.clear()

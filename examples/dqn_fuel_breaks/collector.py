"""Plays episodes in all environments at the same time and stores the transitions in the replay buffer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .agent import DQNAgent
from .replay import ReplayBuffer
from .vectorised import VectorisedFireEnvironment

EXPERIENCES_KEPT: Final = 300
COLLECTION_TIMES_KEPT: Final = 20
CURIOSITY: Final = 0.3


class Experience(NamedTuple):
    """One step in one environment, for the pictures: observations from 0 to 1."""

    observation: NDArray[np.float32]
    action: int
    reward: float
    following: NDArray[np.float32]


class ExperienceCollector:
    """Collects experiences. ``limit`` bounds the local buffer; with None it is never cleared."""

    def __init__(self, agent: DQNAgent, replay: ReplayBuffer, limit: int | None, seed: int) -> None:
        self.agent, self.replay, self.limit = agent, replay, limit
        self.random = np.random.default_rng(seed)
        self.experience_buffer: list[Experience] = []
        self.collection_times: deque[float] = deque(maxlen=COLLECTION_TIMES_KEPT)
        self.steps = 0

    def collect(
        self, environment: VectorisedFireEnvironment, episode: int, after_step: Callable[[], None]
    ) -> float:
        """Play one episode in each environment and return the mean return. ``after_step`` is called after each step."""
        began, returns, done = time.perf_counter(), 0.0, False
        observations = environment.reset(episode)
        as_drawn = observations.astype(np.float32) / 255.0
        while not done:
            actions, expected = self.agent.act(observations, CURIOSITY, self.random)
            following, rewards, done = environment.step(actions)
            priorities = self.agent.surprise(expected, rewards.tolist(), following, done)
            self.agent.note(rewards.tolist(), observations)
            next_drawn = following.astype(np.float32) / 255.0
            for i, action in enumerate(actions):
                self.replay.add(
                    observations[i], action, float(rewards[i]), following[i], done, priorities[i]
                )
                experience = Experience(as_drawn[i], action, float(rewards[i]), next_drawn[i])
                self.experience_buffer.append(experience)
            self.prune()
            observations, as_drawn = following, next_drawn
            returns += float(rewards.mean())
            self.steps += 1
            after_step()
        self.collection_times.append(time.perf_counter() - began)
        return returns

    def prune(self) -> None:
        if self.limit is not None and len(self.experience_buffer) > self.limit:
            del self.experience_buffer[: -self.limit]

    def clear_local_buffer(self) -> None:
        """Clear the local buffer, unless it is unbounded (the leak)."""
        if self.limit is not None:
            self.experience_buffer.clear()

"""The training loop: collect, train, draw and clean up, with the Leakline calls a user adds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import torch

from .agent import DQNAgent
from .collector import COLLECTION_TIMES_KEPT, EXPERIENCES_KEPT, ExperienceCollector
from .leaks import Leaks
from .plots import plot_progress
from .replay import ReplayBuffer
from .vectorised import STEP_TIMES_KEPT, VectorisedFireEnvironment

PHASES: Final = ("collect", "train", "plot")
REPLAY_CAPACITY: Final = 20_000
TRAINING_STEPS: Final = 25
PLOT_EVERY: Final = 2
CLEANUP_EPISODES: Final = 10
CLEANUP_STEPS: Final = 50
CLEANUP_TRAINING_STEPS: Final = 100


class Telemetry(Protocol):
    """The four calls of a Leakline run that the loop makes."""

    def episode(self, number: int) -> Any: ...
    def phase(self, name: str) -> AbstractContextManager[Any]: ...
    def cleanup(self, name: str) -> AbstractContextManager[Any]: ...
    def gauge(self, name: str, value: float) -> Any: ...


@dataclass
class Trainer:
    """Owns everything that lives longer than an episode."""

    run: Telemetry
    leaks: Leaks
    environments: int = 8
    seed: int = 0
    on_episode: Callable[[int, float], None] = lambda episode, mean_return: None

    agent: DQNAgent = field(init=False)
    replay: ReplayBuffer = field(init=False)
    collector: ExperienceCollector = field(init=False)
    vectorised: list[VectorisedFireEnvironment] = field(init=False)
    returns: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.random = np.random.default_rng(self.seed)
        self.agent = DQNAgent(bounded=not self.leaks.metrics, attached=self.leaks.attached_tensors)
        self.replay = ReplayBuffer(REPLAY_CAPACITY)
        limit = None if self.leaks.experience else EXPERIENCES_KEPT
        self.collector = ExperienceCollector(self.agent, self.replay, limit, self.seed)
        self.vectorised = [self._new_environment()]

    def train(self, episodes: int) -> list[float]:
        """Train and return the mean return of every episode, oldest first."""
        for episode in range(episodes):
            self.run.episode(episode)
            with self.run.phase("collect"):
                self._collect(episode)
            with self.run.phase("train"):
                self._train()
            if (episode + 1) % PLOT_EVERY == 0:
                with self.run.phase("plot"):
                    plot_progress(
                        self.returns, self.collector.experience_buffer,
                        close_current=self.leaks.figures,
                    )  # fmt: skip
            if (episode + 1) % CLEANUP_EPISODES == 0:
                self._clean_up_everything("everything")
        self._clean_up_everything("final")
        return self.returns

    def tracked(self) -> list[tuple[str, Any, int | None]]:
        """Return (name, container or getter, actual or intended capacity) of everything that stores objects."""
        agent, collector = self.agent, self.collector
        histories = {"losses": agent.losses, "rewards": agent.rewards, "values": agent.values}
        return [
            ("replay", self.replay, self.replay.capacity),
            ("experience", lambda: collector.experience_buffer, EXPERIENCES_KEPT),
            ("collection_times", collector.collection_times, COLLECTION_TIMES_KEPT),
            ("step_times", lambda: self.vectorised[-1].step_times, STEP_TIMES_KEPT),
            *((name, each, getattr(each, "maxlen", None)) for name, each in histories.items()),
        ]

    def _collect(self, episode: int) -> None:
        if self.leaks.environments and episode:
            self.vectorised.append(self._new_environment())
        environment = self.vectorised[-1]
        self.returns.append(self.collector.collect(environment, episode, self._after_step))
        self.run.gauge("mean_return_percent", self.returns[-1])
        self.on_episode(episode, self.returns[-1])

    def _train(self) -> None:
        for _ in range(TRAINING_STEPS):
            self.agent.train(self.replay, self.random)
            if self.agent.training_steps % CLEANUP_TRAINING_STEPS == 0:
                with self.run.cleanup("agent"):
                    self.agent.cleanup_memory()

    def _after_step(self) -> None:
        if self.collector.steps % CLEANUP_STEPS == 0:
            with self.run.cleanup("collector"):
                self.collector.prune()
                self.vectorised[-1].cleanup_memory()

    def _clean_up_everything(self, name: str) -> None:
        with self.run.cleanup(name):
            self.collector.clear_local_buffer()
            self.vectorised[-1].cleanup_memory()
            self.agent.cleanup_memory()

    def _new_environment(self) -> VectorisedFireEnvironment:
        # The land is the same each time; the seed of a fire depends on the episode.
        return VectorisedFireEnvironment(self.seed, self.environments)

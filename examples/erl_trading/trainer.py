"""The training loop: evaluate, train and evolve a population, with the Leakline calls a user adds."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import torch

from .agent import DDPGAgent
from .checkpoints import CheckpointUploads, Upload, best_checkpoint, deep_copies
from .environment import TradingEnvironment
from .leaks import Leaks
from .market import Market
from .plots import plot_progress
from .replay import Experience, ReplayBuffer

PHASES: Final = (
    "evaluate_population", "train_population", "evolve_population", "upload_checkpoints", "plot_progress",
)  # fmt: skip
FIRST_DAY: Final = 1_000
REPLAY_CAPACITY: Final = 25_600
REPLAY_READY: Final = 6_000
GRADIENT_STEPS: Final = 5
ACCUMULATION_STEPS: Final = 2
BATCH_SIZE: Final = 16
CRITIC_STEPS: Final = 48
CRITIC_BATCH_SIZE: Final = 64
ELITES: Final = 4
MUTATION_SIZE: Final = 0.15
EXPLORATION_NOISE: Final = 0.1
LOSSES_KEPT: Final = 1_000
PLOT_EVERY: Final = 5
# With more pending uploads than this, the upload is too slow.
UPLOADS_PENDING: Final = 50


class Telemetry(Protocol):
    """The three calls of a Leakline run that the loop makes."""

    def generation(self, number: int) -> Any: ...
    def phase(self, name: str) -> AbstractContextManager[Any]: ...
    def gauge(self, name: str, value: float, warn_above: float | None = None) -> Any: ...


@dataclass(frozen=True)
class Progress:
    """One generation: fitness in percent of the starting wealth, over the population."""

    generation: int
    best: float
    mean: float
    replay_length: int
    replay_capacity: int
    replay_ready: int
    trained: bool

    def __str__(self) -> str:
        length = f"{self.replay_length:,}"
        waiting = "" if self.trained else f", buffer not ready: {length} / {self.replay_ready:,}"
        return (
            f"generation {self.generation}: best {self.best:+.2f} %, mean {self.mean:+.2f} %"
            f", replay {length} / {self.replay_capacity:,}{waiting}"
        )


@dataclass
class Trainer:
    """Owns everything that lives longer than a generation.

    The training phase is skipped until the buffer has ``replay_ready`` transitions.
    """

    run: Telemetry
    market: Market
    leaks: Leaks
    population_size: int = 16
    seed: int = 0
    on_progress: Callable[[Progress], None] = lambda progress: None
    replay_ready: int = REPLAY_READY
    critic_steps: int = CRITIC_STEPS

    replay: ReplayBuffer = field(init=False)
    population: list[DDPGAgent] = field(init=False)
    environments: list[TradingEnvironment] = field(init=False)
    past_populations: list[list[DDPGAgent]] = field(init=False, default_factory=list)
    best_agents: list[DDPGAgent] = field(init=False, default_factory=list)
    best_fitness: float = field(init=False, default=-np.inf)
    batches: list[Experience] = field(init=False, default_factory=list)
    uploads: CheckpointUploads = field(init=False)
    losses: Any = field(init=False)
    history: list[Progress] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.random = np.random.default_rng(self.seed)
        unbounded = self.leaks.loss_history or self.leaks.loss_graph
        self.losses = [] if unbounded else deque(maxlen=LOSSES_KEPT)
        self.replay = ReplayBuffer(max(REPLAY_CAPACITY, self.replay_ready))
        self.uploads = CheckpointUploads(stalled=self.leaks.pending_uploads)
        self.population = [DDPGAgent() for _ in range(self.population_size)]
        self.environments = self._new_environments()

    def train(self, generations: int) -> list[Progress]:
        """Train and return the progress of every generation, oldest first."""
        if self.leaks.cyclic_environments:
            # Some programs disable it for speed.
            gc.disable()
        for generation in range(generations):
            self.run.generation(generation)
            with self.run.phase("evaluate_population"):
                fitness = self.evaluate_population()
            ready = len(self.replay) >= self.replay_ready
            if ready:
                with self.run.phase("train_population"):
                    self.train_population()
            with self.run.phase("evolve_population"):
                self.evolve_population(fitness)
            with self.run.phase("upload_checkpoints"):
                self.upload_checkpoints(generation)
            self._report(generation, fitness, ready)
            if (generation + 1) % PLOT_EVERY == 0:
                with self.run.phase("plot_progress"):
                    plot_progress(self.history, keep_open=self.leaks.figures)
        return self.history

    def evaluate_population(self) -> list[float]:
        if self.leaks.cyclic_environments:
            self.environments = self._new_environments()
        fitness = []
        for slot, agent in enumerate(self.population):
            with self.run.phase("run_episode"):
                fitness.append(self._run_episode(agent, slot))
        return fitness

    def train_population(self) -> None:
        """Train each agent for GRADIENT_STEPS steps of ACCUMULATION_STEPS batches, with two losses per batch."""
        for agent in self.population:
            for _ in range(GRADIENT_STEPS):
                for _ in range(self.critic_steps):
                    agent.train_critic(self.replay.sample(CRITIC_BATCH_SIZE, self.random))
                for _ in range(ACCUMULATION_STEPS):
                    experience = self.replay.sample(BATCH_SIZE, self.random)
                    if self.leaks.kept_batches:
                        self.batches.append(experience)
                    losses = agent.accumulate(
                        experience, 1 / ACCUMULATION_STEPS, retain_graph=self.leaks.loss_graph
                    )
                    self.losses.extend(
                        loss if self.leaks.loss_graph else loss.item() for loss in losses
                    )
                agent.step()

    def evolve_population(self, fitness: Sequence[float]) -> None:
        """Replace the population: the best stay as clones, the others are mutated clones of tournament winners."""
        ranking = sorted(range(len(fitness)), key=lambda slot: -fitness[slot])
        self._remember_best(self.population[ranking[0]], fitness[ranking[0]])
        if self.leaks.old_population:
            self.past_populations.append(self.population)
        parents = ranking[:ELITES]
        parents += [self._tournament(fitness) for _ in range(self.population_size - len(parents))]
        children = [self.population[parent].clone() for parent in parents]
        for child in children[ELITES:]:
            child.mutate(MUTATION_SIZE)
        if self.leaks.deepcopied_checkpoints:
            best_checkpoint(deep_copies(self.population), ranking[0])
        self.population = children

    def upload_checkpoints(self, generation: int) -> None:
        """Queue an upload for each of the elites."""
        for agent in self.population[:ELITES]:
            self.uploads.add(Upload.of(agent, generation))
        self.run.gauge("pending_uploads", len(self.uploads.pending), warn_above=UPLOADS_PENDING)

    def _run_episode(self, agent: DDPGAgent, slot: int) -> float:
        environment = self.environments[slot]
        if self.leaks.kept_environments:
            environment = self._new_environment()
            self.environments.append(environment)
        observation, done = environment.reset(), False
        while not done:
            noise = self.random.normal(0.0, EXPLORATION_NOISE, environment.weights.shape)
            action = np.clip(agent.act(observation) + noise, -1.0, 1.0)
            following, reward, done = environment.step(action)
            self.replay.add(observation, action, reward, following, done)
            observation = following
        return environment.fitness()

    def _new_environments(self) -> list[TradingEnvironment]:
        """Return one environment for each agent."""
        made = [self._new_environment() for _ in range(self.population_size)]
        for each in made if self.leaks.cyclic_environments else ():
            each.rivals = made
        return made

    def _new_environment(self) -> TradingEnvironment:
        # All agents play the same days, so that their fitness is comparable.
        return TradingEnvironment(self.market, FIRST_DAY, keep_history=self.leaks.episode_history)

    def _tournament(self, fitness: Sequence[float]) -> int:
        entrants = self.random.choice(len(fitness), size=min(3, len(fitness)), replace=False)
        return int(max(entrants, key=lambda slot: fitness[slot]))

    def _remember_best(self, agent: DDPGAgent, fitness: float) -> None:
        if fitness <= self.best_fitness:
            return
        self.best_fitness = fitness
        if not self.leaks.best_agents:
            self.best_agents.clear()
        self.best_agents.append(agent.clone())

    def _report(self, generation: int, fitness: Sequence[float], trained: bool) -> None:
        progress = Progress(
            generation, max(fitness), sum(fitness) / len(fitness),
            len(self.replay), self.replay.capacity, self.replay_ready, trained,
        )  # fmt: skip
        self.history.append(progress)
        self.run.gauge("mean_fitness_percent", progress.mean)
        self.on_progress(progress)

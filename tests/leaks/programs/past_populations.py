"""Neuro-evolution with a hall of fame of replaced populations; the leaking variant never retires any."""

from __future__ import annotations

from collections import deque

import numpy as np
from _training import Network, normal, parse, start

PHASES = ("evaluate_population", "train_population", "evolve_population")
POPULATION = 24
OBSERVATION = 64
HIDDEN = 512
ACTIONS = 8
GENERATIONS_KEPT = 10


class Agent(Network):
    def __init__(self, random: np.random.Generator) -> None:
        super().__init__(random, OBSERVATION, HIDDEN, ACTIONS)
        self.fitness = 0.0

    def child(self, random: np.random.Generator) -> Agent:
        child = Agent(random)
        child.first += self.first
        child.second += self.second
        return child


class Evolution:
    def __init__(self, random: np.random.Generator, kept: int | None) -> None:
        self.random = random
        self.population = [Agent(random) for _ in range(POPULATION)]
        self.hall_of_fame: deque[list[Agent]] = deque(maxlen=kept)

    def evaluate(self) -> float:
        inputs = normal(self.random, 256, OBSERVATION)
        for agent in self.population:
            agent.fitness = float(agent.predict(inputs).max(axis=1).mean())
        return max(agent.fitness for agent in self.population)

    def evolve(self) -> None:
        self.hall_of_fame.append(self.population)
        ranked = sorted(self.population, key=lambda agent: -agent.fitness)
        self.population = [ranked[slot // 4].child(self.random) for slot in range(POPULATION)]


def main() -> None:
    options = parse()
    run = start(options, PHASES)
    evolution = Evolution(options.random, None if options.leaking else GENERATIONS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("evaluate_population"):
            run.gauge("best_fitness", evolution.evaluate())
        with run.phase("train_population"):
            for agent in evolution.population:
                agent.fit(evolution.random, steps=14)
        with run.phase("evolve_population"):
            evolution.evolve()
    run.finish()


if __name__ == "__main__":
    main()

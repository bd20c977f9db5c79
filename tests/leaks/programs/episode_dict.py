"""Multi-agent rollouts with a table of episodes by (agent, episode), as in distributed RL samplers."""

from __future__ import annotations

from dataclasses import dataclass, field

from _training import Array, Network, normal, parse, start

PHASES = ("sample", "learn", "evaluate")
AGENTS = 24
EPISODES = 4
STEPS = 200
OBSERVATION = 32
GENERATIONS_KEPT = 10


@dataclass
class EpisodeRecord:
    observations: Array
    total_reward: float


@dataclass
class Sampler:
    """With ``forget_finished``, drops the records that the learner no longer reads."""

    forget_finished: bool
    records: dict[tuple[str, int], EpisodeRecord] = field(default_factory=dict)

    def store(self, agent: str, episode: int, record: EpisodeRecord) -> None:
        self.records[agent, episode] = record
        if self.forget_finished:
            self.records.pop((agent, episode - GENERATIONS_KEPT * EPISODES), None)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random, OBSERVATION)
    sampler = Sampler(forget_finished=not options.leaking)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("sample"):
            for agent in range(AGENTS):
                for index in range(EPISODES):
                    observations = normal(random, STEPS, OBSERVATION)
                    reward = float(policy.predict(observations).max(axis=1).sum())
                    record = EpisodeRecord(observations, reward)
                    sampler.store(f"agent_{agent}", generation * EPISODES + index, record)
        with run.phase("learn"):
            policy.fit(random, steps=580)
        with run.phase("evaluate"):
            run.gauge("reward", float(policy.predict(normal(random, 512, OBSERVATION)).mean()))
    run.finish()


if __name__ == "__main__":
    main()

"""Measures what each leak switch really does, without Leakline: the right answers come from here.

    python -m examples.dqn_fuel_breaks.measure                  # every switch, against the table in leaks.py
    python -m examples.dqn_fuel_breaks.measure experience       # one of them

How it is measured stands in `examples/erl_trading/measure.py`, whose work this is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..erl_trading.measure import Counts, Meter, Reading, main
from .leaks import RIGHT_ANSWERS, Leaks

EPISODES = 12


class EpisodeMeter(Meter):
    counted = ("FireEnvironment", "VectorisedFireEnvironment", "Experience", "Tensor")
    containers = (
        "agent.values", "agent.rewards", "agent.losses", "replay.priorities",
        "collector.experience_buffer", "vectorised",
    )  # fmt: skip

    walked = ()

    episode = Meter.generation

    @contextmanager
    def cleanup(self, name: str) -> Iterator[None]:
        yield

    def _more_counts(self) -> Counts:
        return {}


def train_and_read(switches: Sequence[str], episodes: int) -> list[Reading]:
    """One training in this process."""
    import torch

    from .trainer import Trainer

    torch.set_num_threads(1)
    meter = EpisodeMeter()
    meter.trainer = Trainer(meter, Leaks.of(switches))
    meter.trainer.train(episodes)
    meter.read()
    return meter.readings


if __name__ == "__main__":
    sys.exit(main(__spec__.name, RIGHT_ANSWERS, train_and_read, EPISODES))

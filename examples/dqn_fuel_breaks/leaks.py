"""The optional leaks, each with the expected finding.

The expected findings are measured: the same training with and without the leak, read from procfs and counted (`python
-m tests.leaks.measure dqn_fuel_breaks`), never taken from Leakline's output. The numbers in the docstrings are those
of `tests/leaks/catalogue.py`; a test compares the two, and the measurement reports when they are no longer true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True)
class Leaks:
    """Each switch plants one leak; the training results are otherwise identical to the last digit."""

    metrics: bool = False
    """Losses, rewards and the values of all blocks are logged in unbounded lists.

    Right: kind container; phase collect; DQNAgent.values, tracked as values; 320 lists of values and
    3 MiB per episode, from episode 0.
    """

    attached_tensors: bool = False
    """The replay buffer keeps the surprise of each transition with the graph that made it.

    Right: kind graph; phase collect; torch.Tensor with a graph, held by ReplayBuffer.priorities; 480 tensors
    (320 of them priorities) and 11.6 MiB per episode, from episode 0.
    """

    experience: bool = False
    """The local buffer of experiences is unbounded, and no cleanup clears it.

    Right: kind container; phase collect; ExperienceCollector.experience_buffer, tracked as experience, or the
    Experience it holds; 320 experiences and 1.2 MiB per episode, from episode 0, in which it passes its declared
    capacity.
    """

    environments: bool = False
    """Every episode makes its own vectorised environments, and a list keeps them all.

    Right: kind objects; phase collect; FireEnvironment, held by Trainer.vectorised; 8 environments and
    3.5 MiB per episode, from episode 1, since episode 0 uses those of the constructor.
    """

    figures: bool = False
    """Pictures are closed with `pyplot.close()`, which closes only the newest of two figures.

    Right: kind objects; phase plot; matplotlib's Figure; 0.5 figures and 1.9 MiB per episode, from episode 1: one
    every second episode.
    """

    @classmethod
    def of(cls, names: Iterable[str]) -> Leaks:
        return cls(**dict.fromkeys(names, True))


SWITCHES: Final = tuple(field.name for field in fields(Leaks))

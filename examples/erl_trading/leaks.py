"""The optional leaks, each with the expected finding.

The expected findings are measured: the same training with and without the leak, read from procfs and counted (`python
-m tests.leaks.measure erl_trading`), never taken from Leakline's output. The numbers in the docstrings are those of
`tests/leaks/catalogue.py`; a test compares the two, and the measurement reports when they are no longer true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True)
class Leaks:
    """Each switch plants one leak; the training results are otherwise identical to the last digit."""

    loss_graph: bool = False
    """Losses are logged as tensors with their autograd graphs.

    `backward(retain_graph=True)`, the usual way to silence "trying to backward through the graph a second
    time", keeps the activations, and through the graph the weights of agents long replaced stay alive, too.
    Right: kind graph; phase train_population; torch.Tensor with a graph, held by Trainer.losses; 1120 tensors
    with a graph (320 of them losses) and 20.6 MiB per generation, from generation 1, when the buffer is ready.
    """

    episode_history: bool = False
    """The environments, which are reused every generation, never clear the history of an episode.

    Right: kind container, or arrays, which the lists keep; phase evaluate_population; held by
    TradingEnvironment.episode_observations and its two sisters; 3200 steps and 6.4 MiB per generation, from
    generation 1, the first that adds to a history.
    """

    kept_environments: bool = False
    """Every episode makes its own environment, and a list keeps them all.

    Right: kind objects; phase evaluate_population; TradingEnvironment, held by Trainer.environments; 16
    environments and 11.2 MiB per generation, from generation 0.
    """

    cyclic_environments: bool = False
    """Each generation makes new environments that reference each other, and the collector is off.

    Right: kind cyclic_garbage; phase evaluate_population; TradingEnvironment, which nothing but each other keeps; 16
    environments and 11.7 MiB per generation, from generation 0.
    """

    old_population: bool = False
    """Replaced populations are kept.

    Right: kind objects; phase evolve_population; DDPGAgent, held by Trainer.past_populations; 16 agents and
    16.4 MiB per generation, from generation 0. (The agents of the first generations are lighter: Adam has no
    state before the first training.)
    """

    deepcopied_checkpoints: bool = False
    """All state dicts are deep-copied before the population is replaced, and dropped immediately.

    Right: nothing. A peak inside evolve_population, of the size of a population; no growth, never above watch.
    """

    best_agents: bool = False
    """A clone of the best agent is kept each time it improves, instead of the last one only.

    Right: kind objects; phase evolve_population; DDPGAgent, held by Trainer.best_agents; 1 agent and
    0.99 MiB per generation, from generation 1. Below 1 % of the resident memory, but it breaks the declared
    count of 16 agents and one best, and so it matters.
    """

    figures: bool = False
    """The figure drawn every fifth generation is never closed.

    Right: kind objects; phase plot_progress; matplotlib's Figure; one figure of about 4 MiB every fifth
    generation, which is 0.2 figures and 0.8 MiB per generation, from generation 4. Small, and in steps.
    """

    loss_history: bool = False
    """The list of losses, plain numbers, is unbounded.

    Right: kind container; phase train_population; Trainer.losses; 320 numbers and 0.01 MiB per generation,
    from generation 4, where it passes the 1000 a bounded one keeps. It grows and does not matter: never above
    watch.
    """

    kept_batches: bool = False
    """The batches of the training steps are kept after the step.

    Right: kind objects; phase train_population; Experience, held by Trainer.batches; 160 batches and 7 MiB per
    generation, from generation 1, when the buffer is ready.
    """

    pending_uploads: bool = False
    """Checkpoints wait for an upload that hangs, without a limit.

    Right: kind objects; phase upload_checkpoints; Upload, held by CheckpointUploads.pending; 4 uploads and 4.1 MiB per
    generation, from generation 0. After generation 12 more than 50 wait, and a warning says so.
    """

    @classmethod
    def of(cls, names: Iterable[str]) -> Leaks:
        return cls(**dict.fromkeys(names, True))


SWITCHES: Final = tuple(field.name for field in fields(Leaks))

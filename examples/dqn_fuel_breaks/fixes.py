"""Fixes that a training can declare, one for each leak, with their promises."""

from __future__ import annotations

from typing import Any, Final

from ..erl_trading.fixes import Fix

_PLACE: Final = "examples/dqn_fuel_breaks"
# The replay buffer still fills, which is not growth; bounded containers are full within a few episodes.
_PROMISES: Final[dict[str, Any]] = {"growth_bytes_per_generation": "1 MiB"}


def _fix(phase: str, where: str) -> Fix:
    return Fix(phase, f"{_PLACE}/{where}", _PROMISES)


FIXES: Final[dict[str, Fix]] = {
    "bound_metrics": _fix("collect", "agent.py: DQNAgent"),
    "detach_tensors": _fix("collect", "agent.py: DQNAgent.surprise"),
    "bound_experience": _fix("collect", "collector.py: ExperienceCollector.prune"),
    "reuse_environments": _fix("collect", "trainer.py: Trainer._collect"),
    "close_figures": _fix("plot", "plots.py: plot_progress"),
}

"""How much there is and whether anything comes in: the whole database in a few numbers, for people who keep it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Engine, func, select

from .tables import processes, runs


@dataclass(frozen=True, slots=True)
class Overview:
    """``states``: state -> how many runs are in it. ``live_processes``: those of running runs that have not ended.
    ``last_seen_at``: when any run was last heard of, in Unix seconds; None without runs.
    """

    states: Mapping[str, int]
    live_processes: int
    last_seen_at: float | None


def overview(engine: Engine) -> Overview:
    # By the index of states and times.
    states = select(runs.c.state, func.count(), func.max(runs.c.last_seen_at)).group_by(
        runs.c.state
    )
    live = (
        select(func.count())
        .select_from(runs.join(processes))
        .where(runs.c.state == "running", processes.c.end_state.is_(None))
    )
    with engine.connect() as connection:
        found = connection.execute(states).all()
        return Overview(
            {state: count for state, count, _ in found},
            int(connection.execute(live).scalar_one()),
            max((seen for _, _, seen in found), default=None),
        )

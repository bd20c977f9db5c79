"""Counts of what is running, for the settings page."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine, func, select

from .tables import processes, runs


@dataclass(frozen=True, slots=True)
class Overview:
    """Running runs, and the processes in them that have not ended."""

    running_runs: int
    live_processes: int


def overview(engine: Engine) -> Overview:
    running = runs.c.state == "running"
    live = (
        select(func.count())
        .select_from(runs.join(processes))
        .where(running, processes.c.end_state.is_(None))
    )
    with engine.connect() as connection:
        return Overview(
            int(connection.execute(select(func.count()).where(running)).scalar_one()),
            int(connection.execute(live).scalar_one()),
        )

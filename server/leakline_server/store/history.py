"""A run's history as the analysis reads it: all columns of all processes, with the declarations made on the way."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, select

from leakline.analysis.history import (
    ProcessHistory,
    RunHistory,
    declared_capacities,
    declared_expectations,
)

from .columns import (
    COLUMNS,
    GENERATION,
    KIND,
    LABEL,
    MONOTONIC,
    PHASE,
    SEQUENCE,
    TIME,
    read,
    reading,
    series_ids,
    stretches,
)
from .details import load_censuses, load_events, load_holders
from .runs import ENDED
from .tables import processes, runs


class NoSuchRun(LookupError):
    """Its text is the id."""


def load_history(engine: Engine, run_id: str) -> RunHistory:
    """Everything that is stored of a run. Raises NoSuchRun."""
    return load_history_at(engine, run_id)[0]


def revision(engine: Engine, run_id: str) -> int:
    """Raises NoSuchRun."""
    with engine.connect() as connection:
        found = connection.execute(select(runs.c.revision).where(runs.c.id == run_id)).first()
    if found is None:
        raise NoSuchRun(run_id)
    return int(found.revision)


def load_history_at(engine: Engine, run_id: str) -> tuple[RunHistory, int]:
    """The history, and the revision of the run that it shows."""
    with reading(engine) as connection:
        run = connection.execute(select(runs).where(runs.c.id == run_id)).first()
        if run is None:
            raise NoSuchRun(run_id)
        numbered = series_ids(connection, run_id)
        rows = connection.execute(
            select(processes)
            .where(processes.c.run_id == run_id)
            .order_by(processes.c.rank, processes.c.attempt, processes.c.id)
        ).all()
        events = load_events(connection, run_id)
        history = RunHistory(
            run=run_id,
            unit=run.unit,
            total=run.total,
            phases=tuple(msgspec.json.decode(run.phases)),
            # A process that has said hello and no more has no history.
            processes=tuple(
                found for row in rows if len(found := _process(connection, row, numbered))
            ),
            events=tuple(events),
            holders=tuple(load_holders(connection, run_id)),
            censuses=tuple(load_censuses(connection, run_id)),
            expectations=declared_expectations(events),
            capacities=declared_capacities(events),
            environment=msgspec.json.decode(run.environment),
            ended=run.state in ENDED,
        )
    return history, int(run.revision)


def _process(connection: Connection, row: Row[Any], numbered: dict[str, int]) -> ProcessHistory:
    names = {number: name for name, number in numbered.items()}
    block = read(connection, row.id, (*COLUMNS, *names), names, stretches(connection, row.id))
    columns = {number: column.to_list() for number, column in block.columns.items()}
    series: dict[str, Any] = {}
    for number, name in names.items():
        column = block.numbers(number)
        # A series of another process of the run: here it has never been measured.
        if column.present is None or column.present.any():
            series[name] = columns[number]
    plain: dict[str, Any] = {
        "sequence": columns[SEQUENCE],
        "time": columns[TIME],
        "monotonic": columns[MONOTONIC],
        "generation": columns[GENERATION],
        "phase": columns[PHASE],
        "label": [label or "" for label in columns[LABEL]],
        "kind": columns[KIND],
    }
    return ProcessHistory(row.instance, row.rank, row.role, row.attempt, **plain, series=series)

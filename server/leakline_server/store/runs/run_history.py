"""A run's history as the analysis reads it: all columns of all processes, with the declarations made on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, func, select

from leakline.analysis.assertions.expected_counts import with_accepted
from leakline.analysis.generation_axis import PLANS, in_its_unit
from leakline.analysis.run_history import (
    RunHistory,
    declared_capacities,
    declared_expectations,
)

from ...limits import MAX_PROCESSES_STUDIED
from ..alerts import assertions
from ..details.details import load_events, load_holders
from ..schema import processes, runs
from ..series.column_reader import Key, reading, series_ids
from .process_history import InPart, last_generation, load_process
from .runs import ENDED


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


def load_for_examination(engine: Engine, run_id: str) -> tuple[RunHistory, int]:
    """As much as an examination reads, of very long processes a part, and the revision that it shows.

    Raises NoSuchRun.
    """
    return load_history_at(engine, run_id, in_part=True, largest=True)


def load_for_pages(engine: Engine, run_id: str) -> tuple[RunHistory, int]:
    """As an examination reads it; what was booked in generations that are left out stands with the next that is not.

    Raises NoSuchRun.
    """
    return load_history_at(engine, run_id, in_part=True, summed=True, largest=True)


def load_to_compare(
    engine: Engine, before: str, after: str
) -> tuple[tuple[RunHistory, int], tuple[RunHistory, int]]:
    """Both runs whole, but for processes of more than COMPARED_WHOLE snapshots.

    Of these as much as an examination reads, and of what both runs have the same generations. Raises NoSuchRun.
    """
    ends = [_last_generation(engine, run_id) for run_id in (before, after)]
    known = [end for end in ends if end is not None]
    last = min(known) if len(known) == 2 else None
    older, newer = (
        load_history_at(engine, run_id, in_part=last is not None, shared_to=last, largest=True)
        for run_id in (before, after)
    )
    return older, newer


def _last_generation(engine: Engine, run_id: str) -> int | None:
    """Or the last minute; None of a run without snapshots. Raises NoSuchRun."""
    revision(engine, run_id)
    with reading(engine) as connection:
        rows = _rows_of(connection, run_id, largest=True)
        found = [last_generation(connection, Key(run_id, row.id)) for row in rows]
    return max((each for each in found if each is not None), default=None)


def load_history_at(
    engine: Engine, run_id: str, *, in_part: bool = False, summed: bool = False, shared_to: int | None = None,
    largest: bool = False,
) -> tuple[RunHistory, int]:  # fmt: skip
    """The history, and the revision of the run that it shows. Raises NoSuchRun.

    ``shared_to``: it is read to be compared with a run that ends with this generation. ``largest``: of the processes
    with the highest peaks alone, where there are more than MAX_PROCESSES_STUDIED, with what they have declared.
    """
    part = InPart(summed, shared_to) if in_part else None
    with reading(engine) as connection:
        run = connection.execute(select(runs).where(runs.c.id == run_id)).first()
        if run is None:
            raise NoSuchRun(run_id)
        numbered = series_ids(connection, run_id)
        rows = _rows_of(connection, run_id, largest=largest)
        left_out = _count(connection, run_id) - len(rows)
        among = [row.id for row in rows] if left_out else None
        events = load_events(connection, run_id, among)
        # A plan is checked in every generation; the books of a page read a part.
        if not summed and any(event.kind in PLANS for event in events):
            part = None
        history = RunHistory(
            run=run_id,
            unit=run.unit,
            total=run.total,
            phases=tuple(msgspec.json.decode(run.phases)),
            # A process that has said hello and no more has no history.
            processes=tuple(
                found for row in rows if len(found := load_process(connection, row, numbered, part))
            ),
            events=tuple(events),
            holders=tuple(load_holders(connection, run_id, among)),
            expectations=with_accepted(
                declared_expectations(events), assertions.expected_of(connection, run)
            ),
            capacities=declared_capacities(events),
            environment=msgspec.json.decode(run.environment),
            ended=run.state in ENDED,
            processes_left_out=left_out,
        )
    return in_its_unit(history), int(run.revision)


def _rows_of(connection: Connection, run_id: str, *, largest: bool) -> Sequence[Row[Any]]:
    """The processes of a run by rank and attempt. ``largest``: no more than are studied."""
    p = processes.c
    query = select(processes).where(p.run_id == run_id)
    if largest:
        most = func.coalesce(p.peak_bytes, p.rss_bytes, 0)
        query = query.order_by(most.desc(), p.attempt.desc(), p.id).limit(MAX_PROCESSES_STUDIED)
    rows = connection.execute(query).all()
    return sorted(rows, key=lambda row: (row.rank, row.attempt, row.id))


def _count(connection: Connection, run_id: str) -> int:
    query = select(func.count()).select_from(processes).where(processes.c.run_id == run_id)
    return connection.scalar(query) or 0

"""A run's history as the analysis reads it: all columns of all processes, with the declarations made on the way."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
from sqlalchemy import Connection, Engine, Row, select

from leakline.analysis.history import (
    ProcessHistory,
    RunHistory,
    declared_capacities,
    declared_expectations,
)
from leakline.analysis.thinning import PLANS, WHOLE, Thinned, rows_to_read

from .codec import Array, Numbers
from .columns import (
    COLUMNS,
    GENERATION,
    KIND,
    LABEL,
    MONOTONIC,
    PHASE,
    SEQUENCE,
    TIME,
    Block,
    Key,
    Stretch,
    read,
    reading,
    series_ids,
    stretches,
)
from .details import load_events, load_holders
from .runs import ENDED
from .tables import processes, runs

# Of a process that is read in part.
SERIES_AT_ONCE: Final = 16


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
    return load_history_at(engine, run_id, in_part=True)


def load_for_pages(engine: Engine, run_id: str) -> tuple[RunHistory, int]:
    """As an examination reads it; what was booked in generations that are left out stands with the next that is not.

    Raises NoSuchRun.
    """
    return load_history_at(engine, run_id, in_part=True, summed=True)


def load_history_at(
    engine: Engine, run_id: str, *, in_part: bool = False, summed: bool = False
) -> tuple[RunHistory, int]:
    """The history, and the revision of the run that it shows. Raises NoSuchRun."""
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
        # A plan holds every generation to something; the books of a page do not.
        in_part = in_part and (summed or not any(event.kind in PLANS for event in events))
        history = RunHistory(
            run=run_id,
            unit=run.unit,
            total=run.total,
            phases=tuple(msgspec.json.decode(run.phases)),
            # A process that has said hello and no more has no history.
            processes=tuple(
                found
                for row in rows
                if len(found := _process(connection, row, numbered, in_part, summed))
            ),
            events=tuple(events),
            holders=tuple(load_holders(connection, run_id)),
            expectations=declared_expectations(events),
            capacities=declared_capacities(events),
            environment=msgspec.json.decode(run.environment),
            ended=run.state in ENDED,
        )
    return history, int(run.revision)


def _process(
    connection: Connection, row: Row[Any], numbered: dict[str, int], in_part: bool, summed: bool
) -> ProcessHistory:
    names = {number: name for name, number in numbered.items()}
    key = Key(row.run_id, row.id)
    stored = stretches(connection, key)
    if in_part and sum(stretch.count for stretch in stored) > WHOLE:
        # Not the labels, most of which differ.
        fixed = read(connection, key, set(COLUMNS) - {LABEL}, names, stored)
        found = _rows_to_read(fixed)
        if found is not None:
            return _in_part(connection, row, names, stored, fixed, found, summed=summed)
    block = read(connection, key, (*COLUMNS, *names), names, stored)
    return ProcessHistory(*_identity(row), **_fixed(block), series=_series(block, names))


def _rows_to_read(fixed: Block) -> Thinned | None:
    generation: Any = fixed.numbers(GENERATION).to_list()
    monotonic: Any = fixed.numbers(MONOTONIC).to_list()
    return rows_to_read(generation, monotonic, fixed.texts(PHASE).to_list())


def _in_part(
    connection: Connection, row: Row[Any], names: Mapping[int, str], stored: Sequence[Stretch],
    fixed: Block, found: Thinned, *, summed: bool,
) -> ProcessHistory:  # fmt: skip
    """A few series at a time: all of them whole may be more than this server should hold for one run."""
    key = Key(row.run_id, row.id)
    rows = np.array(found.rows, dtype=np.int64)
    only = fixed.numbers(SEQUENCE).values[rows]
    booked = [n for n, name in names.items() if summed and _BOOKED.fullmatch(name)]
    series = dict[str, Any]()
    for some in _some_of(booked, names):
        # Of the snapshots that the fixed columns are of: a damaged one leaves out others than these series do.
        block = read(connection, key, some, names, stored, fixed.numbers(SEQUENCE).values)
        series |= _series(_with_sums(block, some, fixed, rows).take(rows), some)
    for some in _some_of([n for n in names if n not in set(booked)], names):
        series |= _series(read(connection, key, some, names, stored, only), some)
    of_each = _fixed(read(connection, key, COLUMNS, names, stored, only))
    return ProcessHistory(*_identity(row), **of_each, series=series, left_out=found.left_out)


def _some_of(numbers: Sequence[int], names: Mapping[int, str]) -> Iterator[dict[int, str]]:
    for first in range(0, len(numbers), SERIES_AT_ONCE):
        yield {number: names[number] for number in numbers[first : first + SERIES_AT_ONCE]}


def _identity(row: Row[Any]) -> tuple[str, int, str, int]:
    return row.instance, row.rank, row.role, row.attempt


def _fixed(block: Block) -> dict[str, Any]:
    """What every snapshot has, by the names of `ProcessHistory`."""
    named = {
        "sequence": SEQUENCE, "time": TIME, "monotonic": MONOTONIC, "generation": GENERATION,
        "phase": PHASE, "kind": KIND,
    }  # fmt: skip
    found: dict[str, Any] = {name: block.columns[n].to_list() for name, n in named.items()}
    found["label"] = [label or "" for label in block.columns[LABEL].to_list()]
    return found


def _with_sums(block: Block, booked: Collection[int], fixed: Block, rows: Array) -> Block:
    """What the books say of generations whose ends are not among ``rows``, added to the next end that is."""
    kinds, generation = fixed.texts(KIND), fixed.numbers(GENERATION)
    is_end = kinds.index == (kinds.names.index(_END) if _END in kinds.names else -2)
    ends = np.flatnonzero(is_end if generation.present is None else is_end & generation.present)
    kept = np.flatnonzero(np.isin(ends, rows))
    if not len(kept):
        return block
    columns = {number: _summed(block.numbers(number), ends, kept) for number in booked}
    return replace(block, columns={**block.columns, **columns})


def _summed(column: Numbers, ends: Array, kept: Array) -> Numbers:
    """``ends``: positions in the column; ``kept``: those of them, by position among them, that get the sums."""
    there = np.ones(len(column), bool) if column.present is None else column.present.copy()
    values, at = column.values.copy(), ends[kept]
    before = np.cumsum(np.where(there[ends], values[ends], 0))[kept]
    counts = np.cumsum(there[ends])[kept]
    values[at] = np.diff(before, prepend=0)
    there[at] = np.diff(counts, prepend=0) > 0
    return Numbers(values, there)


_END: Final = "generation_end"
_BOOKED: Final = re.compile(r"phase\..+\.(bytes|executions)", re.DOTALL)


def _series(block: Block, names: Mapping[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, name in names.items():
        column = block.numbers(number)
        # A series of another process of the run: here it has never been measured.
        if column.present is None or column.present.any():
            found[name] = column.to_list()
    return found

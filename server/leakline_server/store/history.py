"""A run's history as the analysis reads it: all columns of all processes, with the declarations made on the way."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from sqlalchemy import Connection, Engine, Row, func, select

from leakline.analysis.comparison import RESIDENT
from leakline.analysis.history import (
    MINUTE_SECONDS,
    ProcessHistory,
    RunHistory,
    declared_capacities,
    declared_expectations,
)
from leakline.analysis.learned import with_accepted
from leakline.analysis.thinning import PLANS, WHOLE, Thinned, rows_to_compare, rows_to_read
from leakline.analysis.units import in_its_unit

from ..limits import MAX_PROCESSES_STUDIED
from . import accepted_counts
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
# Processes of so many snapshots are compared by all of them.
COMPARED_WHOLE: Final = 50_000


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
    found = []
    with reading(engine) as connection:
        for row in _rows_of(connection, run_id, largest=True):
            key = Key(run_id, row.id)
            among = stretches(connection, key)
            block = read(connection, key, (GENERATION, MONOTONIC), {}, among)
            if len(block):
                found.append(_furthest(block.numbers(GENERATION), block.numbers(MONOTONIC).values))
    return max(found, default=None)


def _furthest(generation: Numbers, monotonic: Array) -> int:
    there = generation.values
    if generation.present is not None:
        there = there[generation.present]
    return int(there.max() if len(there) else (monotonic[-1] - monotonic[0]) // MINUTE_SECONDS)


def load_history_at(
    engine: Engine, run_id: str, *, in_part: bool = False, summed: bool = False, shared_to: int | None = None,
    largest: bool = False,
) -> tuple[RunHistory, int]:  # fmt: skip
    """The history, and the revision of the run that it shows. Raises NoSuchRun.

    ``shared_to``: it is read to be compared with a run that ends with this generation. ``largest``: of the processes
    with the highest peaks alone, where there are more than MAX_PROCESSES_STUDIED, with what they have declared.
    """
    part = _InPart(summed, shared_to) if in_part else None
    with reading(engine) as connection:
        run = connection.execute(select(runs).where(runs.c.id == run_id)).first()
        if run is None:
            raise NoSuchRun(run_id)
        numbered = series_ids(connection, run_id)
        rows = _rows_of(connection, run_id, largest=largest)
        left_out = _count(connection, run_id) - len(rows)
        among = [row.id for row in rows] if left_out else None
        events = load_events(connection, run_id, among)
        # A plan holds every generation to something; the books of a page do not.
        if not summed and any(event.kind in PLANS for event in events):
            part = None
        history = RunHistory(
            run=run_id,
            unit=run.unit,
            total=run.total,
            phases=tuple(msgspec.json.decode(run.phases)),
            # A process that has said hello and no more has no history.
            processes=tuple(
                found for row in rows if len(found := _process(connection, row, numbered, part))
            ),
            events=tuple(events),
            holders=tuple(load_holders(connection, run_id, among)),
            expectations=with_accepted(
                declared_expectations(events), accepted_counts.expected_of(connection, run)
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


@dataclass(frozen=True, slots=True)
class _InPart:
    """How very long processes are read; see `load_history_at`."""

    summed: bool
    shared_to: int | None

    @property
    def least(self) -> int:
        """Of so many snapshots, a process is read whole."""
        return WHOLE if self.shared_to is None else COMPARED_WHOLE


def _process(
    connection: Connection, row: Row[Any], numbered: dict[str, int], part: _InPart | None
) -> ProcessHistory:
    names = {number: name for name, number in numbered.items()}
    key = Key(row.run_id, row.id)
    stored = stretches(connection, key)
    if part is not None and sum(stretch.count for stretch in stored) > part.least:
        # Not the labels, most of which differ.
        fixed = read(connection, key, set(COLUMNS) - {LABEL}, names, stored)
        if part.shared_to is None:
            found = rows_to_read(*_of_rows(fixed))
        else:
            peaks = _peaks(connection, key, numbered, stored, fixed, part.shared_to)
            found = rows_to_compare(*_of_rows(fixed), part.shared_to, peaks)
        if found is not None:
            return _in_part(connection, row, names, stored, fixed, found, summed=part.summed)
    block = read(connection, key, (*COLUMNS, *names), names, stored)
    return ProcessHistory(*_identity(row), **_fixed(block), series=_series(block, names))


def _of_rows(fixed: Block) -> tuple[Any, Any, list[str | None]]:
    generation, monotonic = fixed.numbers(GENERATION), fixed.numbers(MONOTONIC)
    return generation.to_list(), monotonic.to_list(), fixed.texts(PHASE).to_list()


def _peaks(
    connection: Connection, key: Key, numbered: Mapping[str, int], stored: Sequence[Stretch],
    fixed: Block, last: int,
) -> set[int]:  # fmt: skip
    """The generations up to this one with the largest resident size: one snapshot may be far above all others."""
    generation, found = fixed.numbers(GENERATION), set[int]()
    if generation.present is not None and not generation.present.any():
        return found
    upto = generation.values <= last
    if generation.present is not None:
        upto &= generation.present
    for name in (name for name in RESIDENT if name in numbered):
        only = fixed.numbers(SEQUENCE).values
        block = read(connection, key, (numbered[name],), {numbered[name]: name}, stored, only)
        column = block.numbers(numbered[name])
        there = upto if column.present is None else upto & column.present
        if len(block) == len(fixed) and there.any():
            at = np.flatnonzero(there)
            found.add(int(generation.values[at[column.values[at].argmax()]]))
    return found


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

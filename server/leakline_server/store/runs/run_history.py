"""Loading the history of a run for the analysis: the columns of its processes, and the program's declarations.

A process is read entirely, unless its history is very long: then a representative selection of generations is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
from sqlalchemy import Connection, Engine, Row, func, select

from leakline.analysis.assertions.expected_counts import with_accepted
from leakline.analysis.comparison.run_comparison import RESIDENT
from leakline.analysis.generation_axis import (
    PLANS,
    WHOLE,
    generations_to_compare,
    in_its_unit,
    positions_to_read,
)
from leakline.analysis.run_history import (
    MINUTE_SECONDS,
    LeftOut,
    ProcessHistory,
    RunHistory,
    Spans,
    declared_capacities,
    declared_expectations,
)

from ...limits import MAX_PROCESSES_STUDIED
from ..alerts import assertions
from ..columns import (
    COLUMNS,
    GENERATION,
    KIND,
    LABEL,
    MONOTONIC,
    PHASE,
    SEQUENCE,
    TIME,
    Array,
    Column,
    Numbers,
    absent,
    concatenate_numbers,
)
from ..details import load_events, load_holders
from ..engine import reading
from ..schema import Key, processes, runs
from ..schema import NoSuchRun as NoSuchRun
from ..series import Block, Stored, read, series_ids
from .runs import ENDED

# How many series and snapshots are read at a time when a process is read in part.
SERIES_AT_ONCE: Final = 16
SNAPSHOTS_AT_ONCE: Final = 16_384
# Processes with at most this many snapshots are read entirely for a comparison of runs.
COMPARED_WHOLE: Final = 50_000


@dataclass(frozen=True, slots=True)
class InPart:
    """Options for reading very long processes in part; `load_history_at` and `load_for_pages` describe the fields."""

    summed: bool
    shared_to: int | None

    @property
    def least(self) -> int:
        """The largest number of snapshots with which a process is still read entirely."""
        return WHOLE if self.shared_to is None else COMPARED_WHOLE


def _load_process(
    connection: Connection, row: Row[Any], numbered: dict[str, int], part: InPart | None
) -> ProcessHistory:
    names = {number: name for name, number in numbered.items()}
    stored = read(connection, Key(row.run_id, row.id), names)
    if part is not None and len(stored) > part.least:
        generations_of, distinct = _generations(stored)
        kept = _to_read(stored, numbered, distinct, part.shared_to)
        if kept is not None:
            only, left_out = _chosen(stored, generations_of, distinct, kept)
            return _in_part(stored, row, only, left_out, summed=part.summed)
    block = stored.read((*COLUMNS, *names))
    return ProcessHistory(*_identity(row), **_fixed(block), series=_series(block, names))


def last_generation(connection: Connection, key: Key) -> int | None:
    """Return a process's last generation or, without generations, its last minute. Return None without snapshots."""
    _, distinct = _generations(read(connection, key, {}))
    return int(distinct[-1]) if len(distinct) else None


# A function that returns the generation of each row of a block, and a mask of the rows with a generation (None if all
# rows have a generation).
_GenerationsOf = Callable[[Block], tuple[Array, Array | None]]


def _generations(stored: Stored) -> tuple[_GenerationsOf, Array]:
    """Return (function that finds the generations of a block's rows, all generations in ascending order).

    If the process has declared no generations, minutes are used instead.
    """
    declared, minutes = [_EMPTY], [_EMPTY]
    start: float | None = None
    for block in stored.blocks((GENERATION, MONOTONIC), SNAPSHOTS_AT_ONCE):
        generation, monotonic = block.numbers(GENERATION), block.numbers(MONOTONIC).values
        start = float(monotonic[0]) if start is None else start
        there = generation.present
        declared.append(np.unique(generation.values if there is None else generation.values[there]))
        minutes.append(np.unique(_minutes(monotonic, start)))
    found = np.unique(np.concatenate(declared))
    if len(found):
        return _declared_generations, found
    return partial(_counted_by_minutes, start or 0.0), np.unique(np.concatenate(minutes))


def _declared_generations(block: Block) -> tuple[Array, Array | None]:
    generation = block.numbers(GENERATION)
    return generation.values, generation.present


def _counted_by_minutes(start: float, block: Block) -> tuple[Array, None]:
    return _minutes(block.numbers(MONOTONIC).values, start), None


def _minutes(monotonic: Array, start: float) -> Array:
    return ((monotonic - start) // MINUTE_SECONDS).astype(np.int64)


def _to_read(
    stored: Stored, numbered: Mapping[str, int], distinct: Array, shared_to: int | None
) -> Array | None:
    """Return the generations to read, in ascending order, or None to read all generations."""
    positions = positions_to_read(len(distinct))
    if positions is None or shared_to is None:
        return None if positions is None else distinct[positions]
    peaks = _peaks(stored, numbered, shared_to)
    kept = generations_to_compare(distinct.tolist(), shared_to, peaks)
    return None if kept is None or len(kept) == len(distinct) else np.array(sorted(kept), np.int64)


def _peaks(stored: Stored, numbered: Mapping[str, int], last: int) -> set[int]:
    """Return the generations up to ``last`` in which each measure of resident memory has its peak.

    These generations must be read, because a peak is determined by a single snapshot.
    """
    found = set[int]()
    for number in (numbered[name] for name in RESIDENT if name in numbered):
        peak, at = -1.0, None
        for block in stored.blocks((number, GENERATION), SNAPSHOTS_AT_ONCE):
            generation, column = block.numbers(GENERATION), block.numbers(number)
            there = generation.values <= last
            for present in (generation.present, column.present):
                there = there if present is None else there & present
            rows = np.flatnonzero(there)
            if len(rows) and (highest := column.values[rows].max()) > peak:
                peak = float(highest)
                at = int(generation.values[rows[column.values[rows].argmax()]])
        if at is not None:
            found.add(at)
    return found


def _chosen(
    stored: Stored, generations_of: _GenerationsOf, distinct: Array, kept: Array
) -> tuple[Array, LeftOut]:
    """Return (sequence numbers to read, left-out data). Snapshots without a generation are always read."""
    only, ran = [_EMPTY], set[str | None]()
    for block in stored.blocks((GENERATION, MONOTONIC, PHASE), SNAPSHOTS_AT_ONCE):
        generation, there = generations_of(block)
        out = ~np.isin(generation, kept)
        if there is not None:
            out &= there
        phase = block.texts(PHASE)
        ran |= {phase.names[i] for i in np.unique(phase.index[out]) if i >= 0}
        only.append(block.numbers(SEQUENCE).values[~out])
    left_out = LeftOut(_between(distinct, kept), frozenset(name for name in ran if name))
    return np.concatenate(only), left_out


def _between(distinct: Array, kept: Array) -> Spans:
    """Return the generations in ``distinct`` that are not in ``kept``, as ranges; both are ascending."""
    out = distinct[~np.isin(distinct, kept)]
    breaks = np.flatnonzero(np.diff(out) != 1)
    first, last = out[[0, *(breaks + 1)]], out[[*breaks, -1]]
    return Spans(tuple(zip(first.tolist(), last.tolist(), strict=True)))


def _in_part(
    stored: Stored, row: Row[Any], only: Array, left_out: LeftOut, *, summed: bool
) -> ProcessHistory:
    """Read the snapshots of a process with the sequence numbers ``only``, a few series at a time to bound memory."""
    fixed = stored.read(COLUMNS, only)
    # Continue without the snapshots that could not be read because a common column is damaged.
    only = fixed.numbers(SEQUENCE).values
    series = dict[str, Any]()
    booked = [n for n, name in stored.names.items() if summed and _BOOKED.fullmatch(name)]
    for some in _some_of(booked, stored.names):
        series |= _series(_with_sums(stored, some, only), some)
    for some in _some_of([n for n in stored.names if n not in set(booked)], stored.names):
        series |= _series(stored.read(some, only), some)
    return ProcessHistory(*_identity(row), **_fixed(fixed), series=series, left_out=left_out)


def _some_of(numbers: Sequence[int], names: Mapping[int, str]) -> Iterator[dict[int, str]]:
    for first in range(0, len(numbers), SERIES_AT_ONCE):
        yield {number: names[number] for number in numbers[first : first + SERIES_AT_ONCE]}


def _identity(row: Row[Any]) -> tuple[str, int, str, int]:
    return row.instance, row.rank, row.role, row.attempt


def _fixed(block: Block) -> dict[str, Any]:
    """Return the common columns by their names in `ProcessHistory`."""
    named = {
        "sequence": SEQUENCE, "time": TIME, "monotonic": MONOTONIC, "generation": GENERATION,
        "phase": PHASE, "kind": KIND,
    }  # fmt: skip
    found: dict[str, Any] = {name: block.columns[n].to_list() for name, n in named.items()}
    found["label"] = [label or "" for label in block.columns[LABEL].to_list()]
    return found


def _with_sums(stored: Stored, booked: Collection[int], only: Array) -> Block:
    """Return the phase accounts of the snapshots ``only``.

    The accounts of left-out generations are added to the next generation in ``only``.
    """
    parts = {number: [absent(0)] for number in (SEQUENCE, *booked)}
    waiting: dict[int, tuple[float, int]] = dict.fromkeys(booked, (0, 0))
    for block in stored.blocks((GENERATION, KIND, *booked), SNAPSHOTS_AT_ONCE):
        kinds, generation = block.texts(KIND), block.numbers(GENERATION)
        is_end = kinds.index == (kinds.names.index(_END) if _END in kinds.names else -2)
        ends = np.flatnonzero(is_end if generation.present is None else is_end & generation.present)
        sequence = block.numbers(SEQUENCE).values
        rows = np.isin(sequence, only)
        kept = np.flatnonzero(rows[ends])
        columns = dict[int, Column]({SEQUENCE: block.columns[SEQUENCE]})
        for number in booked:
            columns[number], waiting[number] = _summed(
                block.numbers(number), ends, kept, waiting[number]
            )
        kept_rows = Block(columns).take(rows)
        for number, found in parts.items():
            found.append(kept_rows.numbers(number))
    return Block({number: concatenate_numbers(found) for number, found in parts.items()})


def _summed(
    column: Numbers, ends: Array, kept: Array, waiting: tuple[float, int]
) -> tuple[Numbers, tuple[float, int]]:
    """Return (column with sums, (sum, number of readings) to carry over to the next block).

    ``ends``: the positions of generation ends in the column. ``kept``: the positions within ``ends`` of the generation
    ends that are kept, which get the sums.
    """
    there = np.ones(len(column), bool) if column.present is None else column.present.copy()
    # The carried-over sum may be a float even if this block has only integers or no values.
    sums = np.cumsum(np.where(there[ends], column.values[ends], 0)) + waiting[0]
    counts = np.cumsum(there[ends]) + waiting[1]
    values = column.values.astype(np.result_type(column.values, sums))
    if not len(kept):
        left = (sums[-1].item(), int(counts[-1])) if len(ends) else waiting
        return Numbers(values, there), left
    at = ends[kept]
    values[at] = np.diff(sums[kept], prepend=0)
    there[at] = np.diff(counts[kept], prepend=0) > 0
    left = (sums[-1] - sums[kept[-1]]).item(), int(counts[-1] - counts[kept[-1]])
    return Numbers(values, there), left


_EMPTY: Final = np.array([], dtype=np.int64)
_END: Final = "generation_end"
_BOOKED: Final = re.compile(r"phase\..+\.(bytes|executions)", re.DOTALL)


def _series(block: Block, names: Mapping[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, name in names.items():
        column = block.numbers(number)
        # Skip series that only other processes of the run have.
        if column.present is None or column.present.any():
            found[name] = column.to_list()
    return found


def load_history(engine: Engine, run_id: str) -> RunHistory:
    """Return the complete stored history of a run. Raises NoSuchRun."""
    return load_history_at(engine, run_id)[0]


def revision(engine: Engine, run_id: str) -> int:
    """Return the revision of a run. Raises NoSuchRun."""
    with engine.connect() as connection:
        found = connection.execute(select(runs.c.revision).where(runs.c.id == run_id)).first()
    if found is None:
        raise NoSuchRun(run_id)
    return int(found.revision)


def load_for_examination(connection: Connection, run_id: str) -> tuple[RunHistory, int]:
    """Return (history, revision) for an examination. Very long processes are read in part.

    Raises NoSuchRun.
    """
    return _load_history(connection, run_id, InPart(summed=False, shared_to=None), largest=True)


def load_for_pages(engine: Engine, run_id: str) -> tuple[RunHistory, int]:
    """Return (history, revision) for pages. Very long processes are read in part, as for an examination.

    Phase accounts of left-out generations are added to the next generation that is read. Raises NoSuchRun.
    """
    return load_history_at(engine, run_id, in_part=True, summed=True, largest=True)


def load_to_compare(
    engine: Engine, before: str, after: str
) -> tuple[tuple[RunHistory, int], tuple[RunHistory, int]]:
    """Return (history, revision) of each of the two runs to compare. Raises NoSuchRun.

    Processes with more than COMPARED_WHOLE snapshots are read in part. In the range that both runs cover, the same
    generations are read.
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
    """Return the last generation (or minute) of a run, or None without snapshots. Raises NoSuchRun."""
    revision(engine, run_id)
    with reading(engine) as connection:
        rows = _rows_of(connection, run_id, largest=True)
        found = [last_generation(connection, Key(run_id, row.id)) for row in rows]
    return max((each for each in found if each is not None), default=None)


def load_history_at(
    engine: Engine, run_id: str, *, in_part: bool = False, summed: bool = False, shared_to: int | None = None,
    largest: bool = False,
) -> tuple[RunHistory, int]:  # fmt: skip
    """Return the history and revision of a run. Raises NoSuchRun.

    ``shared_to``: the last generation that both compared runs have. ``largest``: if there are more than
    MAX_PROCESSES_STUDIED processes, read only the processes with the highest peak memory and their declarations.
    """
    part = InPart(summed, shared_to) if in_part else None
    with reading(engine) as connection:
        return _load_history(connection, run_id, part, largest=largest)


def _load_history(
    connection: Connection, run_id: str, part: InPart | None, *, largest: bool
) -> tuple[RunHistory, int]:
    run = connection.execute(select(runs).where(runs.c.id == run_id)).first()
    if run is None:
        raise NoSuchRun(run_id)
    numbered = series_ids(connection, run_id)
    rows = _rows_of(connection, run_id, largest=largest)
    left_out = _count(connection, run_id) - len(rows)
    among = [row.id for row in rows] if left_out else None
    events = load_events(connection, run_id, among)
    # Plans are checked in every generation, so everything must be read. Pages, for which phase accounts are summed, do
    # not check plans.
    if (part is None or not part.summed) and any(event.kind in PLANS for event in events):
        part = None
    history = RunHistory(
        run=run_id,
        unit=run.unit,
        total=run.total,
        phases=tuple(msgspec.json.decode(run.phases)),
        # Skip processes that have registered but sent no snapshots.
        processes=tuple(
            found for row in rows if len(found := _load_process(connection, row, numbered, part))
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
    """Return the rows of a run's processes, ordered by rank and attempt.

    ``largest``: return only the MAX_PROCESSES_STUDIED rows with the highest peak memory.
    """
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

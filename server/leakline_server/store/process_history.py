"""One process as the analysis reads it: whole, or of a very long one what says as much."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, Row

from leakline.analysis.comparison import RESIDENT
from leakline.analysis.history import MINUTE_SECONDS, LeftOut, ProcessHistory
from leakline.analysis.spans import Spans
from leakline.analysis.thinning import WHOLE, Thinned, positions_to_read, rows_to_compare

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
    stretches,
)

# Of a process that is read in part.
SERIES_AT_ONCE: Final = 16
# Processes of so many snapshots are compared by all of them.
COMPARED_WHOLE: Final = 50_000
# What is read of every snapshot to choose among them. Not the labels, most of which differ.
_ALL_ROWS: Final = (SEQUENCE, MONOTONIC, GENERATION, PHASE, KIND)


@dataclass(frozen=True, slots=True)
class InPart:
    """How very long processes are read; see `load_history_at`."""

    summed: bool
    shared_to: int | None

    @property
    def least(self) -> int:
        """Of so many snapshots, a process is read whole."""
        return WHOLE if self.shared_to is None else COMPARED_WHOLE


def load_process(
    connection: Connection, row: Row[Any], numbered: dict[str, int], part: InPart | None
) -> ProcessHistory:
    names = {number: name for name, number in numbered.items()}
    key = Key(row.run_id, row.id)
    stored = stretches(connection, key)
    if part is not None and sum(stretch.count for stretch in stored) > part.least:
        fixed = read(connection, key, _ALL_ROWS, names, stored)
        if part.shared_to is None:
            found = _rows_to_read(fixed)
        else:
            peaks = _peaks(connection, key, numbered, stored, fixed, part.shared_to)
            found = rows_to_compare(*_of_rows(fixed), part.shared_to, peaks)
        if found is not None:
            return _in_part(connection, row, names, stored, fixed, found, summed=part.summed)
    block = read(connection, key, (*COLUMNS, *names), names, stored)
    return ProcessHistory(*_identity(row), **_fixed(block), series=_series(block, names))


def last_generation(connection: Connection, key: Key) -> int | None:
    """Or minute, where none is told; None without snapshots."""
    stored = stretches(connection, key)
    block = read(connection, key, (GENERATION, MONOTONIC), {}, stored)
    if not len(block):
        return None
    generation, there = _generations(block)
    return int((generation if there is None else generation[there]).max())


def _rows_to_read(fixed: Block) -> Thinned | None:
    """As `rows_to_read` has it; without a Python object for each of a million snapshots."""
    generation, there = _generations(fixed)
    distinct = np.unique(generation if there is None else generation[there])
    positions = positions_to_read(len(distinct))
    if positions is None:
        return None
    kept = distinct[positions]
    out = ~np.isin(generation, kept)
    if there is not None:
        out &= there
    phase = fixed.texts(PHASE)
    ran = np.unique(phase.index[out])
    return Thinned(
        np.flatnonzero(~out).tolist(),
        LeftOut(_between(distinct, kept), frozenset(phase.names[i] for i in ran if i >= 0)),
    )


def _generations(fixed: Block) -> tuple[Array, Array | None]:
    """Of each row, and which rows have one (None: all); see `generations_of`."""
    told = fixed.numbers(GENERATION)
    if told.present is None or told.present.any():
        return told.values, told.present
    monotonic = fixed.numbers(MONOTONIC).values
    return ((monotonic - monotonic[0]) // MINUTE_SECONDS).astype(np.int64), None


def _between(distinct: Array, kept: Array) -> Spans:
    """Those that are not kept; both ascending."""
    out = distinct[~np.isin(distinct, kept)]
    breaks = np.flatnonzero(np.diff(out) != 1)
    first, last = out[[0, *(breaks + 1)]], out[[*breaks, -1]]
    return Spans(tuple(zip(first.tolist(), last.tolist(), strict=True)))


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

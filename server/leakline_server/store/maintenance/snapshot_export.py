"""All snapshots of a run, a few thousand at a time, in the order of their numbers.

Each step is one short look at the database, so an export of a week holds up nothing: no transaction stays open over
it, and sealing, compaction and late batches may move rows between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Engine, Row, func, select

from ..runs.run_history import NoSuchRun
from ..runs.runs import LIVED, row_of
from ..schema import chunks, processes
from ..series.chunk_codec import Column, Numbers
from ..series.column_reader import (
    COLUMN_NAMES,
    COLUMNS,
    SEQUENCE,
    Key,
    Stretch,
    of,
    read,
    reading,
    series_ids,
    stretches,
)

# Of one step, if stretches are short; a compacted stretch is read as a whole.
ROWS_PER_STEP: Final = 1_024
# What every snapshot has, by its name in an export.
FIXED: Final[Mapping[str, int]] = {name: number for number, name in COLUMN_NAMES.items()}


@dataclass(frozen=True, slots=True)
class Part:
    """Snapshots of one process. ``fixed``: as FIXED; ``series``: those of which something is measured here."""

    instance: str
    rank: int
    attempt: int
    fixed: Mapping[str, Column]
    series: Mapping[str, Numbers]

    def __len__(self) -> int:
        return len(self.fixed["sequence"])


class Gone(Exception):
    """The run was removed while it was exported; its text is the id."""


def names(engine: Engine, run_id: str) -> list[str]:
    """The series of the run in order of their names. Raises NoSuchRun."""
    with engine.connect() as connection:
        if row_of(connection, run_id) is None:
            raise NoSuchRun(run_id)
        return sorted(series_ids(connection, run_id))


def parts(engine: Engine, run_id: str, wanted: list[str]) -> Iterator[Part]:
    """Everything there is of the wanted series, process after process. Raises Gone, and CorruptChunk."""
    query = select(processes).where(processes.c.run_id == run_id).order_by(*LIVED)
    with engine.connect() as connection:
        found = connection.execute(query).all()
    for process in found:
        after: int | None = None
        while (step := _step(engine, process, wanted, after)) is not None:
            after, part = step
            if len(part):
                yield part


def _step(
    engine: Engine, process: Row[tuple[object, ...]], wanted: list[str], after: int | None
) -> tuple[int, Part] | None:
    """The next snapshots, and the number of the last of them; None at the end."""
    key = Key(process.run_id, process.id)
    with reading(engine) as connection:
        if row_of(connection, key.run_id) is None:
            raise Gone(key.run_id)
        left = [s for s in stretches(connection, key) if after is None or s.last > after]
        if not left:
            return None
        up_to = _up_to(left)
        among = [s for s in left if s.first <= up_to]
        numbered = series_ids(connection, key.run_id)
        measured = _measured(connection, key, among)
        ids = {
            numbered[n]: n
            for n in wanted
            if n in numbered and (measured is None or numbered[n] in measured)
        }
        block = read(connection, key, (*COLUMNS, *ids), ids, among)
    sequence = block.numbers(SEQUENCE).values
    inside = sequence <= up_to
    if after is not None:
        inside &= sequence > after
    if not bool(inside.all()):
        block = block.take(inside)
    fixed = {name: block.columns[number] for name, number in FIXED.items()}
    series = {name: block.numbers(number) for number, name in ids.items()}
    some = {n: c for n, c in series.items() if c.present is None or bool(c.present.any())}
    return up_to, Part(process.instance, process.rank, process.attempt, fixed, some)


def _up_to(left: list[Stretch]) -> int:
    """A number at which a stretch ends, so that the stretches that begin before it hold a step or a little more."""
    rows = 0
    by_end = sorted(left, key=lambda s: s.last)
    for stretch in by_end:
        rows += stretch.count
        if rows >= ROWS_PER_STEP:
            return stretch.last
    return by_end[-1].last


def _measured(connection: Connection, key: Key, among: list[Stretch]) -> set[int] | None:
    """The columns that have chunks in these stretches; None where some are not sealed, which may have any."""
    if any(not stretch.sealed for stretch in among):
        return None
    c = chunks.c
    query = select(func.distinct(c.series_id)).where(
        of(chunks, key),
        c.first_sequence.in_([stretch.first for stretch in among]),
    )
    return set(connection.scalars(query))

"""Where series begin on the axis of generations: found in the first snapshots that have them, whatever follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, Engine, bindparam, select

from ..schema import chunks, processes
from ..series.chunk_codec import Array
from ..series.column_reader import (
    GENERATION,
    KIND,
    SEQUENCE,
    Key,
    Stretch,
    mine,
    read,
    reading,
    series_ids,
    stretches,
)
from .chart_points import matching

_WITH_VALUES: Final = (
    select(chunks.c.first_sequence)
    .distinct()
    .where(
        mine(chunks),
        chunks.c.series_id.in_(bindparam("numbers", expanding=True)),
        # Rows of older versions did not count, and may have some.
        chunks.c.present != 0,
    )
)
_PROCESSES: Final = select(processes.c.id, processes.c.instance).where(
    processes.c.run_id == bindparam("run_id")
)


def first_generations(
    engine: Engine, run_id: str, names: Sequence[str], kind: str, among: Collection[str] | None = None
) -> dict[str, float]:  # fmt: skip
    """Instance -> generation of its first snapshot of this kind that has one of the series, of those that have any.

    ``names`` may hold ``*``. ``among``: instances; of all processes without.
    """
    with reading(engine) as connection:
        wanted = matching(series_ids(connection, run_id), names)
        rows = connection.execute(_PROCESSES, {"run_id": run_id}).all() if wanted else ()
        found = {
            row.instance: _first(connection, Key(run_id, row.id), wanted, kind)
            for row in rows
            if among is None or row.instance in among
        }
    return {instance: first for instance, first in found.items() if first is not None}


def _first(connection: Connection, key: Key, wanted: Mapping[int, str], kind: str) -> float | None:
    asked = {**key._asdict(), "numbers": list(wanted)}
    there = set(connection.scalars(_WITH_VALUES, asked))
    reach = -1
    found: float | None = None
    for stretch in stretches(connection, key):
        # What came late may lie within one that began before it.
        if found is not None and stretch.first > reach:
            break
        if not stretch.sealed or stretch.first in there:
            one = _within(connection, key, wanted, kind, stretch)
            if one is not None and (found is None or one[0] < reach):
                reach, found = one
    return found


def _within(
    connection: Connection, key: Key, wanted: Mapping[int, str], kind: str, stretch: Stretch
) -> tuple[int, float] | None:
    """Sequence number and generation of the first such snapshot of a stretch."""
    block = read(connection, key, (GENERATION, KIND, *wanted), wanted, [stretch])
    kinds, generation = block.texts(KIND), block.numbers(GENERATION)
    if kind not in kinds.names:
        return None
    rows: Array = kinds.index == kinds.names.index(kind)
    if generation.present is not None:
        rows = rows & generation.present
    some = np.zeros(len(block), dtype=bool)
    for number in wanted:
        present: Any = block.numbers(number).present
        some |= True if present is None else present
    at = np.flatnonzero(rows & some)
    if not len(at):
        return None
    return int(block.numbers(SEQUENCE).values[at[0]]), float(generation.values[at[0]])

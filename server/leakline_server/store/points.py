"""Series as charts read them: at most N points, each with the first, last, smallest and largest of what it stands for.

A peak of one snapshot is visible at every zoom: a point never hides its minimum and maximum. Above CHUNK_RATIO
snapshots a point, sealed chunks are not opened at all: the four numbers in their rows are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from sqlalchemy import Connection, Engine, select

from .codec import Array, Texts
from .columns import (
    GENERATION,
    KIND,
    PHASE,
    SEQUENCE,
    TIME,
    Block,
    Stretch,
    read,
    reading,
    series_ids,
    stretches,
)
from .history import NoSuchRun
from .tables import chunks, processes, runs

Axis = Literal["generation", "time", "sequence"]
AXES: Final[Mapping[Axis, int]] = {"generation": GENERATION, "time": TIME, "sequence": SEQUENCE}
MAX_POINTS: Final = 20_000
MAX_ITEMS: Final = 1_000
CHUNK_RATIO: Final = 256


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """``names`` may hold ``*``. ``phase`` "*": one item for each phase seen. ``start`` and ``stop`` are on the axis."""

    names: tuple[str, ...]
    phase: str | None = None
    kind: str | None = None
    process: str | None = None
    axis: Axis = "generation"
    start: float | None = None
    stop: float | None = None
    points: int = 2_000


def read_series(engine: Engine, run_id: str, query: SeriesQuery) -> dict[str, Any]:
    """{"items": [{name, process, phase, x, first, last, min, max}], "unit", "left_out"}. Raises NoSuchRun.

    ``left_out``: items that matched beyond MAX_ITEMS. Snapshots without a value have no point, and on the generation
    axis neither have those before the first generation.
    """
    with reading(engine) as connection:
        run = connection.execute(select(runs.c.unit).where(runs.c.id == run_id)).first()
        if run is None:
            raise NoSuchRun(run_id)
        wanted = matching(series_ids(connection, run_id), query.names)
        among = select(processes.c.id, processes.c.instance).where(processes.c.run_id == run_id)
        if query.process is not None:
            among = among.where(processes.c.instance == query.process)
        found: list[dict[str, Any]] = []
        for process in connection.execute(among.order_by(processes.c.rank, processes.c.id)).all():
            if wanted:
                found += _items(connection, process.id, process.instance, wanted, query)
    return {
        "items": found[:MAX_ITEMS],
        "unit": run.unit,
        "left_out": max(0, len(found) - MAX_ITEMS),
    }


def matching(numbered: Mapping[str, int], names: Sequence[str]) -> dict[int, str]:
    """Series id -> name, for exact names and names with ``*``; in the order asked for, then by name."""
    found: dict[int, str] = {}
    for name in names:
        if "*" in name:
            pieces = name.split("*")
            found |= {i: n for n, i in sorted(numbered.items()) if _fits(n, pieces)}
        elif name in numbered:
            found[numbered[name]] = name
    return found


def _fits(name: str, pieces: Sequence[str]) -> bool:
    """Whether ``pieces`` with anything between them make ``name``. Linear: a regular expression can take for ever."""
    head, *middle, tail = pieces
    end = len(name) - len(tail)
    if not (name.startswith(head) and name.endswith(tail) and len(head) <= end):
        return False
    at = len(head)
    for piece in middle:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _items(
    connection: Connection,
    process_id: int,
    instance: str,
    wanted: Mapping[int, str],
    query: SeriesQuery,
) -> Iterator[dict[str, Any]]:
    stored = stretches(connection, process_id)
    points = max(1, min(query.points, MAX_POINTS))
    total = sum(stretch.count for stretch in stored)
    plain = (
        query.phase is None and query.kind is None and query.start is None and query.stop is None
    )
    if plain and total > CHUNK_RATIO * points and query.axis != "generation":
        yield from _from_chunk_rows(connection, process_id, instance, wanted, query, stored, points)
        return
    stored = _within(connection, process_id, stored, query)
    columns = (AXES[query.axis], PHASE, KIND, *wanted)
    block = read(connection, process_id, columns, wanted, stored)
    for phase, rows in _by_phase(block, query):
        part = block if rows is None else block.take(rows)
        for number, name in wanted.items():
            yield from _item(part, instance, number, name, phase, query.axis, points)


def _item(
    block: Block, instance: str, number: int, name: str, phase: str | None, axis: Axis, points: int
) -> Iterator[dict[str, Any]]:
    column, x = block.numbers(number), block.numbers(AXES[axis])
    keep = _both(column.present, x.present)
    values = column.values if keep is None else column.values[keep]
    if len(values):
        at = x.values if keep is None else x.values[keep]
        shown = downsample(at, values, values, values, values, points)
        yield {"name": name, "process": instance, "phase": phase, **shown}


def downsample(
    x: Array, first: Array, last: Array, low: Array, high: Array, points: int
) -> dict[str, list[Any]]:
    """Neighbours joined into at most ``points`` points of about equally many entries."""
    if len(x) > points:
        starts = np.linspace(0, len(x), points + 1).astype(np.int64)[:-1]
        ends = np.append(starts[1:], len(x)) - 1
        low, high = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
        x, first, last = x[starts], first[starts], last[ends]
    return {
        "x": x.tolist(),
        "first": first.tolist(),
        "last": last.tolist(),
        "min": low.tolist(),
        "max": high.tolist(),
    }


def _by_phase(block: Block, query: SeriesQuery) -> Iterator[tuple[str | None, Array | None]]:
    rows = _selected(block, query)
    if query.phase is None:
        yield None, rows
        return
    phases = block.texts(PHASE)
    for phase in phases.names if query.phase == "*" else (query.phase,):
        chosen = _equals(phases, phase)
        yield phase, chosen if rows is None else chosen & rows


def _selected(block: Block, query: SeriesQuery) -> Array | None:
    rows: Array | None = None
    if query.kind is not None:
        rows = _equals(block.texts(KIND), query.kind)
    axis = block.numbers(AXES[query.axis])
    if query.start is not None:
        rows = _both(rows, _both(axis.present, axis.values >= query.start))
    if query.stop is not None:
        rows = _both(rows, _both(axis.present, axis.values <= query.stop))
    return rows


def _within(
    connection: Connection, process_id: int, stored: list[Stretch], query: SeriesQuery
) -> list[Stretch]:
    """Without the segments that lie outside the range as a whole."""
    if query.start is None and query.stop is None:
        return stored
    rows = connection.execute(
        select(chunks.c.first_sequence, chunks.c.min, chunks.c.max).where(
            chunks.c.process_id == process_id, chunks.c.series_id == AXES[query.axis]
        )
    )
    outside = {
        first
        for first, low, high in rows
        if low is None
        or (query.stop is not None and low > query.stop)
        or (query.start is not None and high < query.start)
    }
    return [s for s in stored if not s.sealed or s.first not in outside]


def _from_chunk_rows(
    connection: Connection, process_id: int, instance: str, wanted: Mapping[int, str], query: SeriesQuery,
    stored: Sequence[Stretch], points: int,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    axis = AXES[query.axis]
    query_rows = select(
        chunks.c.series_id, chunks.c.first_sequence, chunks.c.first, chunks.c.last, chunks.c.min, chunks.c.max
    ).where(chunks.c.process_id == process_id, chunks.c.series_id.in_((axis, *wanted)))  # fmt: skip
    table: dict[int, dict[int, tuple[float, float, float, float]]] = {}
    for number, sequence, first, last, low, high in connection.execute(query_rows):
        if first is not None:
            table.setdefault(number, {})[sequence] = (first, last, low, high)
    tail = read(
        connection, process_id, (axis, *wanted), wanted, [s for s in stored if not s.sealed]
    )
    at = {sequence: numbers[0] for sequence, numbers in table.get(axis, {}).items()}
    for number, name in wanted.items():
        rows = sorted((at[s], *numbers) for s, numbers in table.get(number, {}).items() if s in at)
        column, x = tail.numbers(number), tail.numbers(axis)
        keep = _both(column.present, x.present)
        end = column.values if keep is None else column.values[keep]
        end_x = x.values if keep is None else x.values[keep]
        parts = np.array(rows, dtype=np.float64).reshape(-1, 5).T
        if not len(rows) and not len(end):
            continue
        x_all, first, last, low, high = (
            np.concatenate([part, more])
            for part, more in zip(parts, (end_x, end, end, end, end), strict=True)
        )
        shown = downsample(x_all, first, last, low, high, points)
        yield {"name": name, "process": instance, "phase": None, **shown}


def _equals(column: Texts, text: str) -> Array:
    if text not in column.names:
        return np.zeros(len(column), dtype=bool)
    same: Array = column.index == column.names.index(text)
    return same


def _both(a: Array | None, b: Array | None) -> Array | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b

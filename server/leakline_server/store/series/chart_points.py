"""Downsampling of series for charts: at most N points, each with the first, last, smallest and largest value.

A point keeps its minimum and maximum, so a peak of one snapshot is visible at every zoom. With up to CHUNK_RATIO
snapshots per point, individual snapshots are read and divided equally among the points. Above that ratio, points are
made from the summaries of chunks (`points_of`), unless a phase or kind is selected. The choice depends only on the
query and the data, so the result is the same whether or not a run is compacted.

With summaries, points begin at multiples of 512 times a power of two in sequence numbers. So the points of a run do not
move while it grows, and are the same whether or not it is compacted.

`first_generations` finds where a series begins on the generation axis, by reading the first snapshots with values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from sqlalchemy import Connection, Engine, Text, bindparam, or_, select

from ...limits import MAX_ITEMS, MAX_POINTS, MAX_PROCESSES_READ, MAX_RUNS_OVERLAID
from ..columns import GENERATION, PHASE, SEQUENCE, TIME, Array, only_used
from ..engine import reading
from ..maintenance.corruption import Damaged
from ..runs.process_list import LIVED
from ..schema import Key, NoSuchRun, chunks, of, processes, runs
from .column_reader import Block, Stored, read, series_ids
from .summaries import (
    FIRST,
    LAST,
    MAX,
    MIN,
    PIECE,
    PRESENT,
    Span,
    Summaries,
    Summarised,
    join,
    of_block,
)

# Lists with an entry for each point, and ``end``: the position at which the last point ends.
Shown = dict[str, Any]


def _width(low: int, high: int, points: int) -> int:
    bits = PIECE.bit_length() - 1
    while (high >> bits) - (low >> bits) >= points:
        bits += 1
    return 1 << bits


def points_of(found: Summaries, number: int, axis: int, width: int) -> Shown:
    """Return one point for each bucket of ``width`` sequence numbers that has values.

    The summaries are in order, and no summary crosses a bucket boundary.
    """
    bucket = found.low // width
    records = found.numbers[number]
    there = np.flatnonzero(records[:, PRESENT])
    mine, records = bucket[there], records[there]
    starts = np.concatenate([[0], np.flatnonzero(np.diff(mine)) + 1])
    ends = np.append(starts[1:], len(mine)) - 1
    # The position of the bucket's first snapshot, even if this series has no value there.
    x = found.numbers[axis][:, FIRST][np.searchsorted(bucket, mine[starts])]
    # The position of the bucket's last snapshot, for the same reason.
    newest = np.searchsorted(bucket, mine[-1:], side="right") - 1
    (end,) = _plain(found.numbers[axis][newest, LAST])
    return {
        "x": _plain(x),
        "end": end,
        "first": _plain(records[:, FIRST][starts]),
        "last": _plain(records[:, LAST][ends]),
        "min": _plain(np.minimum.reduceat(records[:, MIN], starts)),
        "max": _plain(np.maximum.reduceat(records[:, MAX], starts)),
    }


def _plain(values: Array) -> list[Any]:
    """Return the values as a list for JSON, with integers if all values are whole numbers."""
    if len(values) and (np.rint(values) == values).all() and abs(values).max() < 2**53:
        whole: list[Any] = values.astype(np.int64).tolist()
        return whole
    found: list[Any] = values.tolist()
    return found


Axis = Literal["generation", "time", "sequence"]
AXES: Final[Mapping[Axis, int]] = {"generation": GENERATION, "time": TIME, "sequence": SEQUENCE}
CHUNK_RATIO: Final = 256


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """A query for chart points.

    ``names`` may contain ``*``. The ``phase`` "*" returns an item for each phase. ``start`` and ``stop`` are axis
    values.
    """

    names: tuple[str, ...]
    phase: str | None = None
    kind: str | None = None
    process: str | None = None
    axis: Axis = "generation"
    start: float | None = None
    stop: float | None = None
    points: int = 2_000
    # The process instances to include; None for all processes.
    among: frozenset[str] | None = None


def summarise(engine: Engine, run_ids: Sequence[str], query: SeriesQuery) -> dict[str, Any]:
    """Return series of up to MAX_RUNS_OVERLAID runs as chart points:

    {"units": unit by run, "items": [{run, name, process, phase, x, end, first, last, min, max}], "left_out",
    "processes_left_out", "damaged"}. Raises NoSuchRun.

    ``left_out``: the number of matching items beyond MAX_ITEMS. ``processes_left_out``: the number of processes that
    were not read, because MAX_PROCESSES_READ processes had been read and MAX_ITEMS was reached. ``damaged``: the data
    that could not be read, as [{run, process, name, first_sequence, last_sequence}]. Snapshots without a value are
    skipped. On the generation axis, snapshots without a generation are skipped too.
    """
    found = _Found()
    with reading(engine) as connection:
        for run_id in run_ids[:MAX_RUNS_OVERLAID]:
            _read_run(connection, run_id, query, found)
    answer = {name: getattr(found, name) for name in _Found.__slots__}
    return {**answer, "damaged": found.damaged[:MAX_ITEMS]}


# (phase, name, function that makes the points) for each line that has values.
_Lines = Iterator[tuple[str | None, str, Callable[[], Shown]]]


@dataclass(slots=True)
class _Found:
    """The result of `summarise`. Items beyond MAX_ITEMS are counted, but their points are not computed."""

    units: dict[str, str] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0
    processes_left_out: int = 0
    damaged: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.items) >= MAX_ITEMS

    def add(self, run_id: str, instance: str, lines: _Lines) -> None:
        for phase, name, make in lines:
            if self.is_full:
                self.left_out += 1
                continue
            named = {"run": run_id, "name": name, "process": instance, "phase": phase}
            self.items.append({**named, **make()})

    def add_damaged(self, run_id: str, instance: str, what: Sequence[Damaged]) -> None:
        self.damaged += [
            {
                "run": run_id, "process": instance, "name": d.name, "first_sequence": d.first_sequence,
                "last_sequence": d.last_sequence,
            }
            for d in dict.fromkeys(what)
        ]  # fmt: skip


def has_series(engine: Engine, run_id: str, names: Sequence[str]) -> bool:
    """Return True if the run has a series with one of these names, which may contain ``*``."""
    with engine.connect() as connection:
        return bool(matching(series_ids(connection, run_id), names))


def _read_run(connection: Connection, run_id: str, query: SeriesQuery, found: _Found) -> None:
    run = None
    if "\x00" not in run_id:
        run = connection.execute(_RUN, {"run_id": run_id}).first()
    if run is None:
        raise NoSuchRun(run_id)
    found.units[run_id] = str(run.unit)
    wanted = matching(series_ids(connection, run_id), query.names)
    if not wanted:
        return
    asked = {"run_id": run_id, "process": query.process}
    among = [
        (number, instance)
        for number, instance in connection.execute(_PROCESSES, asked).all()
        if query.among is None or instance in query.among
    ]
    for at, (number, instance) in enumerate(among):
        if found.is_full and at >= MAX_PROCESSES_READ:
            found.processes_left_out += len(among) - at
            break
        span = Span(AXES[query.axis], query.start, query.stop)
        summarised = Summarised(read(connection, Key(run_id, number), wanted), span)
        found.add(run_id, instance, _lines(summarised, query))
        found.add_damaged(run_id, instance, summarised.damaged)


def matching(numbered: Mapping[str, int], names: Sequence[str]) -> dict[int, str]:
    """Return the names of the matching series by id, in the order of ``names``.

    The matches of a name with ``*`` are sorted by name.
    """
    found: dict[int, str] = {}
    for name in names:
        if "*" in name:
            pieces = name.split("*")
            found |= {i: n for n, i in sorted(numbered.items()) if _fits(n, pieces)}
        elif name in numbered:
            found[numbered[name]] = name
    return found


def _fits(name: str, pieces: Sequence[str]) -> bool:
    """Return True if ``name`` consists of ``pieces`` with any text between them.

    This takes linear time, while a regular expression with many wildcards can take an extremely long time.
    """
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


def _lines(of: Summarised, query: SeriesQuery) -> _Lines:
    """Yield the lines of a process, with phases in order of first occurrence."""
    points, axis = max(1, min(query.points, MAX_POINTS)), AXES[query.axis]
    most, filters = CHUNK_RATIO * points, () if query.phase is None else (PHASE,)
    if len(of.stored) > most:
        filtered = query.phase is not None or query.kind is not None
        # The stored ranges may extend beyond the queried range.
        ends = of.stored.stretches[0].first, max(stretch.last for stretch in of.stored.stretches)
        width = _width(*ends, points)
        found = of.summaries(width, of.axis if filtered else of.numbers)
        if found.snapshots > most:
            narrower = min(width, _width(int(found.low[0]), int(found.high.max()), points))
            parts: dict[str | None, Summaries] = {None: found}
            if filtered:
                parts = _of_phases(of, query, filters, narrower)
            elif narrower < width:
                parts = {None: of.summaries(narrower, of.numbers)}
            for phase, joined in parts.items():
                for number, name in of.stored.names.items():
                    if joined.numbers[number][:, PRESENT].any():
                        yield phase, name, partial(points_of, joined, number, axis, narrower)
            return
    for phase, part in _by_phase(of, of.read(filters, query.kind), query):
        for number, name in of.stored.names.items():
            column, x = part.numbers(number), part.numbers(axis).values
            values = column.values
            if column.present is not None:
                x, values = x[column.present], values[column.present]
            if len(values):
                yield phase, name, partial(downsample, x, values, points)


def _of_phases(
    of: Summarised, query: SeriesQuery, filters: Sequence[int], width: int
) -> dict[str | None, Summaries]:
    parts: dict[str | None, list[Summaries]] = {}
    for block in of.blocks(filters, query.kind):
        for phase, part in _by_phase(of, block, query):
            if len(part):
                parts.setdefault(phase, []).append(of_block(part, of.numbers, width))
    in_order = sorted(parts.items(), key=lambda item: int(item[1][0].low[0]))
    return {phase: join(made, of.numbers) for phase, made in in_order}


def downsample(x: Array, values: Array, points: int) -> Shown:
    """Return at most ``points`` points. Each point covers about the same number of consecutive values."""
    first = last = low = high = values
    end = x[-1].item()
    if len(x) > points:
        starts = np.linspace(0, len(x), points + 1).astype(np.int64)[:-1]
        ends = np.append(starts[1:], len(x)) - 1
        low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        x, first, last = x[starts], values[starts], values[ends]
    shown = {"x": x, "first": first, "last": last, "min": low, "max": high}
    return {name: column.tolist() for name, column in shown.items()} | {"end": end}


def _by_phase(
    of: Summarised, block: Block, query: SeriesQuery
) -> Iterator[tuple[str | None, Block]]:
    # Drop the columns that were only needed for filtering, so that `take` does not copy them.
    shown = Block({number: block.columns[number] for number in of.numbers})
    if query.phase is None:
        yield None, shown
        return
    # Use only the phases that occur in these rows, in order of occurrence, because compaction changes which other
    # phases the stored chunks list.
    phases = only_used(block.texts(PHASE))
    for phase in phases.names if query.phase == "*" else (query.phase,):
        yield phase, shown.take(phases.equal(phase))


_RUN: Final = select(runs.c.unit).where(runs.c.id == bindparam("run_id"))
_PROCESSES: Final = (
    select(processes.c.id, processes.c.instance)
    .where(
        processes.c.run_id == bindparam("run_id"),
        or_(
            bindparam("process", type_=Text).is_(None), processes.c.instance == bindparam("process")
        ),
    )
    .order_by(*LIVED)
)


def first_generations(
    engine: Engine, run_id: str, names: Sequence[str], kind: str, among: Collection[str] | None = None
) -> dict[str, float]:  # fmt: skip
    """Return the first generation with a value in any of these series, by process instance.

    Only snapshots of this kind count, and processes without such snapshots are left out. ``names`` may contain ``*``.
    ``among`` limits the result to these process instances.
    """
    with reading(engine) as connection:
        wanted = matching(series_ids(connection, run_id), names)
        asked = {"run_id": run_id, "process": None}
        rows = connection.execute(_PROCESSES, asked).all() if wanted else ()
        found = {
            instance: _first(read(connection, Key(run_id, number), wanted), kind)
            for number, instance in rows
            if among is None or instance in among
        }
    return {instance: first for instance, first in found.items() if first is not None}


def _first(stored: Stored, kind: str) -> float | None:
    c = chunks.c
    # Rows of older versions have -1 instead of a count and may contain values.
    with_values = select(c.first_sequence).where(
        of(chunks, stored.key), c.series_id.in_(stored.names), c.present != 0
    )
    there = set(stored.connection.scalars(with_values))
    among = stored.among(s for s in stored.stretches if not s.sealed or s.first in there)
    for block in among.blocks((GENERATION, *stored.names), 1, kind):
        generation, some = block.numbers(GENERATION), np.zeros(len(block), dtype=bool)
        for number in stored.names:
            present: Any = block.numbers(number).present
            some |= True if present is None else present
        rows = np.flatnonzero(some if generation.present is None else some & generation.present)
        if len(rows):
            return float(generation.values[rows[0]])
    return None

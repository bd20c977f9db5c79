"""Series as charts read them: at most N points, each with the first, last, smallest and largest of what it stands for.

A peak of one snapshot is visible at every zoom: a point never hides its minimum and maximum. Up to CHUNK_RATIO
snapshots a point, snapshots are read one by one and joined to points of equally many; above it, chunks are not opened
(`points_of`), but where a phase or kind is chosen. Which of the two depends on what is asked for and on nothing
else, so whether a run is compacted makes no difference to any answer.

Where a point begins depends on the sequence numbers alone, multiples of 512 times a power of two. So the points of
a run stay where they are while it grows, and are the same whether it is compacted or not.

Where a series begins on the axis of generations is found in the first snapshots that have it, whatever follows.
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

Shown = dict[str, list[Any]]


def _width(low: int, high: int, points: int) -> int:
    bits = PIECE.bit_length() - 1
    while (high >> bits) - (low >> bits) >= points:
        bits += 1
    return 1 << bits


def points_of(found: Summaries, number: int, axis: int, width: int) -> Shown:
    """Return a point for each multiple of ``width`` with values, of summaries in order, of which none is across one."""
    bucket = found.low // width
    records = found.numbers[number]
    there = np.flatnonzero(records[:, PRESENT])
    mine, records = bucket[there], records[there]
    starts = np.concatenate([[0], np.flatnonzero(np.diff(mine)) + 1])
    ends = np.append(starts[1:], len(mine)) - 1
    # The first of the multiple, whether this series has a value there or not.
    x = found.numbers[axis][:, FIRST][np.searchsorted(bucket, mine[starts])]
    return {
        "x": _plain(x),
        "first": _plain(records[:, FIRST][starts]),
        "last": _plain(records[:, LAST][ends]),
        "min": _plain(np.minimum.reduceat(records[:, MIN], starts)),
        "max": _plain(np.maximum.reduceat(records[:, MAX], starts)),
    }


def _plain(values: Array) -> list[Any]:
    """For JSON: whole numbers as such."""
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
    """``names`` may hold ``*``. ``phase`` "*": one item for each phase seen. ``start`` and ``stop`` are on the axis."""

    names: tuple[str, ...]
    phase: str | None = None
    kind: str | None = None
    process: str | None = None
    axis: Axis = "generation"
    start: float | None = None
    stop: float | None = None
    points: int = 2_000
    # Instances; all processes without.
    among: frozenset[str] | None = None


def summarise(engine: Engine, run_ids: Sequence[str], query: SeriesQuery) -> dict[str, Any]:
    """Return series of up to MAX_RUNS_OVERLAID runs as points for charts:

    {"units": unit by run, "items": [{run, name, process, phase, x, first, last, min, max}], "left_out",
    "processes_left_out", "damaged"}. Raises NoSuchRun.

    ``left_out``: items that matched beyond MAX_ITEMS. ``processes_left_out``: of so many more than MAX_PROCESSES_READ,
    none is read once there is no room. ``damaged``: [{run, process, name, first_sequence, last_sequence}] of
    what is missing because it could not be read. Snapshots without a value have no point, and on the generation
    axis neither have those before the first generation.
    """
    found = _Found()
    with reading(engine) as connection:
        for run_id in run_ids[:MAX_RUNS_OVERLAID]:
            _read_run(connection, run_id, query, found)
    answer = {name: getattr(found, name) for name in _Found.__slots__}
    return {**answer, "damaged": found.damaged[:MAX_ITEMS]}


# (phase, name, makes the points), of what has some.
_Lines = Iterator[tuple[str | None, str, Callable[[], Shown]]]


@dataclass(slots=True)
class _Found:
    """The answer. Of what is more than MAX_ITEMS, no points are made, and it is only counted."""

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
    """Whether anything was ever stored of a run under one of these names; a name may hold ``*``."""
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


def _lines(of: Summarised, query: SeriesQuery) -> _Lines:
    """Yield the lines of a process, the phase that came first before others."""
    points, axis = max(1, min(query.points, MAX_POINTS)), AXES[query.axis]
    most, filters = CHUNK_RATIO * points, () if query.phase is None else (PHASE,)
    if len(of.stored) > most:
        filtered = query.phase is not None or query.kind is not None
        # The stretches may reach further than what is asked for.
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
    """Join neighbours into at most ``points`` points of about equally many values."""
    first = last = low = high = values
    if len(x) > points:
        starts = np.linspace(0, len(x), points + 1).astype(np.int64)[:-1]
        ends = np.append(starts[1:], len(x)) - 1
        low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        x, first, last = x[starts], values[starts], values[ends]
    shown = {"x": x, "first": first, "last": last, "min": low, "max": high}
    return {name: column.tolist() for name, column in shown.items()}


def _by_phase(
    of: Summarised, block: Block, query: SeriesQuery
) -> Iterator[tuple[str | None, Block]]:
    # What was only needed to choose by is not picked from.
    shown = Block({number: block.columns[number] for number in of.numbers})
    if query.phase is None:
        yield None, shown
        return
    # Of the rows alone, in their order: which others their stretches have changes with compaction.
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
    """Return by instance the generation of its first snapshot of this kind that has one of the series, if there is any.

    ``names`` may hold ``*``. ``among``: instances; of all processes without.
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
    # Rows of older versions did not count, and may have some.
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

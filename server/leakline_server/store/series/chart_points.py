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

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from sqlalchemy import Connection, Engine, Text, bindparam, or_, select

from ...limits import MAX_ITEMS, MAX_POINTS, MAX_PROCESSES_READ, MAX_RUNS_OVERLAID
from ..maintenance.corruption import Damaged
from ..runs.run_history import NoSuchRun
from ..runs.runs import LIVED
from ..schema import chunks, processes, runs
from .chunk_codec import Array
from .column_reader import (
    GENERATION,
    KIND,
    PHASE,
    SEQUENCE,
    TIME,
    Block,
    Key,
    Stretch,
    mine,
    read,
    reading,
    series_ids,
    stretches,
)
from .summary_tree import (
    FIRST,
    LAST,
    MAX,
    MIN,
    PIECE,
    PRESENT,
    Nodes,
    Span,
    Stored,
    of_block,
    together,
)

Shown = dict[str, list[Any]]


def _bucketed(
    stored: Stored, names: Mapping[int, str], span: Span, points: int, most: int
) -> Iterator[tuple[int, Shown]] | None:
    """At most ``points`` points of each series that has some, each series made when it is asked for.

    None when at most ``most`` snapshots are asked for, or none.
    """
    width = _width(*stored.ends(), points)
    nodes = stored.nodes(width)
    if int(nodes.count.sum()) <= most:
        return None
    narrower = _narrower(nodes, width, points)
    if narrower < width:
        nodes = stored.nodes(narrower)
    return _of_series(nodes, names, span.axis, narrower)


def _bucket_width(stored: Stored, points: int, most: int) -> int | None:
    """Of how many sequence numbers each of at most ``points`` points is; None as `_bucketed`."""
    width = _width(*stored.ends(), points)
    nodes = stored.nodes(width, axis_alone=True)
    if int(nodes.count.sum()) <= most:
        return None
    return _narrower(nodes, width, points)


def _narrower(nodes: Nodes, width: int, points: int) -> int:
    """The stretches reach further than what is asked for."""
    return min(width, _width(int(nodes.low[0]), int(nodes.high.max()), points))


def _of_series(
    nodes: Nodes, names: Collection[int], axis: int, width: int
) -> Iterator[tuple[int, Shown]]:
    for number in names:
        shown = points_of(nodes, number, axis, width)
        if shown["x"]:
            yield number, shown


def _width(low: int, high: int, points: int) -> int:
    bits = PIECE.bit_length() - 1
    while (high >> bits) - (low >> bits) >= points:
        bits += 1
    return 1 << bits


def points_of(nodes: Nodes, number: int, axis: int, width: int) -> Shown:
    """Of nodes in order, none of them across a multiple of ``width``."""
    bucket = nodes.low // width
    records = nodes.numbers[number]
    there = np.flatnonzero(records[:, PRESENT])
    if not len(there):
        return {name: [] for name in ("x", "first", "last", "min", "max")}
    mine, records = bucket[there], records[there]
    starts = np.concatenate([[0], np.flatnonzero(np.diff(mine)) + 1])
    ends = np.append(starts[1:], len(mine)) - 1
    # The first of the bucket, whether this series has a value there or not.
    x = nodes.numbers[axis][:, FIRST][np.searchsorted(bucket, mine[starts])]
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


def read_series(engine: Engine, run_id: str, query: SeriesQuery) -> dict[str, Any]:
    """{"items": [{name, process, phase, x, first, last, min, max}], "unit", "left_out", "processes_left_out",
    "damaged"}. Raises NoSuchRun.

    ``left_out``: items that matched beyond MAX_ITEMS. ``processes_left_out``: of so many more than MAX_PROCESSES_READ,
    none is read once there is no room. ``damaged``: [{process, name, first_sequence, last_sequence}] of
    what is missing because it could not be read. Snapshots without a value have no point, and on the generation
    axis neither have those before the first generation.
    """
    with reading(engine) as connection:
        found = _Found(MAX_ITEMS)
        unit = _read_run(connection, run_id, query, found)
    return {"unit": unit, **found.answer()}


def overlay(engine: Engine, run_ids: Sequence[str], query: SeriesQuery) -> dict[str, Any]:
    """The same of up to MAX_RUNS_OVERLAID runs, each item and damage with its ``run``, and "units" by run.

    Raises NoSuchRun.
    """
    found = _Found(MAX_ITEMS)
    units: dict[str, str] = {}
    with reading(engine) as connection:
        for run_id in run_ids[:MAX_RUNS_OVERLAID]:
            of_run = _Found(MAX_ITEMS - len(found.items))
            units[run_id] = _read_run(connection, run_id, query, of_run)
            found.left_out += of_run.left_out
            found.processes_left_out += of_run.processes_left_out
            found.items += [{"run": run_id, **item} for item in of_run.items]
            found.damaged += [{"run": run_id, **damaged} for damaged in of_run.damaged]
    return {"units": units, **found.answer()}


@dataclass(slots=True)
class _Found:
    """``room``: for so many items. Of what is more, none is made, and it is only counted."""

    room: int
    left_out: int = 0
    processes_left_out: int = 0
    items: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.items) >= self.room

    def answer(self) -> dict[str, Any]:
        return {
            "items": self.items,
            "left_out": self.left_out,
            "processes_left_out": self.processes_left_out,
            "damaged": self.damaged[:MAX_ITEMS],
        }

    def add(self, instance: str, made: Iterable[tuple[str | None, str, Shown]]) -> None:
        """(phase, name, points) of each."""
        for phase, name, of_one in made:
            if self.is_full:
                self.left_out += 1
                continue
            named = {"name": name, "process": instance, "phase": phase}
            self.items.append({**named, **of_one})

    def add_damaged(self, instance: str, what: Sequence[Damaged]) -> None:
        self.damaged += [
            {
                "process": instance, "name": d.name, "first_sequence": d.first_sequence,
                "last_sequence": d.last_sequence,
            }
            for d in dict.fromkeys(what)
        ]  # fmt: skip


def has_series(engine: Engine, run_id: str, names: Sequence[str]) -> bool:
    """Whether anything was ever stored of a run under one of these names; a name may hold ``*``."""
    with engine.connect() as connection:
        return bool(matching(series_ids(connection, run_id), names))


def _read_run(connection: Connection, run_id: str, query: SeriesQuery, found: _Found) -> str:
    """Add what is found to ``found``; returns the unit of the run."""
    run = None
    if "\x00" not in run_id:
        run = connection.execute(_RUN, {"run_id": run_id}).first()
    if run is None:
        raise NoSuchRun(run_id)
    wanted = matching(series_ids(connection, run_id), query.names)
    if wanted:
        asked = {"run_id": run_id, "process": query.process}
        among = [
            (number, instance)
            for number, instance in connection.execute(_PROCESSES, asked).all()
            if query.among is None or instance in query.among
        ]
        for at, (number, instance) in enumerate(among):
            if found.is_full and at >= MAX_PROCESSES_READ:
                found.processes_left_out = len(among) - at
                break
            _read_process(connection, Key(run_id, number), instance, wanted, query, found)
    return str(run.unit)


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


def _read_process(
    connection: Connection,
    key: Key,
    instance: str,
    wanted: Mapping[int, str],
    query: SeriesQuery,
    found: _Found,
) -> None:
    span = Span(AXES[query.axis], query.start, query.stop)
    points = max(1, min(query.points, MAX_POINTS))
    filters = () if query.phase is None else (PHASE,)
    stored = Stored(connection, key, wanted, span)
    most = CHUNK_RATIO * points
    if stored.count() > most:
        if query.phase is None and query.kind is None:
            buckets_of = _bucketed(stored, wanted, span, points, most)
            if buckets_of is not None:
                found.add(instance, ((None, wanted[n], of_one) for n, of_one in buckets_of))
                found.add_damaged(instance, stored.damaged)
                return
        elif (width := _bucket_width(stored, points, most)) is not None:
            chosen = _bucketed_by_phase(stored, wanted, query, filters, width)
            found.add(instance, chosen)
            found.add_damaged(instance, stored.damaged)
            return
    columns = (span.axis, *filters, *wanted)
    block = read(connection, key, columns, wanted, stored.stretches(), kind=query.kind)
    found.add_damaged(instance, block.damaged)
    # What was only needed to choose by is not picked from.
    shown = Block({number: block.columns[number] for number in (span.axis, *wanted)})
    for phase, rows in _by_phase(block, query):
        part = shown if rows is None else shown.take(rows)
        for number, name in wanted.items():
            column, x = part.numbers(number), part.numbers(span.axis)
            keep = _both(column.present, x.present)
            values = column.values if keep is None else column.values[keep]
            if not len(values):
                continue
            if found.is_full:
                found.left_out += 1
                continue
            at = x.values if keep is None else x.values[keep]
            of_points = downsample(at, values, values, values, values, points)
            named = {"name": name, "process": instance, "phase": phase}
            found.items.append({**named, **of_points})


def _bucketed_by_phase(
    stored: Stored,
    wanted: Mapping[int, str],
    query: SeriesQuery,
    filters: Sequence[int],
    width: int,
) -> Iterator[tuple[str | None, str, Shown]]:
    """Yield (phase, name, points), the phase that came first before others."""
    parts: dict[str | None, list[Nodes]] = {}
    for block in stored.blocks(filters, query.kind):
        shown = Block({number: block.columns[number] for number in stored.numbers})
        for phase, rows in _by_phase(block, query):
            part = shown if rows is None else shown.take(rows)
            if len(part):
                nodes = of_block(part, stored.numbers, width)
                parts.setdefault(phase, []).append(nodes)
    for phase, made in sorted(parts.items(), key=lambda item: int(item[1][0].low[0])):
        nodes = together(made, stored.numbers)
        for number, name in wanted.items():
            of_one = points_of(nodes, number, AXES[query.axis], width)
            if of_one["x"]:
                yield phase, name, of_one


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
        chosen = phases.equal(phase)
        yield phase, chosen if rows is None else chosen & rows


def _selected(block: Block, query: SeriesQuery) -> Array | None:
    rows: Array | None = None
    axis = block.numbers(AXES[query.axis])
    if query.start is not None:
        rows = _both(rows, _both(axis.present, axis.values >= query.start))
    if query.stop is not None:
        rows = _both(rows, _both(axis.present, axis.values <= query.stop))
    return rows


def _both(a: Array | None, b: Array | None) -> Array | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b


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
_PROCESSES_OF_RUN: Final = select(processes.c.id, processes.c.instance).where(
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
        rows = connection.execute(_PROCESSES_OF_RUN, {"run_id": run_id}).all() if wanted else ()
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

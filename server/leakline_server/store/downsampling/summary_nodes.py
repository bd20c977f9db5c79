"""Nodes: stretches of snapshots with their numbers, as charts of long runs are made of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..series.chunk_codec import Array
from ..series.column_reader import SEQUENCE, Block, Stretch
from .summary_records import FIRST, LAST, MAX, MIN, NUMBERS, PRESENT, concatenate, nothing, summed


@dataclass(frozen=True, slots=True)
class Span:
    """What is asked for: on the axis of this column, both ends included."""

    axis: int
    start: float | None = None
    stop: float | None = None

    @property
    def whole(self) -> bool:
        return self.start is None and self.stop is None

    def holds(self, values: Array) -> Array:
        held = np.ones(len(values), dtype=bool)
        if self.start is not None:
            held &= values >= self.start
        if self.stop is not None:
            held &= values <= self.stop
        return held


@dataclass(frozen=True, slots=True)
class Nodes:
    """Stretches of snapshots: ``count`` of them from sequence number ``low`` to ``high``, and records by column."""

    low: Array
    high: Array
    count: Array
    numbers: Mapping[int, Array]

    def __len__(self) -> int:
        return len(self.low)

    def take(self, rows: Array) -> Nodes:
        """Where a mask is true, or at the positions given."""
        if rows.dtype == bool and rows.all():
            return self
        numbers = {number: records[rows] for number, records in self.numbers.items()}
        return Nodes(self.low[rows], self.high[rows], self.count[rows], numbers)

    def in_order(self) -> Nodes:
        if bool((np.diff(self.low) >= 0).all()):
            return self
        return self.take(np.argsort(self.low, kind="stable"))

    def outside(self, span: Span) -> Array:
        """Where nothing is asked for. On an axis that some entries are not on, as without a generation."""
        on = self.numbers[span.axis]
        found: Array = on[:, PRESENT] == 0
        if span.start is not None:
            found = found | (on[:, MAX] < span.start)
        if span.stop is not None:
            found = found | (on[:, MIN] > span.stop)
        return found

    def inside(self, span: Span) -> Array:
        """Where all of it is asked for."""
        on = self.numbers[span.axis]
        found: Array = on[:, PRESENT] == self.count
        return found & span.holds(on[:, MIN]) & span.holds(on[:, MAX])


def of_entries(block: Block, number: int) -> Array:
    column = block.numbers(number)
    found = np.repeat(column.values[:, None], NUMBERS, axis=1).astype(np.float64)
    found[:, PRESENT] = 1 if column.present is None else column.present
    return found


def of_block(block: Block, numbers: Collection[int], width: int) -> Nodes:
    """Return a node for each multiple of ``width`` that has some of these snapshots, which are in order."""
    sequence = block.numbers(SEQUENCE).values
    starts = np.flatnonzero(np.diff(sequence // width, prepend=-1))
    records = [summed(block.numbers(number), starts) for number in numbers]
    return of_records([records], numbers)


def of_records(parts: Sequence[Sequence[Array]], numbers: Collection[int]) -> Nodes:
    """Of the records of these columns, SEQUENCE first, by stretch."""
    columns = [nothing(0)] * len(numbers)
    if parts:
        columns = [concatenate(of_column) for of_column in zip(*parts, strict=True)]
    low, high, count = columns[0][:, (FIRST, LAST, PRESENT)].astype(np.int64).T
    return Nodes(low, high, count, dict(zip(numbers, columns, strict=True)))


def together(parts: Sequence[Nodes], numbers: Collection[int]) -> Nodes:
    """Of parts with the records of these columns, and maybe of more."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    low, high, count = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("low", "high", "count")
    )
    joined = {number: concatenate([part.numbers[number] for part in parts]) for number in numbers}
    return Nodes(low, high, count, joined)


def parted(stretches: Sequence[Stretch]) -> tuple[list[Stretch], list[Stretch]]:
    """Compacted segments that lie apart from everything else, and the rest."""
    ordered = sorted(stretches, key=lambda s: s.first)
    apart: list[Stretch] = []
    mixed: list[Stretch] = []
    reach = -1
    for at, stretch in enumerate(ordered):
        before = stretch.first <= reach
        after = at + 1 < len(ordered) and ordered[at + 1].first <= stretch.last
        reach = max(reach, stretch.last)
        (mixed if before or after or stretch.level == 0 else apart).append(stretch)
    return apart, mixed

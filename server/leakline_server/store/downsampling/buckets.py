"""Many snapshots as few points: each stands for the snapshots of as many sequence numbers.

Where a point begins is a matter of the sequence numbers alone, multiples of 512 times a power of two. So the points of
a run stay where they are while it grows, and are the same whether it is compacted or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from ..series.chunk_codec import Array
from .summary_nodes import Nodes, Span
from .summary_records import FIRST, LAST, MAX, MIN, PIECE, PRESENT
from .summary_tree import Stored

Shown = dict[str, list[Any]]


def bucketed(
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


def bucket_width(stored: Stored, points: int, most: int) -> int | None:
    """Of how many sequence numbers each of at most ``points`` points is; None as `bucketed`."""
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

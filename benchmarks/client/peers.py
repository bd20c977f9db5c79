"""Cost of heap scans of other tools, called as their users call them, and whether they count arrays."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .looks import Look

Found = Callable[[Any], int]


def peers() -> Iterator[tuple[Look, Found]]:
    """Yield each peer with a function that counts the arrays in its result; missing peers have no scan."""
    yield from _by_type_check()
    yield from _objgraph()
    yield from _guppy()
    yield from _pympler()


def _by_type_check() -> Iterator[tuple[Look, Found]]:
    """Yield a hand-written profiler: for each watched type, all objects that are instances of it."""
    watched = _watched()

    def profile() -> dict[str, int]:
        return {
            kind.__name__: len([o for o in gc.get_objects() if isinstance(o, kind)])
            for kind in watched
        }

    name = f"isinstance over all objects, {len(watched)} types"
    yield Look(name, profile), lambda counts: counts.get("ndarray", 0)


def _watched() -> tuple[type, ...]:
    import numpy as np

    from .heaps import Kept, Registry, Suspect

    if find_spec("torch") is None:
        return (dict, list, set, np.ndarray, Kept, Registry, Suspect)
    import torch

    return (dict, list, np.ndarray, torch.Tensor, torch.nn.Module, torch.optim.Optimizer, Suspect)


def _objgraph() -> Iterator[tuple[Look, Found]]:
    names = ("objgraph typestats", "objgraph growth")
    if find_spec("objgraph") is None:
        yield from _absent(names)
        return
    objgraph: Any = import_module("objgraph")

    yield Look(names[0], objgraph.typestats), lambda counts: counts.get("ndarray", 0)
    peaks: dict[str, int] = {}

    def growth() -> list[tuple[str, int, int]]:
        return list(objgraph.growth(limit=100_000, peak_stats=peaks))

    yield Look(names[1], growth), lambda rows: peaks.get("ndarray", 0)


def _guppy() -> Iterator[tuple[Look, Found]]:
    names = ("guppy3 heap()",)
    if find_spec("guppy") is None:
        yield from _absent(names)
        return
    guppy: Any = import_module("guppy")
    session = guppy.hpy()
    yield Look(names[0], session.heap), _arrays_in_guppy


def _arrays_in_guppy(heap: Any) -> int:
    import numpy as np

    for row in heap.bytype.parts:
        if row.kind.arg is np.ndarray:
            return int(row.count)
    return 0


def _pympler() -> Iterator[tuple[Look, Found]]:
    names = ("Pympler summarize(get_objects())",)
    if find_spec("pympler") is None:
        yield from _absent(names)
        return
    muppy: Any = import_module("pympler.muppy")
    summary: Any = import_module("pympler.summary")
    yield Look(names[0], lambda: summary.summarize(muppy.get_objects())), _arrays_in_pympler


def _arrays_in_pympler(rows: list[Any]) -> int:
    return sum(int(row[1]) for row in rows if "ndarray" in str(row[0]))


def _absent(names: tuple[str, ...]) -> Iterator[tuple[Look, Found]]:
    for name in names:
        yield Look(name, None, why="not installed: make bench-peers"), lambda answer: 0

"""The native census, in one piece and in slices, compared with the one in Python and taken while a program runs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.probes.heaps import Hostile, arrays, arrays_of, census, count_of, touched
from torch import nn

from leakline.probes.heap import native_census
from leakline.probes.heap.census import SlicedCensus, look_at_tensors, take_census
from leakline.probes.heap.census_result import SlicedResult
from leakline.probes.heap.native_census import NativeCensus, array_layout
from leakline.probes.native_module import native, why_not_native
from leakline.probes.references.class_names import type_name

if native() is None:
    pytest.skip(f"no native module: {why_not_native()}", allow_module_level=True)

# With this budget a slice ends at the first clock check, after 64 objects.
SHORTEST = 1e-9


class Agent:
    def __init__(self, number: int = 0) -> None:
        self.number, self.memory = number, [number]


class Slotted:
    __slots__ = ("held",)

    held: Any


class Planted:
    pass


def _references(objects: list[Any]) -> list[int]:
    return [sys.getrefcount(objects[i]) for i in range(len(objects))]


# -- in one piece


def test_nested_object_arrays_are_counted_at_any_depth() -> None:
    def made() -> Any:
        inner: Any = np.zeros(10)
        for _ in range(2_000):
            outer = np.empty(1, dtype=object)
            outer[0] = inner
            inner = outer
        wide = np.empty(1_000, dtype=object)
        for i in range(1_000):
            wide[i] = np.array([np.zeros(1), None], dtype=object)
        return [inner, wide]

    assert arrays_of(made)[0] == 2_001 + 1 + 2_000


def _remembering(most: int) -> tuple[int, float]:
    """Return tuples and coverage of a census that may remember ``most`` bytes."""
    module: Any = native()
    work = module.Census(
        roles={}, picks={}, not_entered=(), elsewhere=(), array_layout=0, floor=1 << 62,
        in_slices=False, seen_bytes=most,
    )  # fmt: skip
    work.run(-1, [])
    counts = {address: count for address, count, _ in work.rows()}
    return counts[id(tuple)], work.facts()["coverage"]


def test_with_little_memory_the_census_estimates_and_says_so() -> None:
    # Their addresses do not fit into one block of the census's memory.
    shared = [(float(i), bytes(10)) for i in range(200_000)]
    gc.collect()
    kept: list[Any] = [shared, list(shared)]
    whole, little = _remembering(16 << 20), _remembering(1 << 15)
    assert whole[1] == 1.0
    assert 0 < little[1] < 1
    assert little[0] == pytest.approx(whole[0], rel=0.25)
    # Nested tuples that it cannot remember do not keep it running forever.
    nested: Any = (1.5,)
    for _ in range(200):
        nested = (nested, nested)
    kept.append([nested])
    assert _remembering(1 << 16)[1] < 1


def test_a_deadline_gives_a_part_and_its_coverage() -> None:
    kept = [[i] for i in range(300_000)]
    whole, part = census(), take_census(0.0005)
    assert whole.is_exact and not part.is_exact
    assert 0 < part.coverage < 1
    assert "arrays.bytes" not in part.samples()
    assert kept


def test_reference_counts_are_unchanged_after_a_census() -> None:
    agent, array, big = Agent(), np.zeros(2 << 20, np.uint8), [None] * (1 << 19)
    watched = [agent, array, big, Agent, Slotted, torch.Tensor, np.ndarray, list, type]
    before = _references(watched)
    result = take_census(on_instances=lambda instances: None)
    assert result.counts[Agent] == 1
    # Only its counts remain, which refer to classes.
    assert sys.getrefcount(Agent) == before[3] + 1
    del result
    assert _references(watched) == before


def test_tensors_are_counted_alone_as_in_the_census() -> None:
    kept = [torch.zeros(100) for _ in range(30)]
    told, whole = look_at_tensors(), census()
    assert whole.tensors is not None
    assert told["tensors.count"] == whole.tensors.count
    assert told["tensors.bytes"] == whole.tensors.bytes
    assert told["type.torch.Tensor.count"] == whole.counts[torch.Tensor]
    assert len(kept) == 30


def test_an_unknown_numpy_layout_is_measured_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [np.zeros(1000), np.zeros((10, 10))[2:5]]
    hidden = np.empty(20, dtype=object)
    for i in range(20):
        hidden[i] = np.zeros(100)
    known = arrays()
    monkeypatch.setattr(native_census, "array_layout", lambda: 0)
    monkeypatch.setattr("leakline.probes.heap.census.array_layout", lambda: 0)
    measured = census()
    assert array_layout() in (1, 2)
    assert measured.arrays is not None
    assert (measured.arrays.count, measured.arrays.bytes) == (known.count, known.bytes)
    assert measured.counts[np.ndarray] == known.count
    assert len(kept) + len(hidden) == 22


def test_a_setting_disables_the_native_module() -> None:
    code = (
        "from leakline.probes.native_module import native, why_not_native\n"
        "print(native(), why_not_native())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LEAKLINE_NATIVE": "0"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "None LEAKLINE_NATIVE=0 disables the native module"


# -- in slices: objects that live throughout are counted once, whatever the program does meanwhile


def sliced(
    between: Callable[[], object] = lambda: None, seconds: float = 0.002, every: int = 1
) -> SlicedResult:
    work = SlicedCensus()
    steps = 0
    while not work.step(seconds):
        steps += 1
        if steps % every == 0:
            between()
    return work.result()


def named(result: SlicedResult, kind: type) -> int:
    return result.names.get(type_name(kind), 0)


@pytest.fixture
def heap() -> Iterator[list[object]]:
    kept: list[object] = [
        (Agent(i), {"key": [i]}, {i}, (i, float(i)), np.zeros(4)) for i in range(20_000)
    ]
    gc.collect()
    yield kept
    kept.clear()


def test_an_idle_heap_is_counted_in_slices_as_in_one_piece(
    heap: list[object], tmp_path: Path
) -> None:
    mapped = np.memmap(tmp_path / "data.bin", np.float32, "w+", shape=(1000, 500))
    large = np.zeros((3000, 1000), np.float32), bytes(11 << 20), [None] * (4 << 20)
    shared = torch.from_numpy(large[0]), torch.zeros(1000, 100), mapped[10:20]
    views = [shared[1][i] for i in range(50)]
    losses = [nn.Linear(8, 32)(torch.randn(16, 8)).relu().mean() for _ in range(10)]
    gc.disable()
    try:
        whole = take_census()
        parts = sliced(seconds=SHORTEST)
    finally:
        gc.enable()
    assert parts.is_whole and parts.is_exact and parts.mode == "sliced"
    for cls in (dict, set, tuple, list, np.ndarray, float):
        assert abs(named(parts, cls) - count_of(whole, cls)) <= 64, cls
    assert named(parts, Agent) == len(heap)
    assert parts.arrays is not None and whole.arrays is not None
    assert parts.arrays.bytes == whole.arrays.bytes
    assert parts.arrays.mapped_bytes == whole.arrays.mapped_bytes >= 2_000_000
    assert parts.tensors is not None and whole.tensors is not None
    assert parts.tensors.count == whole.tensors.count
    assert parts.tensors.bytes == whole.tensors.bytes
    assert parts.tensors.graph_bytes == whole.tensors.graph_bytes > 0
    assert set(parts.large_objects(7)) == set(whole.large_objects(7))
    sizes = {name: size for name, _, size in parts.rows}
    known = dict(zip(map(type_name, whole.counts), whole.type_bytes, strict=True))
    for name in ("dict", "set", "tuple", "list"):
        assert sizes[name] == pytest.approx(known[name], rel=0.01)
    assert len(views) == 50 and len(losses) == 10


@pytest.mark.long
@pytest.mark.parametrize("generation", [0, 1, 2])
def test_objects_moved_by_a_collection_count_once(heap: list[object], generation: int) -> None:
    planted = [Planted() for _ in range(5_000)]
    # Rarely enough for the walk to end: a full collection reorders the lists.
    every = 700 if generation < 2 else 4_000
    result = sliced(lambda: gc.collect(generation), seconds=SHORTEST, every=every)
    assert result.collections > 0
    assert result.is_whole or generation == 2
    assert named(result, Planted) == len(planted)
    assert named(result, Agent) == len(heap)


@pytest.mark.long
def test_full_collections_between_all_slices_do_not_prevent_the_end() -> None:
    planted = [Planted() for _ in range(500)]
    assert named(sliced(gc.collect, every=4), Planted) == len(planted)


def _bookmarks() -> list[Any]:
    return [one for one in gc.get_objects() if type(one).__name__ == "Bookmark"]


def test_no_bookmark_stays_on_the_collectors_lists() -> None:
    work = SlicedCensus()
    work.step(SHORTEST)
    seen = _bookmarks()
    while not work.step(0.002):
        pass
    result = work.result()
    del work
    assert not _bookmarks()
    assert not any("Bookmark" in name for name in result.names)
    # The program could have taken one from the list and kept it.
    assert seen and not any(map(gc.is_tracked, seen))


def test_long_containers_are_visited_in_parts() -> None:
    def counted(seconds: float) -> tuple[int, int]:
        # Results are not kept: each has its own tuples, a few for every class.
        result = sliced(seconds=seconds)
        return named(result, np.ndarray), named(result, tuple)

    arrays, tuples = counted(0.002)
    buffer = deque(((np.zeros(2), i) for i in range(40_000)), maxlen=50_000)
    rows = [(float(i), np.zeros(2)) for i in range(40_000)]
    # The collector does not list it, nor does it see the locals of this function.
    tables = [{i: (np.zeros(2), i) for i in range(40_000)}]
    group = {(i, str(i)) for i in range(40_000)}
    gc.collect()
    more_arrays, more_tuples = counted(0.0002)
    assert more_arrays - arrays == 120_000
    assert abs(more_tuples - tuples - 160_000) < 200
    assert len(buffer) == len(rows) == len(tables[0]) == len(group)


def test_no_reference_to_the_program_is_held_between_steps(heap: list[object]) -> None:
    agent, array, tensor = Agent(), np.zeros(3 << 20, np.uint8), torch.ones(3)
    watched = [agent, array, tensor, agent.memory, (1.5, "x"), Agent, Planted]
    watched += [torch.Tensor, nn.Parameter, np.memmap, list, np.ndarray]
    work = SlicedCensus()
    before = _references(watched)
    is_done = False
    while not is_done:
        is_done = work.step(0.0005)
        assert _references(watched) == before
    result = work.result()
    assert _references(watched) == before
    gone = weakref.ref(agent), weakref.ref(tensor)
    del agent, tensor
    watched.clear()
    assert [ref() for ref in gone] == [None, None]
    assert result.objects > len(heap)


def test_a_class_that_dies_during_the_census_has_no_row(heap: list[object]) -> None:
    makers: list[Any] = [type(f"Short{i}", (), {"__slots__": ("x",)}) for i in range(50)]
    ones = [make() for make in makers]
    work = SlicedCensus()
    is_done = False
    while not is_done:
        is_done = work.step(SHORTEST)
        if ones:
            ones.pop()
            makers.pop()
            if len(ones) % 10 == 0:
                gc.collect()
    gc.collect()
    assert heap and not ones
    assert not [name for name in work.result().names if ".Short" in name]


def test_code_of_hostile_objects_never_runs() -> None:
    kept = [Hostile() for _ in range(50)]
    touched.clear()
    result = sliced(seconds=SHORTEST)
    assert touched == []
    assert named(result, Hostile) == len(kept)


def test_the_result_keeps_no_class_alive() -> None:
    result = sliced()
    before = sys.getrefcount(Agent)
    kept = result, result.samples(), result.to_census(3), result.large_objects(3)
    assert sys.getrefcount(Agent) == before
    assert all(type(address) is int for address in result.counts)
    assert kept[2].mode == "sliced" and kept[1]["python.objects"] == result.objects


def test_the_memory_of_the_census_is_bounded_and_reported() -> None:
    shared = [bytes([i % 256]) * 40 for i in range(300_000)]
    twice = list(shared)
    work = SlicedCensus()
    most = 0
    while not work.step(0.002):
        most = max(most, work.bytes)
    assert 0 < most < 8 << 20
    assert len(twice) == len(shared)


@pytest.mark.parametrize("in_slices", [True, False])
def test_a_large_array_can_be_resized_during_a_census(in_slices: bool) -> None:
    """NumPy refuses to resize while there is any other reference to the array."""
    known = [np.zeros(1 << 18), np.zeros((*(1, 2) * 4, 1 << 14)), np.zeros((1 << 17, 1, 2))]
    lists: list[Any] = [[None] * 300_000, (None,) * 300_001, dict.fromkeys(range(50_000))]
    work = NativeCensus({}, 1 << 20, in_slices=in_slices)
    if in_slices:
        while not work.step(1.0):
            pass
    else:
        work.run(None, [])
    known[0].resize(1 << 19)
    large = work.take_large()
    for shape in ("(262144,) float64", "9 dimensions, float64", "(131072, 1, 2) float64"):
        assert (2 << 20, "numpy.ndarray", shape) in large
    for one in lists:
        assert f"{len(one)} items" in [d for _, name, d in large if name == type(one).__name__]


# Runs last: afterwards older objects are on the collector's lists again.
def test_freezing_the_heap_during_a_census_makes_it_incomplete(heap: list[object]) -> None:
    work = SlicedCensus()
    for _ in range(30):
        work.step(SHORTEST)
    gc.freeze()
    try:
        while not work.step(0.002):
            pass
        result = work.result()
    finally:
        gc.unfreeze()
    assert not result.is_whole
    assert 0 < named(result, Agent) <= len(heap)

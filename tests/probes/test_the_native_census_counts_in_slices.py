"""The census in slices: what lives throughout is counted once, whatever the program does meanwhile."""

from __future__ import annotations

import gc
import mmap
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.probes.heaps import Hostile
from torch import nn

from leakline.probes.census import SlicedCensus, take_census
from leakline.probes.census_result import SlicedResult
from leakline.probes.names import type_name
from leakline.probes.native import native, why_not_native
from leakline.probes.native_census import NativeCensus

if native() is None:
    pytest.skip(f"no native module: {why_not_native()}", allow_module_level=True)

# A slice ends at the first look at the clock: after 64 objects.
SHORTEST = 1e-9


class Agent:
    def __init__(self, number: int = 0) -> None:
        self.number, self.memory = number, [number]


class Planted:
    pass


def sliced(
    between: Callable[[], object] = lambda: None, seconds: float = 0.002, every: int = 1
) -> SlicedResult:
    census = SlicedCensus()
    steps = 0
    while not census.step(seconds):
        steps += 1
        if steps % every == 0:
            between()
    return census.result()


def count_of(result: SlicedResult, kind: type) -> int:
    return result.names.get(type_name(kind), 0)


@pytest.fixture
def heap() -> Iterator[list[object]]:
    kept: list[object] = [
        (Agent(i), {"key": [i]}, {i}, (i, float(i)), np.zeros(4)) for i in range(20_000)
    ]
    gc.collect()
    yield kept
    kept.clear()


def test_a_still_heap_counts_as_in_one_piece(heap: list[object]) -> None:
    gc.disable()
    try:
        whole = take_census()
        parts = sliced(seconds=SHORTEST)
    finally:
        gc.enable()
    assert parts.is_whole and parts.is_exact and parts.mode == "sliced"
    truth = Counter({type_name(cls): count for cls, count in whole.counts.items()})
    for name in (type_name(Agent), "dict", "set", "tuple", "list", "numpy.ndarray", "float"):
        assert abs(parts.names[name] - truth[name]) <= 64, name
    assert parts.names[type_name(Agent)] == len(heap)
    assert parts.arrays is not None and whole.arrays is not None
    assert parts.arrays.bytes == whole.arrays.bytes
    sizes = {name: size for name, _, size in parts.rows}
    known = dict(zip(map(type_name, whole.counts), whole.type_bytes, strict=True))
    for name in ("dict", "set", "tuple", "list"):
        assert sizes[name] == pytest.approx(known[name], rel=0.01)


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_objects_that_a_collection_moves_count_once(heap: list[object], generation: int) -> None:
    planted = [Planted() for _ in range(5_000)]
    # Seldom enough for the walk to end: a full collection gives the lists another order.
    every = 700 if generation < 2 else 4_000
    result = sliced(lambda: gc.collect(generation), seconds=SHORTEST, every=every)
    assert result.collections > 0
    assert result.is_whole or generation == 2
    assert count_of(result, Planted) == len(planted)
    assert count_of(result, Agent) == len(heap)


def test_a_full_collection_between_all_slices_does_not_keep_it_from_ending() -> None:
    planted = [Planted() for _ in range(500)]
    result = sliced(gc.collect, seconds=0.002, every=4)
    assert count_of(result, Planted) == len(planted)


def test_freezing_the_heap_meanwhile_is_survived_and_told(heap: list[object]) -> None:
    census = SlicedCensus()
    for _ in range(30):
        census.step(SHORTEST)
    gc.freeze()
    try:
        while not census.step(0.002):
            pass
        result = census.result()
    finally:
        gc.unfreeze()
    assert not result.is_whole
    assert 0 < count_of(result, Agent) <= len(heap)


def test_nothing_of_ours_is_on_the_collectors_lists_afterwards() -> None:
    census = SlicedCensus()
    census.step(SHORTEST)
    assert any(type(one).__name__ == "Bookmark" for one in gc.get_objects())
    seen = [one for one in gc.get_objects() if type(one).__name__ == "Bookmark"]
    while not census.step(0.002):
        pass
    result = census.result()
    del census
    assert not [one for one in gc.get_objects() if type(one).__name__ == "Bookmark"]
    assert not any("Bookmark" in name for name in result.names)
    # Whoever took one from the list may keep it.
    assert seen and not any(map(gc.is_tracked, seen))


def test_a_program_that_never_rests_is_counted_without_harm() -> None:
    kept = [Agent(i) for i in range(30_000)]
    stopping = threading.Event()
    failures: list[Exception] = []

    def program() -> None:
        # Whatever goes wrong there must fail the test here.
        try:
            waste: deque[Any] = deque(maxlen=5_000)
            rounds = 0
            while not stopping.is_set():
                rounds += 1
                waste.append(({"a": [rounds]}, np.zeros(3), (rounds,), Agent(rounds)))
                cycle: list[Any] = []
                cycle.append(cycle)
                if rounds % 2_000 == 0:
                    gc.collect(rounds // 2_000 % 3)
                if rounds % 7_000 == 0:
                    gc.disable()
                    gc.enable()
                    waste.clear()
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=program)
    thread.start()
    try:
        results = [sliced(seconds=0.001) for _ in range(3)]
    finally:
        stopping.set()
        thread.join()
    assert not failures
    for result in results:
        assert count_of(result, Agent) >= len(kept)
        if result.is_whole:
            # Those that live throughout, and those of the loop: what is made and freed meanwhile may count.
            assert count_of(result, Agent) < len(kept) * 3


def test_long_containers_are_visited_in_pieces_without_losing_the_place() -> None:
    before = sliced()
    buffer = deque(((np.zeros(2), i) for i in range(40_000)), maxlen=50_000)
    rows = [(float(i), np.zeros(2)) for i in range(40_000)]
    # The collector does not list it, nor see the locals of this function.
    tables = [{i: (np.zeros(2), i) for i in range(40_000)}]
    group = {(i, str(i)) for i in range(40_000)}
    gc.collect()
    after = sliced(seconds=0.0002)
    assert count_of(after, np.ndarray) - count_of(before, np.ndarray) == 120_000
    assert abs(count_of(after, tuple) - count_of(before, tuple) - 160_000) < 2_000
    assert len(buffer) == len(rows) == len(tables[0]) == len(group)


def test_a_long_container_that_goes_away_meanwhile_is_left_alone() -> None:
    kept: list[Any] = [[(float(i), [i]) for i in range(60_000)] for _ in range(3)]

    def change() -> None:
        if kept and len(kept[-1]) > 30_000:
            del kept[-1][20_000:]
        elif kept:
            kept.pop()

    result = sliced(change, seconds=SHORTEST, every=60)
    assert result.objects > 1_000


def test_between_two_steps_nothing_of_the_program_is_referred_to() -> None:
    agent, array, tensor = Agent(), np.zeros(3 << 20, np.uint8), torch.ones(3)
    watched = [agent, array, tensor, agent.memory, (1.5, "x")]
    classes = [Agent, Planted, torch.Tensor, nn.Parameter, np.memmap, list, np.ndarray]
    census = SlicedCensus()
    objects, kinds = _references(watched), _references(classes)
    is_done = False
    while not is_done:
        is_done = census.step(0.0005)
        assert _references(watched) == objects
        assert _references(classes) == kinds
    result = census.result()
    assert _references(watched) == objects
    assert _references(classes) == kinds
    gone = weakref.ref(agent), weakref.ref(tensor)
    del agent, tensor
    watched.clear()
    assert [ref() for ref in gone] == [None, None]
    assert result.objects > 1_000


def _references(objects: list[Any]) -> list[int]:
    return [sys.getrefcount(objects[i]) for i in range(len(objects))]


def test_a_class_that_dies_meanwhile_is_no_row() -> None:
    makers: list[Any] = [type(f"Short{i}", (), {"__slots__": ("x",)}) for i in range(50)]
    ones = [make() for make in makers]
    census = SlicedCensus()
    is_done = False
    while not is_done:
        is_done = census.step(SHORTEST)
        if ones:
            ones.pop()
            makers.pop()
            if len(ones) % 10 == 0:
                gc.collect()
    gc.collect()
    names = census.result().names
    assert not [name for name in names if ".Short" in name]


def test_hostile_objects_are_never_touched() -> None:
    kept = [Hostile() for _ in range(50)]
    Hostile.touched.clear()
    result = sliced(seconds=SHORTEST)
    assert Hostile.touched == []
    assert count_of(result, Hostile) == len(kept)


def test_mapped_files_and_large_objects_are_described(tmp_path: Path) -> None:
    before = sliced()
    mapped = np.memmap(tmp_path / "data.bin", np.float32, "w+", shape=(1000, 500))
    part = mapped[10:20]
    kept = np.zeros((3000, 1000), np.float32), bytes(11 << 20), [None] * (4 << 20)
    after = sliced()
    assert after.arrays is not None and before.arrays is not None
    assert after.arrays.mapped_bytes - before.arrays.mapped_bytes == 2_000_000
    told = {(one.type, one.detail): one.bytes for one in after.large_objects(7)}
    assert told["numpy.ndarray", "(3000, 1000) float32"] == 12_000_000
    assert told["list", f"{4 << 20} items"] == sys.getsizeof(kept[2])
    assert told["bytes", f"{11 << 20} items"] == sys.getsizeof(kept[1])
    assert isinstance(mapped.base, mmap.mmap) and len(part) == 10


def test_tensors_and_their_graphs_are_measured_where_they_are_found() -> None:
    net = nn.Linear(8, 32)
    before = sliced().tensors
    losses = [net(torch.randn(16, 8)).relu().pow(2).mean() for _ in range(3_072)]
    after = sliced().tensors
    assert before is not None and after is not None
    each = 16 * 8 * 4 + 16 * 32 * 4
    assert after.graph_bytes - before.graph_bytes == pytest.approx(3_072 * each, rel=0.2)
    assert after.graph_count - before.graph_count >= len(losses)
    assert after.bytes - before.bytes == pytest.approx(3_072 * 4, rel=0.2)


def test_shared_storages_and_shared_memory_count_once() -> None:
    first = sliced()
    base = torch.zeros(1000, 100)
    views = [base[i] for i in range(50)]
    arrays = [np.ones(25_000, np.float32)]
    on_array = torch.from_numpy(arrays[0])
    after = sliced()
    assert first.tensors and after.tensors and first.arrays and after.arrays
    assert after.tensors.count - first.tensors.count == 52
    grown = after.tensors.bytes - first.tensors.bytes + after.arrays.bytes - first.arrays.bytes
    assert grown == 400_000 + 100_000
    assert len(views) == 50 and on_array is not None


def test_the_result_keeps_no_class() -> None:
    result = sliced()
    before = sys.getrefcount(Agent)
    kept = result, result.samples(), result.to_census(3), result.large_objects(3)
    assert sys.getrefcount(Agent) == before
    assert all(type(address) is int for address in result.counts)
    assert kept[2].mode == "sliced" and kept[1]["python.objects"] == result.objects


def test_its_own_memory_is_bounded_and_told() -> None:
    shared = [bytes([i % 256]) * 40 for i in range(300_000)]
    twice = list(shared)
    census = SlicedCensus()
    most = 0
    while not census.step(0.002):
        most = max(most, census.bytes)
    assert 0 < most < 8 << 20
    assert len(twice) == len(shared)


@pytest.mark.parametrize("in_slices", [True, False])
def test_a_large_array_can_be_resized_while_a_census_knows_it(in_slices: bool) -> None:
    """NumPy refuses where anybody else refers to the array."""
    arrays = [np.zeros(1 << 18), np.zeros((*(1, 2) * 4, 1 << 14)), np.zeros((1 << 17, 1, 2))]
    lists: list[Any] = [[None] * 300_000, (None,) * 300_001, dict.fromkeys(range(50_000))]
    census = NativeCensus({}, 1 << 20, in_slices=in_slices)
    if in_slices:
        while not census.step(1.0):
            pass
    else:
        census.run(None, [])
    arrays[0].resize(1 << 19)
    large = census.take_large()
    for told in (
        (2 << 20, "numpy.ndarray", "(262144,) float64"),
        (2 << 20, "numpy.ndarray", "9 dimensions, float64"),
        (2 << 20, "numpy.ndarray", "(131072, 1, 2) float64"),
    ):
        assert told in large
    for one in lists:
        named = [detail for size, name, detail in large if name == type(one).__name__]
        assert f"{len(one)} items" in named

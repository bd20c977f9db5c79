"""The census by exact type, against planted objects and against counting one by one."""

from __future__ import annotations

import gc
import mmap
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from tests.probes.heaps import Hostile, brute_force, census, count_of, rows, way

from leakline.probes.census import take_census

__all__ = ["way"]
pytestmark = pytest.mark.usefixtures("way")

MIB = 2**20


class Agent:
    def __init__(self) -> None:
        self.memory: list[int] = []


class LyingList(list[int]):
    def __sizeof__(self) -> int:
        Hostile.touched.append("list.__sizeof__")
        raise RuntimeError

    def __iter__(self) -> Any:
        Hostile.touched.append("list.__iter__")
        raise RuntimeError


def test_hostile_objects_are_counted_and_never_touched() -> None:
    kept = [[Hostile() for _ in range(20)], [LyingList([1]) for _ in range(7)]]
    Hostile.touched.clear()
    result = take_census(on_instances=lambda instances: None)
    assert Hostile.touched == []
    assert count_of(result, Hostile) == len(kept[0])
    assert count_of(result, LyingList) == len(kept[1])


def test_proxies_and_mocks_count_as_what_they_are() -> None:
    class Target:
        pass

    target = Target()
    alive = weakref.proxy(target)
    gone = weakref.proxy(Target())
    mocks = [MagicMock(spec=Agent) for _ in range(3)]
    calls = [list(mock.mock_calls) for mock in mocks]
    result = census()
    assert count_of(result, Target) == 1
    assert count_of(result, Agent) == 0
    assert [list(mock.mock_calls) for mock in mocks] == calls
    assert alive is not gone


def test_no_object_is_kept_alive_and_no_collection_forced() -> None:
    agent = Agent()
    array = np.zeros(1000)
    seen = weakref.ref(agent), weakref.ref(array)
    before = [g["collections"] for g in gc.get_stats()]
    gc.disable()
    try:
        result = take_census(on_instances=lambda instances: None)
        assert [g["collections"] for g in gc.get_stats()] == before
        del agent, array
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()
    assert result.objects > 1000


def test_a_replay_buffer_of_150_000_arrays_is_found_whole() -> None:
    before = census()
    buffer = deque(
        (
            (np.zeros(4, np.float32), i % 3, 0.5, np.zeros(4, np.float32), False)
            for i in range(75_000)
        ),
        maxlen=100_000,
    )
    # The collector takes such tuples off its list: nothing in them can form a cycle.
    gc.collect()
    assert not gc.is_tracked(buffer[0])
    after = census()
    assert count_of(after, np.ndarray) - count_of(before, np.ndarray) == 150_000
    assert after.arrays is not None and before.arrays is not None
    assert after.arrays.count - before.arrays.count == 150_000
    assert after.arrays.bytes - before.arrays.bytes == 150_000 * 16
    assert abs(count_of(after, tuple) - count_of(before, tuple) - 75_000) < 200
    assert after.samples()["type.numpy.ndarray.bytes"] == after.arrays.bytes
    assert len(buffer) == 75_000


def test_an_array_in_two_places_counts_once() -> None:
    states = [np.zeros(8) for _ in range(101)]
    steps = [(states[i], 1.0, states[i + 1]) for i in range(100)]
    del states
    gc.collect()
    before = census().arrays
    steps.append((steps[0][0], 2.0, steps[0][2]))
    after = census().arrays
    assert before is not None and after is not None
    assert (after.count, after.bytes) == (before.count, before.bytes)


def test_an_array_that_1508_environments_share_counts_once() -> None:
    class Environment:
        def __init__(self, prices: np.ndarray) -> None:
            self.prices = prices

    before = census().arrays
    prices = np.zeros(90_000_000, np.uint8)
    kept = [Environment(prices) for _ in range(1_508)]
    del prices
    after = census().arrays
    assert before is not None and after is not None
    assert (after.count - before.count, after.bytes - before.bytes) == (1, 90_000_000)
    assert len(kept) == 1_508


def test_views_cost_nothing_and_show_the_owner_that_only_they_hold() -> None:
    before = census().arrays
    views = [np.zeros((1000, 10))[i] for i in range(3)]
    base = np.zeros(5000)
    slices = [base[i : i + 10] for i in range(100)]
    after = census().arrays
    assert before is not None and after is not None
    # Three hidden owners behind three views, one owner behind a hundred.
    assert after.count - before.count == 3 + 3 + 1 + 100
    assert after.bytes - before.bytes == 3 * 80_000 + 40_000
    assert len(views) + len(slices) == 103


def test_arrays_on_foreign_buffers_count_the_buffer_once() -> None:
    before = census()
    raw = [bytearray(MIB)]
    on_it = [np.frombuffer(raw[0], np.uint8) for _ in range(3)]
    hidden = [np.frombuffer(bytes(2 * MIB), np.uint8)]
    behind_a_view = [np.frombuffer(bytearray(4 * MIB), np.uint8)]
    after = census()
    assert before.arrays is not None and after.arrays is not None
    # The bytearrays have a row of their own; the byte string behind `hidden` is known by its array only.
    assert after.arrays.bytes - before.arrays.bytes == 2 * MIB
    sizes = rows(after)["bytearray"][1], rows(before).get("bytearray", (0, 0))[1]
    assert 5 * MIB <= (sizes[0] or 0) - (sizes[1] or 0) < 5 * MIB + 400
    assert len(on_it) + len(hidden) + len(behind_a_view) == 5


def test_mapped_files_are_counted_apart(tmp_path: Path) -> None:
    before = census().arrays
    mapped = np.memmap(tmp_path / "data.bin", np.float32, "w+", shape=(1000, 100))
    part = mapped[10:20]
    plain = np.asarray(mapped)[5:]
    after = census().arrays
    assert before is not None and after is not None
    assert after.mapped_bytes - before.mapped_bytes == 400_000
    assert after.bytes == before.bytes
    assert type(mapped.base) is mmap.mmap and part is not plain


def test_items_of_object_arrays_are_found() -> None:
    before = census()
    hidden = np.empty(50, dtype=object)
    for i in range(50):
        hidden[i] = np.zeros(100)
    kept = [hidden]
    del hidden
    after = census()
    assert before.arrays is not None and after.arrays is not None
    assert after.arrays.count - before.arrays.count == 51
    assert after.arrays.bytes - before.arrays.bytes == 50 * 800 + 400
    assert kept


@pytest.mark.parametrize("kind", [Agent, dict, tuple, list, bytearray, np.ndarray, set])
def test_counts_equal_counting_one_by_one(kind: type) -> None:
    plain: list[Any] = [
        ({"a": i}, (i, float(i)), bytearray(3), {i}, np.zeros(2)) for i in range(300)
    ]
    plain += [Agent() for _ in range(30)]
    plain += [((i, (i, (i, np.ones(1)))), {"deep": {"er": (i, i)}}) for i in range(50)]
    gc.collect()
    truth = brute_force(kind)
    counted = count_of(census(), kind)
    # Functions' defaults, class dictionaries and the like are not followed; they hold still.
    still = truth - counted
    plain += [({"b": i}, (i, i), bytearray(1), {i}, np.zeros(1), [i], Agent()) for i in range(200)]
    gc.collect()
    moved = brute_force(kind) - count_of(census(), kind)
    assert abs(moved - still) <= 2
    assert truth > 0


def test_shallow_bytes_of_containers_are_those_python_tells() -> None:
    before = rows(census())
    big = list(range(2 * MIB))
    small = [[i, i + 1] for i in range(20_000)]
    after = rows(census())
    truth = sys.getsizeof(big) + sys.getsizeof(small) + sum(map(sys.getsizeof, small))
    assert (after["list"][1] or 0) - (before["list"][1] or 0) == pytest.approx(truth, rel=0.02)


def test_the_largest_objects_come_with_shape_and_size() -> None:
    kept = np.zeros((3000, 1000), np.float32), bytes(11 * MIB), [None] * (4 * MIB)
    largest = census().large_objects(7)
    told = {(one.type, one.detail): one.bytes for one in largest}
    assert told["numpy.ndarray", "(3000, 1000) float32"] == 12_000_000
    assert told["list", f"{4 * MIB} items"] == sys.getsizeof(kept[2])
    assert told["bytes", f"{11 * MIB} items"] == sys.getsizeof(kept[1])
    assert [one.bytes for one in largest] == sorted((one.bytes for one in largest), reverse=True)
    assert all(one.sequence == 7 for one in largest)
    assert len(census().large_objects(7, limit=1)) == 1
    assert census().large_objects(7, floor_bytes=100 * MIB) == ()


@pytest.mark.parametrize("way", ["pure"], indirect=True)
def test_a_deadline_gives_a_part_that_says_so() -> None:
    kept = [[i] for i in range(100_000)]
    whole = census()
    ticks = iter(i * 0.001 for i in range(1_000_000))
    part = take_census(0.05, clock=lambda: next(ticks))
    assert whole.coverage == 1.0 and whole.is_exact
    assert 0.01 < part.coverage < 0.5 and not part.is_exact
    assert count_of(part, list) == pytest.approx(count_of(whole, list), rel=0.35)
    # Arrays sit in few containers: a part of the heap says nothing about them.
    assert "arrays.bytes" not in part.samples()
    assert part.to_census(1).coverage == part.coverage
    assert kept


@pytest.mark.parametrize("way", ["pure"], indirect=True)
def test_a_deadline_inside_one_large_container_is_kept() -> None:
    buffer = [deque((np.zeros(1), i) for i in range(50_000))]
    gc.collect()
    now = [0.0]

    def clock() -> float:
        now[0] += 0.01
        return now[0]

    part = take_census(0.2, clock=clock)
    assert part.coverage < 1.0
    assert buffer


def test_instances_of_the_programs_classes_are_handed_over_for_a_look() -> None:
    kept = [Agent() for _ in range(5)]
    seen: dict[str, int] = {}

    def look(instances: Mapping[type, Sequence[object]]) -> None:
        seen.update({cls.__qualname__: len(ones) for cls, ones in instances.items()})
        assert {cls.__module__.partition(".")[0] for cls in instances} <= {"tests"}

    take_census(on_instances=look)
    assert seen["Agent"] == len(kept)


def test_a_program_without_numpy_has_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    result = census()
    assert result.arrays is None
    assert "arrays.count" not in result.samples()


def test_the_series_carry_the_48_largest_types_and_no_more() -> None:
    samples = census().samples()
    counts = [name for name in samples if name.startswith("type.") and name.endswith(".count")]
    assert len(counts) == 48
    assert "type.dict.bytes" in samples
    make: Callable[[str], bool] = lambda name: isinstance(samples[name], int)  # noqa: E731
    assert all(map(make, samples))

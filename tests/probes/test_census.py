"""The census by exact type, native and in Python, against known objects and against counting one by one."""

from __future__ import annotations

import gc
import mmap
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from tests.probes.heaps import (
    Hostile,
    arrays,
    arrays_of,
    brute_force,
    census,
    count_of,
    rows,
    touched,
    way,
)

from leakline.probes.heap import instance_counts
from leakline.probes.heap.census import take_census
from leakline.probes.heap.instance_counts import Untracked

__all__ = ["way"]
pytestmark = pytest.mark.usefixtures("way")
in_python = pytest.mark.parametrize("way", ["pure"], indirect=True)

MIB = 2**20


class Agent:
    def __init__(self) -> None:
        self.memory: list[int] = []


class LyingList(list[int]):
    __sizeof__ = Hostile.__sizeof__
    __iter__ = Hostile.__iter__


def test_hostile_objects_are_counted_without_running_their_code() -> None:
    kept = [[Hostile() for _ in range(20)], [LyingList([1]) for _ in range(7)]]
    touched.clear()
    result = take_census(on_instances=lambda instances: None)
    assert touched == []
    assert count_of(result, Hostile) == len(kept[0])
    assert count_of(result, LyingList) == len(kept[1])


def test_proxies_and_mocks_are_counted_by_their_real_type() -> None:
    class Target:
        pass

    target = Target()
    alive, gone = weakref.proxy(target), weakref.proxy(Target())
    mocks = [MagicMock(spec=Agent) for _ in range(3)]
    calls = [list(mock.mock_calls) for mock in mocks]
    result = census()
    assert count_of(result, Target) == 1
    assert count_of(result, Agent) == 0
    assert [list(mock.mock_calls) for mock in mocks] == calls
    assert alive is not gone


def test_a_census_keeps_no_object_alive_and_forces_no_collection() -> None:
    agent, array = Agent(), np.zeros(1000)
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
    assert result.objects > 0


def test_a_replay_buffer_of_150_000_arrays_is_counted_completely() -> None:
    before = census()
    buffer = deque(
        (np.zeros(4, np.float32), i % 3, 0.5, np.zeros(4, np.float32), False) for i in range(75_000)
    )
    after = census()
    assert before.arrays is not None and after.arrays is not None
    assert count_of(after, np.ndarray) - count_of(before, np.ndarray) == 150_000
    assert after.arrays.bytes - before.arrays.bytes == 150_000 * 16
    assert abs(count_of(after, tuple) - count_of(before, tuple) - 75_000) < 200
    assert after.samples()["type.numpy.ndarray.bytes"] == after.arrays.bytes
    assert len(buffer) == 75_000


def test_an_array_in_two_places_counts_once() -> None:
    states = [np.zeros(8) for _ in range(101)]
    steps = [(states[i], 1.0, states[i + 1]) for i in range(100)]
    del states
    assert arrays_of(lambda: (steps[0][0], 2.0, steps[0][2])) == (0, 0)


def test_an_array_that_1508_environments_share_counts_once() -> None:
    class Environment:
        def __init__(self, prices: Any) -> None:
            self.prices = prices

    def environments() -> Any:
        prices = np.zeros(90_000_000, np.uint8)
        return [Environment(prices) for _ in range(1_508)]

    assert arrays_of(environments) == (1, 90_000_000)


def test_views_have_no_bytes_and_reveal_their_hidden_owner() -> None:
    def views() -> Any:
        base = np.zeros(5000)
        return [np.zeros((1000, 10))[i] for i in range(3)], [base[i : i + 10] for i in range(100)]

    # Three hidden owners behind three views, and one owner behind a hundred.
    assert arrays_of(views) == (3 + 3 + 1 + 100, 3 * 80_000 + 40_000)


def test_arrays_on_a_shared_foreign_buffer_count_it_once() -> None:
    before = census()
    raw = [bytearray(MIB)]
    on_it = [np.frombuffer(raw[0], np.uint8) for _ in range(3)]
    hidden = [np.frombuffer(bytes(2 * MIB), np.uint8)]
    behind_a_view = [np.frombuffer(bytearray(4 * MIB), np.uint8)]
    after = census()
    assert before.arrays is not None and after.arrays is not None
    # The bytearrays have their own row; the byte string behind `hidden` is known only by its array.
    assert after.arrays.bytes - before.arrays.bytes == 2 * MIB
    sizes = rows(after)["bytearray"][1], rows(before).get("bytearray", (0, 0))[1]
    assert 5 * MIB <= (sizes[0] or 0) - (sizes[1] or 0) < 5 * MIB + 400
    assert len(on_it) + len(hidden) + len(behind_a_view) == 5


def test_memory_mapped_arrays_are_counted_separately(tmp_path: Path) -> None:
    before = arrays()
    mapped = np.memmap(tmp_path / "data.bin", np.float32, "w+", shape=(1000, 100))
    part, plain = mapped[10:20], np.asarray(mapped)[5:]
    after = arrays()
    assert after.mapped_bytes - before.mapped_bytes == 400_000
    assert after.bytes == before.bytes
    assert type(mapped.base) is mmap.mmap and part is not plain


def test_items_of_object_arrays_are_counted() -> None:
    def hidden() -> Any:
        array = np.empty(50, dtype=object)
        for i in range(50):
            array[i] = np.zeros(100)
        return array

    assert arrays_of(hidden) == (51, 50 * 800 + 400)


@pytest.mark.parametrize("kind", [Agent, dict, tuple, np.ndarray])
def test_counts_equal_counting_one_by_one(kind: type) -> None:
    plain: list[Any] = [((i, (i, (i, np.ones(1)))), {"deep": {"er": (i, i)}}) for i in range(50)]
    gc.collect()
    # The census does not follow function defaults, class dictionaries and the like; their number is constant.
    still = brute_force(kind) - count_of(census(), kind)
    plain += [({"b": i}, (i, i), bytearray(1), {i}, np.zeros(1), [i], Agent()) for i in range(200)]
    gc.collect()
    truth = brute_force(kind)
    assert truth >= 200
    assert abs(truth - count_of(census(), kind) - still) <= 2


def test_shallow_bytes_of_containers_match_sys_getsizeof() -> None:
    before = rows(census())
    big = list(range(MIB // 4))
    small = [[i, i + 1] for i in range(5_000)]
    after = rows(census())
    truth = sys.getsizeof(big) + sys.getsizeof(small) + sum(map(sys.getsizeof, small))
    assert (after["list"][1] or 0) - (before["list"][1] or 0) == pytest.approx(truth, rel=0.02)


def test_the_largest_objects_have_shape_and_size() -> None:
    kept = np.zeros((3000, 1000), np.float32), bytes(11 * MIB), [None] * (2 * MIB)
    result = census()
    largest = result.large_objects(7)
    told = {(one.type, one.detail): one.bytes for one in largest}
    assert told["numpy.ndarray", "(3000, 1000) float32"] == 12_000_000
    assert told["list", f"{2 * MIB} items"] == sys.getsizeof(kept[2])
    assert told["bytes", f"{11 * MIB} items"] == sys.getsizeof(kept[1])
    assert [one.bytes for one in largest] == sorted((one.bytes for one in largest), reverse=True)
    assert all(one.sequence == 7 for one in largest)
    assert len(result.large_objects(7, limit=1)) == 1
    assert result.large_objects(7, floor_bytes=100 * MIB) == ()


@in_python
def test_a_deadline_gives_a_result_marked_as_partial() -> None:
    kept = [[i] for i in range(100_000)]
    whole = census()
    ticks = iter(i * 0.001 for i in range(1_000_000))
    part = take_census(0.05, clock=lambda: next(ticks))
    assert whole.coverage == 1.0 and whole.is_exact
    assert 0.01 < part.coverage < 0.5 and not part.is_exact
    assert count_of(part, list) == pytest.approx(count_of(whole, list), rel=0.35)
    # Arrays are in few containers: a part of the heap says nothing about them.
    assert "arrays.bytes" not in part.samples()
    assert part.to_census(1).coverage == part.coverage
    assert kept


@in_python
def test_a_deadline_is_met_inside_a_large_container() -> None:
    buffer = [deque((np.zeros(1), i) for i in range(50_000))]
    gc.collect()
    ticks = iter(i * 0.01 for i in range(1_000_000))
    assert take_census(0.2, clock=lambda: next(ticks)).coverage < 1.0
    assert buffer


def test_instances_of_the_programs_classes_are_passed_on() -> None:
    kept = [Agent() for _ in range(5)]
    seen: dict[str, int] = {}

    def look(instances: Mapping[type, Sequence[object]]) -> None:
        seen.update({cls.__qualname__: len(ones) for cls, ones in instances.items()})
        assert not {"builtins", "numpy", "leakline"} & {
            cls.__module__.partition(".")[0] for cls in instances
        }

    take_census(on_instances=look)
    assert seen["Agent"] == len(kept)


def test_a_program_without_numpy_has_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    result = census()
    assert result.arrays is None
    assert "arrays.count" not in result.samples()


def test_the_series_contain_only_the_48_largest_types() -> None:
    kept = [type(f"Kind{i}", (), {})() for i in range(60)]
    samples = census().samples()
    assert len(kept) == 60
    assert sum(n.startswith("type.") and n.endswith(".count") for n in samples) == 48
    assert "type.dict.bytes" in samples
    assert all(isinstance(value, int) for value in samples.values())


# -- objects that the collector does not list: with one holder or several, each is counted exactly once

# A type with few instances elsewhere.
Leaf = bytearray
# The leaves of the requested type in `_entangled`.
LEAVES = 700 + 700 + 2 * 700 + 700 + 300 + 300


class Oddly(type):
    """A metaclass with its own comparison and hash, which must not run."""

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError

    def __hash__(cls) -> int:
        raise RuntimeError


class Odd(metaclass=Oddly):
    __slots__ = ()


class Sharer:
    def __init__(self, *held: Any) -> None:
        self.held = held
        self.last = held[-1]


@pytest.fixture(params=["counted", "uncounted"])
def references(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with usable reference counts (with the interpreter lock) and without."""
    if request.param == "uncounted":
        monkeypatch.setattr(instance_counts, "references_are_counted", lambda: False)


def _entangled(leaf: type) -> list[Any]:
    """Return leaves with one holder, with several near and far, and twice in one container."""
    alone: list[Any] = [[leaf()] for _ in range(700)]
    twice = [[one, one] for one in (leaf() for _ in range(700))]
    nested = [{"a": (leaf(), {"b": (leaf(),)})} for _ in range(700)]
    near = [[one, (one, one), {"c": one}] for one in (leaf() for _ in range(700))]
    leaves = [leaf() for _ in range(300)]
    tuples = [(one, (leaf(), one)) for one in leaves]
    far = [
        Sharer(random.choice(leaves), random.choice(tuples), tuples[i % 300]) for i in range(900)
    ]
    everything = [*alone, *twice, *nested, *near, *far, [*leaves, *tuples]]
    random.shuffle(everything)
    return everything


@in_python
@pytest.mark.usefixtures("references")
def test_objects_without_references_are_counted_wherever_they_are() -> None:
    before = count_of(census(), Leaf)
    # Include a class that overrides hashing.
    kept = _entangled(Leaf), _entangled(Odd)
    result = census()
    assert count_of(result, Leaf) - before == LEAVES
    assert rows(result)[f"{__name__}.Odd"][0] == LEAVES
    assert kept


@in_python
@pytest.mark.usefixtures("references")
def test_shared_arrays_and_buffers_count_once() -> None:
    def steps() -> Any:
        shared = [np.zeros(10) for _ in range(1_000)]
        buffers = [bytes(100) for _ in range(50)]
        made: list[Any] = [(shared[i], i, shared[i - 1]) for i in range(1_000)]
        made += [[one, one] for one in (np.zeros(10) for _ in range(1_000))]
        made += [(one[:5], one[5:]) for one in (np.zeros(10) for _ in range(100))]
        made += [(one, np.frombuffer(one, np.uint8)) for one in buffers]
        return made

    before = count_of(census(), bytes)
    kept: list[Any] = []
    # The byte strings have their own rows.
    assert arrays_of(lambda: kept.extend(steps())) == (1_000 + 1_000 + 3 * 100 + 50, 2_100 * 80)
    assert count_of(census(), bytes) - before == 50


# No `assert` here: pytest makes such functions access their local variables, and they would be skipped.
def _counted_beside_locals() -> int:
    local = Leaf()
    pair = (Leaf(), Leaf())
    inside = np.empty(3, dtype=object)
    inside[:] = [Leaf(), local, pair]
    return count_of(take_census(), Leaf) - 1


def _counted_beside_a_cell() -> int:
    local, pair = Leaf(), (Leaf(), Leaf())

    def closure() -> Any:
        return local, pair

    found = count_of(take_census(), Leaf)
    return found if closure() else 0


def _counted_in_a_generator() -> Iterator[int]:
    local, pair = Leaf(), (Leaf(), Leaf())
    yield count_of(take_census(), Leaf)
    del local, pair


@in_python
@pytest.mark.usefixtures("references")
@pytest.mark.parametrize(
    "count",
    [_counted_beside_locals, _counted_beside_a_cell, lambda: next(_counted_in_a_generator())],
    ids=["object array", "cell", "generator"],
)
def test_objects_held_by_local_variables_are_counted_once(
    count: Callable[[], int],
) -> None:
    before = count_of(census(), Leaf)
    assert count() - before == 3


@in_python
def test_an_object_that_moves_while_it_is_counted_counts_once() -> None:
    there, here = [Leaf() for _ in range(10)], list[Any]()
    found = Untracked(lambda objects: map(type, objects))
    found.add(gc.get_referents(there))
    here.append(there.pop())
    # This function is now a second holder, so the object looks shared.
    found.add(gc.get_referents(here))
    found.settle()
    assert len(found.of(Leaf)) == len(there) + len(here)

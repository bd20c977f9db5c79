"""Containers declared by the program, with length, capacity and bytes; and growing containers found from its roots by
name, and read again by following the same path.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.probes.heaps import run_alone

from leakline.probes.growing_containers import WATCHED_LIMIT, ContainerWatch, TrackedContainer
from leakline.probes.heap.census import take_census
from leakline.probes.heap.instance_counts import ClassCounts

# -- declared


def read_samples(container: Any, capacity: int | None = None) -> dict[str, Any]:
    return of_tracked(TrackedContainer("it", container, capacity))


def of_tracked(tracked: TrackedContainer) -> dict[str, Any]:
    return {name.removeprefix("tracked.it."): value for name, value in tracked.read().items()}


class Preallocated:
    """A replay buffer whose arrays are allocated for the full capacity."""

    def __init__(self, capacity: int) -> None:
        self.states = np.zeros((capacity, 33), np.float32)
        self.data = {"rewards": torch.zeros(capacity), "ends": np.zeros(capacity, bool)}
        self.size = 0

    def __len__(self) -> int:
        return self.size


class Wrapping:
    def __init__(self) -> None:
        self.memory: deque[tuple[Any, int]] = deque(maxlen=10_000)

    def __len__(self) -> int:
        return len(self.memory)


def test_a_tracked_object_is_not_kept_alive() -> None:
    buffer = Preallocated(10)
    tracked = TrackedContainer("it", buffer, 10)
    gone = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert gone() is None
    assert tracked.read() == {}


def test_an_empty_list_has_its_own_bytes_and_no_capacity() -> None:
    samples = read_samples([])
    assert set(samples) == {"length", "bytes"}
    assert samples["length"] == 0
    assert 0 < samples["bytes"] < 200


def test_a_list_of_tuples_of_arrays_counts_the_arrays() -> None:
    samples = read_samples([(np.zeros(1000, np.float32), i) for i in range(100)], 1000)
    assert (samples["length"], samples["capacity"]) == (100, 1000)
    assert samples["bytes"] == pytest.approx(100 * 4200, rel=0.1)


def test_states_shared_by_consecutive_steps_count_once() -> None:
    states = [np.zeros(1000, np.float32) for _ in range(101)]
    steps = [(states[i], states[i + 1]) for i in range(100)]
    assert read_samples(steps)["bytes"] == pytest.approx(100 * 4200, rel=0.1)


def test_preallocated_arrays_count_as_far_as_they_are_filled() -> None:
    buffer = Preallocated(1000)
    whole = 1000 * (33 * 4 + 4 + 1)
    tracked = TrackedContainer("it", buffer, 1000)
    for size in (250, 1000):
        buffer.size = size
        assert of_tracked(tracked)["bytes"] == pytest.approx(whole * size / 1000, rel=0.01)


def test_an_object_around_a_deque_counts_its_items() -> None:
    buffer = Wrapping()
    tracked = TrackedContainer("it", buffer, 10_000)
    buffer.memory.extend((np.zeros(250, np.float32), i) for i in range(2000))
    assert of_tracked(tracked)["bytes"] == pytest.approx(2000 * 1200, rel=0.1)


def test_a_callable_may_return_the_container_or_its_length() -> None:
    holder = {"now": [1, 2, 3]}
    assert read_samples(lambda: holder["now"])["length"] == 3
    assert read_samples(lambda: 7, 10) == {"length": 7, "capacity": 10}


def test_kept_losses_include_their_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    # Allow enough time on a busy machine.
    monkeypatch.setattr("leakline.probes.heap.marginal_size._GRAPHS_SECONDS", 10.0)
    net = torch.nn.Linear(32, 256)
    losses = [net(torch.randn(64, 32)).relu().pow(2).mean() for _ in range(20)]
    each = 64 * 32 * 4 + 64 * 256 * 4
    assert read_samples(losses)["bytes"] == pytest.approx(20 * each, rel=0.15)


def test_items_with_many_numbers_are_measured_by_a_sample() -> None:
    """Documents of tokens: each has more numbers than are visited, and shares none of them."""
    documents = {i: {"ids": [1_000_000 * i + n for n in range(4_000)]} for i in range(20)}
    each = 4_000 * (sys.getsizeof(10**6) + 8)
    assert read_samples(documents, 100)["bytes"] == pytest.approx(20 * each, rel=0.05)
    same = {i: {"ids": [7.5] * 4_000} for i in range(20)}
    assert read_samples(same, 100)["bytes"] < 20 * 4_000 * 9


class Node:
    def __init__(self) -> None:
        self.steps = [{"step": 1000 + i, "name": f"step {i}"} for i in range(4_000)]


def test_items_too_large_to_measure_have_unknown_size() -> None:
    nodes = [Node() for _ in range(2)]
    assert read_samples(nodes, 100) == {"length": 2, "capacity": 100}
    small: list[Any] = [{"step": 1000 + i} for i in range(2)]
    growing = TrackedContainer("it", small, 100)
    before = of_tracked(growing)["bytes"]
    small.extend(nodes)
    # A measured size is kept.
    assert of_tracked(growing)["bytes"] >= before


# -- discovered

HERE = f"container.{__name__}"
losses: list[Any] = []
by_name: defaultdict[str, list[int]] = defaultdict(list, {"a": [], "b": []})
steady = [1, 2, 3]


class Environment:
    seen: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.limits = {"low": 0}


class Slotted:
    __slots__ = ("__weakref__", "items")

    def __init__(self) -> None:
        self.items: OrderedDict[int, int] = OrderedDict()


class Sly:
    """An object whose attribute is a property that must not be run."""

    asked = 0

    def __init__(self) -> None:
        self.__dict__["history"] = [1]

    @property
    def history(self) -> list[int]:
        Sly.asked += 1
        return [1] * Sly.asked


class Own(list[int]):
    def __len__(self) -> int:
        raise RuntimeError("ours to leave alone")


def _find(watch: ContainerWatch, counts: ClassCounts | None = None) -> None:
    result = take_census(on_instances=lambda instances: watch.find(None, instances))
    if counts is not None:
        counts.calibrate(result.counts)


def _watch() -> ContainerWatch:
    watch = ContainerWatch()
    _find(watch)
    return watch


def _lengths(watch: ContainerWatch) -> dict[str, Any]:
    return {
        name.removeprefix(f"{HERE}.").removesuffix(".length"): value
        for name, value in watch.read().items()
        if name.startswith(HERE) and name.endswith(".length")
    }


class Ring:
    """A buffer that enforces its own bound."""

    def __init__(self, capacity: int) -> None:
        self._max_size = capacity
        self.items: list[int] = []
        self.priorities: list[int] = []


class Unbounded:
    def __init__(self) -> None:
        self.capacity = None
        self.items: list[int] = []


class Padded:
    """The long list shows that the attribute bounds neither list."""

    def __init__(self) -> None:
        self.maxlen = 50
        self.items: list[int] = []
        self.losses = [0] * 100


class WithLog:
    """The bound belongs to one of the lists, and nothing shows to which."""

    def __init__(self) -> None:
        self.capacity = 100
        self.items: list[int] = []
        self.log: list[int] = []


class Unlimited:
    def __init__(self) -> None:
        self.maxsize = sys.maxsize
        self.items: list[int] = []


class Samples:
    """A dataset that caches its decoded samples."""

    def __init__(self, count: int) -> None:
        self.paths = [f"{i}.png" for i in range(count)]
        self.by_index: dict[Any, int] = {}
        self.by_view: dict[Any, int] = {}

    def __len__(self) -> int:
        raise RuntimeError("must not be run")

    def __getitem__(self, index: int) -> int:
        raise RuntimeError("must not be run")


SAMPLES = 250


class StatedByGlobal:
    """A dataset whose number of samples only its method states."""

    def __init__(self) -> None:
        self.decoded: dict[Any, int] = {}

    def __len__(self) -> int:
        return SAMPLES


class StatedByAttribute:
    def __init__(self) -> None:
        self.samples = 350
        self.decoded: dict[Any, int] = {}

    def __len__(self) -> int:
        return self.samples


class StatedByNumber(StatedByGlobal):
    def __len__(self) -> int:
        return 450


class StatedByCode(StatedByGlobal):
    def __len__(self) -> int:
        return int("must not be run")


class Computed:
    def __init__(self) -> None:
        self.items: list[int] = []

    @property
    def capacity(self) -> int:
        raise RuntimeError("must not be run")


recent: deque[int] = deque(maxlen=500)
same = recent
by_phase: dict[str, deque[int]] = {"train": deque(maxlen=500)}


@functools.lru_cache(maxsize=700)
def encoded(number: int) -> int:
    return number


def test_capacities_are_read_where_the_program_keeps_them() -> None:
    kept = [Ring(300), Ring(300), Unbounded(), Unlimited(), WithLog(), Computed()]
    samples, padded = Samples(400), Padded()
    stated = [StatedByGlobal(), StatedByAttribute(), StatedByNumber(), StatedByCode()]
    watch = _watch()
    for i in range(20):
        recent.append(i)
        by_phase["train"].append(i)
        encoded(i)
        samples.by_index[i] = i
        padded.items.append(i)
        padded.losses.append(i)
        samples.by_view[i, 0.5] = i
        for dataset in stated:
            dataset.decoded[i if dataset is stated[1] else (i,)] = i
        for one in kept:
            one.items.append(i)
        kept[4].log += [i, i]  # type: ignore[union-attr]
        for ring in kept[:2]:
            ring.priorities.append(i)  # type: ignore[union-attr]
    read = watch.read()
    capacities = {
        name.removeprefix(f"{HERE}.").removesuffix(".capacity"): value
        for name, value in read.items()
        if name.startswith(HERE) and name.endswith(".capacity")
    }
    # The bound of a class holds for each of its two instances. The deques of a dictionary have no common bound.
    assert capacities == {
        "recent": 500, "same": 500, "encoded.<cache>": 700, "Ring.items": 600, "Ring.priorities": 600,
        "Samples.by_index": 400, "StatedByGlobal.decoded": 250, "StatedByAttribute.decoded": 350,
        "StatedByNumber.decoded": 450,
    }  # fmt: skip
    for name in (
        "Unbounded.items",
        "Unlimited.items",
        "Padded.items",
        "WithLog.items",
        "WithLog.log",
        "Computed.items",
        "StatedByCode.decoded",
        "by_phase[*]",
    ):
        assert f"{HERE}.{name}.length" in read
    # The size of a deque with two names is reported once.
    watch.find()
    sized = watch.read()
    assert [f"{HERE}.{name}.bytes" in sized for name in ("recent", "same")].count(True) == 1
    recent.clear()
    encoded.cache_clear()


def test_containers_that_never_grow_are_not_reported() -> None:
    watch = _watch()
    steady.reverse()
    assert "steady" not in _lengths(watch)
    steady.pop()
    steady.append(9)
    assert "steady" not in _lengths(watch)


def test_a_container_named_as_a_holder_is_always_reported() -> None:
    watch = _watch()
    watch.note_holders([f"{__name__}.steady[*]", f"{__name__}.nowhere[*].more[*]"])
    assert _lengths(watch) == {"steady": 3}
    _find(watch)
    assert _lengths(watch) == {"steady": 3}


def test_properties_and_subclasses_are_left_alone() -> None:
    kept = [Sly(), Own([1])]
    _watch().read()
    assert Sly.asked == 0
    assert kept


def test_a_module_global_is_read_again_even_if_replaced() -> None:
    global losses
    losses = []
    watch = _watch()
    losses.extend([0.5] * 10)
    assert _lengths(watch)["losses"] == 10
    losses = [0.5] * 15
    assert _lengths(watch)["losses"] == 15


def test_lists_inside_a_short_dictionary_are_summed() -> None:
    watch = _watch()
    by_name["a"] += [1, 2]
    by_name["b"] += [3]
    assert _lengths(watch)["by_name[*]"] == sum(map(len, by_name.values()))
    by_name["c"] = []
    assert _lengths(watch)["by_name"] == 3
    by_name.update((str(i), []) for i in range(1_000))
    assert "by_name[*]" not in _lengths(watch), "no longer short"
    for i in range(1_000):
        del by_name[str(i)]


def test_a_class_attribute_is_named() -> None:
    watch = _watch()
    Environment.seen.append(len(Environment.seen))
    assert _lengths(watch)["Environment.seen"] == len(Environment.seen)


def test_attributes_are_summed_over_instances_and_nothing_is_kept_alive() -> None:
    environments = [Environment() for _ in range(4)]
    watch = _watch()
    for environment in environments:
        environment.rewards += [1.0] * 25
    assert _lengths(watch)["Environment.rewards"] == 100
    assert "Environment.limits" not in _lengths(watch)
    gone = weakref.ref(environments[0])
    environments.clear()
    del environment
    assert gone() is None
    assert "Environment.rewards" not in _lengths(watch)


def test_slots_and_ordered_dictionaries_are_read() -> None:
    one = Slotted()
    watch = _watch()
    one.items[1] = 1
    assert _lengths(watch)["Slotted.items"] == 1


def test_a_sum_that_would_miss_instances_is_omitted() -> None:
    counts = ClassCounts()
    watch = ContainerWatch(counts.count_of)
    environments = [Environment() for _ in range(3)]
    _find(watch, counts)
    environments[0].rewards.append(1.0)
    assert _lengths(watch)["Environment.rewards"] == 1
    environments.append(Environment())
    assert "Environment.rewards" not in _lengths(watch)
    _find(watch, counts)
    assert _lengths(watch)["Environment.rewards"] == 1


def test_bytes_are_reported_from_the_second_reading_on() -> None:
    losses.clear()
    watch = _watch()
    name = f"{HERE}.losses.bytes"
    losses.extend(bytearray(10_000) for _ in range(50))
    watch.read()
    _find(watch)
    large = watch.read()[name]
    assert 500_000 < large < 520_000
    losses.extend(float(i) for i in range(10))
    assert large < watch.read()[name] < large + 2_000
    _find(watch)
    losses.extend(float(i) for i in range(30))
    assert large < watch.read()[name] < large + 4_000
    del losses[:45]
    assert watch.read()[name] < large * 0.6
    losses.clear()


def test_the_number_of_watched_containers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    many = [[0] * (i % 7) for i in range(WATCHED_LIMIT + 50)]
    for i, one in enumerate(many):
        monkeypatch.setattr(module, f"many_{i}", one, raising=False)
    watch = _watch()
    for one in many:
        one.extend([1] * 10)
    assert 0 < len(_lengths(watch)) <= WATCHED_LIMIT


PROGRAM = """
import sys, weakref
from leakline.probes.growing_containers import ContainerWatch
watch = ContainerWatch()

class Big: pass

def train():
    history = []
    for step in range(3):
        temporary = Big()
        gone = weakref.ref(temporary)
        if step == 0:
            watch.find()
        else:
            history.append(step)
            print(sorted(watch.read().items()))
        del temporary
        print(gone() is None)

def keeps_its_own():
    mine = locals()
    history = []
    watch.find()
    history.append(1)
    print(sorted(watch.read().items()), "history" in mine)

train()
keeps_its_own()
"""


def test_locals_of_running_functions_are_named_and_not_kept_alive(tmp_path: Path) -> None:
    name = "container.__main__.train.<locals>.history.length"
    assert run_alone(tmp_path, PROGRAM).splitlines() == [
        "True",
        f"[('{name}', 1)]",
        "True",
        f"[('{name}', 2)]",
        "True",
        # A function that accessed its locals keeps the dictionary, so it is left alone.
        "[] False",
    ]


def _make_logger() -> Any:
    kept: list[int] = []
    return lambda one: kept.append(one) or len(kept)  # type: ignore[func-returns-value]


log, log_too = _make_logger(), _make_logger()


@functools.cache
def _squared(number: int) -> int:
    return number * number


class Policy:
    @functools.lru_cache(maxsize=100)  # noqa: B019
    def act(self, number: int) -> int:
        return number


def test_closures_are_named_by_function_and_variable_and_summed() -> None:
    watch = _watch()
    before = _lengths(watch).get("_make_logger.<locals>.<lambda>.<closure>.kept", 0)
    log(1), log(2), log_too(3)
    assert _lengths(watch)["_make_logger.<locals>.<lambda>.<closure>.kept"] == before + 3


def test_caches_of_functions_and_methods_are_named_and_not_sized() -> None:
    watch = _watch()
    policy = Policy()
    for number in range(10):
        _squared(number)
        policy.act(number)
    lengths = _lengths(watch)
    assert lengths["_squared.<cache>"] == lengths["Policy.act.<cache>"] == 10
    watch.find()
    assert f"{HERE}._squared.<cache>.bytes" not in watch.read()
    _squared.cache_clear()
    Policy.act.cache_clear()


class Learner:
    def __init__(self) -> None:
        self.losses: list[float] = []


class Session:
    def __init__(self) -> None:
        self.by_name = {"learner": [Learner()]}


session = Session()


def test_without_a_census_instances_reachable_from_roots_are_read() -> None:
    # The class was never counted.
    watch = ContainerWatch(ClassCounts().count_of)
    watch.find()
    learner = session.by_name["learner"][0]
    learner.losses += [0.5] * 7
    assert _lengths(watch)["Learner.losses"] == 7
    gone = weakref.ref(session.by_name["learner"].pop())
    del learner
    assert gone() is None
    assert "Learner.losses" not in _lengths(watch)
    session.by_name["learner"].append(Learner())

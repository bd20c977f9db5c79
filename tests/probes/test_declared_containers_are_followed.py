"""Tracked containers: length, capacity and bytes of what the program declares."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque

import numpy as np
import pytest
import torch

from leakline.probes.containers import TrackedContainer


class Preallocated:
    """A replay buffer of arrays made for the whole capacity at once."""

    def __init__(self, capacity: int) -> None:
        self.states = np.zeros((capacity, 33), np.float32)
        self.data = {"rewards": torch.zeros(capacity), "ends": np.zeros(capacity, bool)}
        self.size = 0

    def __len__(self) -> int:
        return self.size


class Wrapping:
    def __init__(self) -> None:
        self.memory: deque[tuple[np.ndarray, int]] = deque(maxlen=10_000)

    def __len__(self) -> int:
        return len(self.memory)


def test_an_object_that_is_gone_says_nothing_and_was_not_kept() -> None:
    buffer = Preallocated(10)
    tracked = TrackedContainer("buffer", buffer, 10)
    gone = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert gone() is None
    assert tracked.read() == {}


def test_without_a_capacity_there_is_none() -> None:
    assert "tracked.log.capacity" not in TrackedContainer("log", [1, 2]).read()


def test_an_empty_list_has_its_own_bytes_only() -> None:
    samples = TrackedContainer("log", [], 5).read()
    assert samples["tracked.log.length"] == 0
    assert 0 < samples["tracked.log.bytes"] < 200


def test_a_list_of_tuples_of_arrays_counts_the_arrays() -> None:
    memory = [(np.zeros(1000, np.float32), i) for i in range(100)]
    samples = TrackedContainer("memory", memory, 1000).read()
    assert samples["tracked.memory.length"] == 100
    assert samples["tracked.memory.capacity"] == 1000
    assert samples["tracked.memory.bytes"] == pytest.approx(100 * 4200, rel=0.1)


def test_items_of_very_many_things_are_counted_from_a_few_of_them() -> None:
    # Eight of them are more than is looked at for one answer, as the values of all actions in a log are.
    values = [[float(i * 300 + k) for k in range(300)] for i in range(40)]
    each = sys.getsizeof(values[0]) + 300 * sys.getsizeof(0.5)
    measured = TrackedContainer("values", values).read()["tracked.values.bytes"]
    assert measured == pytest.approx(40 * each, rel=0.02)


def test_states_shared_by_neighbouring_steps_count_once() -> None:
    states = [np.zeros(1000, np.float32) for _ in range(101)]
    steps = [(states[i], states[i + 1]) for i in range(100)]
    samples = TrackedContainer("steps", steps).read()
    assert samples["tracked.steps.bytes"] == pytest.approx(100 * 4200, rel=0.1)


def test_arrays_made_beforehand_count_as_far_as_they_are_filled() -> None:
    buffer = Preallocated(1000)
    tracked = TrackedContainer("buffer", buffer, 1000)
    whole = 1000 * (33 * 4 + 4 + 1)
    buffer.size = 250
    assert tracked.read()["tracked.buffer.bytes"] == pytest.approx(whole / 4, rel=0.01)
    buffer.size = 1000
    assert tracked.read()["tracked.buffer.bytes"] == pytest.approx(whole, rel=0.01)


def test_an_object_around_a_deque_counts_its_items() -> None:
    buffer = Wrapping()
    tracked = TrackedContainer("buffer", buffer, 10_000)
    buffer.memory.extend((np.zeros(250, np.float32), i) for i in range(2000))
    assert tracked.read()["tracked.buffer.bytes"] == pytest.approx(2000 * 1200, rel=0.1)


def test_a_callable_gives_the_container_or_its_length() -> None:
    holder = {"now": [1, 2, 3]}
    assert TrackedContainer("a", lambda: holder["now"]).read()["tracked.a.length"] == 3
    assert TrackedContainer("b", lambda: 7, 10).read() == {
        "tracked.b.length": 7,
        "tracked.b.capacity": 10,
    }


def test_kept_losses_count_with_their_graphs() -> None:
    net = torch.nn.Linear(32, 256)
    losses = [net(torch.randn(64, 32)).relu().pow(2).mean() for _ in range(20)]
    samples = TrackedContainer("losses", losses).read()
    each = 64 * 32 * 4 + 64 * 256 * 4
    assert samples["tracked.losses.bytes"] == pytest.approx(20 * each, rel=0.15)


def test_items_that_hold_many_numbers_are_measured_by_some_of_them() -> None:
    """Documents of tokens: each has more numbers than are looked at, and all of them are its own."""
    documents = {i: {"ids": [1_000_000 * i + n for n in range(4_000)]} for i in range(20)}
    samples = TrackedContainer("tokens", documents, 100).read()
    each = 4_000 * (sys.getsizeof(10**6) + 8)
    assert samples["tracked.tokens.bytes"] == pytest.approx(20 * each, rel=0.05)
    same = {i: {"ids": [7.5] * 4_000} for i in range(20)}
    assert TrackedContainer("same", same, 100).read()["tracked.same.bytes"] < 20 * 4_000 * 9


class Node:
    def __init__(self) -> None:
        self.steps = [{"step": 1000 + i, "name": f"step {i}"} for i in range(4_000)]


def test_items_too_large_to_be_measured_are_unknown_and_not_empty() -> None:
    tracked = TrackedContainer("nodes", (nodes := [Node() for _ in range(2)]), 100)
    samples = tracked.read()
    assert samples == {"tracked.nodes.length": 2, "tracked.nodes.capacity": 100}
    small = [{"step": 1000 + i} for i in range(2)]
    growing = TrackedContainer("growing", small, 100)
    before = growing.read()["tracked.growing.bytes"]
    small.extend(nodes)
    # What was measured once stands.
    assert growing.read()["tracked.growing.bytes"] >= before

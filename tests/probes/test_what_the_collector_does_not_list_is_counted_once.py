"""The census in Python: objects with one holder and with several, each counted once and none forgotten."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.probes.heaps import brute_force, census, count_of, rows, way

from leakline.probes import untracked
from leakline.probes.census import take_census
from leakline.probes.untracked import Untracked

__all__ = ["way"]
pytestmark = [
    pytest.mark.usefixtures("way"),
    pytest.mark.parametrize("way", ["pure"], indirect=True),
]


# What the collector never lists, and of which there are few elsewhere.
Leaf = bytearray
# Of the type that `_entangled` is asked for.
LEAVES = 700 + 700 + 2 * 700 + 700 + 300 + 300


class Oddly(type):
    """Compares and hashes its classes by code of its own."""

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
def references(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """As under the interpreter lock, and as without it, where references tell nothing."""
    if request.param == "uncounted":
        monkeypatch.setattr(untracked, "references_are_counted", lambda: False)
    yield request.param


def _some(leaf: type, count: int) -> Iterator[Any]:
    return (leaf() for _ in range(count))


def _entangled(leaf: type) -> list[Any]:
    """Leaves with one holder, with several near and far, and twice in one container."""
    alone: list[Any] = [[leaf()] for _ in range(700)]
    twice = [[one, one] for one in _some(leaf, 700)]
    nested = [{"a": (leaf(), {"b": (leaf(),)})} for _ in range(700)]
    near = [[one, (one, one), {"c": one}] for one in _some(leaf, 700)]
    leaves = [leaf() for _ in range(300)]
    tuples = [(one, (leaf(), one)) for one in leaves]
    far = [
        Sharer(random.choice(leaves), random.choice(tuples), tuples[i % 300]) for i in range(900)
    ]
    everything = [*alone, *twice, *nested, *near, *far, [*leaves, *tuples]]
    random.shuffle(everything)
    return everything


@pytest.mark.parametrize("kind", [Leaf, tuple, dict])
def test_counts_are_those_of_going_through_everything_one_by_one(
    kind: type, references: str
) -> None:
    gc.collect()
    # What is not followed (code, classes) holds still.
    still = brute_force(kind) - count_of(census(), kind)
    kept = _entangled(Leaf)
    gc.collect()
    assert brute_force(kind) - count_of(census(), kind) == pytest.approx(still, abs=2)
    assert kept and references


def test_leaves_are_found_wherever_they_are(references: str) -> None:
    before = count_of(census(), Leaf)
    kept = _entangled(Leaf)
    gc.collect()
    assert count_of(census(), Leaf) - before == LEAVES
    assert kept and references


def test_a_class_that_hashes_in_its_own_way_is_counted_as_well(references: str) -> None:
    kept = _entangled(Odd)
    gc.collect()
    assert rows(census())[f"{__name__}.Odd"][0] == LEAVES
    assert kept and references


def test_arrays_and_their_buffers_count_once_whoever_shares_them(references: str) -> None:
    before = census()
    arrays = [np.zeros(10) for _ in range(1_000)]
    buffers = [bytes(100) for _ in range(50)]
    steps: list[Any] = [(arrays[i], i, arrays[i - 1]) for i in range(1_000)]
    steps += [[one, one] for one in (np.zeros(10) for _ in range(1_000))]
    steps += [(one[:5], one[5:]) for one in (np.zeros(10) for _ in range(100))]
    steps += [(one, np.frombuffer(one, np.uint8)) for one in buffers]
    del arrays, buffers
    gc.collect()
    after = census()
    assert before.arrays is not None and after.arrays is not None
    assert after.arrays.count - before.arrays.count == 1_000 + 1_000 + 3 * 100 + 50
    # The byte strings have rows of their own.
    assert after.arrays.bytes - before.arrays.bytes == 2_100 * 80
    assert count_of(after, bytes) - count_of(before, bytes) == 50
    assert len(steps) == 2_150 and references


def _counted_beside_locals() -> int:
    # Without an `assert`, which pytest makes ask for the local variables: such functions are left alone.
    local = Leaf()
    pair = (Leaf(), Leaf())
    inside = np.empty(3, dtype=object)
    inside[:] = [Leaf(), local, pair]
    return count_of(take_census(), Leaf)


def test_what_only_local_variables_and_object_arrays_hold_is_found_once(references: str) -> None:
    before = count_of(census(), Leaf)
    gc.collect()
    assert _counted_beside_locals() - before == 4
    assert references


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


@pytest.mark.parametrize(
    "count", [_counted_beside_a_cell, lambda: next(_counted_in_a_generator())], ids=["cell", "generator"]
)  # fmt: skip
def test_a_local_that_the_collector_leads_to_as_well_is_counted_once(
    references: str, count: Callable[[], int]
) -> None:
    before = count_of(census(), Leaf)
    gc.collect()
    assert count() - before == 3
    assert references


def test_an_object_that_moves_while_it_is_counted_counts_once() -> None:
    there, here = [Leaf() for _ in range(10)], list[Any]()
    found = Untracked(lambda objects: map(type, objects))
    found.add(gc.get_referents(there))
    here.append(there.pop())
    # Now we are a second holder: it looks like one that others share.
    found.add(gc.get_referents(here))
    found.settle()
    assert len(found.of(Leaf)) == len(there) + len(here)


def test_most_objects_are_not_remembered_by_address() -> None:
    alone = [Leaf() for _ in range(10)]
    both = [Leaf() for _ in range(3)]
    holders = [[*both, both[0]], [*both]]
    del both
    found = Untracked(lambda objects: map(type, objects))
    for holder in (alone, *holders):
        found.add(gc.get_referents(holder))
    assert found.counts() == {Leaf: 13}
    assert found.shared == set(map(id, holders[1]))


def test_only_containers_that_may_hold_more_are_given_back_and_those_once() -> None:
    holder: list[Any] = [(1, Leaf()), {"a": 1}, Leaf(), b"bytes"]
    another = [*holder]
    gc.collect()
    found = Untracked(lambda objects: map(type, objects))
    given = found.add(gc.get_referents(holder))
    assert set(map(id, given)) == set(map(id, holder[:2]))
    assert found.add(gc.get_referents(another)) == []

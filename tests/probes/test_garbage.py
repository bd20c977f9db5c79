"""What a collection would find is counted without running one: exactly, and without changing any object."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import sys
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.probes.heaps import needs_native

from leakline.probes.heap.cyclic_garbage import GarbageProbe, GarbageResult, proves_itself
from leakline.probes.native_module import native
from leakline.probes.references.class_names import type_name
from leakline.snapshot import CYCLIC_GARBAGE

pytestmark = needs_native

EVERYTHING = 400_000
A_SECOND = 1_000_000_000
module: Any = native()


class Node:
    def __init__(self, *others: Any) -> None:
        self.others = list(others)


class Slotted:
    __slots__ = ("__weakref__", "other")

    def __init__(self) -> None:
        self.other: Any = self


@pytest.fixture(autouse=True)
def only_what_is_planted() -> Iterator[None]:
    """Only garbage planted by the test waits for the collector, and it stays; older objects are not visited."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    gc.collect()


def look(objects: int = EVERYTHING, types: int = 1024) -> Any:
    return module.garbage(objects, A_SECOND, types)


def garbage_by_type() -> Counter[str]:
    """Return garbage by type name: returning classes would hold references to them."""
    return Counter({type_name(cls): count for cls, count, _ in look()[5]})


def collected_by_type() -> Counter[str]:
    """Return what the collector itself finds."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    return Counter(type_name(type(one)) for one in gc.garbage)


def planted(objects: int) -> None:
    for _ in range(objects):
        Slotted()


def random_graph(seed: int, count: int, links: int, held: int) -> list[Node]:
    """Make nodes that refer to each other, and keep some of them."""
    chance = random.Random(seed)
    nodes = [Node() for _ in range(count)]
    for _ in range(links):
        chance.choice(nodes).others.append(chance.choice(nodes))
    return chance.sample(nodes, held)


def plant_one_of_each() -> None:
    """Plant cycles through everything that Python code commonly makes them of."""
    node = Node()
    node.others.append(node)
    first, second = Slotted(), Slotted()
    first.other, second.other = second, first
    table: dict[str, Any] = {}
    table["itself"] = [table, {"y"}, (table,)]
    ordered: OrderedDict[str, Any] = OrderedDict()
    ordered["itself"] = ordered
    queue: deque[Any] = deque()
    queue.append(queue)

    def closure() -> Any:
        return closure

    bound = Node()
    bound.others.append(bound.__init__)
    partial = functools.partial(print, 1)
    partial.__dict__["itself"] = partial
    namespace = SimpleNamespace()
    namespace.itself = namespace
    made = type("Made", (), {"table": {}})
    watched = Node()
    watched.others.append(weakref.ref(watched))
    watched.others.append(watched)
    try:
        raise ValueError
    except ValueError as error:
        kept = error
    node.others.append(kept)
    del made


async def plant_a_task() -> None:
    held: list[Any] = []

    async def wait() -> None:
        held.append(held)
        await asyncio.sleep(0)

    await asyncio.create_task(wait())


def test_garbage_is_counted_by_type_as_a_collection_finds_it() -> None:
    plant_one_of_each()
    asyncio.run(plant_a_task())
    found, collected = garbage_by_type(), collected_by_type()
    assert found.total() >= 25
    if (3, 14) <= sys.version_info < (3, 14, 5):
        # The incremental collector untracks tuples of plain values before it lists what it found.
        del found["tuple"], collected["tuple"]
    assert found == collected


def plant_a_generator() -> None:
    def generator() -> Iterator[Any]:
        me = own[0]
        yield me
        yield me

    own: list[Any] = []
    own.append(generator())
    next(own[0])


def test_a_generator_that_holds_itself_is_counted() -> None:
    # The collector closes the generator before it lists what it found, so there is nothing to compare with.
    plant_a_generator()
    assert garbage_by_type()["generator"] == 1


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_are_counted_exactly(seed: int) -> None:
    held = random_graph(seed, 600, (150, 400, 700, 700)[seed], 40)
    assert garbage_by_type() == collected_by_type()
    assert len(held) == 40


def test_a_partial_scan_never_reports_living_objects_as_garbage() -> None:
    held = random_graph(5, 2_000, 2_500, 300)
    parts = [look(objects) for objects in (50, 500, 1_500)]
    whole = look()
    collected = collected_by_type()
    assert whole[2] == collected.total()
    for looked_at, is_whole, objects, *_ in parts:
        assert not is_whole
        assert objects <= min(looked_at, whole[2])
    assert len(held) == 300


def test_new_cycles_are_found_among_the_newest_objects() -> None:
    older = [[] for _ in range(1_000)]  # type: ignore[var-annotated]
    planted(200)
    looked_at, is_whole, objects, _, _, types = look(1_000)
    assert (looked_at, is_whole) == (1_000, False)
    assert [(cls, count) for cls, count, _ in types] == [(Slotted, 200)]
    assert objects == 200 and older


def test_objects_referenced_from_elsewhere_are_not_garbage() -> None:
    before = look()[2]
    ring = Node()
    ring.others.append(Node(ring, Node(ring)))
    assert look()[2] == before
    only_from_an_older_object = SimpleNamespace(kept=None)
    only_from_an_older_object.kept = Slotted()
    assert look(50)[2] == 0
    del ring
    assert look()[2] >= before + 3


def test_a_later_collection_still_works_and_finalizers_run_once() -> None:
    told: list[int] = []

    class Finalized:
        def __init__(self, number: int) -> None:
            self.number, self.me = number, self

        def __del__(self) -> None:
            told.append(self.number)

    ways_back = [weakref.ref(Finalized(number)) for number in range(50)]
    assert garbage_by_type()[type_name(Finalized)] == 50
    assert told == []
    assert all(way_back() is not None for way_back in ways_back)
    gc.collect()
    assert sorted(told) == list(range(50))
    assert all(way_back() is None for way_back in ways_back)
    assert garbage_by_type()[type_name(Finalized)] == 0


def test_no_code_of_the_program_runs() -> None:
    ran: list[str] = []

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            ran.append("instancecheck")
            return True

        def __hash__(cls) -> int:
            ran.append("hash")
            return 1

        def __eq__(cls, other: object) -> bool:
            ran.append("eq")
            return True

    class Loud(metaclass=Meta):
        def __init__(self) -> None:
            self.me = self

        def __sizeof__(self) -> int:
            ran.append("sizeof")
            return -1

        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            return super().__getattribute__(name)

    for _ in range(2_000):
        Loud()
    ran.clear()
    found = GarbageProbe().read(1.0)
    assert found is not None
    assert found.types[0][:2] == (type_name(Loud), 2_000)
    assert ran == []


def test_only_bytes_held_by_garbage_alone_are_counted() -> None:
    shared = bytes(1_000_000)
    before = look()[3]
    for number in range(100):
        one = Node()
        one.others += [one, bytes(10_000 + number), "x" * 20_000, shared, [1.5] * 0]
    del one
    gained = look()[3] - before
    assert 3_000_000 < gained < 3_000_000 + 100 * 1_000


def test_the_buffers_of_arrays_in_cycles_are_counted() -> None:
    numpy = pytest.importorskip("numpy", reason="the examples' extra is not installed")
    shared = numpy.zeros(1_000_000)
    for layout in ("C", "F"):
        one = Node()
        one.others += [one, numpy.ones((100, 500), order=layout), shared, shared[:10]]
        del one
    size = module.garbage(EVERYTHING, A_SECOND, 16, numpy.ndarray)[3]
    assert 2 * 400_000 < size < 2 * 400_000 + 20_000


def test_a_scan_that_would_take_too_long_is_given_up() -> None:
    held: list[Any] = [[] for _ in range(200_000)]
    for nanoseconds in (0, 1_000, 100_000):
        found = module.garbage(EVERYTHING, nanoseconds, 16)
        assert found is None or found[4] < 20_000_000
    probe = GarbageProbe()
    given = [probe.read(0.002) for _ in range(10)]
    told = [result for result in given if result is not None]
    assert told, "ten scans of 2 ms, and none reported anything"
    assert all(not result.is_whole for result in told)
    assert len(held) == 200_000


def _mappings() -> int:
    return Path("/proc/self/maps").read_text().count("\n")


def test_the_memory_of_a_scan_is_bounded_and_freed() -> None:
    held: list[Any] = [[] for _ in range(720_000)]
    looked_at, *_ = look(10_000_000)
    assert looked_at <= 700_000
    assert len(held) == 720_000
    before = _mappings()
    for _ in range(20):
        look(1_000)
    assert _mappings() <= before + 1


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        module.garbage(-1, 5)
    with pytest.raises(TypeError):
        module.garbage("all", 5)


def test_types_are_reported_when_there_is_more_garbage_than_before() -> None:
    probe = GarbageProbe()
    planted(2_000)
    first, again = probe.read(1.0), probe.read(1.0)
    planted(1_000)
    more = probe.read(1.0)
    assert first is not None and again is not None and more is not None
    assert first.types[0][:2] == (type_name(Slotted), 2_000)
    assert again.types == ()
    assert more.types[0][:2] == (type_name(Slotted), 3_000)
    assert more.samples()["python.garbage_objects"] >= 3_000


def test_garbage_is_sent_as_held_only_by_itself() -> None:
    result = GarbageResult(10, True, 4, 400, 0.001, (("__main__.Node", 4, 400),))
    (holder,) = result.holders(7)
    assert (holder.sequence, holder.type, holder.path) == (7, "__main__.Node", CYCLIC_GARBAGE)
    assert (holder.count, holder.bytes_each) == (4, 100)


class Lying:
    def garbage(self, *_: Any) -> Any:
        return (100, True, 0, 0, 1000, [])


@pytest.mark.parametrize("find", [lambda: None, Lying], ids=["absent", "lying"])
def test_without_a_verified_native_module_nothing_is_reported(find: Any) -> None:
    assert GarbageProbe(find).read(0.01) is None


def test_the_self_test_of_the_module_leaves_no_garbage() -> None:
    before = look()[2]
    assert proves_itself(native())
    assert look()[2] == before

"""A declared store: when it fills, what it may still take, what is beyond it, and what comes with its items."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leakline.analysis.bounds import (
    Bounded,
    _bytes_per_item,
    _going_on,
    _with_kept,
    _within,
    bounded_containers,
    capacity_of,
    tracked_names,
    without_bounded,
)
from leakline.analysis.counts import CountGrowth
from leakline.analysis.facts import Facts
from leakline.analysis.history import Value
from leakline.analysis.series import Lane
from leakline.analysis.stores import comes_with_a_store, is_stored, overshooting


def store(
    *length: float, capacity: float = 1_000, size: Sequence[float] = (), gained: Sequence[float] = (),
    name: str = "replay",
) -> Bounded:  # fmt: skip
    return Bounded(name, length, capacity, tuple(size), tuple(gained))


@pytest.mark.parametrize(
    ("length", "upto", "filling"),
    [
        # More than one in a thousand of its capacity over the last three generations.
        ([0, 0, 0, 1], 4, False),
        ([0, 0, 0, 1.1], 4, True),
        ([0, 5, 5, 5, 5], 5, False),
        ([0, 0, 5, 5, 5], 5, True),
        ([0, 5, 5, 5, 5], 4, True),
        ([500], 1, False),
        ([0, 500], 2, True),
        ([0, 999], 2, True),
        # What is full fills no more.
        ([0, 1_000], 2, False),
        ([0, 1_001], 2, False),
    ],
)
def test_a_store_fills_while_it_takes_in_and_has_room(
    length: list[float], upto: int, filling: bool
) -> None:
    assert store(*length).is_filling(upto) is filling


@pytest.mark.parametrize(("length", "over"), [(999, False), (1_000, False), (1_001, True)])
def test_a_store_is_over_above_its_capacity(length: float, over: bool) -> None:
    assert store(5, length, 0).is_over(2) is over


def test_what_is_beyond_the_capacity_is_counted_in_every_generation() -> None:
    assert store(900, 1_000, 1_003, 950, 2_000).overshoot(4) == [0, 0, 3, 0]


def test_a_store_was_fullest_at_the_newest_of_its_highest_lengths() -> None:
    told = store(5, 9, 3, 9, 1, 10)
    assert [told.fullest(upto) for upto in (1, 2, 3, 4, 5, 6)] == [0, 1, 1, 3, 3, 5]


@pytest.mark.parametrize(
    ("length", "size", "left"),
    [
        ([0, 250], [0, 500], 1_500),
        ([0, 1_000], [0, 500], 0),
        ([0, 1_200], [0, 500], 0),
        ([0, 0], [0, 500], 0),
        ([0, 0.5], [0, 1], 1_999),
        ([0, 250], [], 0),
        ([9, 9, 250, 500], [1, 1, 500, 2_000], 2_000),
    ],
)
def test_a_store_may_take_as_many_bytes_as_the_rest_of_its_items(
    length: list[float], size: list[float], left: float
) -> None:
    assert store(*length, size=size).remaining_bytes(len(length)) == left


@pytest.mark.parametrize(
    ("length", "upto", "rate"),
    [([0, 9], 2, 9), ([5], 1, 0), ([0, 9, 18, 27], 4, 9), ([0, 50, 59, 68, 77], 5, 9), ([0, 50, 59], 3, 29.5)],
)  # fmt: skip
def test_items_per_generation_are_those_of_the_last_three(
    length: list[float], upto: int, rate: float
) -> None:
    assert store(*length).per_generation(upto) == rate


@pytest.mark.parametrize(
    ("length", "size", "rate"),
    [
        ([0, 50], [0, 200], 200),
        ([0, 50, 100], [0, 200, 800], 8 * 50),
        # Not while it does not fill, or nobody knows its size.
        ([100, 100], [400, 400], 0),
        ([0, 1_000], [0, 400], 0),
        ([0, 50], [], 0),
        # Less than one item is one.
        ([-5, 0.5], [0, 4], 4 * 5.5),
    ],
)
def test_bytes_per_generation_are_those_of_its_items(
    length: list[float], size: list[float], rate: float
) -> None:
    assert store(*length, size=size).fill_rate(len(length)) == rate


def test_growth_is_between_two_positions_and_none_where_no_size_is_known() -> None:
    assert store(1, 2, 3, 4, gained=[5, 7, 11, 20]).growth(1, 3) == 4
    assert store(1, 2, 3).growth(0, 3) == 0


def test_bytes_that_the_capacity_allows_for_are_a_share_of_what_is_over_it() -> None:
    assert _within([500, 1_000, 2_000], 1_000, [50, 100, 240]) == (50, 100, 120)


def lane(
    private: Sequence[float] = (), *, segment: Sequence[int] | None = None,
    series: dict[str, Sequence[Value]] | None = None, generations: int | None = None,
) -> Lane:  # fmt: skip
    columns = series or {}
    n = (
        generations
        if generations is not None
        else max(len(private), *map(len, columns.values()), 0)
    )
    told = SimpleNamespace(
        private=list(private), segment=segment or [0] * n, end_rows=range(n), generations=tuple(range(n)),
        series=columns, readings=lambda name: list(columns[name]), has=lambda name: name in columns,
        spacing=lambda upto: 1,
    )  # fmt: skip
    return cast(Lane, told)


def test_sizes_go_on_over_a_resume() -> None:
    resumed = lane([0] * 6, segment=[0, 0, 0, 1, 1, 2])
    # It starts empty at the fourth and the sixth.
    assert _going_on(resumed, [10, 20, 30, 0, 5, 1]) == (10, 20, 30, 30, 35, 35)
    assert _going_on(lane([0] * 3, segment=[0, 1, 1]), [10, 4, 5]) == (10, 10, 11)
    # The first generation that is known resumes nothing.
    assert _going_on(lane([0] * 2, segment=[1, 1]), [10, 20]) == (10, 20)


def test_what_memory_did_not_show_of_a_fall_is_kept() -> None:
    # Of 30 that the store gave up memory shows 10; it may fill again up to there.
    assert _with_kept([50, 20, 30, 45], [100, 90, 90, 90]) == (50, 40, 40, 45)
    assert _with_kept([50, 20], [100, 60]) == (50, 20)
    assert _with_kept([50, 20], [100, 120]) == (50, 50)
    assert _with_kept([50, 20], [100]) == (50, 20)
    # Of 20 that it gave up of what was kept memory shows all; where it gave up nothing, that was somebody else.
    assert _with_kept([50, 40, 20], [100, 100, 0]) == (50, 50, 30)
    assert _with_kept([50, 20, 20], [100, 100, 0]) == (50, 50, 50)
    assert _with_kept([50, 60], [100, 0]) == (50, 60)
    assert _with_kept([], []) == ()


@pytest.mark.parametrize(
    ("length", "private", "each"),
    [
        # Two bytes an item, in every generation.
        ([0, 10, 20, 30], [100, 120, 140, 160], 2),
        # Of what a store without a new item lets memory gain three times, that is somebody else's.
        ([0, 10, 10, 10, 10, 20], [100, 125, 130, 135, 140, 165], 2),
        ([0, 10, 10, 10, 20], [100, 125, 130, 135, 160], 2.5),
        # What fills again from what was kept tells nothing.
        ([0, 10, 0, 10, 20], [100, 120, 120, 120, 140], 2),
        ([0, 0], [100, 150], 0),
        ([0, 10], [100, 90], 0),
        ([5], [100], 0),
        ([0, 10], [], 0),
    ],
)
def test_bytes_of_an_item_are_what_memory_gained_as_it_was_fuller_than_ever(
    length: list[float], private: list[float], each: float
) -> None:
    assert _bytes_per_item(lane(private), length) == each


def test_a_store_that_starts_empty_in_an_attempt_is_fuller_than_ever_in_it() -> None:
    resumed = lane([100, 120, 100, 130], segment=[0, 0, 1, 1])
    assert _bytes_per_item(resumed, [0, 10, 0, 10]) == 2.5


@pytest.mark.parametrize(
    ("private", "rest"),
    [
        # Half of what it gained is there: it is taken out.
        ([100, 105, 110], [100, 95, 90]),
        ([100, 105, 109], [100, 105, 109]),
    ],
)
def test_what_memory_never_showed_is_not_taken_out(private: list[float], rest: list[float]) -> None:
    filling = store(0, 10, 20, gained=[3, 13, 23])
    assert without_bounded(private, [filling], 3) == rest


def test_a_store_is_taken_out_from_its_fullest_on_and_alike_in_all_generations() -> None:
    emptied = store(0, 20, 5, gained=[0, 20, 20])
    assert without_bounded([100, 120, 130, 999], [emptied], 3) == [100, 100, 110]
    idle = store(5, 5, gained=[7, 7])
    assert without_bounded([100, 90], [idle], 2) == [100, 90]


def tracked(**columns: Sequence[Value]) -> dict[str, Sequence[Value]]:
    return {f"tracked.replay.{name}": column for name, column in columns.items()}


def test_a_capacity_is_what_was_declared_else_what_was_read_last() -> None:
    told = lane(series=tracked(length=[1, 2], capacity=[50, 60, 70, None]))
    assert capacity_of(told, "replay", {"replay": 9}) == 9
    assert capacity_of(told, "replay", {"replay": None}) == 70
    assert capacity_of(told, "other", {}) is None
    assert tracked_names(told) == {"replay"}
    assert tracked_names(lane(series={"tracked.a.bytes": [1], "container.a.length": [1]})) == set()


def test_what_lies_on_devices_is_no_memory_of_the_process() -> None:
    columns = tracked(length=[10, 20], bytes=[100, 200], device_bytes=[40, None])
    (found,) = bounded_containers(lane([1_000, 2_000], series=columns), {"replay": 50})
    assert (found.bytes, found.estimated, found.capacity) == ((60, 200), False, 50)
    more = tracked(length=[10], bytes=[100], device_bytes=[140])
    assert bounded_containers(lane([1_000], series=more), {"replay": 50})[0].bytes == (0,)


def test_without_a_size_it_is_worked_out_up_to_the_capacity() -> None:
    told = lane([100, 120, 140], series=tracked(length=[0, 10, 20]))
    (found,) = bounded_containers(told, {"replay": 15})
    assert (found.bytes, found.estimated, found.each) == ((0, 20, 30), True, 2)
    (flat,) = bounded_containers(
        lane([5, 5, 5], series=tracked(length=[0, 10, 20])), {"replay": 15}
    )
    assert (flat.bytes, flat.gained) == ((), ())


def test_without_a_capacity_or_a_reading_it_is_no_store() -> None:
    told = lane([1, 1], series=tracked(length=[5, 6]))
    assert bounded_containers(told, {}) == ()
    assert bounded_containers(told, {"replay": 0}) == ()
    assert bounded_containers(lane([1], series=tracked(length=[None])), {"replay": 5}) == ()


def facts(
    *stores: Bounded, each: dict[str, int] | None = None, counts: Sequence[Value] = ()
) -> Facts:
    column: dict[str, Sequence[Value]] = {"type.Item.count": counts}
    told = SimpleNamespace(
        bounded=stores,
        bytes_each=each or {},
        lane=lane(series=column, generations=len(stores[0].length)),
    )
    return cast(Facts, told)


def growth(slope: float) -> CountGrowth:
    return CountGrowth("constant", slope, slope, slope, 0, 0, 0, 9, 9, slope)


@pytest.mark.parametrize(
    ("slope", "comes"),
    [
        (10, True), (80, True),
        # Nine with each item are too many.
        (90, False), (4, False),
        # Off by two in a hundred at most.
        (20.3, True), (20.5, False), (19.7, True), (19.5, False), (15, False), (-10, False),
    ],
)  # fmt: skip
def test_up_to_eight_objects_come_with_each_item(slope: float, comes: bool) -> None:
    filling = store(0, 10, 20, 30)
    assert comes_with_a_store(facts(filling), growth(slope), 4) is comes


def test_nothing_comes_with_a_store_that_does_not_fill() -> None:
    assert not comes_with_a_store(facts(store(0, 10, 20, 30, capacity=30)), growth(10), 4)
    assert comes_with_a_store(facts(store(5, 5, 5, 5), store(0, 10, 20, 30)), growth(10), 4)


@pytest.mark.parametrize(
    ("length", "counts", "size", "stored"),
    [
        ([10, 20, 30], [10, 20, 30], 15, True),
        # Half more than an item takes at most.
        ([10, 20, 30], [10, 20, 30], 16, False),
        # Three lengths must agree, within two in a hundred.
        ([10, 20, 20], [10, 20, 20], 10, False),
        ([10, 20, 30], [10, 20, None], 10, False),
        ([50, 100, 200], [51, 102, 196], 10, True),
        ([50, 100, 200], [51, 102.5, 196], 10, False),
        ([50, 100, 200], [51, 102, 195], 10, False),
        # Beyond its capacity it holds more than was declared.
        ([10, 20, 1_000], [10, 20, 1_000], 10, True),
        ([10, 20, 1_001], [10, 20, 1_001], 10, False),
        ([0, 0, 0], [0, 0, 0], 10, False),
    ],
)
def test_objects_may_be_the_items_of_a_store_where_they_are_as_many_and_of_their_size(
    length: list[float], counts: list[Value], size: int, stored: bool
) -> None:
    told = store(*length, size=[10 * n for n in length])
    assert is_stored(facts(told, each={"Item": size}, counts=counts), "Item", 3) is stored


def test_objects_of_unknown_size_are_not_excused() -> None:
    told = store(10, 20, 30, size=[100, 200, 300])
    assert not is_stored(facts(told, counts=[10, 20, 30]), "Item", 3)
    assert not is_stored(facts(store(10, 20, 30), each={"Item": 5}, counts=[10, 20, 30]), "Item", 3)


def test_only_what_is_beyond_its_capacity_now_overshoots() -> None:
    over = store(*(10.0 * i for i in range(8)), capacity=30)
    pruned = store(*(10.0 * i for i in range(7)), 5, capacity=30, name="pruned")
    found: list[Any] = list(overshooting(facts(over, pruned), 8))
    assert [(name, grown.slope) for name, grown in found] == [("replay", 10)]

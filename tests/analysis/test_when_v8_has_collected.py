"""What Node keeps beside its tensors: which reading is of a collection, and what is known between two and behind."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from leakline.analysis.collected import (
    YOUNG,
    _Collector,
    _kept_and_native,
    _longest_gap,
    _lowered,
    _on_lines,
    _told_upto,
    beside_tensors,
    is_told,
    told_for_good,
)
from leakline.analysis.history import Value
from leakline.analysis.javascript import is_javascript, is_page
from leakline.analysis.series import Lane, fill_gaps

MIB = 2**20
HEAP, OUTSIDE = "js.heap_bytes", "js.external_bytes"
RESIDENT, TENSORS = "process.rss_bytes", "tfjs.bytes"
N = None


@pytest.mark.parametrize(
    ("kept", "lowered"),
    [
        ([5, 4, 3, 9], [3, 3, 3, 9]),
        # Two collections later at most.
        ([5, 6, 7, 1], [5, 1, 1, 1]),
        ([N, 5, N, 4, N], [N, 4, N, 4, N]),
        ([], []),
    ],
)
def test_what_is_kept_is_no_more_than_the_next_two_collections_find(
    kept: list[Value], lowered: list[Value]
) -> None:
    assert _lowered(kept) == lowered


@pytest.mark.parametrize(
    ("kept", "upto"),
    [
        ([1, 1, 1, 1], 3),
        ([1, N, 1, 1, N, 1, N], 4),
        ([1, 1, 1], 0),
        # Three are enough where each lies above the one before by more than the young objects.
        ([0, YOUNG + 1, 2 * YOUNG + 2], 2),
        ([0, YOUNG, 2 * YOUNG + 1], 0),
        ([0, YOUNG + 1, 2 * YOUNG + 1], 0),
        ([0, N, YOUNG + 1], 0),
        ([], 0),
    ],
)
def test_four_floors_are_a_trend_and_three_that_are_clear(kept: list[Value], upto: int) -> None:
    assert _told_upto(kept) == upto


@pytest.mark.parametrize(
    ("kept", "gap"), [([1, N, N, 1, 1], 3), ([N, 1, N], 0), ([1, 1], 1), ([], 0)]
)
def test_the_longest_gap_lies_between_two_collections(kept: list[Value], gap: int) -> None:
    assert _longest_gap(kept) == gap


def test_between_two_collections_what_is_kept_lies_on_a_line() -> None:
    assert _on_lines([10, N, N, 40, N, 50, N]) == [10, 20, 30, 40, 45, 50, 50]
    assert _on_lines([N, 10, 7]) == [10, 10, 7]


def collector(heap: Sequence[float], outside: Sequence[float]) -> _Collector:
    beside = [h + o for h, o in zip(heap, outside, strict=True)]
    return _Collector(heap, outside, beside)


def after_each(heap: Sequence[float], outside: Sequence[float]) -> list[Value]:
    """One reading per generation, and the first before any of them."""
    told = collector(heap, outside)
    return [told.after(end, end) for end in range(1, len(heap))]


@pytest.mark.parametrize(("fall", "collected"), [(YOUNG, False), (YOUNG + 1, True)])
def test_the_heap_was_collected_where_it_lost_more_than_the_young(
    fall: int, collected: bool
) -> None:
    heap = [100 * MIB, 100 * MIB, 100 * MIB - fall]
    assert after_each(heap, [0, 0, 0]) == [None, heap[2] if collected else None]


@pytest.mark.parametrize(
    ("outside", "collected"),
    [
        # Half a MiB down, and below what the generations before led to.
        ([0, 10 * MIB, 9.5 * MIB], True),
        ([0, 10 * MIB, 9.5 * MIB + 1], False),
        # After a high reading it is back on its line of 4 MiB a generation.
        ([0, 10 * MIB, 14 * MIB, 18 * MIB, 34 * MIB, 22 * MIB], False),
        ([0, 10 * MIB, 14 * MIB, 18 * MIB, 34 * MIB, 21.9 * MIB], True),
        # Three generations are looked back on: of an older one it may lie above.
        ([0, 2 * MIB, 14 * MIB, 15 * MIB, 16 * MIB, 13 * MIB], True),
        ([0, 8 * MIB, 14 * MIB, 12 * MIB], True),
    ],
)
def test_buffers_were_collected_where_they_fall_below_what_they_led_to(
    outside: list[float], collected: bool
) -> None:
    assert (after_each([MIB] * len(outside), outside)[-1] is not None) is collected


def test_of_the_generation_of_a_collection_the_least_reading_is_kept() -> None:
    heap = [100 * MIB, 100 * MIB, 50 * MIB, 40 * MIB, 60 * MIB, 100 * MIB]
    told = collector(heap, [0.0] * 6)
    assert told.after(1, 1) is None
    assert told.after(2, 4) == 40 * MIB
    assert (told.kept, told.heap_kept) == (40 * MIB, 40 * MIB)


@pytest.mark.parametrize(
    ("end", "more"),
    [
        # Three times what the heap kept and 64 MiB may lie.
        (3 * 10 * MIB + 64 * MIB + 10 * MIB, None),
        (3 * 10 * MIB + 64 * MIB + 10 * MIB + 1, 10 * MIB + 1),
    ],
)
def test_what_v8_would_not_let_lie_is_kept_without_a_collection(end: int, more: Value) -> None:
    assert after_each([10 * MIB, end], [0, 0]) == [more]


def lane(
    heap: Sequence[Value], *, tensors: int = 0, resident: int = 1_000 * MIB, segment: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
) -> Lane:  # fmt: skip
    n = len(heap)
    rows = tuple(range(n))
    return Lane(
        "rank 0 main", "p", kinds or ["generation_end"] * n, [None] * n, [60.0 * i for i in range(n)], rows,
        {HEAP: heap, OUTSIDE: [0] * n, RESIDENT: [resident] * n, TENSORS: [tensors] * n},
        segment or [0] * n, rows, rows, None, {i: i for i in range(n)},
    )  # fmt: skip


def test_native_memory_is_above_the_highest_that_v8_has_held() -> None:
    heap = [100 * MIB, 80 * MIB, 120 * MIB, 90 * MIB]
    kept, native = _kept_and_native(lane([h + MIB for h in heap], tensors=MIB))
    highest = [100, 100, 120, 120]
    assert native == [(1_000 - 1 - top) * MIB for top in highest]
    # It fell by more than the young in the second and the fourth.
    assert kept == [None, 80 * MIB, None, 90 * MIB]


def test_each_attempt_has_a_collector_of_its_own() -> None:
    heap = [100 * MIB, 100 * MIB, 20 * MIB, 20 * MIB]
    assert _kept_and_native(lane(heap))[0] == [None, None, 20 * MIB, None]
    resumed = _kept_and_native(lane(heap, segment=[0, 0, 1, 1]))
    assert resumed[0] == [None] * 4


def test_a_generation_that_goes_on_is_not_known_yet() -> None:
    heap = [100 * MIB, 100 * MIB, 20 * MIB]
    kinds = ["generation_end", "generation_end", "phase_end"]
    assert _kept_and_native(lane(heap, kinds=kinds))[0] == [None] * 3
    # Of one before the last the collection has been seen.
    kinds = ["generation_end", "generation_end", "phase_end", "generation_end"]
    assert _kept_and_native(lane([*heap, 20 * MIB], kinds=kinds))[0][2] == 20 * MIB


def teeth(floors: Sequence[float]) -> list[Value]:
    """In every second generation a collection down to the next of these floors, in MiB."""
    return [value * MIB for floor in floors for value in (floor + 50, floor)]


def test_behind_the_last_floor_but_one_it_stands() -> None:
    beside = beside_tensors(lane(teeth([10, 20, 30, 40, 50])))
    # Floors at 1, 3, 5, 7 and 9; that of 7 is the last but one.
    assert (beside.told, beside.longest_gap) == (8, 2)
    assert [value / MIB for value in beside.kept] == [10, 10, 15, 20, 25, 30, 35, 40, 40, 40]
    assert told_for_good(lane(teeth([10, 20, 30, 40, 50])), 10) == 6
    assert told_for_good(lane(teeth([10, 20, 30, 40, 50])), 8) == 4
    assert told_for_good(lane(teeth([10, 20])), 4) == 0


def test_while_floors_are_few_the_first_is_all_that_is_known() -> None:
    few = beside_tensors(lane(teeth([10, 20])))
    assert ([value / MIB for value in few.kept], few.told) == ([10] * 4, 0)
    assert beside_tensors(lane([MIB] * 3)).kept == (0.0, 0.0, 0.0)


def test_a_page_has_no_memory_of_a_process() -> None:
    page, node = {TENSORS: [1]}, {TENSORS: [1], RESIDENT: [1]}
    assert [is_javascript(series) for series in (page, node, {RESIDENT: [1]})] == [
        True,
        True,
        False,
    ]
    assert [is_page(series) for series in (page, node, {})] == [True, False, False]
    assert is_told(lane([1]))
    without = SimpleNamespace(has=lambda name: name != OUTSIDE)
    assert not is_told(cast(Lane, without))


@pytest.mark.parametrize(
    ("values", "filled"), [([N, 2, N, 0, N], [2, 2, 2, 0, 0]), ([N, N], []), ([], [])]
)
def test_a_gap_repeats_what_stood_before_it(values: list[Value], filled: list[float]) -> None:
    assert fill_gaps(values) == filled

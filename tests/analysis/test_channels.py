"""What each kind of memory is read from, how gaps in it are bridged, and what a device keeps for no tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from pieces import ends_timeline

from leakline.analysis.memory.memory_kinds import (
    Channel,
    IdleCache,
    _swing,
    allocator_rate,
    bridged_for_good,
    channels_of,
    garbage_per_generation,
    idle_in_cache,
)
from leakline.analysis.run_history import Value
from leakline.analysis.statistics.memory_evidence import Scale
from leakline.analysis.timeline import bridge_gaps

ANON = {"process.anon_bytes": [1000] * 4}


@pytest.mark.parametrize(
    ("told", "longest_gap", "end", "stands"),
    [
        (0, 0, 40, 40), (10, 0, 43, 43), (10, 17, 44, 10), (10, 17, 45, 45), (10, 0, 5, 5),
    ],
    ids=["all", "33 ago", "twice the longest", "longer", "before"],
)  # fmt: skip
def test_what_was_told_last_stands_for_32_generations_or_twice_the_longest_gap(
    told: int, longest_gap: int, end: int, stands: int
) -> None:
    channel = Channel("js.kept", "objects", (), told=told, longest_gap=longest_gap)
    assert channel.stands(end) == stands


@pytest.mark.parametrize(
    ("values", "filled"),
    [
        ([100, None, 40], [100, 70, 40]), ([0, *[None] * 31, 32], list(range(33))),
        ([0, *[None] * 16, 17, *[None] * 33, 51], list(range(52))),
        ([0, 1, 2, *[None] * 32, 35], [0, 1, 2, *[2] * 32, 35]),
    ],
    ids=["down", "32", "34 after 17", "33 after one"],
)  # fmt: skip
def test_gaps_are_straight_lines_where_they_are_short_enough(
    values: list[Value], filled: list[float]
) -> None:
    assert bridge_gaps(values) == filled


def test_growth_of_a_channel_is_held_against_all_that_lies_in_the_same_memory() -> None:
    private, values, beside = (100.0, 100.0, 100.0), (10.0, 20.0, 90.0), (5.0, 6.0, 7.0)
    own = Channel("c", "gpu", values, 500.0)
    assert own.scale(private, 3, 9.0) == Scale(20.0, 500.0, 90.0, 9.0)
    shared = Channel("c", "gpu", values, 500.0, beside=beside)
    assert shared.scale(private, 3, None) == Scale(26.0, 500.0, 97.0, None)
    children = Channel("c", "children", values, own_baseline=False)
    assert children.scale(private, 3, None) == Scale(120.0, None, 90.0, None)


def test_growth_of_what_began_later_is_held_against_its_own_size() -> None:
    private, late = (100.0,) * 6, (0.0, 0.0, 0.0, 50.0, 60.0, 70.0)
    children = Channel("c", "children", late, own_baseline=False)
    assert [children.scale(private, n, None).baseline_bytes for n in (3, 4, 6)] == [100, 150, 160]
    # What counts is what was read, not the line between two readings.
    gaps = Channel("c", "children", (0, 12.5, 25, 37.5, 50, 60), own_baseline=False, read=(0, 4, 5))
    assert gaps.scale(private, 6, None).baseline_bytes == 155
    device = Channel("c", "gpu", late, beside=(0.0, 7.0, 7.0, 7.0, 9.0, 9.0))
    assert device.scale(private, 6, None).baseline_bytes == 67


def _channels(**series: Sequence[Value]) -> dict[str, tuple[float, ...]]:
    named = {name.replace("__", "."): values for name, values in series.items()}
    return {c.name: c.values for c in channels_of(ends_timeline({**ANON, **named}))}


def test_children_are_read_as_what_is_theirs_alone_where_that_is_known() -> None:
    own, part = [1, 2, 3, 4], [5, 6, 7, 8]
    assert _channels(children__uss_bytes=own, children__pss_bytes=part) == {
        "children.uss_bytes": (1, 2, 3, 4)
    }
    assert _channels(children__pss_bytes=part) == {"children.pss_bytes": (5, 6, 7, 8)}
    assert _channels() == {}


def test_ranks_that_one_has_started_are_no_children_of_it() -> None:
    timeline = ends_timeline(
        {**ANON, "children.uss_bytes": [9, 9, 9, 9], "children.ranks.uss_bytes": [4, 9, 12, 0]}
    )
    (apart,) = channels_of(timeline, ranks_until=math.inf)
    assert (apart.values, apart.own_baseline) == ((5, 0, 0, 9), False)
    assert channels_of(timeline)[0].values == (9, 9, 9, 9)
    timeline = ends_timeline({**ANON, "children.uss_bytes": [9, 9, 9, 9]})
    assert channels_of(timeline, ranks_until=math.inf)[0].values == (9, 9, 9, 9)


def test_a_device_is_read_as_its_tensors_what_is_spare_and_what_lies_outside() -> None:
    timeline = ends_timeline(
        {
            **ANON,
            "cuda.1.allocated_bytes": [10] * 4,
            "cuda.1.reserved_bytes": [16] * 4,
            "gpu.1.outside_bytes": [3] * 4,
            "gpu.1.process_bytes": [19] * 4,
            "gpu.1.total_bytes": [80, 80, 80, 90],
            "process.shared_bytes": [2] * 4,
        }
    )
    tens, sixteens, threes, twos = ((v,) * 4 for v in (10.0, 16.0, 3.0, 2.0))
    assert list(channels_of(timeline)) == [
        Channel("process.shared_bytes", "shared_memory", twos, own_baseline=False),
        Channel("cuda.1.allocated_bytes", "gpu", tens, 90.0),
        Channel("cuda.1.reserved_bytes", "gpu_fragmentation", (6.0,) * 4, 90.0, beside=tens),
        Channel("gpu.1.outside_bytes", "gpu", threes, 90.0, beside=sixteens),
    ]


def test_a_device_without_torch_is_read_as_the_driver_sees_it() -> None:
    assert _channels(gpu__0__process_bytes=[7] * 4, gpu__0__outside_bytes=[1] * 4) == {
        "gpu.0.process_bytes": (7.0,) * 4
    }
    timeline = ends_timeline(
        {**ANON, "mps.allocated_bytes": [5] * 4, "mps.limit_bytes": [6, 6, 6, 8]}
    )
    assert channels_of(timeline) == (Channel("mps.allocated_bytes", "gpu", (5.0,) * 4, 8.0),)
    assert _channels(cuda__0__reserved_bytes=[7] * 4) == {}
    assert list(_channels(cuda__0__allocated_bytes=[7] * 4)) == ["cuda.0.allocated_bytes"]


def test_beside_the_tensors_a_page_has_its_heap_and_node_what_is_resident() -> None:
    tensors, heap, resident = [10] * 4, [5] * 4, [50] * 4
    assert _channels(tfjs__bytes=tensors, js__heap_bytes=heap) == {"js.heap_bytes": (5.0,) * 4}
    assert _channels(
        tfjs__bytes=tensors, js__heap_bytes=heap, process__rss_bytes=resident
    ) == {"process.rss_bytes": (40.0,) * 4}  # fmt: skip
    timeline = ends_timeline({"tfjs.bytes": tensors, "process.rss_bytes": resident})
    assert channels_of(timeline) == (
        Channel("process.rss_bytes", "objects", (40.0,) * 4),
    )  # fmt: skip
    assert _channels(tfjs__bytes=tensors) == {}
    assert _channels(js__heap_bytes=heap) == {}


@pytest.mark.parametrize(
    ("read", "end", "settled"),
    [
        ([1] * 40, 40, 40), ([1] * 39 + [None], 40, 39), ([1] * 8 + [None] * 32, 40, 8),
        ([1] * 8 + [None] * 33, 41, 41), ([1, *[None] * 16, 1, *[None] * 34], 52, 18),
        ([1, *[None] * 16, 1, *[None] * 35], 53, 53), ([None] * 20 + [1] * 20, 20, 0),
        ([1] * 20 + [None] * 33, 53, 53),
    ],
    ids=["all", "the newest", "a gap of 32", "33", "34 after 17", "35 after 17", "nothing yet", "33 after one"],
)  # fmt: skip
def test_a_gap_that_may_still_be_bridged_is_not_settled(
    read: list[Value], end: int, settled: int
) -> None:
    timeline = ends_timeline(
        {"process.anon_bytes": [1000] * len(read), "process.shared_bytes": read}
    )
    assert bridged_for_good(timeline, end) == settled


def test_a_gap_in_what_is_no_channel_keeps_nothing_open() -> None:
    assert bridged_for_good(ends_timeline({**ANON, "js.heap_bytes": [1, 1, None, None]}), 4) == 4
    page: dict[str, Sequence[Value]] = {"tfjs.bytes": [1] * 4, "js.heap_bytes": [1, 1, None, None]}
    assert bridged_for_good(ends_timeline(page), 4) == 2


@pytest.mark.parametrize(
    ("private", "end", "swing"),
    [
        ([50, 10, 50, 10, 50], 5, 40.0), ([50, 40, 90, 60, 95, 45], 6, 30.0), ([9, 1, 2, 3], 4, 8.0),
        ([9, 1, 2, 3, 4], 5, 0.0), ([*[900, 0] * 8, *[50, 40] * 8], 32, 10.0),
    ],
    ids=["up and down", "the middle fall", "one in four", "one in five", "as it swings now"],
)  # fmt: skip
def test_memory_swings_where_a_quarter_of_its_steps_are_falls(
    private: list[Value], end: int, swing: float
) -> None:
    assert _swing(ends_timeline({"process.anon_bytes": private}), end) == swing


def _garbage(rate: int, fall: int, n: int = 8, looks: int | None = None) -> float | None:
    private: list[Value] = [1000 + fall * (g % 2) for g in range(n)]
    freed: list[Value] = [
        rate * g if g < (n if looks is None else looks) else None for g in range(n)
    ]
    timeline = ends_timeline({"process.anon_bytes": private, "python.garbage_freed": freed})
    return garbage_per_generation(timeline, n)


@pytest.mark.parametrize(
    ("rate", "fall", "n", "looks", "garbage"),
    [
        (1000, 100, 8, None, 1000.0), (1000, 99, 8, None, None), (1000, 100, 9, 7, None),
    ],
    ids=["a thousand", "memory hardly swings", "seven looks"],
)  # fmt: skip
def test_a_thousand_freed_in_each_generation_matter_where_memory_swings_by_a_tenth(
    rate: int, fall: int, n: int, looks: int | None, garbage: float | None
) -> None:
    assert _garbage(rate, fall, n, looks) == garbage


def test_garbage_and_what_the_allocator_keeps_are_told_as_they_grow_now() -> None:
    """By the newest 16 looks at garbage, and the newest 64 at the allocator."""
    slow: list[Value] = [g * 100 for g in range(40)]
    freed = [*slow, *[4000 + 2000 * g for g in range(1, 17)]]
    private: list[Value] = [1000 + 200 * (g % 2) for g in range(56)]
    timeline = ends_timeline({"process.anon_bytes": private, "python.garbage_freed": freed})
    assert garbage_per_generation(timeline, 56) == 2000.0
    kept: list[Value] = [*range(80), *[80 + 10 * g for g in range(1, 65)]]
    assert allocator_rate(ends_timeline({"allocator.kept_bytes": kept}), 0, 144) == 10.0


def _cache(
    kept: list[Value], tensors: list[Value], split: list[Value] | None = None, device: str = "cuda.0"
) -> IdleCache | None:  # fmt: skip
    series = {f"{device}.reserved_bytes": kept, f"{device}.allocated_bytes": tensors}
    if split is not None:
        series[f"{device}.inactive_split_bytes"] = split
    return idle_in_cache(ends_timeline({**ANON, **series}), f"{device}.reserved_bytes")


@pytest.mark.parametrize(
    ("kept", "split", "bytes_idle", "whole"),
    [
        (150, None, 50.0, False), (149, None, None, False), (150, 25, 25.0, True), (150, 0, 50.0, True),
    ],
    ids=["half as much again", "less", "half in pieces", "no pieces"],
)  # fmt: skip
def test_a_cache_is_idle_where_it_is_half_the_tensors_and_half_of_it_can_be_given_back(
    kept: int, split: int | None, bytes_idle: float | None, whole: bool
) -> None:
    found = _cache([kept] * 4, [100] * 4, None if split is None else [split] * 4)
    assert found == (None if bytes_idle is None else IdleCache("cuda.0", bytes_idle, whole))


def test_a_cache_is_idle_by_four_looks_of_which_the_least_counts() -> None:
    found = _cache([210, 190, 200, 150], [100] * 4)
    assert found == IdleCache("cuda.0", 50.0, False)
    assert _cache([None, 200, 200, 200], [100] * 4) is None
    assert _cache([200, 200, 200, 149], [100] * 4) is None
    # One look that did not tell of the pieces: all may be given back.
    assert _cache([200] * 4, [100] * 4, [60, 60, None, 60]) == IdleCache("cuda.0", 100.0, False)
    assert _cache([200] * 4, [100] * 4, [60, 10, 10, 10]) is None


def test_only_what_torch_keeps_of_a_device_is_its_cache() -> None:
    assert _cache([200] * 4, [100] * 4, device="gpu.0") is None
    assert idle_in_cache(ends_timeline(ANON), "cuda.0.reserved_bytes") is None
    assert _cache([0] * 4, [0] * 4) is None


@pytest.mark.parametrize(
    ("start", "rate"),
    [(4, 10.0), (5, 10.0), (6, None), (99, None)],
    ids=["five readings", "four", "three", "none"],
)
def test_what_the_allocator_keeps_has_a_rate_from_four_readings_since_the_start_on(
    start: float, rate: float | None
) -> None:
    kept: list[Value] = [0, 70, 70, 90, 100, 110, 120, 130]
    assert allocator_rate(ends_timeline({"allocator.kept_bytes": kept}), start, 8) == rate
    assert allocator_rate(ends_timeline(ANON), start, 4) is None

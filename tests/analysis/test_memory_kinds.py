"""Kinds of memory: which series they are read from, how gaps are bridged, and which child processes grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from builder import MIB, curve, history_of
from pieces import ends_history, ends_timeline, steps_history

from leakline.analysis import RunHistory, examine
from leakline.analysis.memory.memory_kinds import (
    Channel,
    GrowingChildren,
    IdleCache,
    _swing,
    allocator_rate,
    bridged_for_good,
    channels_of,
    garbage_per_generation,
    growing_children,
    growing_lines,
    idle_in_cache,
    part_that_grows,
)
from leakline.analysis.results import Finding, Suspect
from leakline.analysis.run_history import Value
from leakline.analysis.statistics.memory_evidence import Scale
from leakline.analysis.timeline import bridge_gaps

ANON = {"process.anon_bytes": [1000] * 4}


@pytest.mark.parametrize(
    ("last", "longest_gap", "end", "stands"),
    [
        (0, 0, 40, 40), (10, 0, 43, 43), (10, 17, 44, 10), (10, 17, 45, 45), (10, 0, 5, 5),
    ],
    ids=["all", "33 ago", "twice the longest", "longer", "before"],
)  # fmt: skip
def test_a_reading_is_valid_for_32_generations_or_twice_the_gap(
    last: int, longest_gap: int, end: int, stands: int
) -> None:
    channel = Channel("js.kept", "objects", (), known_until=last, longest_gap=longest_gap)
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
def test_short_gaps_are_interpolated(values: list[Value], filled: list[float]) -> None:
    assert bridge_gaps(values) == filled


def test_growth_of_a_channel_is_compared_with_all_of_its_memory() -> None:
    private, values, others = (100.0, 100.0, 100.0), (10.0, 20.0, 90.0), (5.0, 6.0, 7.0)
    own = Channel("c", "gpu", values, 500.0)
    assert own.scale(private, 3, 9.0) == Scale(20.0, 500.0, 90.0, 9.0)
    shared = Channel("c", "gpu", values, 500.0, other_values=others)
    assert shared.scale(private, 3, None) == Scale(26.0, 500.0, 97.0, None)
    children = Channel("c", "children", values, own_baseline=False)
    assert children.scale(private, 3, None) == Scale(120.0, None, 90.0, None)


def test_growth_of_a_later_channel_is_compared_with_its_own_size() -> None:
    private, late = (100.0,) * 6, (0.0, 0.0, 0.0, 50.0, 60.0, 70.0)
    children = Channel("c", "children", late, own_baseline=False)
    assert [children.scale(private, n, None).baseline_bytes for n in (3, 4, 6)] == [100, 150, 160]
    # Only real readings count, not the interpolated line between two of them.
    gaps = Channel("c", "children", (0, 12.5, 25, 37.5, 50, 60), own_baseline=False, read=(0, 4, 5))
    assert gaps.scale(private, 6, None).baseline_bytes == 155
    device = Channel("c", "gpu", late, other_values=(0.0, 7.0, 7.0, 7.0, 9.0, 9.0))
    assert device.scale(private, 6, None).baseline_bytes == 67


def _channels(**series: Sequence[Value]) -> dict[str, tuple[float, ...]]:
    named = {name.replace("__", "."): values for name, values in series.items()}
    return {c.name: c.values for c in channels_of(ends_timeline({**ANON, **named}))}


def test_children_are_read_by_unique_size_if_known() -> None:
    own, part = [1, 2, 3, 4], [5, 6, 7, 8]
    assert _channels(children__uss_bytes=own, children__pss_bytes=part) == {
        "children.uss_bytes": (1, 2, 3, 4)
    }
    assert _channels(children__pss_bytes=part) == {"children.pss_bytes": (5, 6, 7, 8)}
    assert _channels() == {}


def test_ranks_started_by_a_rank_are_not_its_children() -> None:
    timeline = ends_timeline(
        {**ANON, "children.uss_bytes": [9, 9, 9, 9], "children.ranks.uss_bytes": [4, 9, 12, 0]}
    )
    (apart,) = channels_of(timeline, ranks_until=math.inf)
    assert (apart.values, apart.own_baseline) == ((5, 0, 0, 9), False)
    assert channels_of(timeline)[0].values == (9, 9, 9, 9)


def test_a_device_is_split_into_tensors_cache_and_other_memory() -> None:
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
        Channel("cuda.1.reserved_bytes", "gpu_fragmentation", (6.0,) * 4, 90.0, other_values=tens),
        Channel("gpu.1.outside_bytes", "gpu", threes, 90.0, other_values=sixteens),
    ]


def test_a_device_without_torch_is_read_from_the_driver() -> None:
    assert _channels(gpu__0__process_bytes=[7] * 4, gpu__0__outside_bytes=[1] * 4) == {
        "gpu.0.process_bytes": (7.0,) * 4
    }
    timeline = ends_timeline(
        {**ANON, "mps.allocated_bytes": [5] * 4, "mps.limit_bytes": [6, 6, 6, 8]}
    )
    assert channels_of(timeline) == (Channel("mps.allocated_bytes", "gpu", (5.0,) * 4, 8.0),)
    assert _channels(cuda__0__reserved_bytes=[7] * 4) == {}
    assert list(_channels(cuda__0__allocated_bytes=[7] * 4)) == ["cuda.0.allocated_bytes"]


def test_a_page_also_has_its_heap_and_node_its_resident_memory() -> None:
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
def test_a_gap_that_may_be_bridged_is_not_final(read: list[Value], end: int, settled: int) -> None:
    timeline = ends_timeline(
        {"process.anon_bytes": [1000] * len(read), "process.shared_bytes": read}
    )
    assert bridged_for_good(timeline, end) == settled


def test_a_gap_in_an_unused_series_keeps_nothing_open() -> None:
    page: dict[str, Sequence[Value]] = {"tfjs.bytes": [1] * 4, "js.heap_bytes": [1, 1, None, None]}
    assert bridged_for_good(ends_timeline({**ANON, **page}), 4) == 2
    del page["tfjs.bytes"]
    assert bridged_for_good(ends_timeline({**ANON, **page}), 4) == 4


@pytest.mark.parametrize(
    ("private", "end", "swing"),
    [
        ([50, 10, 50, 10, 50], 5, 40.0), ([50, 40, 90, 60, 95, 45], 6, 30.0), ([9, 1, 2, 3], 4, 8.0),
        ([9, 1, 2, 3, 4], 5, 0.0), ([*[900, 0] * 8, *[50, 40] * 8], 32, 10.0),
    ],
    ids=["up and down", "the middle fall", "one in four", "one in five", "as it swings now"],
)  # fmt: skip
def test_memory_swings_if_a_quarter_of_its_steps_are_falls(
    private: list[Value], end: int, swing: float
) -> None:
    assert _swing(ends_timeline({"process.anon_bytes": private}), end) == swing


@pytest.mark.parametrize(
    ("rate", "fall", "n", "looks", "garbage"),
    [
        (1000, 100, 8, None, 1000.0), (1000, 99, 8, None, None), (1000, 100, 9, 7, None),
    ],
    ids=["a thousand", "memory hardly swings", "seven looks"],
)  # fmt: skip
def test_collected_garbage_matters_if_memory_swings_by_a_tenth(
    rate: int, fall: int, n: int, looks: int | None, garbage: float | None
) -> None:
    private: list[Value] = [1000 + fall * (g % 2) for g in range(n)]
    freed: list[Value] = [rate * g if looks is None or g < looks else None for g in range(n)]
    timeline = ends_timeline({"process.anon_bytes": private, "python.garbage_freed": freed})
    assert garbage_per_generation(timeline, n) == garbage


def test_rates_of_garbage_and_allocator_use_the_newest_readings() -> None:
    """Rates use the newest 16 garbage scans and the newest 64 allocator readings."""
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
def test_a_cache_is_idle_if_large_and_releasable(
    kept: int, split: int | None, bytes_idle: float | None, whole: bool
) -> None:
    found = _cache([kept] * 4, [100] * 4, None if split is None else [split] * 4)
    assert found == (None if bytes_idle is None else IdleCache("cuda.0", bytes_idle, whole))


def test_an_idle_cache_is_the_minimum_of_four_readings() -> None:
    found = _cache([210, 190, 200, 150], [100] * 4)
    assert found == IdleCache("cuda.0", 50.0, False)
    assert _cache([None, 200, 200, 200], [100] * 4) is None
    assert _cache([200, 200, 200, 149], [100] * 4) is None
    # One reading does not include the split blocks, so all of the cache counts as releasable.
    assert _cache([200] * 4, [100] * 4, [60, 60, None, 60]) == IdleCache("cuda.0", 100.0, False)
    assert _cache([200] * 4, [100] * 4, [60, 10, 10, 10]) is None


def test_only_memory_kept_by_torch_is_its_cache() -> None:
    assert _cache([200] * 4, [100] * 4, device="gpu.0") is None
    assert idle_in_cache(ends_timeline(ANON), "cuda.0.reserved_bytes") is None
    assert _cache([0] * 4, [0] * 4) is None


@pytest.mark.parametrize(
    ("start", "rate"),
    [(4, 10.0), (5, 10.0), (6, None), (99, None)],
    ids=["five readings", "four", "three", "none"],
)
def test_the_allocator_rate_needs_four_readings_since_the_start(
    start: float, rate: float | None
) -> None:
    kept: list[Value] = [0, 70, 70, 90, 100, 110, 120, 130]
    assert allocator_rate(ends_timeline({"allocator.kept_bytes": kept}), start, 8) == rate
    assert allocator_rate(ends_timeline(ANON), start, 4) is None


GENERATIONS = 40
ACTOR = "The only child listed individually grows: actor by 8.00 MiB per generation."
REST = "The children that are not listed individually grow by"


def children_of(history: RunHistory) -> Finding | None:
    findings = [f for f in examine(history).findings if f.kind == "children" and f.status != "ok"]
    return next(iter(findings), None)


def finding_of(**gained: float) -> Finding | None:
    """Return the finding for children of 40 MiB that gain this many MiB per generation from the tenth on."""
    sizes = {
        name: [MIB * (40 + rate * max(0, i - 10)) for i in range(GENERATIONS)]
        for name, rate in gained.items()
    }
    both = [sum(each) for each in zip(*sizes.values(), strict=True)]
    series = {f"children__process__{name}__uss_bytes": size for name, size in sizes.items()}
    flat = curve(lambda _: 0.0, GENERATIONS)
    return children_of(history_of(flat, children__uss_bytes=both, **series))


def names(finding: Finding) -> list[tuple[str, str]]:
    return [(s.role, s.name) for s in finding.suspects]


def test_growing_children_are_named_largest_first() -> None:
    finding = finding_of(actor=6, learner=12, reader=0.5)
    assert finding is not None
    assert names(finding) == [("process", "learner"), ("process", "actor")]


@pytest.mark.parametrize(
    ("gained", "named", "lines"),
    [
        ({"actor": 0, "other": 8}, [], [f"{REST} 8.00 MiB per generation."]),
        ({"actor": 8, "other": 0.5}, ["actor"], [ACTOR]),
        ({"actor": 8, "other": 4}, ["actor"], [ACTOR, f"{REST} 4.00 MiB per generation."]),
    ],
    ids=["the rest", "hardly the rest", "both"],
)  # fmt: skip
def test_children_without_their_own_series_grow_as_the_rest(
    gained: dict[str, float], named: list[str], lines: list[str]
) -> None:
    finding = finding_of(**gained)
    assert finding is not None
    assert [s.name for s in finding.suspects] == named
    assert [
        line for line in finding.evidence if "children" in line or "listed individually" in line
    ] == lines


def with_moves(rest: float) -> Finding | None:
    """``actor`` gains 8 MiB per generation. The rest gains ``rest`` MiB and is joined one after the other by three
    children of 40 MiB that had their own series until then.
    """
    readers = {
        f"reader-{i}": [MIB * 40.0 if g < 15 + 6 * i else None for g in range(GENERATIONS)]
        for i in range(3)
    }
    actor = [MIB * (40 + 8.0 * max(0, g - 10)) for g in range(GENERATIONS)]
    joined = [sum(row[g] is None for row in readers.values()) for g in range(GENERATIONS)]
    other = [MIB * (40 + 40.0 * joined[g] + rest * max(0, g - 10)) for g in range(GENERATIONS)]
    all_of_them = [actor[g] + other[g] + MIB * 40.0 * (3 - joined[g]) for g in range(GENERATIONS)]
    series = {
        f"children__process__{name}__uss_bytes": row
        for name, row in {**readers, "actor": actor, "other": other}.items()
    }
    flat = curve(lambda _: 0.0, GENERATIONS)
    return children_of(history_of(flat, children__uss_bytes=all_of_them, **series))


@pytest.mark.parametrize(("rest", "lines"), [(0, []), (4, [f"{REST} 4.00 MiB per generation."])])
def test_a_child_that_loses_its_series_is_not_growth_of_the_rest(
    rest: float, lines: list[str]
) -> None:
    finding = with_moves(rest)
    assert finding is not None
    assert names(finding) == [("process", "actor")]
    assert [line for line in finding.evidence if REST in line] == lines


@pytest.mark.parametrize("mib", [0.2, 8.0])
def test_a_late_child_that_warms_up_is_not_a_leak(mib: float) -> None:
    """A worker of 55 MiB from generation 3 on grows per generation like a cache while it fills."""
    sizes = [0.0, 0.0, 15 * MIB, *[MIB * (54 + mib * i) for i in range(13)]]
    baseline = [80.0 * MIB] * len(sizes)
    found = examine(history_of(baseline, children__uss_bytes=sizes)).findings
    assert any(f.kind == "children" for f in found) == (mib == 8.0)


@pytest.mark.parametrize(("name", "who"), [("actor-3", " (actor-3)"), ("other", "")])
def test_the_sentence_names_the_child_unless_the_rest_grows(name: str, who: str) -> None:
    grows = [MIB * (40 + 8.0 * i) for i in range(GENERATIONS)]
    series = {f"children__process__{name}__uss_bytes": grows}
    history = history_of(curve(lambda _: 0.0, GENERATIONS), children__uss_bytes=grows, **series)
    assert f"memory of child processes{who}: 8.00 MiB per generation" in examine(history).summary


def with_children(ranks_mib: float, others_mib: float, *, alone: bool) -> RunHistory:
    """Return a run whose children of rank 0 grow by this much; ``alone``: no other process reports."""
    flat = curve(lambda _: 0.0, GENERATIONS)
    ranks = [MIB * (50 + ranks_mib * i) for i in range(GENERATIONS)]
    others = [MIB * (20 + others_mib * i) for i in range(GENERATIONS)]
    both = [a + b for a, b in zip(ranks, others, strict=True)]
    history = history_of(flat, children__uss_bytes=both, children__ranks__uss_bytes=ranks)
    if alone:
        return history
    (rank,) = history_of(flat).processes
    return replace(history, processes=(*history.processes, replace(rank, instance="q", rank=1)))


@pytest.mark.parametrize(
    ("others", "alone", "found"), [(0, False, None), (0, True, 9), (9, False, 9), (9, True, 18)]
)
def test_started_ranks_count_only_if_they_do_not_report_themselves(
    others: float, alone: bool, found: float | None
) -> None:
    finding = children_of(with_children(9, others, alone=alone))
    rate = finding and round(finding.growth_bytes_per_generation.estimate / MIB)
    assert rate == found


@pytest.mark.parametrize(
    ("own", "named"),
    [(5.0, True), (6.2, True), (3.8, True), (6.8, False), (3.2, False), (0.0, False), (-5.0, False)],
)  # fmt: skip
def test_native_growth_is_explained_by_a_library_that_grows_at_the_same_rate(
    own: float, named: bool
) -> None:
    private = curve(lambda i: 5.0 * i, GENERATIONS, noise=0.1)
    reports = [MIB * (300 + own * i) for i in range(GENERATIONS)]
    idle = [MIB * 10.0] * GENERATIONS
    history = history_of(private, library__pyarrow__bytes=reports, library__sqlite__bytes=idle)
    verdict = examine(history)
    (finding,) = (f for f in verdict.findings if f.kind == "native")
    assert names(finding) == ([("library", "pyarrow")] if named else [])
    assert ("The run gains memory of pyarrow: " in verdict.summary) is named
    assert any("release_unused()" in line for line in finding.advice) is named
    assert (finding.unknown is None) is named, "without a name, growth seen from outside is unknown"


@pytest.mark.parametrize("statistics", [False, True])
def test_allocations_name_a_library_that_reports_no_statistics(statistics: bool) -> None:
    private = curve(lambda i: 5.0 * i, GENERATIONS, noise=0.1)
    grows = [MIB * (300 + 4.5 * i) for i in range(GENERATIONS)]
    more = {"library__pyarrow__bytes": grows} if statistics else {}
    history = history_of(private, malloc__libarrow__bytes=grows, **more)
    (finding,) = (f for f in examine(history).findings if f.kind == "native")
    assert names(finding) == [("library", "pyarrow" if statistics else "libarrow")]
    said = "libarrow keeps 4.50 MiB more per generation, allocated with malloc: 90 %"
    assert any(line.startswith(said) for line in finding.evidence) is not statistics


def test_the_part_closest_to_the_growth_explains_it() -> None:
    parts = {
        f"mapping.{kind}.bytes": line(n) for kind, n in (("heap", 8), ("stacks", 11), ("files", 99))
    }
    assert part_that_grows(ends_timeline(parts), "mapping", None, 10) == ("stacks", 11)
    assert part_that_grows(ends_timeline(parts), "library", None, 10) is None
    assert part_that_grows(ends_timeline(parts), "mapping", 9, 10) is None, "two readings"


def child(name: str, kind: str = "uss") -> str:
    return f"children.process.{name}.{kind}_bytes"


def line(slope: float, n: int = 10) -> list[Value]:
    return [1_000 + slope * i for i in range(n)]


def test_at_most_eight_children_with_enough_readings_are_named() -> None:
    many = ends_timeline({child(f"c{i}"): line(10.0 + i) for i in range(10)})
    found = growing_children(many, None, 50).suspects
    assert [s.name for s in found] == [f"c{i}" for i in range(9, 1, -1)]
    rarely = ends_timeline({child("a"): [1, 50, None, None], child("b"): [1, 50, 99, None]})
    assert [s.name for s in growing_children(rarely, None, 50).suspects] == ["b"]


def test_growth_of_the_rest_starts_one_generation_earlier() -> None:
    timeline = ends_timeline({child("other"): [*[500] * 4, 1_000, 1_010, 1_020, 1_030]})
    # It grows by 10 from generation 4 on.
    assert growing_children(timeline, 5, 50).rest == 10
    # Two consecutive readings are too few, three are enough.
    assert growing_children(timeline, 6, 50).rest == 10
    assert growing_children(timeline, 7, 50).rest == 0


@pytest.mark.parametrize(
    ("growing", "lines"),
    [
        (GrowingChildren(), []),
        (
            GrowingChildren((Suspect("a", "process", None, 5), Suspect("b", "process")), 3, 7),
            [
                "Of 3 children listed individually, these grow: a by 5 B, b by 0 B per generation.",
                "The children that are not listed individually grow by 7 B per generation.",
            ],
        ),
    ],
)  # fmt: skip
def test_children_that_grow_are_written_in_lines(
    growing: GrowingChildren, lines: list[str]
) -> None:
    assert growing_lines(growing, "generation") == lines


def test_growing_kernel_memory_is_named_but_is_never_a_leak_of_the_run() -> None:
    slab = [float(100 * MIB + g * 20 * MIB) for g in range(40)]
    series = {"process.anon_bytes": [200 * MIB] * 40, "cgroup.slab_unreclaimable_bytes": slab}
    (found,) = examine(ends_history(series)).findings
    assert (found.status, found.kind) == ("watch", "external")
    assert any("kernel's own memory (slab)" in line for line in found.evidence)
    assert any("open files, sockets" in line for line in found.advice)
    series["cgroup.slab_unreclaimable_bytes"] = [100 * MIB] * 40
    assert not examine(ends_history(series)).findings


@pytest.mark.parametrize(
    ("phase_seconds", "group_rises", "status", "kind"),
    [
        (1.0, True, "confirmed", "shared_memory"), (9.0, True, "watch", "external"),
        (1.0, False, "watch", "external"),
    ],
    ids=["short phase", "long phase", "in another memory group"],
)  # fmt: skip
def test_files_that_grow_only_while_a_short_phase_runs_are_of_the_run(
    phase_seconds: float, group_rises: bool, status: str, kind: str
) -> None:
    steps, rows = [], []
    for g in range(40):
        files = 20 * MIB * (g + 1)
        group = files if group_rises else 20 * MIB
        for step in (("phase_end", g, "publish"), ("phase_end", g, "train")):
            steps.append(step)
            rows.append((group, None, None, None))
        steps.append(("generation_end", g, None))
        rows.append((group, files, phase_seconds, 10.0))
    names = (
        "cgroup.shmem_bytes", "shm.bytes", "phase.publish.seconds", "generation.seconds",
    )  # fmt: skip
    series = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    series |= {"process.anon_bytes": [200 * MIB] * 120, "shm.run_bytes": [0] * 120}
    (found,) = examine(steps_history(steps, series)).findings
    assert (found.status, found.kind, found.phase) == (
        status, kind, "publish" if group_rises else None,
    )  # fmt: skip

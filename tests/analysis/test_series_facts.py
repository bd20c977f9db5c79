"""Facts besides memory: holders of objects, counts that can be witnesses, and broken counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pieces import (
    ends_history,
    ends_timeline,
    growing,
    timeline_of,
)

from leakline.analysis.run_history import Expectation, Holders, Value, most_of
from leakline.analysis.series_facts import Facts, _is_stale, growth_of, leads_into
from leakline.analysis.timeline import timelines_of
from leakline.snapshot import CYCLIC_GARBAGE, Event, Holder

COUNT, COLLECTIONS = "type.app.Env.count", "python.collections_full"


def _facts(series: Mapping[str, Sequence[Value]], **more: Any) -> Facts:
    n = max(map(len, series.values()), default=8)
    history = ends_history({"process.anon_bytes": [1000] * n, **series}, **more)
    return Facts(history, timeline_of(history))


def test_a_path_leads_into_the_container_or_below_it() -> None:
    paths = ("app.log", "app.log[*]", "app.log.items", "app.logs", "app")
    assert [leads_into(path, "app.log") for path in paths] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("count", "later", "collections", "is_garbage"),
    [
        (50, [], [0, 0, 0, 0], True), (49, [], [0, 0, 0, 0], False), (50, [200, 200], [0, 0, 0, 0, 1, 2], False),
        (50, [200, 200], [0, 0, 0, 0, 1, 1], True), (50, [175, 175], [0, 0, 0, 0, 1, 2], True),
        (50, [176, 176], [0, 0, 0, 0, 1, 2], False), (50, [None, None], [0, 0, 0, 0, 1, 2], True),
    ],
    ids=["half of a rise", "less", "still there", "too few collections", "half went", "less went", "not read since"],
)  # fmt: skip
def test_garbage_is_the_holder_of_a_rise_if_it_is_half_of_it(
    count: int, later: list[Value], collections: list[Value], is_garbage: bool
) -> None:
    holders = (Holder(3, "app.Env", CYCLIC_GARBAGE, count), Holder(3, "app.Env", "app.kept[*]", 40))
    series = {COUNT: [100, 150, 180, 200, *later], COLLECTIONS: collections}
    found = _facts(series, holders=holders).holders
    assert (found["app.Env"] == CYCLIC_GARBAGE) == is_garbage


@pytest.mark.parametrize(
    ("gap", "since", "stale"),
    [(4, 2.4, True), (4, 2.5, False), (3, 0.0, False), (4, -5.0, True), (8, 2.4, True)],
    ids=["a quarter goes on", "more", "just read", "falls", "long ago"],
)
def test_an_old_count_is_outdated_if_memory_hardly_rises_since(
    gap: int, since: float, stale: bool
) -> None:
    private: list[Value] = [1000 + 100 * g for g in range(11)]
    private += [round(2000 + 10 * since * i) for i in range(1, gap + 1)]
    timeline = ends_timeline({"process.anon_bytes": private})
    assert _is_stale(timeline, growing(start=1, generations=9), 10.0, 11 + gap) == stale
    assert not _is_stale(timeline, growing(start=11, generations=9), 10.0, 11 + gap)
    assert not _is_stale(ends_timeline({COUNT: private}), growing(start=1), 10.0, 11 + gap)


def test_a_count_grows_until_it_is_back_at_its_minimum() -> None:
    flat: list[Value] = [*range(100), *[100] * 64]
    timeline = ends_timeline({COUNT: flat, "x": [*range(100), *[100] * 63]})
    assert growth_of(timeline, COUNT, 164) is None
    growth = growth_of(timeline, COUNT, 100)
    assert growth is not None
    assert growth.slope == 1.0
    assert growth_of(ends_timeline({COUNT: [None] * 9}), COUNT, 9) is None


RISING: list[Value] = [10 + 2 * g for g in range(8)]


@pytest.mark.parametrize(
    ("series", "held", "path"),
    [
        ({"container.app.log.length": RISING}, 30, "app.log[*]"),
        ({"container.app.log.length": RISING}, 29, "app.old[*]"),
        ({"container.app.log.length": [10] * 8}, 30, "app.old[*]"),
        ({"container.app.other.length": RISING}, 30, "app.old[*]"),
        ({"type.app.log.count": RISING}, 30, "app.old[*]"), ({}, 30, "app.old[*]"),
    ],
    ids=["a list that grows", "less than three tenths", "one that does not", "another", "a class of its name", "none"],
)  # fmt: skip
def test_the_holder_of_a_class_is_the_path_into_the_growing_list(
    series: dict[str, list[Value]], held: int, path: str
) -> None:
    holders = (Holder(3, "app.Env", "app.old[*]", 100), Holder(3, "app.Env", "app.log[*]", held))
    assert _facts(series, holders=holders).holders == {"app.Env": path}


def test_without_garbage_the_path_holding_most_is_the_holder() -> None:
    """Less than half of a rise by 98 was garbage."""
    holders = (Holder(3, "app.Env", CYCLIC_GARBAGE, 48), Holder(3, "app.Env", "app.kept[*]", 47))
    counts: list[Value] = [2, *[100] * 7]
    assert _facts({COUNT: counts}, holders=holders).holders == {"app.Env": "app.kept[*]"}
    assert _facts({COUNT: counts}, holders=holders[:1]).holders == {}


def test_each_possible_witness_has_one_series() -> None:
    counted = (
        "type.b.B.count", "type.a.A.count", "type.a.A.bytes", "type.torch.Tensor.count", "tensors.count",
        "arrays.count", "figures.open", "container.app.log.length", "container.app.log.bytes", "tracked.free.length",
        "tracked.full.length",
    )  # fmt: skip
    series = {
        **dict.fromkeys(counted, RISING),
        "container.app.log.length": [5 + 3 * g for g in range(8)],
    }
    facts = _facts(series, capacities={"full": 100})
    assert facts.count_series == (
        ("figures.open", "matplotlib.figure.Figure", "type"), ("type.a.A.count", "a.A", "type"),
        ("type.b.B.count", "b.B", "type"), ("type.torch.Tensor.count", "torch.Tensor", "type"),
        ("arrays.count", "numpy.ndarray", "type"), ("container.app.log.length", "app.log", "container"),
        ("tracked.free.length", "free", "container"),
    )  # fmt: skip
    assert list(facts.growths(8)) == [name for name, _, _ in facts.count_series]


FILL: list[Value] = [100, 200, 300, 400, 500, 600, 700, 800]


@pytest.mark.parametrize(
    ("lengths", "is_store"),
    [
        (FILL, True), ([*FILL[:7], 801], False), ([None] * 6 + FILL[6:], True), ([None] * 7 + FILL[7:], False),
        ([*FILL[:2], *[None] * 6], True),
    ],
    ids=["always as long", "once longer", "by two readings", "by one", "by the first two"],
)  # fmt: skip
def test_the_list_inside_a_declared_store_is_not_a_separate_growth(
    lengths: list[Value], is_store: bool
) -> None:
    series = {"tracked.replay.length": FILL, "container.app.Replay.items.length": lengths}
    facts = _facts(series, capacities={"replay": 9999})
    assert (facts.count_series == ()) == is_store


def test_a_list_as_long_as_a_full_store_is_not_taken_for_it() -> None:
    full: list[Value] = [800] * 8
    series = {"tracked.replay.length": full, "container.app.Replay.items.length": full}
    assert len(_facts(series, capacities={"replay": 800}).count_series) == 1


def test_bytes_of_all_declared_stores_are_added_up() -> None:
    names = ("tracked.a.length", "tracked.a.bytes", "tracked.b.length", "tracked.b.bytes")
    facts = _facts(dict.fromkeys(names, FILL), capacities={"a": 999, "b": 999})
    assert facts.bounded_bytes == [200.0 * g for g in range(1, 9)]
    assert _facts({}).bounded_bytes == []


def test_a_run_without_any_counts_is_observed_from_outside() -> None:
    seen = [
        _facts({name: RISING}).from_outside
        for name in ("process.rss_bytes", "python.objects", COUNT, "tfjs.tensors")
    ]
    assert seen == [True, False, False, False]


@pytest.mark.parametrize(("newest", "above"), [(3, True), (0, False), (1, False)])
def test_only_a_surplus_violates_a_declared_count(newest: int, above: bool) -> None:
    series = {COUNT: [1, 1, 1, 1, 1, 1, newest, newest]}
    facts = _facts(series, expectations=(Expectation("app.Env", 1, 2),))
    assert (list(facts.violations(7)) == ["app.Env"]) == above


@pytest.mark.parametrize("order", [1, -1])
def test_a_proven_violation_takes_precedence(order: int) -> None:
    """The limit of two was always exceeded, the limit of five only now, without a collection since."""
    expectations = (Expectation("app.Env", 0, 2), Expectation("app.Env", 0, 5))[::order]
    series: dict[str, list[Value]] = {COUNT: [3, 3, 3, 3, 3, 3, 3, 6], COLLECTIONS: [0] * 8}
    found = _facts(series, expectations=expectations).violations(7)
    assert [(v.proven, v.expectation.high) for v in found.values()] == [(True, 2)]
    # Of two proven violations the first counts.
    both = (Expectation("app.Env", 0, 2), Expectation("app.Env", 0, 1))[::order]
    found = _facts({COUNT: [3] * 8}, expectations=both).violations(7)
    assert found["app.Env"].expectation == both[0]


def test_watched_and_expected_classes_are_declared_by_short_name() -> None:
    events = (Event(0, 0.0, "watch", "app.Env"), Event(0, 0.0, "note", "app.Note"))
    facts = _facts({}, events=events, expectations=(Expectation("app.Agent", 0, 1),))
    assert facts.watched == {"Env", "Agent"}


# Two instances existed before, and three are added per generation.
COUNTS: list[Value] = [2 + 3 * g for g in range(20)]


def named(
    *held: tuple[int, str, int], lengths: Mapping[str, Sequence[Value]] | None = None
) -> str | None:
    """Return the holder named, given (sequence, path, objects held) and lengths of containers where read."""
    series = {f"container.{name}.length": row for name, row in (lengths or {}).items()}
    holders = tuple(Holder(at, "app.Env", path, count) for at, path, count in held)
    return _facts({COUNT: COUNTS, **series}, holders=holders).holders.get("app.Env")


@pytest.mark.parametrize("path", ["app.last[*]", "app.Trainer.last[*]", "app.last[*][*]"])
def test_a_container_of_constant_length_is_not_a_holder(path: str) -> None:
    lengths: dict[str, Sequence[Value]] = {path.rpartition("[*]")[0]: [None] * 6 + [3] * 14}
    assert named((5, path, 15), lengths=lengths) is None
    other = (5, "app.f.<defaults>[*]", 6)
    assert named((5, path, 15), other, lengths=lengths) == "app.f.<defaults>[*]"


def test_a_container_that_grows_is_a_holder() -> None:
    found = named((5, "app.kept[*]", 2), lengths={"app.kept": [3 * g for g in range(20)]})
    assert found == "app.kept[*]"


@pytest.mark.parametrize(("held", "holder"), [(5, "app.Trainer.best"), (4, None)])
def test_after_one_search_a_holder_needs_a_share_of_the_growth(
    held: int, holder: str | None
) -> None:
    """By the search at the fifth generation the type has gained 15."""
    assert named((5, "app.Trainer.best", held)) == holder


@pytest.mark.parametrize(("later", "holder"), [(15, "app.Trainer.best"), (13, None), (6, None)])
def test_after_two_searches_a_holder_must_have_grown_with_the_type(
    later: int, holder: str | None
) -> None:
    """Between the two searches the type has gained 30."""
    assert named((5, "app.Trainer.best", 6), (15, "app.Trainer.best", later)) == holder


def test_holders_found_only_by_an_earlier_search_are_not_named() -> None:
    assert named((5, "app.Trainer.best", 15), (15, "app.f.<closure>.x", 40)) == "app.f.<closure>.x"


def test_searches_of_several_processes_are_not_compared() -> None:
    """A search does not name its process: constant objects found by one say nothing about a leak in another."""
    holders = (
        Holder(5, "app.Env", "app.kept", 15), Holder(15, "app.Env", "app.kept", 45),
        Holder(16, "app.Env", "app.kept", 2),
    )  # fmt: skip
    history = ends_history({COUNT: COUNTS}, holders=holders)
    (process,) = history.processes
    constant = replace(process, instance="q", rank=1, series={COUNT: [2] * 20})
    both = replace(history, processes=(process, constant))
    assert Facts(history, timelines_of(history)[0]).holders == {}
    assert Facts(both, timelines_of(both)[0]).holders == {"app.Env": "app.kept"}


@pytest.mark.parametrize(("counts", "holder"), [(9, "app.Cache.keys[*]"), (None, None)])
def test_a_list_of_a_constant_number_of_growing_tensors_is_a_holder(
    counts: int | None, holder: str | None
) -> None:
    """Tensors that are recreated in growing numbers are not held by a list of four."""
    series: dict[str, Sequence[Value]] = {
        "type.torch.Tensor.count": [9 + 3 * g if counts is None else counts for g in range(20)],
        "type.torch.Tensor.bytes": [g * 2**22 if g % 4 == 2 else None for g in range(20)],
        "container.app.Cache.keys.length": [None] * 10 + [4] * 10,
    }
    holders = (Holder(11, "torch.Tensor", "app.Cache.keys[*]", 1),)
    assert _facts(series, holders=holders).holders.get("torch.Tensor") == holder


def test_for_growing_objects_the_search_for_the_largest_counts() -> None:
    series: dict[str, Sequence[Value]] = {
        "type.numpy.ndarray.count": [6] * 20,
        "type.numpy.ndarray.bytes": [g * 2**22 for g in range(20)],
    }
    holders = (
        Holder(11, "numpy.ndarray", "app.Dataset.rows", 1),
        Holder(13, "numpy.ndarray", "app.Network.first", 3, bytes_each=2_837),
    )
    assert _facts(series, holders=holders).holders == {"numpy.ndarray": "app.Dataset.rows"}


@pytest.mark.parametrize(("each", "holder"), [(104, None), (20 * 2**20, "numpy.ma.masked")])
def test_a_tiny_sample_is_not_the_holder_of_growing_objects(each: int, holder: str | None) -> None:
    """A sliced census gives only their bytes; their number is the last one counted."""
    series: dict[str, Sequence[Value]] = {
        "type.numpy.ndarray.count": [None, 2, *[None] * 10],
        "type.numpy.ndarray.bytes": [g * 2**22 if g in (1, 3, 8, 10) else None for g in range(12)],
    }
    holders = (Holder(11, "numpy.ndarray", "numpy.ma.masked", 1, each),)
    assert _facts(series, holders=holders).holders.get("numpy.ndarray") == holder


def test_counts_are_taken_from_the_last_reading_before_a_search() -> None:
    facts = _facts({COUNT: [None, 4, None, None, 7, None]})
    found = facts._counts_at("app.Env", [0, 1, 2, 3, 4, 9])
    assert found == [None, 4, 4, 4, 7, 7]


def holder(kind: str, path: str, count: int, sequence: int = 0, each: int | None = None) -> Holder:
    return Holder(sequence, kind, path, count, each)


def test_holders_are_taken_from_the_newest_search() -> None:
    looks = Holders([
        holder("Env", "a", 5, 1), holder("Env", "b", 9, 1), holder("Env", "a", 3, 2), holder("Env", "a", 4, 2),
        holder("Env", "old", 99, 1), holder("Agent", "c", 1, 0), holder("Env", CYCLIC_GARBAGE, 7, 2),
    ])  # fmt: skip
    assert looks.newest == {"Env": {"a": 4, CYCLIC_GARBAGE: 7}, "Agent": {"c": 1}}
    assert looks.newest_kept == {"Env": {"a": 4}, "Agent": {"c": 1}}
    assert looks.best == {"Env": CYCLIC_GARBAGE, "Agent": "c"}
    # Of equal holders the last by name wins.
    assert most_of({"a": 2, "c": 2, "b": 2, "d": 1}) == "c"


def test_garbage_is_taken_from_the_newest_scan_largest_first() -> None:
    looks = Holders([
        holder("A", CYCLIC_GARBAGE, 9, 2), holder("A", CYCLIC_GARBAGE, 1, 1), holder("B", CYCLIC_GARBAGE, 5, 1),
        holder("B", CYCLIC_GARBAGE, 6, 1), holder("C", CYCLIC_GARBAGE, 6, 1), holder("D", "kept", 99, 3),
    ])  # fmt: skip
    assert list(looks.garbage_types.items()) == [("A", 9), ("B", 6), ("C", 6)]


def test_the_newest_size_counts_except_for_threads() -> None:
    looks = Holders([
        holder("A", "x", 1, 2, 50), holder("A", "y", 1, 1, 90), holder("A", "z", 1, 2, 60), holder("A", "w", 1, 3),
        holder("Worker", "threading._active[*]", 1, 1), holder("Worker", "x", 1, 1, 500),
    ])  # fmt: skip
    assert looks.bytes_each == {"A": 60}

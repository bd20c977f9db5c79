"""What is known beside memory: who holds what, which counts can be witnesses, which of them are broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pieces import ends_history, ends_timeline, growing, timeline_of

from leakline.analysis.run_history import Expectation, Value
from leakline.analysis.series_facts import Facts, _best_of, _is_stale, _risen, growth_of, leads_into
from leakline.snapshot import CYCLIC_GARBAGE, Event, Holder

COUNT, COLLECTIONS = "type.app.Env.count", "python.collections_full"


def test_a_path_leads_into_the_container_or_below_it() -> None:
    paths = ("app.log", "app.log[*]", "app.log.items", "app.logs", "app")
    assert [leads_into(path, "app.log") for path in paths] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("found", "best"),
    [
        ({"app.old[*]": 100, "app.log[*]": 30}, "app.log[*]"),
        ({"app.old[*]": 100, "app.log[*]": 29}, "app.old[*]"),
        ({"app.old[*]": 100, "app.other[*]": 99}, "app.old[*]"),
        ({"app.log[*]": 30, "app.log.more": 40, "app.old": 100}, "app.log.more"),
    ],
    ids=["three tenths", "less", "not into what grows", "the most of them"],
)
def test_of_paths_that_hold_about_as_many_the_one_into_what_grows_is_told(
    found: dict[str, int], best: str
) -> None:
    assert _best_of(found, ["app.log"]) == best


def test_how_far_a_total_has_come() -> None:
    assert [_risen(total) for total in ([None, 3, 9, None, 8], [None], [])] == [5, 0, 0]


@pytest.mark.parametrize(
    ("count", "later", "collections", "is_garbage"),
    [
        (50, [], [0, 0, 0, 0], True), (49, [], [0, 0, 0, 0], False), (50, [200, 200], [0, 0, 0, 0, 1, 2], False),
        (50, [200, 200], [0, 0, 0, 0, 1, 1], True), (50, [175, 175], [0, 0, 0, 0, 1, 2], True),
        (50, [176, 176], [0, 0, 0, 0, 1, 2], False), (50, [None, None], [0, 0, 0, 0, 1, 2], True),
    ],
    ids=["half of a rise", "less", "still there", "too few collections", "half went", "less went", "not read since"],
)  # fmt: skip
def test_garbage_is_a_holder_where_it_is_half_of_a_rise_and_collections_free_half_of_it(
    count: int, later: list[Value], collections: list[Value], is_garbage: bool
) -> None:
    holders = (Holder(3, "app.Env", CYCLIC_GARBAGE, count), Holder(3, "app.Env", "app.kept[*]", 40))
    series = {COUNT: [100, 150, 180, 200, *later], COLLECTIONS: collections}
    history = ends_history(series, holders=holders)
    found = Facts(history, timeline_of(history)).holders
    assert (found["app.Env"] == CYCLIC_GARBAGE) == is_garbage


@pytest.mark.parametrize(
    ("gap", "since", "stale"),
    [(4, 2.4, True), (4, 2.5, False), (3, 0.0, False), (4, -5.0, True), (8, 2.4, True)],
    ids=["a quarter goes on", "more", "just read", "falls", "long ago"],
)
def test_a_count_read_four_generations_ago_is_old_news_where_memory_hardly_rises_since(
    gap: int, since: float, stale: bool
) -> None:
    private: list[Value] = [1000 + 100 * g for g in range(11)]
    private += [round(2000 + 10 * since * i) for i in range(1, gap + 1)]
    timeline = ends_timeline({"process.anon_bytes": private})
    assert _is_stale(timeline, growing(start=1, generations=9), 10.0, 11 + gap) == stale
    assert not _is_stale(timeline, growing(start=11, generations=9), 10.0, 11 + gap)
    assert not _is_stale(ends_timeline({COUNT: private}), growing(start=1), 10.0, 11 + gap)


def test_a_count_grows_while_its_newest_64_readings_are_not_back_at_their_lowest() -> None:
    flat: list[Value] = [*range(100), *[100] * 64]
    timeline = ends_timeline({COUNT: flat, "x": [*range(100), *[100] * 63]})
    assert growth_of(timeline, COUNT, 164) is None
    growth = growth_of(timeline, COUNT, 100)
    assert growth is not None
    assert growth.slope == 1.0
    assert growth_of(ends_timeline({COUNT: [None] * 9}), COUNT, 9) is None


def _facts(series: Mapping[str, Sequence[Value]], **more: Any) -> Facts:
    history = ends_history({"process.anon_bytes": [1000] * 8, **series}, **more)
    return Facts(history, timeline_of(history))


RISING: list[Value] = [10 + 2 * g for g in range(8)]
PATHS = (Holder(3, "app.Env", "app.old[*]", 100), Holder(3, "app.Env", "app.log[*]", 30))


@pytest.mark.parametrize(
    ("series", "path"),
    [
        ({"container.app.log.length": RISING}, "app.log[*]"),
        ({"container.app.log.length": [10] * 8}, "app.old[*]"),
        ({"container.app.other.length": RISING}, "app.old[*]"),
        ({"type.app.log.count": RISING}, "app.old[*]"),
        ({}, "app.old[*]"),
    ],
    ids=["a list that grows", "one that does not", "another", "a class of its name", "none"],
)
def test_the_holder_of_a_class_is_the_path_into_the_list_that_grows(
    series: dict[str, list[Value]], path: str
) -> None:
    assert _facts(series, holders=PATHS).holders == {"app.Env": path}


def test_without_garbage_the_path_that_holds_most_is_told() -> None:
    """Of a rise by 98 fewer than half were garbage."""
    holders = (Holder(3, "app.Env", CYCLIC_GARBAGE, 48), Holder(3, "app.Env", "app.kept[*]", 47))
    counts: list[Value] = [2, *[100] * 7]
    assert _facts({COUNT: counts}, holders=holders).holders == {"app.Env": "app.kept[*]"}
    assert _facts({COUNT: counts}, holders=holders[:1]).holders == {}


def test_everything_whose_count_can_be_a_witness_is_known_by_one_series() -> None:
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
def test_the_list_that_a_declared_store_keeps_its_items_in_is_no_growth_of_its_own(
    lengths: list[Value], is_store: bool
) -> None:
    series = {"tracked.replay.length": FILL, "container.app.Replay.items.length": lengths}
    facts = _facts(series, capacities={"replay": 9999})
    assert (facts.count_series == ()) == is_store


def test_a_list_as_long_as_a_full_store_is_not_known_to_be_it() -> None:
    full: list[Value] = [800] * 8
    series = {"tracked.replay.length": full, "container.app.Replay.items.length": full}
    assert len(_facts(series, capacities={"replay": 800}).count_series) == 1


def test_bytes_of_all_declared_stores_are_added_up() -> None:
    names = ("tracked.a.length", "tracked.a.bytes", "tracked.b.length", "tracked.b.bytes")
    facts = _facts(dict.fromkeys(names, FILL), capacities={"a": 999, "b": 999})
    assert facts.bounded_bytes == [200.0 * g for g in range(1, 9)]
    assert _facts({}).bounded_bytes == []


def test_a_run_is_seen_from_outside_where_no_object_was_ever_counted() -> None:
    seen = [
        _facts({name: RISING}).from_outside
        for name in ("process.rss_bytes", "python.objects", COUNT, "tfjs.tensors")
    ]
    assert seen == [True, False, False, False]


@pytest.mark.parametrize(("newest", "above"), [(3, True), (0, False), (1, False)])
def test_only_a_surplus_is_a_violation(newest: int, above: bool) -> None:
    series = {COUNT: [1, 1, 1, 1, 1, 1, newest, newest]}
    facts = _facts(series, expectations=(Expectation("app.Env", 1, 2),))
    assert (list(facts.violations(7)) == ["app.Env"]) == above


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_broken_counts_of_a_class_a_proven_one_is_told(order: int) -> None:
    """Up to two were always too many, up to five only now, and no collection has passed."""
    expectations = (Expectation("app.Env", 0, 2), Expectation("app.Env", 0, 5))[::order]
    series: dict[str, list[Value]] = {COUNT: [3, 3, 3, 3, 3, 3, 3, 6], COLLECTIONS: [0] * 8}
    found = _facts(series, expectations=expectations).violations(7)
    assert [(v.proven, v.expectation.high) for v in found.values()] == [(True, 2)]
    # Of two proven ones the first is told.
    both = (Expectation("app.Env", 0, 2), Expectation("app.Env", 0, 1))[::order]
    found = _facts({COUNT: [3] * 8}, expectations=both).violations(7)
    assert found["app.Env"].expectation == both[0]


def test_what_is_watched_or_expected_is_declared_by_its_short_name() -> None:
    events = (Event(0, 0.0, "watch", "app.Env"), Event(0, 0.0, "note", "app.Note"))
    facts = _facts({}, events=events, expectations=(Expectation("app.Agent", 0, 1),))
    assert facts.watched == {"Env", "Agent"}

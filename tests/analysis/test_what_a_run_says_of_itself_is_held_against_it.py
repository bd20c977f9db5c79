"""What a run says of itself is held against it: declared counts, holders, and cleanups that freed little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pieces import ends_history, ends_lane, growing, lane_of, steps_history

from leakline.analysis.cleanups import (
    Freed,
    RareCleanup,
    _change,
    _growth_between,
    _runs_since,
    deeper,
    freed_by,
    freed_in_all,
    is_deeper,
    rare_cleanup,
    vain_cleanup,
)
from leakline.analysis.contracts import (
    Readings,
    Violation,
    applicable_readings,
    applies,
    counted_type,
    find_violation,
    matching_types,
    range_text,
    stands_for,
)
from leakline.analysis.facts import Facts, _best_of, _is_stale, _risen, growth_of, leads_into
from leakline.analysis.history import Expectation, RunHistory, Value
from leakline.analysis.priority import Priorities
from leakline.analysis.results import Finding, Interval, Suspect
from leakline.analysis.series import Lane
from leakline.snapshot import CYCLIC_GARBAGE, LARGEST_INTEGER, Event, Holder

COUNT, COLLECTIONS = "type.app.Env.count", "python.collections_full"


@pytest.mark.parametrize(
    ("declared", "name", "stands"),
    [
        ("app.Env", "app.Env", True),
        ("Env", "app.Env", True),
        ("app.Env", "Env", True),
        ("Env", "app.MyEnv", False),
        ("other.Env", "app.Env", False),
    ],
)
def test_a_declared_name_stands_for_the_class_of_that_name_where_one_of_them_has_no_module(
    declared: str, name: str, stands: bool
) -> None:
    assert stands_for(declared, name) == stands


def test_a_full_name_that_is_counted_stands_for_itself_alone() -> None:
    lane = ends_lane({"type.Env.count": [1], "type.a.Env.count": [1], "type.b.Env.count": [1]})
    assert matching_types(lane, "Env") == ("Env",)
    lane = ends_lane({"type.b.Env.count": [1], "type.a.Env.count": [1]})
    assert matching_types(lane, "Env") == ("a.Env", "b.Env")


@pytest.mark.parametrize(
    ("series", "name"),
    [("type.app.Env.count", "app.Env"), ("type.app.Env.bytes", None), ("x.app.Env.count", None),
     ("type.leakline.client.Client.count", None)],
)  # fmt: skip
def test_which_type_a_series_counts(series: str, name: str | None) -> None:
    assert counted_type(series) == name


@pytest.mark.parametrize(
    ("expectation", "text"),
    [
        (Expectation("E", 2, 2), "2"),
        (Expectation("E", 1, 2), "1 to 2"),
        (Expectation("E", 0, 567, baseline=True), "up to 567 (baseline)"),
        (Expectation("E", 0, LARGEST_INTEGER, baseline=True), "as at the baseline"),
    ],
)
def test_how_many_are_expected(expectation: Expectation, text: str) -> None:
    assert range_text(expectation) == text


@pytest.mark.parametrize(
    ("kind", "phase", "after", "held"),
    [
        ("phase_end", "train", None, True),
        ("generation_end", None, None, True),
        ("baseline", None, None, True),
        ("sample", None, None, False),
        ("phase_end", "train", "train", True),
        ("phase_end", "evaluate/run", "run", True),
        ("phase_end", "evaluate/rerun", "run", False),
        ("phase_end", "run/evaluate", "run", False),
        ("generation_end", None, "train", False),
        ("phase_end", None, "train", False),
    ],
)
def test_which_readings_a_count_is_held_against(
    kind: str, phase: str | None, after: str | None, held: bool
) -> None:
    assert (
        applies(lane_of(_rows([(kind, 0, phase), ("generation_end", 0, None)])), 0, after) == held
    )


def _rows(
    rows: Sequence[tuple[str, int | None, str | None]], series: Mapping[str, Sequence[Value]] | None = None
) -> RunHistory:  # fmt: skip
    return steps_history(rows, series or {"process.anon_bytes": [1] * len(rows)})


def _violation(
    counts: Sequence[Value], collections: Sequence[Value] | None = None, upto: int | None = None, low: int = 1
) -> Violation | None:  # fmt: skip
    series = {COUNT: counts} if collections is None else {COUNT: counts, COLLECTIONS: collections}
    lane = ends_lane(series)
    (readings,) = applicable_readings(lane, [Expectation("Env", low, 2)])
    return find_violation(lane, readings, len(counts) - 1 if upto is None else upto)


@pytest.mark.parametrize(
    ("counts", "broken"),
    [([2], False), ([3], True), ([1], False), ([0], True), ([3, 2], False), ([None], False)],
    ids=["the most", "more", "the least", "fewer", "not any more", "not read"],
)
def test_a_count_is_broken_outside_its_bounds_at_the_newest_reading(
    counts: list[Value], broken: bool
) -> None:
    assert (_violation(counts) is not None) == broken


def test_a_violation_knows_where_it_began_and_what_was_there_before() -> None:
    found = _violation([2, 3, 4, 5])
    assert found is not None
    assert (found.count, found.first_count, found.count_before) == (5, 3, 2)
    assert (found.first_row, found.row_before, found.above, found.proven) == (1, 0, True, True)
    found = _violation([3, 4])
    assert found is not None
    assert (found.first_row, found.row_before, found.count_before) == (0, None, None)
    # A surplus is no part of a lack.
    found = _violation([3, 0, 0])
    assert found is not None
    assert (found.first_row, found.above, found.row_before) == (1, False, 0)
    assert _violation([2, 3, 4], upto=0) is None


@pytest.mark.parametrize(
    ("counts", "collections", "proven"),
    [
        ([2, 3], None, True),
        ([2, 3], [None, None], True),
        ([2, 3], [0, 0], False),
        ([2, 3, 3], [0, 0, 0], True),
        ([2, 3], [0, 1], False),
    ],
    ids=["nothing known", "nothing told", "seen once", "seen again", "collected before"],
)
def test_a_surplus_is_proven_where_it_was_there_again_or_nothing_is_known_of_collections(
    counts: list[Value], collections: list[Value] | None, proven: bool
) -> None:
    found = _violation(counts, collections)
    assert found is not None
    assert found.proven == proven


@pytest.mark.parametrize(
    ("later", "collections", "proven"),
    [(3, [0, 0, 1], True), (3, [0, 1, 1], False), (2, [0, 0, 1], False), (None, [0, 0, 1], False),
     (3, [0, None, 1], False), (3, [0, 0, None], False)],
    ids=["outlived one", "no collection since", "gone", "not read", "unknown before", "unknown after"],
)  # fmt: skip
def test_a_surplus_seen_once_is_proven_where_it_outlived_a_full_collection(
    later: Value, collections: list[Value], proven: bool
) -> None:
    """The readings between phases are not held against it, and say whether it is still there."""
    rows: list[tuple[str, int | None, str | None]] = [
        ("generation_end", 0, None), ("generation_end", 1, None), ("sample", 1, None),
    ]  # fmt: skip
    lane = lane_of(_rows(rows, {COUNT: [2, 3, later], COLLECTIONS: collections}))
    (readings,) = applicable_readings(lane, [Expectation("Env", 1, 2)])
    found = find_violation(lane, readings, 2)
    assert found is not None
    assert found.proven == proven


def test_a_baseline_is_the_most_there_was_by_the_end_of_the_first_generation() -> None:
    rows: list[tuple[str, int | None, str | None]] = [
        ("baseline", None, None), ("phase_end", 0, "a"), ("generation_end", 0, None), ("generation_end", 1, None),
    ]  # fmt: skip
    lane = lane_of(_rows(rows, {COUNT: [3, 7, 5, 9]}))
    (readings,) = applicable_readings(lane, [Expectation("Env", 0, LARGEST_INTEGER, baseline=True)])
    assert (readings.expectation.high, readings.counts) == (7, (3, 7, 5, 9))
    unread = lane_of(_rows(rows, {COUNT: [None] * 4}))
    expected = Expectation("Env", 0, LARGEST_INTEGER, baseline=True)
    assert applicable_readings(unread, [expected]) == (Readings(expected, "app.Env", (), ()),)


@pytest.mark.parametrize(
    ("path", "inside"),
    [("app.log", True), ("app.log[*]", True), ("app.log.items", True), ("app.logs", False), ("app", False)],
)  # fmt: skip
def test_a_path_leads_into_the_container_or_below_it(path: str, inside: bool) -> None:
    assert leads_into(path, "app.log") == inside


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
    assert _risen([None, 3, 9, None, 8]) == 5
    assert _risen([None]) == 0
    assert _risen([]) == 0


def _holders(
    count: int, counts: Sequence[Value], collections: Sequence[Value]
) -> Mapping[str, str]:
    history = ends_history(
        {COUNT: counts, COLLECTIONS: collections},
        holders=(
            Holder(3, "app.Env", CYCLIC_GARBAGE, count),
            Holder(3, "app.Env", "app.kept[*]", 40),
        ),
    )
    return Facts(history, lane_of(history)).holders


@pytest.mark.parametrize(
    ("count", "later", "collections", "is_garbage"),
    [
        (50, [], [0, 0, 0, 0], True),
        (49, [], [0, 0, 0, 0], False),
        (50, [200, 200], [0, 0, 0, 0, 1, 2], False),
        (50, [200, 200], [0, 0, 0, 0, 1, 1], True),
        (50, [175, 175], [0, 0, 0, 0, 1, 2], True),
        (50, [176, 176], [0, 0, 0, 0, 1, 2], False),
        (50, [None, None], [0, 0, 0, 0, 1, 2], True),
    ],
    ids=["half of a rise", "less", "still there", "too few collections", "half went", "less went", "not read since"],
)  # fmt: skip
def test_garbage_is_a_holder_where_it_is_half_of_a_rise_and_collections_free_half_of_it(
    count: int, later: list[Value], collections: list[Value], is_garbage: bool
) -> None:
    found = _holders(count, [100, 150, 180, 200, *later], collections)
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
    lane = ends_lane({"process.anon_bytes": private})
    assert _is_stale(lane, growing(start=1, generations=9), 10.0, 11 + gap) == stale
    assert not _is_stale(lane, growing(start=11, generations=9), 10.0, 11 + gap)
    assert not _is_stale(ends_lane({COUNT: private}), growing(start=1), 10.0, 11 + gap)


def test_a_count_grows_while_its_newest_64_readings_are_not_back_at_their_lowest() -> None:
    flat: list[Value] = [*range(100), *[100] * 64]
    lane = ends_lane({COUNT: flat, "x": [*range(100), *[100] * 63]})
    assert growth_of(lane, COUNT, 164) is None
    growth = growth_of(lane, COUNT, 100)
    assert growth is not None
    assert growth.slope == 1.0
    assert growth_of(ends_lane({COUNT: [None] * 9}), COUNT, 9) is None


def _facts(series: Mapping[str, Sequence[Value]], **more: Any) -> Facts:
    history = ends_history({"process.anon_bytes": [1000] * 8, **series}, **more)
    return Facts(history, lane_of(history))


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
    counts: list[Value] = [2, 100, 100, 100, 100, 100, 100, 100]
    history = ends_history(
        {COUNT: counts},
        holders=(Holder(3, "app.Env", CYCLIC_GARBAGE, 48), Holder(3, "app.Env", "app.kept[*]", 47)),
    )
    assert Facts(history, lane_of(history)).holders == {"app.Env": "app.kept[*]"}
    nobody = Facts(replace(history, holders=history.holders[:1]), lane_of(history))
    assert nobody.holders == {}


def test_everything_whose_count_can_be_a_witness_is_known_by_one_series() -> None:
    facts = _facts(
        {
            "type.b.B.count": RISING,
            "type.a.A.count": RISING,
            "type.a.A.bytes": RISING,
            "type.torch.Tensor.count": RISING,
            "tensors.count": RISING,
            "arrays.count": RISING,
            "figures.open": RISING,
            "container.app.log.length": [5 + 3 * g for g in range(8)],
            "container.app.log.bytes": RISING,
            "tracked.free.length": RISING,
            "tracked.full.length": RISING,
        },
        capacities={"full": 100},
    )
    assert facts.count_series == (
        ("figures.open", "matplotlib.figure.Figure", "type"),
        ("type.a.A.count", "a.A", "type"),
        ("type.b.B.count", "b.B", "type"),
        ("type.torch.Tensor.count", "torch.Tensor", "type"),
        ("arrays.count", "numpy.ndarray", "type"),
        ("container.app.log.length", "app.log", "container"),
        ("tracked.free.length", "free", "container"),
    )
    assert list(facts.growths(8)) == [series for series, _, _ in facts.count_series]


FILL: list[Value] = [100, 200, 300, 400, 500, 600, 700, 800]


@pytest.mark.parametrize(
    ("lengths", "is_store"),
    [
        (FILL, True),
        ([*FILL[:7], 801], False),
        ([None] * 6 + FILL[6:], True),
        ([None] * 7 + FILL[7:], False),
        ([*FILL[:2], *[None] * 6], True),
    ],
    ids=["always as long", "once longer", "by two readings", "by one", "by the first two"],
)
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
    sizes = {
        "tracked.a.length": FILL,
        "tracked.a.bytes": FILL,
        "tracked.b.length": FILL,
        "tracked.b.bytes": FILL,
    }
    facts = _facts(sizes, capacities={"a": 999, "b": 999})
    assert facts.bounded_bytes == [200.0 * g for g in range(1, 9)]
    assert _facts({}).bounded_bytes == []


@pytest.mark.parametrize(
    ("name", "outside"),
    [("process.rss_bytes", True), ("python.objects", False), (COUNT, False), ("tfjs.tensors", False)],
)  # fmt: skip
def test_a_run_is_seen_from_outside_where_no_object_was_ever_counted(
    name: str, outside: bool
) -> None:
    assert _facts({name: RISING}).from_outside == outside


@pytest.mark.parametrize(
    ("counts", "above"),
    [([1, 1, 1, 1, 1, 1, 3, 3], True), ([1, 1, 1, 1, 1, 1, 0, 0], False), ([1] * 8, False)],
    ids=["more", "fewer", "as many"],
)
def test_only_a_surplus_is_a_violation(counts: list[Value], above: bool) -> None:
    facts = _facts({COUNT: counts}, expectations=(Expectation("app.Env", 1, 2),))
    assert (list(facts.violations(7)) == ["app.Env"]) == above


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_broken_counts_of_a_class_a_proven_one_is_told(order: int) -> None:
    """Up to two were always too many, up to five only now, and no collection has passed."""
    expectations = (Expectation("app.Env", 0, 2), Expectation("app.Env", 0, 5))[::order]
    counts: list[Value] = [3, 3, 3, 3, 3, 3, 3, 6]
    series: dict[str, list[Value]] = {COUNT: counts, COLLECTIONS: [0] * 8}
    found = _facts(series, expectations=expectations).violations(7)
    assert [(v.proven, v.expectation.high) for v in found.values()] == [(True, 2)]


def test_of_two_proven_ones_the_first_is_told() -> None:
    expectations = (Expectation("app.Env", 0, 2), Expectation("app.Env", 0, 1))
    found = _facts({COUNT: [3] * 8}, expectations=expectations).violations(7)
    assert found["app.Env"].expectation.high == 2


def test_what_is_watched_or_expected_is_declared_by_its_short_name() -> None:
    facts = _facts(
        {},
        events=(Event(0, 0.0, "watch", "app.Env"), Event(0, 0.0, "note", "app.Note")),
        expectations=(Expectation("app.Agent", 0, 1),),
    )
    assert facts.watched == {"Env", "Agent"}


@pytest.mark.parametrize(
    ("host", "device", "known", "something", "words"),
    [
        (None, None, False, False, "nothing"),
        (0, None, True, False, "nothing"),
        (-5, None, True, False, "nothing"),
        (1, None, True, True, "1 B"),
        (None, 1, True, True, "1 B of GPU memory"),
        (None, 0, True, False, "nothing"),
        (-5, 1, True, True, "1 B of GPU memory"),
        (2, 1, True, True, "2 B and 1 B of GPU memory"),
    ],
)
def test_what_was_freed_is_told_where_it_was(
    host: float | None, device: float | None, known: bool, something: bool, words: str
) -> None:
    freed = Freed(host, device)
    assert (freed.known, freed.something, freed.words) == (known, something, words)


@pytest.mark.parametrize(
    ("devices", "freed"),
    [
        ({"cuda.0.allocated_bytes": [9, 4], "cuda.0.reserved_bytes": [9, 7]}, 5),
        ({"cuda.0.allocated_bytes": [9, 4], "cuda.1.allocated_bytes": [9, 7]}, 7),
        ({"cuda.0.allocated_bytes": [4, 9]}, 0),
        ({"cuda.0.allocated_bytes": [9, None]}, None),
        ({"cuda.0.allocated_bytes": [9, 4, 1]}, None),
        ([], None),
        (None, None),
    ],
    ids=["the larger fall", "of two", "a rise", "half told", "three numbers", "no names", "not told"],
)  # fmt: skip
def test_of_a_device_the_larger_fall_counts(devices: Any, freed: float | None) -> None:
    assert freed_by({"freed_bytes": 3, "devices": devices}) == Freed(3, freed)


def test_times_that_freed_nothing_take_nothing_from_those_that_did() -> None:
    times = [Freed(5, None), Freed(-9, 2), Freed(None, 1), Freed(0, -4)]
    assert freed_in_all(times) == Freed(5, 3)
    assert freed_in_all([Freed(None), Freed(None)]) == Freed(None, None)


def _cleanup(generation: int | None, freed: Any = 0, name: str = "tidy", **more: Any) -> Event:
    return Event(3, 5.0, "cleanup", name, generation, None, {"freed_bytes": freed, **more})


def _leak(rate: float = 1000.0, start: float | None = 5.0, **more: Any) -> Finding:
    said: dict[str, Any] = {"kind": "objects", "priority": "minor", **more}
    begun = None if start is None else Interval(start, start - 1, start + 1)
    return Finding(
        "f", "suspected", said.pop("kind"), "train", 1.0, (Suspect("app.Env", "type"),),
        Interval(rate, rate, rate), begun, 0.9, **said,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("events", "vain"),
    [
        ([_cleanup(5), _cleanup(5)], True),
        ([_cleanup(5)], False),
        ([_cleanup(4), _cleanup(5)], False),
        ([_cleanup(5, 10), _cleanup(6, 10)], True),
        ([_cleanup(5, 10), _cleanup(6, 11)], False),
        ([_cleanup(5, None), _cleanup(6)], False),
        ([_cleanup(5, devices={"cuda.0.x": [30, 20]}), _cleanup(6)], True),
        ([_cleanup(5, devices={"cuda.0.x": [30, 19]}), _cleanup(6)], False),
        ([_cleanup(5, error="E"), _cleanup(6)], False),
        ([_cleanup(None), _cleanup(6)], False),
    ],
    ids=["twice", "once", "before it began", "a hundredth", "more", "not told", "a hundredth of a device",
         "more of a device", "failed", "no generation"],
)  # fmt: skip
def test_a_cleanup_is_vain_that_ran_twice_and_freed_a_hundredth_of_a_generation_at_most(
    events: list[Event], vain: bool
) -> None:
    assert (vain_cleanup(_leak(), events) is not None) == vain


def test_a_cleanup_of_the_process_is_not_held_against_growth_elsewhere() -> None:
    events = [_cleanup(5), _cleanup(6)]
    assert vain_cleanup(_leak(kind="gpu"), events) is None
    assert vain_cleanup(_leak(start=None), [_cleanup(None), _cleanup(None)]) is not None
    assert list(_runs_since(6, events)) == ["tidy"]
    assert [len(runs) for runs in _runs_since(6, events).values()] == [1]
    assert [len(runs) for runs in _runs_since(None, events).values()] == [2]


@pytest.mark.parametrize(
    ("pairs", "vain"),
    [([[5, 5], [6, 6]], True), ([[5, 5], [6, 5]], False), ([[5, 6], [6, 6]], True), ([[5, 5], None], False)],
    ids=["as many", "one fewer", "one more", "not told"],
)  # fmt: skip
def test_a_cleanup_that_freed_much_is_vain_where_no_instance_went(
    pairs: list[Any], vain: bool
) -> None:
    events = [_cleanup(5, 1e9, because="x", counts={"app.Env": pair}) for pair in pairs]
    found = vain_cleanup(_leak(), events)
    assert (found is not None) == vain
    assert found is None or (found.type, found.times) == ("app.Env", 2)


def test_instances_are_told_by_cleanups_that_were_registered() -> None:
    counts = {"counts": {"app.Env": [7, 4]}}
    assert _change({"because": "x", **counts}, "app.Env") == -3
    assert _change(counts, "app.Env") is None
    assert _change({"because": "x", **counts}, "app.Plan") is None
    assert _change({"because": "x", "counts": {"app.Env": [7, -4]}}, "app.Env") is None


def test_a_vain_cleanup_makes_a_finding_one_class_worse() -> None:
    events, limits = [_cleanup(5), _cleanup(6)], Priorities(major_bytes=1e4, critical_bytes=1e5)
    minor, worst = deeper(_leak(), events), deeper(_leak(priority="critical"), events)
    assert (minor.priority, worst.priority) == ("major", "critical")
    assert [len(f.evidence) for f in (minor, worst)] == [1, 1]
    assert ["higher" in f.evidence[0] for f in (minor, worst)] == [True, False]
    assert deeper(_leak(), []) == _leak()
    assert is_deeper(minor, limits)
    assert not is_deeper(_leak(), limits)


def _sawtooth(cleaned: set[int], gain: int, back: int, n: int = 24) -> Lane:
    value, values = 100_000, list[Value]()
    for g in range(n):
        value += gain - (back if g in cleaned else 0)
        values.append(value)
    return ends_lane({"process.anon_bytes": values})


@pytest.mark.parametrize(
    ("cleaned", "back", "every"),
    [
        ({8, 16}, 3000, 3),
        ({8, 16}, 300, 1),
        ({8, 16}, 299, None),
        ({8}, 3000, None),
        ({8, 16}, 7999, 7),
        ({8, 16}, 8500, None),
    ],
    ids=["three generations", "three tenths of one", "less", "once", "nearly all", "often enough"],
)
def test_a_cleanup_that_takes_back_what_grows_and_runs_too_seldom_is_told_how_often(
    cleaned: set[int], back: int, every: int | None
) -> None:
    """It has to run as often as what it takes back has grown anew: 16 generations were since the first."""
    events = [_cleanup(g, back) for g in sorted(cleaned)]
    found = rare_cleanup(_leak(), events, _sawtooth(cleaned, 1000, back))
    expected = None if every is None else RareCleanup("tidy", 2, 16, float(back), every)
    assert found == expected


def test_a_cleanup_before_the_growth_began_is_not_told_of() -> None:
    lane = _sawtooth({4, 8, 16}, 1000, 3000)
    events = [_cleanup(g, 3000) for g in (4, 8, 16)]
    found = rare_cleanup(_leak(start=5.0), events, lane)
    assert found is not None
    assert (found.times, found.window) == (2, 16)
    found = rare_cleanup(_leak(start=None), events, lane)
    assert found is not None
    assert (found.times, found.window) == (3, 20)
    assert rare_cleanup(_leak(kind="gpu"), events, lane) is None
    assert (
        rare_cleanup(_leak(), [replace(e, data={"freed_bytes": 0}) for e in events], lane) is None
    )


@pytest.mark.parametrize(
    ("cleaned", "n", "growth"),
    [(set(), 5, 1000.0), (set(), 4, None), ({3}, 7, 1000.0), ({3}, 6, None)],
    ids=["four steps", "three", "four without it", "three without it"],
)
def test_what_one_generation_gains_is_told_by_four_without_a_cleanup(
    cleaned: set[int], n: int, growth: float | None
) -> None:
    assert _growth_between(_sawtooth(cleaned, 1000, 5000, n), cleaned) == growth

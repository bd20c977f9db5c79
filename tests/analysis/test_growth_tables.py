"""Rows of the tables, the books and attempts, on both sides of what decides what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builder import MIB, history_of
from pieces import timeline_of

from leakline.analysis.assertions.expected_counts import _is_expected, replaces, steady_counts
from leakline.analysis.comparison.comparison_results import Survival
from leakline.analysis.comparison.run_comparison import survival_change
from leakline.analysis.examination import _both, _together
from leakline.analysis.findings.growth_tables import (
    _added,
    _fill_row,
    _full_at,
    _order,
    _state,
    change_rating,
    type_growth,
)
from leakline.analysis.memory.memory_by_phase import (
    _longer,
    _place,
    _spans,
    without_give_and_take,
)
from leakline.analysis.results import GenerationSpan, Interval, SteadyCount, TypeGrowth
from leakline.analysis.run_history import (
    LARGEST,
    NO_SPANS,
    Expectation,
    Spans,
    Value,
    amount_of,
    declared_expectations,
    number_of,
)
from leakline.analysis.timeline import Timeline
from leakline.snapshot import Event


def read(n: int, **others: Sequence[float | None]) -> Timeline:
    return timeline_of(history_of([500.0 * MIB] * n, **others))


@pytest.mark.parametrize(
    ("rating", "difference", "readings", "status", "change"),
    [
        ("expected", 9, 1, "confirmed", "expected"), ("problem", -9, 9, "ok", "problem"),
        # What fell or stayed is good, whatever is known.
        ("steady", 0, 1, None, "good"),
        ("steady", 1, 9, None, "unknown"), ("steady", 1, 9, "learning", "unknown"),
        # Four readings tell a count that rose from one that grows.
        ("steady", 1, 3, "ok", "unknown"), ("steady", 1, 4, "ok", "good"), ("steady", 1, 4, "confirmed", "good"),
        # What explains no bytes of a finding is no problem, however it grows.
        ("grows", 1, 9, "confirmed", "expected"), ("grows", 1, 9, "watch", "expected"),
        ("grows", 0, 9, None, "unknown"),
    ],
)  # fmt: skip
def test_a_change_is_rated_by_its_row_and_the_verdict(
    rating: str, difference: int, readings: int, status: str | None, change: str
) -> None:
    assert change_rating(rating, difference, readings, status, is_blamed=False) == change


@pytest.mark.parametrize(
    ("rating", "difference", "status", "change"),
    [
        ("grows", -1, "confirmed", "problem"),
        # As many as before, and larger ones: a problem by its bytes.
        ("steady", 0, "confirmed", "problem"), ("steady", 143, "suspected", "problem"),
        ("expected", 1, "confirmed", "expected"), ("grows", 1, "recovered", "unknown"),
        ("grows", 1, None, "unknown"),
    ],
)  # fmt: skip
def test_a_type_that_explains_bytes_of_a_finding_is_a_problem(
    rating: str, difference: int, status: str | None, change: str
) -> None:
    assert change_rating(rating, difference, 9, status, is_blamed=True) == change


def _row(name: str = "app.A", rating: str = "steady", **others: object) -> TypeGrowth:
    row = TypeGrowth(name, 1, 2, None, None, None, None, None, None, "steady")
    return replace(row, rating=rating, **others)  # type: ignore[arg-type]


def test_rows_that_grow_come_first_then_bytes_then_counts_then_names() -> None:
    fast, slow = Interval(5.0, 0.0, 9.0), Interval(1.0, 0.0, 9.0)
    ordered = [
        _row("z", "grows", bytes_per_generation=9.0, count_per_generation=slow),
        _row("y", "problem", bytes_per_generation=8.0, count_per_generation=fast),
        _row("x", "grows", count_per_generation=fast),
        _row("w", "problem", count_per_generation=slow),
        _row("a", "grows"),
        _row("b", "problem"),
        _row("d", "steady", bytes_per_generation=99.0),
        _row("c", "expected", bytes_per_generation=9.0),
        _row("e", "steady"),
    ]
    backwards = ordered[::-1]
    assert sorted(backwards, key=_order) == ordered


def test_processes_add_up_and_the_worst_of_them_rates_the_row() -> None:
    one = _row(
        rating="expected", first_count=1, last_count=4, count_per_generation=Interval(1, 0, 2), bytes=10,
        bytes_per_generation=3.0, holder="a", phase="x", expected="2", difference=3, readings=9, last_generation=7,
        created_at_least=5,
    )  # fmt: skip
    other = _row(
        rating="grows", first_count=10, last_count=40, count_per_generation=Interval(10, 5, 20), bytes=100,
        bytes_per_generation=30.0, holder="b", phase="y", difference=30, readings=4, last_generation=6,
        created_at_least=50, freed_at_least=2,
    )  # fmt: skip
    assert _added([one]) is one
    assert _added([one, other]) == _row(
        rating="grows", first_count=11, last_count=44, count_per_generation=Interval(11, 5, 22), bytes=110,
        bytes_per_generation=33.0, holder="b", phase="y", difference=33, readings=4, last_generation=6,
        created_at_least=55, freed_at_least=2,
    )  # fmt: skip
    bare = _added([_row(), _row(rating="problem")])
    assert (bare.bytes, bare.bytes_per_generation, bare.count_per_generation) == (None, None, None)
    assert (bare.difference, bare.last_generation, bare.rating) == (0, None, "problem")
    assert (
        _added([_row(difference=None, readings=1), _row(difference=2, readings=1)]).difference == 2
    )


@pytest.mark.parametrize(
    ("now", "capacity", "speed", "state"),
    [
        (5, None, 1.0, "unbounded"), (11, 10, 0.0, "over"), (10, 10, 1.0, "full"), (9, 10, 1.0, "filling"),
        (9, 10, 0.0, "steady"), (0, 0, 0.0, "full"),
    ],
)  # fmt: skip
def test_a_container_is_full_at_its_capacity_and_fills_below_it(
    now: int, capacity: float | None, speed: float, state: str
) -> None:
    assert _state(now, capacity, speed) == state


@pytest.mark.parametrize(
    ("now", "capacity", "speed", "full_at"),
    [
        (4, 10, 4.0, 8.5), (4, 10, 0.5, 19.0), (4, 10, 7.0, 7.9), (4, None, 4.0, None), (9, 10, 4.0, 7.2),
    ],
)  # fmt: skip
def test_a_container_is_full_as_many_generations_ahead_as_it_has_room_for(
    now: int, capacity: float | None, speed: float, full_at: float | None
) -> None:
    # The newest generation is 7.
    assert _full_at(read(8), now, capacity, speed) == full_at


def test_a_container_that_holds_half_of_its_items_has_half_of_its_bytes() -> None:
    timeline = read(
        2, tracked__s__length=[2.0, 5.0], tracked__s__bytes=[200.0, 503.0], tracked__s__capacity=[10.0, 10.0],
        tracked__s__device_bytes=[None, 500.0],
    )  # fmt: skip
    row = _fill_row(timeline, "s", {})
    assert row is not None
    assert (row.length, row.capacity, row.bytes, row.ceiling_bytes) == (5, 10, 503, 1006)
    assert (row.full_at_generation, row.state) == (2.7, "filling")
    assert (row.host_bytes, row.device_bytes) == (3, 500)
    unbounded = _fill_row(read(1, tracked__s__length=[5.0], tracked__s__bytes=[5.0]), "s", {})
    assert unbounded is not None
    assert (unbounded.ceiling_bytes, unbounded.capacity, unbounded.host_bytes) == (None, None, None)
    empty = _fill_row(read(1, tracked__s__length=[0.0], tracked__s__bytes=[5.0]), "s", {"s": 4})
    assert empty is not None
    assert (empty.ceiling_bytes, empty.capacity) == (None, 4)
    assert _fill_row(read(1, tracked__s__length=[None]), "s", {}) is None


def test_a_row_tells_from_what_to_what_a_count_went_and_how_fast() -> None:
    (row,) = type_growth(
        history_of([500.0 * MIB] * 6, type__A__count=[1.0, 3, 5, 7, 9, 11], type__A__bytes=[0.0, 20, 40, 60, 80, 100])
    )  # fmt: skip
    assert (row.first_count, row.last_count, row.difference, row.readings) == (1, 11, 10, 6)
    assert row.count_per_generation == Interval(2, 2, 2)
    assert (row.bytes, row.rating, row.last_generation) == (100, "grows", 5)
    (two,) = type_growth(history_of([500.0 * MIB] * 6, type__A__count=[None, 3, 3, None, None, None]))  # fmt: skip
    assert (two.count_per_generation, two.readings, two.last_generation) == (None, 2, 2)
    (three,) = type_growth(history_of([500.0 * MIB] * 6, type__A__count=[3.0, 3, 4, None, None, None]))  # fmt: skip
    assert three.count_per_generation == Interval(0.5, 0, 1)


def test_a_count_is_judged_by_its_last_64_readings() -> None:
    counts = [100.0] * 40 + [100.0 + 3 * i for i in range(64)]
    (row,) = type_growth(history_of([500.0 * MIB] * 104, type__A__count=counts))
    assert row.count_per_generation == Interval(3, 3, 3)


def test_lines_that_are_no_phase_come_last() -> None:
    names = ["leakline", "between", "other_threads", "train", "evaluate"]
    assert sorted(names, key=_place) == [
        "evaluate",
        "train",
        "other_threads",
        "between",
        "leakline",
    ]


@pytest.mark.parametrize(
    ("amounts", "left"),
    [
        ({"a": 5.0, "b": -3.0}, {"a": 2.0, "b": 0.0}), ({"a": 3.0, "b": -5.0}, {"a": 0.0, "b": -2.0}),
        ({"a": 3.0, "b": 4.0, "c": -5.0}, {"a": 2.0, "b": 0.0, "c": 0.0}),
        ({"a": 0.5, "b": -0.25}, {"a": 0.25, "b": 0.0}),
        # Of equals the last by name takes, and the first gives.
        ({"a": -4.0, "b": -4.0, "c": 1.0}, {"a": -3.0, "b": -4.0, "c": 0.0}),
    ],
)  # fmt: skip
def test_what_a_phase_gives_back_is_taken_from_the_one_that_takes_most(
    amounts: dict[str, float], left: dict[str, float]
) -> None:
    assert without_give_and_take(amounts) == left


@pytest.mark.parametrize(
    ("a", "b", "longer"),
    [
        (None, None, None), (3, None, 3), (4, 3, 4),
    ],
)  # fmt: skip
def test_of_processes_side_by_side_the_slowest_counts(a: Value, b: Value, longer: Value) -> None:
    assert _longer(a, b) == longer


def test_a_generation_stands_for_those_left_out_before_it() -> None:
    assert _spans([0, 1, 4, 5, 9], Spans(((2, 3), (6, 8)))) == (1, 1, 3, 1, 4)
    assert _spans([3, 4], Spans(((0, 2),))) == (4, 1)
    assert _spans([0, 1], NO_SPANS) == ()


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        ((0, 5), (6, 9), None), ((5, 9), (0, 5), (5, 5)), ((0, 9), (3, 5), (3, 5)),
    ],
)  # fmt: skip
def test_attempts_did_again_what_is_in_both(
    a: tuple[int, int], b: tuple[int, int], both: tuple[int, int] | None
) -> None:
    found = _both(GenerationSpan(*a), GenerationSpan(*b))
    assert found == (None if both is None else GenerationSpan(*both))
    assert _both(None, GenerationSpan(*b)) is None
    together = _together(GenerationSpan(*a), GenerationSpan(*b))
    assert together == GenerationSpan(min(a[0], b[0]), max(a[1], b[1]))


@pytest.mark.parametrize(
    ("value", "number", "amount"),
    [
        (5, 5, 5), (0, 0, 0), (-0.5, -0.5, None), (True, None, None), ("5", None, None), (None, None, None),
        (LARGEST, LARGEST, LARGEST), (2**64, None, None), (-(2**64), None, None), (float("nan"), None, None),
    ],
)  # fmt: skip
def test_a_number_from_the_wire_is_within_what_can_be_counted(
    value: object, number: float | None, amount: float | None
) -> None:
    assert (number_of(value), amount_of(value)) == (number, amount)


def test_the_newest_declaration_for_a_type_and_place_holds() -> None:
    def said(low: int, **more: object) -> Event:
        return Event(0, 0.0, "expect", "app.A", data={"low": low, "high": 9, **more})

    watched, at_start = Event(0, 0.0, "watch", "app.A"), said(4, after="y", baseline=True)
    declared = [said(1), said(2, after="x"), said(3), watched, at_start]
    assert declared_expectations(declared) == (
        Expectation("app.A", 3, 9),
        Expectation("app.A", 2, 9, "x"),
        Expectation("app.A", 4, 9, "y", baseline=True),
    )


@pytest.mark.parametrize(
    ("new", "old", "ends"),
    [
        ("x", "x", True), (None, "x", True), ("x", "y", False),
    ],
)  # fmt: skip
def test_a_count_for_all_places_replaces_that_for_one_and_the_other_way_round(
    new: str | None, old: str | None, ends: bool
) -> None:
    assert replaces(new, old) is ends


@pytest.mark.parametrize(
    ("after", "count", "expected"),
    [
        # 2 to 4 everywhere, and 3 to 5 after x.
        ("x", 3, True), ("x", 5, True), ("x", 6, False), (None, 4, True), (None, 2, False), ("y", 3, False),
    ],
)  # fmt: skip
def test_a_count_is_expected_where_all_that_is_accepted_for_its_place_allows_it(
    after: str | None, count: int, expected: bool
) -> None:
    accepted = [Expectation("A", 2, 4, None, True), Expectation("A", 3, 5, "x", True)]
    if after == "x":
        accepted = accepted[1:]
    assert _is_expected(accepted, after, count) is expected


@pytest.mark.parametrize(
    ("counts", "steady"),
    [
        ([3] * 7, False), ([9] + [3] * 8, True), ([3] * 8 + [4], False),
        # Unknown in one of them is unknown.
        ([None] + [3] * 8, True),
    ],
)  # fmt: skip
def test_a_count_is_steady_when_it_was_the_same_in_each_of_eight_generations(
    counts: list[float | None], steady: bool
) -> None:
    history = history_of([500.0 * MIB] * len(counts), type__app__A__count=counts)
    assert steady_counts(history) == ((SteadyCount("app.A", 3, None, 8, None),) if steady else ())


def test_how_far_two_runs_come_is_told_of_each() -> None:
    out = Interval(1004.4, 989.6, 1020.4)
    told = survival_change(
        Survival(998, True, out), Survival(2000, False, None), "episode", "epoch"
    ).sentence
    assert told == (
        "Before: memory runs out about episode 1,004 (990 to 1,020); it ended at episode 998. "
        "After: nothing says that memory runs out; it has come to epoch 2,000."
    )
    nothing = Survival(None, False, None)
    assert survival_change(nothing, nothing, "episode", "epoch").sentence == (
        "Before: no episode was seen. After: no epoch was seen."
    )

"""Rows of the growth tables by type, phase, container and process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from builder import EVALUATE, MIB, Leak, Training, history_of, kept_environments
from pieces import timeline_of

from leakline.analysis import RunHistory, examine, history_from_batches
from leakline.analysis.findings.growth_tables import (
    _added,
    _fill_row,
    _full_at,
    _order,
    _state,
    _weight,
    change_rating,
    of_how_many,
    process_growth,
    type_growth,
    with_verdict,
)
from leakline.analysis.memory.memory_by_phase import (
    _longer,
    _spans,
    without_give_and_take,
)
from leakline.analysis.results import Interval, ProcessGrowth, TypeGrowth
from leakline.analysis.run_history import (
    LARGEST,
    NO_SPANS,
    Spans,
    Value,
    amount_of,
    number_of,
)
from leakline.analysis.statistics.trend import Slope
from leakline.analysis.timeline import Timeline


def read(n: int, **others: Sequence[float | None]) -> Timeline:
    return timeline_of(history_of([500.0 * MIB] * n, **others))


@pytest.mark.parametrize(
    ("rating", "difference", "readings", "status", "is_blamed", "change"),
    [
        ("expected", 9, 1, "confirmed", False, "expected"), ("problem", -9, 9, "ok", False, "problem"),
        # A count that fell or stayed is good, whatever else is known.
        ("steady", 0, 1, None, False, "good"),
        ("steady", 1, 9, None, False, "unknown"), ("steady", 1, 9, "learning", False, "unknown"),
        # Four readings distinguish a count that rose once from one that grows.
        ("steady", 1, 3, "ok", False, "unknown"), ("steady", 1, 4, "ok", False, "good"),
        # Growth that explains no bytes of a finding is not a problem.
        ("grows", 1, 9, "watch", False, "expected"), ("grows", 0, 9, None, False, "unknown"),
        # The same number of larger objects is a problem by its bytes.
        ("steady", 0, 9, "confirmed", True, "problem"), ("grows", -1, 9, "suspected", True, "problem"),
        ("expected", 1, 9, "confirmed", True, "expected"), ("grows", 1, 9, "recovered", True, "unknown"),
        ("grows", 1, 9, None, True, "unknown"),
    ],
)  # fmt: skip
def test_changes_are_rated_by_row_verdict_and_finding(
    rating: str, difference: int, readings: int, status: str | None, is_blamed: bool, change: str
) -> None:
    assert change_rating(rating, difference, readings, status, is_blamed=is_blamed) == change


def _row(name: str = "app.A", rating: str = "steady", **others: object) -> TypeGrowth:
    row = TypeGrowth(name, 1, 2, None, None, None, None, None, None, "steady")
    return replace(row, rating=rating, **others)  # type: ignore[arg-type]


def test_rows_are_sorted_by_growth_bytes_counts_and_names() -> None:
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


def test_processes_add_up_and_the_worst_one_rates_the_row() -> None:
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
def test_the_generation_in_which_a_container_is_full(
    now: int, capacity: float | None, speed: float, full_at: float | None
) -> None:
    # The newest generation is 7.
    assert _full_at(read(8), now, capacity, speed) == full_at


def test_a_container_that_holds_half_of_its_items_has_half_of_its_bytes() -> None:
    timeline = read(
        2, tracked__s__length=[2.0, 5.0], tracked__s__bytes=[200.0, 503.0], tracked__s__capacity=[10.0, 10.0],
        tracked__s__device_bytes=[None, 500.0],
    )  # fmt: skip
    row = _fill_row(timeline, "tracked.s", 10.0)
    assert row is not None
    assert (row.length, row.capacity, row.bytes, row.ceiling_bytes) == (5, 10, 503, 1006)
    assert (row.full_at_generation, row.state) == (2.7, "filling")
    assert (row.host_bytes, row.device_bytes) == (3, 500)
    unbounded = _fill_row(
        read(1, tracked__s__length=[5.0], tracked__s__bytes=[5.0]), "tracked.s", None
    )
    assert unbounded is not None
    assert (unbounded.ceiling_bytes, unbounded.capacity, unbounded.host_bytes) == (None, None, None)
    empty = _fill_row(read(1, tracked__s__length=[0.0], tracked__s__bytes=[5.0]), "tracked.s", 4)
    assert empty is not None
    assert (empty.ceiling_bytes, empty.capacity) == (None, 4)
    assert _fill_row(read(1, tracked__s__length=[None]), "tracked.s", None) is None


def test_a_row_shows_the_first_and_last_count_and_the_rate() -> None:
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


@pytest.mark.parametrize(
    ("amounts", "left"),
    [
        ({"a": 5.0, "b": -3.0}, {"a": 2.0, "b": 0.0}), ({"a": 3.0, "b": -5.0}, {"a": 0.0, "b": -2.0}),
        ({"a": 3.0, "b": 4.0, "c": -5.0}, {"a": 2.0, "b": 0.0, "c": 0.0}),
        ({"a": 0.5, "b": -0.25}, {"a": 0.25, "b": 0.0}),
        # Of equal phases the last by name receives, and the first gives.
        ({"a": -4.0, "b": -4.0, "c": 1.0}, {"a": -3.0, "b": -4.0, "c": 0.0}),
    ],
)  # fmt: skip
def test_memory_freed_by_a_phase_is_subtracted_from_the_largest_one(
    amounts: dict[str, float], left: dict[str, float]
) -> None:
    assert without_give_and_take(amounts) == left


@pytest.mark.parametrize(("a", "b", "longer"), [(None, None, None), (3, None, 3), (4, 3, 4)])
def test_the_slowest_of_parallel_processes_counts(a: Value, b: Value, longer: Value) -> None:
    assert _longer(a, b) == longer


def test_a_generation_counts_for_those_thinned_before_it() -> None:
    assert _spans([0, 1, 4, 5, 9], Spans(((2, 3), (6, 8)))) == (1, 1, 3, 1, 4)
    assert _spans([3, 4], Spans(((0, 2),))) == (4, 1)
    assert _spans([0, 1], NO_SPANS) == ()


@pytest.mark.parametrize(
    ("value", "number", "amount"),
    [
        (5, 5, 5), (0, 0, 0), (-0.5, -0.5, None), (True, None, None), ("5", None, None), (None, None, None),
        (LARGEST, LARGEST, LARGEST), (2**64, None, None), (-(2**64), None, None), (float("nan"), None, None),
    ],
)  # fmt: skip
def test_counts_from_the_wire_are_limited(
    value: object, number: float | None, amount: float | None
) -> None:
    assert (number_of(value), amount_of(value)) == (number, amount)


def ranks(*leaking: bool) -> RunHistory:
    each = [
        Training(
            leaks=(kept_environments(),) if leaks else (), generations=24, instance=f"p{rank}", rank=rank, seed=rank + 1
        )
        for rank, leaks in enumerate(leaking)
    ]  # fmt: skip
    return history_from_batches(each[0].header(), [b for one in each for b in one.batches()])


def by_process(history: RunHistory) -> dict[str, ProcessGrowth]:
    return {each.process: each for each in examine(history).processes}


def test_tensors_that_two_findings_name_are_counted_once() -> None:
    """Host memory and a device grow with the same tensors; other phases and processes have tensors of their own."""

    def finding(kind: str, phase: str, count: float, process: str | None = None) -> dict[str, Any]:
        suspect = {
            "name": "app.A",
            "role": "type",
            "count_per_generation": count,
            "bytes_per_generation": 8.0,
        }
        return {
            "kind": kind, "phase": phase, "process": process, "status": "confirmed", "suspects": [suspect],
            "growth_bytes_per_generation": {"estimate": 8.0},
        }  # fmt: skip

    host, device = finding("tensors", "train", 3.0), finding("gpu", "train", 3.0)
    for others, rate in (
        ([], 3.0), ([finding("tensors", "eval", 2.0)], 5.0), ([finding("tensors", "train", 4.0, "rank 1 main")], 7.0),
    ):  # fmt: skip
        verdict = {"status": "confirmed", "findings": [host, device, *others]}
        (row,) = with_verdict([_row()], verdict)
        assert row.count_per_generation == Interval(rate, rate, rate)
        assert row.bytes_per_generation == 8.0 * (2 + len(others))


def test_unknown_growth_is_not_zero() -> None:
    assert by_process(RunHistory("empty")) == {}
    (one,) = by_process(Training(generations=1).history()).values()
    assert one.growth_bytes_per_generation is None
    # Another rank has joined, but reads no memory.
    history = ranks(True)
    blind = replace(history.processes[0], instance="p1", rank=1, series={})
    found = by_process(replace(history, processes=(*history.processes, blind)))
    assert found["rank 0 main"].growth_bytes_per_generation is not None
    assert found["rank 1 main"] == ProcessGrowth("rank 1 main", "p1", None)


def test_the_leaking_rank_is_named_and_run_growth_is_the_sum() -> None:
    verdict = examine(ranks(False, True))
    healthy, leaking = verdict.processes
    named = tuple(f.fingerprint for f in verdict.findings if f.process == "rank 1 main")
    assert (healthy.process, healthy.findings) == ("rank 0 main", ())
    assert (leaking.process, leaking.findings) == ("rank 1 main", named)
    for end in ("estimate", "low", "high"):
        parts = [getattr(each.growth_bytes_per_generation, end) for each in verdict.processes]
        assert getattr(verdict.growth_bytes_per_generation, end) == pytest.approx(sum(parts))
    assert leaking.growth_bytes_per_generation is not None
    assert leaking.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.3)


def test_the_sentence_names_the_first_leaking_ranks() -> None:
    assert examine(ranks(False, True)).summary.endswith(" (rank 1 main)")
    both = examine(ranks(True, True)).summary
    assert both.endswith(" (rank 0 main and rank 1 main together)")
    assert examine(ranks(*6 * [True])).summary.endswith("rank 3 main and 2 more together)")
    assert "rank" not in examine(ranks(True)).summary


def test_numbers_of_several_ranks_are_sums_and_evidence_names_the_rank() -> None:
    alone, both = (
        next(f for f in examine(ranks(first, True)).findings if f.status == "confirmed")
        for first in (False, True)
    )
    assert [f.suspects[0].count_per_generation for f in (alone, both)] == [16, 32]
    growth = both.growth_bytes_per_generation.estimate
    assert both.suspects[0].bytes_per_generation == pytest.approx(growth, abs=0.1)
    assert not any("rank" in line for line in alone.evidence)
    assert {line.split(":")[0] for line in both.evidence} <= {"rank 0 main", "rank 1 main"}


def test_a_rank_that_hardly_grows_is_not_named() -> None:
    large = Training(
        leaks=(replace(kept_environments(), holders=()),), generations=24, instance="p1", rank=1, seed=2,
    )  # fmt: skip
    leak = Leak(EVALUATE, 0.01 * MIB, {"trading.TradingEnvironment": 16})
    small = replace(large, leaks=(leak,), instance="p0", rank=0, seed=1, noise=0.0)
    verdict = examine(history_from_batches(small.header(), [*small.batches(), *large.batches()]))
    (finding,) = [f for f in verdict.findings if f.status == "confirmed"]
    assert finding.process == "rank 1 main"
    assert finding.suspects[0].count_per_generation == 16
    assert [each.findings for each in verdict.processes] == [(), (finding.fingerprint,)]


def test_the_attempts_of_a_rank_have_one_row_with_the_newest_process() -> None:
    first = Training(leaks=(kept_environments(),), generations=12, instance="a")
    second = replace(first, instance="b", attempt=2, first_generation=12)
    history = history_from_batches(first.header(), [*first.batches(), *second.batches()])
    (one,) = by_process(history).values()
    assert one.instance == "b"
    assert one.findings


def of_place(growth: float | None, *findings: str) -> ProcessGrowth:
    return ProcessGrowth("p", "i", None if growth is None else Interval(growth, 0, 0), findings)


def test_named_processes_come_first_then_the_fastest_growing() -> None:
    order = [of_place(-5, "f"), of_place(9), of_place(0), of_place(-3), of_place(None)]
    mixed = [order[i] for i in (4, 2, 0, 3, 1)]
    assert sorted(mixed, key=_weight) == order


def test_the_sentence_says_how_many_processes_were_not_read() -> None:
    one = history_of([1.0])
    assert of_how_many(one) == ""
    left = replace(one, processes=one.processes * 2, processes_left_out=1_000)
    assert of_how_many(left) == " (of the 2 largest processes; 1,000 more are not analyzed)"


@pytest.mark.parametrize("places", [1_024, 1_025])
def test_at_most_1024_processes_have_rows_in_order(places: int) -> None:
    """The process that grows least is left out."""
    timelines = [SimpleNamespace(name=f"rank {i} main", instance=f"p{i}") for i in range(places)]
    growths = [SimpleNamespace(growth=Slope(9.0 * (i != 3), 0, 9, 9)) for i in range(places)]
    moments = [
        (SimpleNamespace(timeline=timeline), growth, ())
        for timeline, growth in zip(timelines, growths, strict=True)
    ]
    found = process_growth(cast(Any, timelines), cast(Any, moments), ())
    names = [
        timeline.name for timeline in timelines if places == 1_024 or timeline.name != "rank 3 main"
    ]
    assert [each.process for each in found] == names

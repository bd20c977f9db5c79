"""A planned band and a reading: which generations it is for, which bounds it has, and what is open or unread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from leakline.analysis import RunHistory
from leakline.analysis.history import LARGEST, Value
from leakline.analysis.plan import (
    GROWTH,
    Band,
    _band,
    _checked,
    _rest,
    _stretches,
    _told,
    _units,
    _where,
    _whole,
    band_title,
    check_bands,
    declared_bands,
    plain_number,
    readings_of,
    writer_of,
)
from leakline.analysis.results import BandDeviation, BandState
from leakline.analysis.series import Lane
from leakline.snapshot import Event

RSS = "process.rss_bytes"
RUN, ENDED = RunHistory("r"), RunHistory("r", ended=True)


def lane_of(
    generation: Sequence[int | None], series: Mapping[str, Sequence[Value]], *, name: str = "rank 0 main",
    ends: Sequence[int] | None = None, segment: Sequence[int] | None = None, baseline: int | None = None,
) -> Lane:  # fmt: skip
    """``ends``: the rows that end a generation; each row does where none are named."""
    n = len(generation)
    rows = tuple(range(n) if ends is None else ends)
    generations = tuple(g for row in rows if (g := generation[row]) is not None)
    return Lane(
        name, "p", ["generation_end"] * n, [None] * n, [60.0 * i for i in range(n)], generation, series,
        segment or [0] * n, generations, rows, baseline, {g: i for i, g in enumerate(generations)},
    )  # fmt: skip


def read(readings: Sequence[Value], *, first: int = 0) -> Lane:
    return lane_of(range(first, first + len(readings)), {RSS: readings})


def band(
    first: int = 0, last: int | None = None, low: float | None = 10, high: float | None = 20
) -> Band:
    return Band(RSS, first, last, low, high)


@pytest.mark.parametrize(
    ("low", "high", "value", "off_by"),
    [
        (10, 20, 9, -1),
        (10, 20, 10, 0),
        (10, 20, 20, 0),
        (10, 20, 22, 2),
        (None, 20, -5, 0),
        (None, 20, 21, 1),
        (10, None, 99, 0),
        (10, None, 7, -3),
    ],
)
def test_both_bounds_lie_within(
    low: float | None, high: float | None, value: float, off_by: float
) -> None:
    assert band(low=low, high=high).off_by(value) == off_by


@pytest.mark.parametrize(
    ("last", "held"),
    [(7, [3, 4, 5, 6, 7]), (3, [3]), (None, [3, 4, 5, 6, 7, 8, 9])],
)
def test_a_band_is_for_its_first_generation_its_last_and_those_between(
    last: int | None, held: list[int]
) -> None:
    assert [g for g in range(10) if band(3, last).holds(g)] == held


@pytest.mark.parametrize(
    ("value", "whole"),
    [(3, 3), (0, 0), (-2, -2), (3.0, None), ("3", None), (True, None), (None, None), (int(LARGEST) * 2, None)],
)  # fmt: skip
def test_only_whole_numbers_name_a_generation(value: object, whole: int | None) -> None:
    assert _whole(value) == whole


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"first": 1, "last": 5, "low_bytes": 2, "high_bytes": 3}, Band(RSS, 1, 5, 2, 3)),
        ({"first": 1, "low_bytes": 2}, Band(RSS, 1, None, 2, None)),
        ({"first": 1, "last": None, "high_bytes": 3}, Band(RSS, 1, None, None, 3)),
        ({"first": 1, "last": 5}, None),
        ({"last": 5, "low_bytes": 2}, None),
        # An end that is no generation is not the same as none.
        ({"first": 1, "last": "5", "low_bytes": 2}, None),
    ],
)
def test_a_band_has_a_beginning_and_at_least_one_bound(
    data: dict[str, Any], found: Band | None
) -> None:
    assert _band(RSS, data) == found


def event(series: str, first: int, last: int | None, low: float, kind: str = "band") -> Event:
    return Event(0, 0.0, kind, series, data={"first": first, "last": last, "low_bytes": low})


def test_bands_come_by_series_and_generation_with_those_without_an_end_behind() -> None:
    events = (
        event("b", 1, None, 1), event("b", 1, 5, 1), event("a", 6, 9, 1), event("a", 1, 9, 1), event("b", 1, 5, 7),
        event("a", 0, 1, 1, "budget"),
    )  # fmt: skip
    found = declared_bands(RunHistory("r", events=events))
    assert [(b.series, b.first, b.last, b.low) for b in found] == [
        ("a", 1, 9, 1), ("a", 6, 9, 1), ("b", 1, 5, 7), ("b", 1, None, 1),
    ]  # fmt: skip


def test_the_newest_forty_bands_count() -> None:
    events = tuple(event(RSS, first, None, 1) for first in range(45))
    found = declared_bands(RunHistory("r", events=events))
    assert [b.first for b in found] == list(range(5, 45))


def test_eighty_checks_are_told() -> None:
    history = RunHistory("r", events=tuple(event(RSS, first, None, 1) for first in range(30)))
    lanes = [read([5, 5]), read([5, 5]), read([5, 5])]
    assert len(check_bands(history, lanes)) == 80


@pytest.mark.parametrize(
    ("readings", "last", "history", "state", "still_open"),
    [
        ([15, 15], 1, RUN, "within", False),
        ([15, 15, 15], 2, RUN, "within", False),
        ([15, 15], 2, RUN, "open", True),
        ([15, 15], 2, ENDED, "within", False),
        ([15, 15], None, RUN, "open", True),
        ([15, 15], None, ENDED, "within", False),
        # One reading outside decides, whatever is to come.
        ([15, 21], 2, RUN, "outside", True),
        ([15, 9], 1, RUN, "outside", False),
        ([None, None], 1, RUN, "not_measured", False),
        ([None, 15], 1, RUN, "within", False),
        ([], 1, RUN, "open", True),
    ],
)
def test_a_band_is_within_once_all_of_it_has_ended(
    readings: list[Value], last: int | None, history: RunHistory, state: BandState, still_open: bool
) -> None:
    check = _checked(band(0, last), read(readings), history, False)
    assert (check.state, check.open, check.process) == (state, still_open, None)


def test_generations_are_counted_below_within_above_and_unread() -> None:
    check = _checked(band(1, 7), read([99, 9, 10, 20, 25, None, 8, 30, 99]), RUN, True)
    assert (check.below, check.within, check.above, check.unread) == (2, 2, 2, 1)
    assert check.deviations == (
        BandDeviation(1, 9, -1), BandDeviation(4, 25, 5), BandDeviation(6, 8, -2), BandDeviation(7, 30, 10),
    )  # fmt: skip
    assert check.process == "rank 0 main"


def test_the_first_fifty_deviations_are_told_and_all_are_counted() -> None:
    check = _checked(band(), read([21] * 60), RUN, False)
    assert (check.above, len(check.deviations), check.deviations[-1].generation) == (60, 50, 49)


def test_only_processes_that_measure_the_series_are_checked() -> None:
    history = RunHistory("r", events=(event(RSS, 0, None, 1), event("gauge.x", 0, None, 1)))
    silent = lane_of(range(2), {RSS: [None, None]}, name="rank 1 main")
    checks = check_bands(history, [read([5, None]), silent])
    assert [(c.series, c.process, c.state) for c in checks] == [
        ("gauge.x", None, "not_measured"), (RSS, None, "open"),
    ]  # fmt: skip
    other = lane_of(range(2), {RSS: [5, 0]}, name="rank 1 main")
    both = check_bands(history, [read([5, 5]), other])
    assert [(c.process, c.state) for c in both[1:]] == [
        ("rank 0 main", "open"), ("rank 1 main", "outside"),
    ]  # fmt: skip
    unmeasured = check_bands(history, [])[0]
    assert (unmeasured.within, unmeasured.below, unmeasured.above, unmeasured.unread) == (
        0,
        0,
        0,
        0,
    )
    assert unmeasured.open
    assert unmeasured.sentence == "gauge.x is not measured in this run."


def test_growth_is_from_the_end_before_and_of_the_first_from_the_baseline() -> None:
    generation = [None, 0, 1, 2]
    memory = {RSS: [100, 107, 120, 118]}
    with_baseline = lane_of(generation, memory, ends=[1, 2, 3], baseline=0)
    assert list(readings_of(with_baseline, GROWTH)) == [7, 13, -2]
    assert list(readings_of(lane_of(generation, memory, ends=[1, 2, 3]), GROWTH)) == [None, 13, -2]


def test_growth_over_what_was_not_read_is_unknown() -> None:
    assert list(readings_of(read([10, None, 14, 15]), GROWTH)) == [None, None, None, 1]
    # Nor where a generation is lost between two.
    lost = lane_of([0, 1, 3, 4], {RSS: [10, 11, 15, 17]})
    assert list(readings_of(lost, GROWTH)) == [None, 1, None, 2]


def test_growth_over_a_resume_is_unknown() -> None:
    resumed = lane_of(range(4), {RSS: [10, 11, 5, 7]}, segment=[0, 0, 1, 1])
    assert list(readings_of(resumed, GROWTH)) == [None, 1, None, 2]


def test_growth_is_checked_where_resident_memory_is_read() -> None:
    history = RunHistory("r", events=(event(GROWTH, 0, 1, 5),))
    (check,) = check_bands(history, [read([10, 15])])
    assert (check.state, check.within, check.unread) == ("within", 1, 1)
    assert check_bands(history, [lane_of(range(2), {})])[0].state == "not_measured"


def test_a_peak_is_the_highest_of_all_snapshots_of_its_generation() -> None:
    peaks = [90, 5, 7, 6, 3, None, 2]
    lane = lane_of([None, 0, 0, 0, 1, 2, 1], {"process.peak_bytes": peaks}, ends=[3, 6, 5])
    assert list(readings_of(lane, "process.peak_bytes")) == [7, 3, None]


def deviations(*off_by: tuple[int, float]) -> list[BandDeviation]:
    return [BandDeviation(generation, 0, off) for generation, off in off_by]


@pytest.mark.parametrize(
    ("outside", "said"),
    [
        (deviations((4, -3)), "below in generation 4 by 3 B"),
        (deviations((4, 0.5)), "above in generation 4 by 1 B"),
        (deviations((4, 3)), "above in generation 4 by 3 B"),
        (deviations((1, -3), (2, -5)), "below in generations 1 to 2 by up to 5 B (generation 2)"),
        # Of those that are as far off the first.
        (deviations((1, 5), (2, 3), (4, 5)), "above in 3 generations between 1 and 4 by up to 5 B (generation 1)"),
        (deviations((1, 5), (2, -3)), "below in generation 2 by 3 B, above in generation 1 by 5 B"),
    ],
)  # fmt: skip
def test_deviations_are_told_with_the_farthest(outside: list[BandDeviation], said: str) -> None:
    assert _stretches(band(), outside, "generation") == said


@pytest.mark.parametrize(
    ("generations", "said"),
    [
        ([3, 4, 5], "generations 3 to 5"),
        ([3, 5], "2 generations between 3 and 5"),
        ([3, 4, 6], "3 generations between 3 and 6"),
    ],
)  # fmt: skip
def test_generations_are_a_stretch_where_none_is_missing(generations: list[int], said: str) -> None:
    assert _where(generations, "generation") == said


@pytest.mark.parametrize(
    ("last", "newest", "history", "said"),
    [
        (5, 4, RUN, "; 1 generation still to come"),
        (5, 3, RUN, "; 2 generations still to come"),
        (5, 5, RUN, ""),
        (5, 4, ENDED, "; the run ended 1 generation before its end"),
        (None, 4, RUN, " so far"),
        (None, 4, ENDED, ""),
    ],
)
def test_what_is_still_to_come_is_told(
    last: int | None, newest: int, history: RunHistory, said: str
) -> None:
    assert _rest(band(0, last), history, newest) == said


@pytest.mark.parametrize(
    ("ended", "known", "outside", "newest", "history", "said"),
    [
        ([], 0, [], 2, RUN, "Not reached yet."),
        ([], 0, [], 2, ENDED, "The run ended at generation 2."),
        # The band begins at generation 3.
        ([], 0, [], 3, RUN, "None of them was recorded."),
        ([3], 1, [], 3, ENDED, "Within in its one generation."),
        ([3, 4], 2, [], 4, ENDED, "Within in all 2 generations."),
        ([3, 4], 0, [], 4, ENDED, "No reading in 2 generations."),
        ([3, 4, 5], 2, [], 5, ENDED, "Within in all 2 generations, 1 generation without a reading."),
        ([3, 4, 5], 3, deviations((4, 2)), 5, ENDED, "Above in generation 4 by 2 B; 2 of 3 within."),
    ],
)  # fmt: skip
def test_the_sentence_says_what_lies_within(
    ended: list[int], known: int, outside: list[BandDeviation], newest: float, history: RunHistory, said: str
) -> None:  # fmt: skip
    assert _told(band(3), history, ended, known, outside, newest) == said


def test_before_anything_has_ended_a_band_is_not_reached() -> None:
    assert _told(band(0, 3), RUN, [], 0, [], -math.inf) == "Not reached yet."


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (16, "16"), (0.25, "0.25"), (3072.4, "3,072"), (99.94, "99.9"), (99.96, "100"), (100.4, "100"),
        (-100.4, "-100"), (-0.5, "-0.5"), (12.0, "12"),
    ],
)  # fmt: skip
def test_plain_numbers_have_three_digits_that_count(value: float, written: str) -> None:
    assert plain_number(value) == written


@pytest.mark.parametrize(
    ("series", "written"),
    [("process.rss_bytes", "2 B"), ("train.bytes", "2 B"), ("gauge.bytes_read", "2")],
)
def test_sizes_are_written_by_the_end_of_the_name(series: str, written: str) -> None:
    assert writer_of(series)(2) == written


@pytest.mark.parametrize(
    ("first", "last", "low", "high", "process", "title"),
    [
        (1, 5, 3, 4, None, "process.rss_bytes, generations 1 to 5: 3 B to 4 B"),
        (1, 1, 3, 4, None, "process.rss_bytes, generation 1: 3 B to 4 B"),
        (1, None, None, 4, None, "process.rss_bytes, from generation 1 on: up to 4 B"),
        (1, 2, 3, None, "rank 1 main", "process.rss_bytes (rank 1 main), generations 1 to 2: from 3 B"),
    ],
)  # fmt: skip
def test_a_band_is_titled_by_its_generations_and_bounds(
    first: int, last: int | None, low: float | None, high: float | None, process: str | None, title: str
) -> None:  # fmt: skip
    check = {
        "series": RSS,
        "first": first,
        "last": last,
        "low": low,
        "high": high,
        "process": process,
    }
    assert band_title(check, "generation") == title


def test_one_is_not_several() -> None:
    assert [_units("minute", n) for n in (0, 1, 2)] == ["0 minutes", "1 minute", "2 minutes"]

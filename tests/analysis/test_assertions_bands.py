"""Each generation of a planned band is below it, within it or above it; what is open or not measured says so."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from builder import GB, GIB, MIB, Training, as_crashed, crashed_at_13
from pieces import steps_history

from leakline.analysis import RunHistory, examine, verdict_json
from leakline.analysis.assertions.checks import band_readings, check, check_assertions
from leakline.analysis.assertions.declared_limits import (
    GENERATION_GROWTH,
    _ranges,
    _rest,
    assertion_title,
    band_sentence,
    declared_assertions,
    readings_of,
    writer_of,
)
from leakline.analysis.results import Assertion, AssertionCheck, AssertionState, Deviation, Interval
from leakline.analysis.run_history import Value
from leakline.analysis.timeline import Timeline
from leakline.analysis.timeline_analysis import TimelineAnalysis
from leakline.snapshot import Event

RSS = "process.rss_bytes"
# Report 002: generations 1 to 5 at 30-40 GB, 6 to 10 at 40-50, from 11 on flat at 40-50.
OF_REPORT_002 = ((1, 5, 30 * GB, 40 * GB), (6, 10, 40 * GB, 50 * GB), (11, None, 40 * GB, 50 * GB))


def declared_band(first: Any, last: Any, low: Any, high: Any, series: str = RSS) -> Event:
    data = {"first": first, "last": last, "low_bytes": low, "high_bytes": high}
    return Event(0, 0.0, "band", series, data=data)


def planned(history: RunHistory, *events: Event) -> RunHistory:
    return replace(history, events=(*history.events, *events))


def of_readings(
    readings: dict[int, float | None], *events: Event, series: str = RSS, ended: bool = False
) -> RunHistory:
    """A run of one reading per generation."""
    rows = [("generation_end", g, None) for g in readings]
    return steps_history(rows, {series: list(readings.values())}, events=events, ended=ended)


def checked(history: RunHistory) -> list[AssertionCheck]:
    return list(examine(history).assertions)


def counts(check: AssertionCheck) -> tuple[int, int, int]:
    """Return the generations below the band, within it and above it."""
    below = sum(each.off_by < 0 for each in check.deviations)
    return below, check.judged - check.outside, check.outside - below


def test_report_001_s_run_lies_above_each_band_of_report_002() -> None:
    """As the crash says: 175 GB after 13 generations. The first one is still within."""
    found = checked(
        planned(crashed_at_13(as_crashed()), *(declared_band(*each) for each in OF_REPORT_002))
    )
    assert [(c.first, counts(c)) for c in found] == [
        (1, (0, 1, 4)), (6, (0, 0, 5)), (11, (0, 0, 2)),
    ]  # fmt: skip
    assert {c.state for c in found} == {"broken"}
    worst = found[-1].deviations[-1]
    assert worst.generation == 12
    assert worst.off_by == pytest.approx(125 * GB, rel=0.01)
    assert found[0].sentence.startswith("Above in generations 2 to 5 by up to 42.")
    assert found[0].sentence.endswith("GiB (generation 5); 1 of 5 within.")


def test_a_run_as_report_002_expected_it_lies_within_but_for_how_fast_it_fills() -> None:
    training = Training(
        generations=25, total=25, resident=31 * GB, noise=50 * MIB, warm_up=(0.5 * GB,),
        buffer_bytes=13 * GB, buffer_full_after=13,
    )  # fmt: skip
    history = replace(training.history(), ended=True)
    found = checked(planned(history, *(declared_band(*each) for each in OF_REPORT_002)))
    assert [c.state for c in found] == ["holds", "broken", "holds"]
    assert [counts(c) for c in found] == [(0, 5, 0), (2, 3, 0), (0, 14, 0)]
    assert found[0].sentence == "Within in all 5 generations."
    assert "; 3 of 5 within." in found[1].sentence


@pytest.mark.parametrize(
    ("reading", "off_by"),
    [(30 * GIB - 1, -1), (30 * GIB, 0), (35 * GIB, 0), (40 * GIB, 0), (40 * GIB + 1, 1)],
)
def test_the_bounds_belong_to_the_band(reading: float, off_by: float) -> None:
    (check,) = checked(of_readings({1: reading}, declared_band(1, 1, 30 * GIB, 40 * GIB)))
    assert [d.off_by for d in check.deviations] == ([off_by] if off_by else [])
    assert counts(check) == (int(off_by < 0), int(off_by == 0), int(off_by > 0))
    assert check.state == ("broken" if off_by else "holds")


@pytest.mark.parametrize(("low", "high", "below", "above"), [(5, None, 2, 0), (None, 6, 0, 1)])
def test_a_band_may_have_one_bound(low: Any, high: Any, below: int, above: int) -> None:
    history = of_readings({1: 3, 2: 4, 3: 5, 4: 6, 5: 7}, declared_band(1, 5, low, high))
    (check,) = checked(history)
    assert counts(check)[::2] == (below, above)


def test_generations_not_reached_are_open_until_the_run_ends() -> None:
    readings: dict[int, float | None] = {1: 5.0, 2: 5.0}
    (check,) = checked(of_readings(readings, declared_band(1, 4, 0, 10)))
    assert check.state == "open"
    assert check.sentence == "Within in all 2 generations; 2 generations still to come."
    (check,) = checked(of_readings(readings, declared_band(3, 4, 0, 10), ended=True))
    assert (check.state, check.sentence) == ("open", "The run ended at generation 2.")


def test_units_are_told_by_the_name_of_the_series() -> None:
    told = declared_band(1, 2, 0, 20, "gauge.x")
    gauge = of_readings({1: 60, 2: 20.25}, told, series="gauge.x")
    (row,) = verdict_json(examine(gauge))["assertions"]
    said = "Above in generations 1 to 2 by up to 40 (generation 1); 0 of 2 within."
    assert row["sentence"] == said
    assert assertion_title(row, "epoch") == "gauge.x, epochs 1 to 2: 0 to 20"


def limited(warn_above: Any, name: str = "queue") -> Event:
    return Event(0, 0.0, "gauge", name, data={"warn_above": warn_above})


def test_the_limit_of_a_gauge_holds_for_its_highest_reading_of_each_generation() -> None:
    rows = [
        ("phase_end", 1, "train"),
        ("generation_end", 1, None),
        ("phase_end", 2, "train"),
        ("generation_end", 2, None),
    ]
    series = {"gauge.queue": [51.0, 3.0, 50.0, 3.0]}
    history = steps_history(rows, series, events=(limited(40), limited(50)), ended=False)
    (row,) = verdict_json(examine(history))["assertions"]
    assert (row["origin"], row["name"], row["metric"], row["state"]) == (
        "gauge",
        "queue",
        "gauge.queue",
        "broken",
    )
    assert row["sentence"] == "Above in generation 1 by 1; 1 of 2 within so far."
    assert assertion_title(row, "epoch") == "gauge.queue: up to 50"
    (check,) = checked(replace(history, events=(limited(51),)))
    assert (check.state, check.sentence) == ("holds", "Within in all 2 generations so far.")
    (check,) = checked(replace(history, events=(limited(5, "other"),)))
    assert (check.state, check.sentence) == (
        "not_measured",
        "gauge.other is not measured in this run.",
    )
    assert checked(replace(history, events=(limited("50"), limited(None)))) == []


def test_readings_of_a_resume_are_those_that_were_read() -> None:
    """A process that begins anew begins low; the band speaks of memory in use, not of growth."""
    (before,) = of_readings({1: 9, 2: 9, 3: 9}).processes
    (after,) = of_readings({4: 4, 5: 4, 6: 4}).processes
    later = [1_000.0 + at for at in after.time]
    after = replace(after, instance="p2", attempt=2, time=later, monotonic=later)
    history = RunHistory("r", processes=(before, after), events=(declared_band(1, 6, 0, 5),))
    (check,) = checked(history)
    assert [d.generation for d in check.deviations] == [1, 2, 3]


def test_what_is_no_band_breaks_no_verdict() -> None:
    wrong = [
        (None, 5, 0, 1), ("1", 5, 0, 1), (1, "5", 0, 1), (1, 5, None, None), (1, 5, "a", None), (True, 5, 0, 1),
        (1, 5, None, 10**400), (1, 5, float("nan"), None), (3.0, 5, 0, 1), (2**64, None, 0, 1),
    ]  # fmt: skip
    events = [declared_band(*each) for each in wrong]
    assert checked(of_readings({1: 5}, *events, Event(0, 0.0, "band", RSS))) == []


def test_a_long_plan_stays_small() -> None:
    events = [declared_band(g, g, 0, 1) for g in range(500)]
    verdict = examine(
        of_readings(dict.fromkeys(range(500), 5), *events, declared_band(0, 499, 0, 1))
    )
    assert len(verdict.assertions) <= 40
    whole = next(c for c in verdict.assertions if c.last == 499 and c.first == 0)
    assert (whole.outside, len(whole.deviations)) == (500, 50)
    assert json.loads(json.dumps(verdict_json(verdict))) == verdict_json(verdict)


RUN, ENDED = RunHistory("r"), RunHistory("r", ended=True)


def timeline_of(
    generation: Sequence[int | None], series: Mapping[str, Sequence[Value]], *, name: str = "rank 0 main",
    ends: Sequence[int] | None = None, segment: Sequence[int] | None = None, baseline: int | None = None,
) -> Timeline:  # fmt: skip
    """``ends``: the rows that end a generation; each row does where none are named."""
    n = len(generation)
    rows = tuple(range(n) if ends is None else ends)
    generations = tuple(g for row in rows if (g := generation[row]) is not None)
    return Timeline(
        name, "p", ["generation_end"] * n, [None] * n, [60.0 * i for i in range(n)], generation, series,
        segment or [0] * n, generations, rows, baseline, {g: i for i, g in enumerate(generations)},
    )  # fmt: skip


def read(readings: Sequence[Value], *, first: int = 0) -> Timeline:
    return timeline_of(range(first, first + len(readings)), {RSS: readings})


def of(*timelines: Timeline) -> list[TimelineAnalysis]:
    """Studies of which a band needs nothing but the readings."""
    return [cast(TimelineAnalysis, SimpleNamespace(timeline=timeline)) for timeline in timelines]


def told(studies: Sequence[TimelineAnalysis]) -> list[tuple[TimelineAnalysis, None]]:
    return [(study, None) for study in studies]


def checked_band(band: Assertion, timeline: Timeline, history: RunHistory = RUN) -> AssertionCheck:
    (readings,) = band_readings(band, of(timeline))
    return check(history, band, readings)


def band(
    first: int = 0, last: int | None = None, low: float | None = 10, high: float | None = 20
) -> Assertion:
    return Assertion("band", RSS, RSS, None, low, high, None, first, last)


@pytest.mark.parametrize(
    ("last", "held"), [(7, [3, 4, 5, 6, 7]), (3, [3]), (None, [3, 4, 5, 6, 7, 8, 9])]
)
def test_a_band_is_for_its_first_generation_its_last_and_those_between(
    last: int | None, held: list[int]
) -> None:
    assert [g for g in range(10) if band(3, last).covers(g)] == held


def event(series: str, first: int, last: int | None, low: float) -> Event:
    return Event(0, 0.0, "band", series, data={"first": first, "last": last, "low_bytes": low})


def test_bands_come_by_series_and_generation_with_those_without_an_end_behind() -> None:
    events = (
        event("b", 1, None, 1), event("b", 1, 5, 1), event("a", 6, 9, 1), event("a", 1, 9, 1), event("b", 1, 5, 7),
    )  # fmt: skip
    found = declared_assertions(RunHistory("r", events=events))
    assert [(b.name, b.first, b.last, b.low) for b in found] == [
        ("a", 1, 9, 1), ("a", 6, 9, 1), ("b", 1, 5, 7), ("b", 1, None, 1),
    ]  # fmt: skip


def test_the_newest_forty_bands_count() -> None:
    events = tuple(event(RSS, first, None, 1) for first in range(45))
    found = declared_assertions(RunHistory("r", events=events))
    assert [b.first for b in found] == list(range(5, 45))


def test_eighty_checks_are_told() -> None:
    history = RunHistory("r", events=tuple(event(RSS, first, None, 1) for first in range(30)))
    timelines = [read([5, 5]), read([5, 5]), read([5, 5])]
    assert len(check_assertions(history, told(of(*timelines)))) == 80


@pytest.mark.parametrize(
    ("readings", "last", "history", "state"),
    [
        ([15, 15], 1, RUN, "holds"), ([15, 15], 2, RUN, "open"),
        ([15, 15], 2, ENDED, "holds"), ([15, 15], None, RUN, "open"),
        ([15, 15], None, ENDED, "holds"),
        # One reading outside decides, whatever is to come.
        ([15, 21], 2, RUN, "broken"), ([None, None], 1, RUN, "not_measured"),
        ([None, 15], 1, RUN, "holds"), ([], 1, RUN, "open"),
    ],
)  # fmt: skip
def test_a_band_is_within_once_all_of_it_has_ended(
    readings: list[Value],
    last: int | None,
    history: RunHistory,
    state: AssertionState,
) -> None:
    ends = range(1, len(readings) + 1)
    # Read once before the first generation: the series is measured, whatever the ends say.
    timeline = timeline_of([None, *range(len(readings))], {RSS: [1, *readings]}, ends=ends)
    found = checked_band(band(0, last), timeline, history)
    assert (found.state, found.process) == (state, None)


def test_generations_are_counted_below_within_above_and_unread() -> None:
    found = checked_band(band(1, 7), read([99, 9, 10, 20, 25, None, 8, 30, 99]))
    assert counts(found) == (2, 2, 2)
    assert found.measured == Interval(30, 30, 30)
    assert (found.worst, found.worst_generation) == (30, 7)
    assert found.deviations == (
        Deviation(1, 9, -1), Deviation(4, 25, 5), Deviation(6, 8, -2), Deviation(7, 30, 10),
    )  # fmt: skip


def test_only_processes_that_measure_the_series_are_checked() -> None:
    history = RunHistory("r", events=(event(RSS, 0, None, 1), event("gauge.x", 0, None, 1)))
    for second, expected in (
        ([None, None], [(None, "open")]), ([5, 0], [("rank 0 main", "open"), ("rank 1 main", "broken")]),
    ):  # fmt: skip
        other = timeline_of(range(2), {RSS: second}, name="rank 1 main")
        unmeasured, *checks = check_assertions(history, told(of(read([5, None]), other)))
        assert [(c.process, c.state) for c in checks] == expected
        assert unmeasured.state == "not_measured"
        assert counts(unmeasured) == (0, 0, 0)
        assert unmeasured.sentence == "gauge.x is not measured in this run."


def test_growth_is_from_the_end_before_and_of_the_first_from_the_baseline() -> None:
    generation = [None, 0, 1, 2]
    memory = {RSS: [100, 107, 120, 118]}
    with_baseline = timeline_of(generation, memory, ends=[1, 2, 3], baseline=0)
    assert list(readings_of(with_baseline, GENERATION_GROWTH)) == [7, 13, -2]
    assert list(
        readings_of(timeline_of(generation, memory, ends=[1, 2, 3]), GENERATION_GROWTH)
    ) == [
        None,
        13,
        -2,
    ]


def test_growth_over_what_was_not_read_or_a_resume_is_unknown() -> None:
    assert list(readings_of(read([10, None, 14, 15]), GENERATION_GROWTH)) == [None, None, None, 1]
    # Nor where a generation is lost between two.
    lost = timeline_of([0, 1, 3, 4], {RSS: [10, 11, 15, 17]})
    assert list(readings_of(lost, GENERATION_GROWTH)) == [None, 1, None, 2]
    resumed = timeline_of(range(4), {RSS: [10, 11, 5, 7]}, segment=[0, 0, 1, 1])
    assert list(readings_of(resumed, GENERATION_GROWTH)) == [None, 1, None, 2]


def test_growth_is_checked_where_resident_memory_is_read() -> None:
    history = RunHistory("r", events=(event(GENERATION_GROWTH, 0, 1, 5),))
    (check,) = check_assertions(history, told(of(read([10, 15]))))
    assert (check.state, check.judged) == ("holds", 1)
    assert check_assertions(history, told(of(timeline_of(range(2), {}))))[0].state == "not_measured"


def test_a_peak_is_the_highest_of_all_snapshots_of_its_generation() -> None:
    peaks = [90, 5, 7, 6, 3, None, 2]
    timeline = timeline_of([None, 0, 0, 0, 1, 2, 1], {"process.peak_bytes": peaks}, ends=[3, 6, 5])
    assert list(readings_of(timeline, "process.peak_bytes")) == [7, 3, None]


def deviations(*off_by: tuple[int, float]) -> list[Deviation]:
    return [Deviation(generation, 0, off) for generation, off in off_by]


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
def test_deviations_are_told_with_the_farthest(outside: list[Deviation], said: str) -> None:
    assert _ranges(band(), outside, "generation") == said


@pytest.mark.parametrize(
    ("last", "newest", "history", "said"),
    [
        (5, 4, RUN, "; 1 generation still to come"), (5, 5, RUN, ""),
        (5, 4, ENDED, "; the run ended 1 generation before its end"), (None, 4, RUN, " so far"),
        (None, 4, ENDED, ""),
    ],
)  # fmt: skip
def test_what_is_still_to_come_is_told(
    last: int | None, newest: int, history: RunHistory, said: str
) -> None:
    assert _rest(band(0, last), history, newest) == said


@pytest.mark.parametrize(
    ("ended", "known", "outside", "newest", "history", "said"),
    [
        ([], 0, [], 2, RUN, "Not reached yet."),
        ([], 0, [], 2, ENDED, "The run ended at generation 2."),
        ([], 0, [], -math.inf, RUN, "Not reached yet."),
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
    ended: list[int], known: int, outside: list[Deviation], newest: float, history: RunHistory, said: str
) -> None:  # fmt: skip
    assert band_sentence(band(3), history, len(ended), known, outside, newest) == said


def test_sizes_are_known_by_the_end_of_the_name() -> None:
    names = ("process.rss_bytes", "train.bytes", "gauge.bytes_read")
    assert [writer_of(name)(2) for name in names] == ["2 B", "2 B", "2"]


@pytest.mark.parametrize(
    ("first", "last", "low", "high", "process", "title"),
    [
        (1, 1, 3, 4, None, "process.rss_bytes, generation 1: 3 B to 4 B"),
        (1, None, None, 4, None, "process.rss_bytes, from generation 1 on: up to 4 B"),
        (1, 2, 3, None, "rank 1 main", "process.rss_bytes (rank 1 main), generations 1 to 2: from 3 B"),
    ],
)  # fmt: skip
def test_a_band_is_titled_by_its_generations_and_bounds(
    first: int, last: int | None, low: float | None, high: float | None, process: str | None, title: str
) -> None:  # fmt: skip
    check = {
        "origin": "band", "metric": RSS, "first": first, "last": last, "low": low, "high": high, "process": process,
    }  # fmt: skip
    assert assertion_title(check, "generation") == title

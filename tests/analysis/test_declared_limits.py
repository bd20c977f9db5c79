"""Declared limits of bytes: bands and gauges for each generation, and budgets for a phase, a generation or the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from builder import (
    GB,
    GIB,
    MIB,
    TRAIN,
    Leak,
    Training,
    as_crashed,
    crashed_at_13,
)
from pieces import assessed, cause_of, steps_history, timeline_from_rows, with_events

from leakline.analysis import RunHistory, examine, verdict_json
from leakline.analysis.assertions.checks import Readings, band_readings, check, check_assertions
from leakline.analysis.assertions.declared_limits import (
    GENERATION_GROWTH,
    Amounts,
    _against,
    _ranges,
    _rest,
    added,
    assertion_title,
    band_sentence,
    budget_sentence,
    declared_assertions,
    declared_budgets,
    kept_amounts,
    readings_of,
)
from leakline.analysis.assessment import _alone, _explained_by, with_budgets
from leakline.analysis.attribution.candidates import NOWHERE, Place
from leakline.analysis.results import Assertion, AssertionCheck, AssertionState, Deviation, Interval
from leakline.analysis.run_history import Value
from leakline.analysis.statistics.memory_evidence import Scale
from leakline.analysis.statistics.trend import Slope
from leakline.analysis.timeline import Timeline
from leakline.analysis.timeline_analysis import Assessed, TimelineAnalysis
from leakline.snapshot import Event

RSS = "process.rss_bytes"
# Report 002: generations 1 to 5 at 30-40 GB, 6 to 10 at 40-50, from 11 on flat at 40-50.
OF_REPORT_002 = ((1, 5, 30 * GB, 40 * GB), (6, 10, 40 * GB, 50 * GB), (11, None, 40 * GB, 50 * GB))


def declared_band(first: Any, last: Any, low: Any, high: Any, series: str = RSS) -> Event:
    data = {"first": first, "last": last, "low_bytes": low, "high_bytes": high}
    return Event(0, 0.0, "band", series, data=data)


def run_of(
    readings: dict[int, float | None], *events: Event, series: str = RSS, ended: bool = False
) -> RunHistory:
    """Return a run with one reading per generation."""
    rows = [("generation_end", g, None) for g in readings]
    return steps_history(rows, {series: list(readings.values())}, events=events, ended=ended)


def checked(history: RunHistory) -> list[AssertionCheck]:
    return list(examine(history).assertions)


def counts(check: AssertionCheck) -> tuple[int, int, int]:
    """Return the generations below the band, within it and above it."""
    below = sum(each.difference < 0 for each in check.deviations)
    return below, check.checked - check.violations, check.violations - below


def test_the_run_of_report_001_exceeds_each_band_of_report_002() -> None:
    """According to the crash, 175 GB after 13 generations. The first generation is still within its band."""
    found = checked(
        with_events(crashed_at_13(as_crashed()), *(declared_band(*each) for each in OF_REPORT_002))
    )
    assert [(c.first, counts(c)) for c in found] == [
        (1, (0, 1, 4)), (6, (0, 0, 5)), (11, (0, 0, 2)),
    ]  # fmt: skip
    assert {c.state for c in found} == {"broken"}
    worst = found[-1].deviations[-1]
    assert worst.generation == 12
    assert worst.difference == pytest.approx(125 * GB, rel=0.01)
    assert found[0].sentence.startswith("Above in generations 2 to 5 by up to 42.")
    assert found[0].sentence.endswith("GiB (generation 5); 1 of 5 within bounds.")


def test_a_run_as_expected_by_report_002_stays_within_its_bands() -> None:
    training = Training(
        generations=25, total=25, resident=31 * GB, noise=50 * MIB, warm_up=(0.5 * GB,),
        buffer_bytes=13 * GB, buffer_full_after=13,
    )  # fmt: skip
    history = replace(training.history(), ended=True)
    found = checked(with_events(history, *(declared_band(*each) for each in OF_REPORT_002)))
    assert [c.state for c in found] == ["holds", "broken", "holds"]
    assert [counts(c) for c in found] == [(0, 5, 0), (2, 3, 0), (0, 14, 0)]
    assert found[0].sentence == "Within bounds in all 5 generations."
    assert "; 3 of 5 within bounds." in found[1].sentence


def limited(warn_above: Any, name: str = "queue") -> Event:
    return Event(0, 0.0, "gauge", name, data={"warn_above": warn_above})


def test_the_limit_of_a_gauge_applies_to_its_maximum_per_generation() -> None:
    rows = [(kind, g, None) for g in (1, 2) for kind in ("phase_end", "generation_end")]
    series = {"gauge.queue": [51.0, 3.0, 50.0, 3.0]}
    history = steps_history(rows, series, events=(limited(40), limited(50)), ended=False)
    (row,) = verdict_json(examine(history))["assertions"]
    assert (row["name"], row["metric"], row["state"]) == ("queue", "gauge.queue", "broken")
    assert row["sentence"] == "Above in generation 1 by 1; 1 of 2 within bounds so far."
    assert assertion_title(row, "epoch") == "gauge.queue: up to 50"
    (check,) = checked(replace(history, events=(limited(51),)))
    assert (check.state, check.sentence) == ("holds", "Within bounds in all 2 generations so far.")
    (check,) = checked(replace(history, events=(limited(5, "other"),)))
    assert check.state == "not_measured"
    assert checked(replace(history, events=(limited("50"), limited(None)))) == []


def test_bands_use_readings_of_a_resume_as_read() -> None:
    """A new process starts low; a band is about memory in use, not about growth."""
    (before,) = run_of({1: 9, 2: 9, 3: 9}).processes
    (after,) = run_of({4: 4, 5: 4, 6: 4}).processes
    later = [1_000.0 + at for at in after.time]
    after = replace(after, instance="p2", attempt=2, time=later, monotonic=later)
    history = RunHistory("r", processes=(before, after), events=(declared_band(1, 6, 0, 5),))
    (check,) = checked(history)
    assert [d.generation for d in check.deviations] == [1, 2, 3]


def test_malformed_bands_break_no_verdict() -> None:
    wrong = [
        (None, 5, 0, 1), ("1", 5, 0, 1), (1, "5", 0, 1), (1, 5, None, None), (1, 5, "a", None), (True, 5, 0, 1),
        (1, 5, None, 10**400), (1, 5, float("nan"), None), (3.0, 5, 0, 1), (2**64, None, 0, 1),
    ]  # fmt: skip
    events = [declared_band(*each) for each in wrong]
    assert checked(run_of({1: 5}, *events, Event(0, 0.0, "band", RSS))) == []


def test_a_long_plan_stays_small() -> None:
    events = [declared_band(g, g, 0, 1) for g in range(500)]
    verdict = examine(run_of(dict.fromkeys(range(500), 5), *events, declared_band(0, 499, 0, 1)))
    assert len(verdict.assertions) <= 40
    whole = next(c for c in verdict.assertions if c.last == 499 and c.first == 0)
    assert (whole.violations, len(whole.deviations)) == (500, 50)
    assert json.loads(json.dumps(verdict_json(verdict))) == verdict_json(verdict)


RUN, ENDED = RunHistory("r"), RunHistory("r", ended=True)


def read(readings: Sequence[Value], *, name: str = "rank 0 main") -> Timeline:
    return timeline_from_rows({RSS: readings}, name=name)


def of(*timelines: Timeline) -> list[TimelineAnalysis]:
    """Return analyses that have only what a band needs: the readings."""
    return [cast(TimelineAnalysis, SimpleNamespace(timeline=timeline)) for timeline in timelines]


def paired(studies: Sequence[TimelineAnalysis]) -> list[tuple[TimelineAnalysis, None]]:
    return [(study, None) for study in studies]


def checked_band(band: Assertion, timeline: Timeline, history: RunHistory = RUN) -> AssertionCheck:
    (readings,) = band_readings(band, of(timeline))
    return check(history, band, readings)


def band(
    first: int = 0, last: int | None = None, low: float | None = 10, high: float | None = 20
) -> Assertion:
    return Assertion("band", RSS, RSS, None, low, high, None, first, last)


def test_bands_are_sorted_by_series_and_generation() -> None:
    events = (
        declared_band(1, None, 1, None, "b"), declared_band(1, 5, 1, None, "b"), declared_band(6, 9, 1, None, "a"),
        declared_band(1, 9, 1, None, "a"), declared_band(1, 5, 7, None, "b"),
    )  # fmt: skip
    found = declared_assertions(RunHistory("r", events=events))
    assert [(b.name, b.first, b.last, b.low) for b in found] == [
        ("a", 1, 9, 1), ("a", 6, 9, 1), ("b", 1, 5, 7), ("b", 1, None, 1),
    ]  # fmt: skip


def test_the_newest_forty_bands_count() -> None:
    events = tuple(declared_band(first, None, 1, None) for first in range(45))
    found = declared_assertions(RunHistory("r", events=events))
    assert [b.first for b in found] == list(range(5, 45))


@pytest.mark.parametrize(
    ("readings", "last", "history", "state"),
    [
        ([15, 15], 1, RUN, "holds"), ([15, 15], 2, RUN, "open"),
        ([15, 15], 2, ENDED, "holds"), ([15, 15], None, RUN, "open"),
        ([15, 15], None, ENDED, "holds"),
        # One reading outside decides, whatever follows.
        ([15, 21], 2, RUN, "broken"), ([None, None], 1, RUN, "not_measured"),
        ([None, 15], 1, RUN, "holds"), ([], 1, RUN, "open"),
    ],
)  # fmt: skip
def test_a_band_holds_once_it_is_complete(
    readings: list[Value],
    last: int | None,
    history: RunHistory,
    state: AssertionState,
) -> None:
    ends = range(1, len(readings) + 1)
    # One reading before the first generation is enough for the series to count as measured.
    timeline = timeline_from_rows({RSS: [1, *readings]}, [None, *range(len(readings))], ends=ends)
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
    history = RunHistory(
        "r", events=(declared_band(0, None, 1, None), declared_band(0, None, 1, None, "gauge.x"))
    )
    for second, expected in (
        ([None, None], [(None, "open")]), ([5, 0], [("rank 0 main", "open"), ("rank 1 main", "broken")]),
    ):  # fmt: skip
        other = read(second, name="rank 1 main")
        unmeasured, *checks = check_assertions(history, paired(of(read([5, None]), other)))
        assert [(c.process, c.state) for c in checks] == expected
        assert unmeasured.state == "not_measured"
        assert counts(unmeasured) == (0, 0, 0)
        assert unmeasured.sentence == "gauge.x is not measured in this run."


def test_growth_is_counted_from_the_previous_end_or_the_baseline() -> None:
    for baseline, first in ((0, 7), (None, None)):
        timeline = timeline_from_rows(
            {RSS: [100, 107, 120, 118]}, [None, 0, 1, 2], ends=[1, 2, 3], baseline=baseline
        )
        assert list(readings_of(timeline, GENERATION_GROWTH)) == [first, 13, -2]


def test_growth_across_a_gap_or_a_resume_is_unknown() -> None:
    assert list(readings_of(read([10, None, 14, 15]), GENERATION_GROWTH)) == [None, None, None, 1]
    # The growth across a lost generation is unknown as well.
    lost = timeline_from_rows({RSS: [10, 11, 15, 17]}, [0, 1, 3, 4])
    assert list(readings_of(lost, GENERATION_GROWTH)) == [None, 1, None, 2]
    resumed = timeline_from_rows({RSS: [10, 11, 5, 7]}, segment=[0, 0, 1, 1])
    assert list(readings_of(resumed, GENERATION_GROWTH)) == [None, 1, None, 2]


def test_a_peak_is_the_highest_of_all_snapshots_of_its_generation() -> None:
    peaks = [90, 5, 7, 6, 3, None, 2]
    timeline = timeline_from_rows(
        {"process.peak_bytes": peaks}, [None, 0, 0, 0, 1, 2, 1], ends=[3, 6, 5]
    )
    assert list(readings_of(timeline, "process.peak_bytes")) == [7, 3, None]


def deviations(*difference: tuple[int, float]) -> list[Deviation]:
    return [Deviation(generation, 0, off) for generation, off in difference]


@pytest.mark.parametrize(
    ("outside", "said"),
    [
        (deviations((4, -3)), "below in generation 4 by 3 B"),
        (deviations((4, 0.5)), "above in generation 4 by 1 B"),
        (deviations((4, 3)), "above in generation 4 by 3 B"),
        (deviations((1, -3), (2, -5)), "below in generations 1 to 2 by up to 5 B (generation 2)"),
        # Of equal deviations the first is named.
        (deviations((1, 5), (2, 3), (4, 5)), "above in 3 generations between 1 and 4 by up to 5 B (generation 1)"),
        (deviations((1, 5), (2, -3)), "below in generation 2 by 3 B, above in generation 1 by 5 B"),
    ],
)  # fmt: skip
def test_deviations_are_listed_with_the_largest(outside: list[Deviation], said: str) -> None:
    assert _ranges(band(), outside, "generation") == said


@pytest.mark.parametrize(
    ("last", "newest", "history", "said"),
    [
        (5, 4, RUN, "; 1 generation still to come"), (5, 5, RUN, ""),
        (5, 4, ENDED, "; the run ended 1 generation before the end of the range"), (None, 4, RUN, " so far"),
        (None, 4, ENDED, ""),
    ],
)  # fmt: skip
def test_the_sentence_of_a_band_says_what_is_still_to_come(
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
        ([], 0, [], 3, RUN, "No generation in this range was recorded."),
        ([3], 1, [], 3, ENDED, "Within bounds in the only generation that was read."),
        ([3, 4], 2, [], 4, ENDED, "Within bounds in all 2 generations."),
        ([3, 4], 0, [], 4, ENDED, "No reading in 2 generations."),
        ([3, 4, 5], 2, [], 5, ENDED, "Within bounds in all 2 generations, 1 generation without a reading."),
        ([3, 4, 5], 3, deviations((4, 2)), 5, ENDED, "Above in generation 4 by 2 B; 2 of 3 within bounds."),
    ],
)  # fmt: skip
def test_the_sentence_of_a_band_says_what_is_within(
    ended: list[int], known: int, outside: list[Deviation], newest: float, history: RunHistory, said: str
) -> None:  # fmt: skip
    assert band_sentence(band(3), history, len(ended), known, outside, newest) == said


def event(name: str, normal: Any = None, leak: Any = None) -> Event:
    return Event(0, 0.0, "budget", name, data={"normal_bytes": normal, "leak_bytes": leak})


def levels_of(
    levels: list[int], *events: Event, baseline: int | None = None, **more: Any
) -> RunHistory:
    """Return private memory at each generation end, exact to the byte, with an optional baseline reading."""
    rows: list[tuple[str, int | None, str | None]] = (
        [] if baseline is None else [("baseline", None, None)]
    )
    rows += [("generation_end", g, None) for g in range(len(levels))]
    readings = levels if baseline is None else [baseline, *levels]
    return steps_history(rows, {"process.anon_bytes": readings}, events=events, **more)


def of_phase(kept: list[int], *events: Event, path: str = "train") -> RunHistory:
    """Return what one phase keeps per generation, exact to the byte, while nothing else changes."""
    level, levels = GIB, [GIB]
    rows: list[tuple[str, int | None, str | None]] = [("baseline", None, None)]
    for generation, amount in enumerate(kept):
        level += amount
        rows += [("phase_end", generation, path), ("generation_end", generation, None)]
        levels += [level, level]
    return steps_history(rows, {"process.anon_bytes": levels}, events=events)


def only_check(history: RunHistory) -> AssertionCheck:
    (check,) = examine(history).assertions
    return check


@pytest.mark.parametrize(
    ("kept", "state"),
    [
        (GB, "holds"), (GB + 1, "above_normal"), (5 * GB - 1, "above_normal"), (5 * GB, "broken"),
        (-GB, "holds"),
    ],
)  # fmt: skip
def test_the_phase_bounds_of_report_004_are_exact(kept: int, state: str) -> None:
    """After training up to 1 GB is normal, and 5 GB or more is a leak."""
    check = only_check(of_phase([0, kept], event("train", GB, 5 * GB)))
    assert (check.metric, check.state, check.worst, check.worst_generation) == (
        "phase.kept_bytes", state, kept, 1,
    )  # fmt: skip
    assert check.violations == int(state != "holds")


def test_more_than_normal_is_shown_but_is_not_a_leak() -> None:
    verdict = examine(of_phase([0, 2 * GB, 0, 0, 0, 0, 0, 0], event("train", GB, 5 * GB)))
    (check,) = verdict.assertions
    assert check.state == "above_normal"
    assert check.sentence == (
        "train kept at most 1.86 GiB in one generation (generation 1): more than the normal 953.67 MiB, "
        "less than the 4.66 GiB that counts as a leak; exceeded in 1 of 7 generations."
    )
    assert not any(f.status in ("suspected", "confirmed") for f in verdict.findings)


def test_a_phase_that_never_ran_is_not_within_its_budget() -> None:
    check = only_check(of_phase([0, 0], event("evolve", GB)))
    assert (check.state, check.sentence) == ("not_measured", "evolve never ran.")
    # A nested phase counts, even with one execution; a run that has not begun is not judged.
    nested = only_check(of_phase([0], event("train", GB), path="evaluate/train"))
    assert nested.sentence == (
        "train has run in only one generation; its budget applies from the second generation onwards."
    )
    (run,) = check_assertions(RunHistory("r", events=(event("run", GB),)), [])
    assert (run.state, run.sentence) == ("not_measured", "No generation can be judged yet.")


@pytest.mark.parametrize(
    ("growth", "state"),
    [
        (35 * GB, "holds"), (35 * GB + 1, "above_normal"), (100 * GB - 1, "above_normal"), (100 * GB, "broken"),
    ],
)  # fmt: skip
def test_the_run_bounds_of_report_004_are_exact(growth: int, state: str) -> None:
    """25 to 35 GB in total are fine and 100 GB or more are a leak, counted from the reading before generation 0."""
    levels = [4 * GB + growth * g // 10 for g in range(1, 11)]
    check = only_check(levels_of(levels, event("run", 35 * GB, 100 * GB), baseline=4 * GB))
    assert (check.metric, check.state, check.worst_generation) == ("run.kept_bytes", state, 9)
    assert check.measured is not None and check.measured.estimate == growth


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (3 * GB // 2, "holds"), (3 * GB // 2 + 1, "above_normal"), (5 * GB - 1, "above_normal"), (5 * GB, "broken"),
    ],
)  # fmt: skip
def test_the_generation_bounds_of_report_004_are_exact(step: int, state: str) -> None:
    """0.5 to 1.5 GB per generation are normal, and 5 GB or more are a leak; the first generation is not judged."""
    levels = [20 * GB, 20 * GB, 20 * GB, 20 * GB + step]
    bounds = event("generation", 3 * GB // 2, 5 * GB)
    verdict = examine(levels_of(levels, bounds, baseline=4 * GB))
    (check,) = verdict.assertions
    assert (check.metric, check.state, check.worst) == ("generation.kept_bytes", state, step)
    assert (check.worst_generation, verdict.status == "suspected") == (3, state == "broken")


def test_a_run_over_its_budget_is_suspected_even_if_it_is_flat() -> None:
    """One step of 100 GB, then flat: no trend test would call that a leak, but the budget does."""
    bounds = event("run", 35 * GB, 100 * GB)
    levels = [4 * GB] * 3 + [104 * GB] * 20
    broken = examine(levels_of(levels, bounds, baseline=4 * GB))
    assert broken.status == "suspected"
    (finding,) = [f for f in broken.findings if f.status == "suspected"]
    assert finding.evidence[0] == (
        "Memory has grown by 93.13 GiB since the run began; its budget is 93.13 GiB."
    )
    assert finding.started_at_generation is not None
    assert finding.started_at_generation.estimate == 3
    fine = examine(levels_of([v - 1 for v in levels], bounds, baseline=4 * GB))
    assert fine.status == "ok"
    # It is as flat as the other run, but a finding says that it leaks.
    assert broken.settled_at_generation is None
    assert fine.settled_at_generation is not None
    assert fine.settled_at_generation.estimate == 3
    assert fine.assertions[0].state == "above_normal"


def test_a_run_may_name_its_generations() -> None:
    history = levels_of([GIB, GIB, 3 * GIB], event("epoch", GIB), unit="epoch")
    check = only_check(history)
    assert (check.metric, check.state) == ("generation.kept_bytes", "above_normal")
    assert check.sentence == (
        "The run kept at most 2.00 GiB in one epoch (epoch 2): more than the normal 1.00 GiB; "
        "exceeded in 1 of 2 epochs."
    )


def test_malformed_budgets_break_no_verdict() -> None:
    wrong = [
        event("train"), event("train", "1 GiB", None), event("train", -1, None), event("train", True, None),
        event("train", None, float("inf")), event("train", 10**400), Event(0, 0.0, "budget", "train"),
    ]  # fmt: skip
    assert examine(of_phase([0, 0], *wrong)).assertions == ()


def test_a_broken_budget_does_not_prevent_confirmation() -> None:
    history = Training(generations=45, leaks=(Leak(TRAIN, 20 * MIB),)).history()
    assert examine(history).status == "confirmed"
    assert examine(with_events(history, event("run", leak=GIB // 2))).status == "confirmed"


def budget(
    scope: str = "phase", *, normal: float | None = 100, leak: float | None = 200, name: str = "train"
) -> Assertion:  # fmt: skip
    phase = name if scope == "phase" else None
    return Assertion("budget", name, f"{scope}.kept_bytes", phase, None, normal, leak)


def assessed_in(phase: str | None, rate: float, note: str | None = None) -> Assessed:
    place = NOWHERE if phase is None else Place(phase, phase, 1.0)
    cause = cause_of(kind="native", place=place, rate=Slope(rate, 0.0, rate, 9))
    return assessed(cause, "counts", start=None, window=10, note=note)


class _WithLength(SimpleNamespace):
    """A timeline whose length is the number of its generations."""

    def __len__(self) -> int:
        return len(self.generations)


def study(
    levels: Sequence[float] = (), *, booked: Sequence[Mapping[str, float]] = (), baseline: Sequence[float | None] = (),
    generations: Sequence[int] = (), history: RunHistory = RUN, name: str = "rank 0 main",
) -> TimelineAnalysis:  # fmt: skip
    """Return private memory at each generation end and what the phases kept; ``baseline``: read before the first."""
    timeline = _WithLength(
        generations=tuple(generations or range(max(len(levels), len(booked)))), private=list(levels),
        private_rows=[*baseline, *levels], baseline_row=0 if baseline else None, name=name,
    )  # fmt: skip
    fake = SimpleNamespace(
        timeline=timeline, booked=booked, history=history, scale=lambda end: Scale(1_000)
    )
    return cast(TimelineAnalysis, fake)


@pytest.mark.parametrize(
    ("normal", "leak", "amount", "state"),
    [
        (None, 200, 199, "holds"), (100, None, 9_999, "above_normal"), (0, None, 0, "holds"), (None, 0, 0, "broken"),
        # At equal bounds the result is a leak.
        (100, 100, 100, "broken"),
    ],
)  # fmt: skip
def test_amounts_up_to_normal_are_fine_and_from_leak_on_are_a_leak(
    normal: float | None, leak: float | None, amount: float, state: str
) -> None:
    assert budget(normal=normal, leak=leak).state_of(amount) == state


def test_a_budget_needs_at_least_one_valid_bound() -> None:
    bounds = [(0, None), (None, 0), (None, None), (-1, "2")]
    histories = [RunHistory("r", events=(event("train", *each),)) for each in bounds]
    assert [bool(declared_budgets(each)) for each in histories] == [True, True, False, False]


def test_the_newest_forty_budgets_count_with_their_newest_bounds() -> None:
    events = (*(event(f"p{i}", i) for i in range(45)), event("p44", 7))
    found = declared_budgets(RunHistory("r", events=events))
    newest = [(f"p{i}", i) for i in range(5, 44)]
    assert [(b.name, b.high) for b in found] == [*newest, ("p44", 7)]


@pytest.mark.parametrize(
    ("name", "phases", "scope"),
    [
        ("run", (), "run"), ("generation", (), "generation"), ("episode", (), "generation"), ("train", (), "phase"),
        # A phase of that name takes precedence at any depth.
        ("run", ("run",), "phase"), ("generation", ("train/generation",), "phase"),
        ("run", ("train/run_episode",), "run"),
    ],
)  # fmt: skip
def test_run_and_generation_are_reserved_budget_names(
    name: str, phases: tuple[str, ...], scope: str
) -> None:
    history = RunHistory("r", unit="episode", phases=phases, events=(event(name, 5),))
    assert declared_budgets(history)[0].metric == f"{scope}.kept_bytes"


def test_a_phase_is_judged_from_its_second_generation_on() -> None:
    booked: list[dict[str, float]] = [
        {"evolve": 1}, {"train": 90}, {"evolve": 2}, {"train": 5, "train/fit": 6}, {"train/fit": 7}, {"train": 8},
    ]  # fmt: skip
    assert kept_amounts(study(booked=booked), budget(), 6) == [(3, 11), (4, 7), (5, 8)]
    assert kept_amounts(study(booked=booked), budget(), 5) == [(3, 11), (4, 7)]
    assert kept_amounts(study(booked=booked), budget(name="fit"), 6) == [(4, 7)]
    assert kept_amounts(study(booked=booked), budget(name="add"), 6) == []


def test_growth_of_the_run_starts_at_its_baseline_or_first_end() -> None:
    levels = [110.0, 150.0, 130.0]
    with_baseline = study(levels, baseline=[100])
    assert kept_amounts(with_baseline, budget("run"), 3) == [(0, 10), (1, 50), (2, 30)]
    assert kept_amounts(with_baseline, budget("run"), 2) == [(0, 10), (1, 50)]
    for baseline in ([], [None]):
        without = study(levels, baseline=baseline)
        assert kept_amounts(without, budget("run"), 3) == [(0, 0), (1, 40), (2, 20)]
    assert kept_amounts(study(generations=[0, 1]), budget("run"), 2) == []


def test_a_rise_across_a_lost_generation_is_not_judged() -> None:
    levels = [100.0, 103.0, 110.0, 150.0, 151.0]
    lost = study(levels, generations=[0, 1, 2, 4, 5])
    assert kept_amounts(lost, budget("generation"), 5) == [(1, 3), (2, 7), (5, 1)]
    # If all generations are a thousand apart, a thousand counts as one.
    apart = study(levels, generations=[0, 1000, 2000, 3000, 4000])
    assert kept_amounts(apart, budget("generation"), 4) == [(1000, 3), (2000, 7), (3000, 40)]


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        # A process that has ended keeps its growth,
        ("run", [(0, 1), (1, 12), (2, 23), (3, 24)]),
        # and gains nothing afterwards.
        ("generation", [(0, 1), (1, 12), (2, 23), (3, 4)]),
    ],
)
def test_amounts_of_processes_are_added_up_by_generation(scope: str, expected: Amounts) -> None:
    assert (
        added([[(0, 1), (1, 2), (2, 3), (3, 4)], [(1, 10), (2, 20)]], f"{scope}.kept_bytes")
        == expected
    )


def test_the_first_of_equally_bad_generations_is_named() -> None:
    assert _against(budget(normal=None), 50) == "below the 200 B that counts as a leak"
    amounts: Amounts = [(2, 50), (3, 200), (4, 200), (5, 101), (6, 100)]
    found = check(RUN, budget(), Readings(amounts, 5))
    assert (found.worst, found.worst_generation, found.state) == (200, 3, "broken")
    assert (found.measured, found.violations, found.checked) == (Interval(100, 100, 100), 3, 5)


@pytest.mark.parametrize(
    ("scope", "amounts", "beyond", "said"),
    [
        ("phase", [(1, 50)], 0, "train kept at most 50 B in one generation (generation 1): within the normal 100 B."),
        ("generation", [(1, 250), (2, 50)], 1, "The run kept at most 250 B in one generation (generation 1): "
            "at least the 200 B that counts as a leak; exceeded in 1 of 2 generations."),
        ("run", [(1, 250), (2, 70), (3, 60)], 1, "Memory has grown by 60 B since the run began, and by 250 B "
            "at generation 1: at least the 200 B that counts as a leak."),
        ("run", [(1, 50), (2, 60)], 0, "Memory has grown by 60 B since the run began: within the normal 100 B."),
    ],
)  # fmt: skip
def test_the_sentence_gives_the_worst_amount_and_how_often(
    scope: str, amounts: Amounts, beyond: int, said: str
) -> None:
    assert budget_sentence(budget(scope), RUN, amounts, beyond) == said


@pytest.mark.parametrize(
    ("scope", "found", "index"),
    [
        # Twenty generations ahead, a twentieth of 1,000 bytes: 2.5 per generation matter.
        ("phase", [assessed_in("train", 2.5)], 0), ("phase", [assessed_in("train", 2.4)], None),
        ("phase", [assessed_in("evolve", 9), assessed_in("train", 3), assessed_in("train", 9)], 1),
        ("generation", [assessed_in("evolve", 2.4), assessed_in(None, 3)], 1), ("run", [assessed_in("evolve", 9)], 0),
        ("phase", [assessed_in(None, 9)], None),
    ],
)  # fmt: skip
def test_a_budget_is_broken_by_the_first_cause_that_matters_in_its_phase(
    scope: str, found: list[Assessed], index: int | None
) -> None:
    assert _explained_by(budget(scope), found) == index


def test_an_unexplained_broken_budget_is_its_own_finding() -> None:
    amounts: Amounts = [(3, 100), (4, 200), (5, 300), (6, 400)]
    of_phase = _alone(study([1.0] * 7), 7, budget(name="train/fit"), amounts, "a note")
    assert of_phase.cause.place == Place("train", "train/fit", 1.0)
    assert of_phase.cause.rate == Slope(400, 0.0, 400, 1)
    assert (of_phase.start, of_phase.window, of_phase.witnesses) == (
        (6, 6, 6), 1.0, frozenset({"budget"}),
    )  # fmt: skip
    of_run = _alone(study([1.0] * 7), 7, budget("run"), amounts, "a note")
    # The average over the judged generations, since the budget was first exceeded.
    assert (of_run.cause.rate.estimate, of_run.start) == (100, (4, 4, 4))
    assert (of_run.cause.place, of_run.note) == (NOWHERE, "a note")
    of_each = _alone(study([1.0] * 7), 7, budget("generation"), amounts, "a note")
    assert (of_each.cause.rate.estimate, of_each.start) == (400, (6, 6, 6))


def judged(
    levels: Sequence[float], found: Sequence[Assessed], end: int, **bounds: Any
) -> list[Assessed]:
    history = RunHistory("r", events=(event("generation", **bounds),))
    return with_budgets(study(levels, history=history), end, found)


def test_only_the_newest_generation_breaks_a_budget_now() -> None:
    levels = [1_000.0, 1_300.0, 1_305.0]
    assert judged(levels, [], 3, leak=200) == []
    assert len(judged(levels, [], 2, leak=200)) == 1
    # The newest generation and the one before it were lost, so nothing is known of the newest alone.
    history = RunHistory("r", events=(event("generation", leak=200),))
    lost = study([1_000, 1_005, 1_300, 1_900], generations=[0, 1, 2, 4], history=history)
    assert with_budgets(lost, 4, []) == []


def test_a_broken_budget_is_a_witness_of_its_cause() -> None:
    said = "The run kept 300 B in one generation; its budget is 200 B."
    levels = [1_000.0, 1_005.0, 1_305.0]
    for note, wanted in ((None, said), ("Seen before.", f"Seen before. {said}")):
        (alone,) = judged(levels, [assessed_in("train", 9, note)], 3, leak=200)
        assert (alone.note, alone.witnesses) == (wanted, frozenset({"counts", "budget"}))


def processes_of(
    scope: Literal["train", "run"], *kept: Sequence[float]
) -> list[tuple[str | None, float | None]]:
    history = RunHistory("r", events=(event(scope, 1, 2),))
    studies = [
        study(row, booked=[{"train": v} for v in row], name=f"rank {i} main") for i, row in enumerate(kept)
    ]  # fmt: skip
    checks = check_assertions(history, [(each, None) for each in studies])
    return [(check.process, check.measured and check.measured.estimate) for check in checks]


def test_a_phase_budget_is_checked_in_each_process() -> None:
    assert processes_of("train", [1, 2], [3, 4]) == [("rank 0 main", 2), ("rank 1 main", 4)]
    # The first generation judged is its second.
    assert processes_of("train", [1, 2], [3]) == [(None, 2)]
    assert processes_of("train", [1], [3]) == [(None, None)]
    assert processes_of("run", [1, 2], [3, 7]) == [(None, 5)]


@pytest.mark.parametrize(
    ("check", "title"),
    [
        ({"first": 1, "last": 1, "low": 3, "high": 4}, "process.rss_bytes, generation 1: 3 B to 4 B"),
        ({"first": 1, "last": None, "high": 4}, "process.rss_bytes, from generation 1 onward: up to 4 B"),
        ({"first": 1, "last": 2, "low": 3, "process": "rank 1 main"},
         "process.rss_bytes (rank 1 main), generations 1 to 2: from 3 B"),
        ({"origin": "budget", "name": "train", "metric": "generation.kept_bytes"}, "budget of each generation"),
        ({"origin": "budget", "name": "train", "metric": "run.kept_bytes"}, "budget of the whole run"),
        ({"origin": "budget", "name": "train", "metric": "phase.kept_bytes"}, "budget of train"),
    ],
)  # fmt: skip
def test_each_limit_has_a_title(check: dict[str, Any], title: str) -> None:
    band_of_rss = {"origin": "band", "metric": RSS, "low": None, "high": None, "process": None}
    assert assertion_title({**band_of_rss, **check}, "generation") == title

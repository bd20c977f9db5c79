"""Gauges of the program, compared over two runs and named where they move with memory; and how far two runs come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builder import MIB, Training, history_of, kept_environments

from leakline.analysis import RunHistory, compare, examine
from leakline.analysis.comparison.comparison_results import Survival
from leakline.analysis.comparison.run_comparison import survival_change
from leakline.analysis.findings.gauges import companions, rank_correlation
from leakline.analysis.results import Interval
from leakline.analysis.timeline import timelines_of

STEADY = [60.0 + (g % 3) for g in range(24)]
FALLING = [60.0 - 1.6 * g for g in range(24)]


def with_gauge(history: RunHistory, name: str, values: list[float]) -> RunHistory:
    """The gauge at each generation end."""
    (process,) = history.processes
    left = iter(values)
    column = [next(left) if kind == "generation_end" else None for kind in process.kind]
    return replace(history, processes=(replace(process, series={**process.series, name: column}),))


def run(name: str, seed: int = 1, *, leaks: bool = False, generations: int = 24) -> RunHistory:
    kept = (kept_environments(),) if leaks else ()
    return Training(generations=generations, leaks=kept, run=name, seed=seed).history()


def test_no_change_has_a_tolerance() -> None:
    before = with_gauge(run("a", leaks=True), "gauge.steps_per_second", [100.0] * 24)
    for value, same, percent in ((104.9, True, 4.9), (105.0, False, 5.0), (88.0, False, -12.0)):
        after = with_gauge(run("b", 2), "gauge.steps_per_second", [value] * 24)
        (change,) = compare(before, after).by_gauge
        assert (change.same, change.change_percent) == (same, percent)


def test_a_gauge_that_only_one_run_has_has_no_change() -> None:
    after = with_gauge(run("b"), "gauge.reward", STEADY)
    (change,) = compare(run("a"), after).by_gauge
    assert (change.gauge, change.before) == ("reward", None)
    assert (change.change_percent, change.same) == (None, None)


def test_a_gauge_of_zero_in_both_is_no_change_and_from_zero_has_no_percent() -> None:
    nothing = with_gauge(run("a"), "gauge.lost", [0.0] * 24)
    for value, expected in ((0.0, (True, 0.0)), (3.0, (False, None))):
        (change,) = compare(nothing, with_gauge(run("b"), "gauge.lost", [value] * 24)).by_gauge
        assert (change.same, change.change_percent) == expected


def test_a_steady_frame_rate_next_to_a_leak_is_not_named() -> None:
    leaking = with_gauge(run("a", leaks=True), "js.frames_per_second", STEADY)
    assert companions(timelines_of(leaking)[0]) == ()


def test_a_frame_rate_that_falls_without_memory_is_not_named() -> None:
    history = history_of([500 * MIB - i for i in range(24)], js__frames_per_second=FALLING)
    assert companions(timelines_of(history)[0]) == ()


def test_a_frame_rate_that_falls_as_memory_rises_stands_with_the_evidence() -> None:
    leaking = with_gauge(run("a", leaks=True), "js.frames_per_second", FALLING)
    finding = examine(leaking).findings[0]
    lines = [line for line in finding.evidence if line.startswith("frames per second fell from 5")]
    assert len(lines) == 1, finding.evidence
    assert "while memory rose (rank correlation -" in lines[0]
    healthy = with_gauge(run("b"), "js.frames_per_second", FALLING)
    assert not any(f.status in ("suspected", "confirmed") for f in examine(healthy).findings)


def test_at_most_two_gauges_are_named() -> None:
    history = run("a", leaks=True)
    for name in "abcd":
        history = with_gauge(history, f"gauge.{name}", FALLING)
    assert len(companions(timelines_of(history)[0])) == 2


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 400], 1.0), ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [5, 5, 5, 5], 0.0), ([1, 2, 2, 3], [1, 2, 2, 3], 1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),
    ],
)  # fmt: skip
def test_rank_correlation_is_spearmans(a: list[float], b: list[float], found: float) -> None:
    assert rank_correlation(a, b) == pytest.approx(found)


def test_a_crash_after_1000_episodes_is_compared_with_a_run_without_an_end() -> None:
    each = 3 * MIB
    before = history_of([800 * MIB + each * g for g in range(996)], limit=800 * MIB + each * 1000)
    before = replace(before, unit="episode", ended=True)
    after = history_of(
        [800 * MIB + (g % 5) * 4096 for g in range(1400)], limit=800 * MIB + each * 1000
    )
    found = compare(before, replace(after, unit="episode", run="after")).survival
    assert found is not None
    out = found.before.oom_at_generation
    assert out is not None
    assert out.estimate == pytest.approx(1000, abs=10)
    assert (found.before.last_generation, found.before.ended) == (995, True)
    assert (found.after.last_generation, found.after.ended) == (1399, False)
    assert found.after.oom_at_generation is None
    assert found.sentence.startswith("Before: memory runs out about episode ")


def test_the_sentence_says_of_each_run_how_far_it_comes() -> None:
    out = Interval(1004.4, 989.6, 1020.4)
    ended, goes_on = Survival(998, True, out), Survival(2000, False, None)
    assert survival_change(ended, goes_on, "episode", "epoch").sentence == (
        "Before: memory runs out about episode 1,004 (990 to 1,020); it ended at episode 998. "
        "After: nothing says that memory runs out; it has come to epoch 2,000."
    )
    nothing = Survival(None, False, None)
    assert survival_change(nothing, nothing, "episode", "epoch").sentence == (
        "Before: no episode was seen. After: no epoch was seen."
    )

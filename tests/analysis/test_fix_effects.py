"""Effects of fixes: the four steps of the checklist, and the comparison before and after each fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from builder import (
    EVALUATE,
    EVOLVE,
    GIB,
    MIB,
    TRAIN,
    Training,
    kept_environments,
    loss_graph,
    old_population,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pieces import finding, steps_history, with_events, with_series

from leakline.analysis import RunHistory, compare, examine, verdict_json
from leakline.analysis.assertions.checks import Fix
from leakline.analysis.comparison.fix_effects import (
    _COMPARED,
    _WITHIN,
    _between,
    _cleanups,
    _effect,
    _end_of_earlier_attempts,
    _goal,
    _gpu,
    _judged,
    _memory,
    _outcome,
    _passed,
    _Subject,
    _subjects,
    _tops,
    effect_figures,
    effect_title,
    effects_of_comparison,
    effects_within,
)
from leakline.analysis.findings.verdict_summary import (
    CHECK_QUESTIONS,
    CHECK_WORDS,
    check_lines,
    check_question,
)
from leakline.analysis.results import (
    CheckItem,
    Finding,
    FixEffect,
    Interval,
    Status,
    Suspect,
    Verdict,
)
from leakline.analysis.run_history import LARGEST, ProcessHistory, Value
from leakline.analysis.timeline_analysis import TimelineAnalysis
from leakline.analysis.window import Since, Stretch
from leakline.snapshot import Event


def checklist(history: RunHistory) -> dict[str, CheckItem]:
    items = examine(history).checklist
    assert [item.check for item in items] == ["gpu", "memory", "passed", "cleanups"]
    return {item.check: item for item in items}


def freed_by(name: str, *sizes: Any) -> tuple[Event, ...]:
    return tuple(Event(0, 0.0, "cleanup", name, data={"freed_bytes": size}) for size in sizes)


def promised(generations: Any, kind: str = "fix") -> Event:
    return Event(0, 0.0, kind, "detach", data={"promises": {"generations": generations}})


def on_a_device(rate: float, generations: int = 40) -> RunHistory:
    """Return a healthy training on a device whose live tensors grow by ``rate`` bytes per generation."""
    used = {
        "cuda.0.allocated_bytes": lambda g: 4 * GIB + rate * (g + 1),
        "cuda.0.reserved_bytes": lambda g: 5 * GIB + rate * (g + 1),
    }
    return with_series(Training(generations=generations).history(), used)


def test_a_healthy_run_of_report_000_passes_all_four_steps() -> None:
    events = (promised(30), *freed_by("agent", 200 * MIB, 100 * MIB))
    found = checklist(with_events(on_a_device(0.0), *events))
    assert {item.outcome for item in found.values()} == {"done"}
    gpu = "GPU memory does not keep growing; the highest reading on one device was 5.00 GiB"
    assert found["gpu"].sentence.startswith(gpu)
    assert "no leak is suspected" in found["memory"].sentence
    passed = "Completed 40 generations, compared with the 30 that the fix promised."
    assert found["passed"].sentence == passed
    assert found["cleanups"].sentence == "agent ran twice and freed 300.00 MiB."


def test_a_run_without_data_passes_no_step() -> None:
    found = checklist(Training(generations=0, total=25).history())
    assert {item.outcome for item in found.values()} == {"not_yet", "not_measured"}


def test_growing_device_memory_fails_only_its_own_step() -> None:
    found = checklist(on_a_device(200 * MIB))
    assert found["gpu"].outcome == "failed"
    assert "GPU memory grows by" in found["gpu"].sentence
    assert found["memory"].outcome == "done"


@pytest.mark.parametrize(
    ("generations", "ended", "outcome"),
    [(25, False, "done"), (25, True, "done"), (24, False, "not_yet"), (24, True, "failed")],
)
def test_a_run_is_compared_with_its_plan(generations: int, ended: bool, outcome: str) -> None:
    history = replace(Training(generations=generations, total=25).history(), ended=ended)
    item = checklist(history)["passed"]
    assert (item.outcome, item.against) == (outcome, "plan")
    said = f"Completed {generations} generations, compared with the 25 that were planned."
    assert item.sentence == said


def test_without_a_plan_or_promise_the_step_is_unknown() -> None:
    item = checklist(Training(generations=90).history())["passed"]
    assert item.outcome == "not_measured"
    assert "It is unknown where the run died before" in item.sentence
    question = check_question({"check": "passed", "against": item.against})
    assert question == "The run passes the point where it died before"


def test_a_cleanup_that_frees_nothing_fails_its_step() -> None:
    events = freed_by("collector", 0, -4096)
    item = checklist(with_events(Training().history(), *events))["cleanups"]
    assert (item.outcome, item.sentence) == ("failed", "collector ran twice and freed nothing.")


junk = st.none() | st.booleans() | st.text(max_size=3) | st.integers() | st.floats()


@settings(max_examples=10)
@given(junk, junk)
def test_malformed_events_break_no_checklist(freed: Any, generations: Any) -> None:
    devices = (
        freed,
        {"cuda.0.reserved_bytes": freed},
        {"cuda.0.reserved_bytes": [freed, generations]},
    )
    history = with_events(
        Training(generations=2).history(), *freed_by("agent", freed), promised(generations),
        *(Event(0, 0.0, "cleanup", "agent", data={"devices": each}) for each in devices),
        Event(0, 0.0, "fix", "none", data={"promises": freed}), Event(0, 0.0, "cleanup", "bare"),
    )  # fmt: skip
    for item in checklist(history).values():
        assert item.sentence and "\n" not in item.sentence


def test_the_checklist_is_printed_with_marks() -> None:
    items = verdict_json(examine(Training(total=16).history()))["checklist"]
    assert [set(item) for item in items] == [{"check", "outcome", "sentence", "against"}] * 4
    lines = list(check_lines(items))
    assert lines[0] == "[-] GPU memory does not keep growing: not measured"
    assert lines[4] == "[x] Every planned generation has run: done"
    assert set(CHECK_QUESTIONS) == {item["check"] for item in items}
    assert set(CHECK_WORDS) == {"done", "failed", "not_yet", "not_measured"}


def since(generations: int = 10, *, complete: int = 10, ended: bool = False) -> Since:
    facts = {"generations": generations, "passed": None, "complete": complete, "ended": ended}
    return cast(Since, SimpleNamespace(unit="generation", **facts))


def verdict(
    *findings: Finding,
    growth: float | None = 5.0,
    settled: float | None = None,
    status: Status = "ok",
) -> Verdict:
    return Verdict(
        "r", "generation", 10, status, "", None if growth is None else Interval(growth, growth, growth), None,
        findings, settled_at_generation=None if settled is None else Interval(settled, settled, settled),
    )  # fmt: skip


def process(
    generation: Sequence[int | None], series: Mapping[str, Sequence[Value]], *, attempt: int = 1
) -> ProcessHistory:
    rows = [("generation_end", g, None) for g in generation]
    (found,) = steps_history(rows, series).processes
    return replace(found, instance=f"p{attempt}", attempt=attempt)


@pytest.mark.parametrize(
    ("findings", "outcome", "said"),
    [
        ([], "done", "All is calm."),
        (["ok", "recovered"], "done", "All is calm."),
        (["watch"], "not_yet", "Memory grows by 5 B per generation: watch."),
        (["suspected"], "failed", "Memory grows by 5 B per generation: suspected."),
        # A confirmed leak takes precedence over a watched one, whatever the order.
        (["watch", "confirmed"], "failed", "Memory grows by 5 B per generation: confirmed."),
    ],
)
def test_an_item_is_judged_by_the_worst_of_its_findings(
    findings: list[Status], outcome: str, said: str
) -> None:
    answer = _judged([finding(status) for status in findings], since(), "Memory", "All is calm.")
    assert answer == (outcome, said)


def test_no_step_passes_before_five_generations() -> None:
    too_few = ("not_yet", "4 generations so far, too few to judge.")
    assert _judged([], since(5), "Memory", "calm") == ("done", "calm")
    assert _judged([], since(4), "Memory", "calm") == too_few
    unmeasured = ("not_measured", "Private memory was not measured.")
    assert _memory(verdict(growth=None), since(5)) == unmeasured
    assert _memory(verdict(growth=None), since(4)) == too_few


def test_the_sentence_names_phase_and_first_suspect() -> None:
    suspects = (Suspect("Env", "type"), Suspect("dict", "type"))
    leak = finding("confirmed", phase="train", suspects=suspects)
    assert _judged([leak], since(1), "Memory", "")[1] == (
        "Memory grows by 5 B per generation in train (Env): confirmed."
    )
    # A shrinking series grows by 0.
    assert "grows by 0 B" in _judged([finding("watch", -3)], since(), "Memory", "")[1]
    assert "grows by 1 B" in _judged([finding("watch", 0.5)], since(), "Memory", "")[1]


def test_the_peak_of_a_device_has_its_first_generation() -> None:
    # A device without memory in use was still observed.
    columns: dict[str, list[Value]] = {
        "cuda.0.allocated_bytes": [None, 5, 9, 9, 2], "gpu.0.process_bytes": [0, None, None, None, None],
        "mps.driver_bytes": [None] * 5, "cuda.0.reserved_bytes": [4, None, None, None, None],
        # Ignore memory of other processes on the device and memory of this process.
        "gpu.0.used_bytes": [99] * 5, "process.allocated_bytes": [99] * 5,
    }  # fmt: skip
    assert sorted(_tops(process(range(10, 15), columns)), key=str) == [
        (0.0, None),
        (4, 10),
        (9, 12),
    ]


def on_device(*readings: Value) -> RunHistory:
    series = {"cuda.0.allocated_bytes": list(readings)}
    return RunHistory("r", processes=(process(range(len(readings)), series),))


def test_a_device_without_memory_in_use_is_not_measured() -> None:
    unseen = "GPU memory was not measured: no device was found."
    assert _gpu(RunHistory("r"), verdict(), since()) == ("not_measured", unseen)
    idle = "This run uses no GPU memory."
    assert _gpu(on_device(0, 0), verdict(), since()) == ("not_measured", idle)
    used = "GPU memory does not keep growing; the highest reading on one device was 1 B in generation 1."
    assert _gpu(on_device(0, 1, 0), verdict(), since()) == ("done", used)


@pytest.mark.parametrize(
    ("judged", "outcome", "said"),
    [
        (verdict(), "done", "No leak is suspected; memory changes by +5 B per generation over 10 generations."),
        # Flat from generation 0 on means flat throughout.
        (verdict(settled=0), "done", "No leak is suspected; memory changes by +5 B per generation "
            "over 10 generations."),
        (verdict(settled=0.5), "done", "Memory has been flat since generation 0.5, and no leak is "
            "suspected (+5 B per generation)."),
        (verdict(status="filling"), "done", "Memory grows only as containers fill to their capacity; otherwise it "
            "changes by +5 B per generation."),
        (verdict(finding("watch"), status="watch"), "not_yet", "Memory grows by 5 B per generation: watch."),
        # A watched device does not count; memory of the host is too unsteady to judge.
        (verdict(finding("watch", kind="gpu"), status="watch"), "not_yet", "Memory changes by +5 B per generation, "
            "but the run is too short or its memory too unsteady to judge."),
    ],
)  # fmt: skip
def test_memory_is_steady_if_nothing_is_suspected(judged: Verdict, outcome: str, said: str) -> None:
    assert _memory(judged, since()) == (outcome, said)


def attempts(*ends: tuple[int, Sequence[int | None]]) -> RunHistory:
    rows = tuple(process(generation, {}, attempt=attempt) for attempt, generation in ends)
    return RunHistory("r", processes=rows, total=50)


@pytest.mark.parametrize(
    ("history", "found"),
    [
        (attempts((1, [0, 1, 2])), None), (attempts((2, [2, 3]), (1, [0, 1, 2])), (1, 2, 3)),
        # The attempt that came furthest; of equals the later.
        (attempts((1, [0, 9]), (2, [5, 7]), (3, [4])), (1, 9, 4)),
        (attempts((1, [0, 9]), (2, [5, 9]), (3, [4])), (2, 9, 4)),
        # Its processes count together.
        (attempts((1, [0, 9]), (1, [0, 4]), (2, [3])), (1, 9, 3)),
        (attempts((1, [0]), (2, [None])), (1, 0, None)), (attempts((1, [None]), (2, [3])), None),
        (RunHistory("r"), None),
    ],
)  # fmt: skip
def test_an_earlier_attempt_ended_at_its_last_generation(
    history: RunHistory, found: tuple[int, int, int | None] | None
) -> None:
    assert _end_of_earlier_attempts(history) == found


@pytest.mark.parametrize(
    ("newest", "ended", "answer"),
    [
        ([3], False, ("done", "The run reached generation 3; attempt 1 ended at generation 2.")),
        ([2], False, ("not_yet", "The run reached generation 2; attempt 1 ended at generation 2.")),
        ([2], True, ("failed", "The run reached generation 2; attempt 1 ended at generation 2.")),
        ([None], False, ("not_yet", "No generation of the newest attempt has been recorded yet; "
            "attempt 1 ended at generation 2.")),
    ],
)  # fmt: skip
def test_a_run_passes_the_point_of_the_crash_once_beyond_it(
    newest: list[int | None], ended: bool, answer: tuple[str, str]
) -> None:
    passed = _passed(attempts((1, [0, 1, 2]), (2, newest)), since(ended=ended))
    assert passed == (*answer, "attempt")


@pytest.mark.parametrize(
    ("events", "goal"),
    [
        ((), (50, "plan")),
        ((promised(60), promised(70)), (70, "promise")),
        ((promised(60), promised("all"), promised(LARGEST * 4)), (60, "promise")),
        ((promised(60, "mark"),), (50, "plan")),
        ((Event(0, 0.0, "fix", "x", data={"promises": [60]}),), (50, "plan")),
    ],
)
def test_the_newest_promise_takes_precedence_over_the_plan(
    events: tuple[Event, ...], goal: tuple[float, str]
) -> None:
    assert _goal(RunHistory("r", total=50, events=events)) == goal


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        (freed_by("a", 5), ("done", "a ran once and freed 5 B.")),
        (freed_by("a", 5, 0, 0), ("done", "a ran 3 times and freed 5 B, but nothing twice.")),
        (freed_by("a", 5, -9, 5), ("done", "a ran 3 times and freed 10 B, but nothing once.")),
        # First those that free nothing, then the most frequent, then by name.
        ((*freed_by("b", 5), *freed_by("a", 5), *freed_by("z", 0)), ("done", "z ran once and freed nothing; "
            "a ran once and freed 5 B; b ran once and freed 5 B.")),
        ((*freed_by("a", 5), *freed_by("b", 5, 5)),
            ("done", "b ran twice and freed 10 B; a ran once and freed 5 B.")),
        (tuple(event for name in "abcde" for event in freed_by(name, 0)), ("failed", "a ran once and freed nothing; "
            "b ran once and freed nothing; c ran once and freed nothing; and 2 more.")),
        (freed_by("a", None), ("not_measured",
            "No cleanup was recorded: wrap your cleanup code in run.cleanup(name).")),
    ],
)  # fmt: skip
def test_the_cleanup_step_passes_if_any_cleanup_frees_memory(
    events: tuple[Event, ...], answer: tuple[str, str]
) -> None:
    assert _cleanups(RunHistory("r", events=events)) == answer


ENVIRONMENT = "trading.TradingEnvironment"
# A fix for each leak, and one for something that did not leak.
FIXES: dict[str, dict[str, Any]] = {
    "close environments": {"phase": EVALUATE, "promises": {f"count:{ENVIRONMENT}": 2}},
    "detach losses": {"phase": TRAIN},
    "drop the old population": {"phase": EVOLVE},
    "bound the history": {"phase": "between"},
}


def with_fixes(history: RunHistory, at: float = 0.0, names: Sequence[str] = ()) -> RunHistory:
    events = [Event(0, at, "fix", name, data=FIXES[name]) for name in names or FIXES]
    return with_events(history, *events)


def moment_of(history: RunHistory, generation: int) -> float:
    """Return a time just after the end of a generation."""
    (process,) = history.processes
    ends = zip(process.time, process.generation, process.kind, strict=True)
    return next(t for t, g, kind in ends if g == generation and kind == "generation_end") + 0.001


def test_the_comparison_distinguishes_four_fixes() -> None:
    before = Training(leaks=(kept_environments(), loss_graph(), old_population()))
    after = Training(leaks=(old_population(),), seed=50)
    effects = compare(before.history(), with_fixes(after.history())).effects
    found = {(each.fix, each.measure): each for each in effects}
    assert found["close environments", "phase_growth"].outcome == "helped"
    assert found["detach losses", "phase_growth"].outcome == "helped"
    # Its leak remains.
    assert found["drop the old population", "phase_growth"].outcome == "no_effect"
    assert found["bound the history", "phase_growth"].outcome in ("no_effect", "undecided")
    count = found["close environments", "count"]
    assert count.before is not None and count.after is not None
    assert (count.outcome, count.before.estimate, count.after.estimate) == ("helped", 16, 0)
    assert "difference of -16" in count.sentence


def test_fixes_within_a_run_are_compared_phase_by_phase() -> None:
    leaks = (replace(loss_graph(), stop=30), old_population())
    history = Training(leaks=leaks, generations=60).history()
    names = ["detach losses", "drop the old population"]
    helped, same = examine(with_fixes(history, moment_of(history, 29), names)).effects
    assert (helped.fix, same.fix) == tuple(names)
    assert helped.outcome == "helped", helped.sentence
    assert helped.difference is not None and helped.difference.high < 0
    assert same.outcome == "no_effect", same.sentence
    assert "no effect" in same.sentence


def test_a_phase_that_never_ran_is_undecided() -> None:
    before, after = Training(leaks=(loss_graph(),)), Training(seed=2)
    event = Event(0, 0.0, "fix", "x", data={"phase": "upload", "rejected": "pickling: too slow"})
    (effect,) = compare(before.history(), with_events(after.history(), event)).effects
    assert (effect.outcome, effect.before, effect.after) == ("undecided", None, None)
    assert effect.rejected == "pickling: too slow"


OF_RUN = _Subject("growth", "")


def around(estimate: float, reach: float = 1.0) -> Interval:
    return Interval(estimate, estimate - reach, estimate + reach)


def stretch(
    growth: Interval | None = None, *, generations: int = 10, matters: float = 0.0
) -> Stretch:
    measured = SimpleNamespace(
        generations=generations, growth=lambda: growth, growth_that_matters=lambda: matters,
        counted=lambda name: growth, kept_by=lambda name: growth,
    )  # fmt: skip
    return cast(Stretch, measured)


def fix(
    name: str = "detach", *, phase: str | None = None, since: float = 0.0, promises: Any = ()
) -> Fix:
    return Fix(name, phase, None, dict.fromkeys(promises, 1), since)


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        # A change of 10 counts, and a change of 50 would have been noticed.
        (Interval(-10, -15, -1), "helped"), (Interval(-9.9, -15, -1), "no_effect"),
        (Interval(-10, -15, 0), "undecided"), (Interval(10, 1, 15), "worse"), (Interval(9.9, 1, 15), "no_effect"),
        (Interval(10, 0, 15), "undecided"), (Interval(0, -49, 49), "no_effect"), (Interval(0, -50, 49), "undecided"),
        (Interval(0, -49, 50), "undecided"), (Interval(-10, -49, 49), "undecided"),
    ],
)  # fmt: skip
def test_effects_exceed_the_noise_and_no_effect_excludes_visible_ones(
    difference: Interval, expected: str
) -> None:
    assert _outcome(difference, 10, 50) == expected


def effect(old: Stretch, new: Stretch, subject: _Subject = OF_RUN) -> FixEffect:
    return _effect(fix(), subject, (old, new), "", "generation", _WITHIN)


@pytest.mark.parametrize(
    ("old", "new", "matters", "expected"),
    [
        # A fifth of the previous value,
        (around(100), around(80), 0, "helped"), (around(100), around(80.1), 0, "no_effect"),
        # or what matters to the verdict in either of the two periods.
        (around(100), around(61), 40, "no_effect"), (around(100), around(60), 40, "helped"),
        # For falling values the magnitude counts.
        (around(-100), around(-81), 0, "no_effect"), (around(-100), around(-120), 0, "helped"),
        # Half of the growth would have been noticed: errors of 35 add up to 49.5, errors of 36 to 50.9.
        (around(100, 35), around(100, 35), 0, "no_effect"), (around(100, 36), around(100, 36), 0, "undecided"),
        # If half of it does not matter, the smallest amount that matters would have been noticed.
        (around(100, 36), around(100, 36), 60, "no_effect"),
    ],
)  # fmt: skip
def test_a_change_counts_from_a_fifth_or_if_it_matters(
    old: Interval, new: Interval, matters: float, expected: str
) -> None:
    assert effect(stretch(old, matters=matters), stretch(new)).outcome == expected
    assert effect(stretch(old), stretch(new, matters=matters)).outcome == expected


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (4, 4, "The run grows by +100 B"),
        (3, 4, "Too few generations ran before the fix: compare this run"),
        (4, 3, "Measuring an effect takes at least 4 generations both before and after the fix."),
        (3, 3, "Measuring an effect takes at least 4 generations both before and after the fix."),
    ],
)  # fmt: skip
def test_an_effect_needs_four_generations_on_each_side(before: int, after: int, said: str) -> None:
    found = effect(stretch(around(100), generations=before), stretch(around(50), generations=after))
    assert found.outcome == ("helped" if before == after == 4 else "undecided")
    assert found.sentence.startswith(said)
    # The measurements are given anyway.
    assert (found.before, found.after, found.change_percent) == (around(100), around(50), -50.0)


def test_the_sentence_counts_generations_of_the_shorter_run() -> None:
    sides = stretch(around(1), generations=3), stretch(around(1), generations=2)
    found = _effect(fix(), OF_RUN, sides, "", "minute", _COMPARED)
    assert found.sentence == "Only 2 minutes to compare."


def test_a_measure_missing_on_one_side_is_undecided() -> None:
    for old, new in ((None, around(1)), (around(1), None)):
        found = effect(stretch(old), stretch(new), _Subject("phase_growth", "train"))
        assert (found.outcome, found.difference) == ("undecided", None)
        assert (
            found.sentence
            == "The memory kept by train was not measured both before and after the fix."
        )


@pytest.mark.parametrize(
    ("measure", "before", "after", "least"),
    [
        # One instance over all generations of the shorter period.
        ("count", 4, 10, 1 / 4), ("count", 0, 5, 1.0), ("growth", 10, 10, 7.0), ("phase_growth", 10, 10, 7.0),
    ],
)  # fmt: skip
def test_the_smallest_change_is_one_instance_or_what_matters(
    measure: Any, before: int, after: int, least: float
) -> None:
    subject = _Subject(measure, "")
    a, b = stretch(generations=before, matters=7), stretch(generations=after, matters=3)
    assert subject.matters(a, b) == subject.matters(b, a) == least


def test_effects_on_instances_are_counts_and_the_run_has_no_name() -> None:
    sides = stretch(around(2)), stretch(around(-3))
    of_class = effect(*sides, _Subject("count", "app.Env"))
    assert (of_class.subject, of_class.sentence) == (
        "app.Env",
        "Env grows by +2 per generation before and -3 after, a difference of -5 (-6.4 to -3.6): helped.",
    )
    of_run = effect(*sides)
    assert (of_run.subject, of_run.sentence) == (
        None,
        "The run grows by +2 B per generation before and -3 B after, a difference of -5 B (-6 B to -4 B): helped.",
    )


@pytest.mark.parametrize(
    ("declared", "subjects"),
    [
        (fix(promises=["growth"]), [OF_RUN]),
        (fix(phase="train"), [_Subject("phase_growth", "train")]),
        (fix(promises=["count:Env", "peak"]), [_Subject("count", "Env")]),
        (fix(phase="train", promises=["count:Env"]), [_Subject("count", "Env"), _Subject("phase_growth", "train")]),
        (fix(promises=[f"count:C{i}" for i in range(7)]), [_Subject("count", f"C{i}") for i in range(5)]),
    ],
)  # fmt: skip
def test_a_fix_is_about_its_classes_and_phase_or_the_run(
    declared: Fix, subjects: list[_Subject]
) -> None:
    assert _subjects(declared) == subjects


def timeline_analysis(ends: int) -> TimelineAnalysis:
    """Return an analysis with generations that end at 100, 200, 300 … seconds."""
    timeline = SimpleNamespace(
        end_rows=range(ends), time=[100.0 * (i + 1) for i in range(ends)], generations=range(ends)
    )
    return cast(TimelineAnalysis, SimpleNamespace(timeline=timeline))


@pytest.mark.parametrize(
    ("begin", "end", "first", "counted"),
    [
        # A generation that ends exactly at the start belongs to the period; one at its end does not: 4 of 100 to 400.
        (100, 500, False, 4), (100.1, 500, False, 3), (100, 500.1, False, 4),
        # Two generations at the start of a run and one after a fix are warm-up, if four remain.
        (100, 700, True, 4), (100, 800, True, 5), (100, 600, False, 4), (100, 700, False, 5), (100, 300, True, 2),
    ],
)  # fmt: skip
def test_a_period_excludes_warm_up(begin: float, end: float, first: bool, counted: int) -> None:
    assert _between([timeline_analysis(12)], begin, end, first).generations == counted


def fix_at(name: str, at: float, phase: str | None = None) -> Event:
    return Event(0, at, "fix", name, data={"phase": phase})


def sentences(*events: Event, ends: int = 30) -> dict[str, str]:
    found = effects_within(RunHistory("r", events=events), [timeline_analysis(ends)])
    return {each.fix: each.sentence for each in found}


def test_a_fix_is_measured_between_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[float, float, bool]] = []

    def between(studies: Any, begin: float, end: float, first: bool) -> Stretch:
        asked.append((begin, end, first))
        return stretch(around(1))

    monkeypatch.setattr("leakline.analysis.comparison.fix_effects._between", between)
    never, ever = float("-inf"), float("inf")
    events = (fix_at("a", 10, "train"), fix_at("b", 20, "evolve"), fix_at("c", 30, "train"))
    effects_within(RunHistory("r", events=events), [])
    assert asked == [
        (never, 10, True), (10, 30, False), (never, 20, True), (20, ever, False),
        (10, 30, False), (30, ever, False),
    ]  # fmt: skip
    asked.clear()
    # Effects on the entire run are attributed to every fix.
    effects_within(RunHistory("r", events=(*events[:2], fix_at("r", 15))), [])
    assert asked == [
        (never, 10, True), (10, 15, False), (10, 15, False), (15, 20, False), (15, 20, False), (20, ever, False),
    ]  # fmt: skip


def test_fixes_with_equal_time_and_subject_are_not_distinguished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "leakline.analysis.comparison.fix_effects._between", lambda *_, **__: stretch(around(1))
    )
    events = (
        fix_at("a", 10, "train"), fix_at("b", 10, "train"), fix_at("c", 10, "evolve"), fix_at("d", 20, "train"),
    )  # fmt: skip
    named = {
        name: said.split("from the effect of ")[1:] for name, said in sentences(*events).items()
    }
    assert named == {
        "a": ["b, which also applies to train."], "b": ["a, which also applies to train."], "c": [], "d": [],
    }  # fmt: skip


def test_a_fix_in_both_runs_is_not_compared() -> None:
    old, new = fix_at("old", 5, "train"), fix_at("new", 6, "train")
    before, after = RunHistory("r", events=(old,)), RunHistory("r", events=(old, new))
    first, second = effects_of_comparison(before, after, stretch(around(100)), stretch(around(50)))
    assert (first.outcome, first.before) == ("undecided", None)
    assert "The other run has this fix too" in first.sentence
    assert (second.outcome, second.sentence.count("cannot be separated")) == ("helped", 0)


def test_effects_are_written_in_their_unit() -> None:
    counted = {
        "measure": "count", "subject": "app.Env", "before": {"estimate": 2.0}, "after": {"estimate": 0.0},
        "difference": {"estimate": -2.0, "low": -3.0, "high": 1.0},
    }  # fmt: skip
    assert effect_figures(counted) == ("+2", "0", "-2 (-3 to +1)")
    kept = {**counted, "measure": "phase_growth"}
    assert effect_figures(kept) == ("+2 B", "+0 B", "-2 B (-3 B to +1 B)")
    assert (effect_title(counted), effect_title(kept)) == ("Env", "app.Env")
    unmeasured = {**counted, "after": None, "difference": None, "subject": None}
    assert effect_figures(unmeasured) == ("+2", "", "")
    assert effect_title(unmeasured) == "the run"

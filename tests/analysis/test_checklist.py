"""The four steps that verify a fix are answered by the run itself, each with evidence and never on too little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from builder import EVOLVE, GIB, MIB, TRAIN, Training, figures, kept_environments
from hypothesis import given, settings
from hypothesis import strategies as st
from pieces import finding, steps_history

from leakline.analysis import RunHistory, examine, history_from_batches, verdict_json
from leakline.analysis.comparison.fix_effects import (
    _cleanups,
    _end_of_earlier_attempts,
    _goal,
    _gpu,
    _judged,
    _memory,
    _passed,
    _tops,
)
from leakline.analysis.findings.verdict_summary import (
    CHECK_QUESTIONS,
    CHECK_WORDS,
    check_lines,
    check_question,
)
from leakline.analysis.results import CheckItem, Finding, Interval, Status, Suspect, Verdict
from leakline.analysis.run_history import LARGEST, ProcessHistory, Value
from leakline.analysis.window import Since
from leakline.snapshot import Batch, Event, Snapshot


def checklist(history: RunHistory) -> dict[str, CheckItem]:
    items = examine(history).checklist
    assert [item.check for item in items] == ["gpu", "memory", "passed", "cleanups"]
    return {item.check: item for item in items}


def with_events(history: RunHistory, *events: Event) -> RunHistory:
    return replace(history, events=(*history.events, *events))


def cleanup(name: str, freed: Any, at: float = 5.0) -> Event:
    data = {"before_bytes": GIB, "after_bytes": GIB - 1, "freed_bytes": freed, "seconds": 0.1}
    return Event(3, at, "cleanup", name, 1, None, data)


def promise(generations: Any, at: float = 0.0) -> Event:
    return Event(0, at, "fix", "detach losses", data={"promises": {"generations": generations}})


def on_a_device(rate: float, generations: int = 40) -> RunHistory:
    """A healthy training on a device whose live tensors grow by so much in each generation."""
    training = Training(generations=generations)

    def told(snapshot: Snapshot) -> Snapshot:
        done = (snapshot.generation or 0) + (
            snapshot.phase in (TRAIN, EVOLVE) or snapshot.kind == "generation_end"
        )
        used = 4 * GIB + rate * done
        samples = {"cuda.0.allocated_bytes": used, "cuda.0.reserved_bytes": used + GIB}
        return replace(snapshot, samples={**snapshot.samples, **samples})

    batches = [Batch(b.process, tuple(map(told, b.snapshots))) for b in training.batches()]
    return history_from_batches(training.header(), batches)


def test_a_healthy_run_of_report_000_has_four_ticks() -> None:
    events = (promise(30), cleanup("agent", 200 * MIB), cleanup("agent", 100 * MIB))
    found = checklist(with_events(on_a_device(0.0), *events))
    assert {item.outcome for item in found.values()} == {"done"}
    gpu = "GPU memory does not keep growing; the most on one device was 5.00 GiB"
    assert found["gpu"].sentence.startswith(gpu)
    assert "nothing is suspected" in found["memory"].sentence
    passed = "40 generations complete, held against the 30 that the fix promised."
    assert found["passed"].sentence == passed
    assert found["cleanups"].sentence == "agent ran twice and freed 300.00 MiB."


def test_a_run_before_anything_happened_ticks_nothing() -> None:
    found = checklist(Training(generations=0, total=25).history())
    assert {item.outcome for item in found.values()} == {"not_yet", "not_measured"}


def test_device_memory_that_grows_is_not_ticked_and_is_no_matter_of_the_other_one() -> None:
    found = checklist(on_a_device(200 * MIB))
    assert found["gpu"].outcome == "failed"
    assert "GPU memory grows by" in found["gpu"].sentence
    assert found["memory"].outcome == "done"


def test_memory_that_leaks_names_the_leak() -> None:
    item = checklist(Training(leaks=(kept_environments(),)).history())["memory"]
    assert item.outcome == "failed"
    assert "trading.TradingEnvironment" in item.sentence and "evaluate_population" in item.sentence


@pytest.mark.parametrize(
    ("generations", "ended", "outcome"),
    [(25, False, "done"), (25, True, "done"), (24, False, "not_yet"), (24, True, "failed")],
)
def test_a_run_is_held_against_the_plan(generations: int, ended: bool, outcome: str) -> None:
    history = replace(Training(generations=generations, total=25).history(), ended=ended)
    item = checklist(history)["passed"]
    assert (item.outcome, item.against) == (outcome, "plan")
    said = f"{generations} generations complete, held against the 25 that were planned."
    assert item.sentence == said


def test_without_a_plan_or_a_promise_it_says_that_it_does_not_know() -> None:
    item = checklist(Training(generations=90).history())["passed"]
    assert item.outcome == "not_measured"
    assert "Not known where it died before" in item.sentence
    assert (
        check_question({"check": "passed", "against": item.against})
        == "The run passes the point where it died before"
    )


def test_a_cleanup_that_frees_nothing_is_marked() -> None:
    events = (cleanup("collector", 0), cleanup("collector", -4096))
    item = checklist(with_events(Training().history(), *events))["cleanups"]
    assert (item.outcome, item.sentence) == ("failed", "collector ran twice and freed nothing.")


junk = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.integers(), st.floats(),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=25)
@given(junk, junk)
def test_what_the_wire_brings_breaks_no_checklist(freed: Any, generations: Any) -> None:
    history = with_events(
        Training(generations=2).history(), cleanup("agent", freed), promise(generations),
        Event(0, 0.0, "cleanup", "agent", data={"devices": freed}),
        Event(0, 0.0, "cleanup", "agent", data={"devices": {"cuda.0.reserved_bytes": freed}}),
        Event(0, 0.0, "cleanup", "agent", data={"devices": {"cuda.0.reserved_bytes": [freed, generations]}}),
        Event(0, 0.0, "fix", "none", data={"promises": freed}), Event(0, 0.0, "cleanup", "bare"),
    )  # fmt: skip
    for item in checklist(history).values():
        assert item.sentence and "\n" not in item.sentence


@pytest.mark.parametrize("generations", range(14))
def test_a_leak_that_is_not_ticked_yet_is_told_as_open(generations: int) -> None:
    """Whatever the length of the run, nothing is ticked that the verdict does not bear out."""
    leaks = (figures(), kept_environments())
    history = Training(generations=generations, leaks=leaks).history()
    verdict = examine(history)
    if any(f.status in ("suspected", "confirmed") for f in verdict.findings):
        assert checklist(history)["memory"].outcome == "failed"
    elif verdict.status in ("watch", "learning"):
        assert checklist(history)["memory"].outcome == "not_yet"


def test_the_list_is_told_in_lines_with_marks() -> None:
    items = verdict_json(examine(Training(total=16).history()))["checklist"]
    assert [set(item) for item in items] == [{"check", "outcome", "sentence", "against"}] * 4
    lines = list(check_lines(items))
    assert lines[0] == "[-] GPU memory stays within its pattern: not measured"
    assert lines[4] == "[x] Every planned generation has run: done"
    assert set(CHECK_QUESTIONS) == {item["check"] for item in items}
    assert set(CHECK_WORDS) == {"done", "failed", "not_yet", "not_measured"}


RUN = RunHistory("r")


def seen(generations: int = 10, *, complete: int = 10, ended: bool = False) -> Since:
    told = SimpleNamespace(
        unit="generation", generations=generations, passed=None, complete=complete, ended=ended
    )
    return cast(Since, told)


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
        # What leaks goes before what may, wherever it stands.
        (["watch", "confirmed"], "failed", "Memory grows by 5 B per generation: confirmed."),
    ],
)
def test_an_item_is_judged_by_the_worst_of_its_findings(
    findings: list[Status], outcome: str, said: str
) -> None:
    answer = _judged([finding(status) for status in findings], seen(), "Memory", "All is calm.")
    assert answer == (outcome, said)


def test_nothing_is_ticked_before_five_generations() -> None:
    too_few = ("not_yet", "4 generations so far, too few to tell.")
    assert _judged([], seen(5), "Memory", "calm") == ("done", "calm")
    assert _judged([], seen(4), "Memory", "calm") == too_few
    unmeasured = ("not_measured", "Private memory was not measured.")
    assert _memory(verdict(growth=None), seen(5)) == unmeasured
    assert _memory(verdict(growth=None), seen(4)) == too_few


def test_a_finding_is_told_with_its_phase_and_first_suspect() -> None:
    suspects = (Suspect("Env", "type"), Suspect("dict", "type"))
    leak = finding("confirmed", phase="train", suspects=suspects)
    assert _judged([leak], seen(1), "Memory", "")[1] == (
        "Memory grows by 5 B per generation in train (Env): confirmed."
    )
    # What shrinks grows by nothing.
    assert "grows by 0 B" in _judged([finding("watch", -3)], seen(), "Memory", "")[1]
    assert "grows by 1 B" in _judged([finding("watch", 0.5)], seen(), "Memory", "")[1]


def test_the_highest_reading_of_a_device_has_the_generation_it_was_first_read_in() -> None:
    # A device that nothing is on was seen all the same.
    columns: list[list[Value]] = [[None, 5, 9, 9, 2], [0, None], [None, None]]
    series = "cuda.0.allocated_bytes"
    tops = [list(_tops(process(range(10, 10 + len(each)), {series: each}))) for each in columns]
    assert tops == [[(9, 12)], [(0.0, None)], []]


def test_only_what_this_process_takes_of_a_device_counts() -> None:
    series = {
        "cuda.0.allocated_bytes": [1], "gpu.0.process_bytes": [2], "mps.driver_bytes": [3],
        "cuda.0.reserved_bytes": [4], "gpu.0.used_bytes": [9], "process.allocated_bytes": [9],
    }  # fmt: skip
    assert sorted(top for top, _ in _tops(process([0], series))) == [1, 2, 3, 4]


def on_device(*readings: Value) -> RunHistory:
    series = {"cuda.0.allocated_bytes": list(readings)}
    return RunHistory("r", processes=(process(range(len(readings)), series),))


def test_a_device_that_nothing_is_on_is_not_measured() -> None:
    unseen = "GPU memory was not measured: no device was seen."
    assert _gpu(RUN, verdict(), seen()) == ("not_measured", unseen)
    idle = "This training uses no GPU memory."
    assert _gpu(on_device(0, 0), verdict(), seen()) == ("not_measured", idle)
    used = "GPU memory does not keep growing; the most on one device was 1 B in generation 1."
    assert _gpu(on_device(0, 1, 0), verdict(), seen()) == ("done", used)


@pytest.mark.parametrize(
    ("told", "outcome", "said"),
    [
        (verdict(), "done", "Nothing is suspected; memory changes by +5 B per generation over 10 generations."),
        # Flat from the first on is flat all the time.
        (verdict(settled=0), "done", "Nothing is suspected; memory changes by +5 B per generation "
            "over 10 generations."),
        (verdict(settled=0.5), "done", "Memory is flat since generation 0.5, and nothing is "
            "suspected (+5 B per generation)."),
        (verdict(status="filling"), "done", "Memory grows only as declared containers fill; beyond them it "
            "changes by +5 B per generation."),
        (verdict(finding("watch"), status="watch"), "not_yet", "Memory grows by 5 B per generation: watch."),
        # What is watched of a device is none of it: the host is what is too unsteady.
        (verdict(finding("watch", kind="gpu"), status="watch"), "not_yet", "Memory changes by +5 B per generation, "
            "too short or too unsteady to judge."),
    ],
)  # fmt: skip
def test_memory_is_steady_where_nothing_is_suspected(
    told: Verdict, outcome: str, said: str
) -> None:
    assert _memory(told, seen()) == (outcome, said)


def attempts(*ends: tuple[int, Sequence[int | None]]) -> RunHistory:
    rows = tuple(process(generation, {}, attempt=attempt) for attempt, generation in ends)
    return RunHistory("r", processes=rows, total=50)


@pytest.mark.parametrize(
    ("history", "found"),
    [
        (attempts((1, [0, 1, 2])), None), (attempts((2, [2, 3]), (1, [0, 1, 2])), (1, 2, 3)),
        # The one that came furthest, of those as far the later.
        (attempts((1, [0, 9]), (2, [5, 7]), (3, [4])), (1, 9, 4)),
        (attempts((1, [0, 9]), (2, [5, 9]), (3, [4])), (2, 9, 4)),
        # Its processes together.
        (attempts((1, [0, 9]), (1, [0, 4]), (2, [3])), (1, 9, 3)),
        (attempts((1, [0]), (2, [None])), (1, 0, None)), (attempts((1, [None]), (2, [3])), None), (RUN, None),
    ],
)  # fmt: skip
def test_an_earlier_attempt_ended_where_its_last_generation_is(
    history: RunHistory, found: tuple[int, int, int | None] | None
) -> None:
    assert _end_of_earlier_attempts(history) == found


@pytest.mark.parametrize(
    ("newest", "ended", "answer"),
    [
        ([3], False, ("done", "The run reached generation 3; where attempt 1 ended was generation 2.")),
        ([2], False, ("not_yet", "The run reached generation 2; where attempt 1 ended was generation 2.")),
        ([2], True, ("failed", "The run reached generation 2; where attempt 1 ended was generation 2.")),
        ([None], False, ("not_yet", "Nothing has run beyond where attempt 1 ended yet.")),
    ],
)  # fmt: skip
def test_a_run_has_passed_where_it_died_once_it_is_beyond(
    newest: list[int | None], ended: bool, answer: tuple[str, str]
) -> None:
    passed = _passed(attempts((1, [0, 1, 2]), (2, newest)), seen(ended=ended))
    assert passed == (*answer, "attempt")


def promised(generations: Any, kind: str = "fix") -> Event:
    return Event(0, 0.0, kind, "detach", data={"promises": {"generations": generations}})


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
def test_the_newest_promise_goes_before_the_plan(
    events: tuple[Event, ...], goal: tuple[float, str]
) -> None:
    assert _goal(RunHistory("r", total=50, events=events)) == goal


def freed(name: str, *sizes: int | None) -> tuple[Event, ...]:
    return tuple(Event(0, 0.0, "cleanup", name, data={"freed_bytes": size}) for size in sizes)


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        (freed("a", 5), ("done", "a ran once and freed 5 B.")),
        (freed("a", 5, 0, 0), ("done", "a ran 3 times and freed 5 B, nothing twice.")),
        (freed("a", 5, -9, 5), ("done", "a ran 3 times and freed 10 B, nothing once.")),
        # Those that free nothing first, then those that ran most, then by name.
        ((*freed("b", 5), *freed("a", 5), *freed("z", 0)), ("done", "z ran once and freed nothing; "
            "a ran once and freed 5 B; b ran once and freed 5 B.")),
        ((*freed("a", 5), *freed("b", 5, 5)), ("done", "b ran twice and freed 10 B; a ran once and freed 5 B.")),
        (tuple(event for name in "abcde" for event in freed(name, 0)), ("failed", "a ran once and freed nothing; "
            "b ran once and freed nothing; c ran once and freed nothing; and 2 more.")),
        (freed("a", None), ("not_measured", "No cleanup was recorded: wrap yours in run.cleanup(name).")),
    ],
)  # fmt: skip
def test_cleanups_are_done_where_any_of_them_frees_something(
    events: tuple[Event, ...], answer: tuple[str, str]
) -> None:
    assert _cleanups(RunHistory("r", events=events)) == answer

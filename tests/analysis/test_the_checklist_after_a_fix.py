"""The four steps that verify a fix are answered by the run itself, each with evidence and never on too little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builder import EVOLVE, GIB, MIB, TRAIN, Training, figures, kept_environments
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.analysis import RunHistory, examine, history_from_batches, verdict_json
from leakline.analysis.results import CheckItem, to_json
from leakline.analysis.summary import CHECK_QUESTIONS, CHECK_WORDS, check_lines, check_question
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
    assert found["gpu"].sentence.startswith(
        "GPU memory does not keep growing; the most on one device was 5.00 GiB"
    )
    assert "nothing is suspected" in found["memory"].sentence
    assert (
        found["passed"].sentence
        == "40 generations complete, held against the 30 that the fix promised."
    )
    assert found["cleanups"].sentence == "agent ran twice and freed 300.00 MiB."


def test_a_run_before_anything_happened_ticks_nothing() -> None:
    found = checklist(Training(generations=0, total=25).history())
    assert {item.outcome for item in found.values()} == {"not_yet", "not_measured"}


def test_device_memory_that_grows_is_not_ticked_and_is_no_matter_of_the_other_one() -> None:
    found = checklist(on_a_device(200 * MIB))
    assert found["gpu"].outcome == "failed"
    assert "GPU memory grows by" in found["gpu"].sentence
    assert found["memory"].outcome == "done"


def test_a_training_without_a_device_is_not_measured() -> None:
    assert checklist(Training().history())["gpu"].outcome == "not_measured"
    idle = Training(counts={"list": 5}).history()
    zero = tuple(
        replace(p, series={**p.series, "gpu.0.process_bytes": [0] * len(p)}) for p in idle.processes
    )
    item = checklist(replace(idle, processes=zero))["gpu"]
    assert (item.outcome, item.sentence) == ("not_measured", "This training uses no GPU memory.")


def test_memory_that_leaks_names_the_leak() -> None:
    item = checklist(Training(leaks=(kept_environments(),)).history())["memory"]
    assert item.outcome == "failed"
    assert "trading.TradingEnvironment" in item.sentence and "evaluate_population" in item.sentence


def test_memory_is_not_judged_on_three_generations() -> None:
    item = checklist(Training(generations=3).history())["memory"]
    assert (item.outcome, item.sentence) == ("not_yet", "3 generations so far, too few to tell.")


def test_memory_that_only_fills_declared_buffers_is_consistent() -> None:
    filling = Training(generations=12, buffer_full_after=30, buffer_bytes=400 * MIB, seed=3)
    verdict = examine(filling.history())
    assert verdict.status == "filling"
    item = checklist(filling.history())["memory"]
    assert item.outcome == "done"
    assert "only as declared containers fill" in item.sentence


@pytest.mark.parametrize(
    ("generations", "ended", "outcome"),
    [(25, False, "done"), (25, True, "done"), (12, False, "not_yet"), (12, True, "failed")],
)
def test_a_run_is_held_against_the_plan(generations: int, ended: bool, outcome: str) -> None:
    history = replace(Training(generations=generations, total=25).history(), ended=ended)
    item = checklist(history)["passed"]
    assert (item.outcome, item.against) == (outcome, "plan")
    assert (
        item.sentence
        == f"{generations} generations complete, held against the 25 that were planned."
    )


def test_the_promise_of_a_fix_goes_before_the_plan() -> None:
    history = Training(generations=16, total=100).history()
    kept = checklist(with_events(history, promise(13)))["passed"]
    assert (kept.outcome, kept.against) == ("done", "promise")
    assert check_question(to_json(kept)) == "The run passes the point where it died before"
    assert (
        checklist(with_events(history, promise(13), promise(20, 1.0)))["passed"].outcome
        == "not_yet"
    )


def test_an_earlier_attempt_of_the_run_is_where_it_died() -> None:
    first = Training(generations=13, total=25)
    for more, outcome in ((8, "done"), (1, "not_yet")):
        second = Training(
            generations=more, total=25, attempt=2, first_generation=12, instance="p2", seed=2
        )
        history = history_from_batches(first.header(), [*first.batches(), *second.batches()])
        item = checklist(with_events(history, promise(13)))["passed"]
        assert item.outcome == outcome
        assert (
            item.sentence
            == f"The run reached generation {11 + more}; where attempt 1 ended was generation 12."
        )
        assert checklist(replace(history, ended=True))["passed"].outcome == (
            "done" if outcome == "done" else "failed"
        )


def test_without_a_plan_or_a_promise_it_says_that_it_does_not_know() -> None:
    item = checklist(Training(generations=90).history())["passed"]
    assert item.outcome == "not_measured"
    assert "Not known where it died before" in item.sentence


def test_a_cleanup_that_frees_nothing_is_marked() -> None:
    history = Training().history()
    item = checklist(with_events(history, cleanup("collector", 0), cleanup("collector", -4096)))[
        "cleanups"
    ]
    assert (item.outcome, item.sentence) == ("failed", "collector ran twice and freed nothing.")
    mixed = (
        cleanup("collector", 0),
        cleanup("agent", MIB),
        cleanup("agent", 0),
        cleanup("agent", MIB),
    )
    item = checklist(with_events(history, *mixed))["cleanups"]
    assert item.outcome == "done"
    assert (
        item.sentence
        == "collector ran once and freed nothing; agent ran 3 times and freed 2.00 MiB, nothing once."
    )


def test_what_was_freed_is_told_where_it_was() -> None:
    """Of each device the larger fall, of live tensors or of what the allocator keeps; and none of what rose."""

    def told(freed: Any, devices: Any) -> str:
        data = {"freed_bytes": freed, "devices": devices}
        event = Event(3, 5.0, "cleanup", "agent", 1, None, data)
        item = checklist(with_events(Training().history(), event))["cleanups"]
        assert (item.outcome == "failed") is item.sentence.endswith("nothing.")
        return item.sentence.removeprefix("agent ran once and freed ")

    reserved, allocated = "cuda.0.reserved_bytes", "cuda.0.allocated_bytes"
    assert told(-4096, {reserved: [8 * GIB, GIB]}) == "7.00 GiB of GPU memory."
    both = {reserved: [8 * GIB, 6 * GIB], allocated: [6 * GIB, 3 * GIB]}
    assert told(MIB, both) == "1.00 MiB and 3.00 GiB of GPU memory."
    two = {reserved: [8 * GIB, GIB], "cuda.1.reserved_bytes": [GIB, 2 * GIB]}
    assert told(0, two) == "7.00 GiB of GPU memory."
    assert told(None, {reserved: [GIB, 0]}) == "1.00 GiB of GPU memory."
    assert told(0, {reserved: [GIB, GIB]}) == told(0, {}) == "nothing."


def test_many_cleanups_are_not_all_told() -> None:
    events = [cleanup(f"c{number}", MIB) for number in range(200)]
    item = checklist(with_events(Training().history(), *events))["cleanups"]
    assert item.sentence.endswith("; and 197 more.")
    assert len(item.sentence) < 200


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=3),
    st.integers(),
    st.floats(),
    st.lists(st.integers(), max_size=2),
)


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


def test_a_leak_that_is_not_ticked_yet_is_told_as_open() -> None:
    """Whatever the length of the run, nothing is ticked that the verdict does not bear out."""
    for generations in range(14):
        history = Training(
            generations=generations, leaks=(figures(), kept_environments())
        ).history()
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


def test_what_was_only_planned_is_not_called_a_death() -> None:
    """A first run has died nowhere; one with an earlier attempt, or a promise, is asked for where that died."""
    (_, _, passed, _) = verdict_json(examine(Training(total=40).history()))["checklist"]
    assert check_question(passed) == "Every planned generation has run"
    (_, _, passed, _) = verdict_json(examine(Training().history()))["checklist"]
    assert check_question(passed) == "The run passes the point where it died before"

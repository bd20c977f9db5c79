"""Each item of the checklist at the edge of its rule: done, failed, not yet, or not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leakline.analysis import RunHistory
from leakline.analysis.checklist import (
    _cleanups,
    _end_of_earlier_attempts,
    _goal,
    _gpu,
    _judged,
    _memory,
    _passed,
    _times,
    _tops,
)
from leakline.analysis.history import LARGEST, ProcessHistory, Value
from leakline.analysis.processes import _weight, measured, of_how_many, process_growth
from leakline.analysis.results import (
    Finding,
    Interval,
    ProcessGrowth,
    Status,
    Suspect,
    Verdict,
)
from leakline.analysis.since import Since
from leakline.analysis.trend import Slope
from leakline.snapshot import Event

RUN = RunHistory("r")


def seen(generations: int = 10, *, complete: int = 10, ended: bool = False) -> Since:
    told = SimpleNamespace(
        unit="generation", generations=generations, passed=None, complete=complete, ended=ended
    )
    return cast(Since, told)


def finding(
    status: Status, *, kind: Any = "objects", rate: float = 5.0, phase: str | None = None,
    suspects: tuple[Suspect, ...] = (),
) -> Finding:  # fmt: skip
    growth = Interval(rate, rate, rate)
    return Finding(status, status, kind, phase, None, suspects, growth, None, 0.9)


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
    generation: Sequence[int | None] = (), series: Mapping[str, Sequence[Value]] | None = None, *, attempt: int = 1
) -> ProcessHistory:  # fmt: skip
    n = len(generation)
    times = [60.0 * i for i in range(n)]
    return ProcessHistory(
        f"p{attempt}", 0, "main", attempt, range(n), times, times, generation, [None] * n, [""] * n,
        ["generation_end"] * n, series or {},
    )  # fmt: skip


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


@pytest.mark.parametrize(
    ("generations", "answer"),
    [(5, ("done", "calm")), (4, ("not_yet", "4 generations so far, too few to tell."))],
)
def test_nothing_is_ticked_before_five_generations(
    generations: int, answer: tuple[str, str]
) -> None:
    assert _judged([], seen(generations), "Memory", "calm") == answer


def test_a_finding_is_told_with_its_phase_and_first_suspect() -> None:
    suspects = (Suspect("Env", "type"), Suspect("dict", "type"))
    leak = finding("confirmed", phase="train", suspects=suspects)
    assert _judged([leak], seen(1), "Memory", "")[1] == (
        "Memory grows by 5 B per generation in train (Env): confirmed."
    )
    # What shrinks grows by nothing.
    assert "grows by 0 B" in _judged([finding("watch", rate=-3)], seen(), "Memory", "")[1]
    assert "grows by 1 B" in _judged([finding("watch", rate=0.5)], seen(), "Memory", "")[1]


@pytest.mark.parametrize(
    ("column", "top"),
    [
        ([None, 5, 9, 9, 2], [(9, 12)]),
        # A device that nothing is on was seen all the same.
        ([0, None], [(0.0, None)]),
        ([None, None], []),
    ],
)
def test_the_highest_reading_of_a_device_has_the_generation_it_was_first_read_in(
    column: list[Value], top: list[tuple[float, int | None]]
) -> None:
    generation = list(range(10, 10 + len(column)))
    assert list(_tops(process(generation, {"cuda.0.allocated_bytes": column}))) == top


def test_only_what_this_process_takes_of_a_device_counts() -> None:
    series = {
        "cuda.0.allocated_bytes": [1], "gpu.0.process_bytes": [2], "mps.driver_bytes": [3],
        "cuda.0.reserved_bytes": [4], "gpu.0.used_bytes": [9], "process.allocated_bytes": [9],
    }  # fmt: skip
    assert sorted(top for top, _ in _tops(process([0], series))) == [1, 2, 3, 4]


def on_device(*readings: Value) -> RunHistory:
    series = {"cuda.0.allocated_bytes": list(readings)}
    return RunHistory("r", processes=(process(range(len(readings)), series),))


@pytest.mark.parametrize(
    ("history", "answer"),
    [
        (RUN, ("not_measured", "GPU memory was not measured: no device was seen.")),
        (on_device(0, 0), ("not_measured", "This training uses no GPU memory.")),
        (
            on_device(0, 1, 0),
            (
                "done",
                "GPU memory does not keep growing; the most on one device was 1 B in generation 1.",
            ),
        ),
    ],
)
def test_a_device_that_nothing_is_on_is_not_measured(
    history: RunHistory, answer: tuple[str, str]
) -> None:
    assert _gpu(history, verdict(), seen()) == answer


def test_device_memory_is_an_item_of_its_own() -> None:
    on_gpu = verdict(finding("confirmed", kind="gpu"))
    assert _gpu(on_device(5), on_gpu, seen())[0] == "failed"
    assert _memory(on_gpu, seen())[0] == "done"
    of_host = verdict(finding("confirmed"))
    assert _gpu(on_device(5), of_host, seen())[0] == "done"
    assert _memory(of_host, seen())[0] == "failed"


@pytest.mark.parametrize(
    ("generations", "answer"),
    [
        (5, ("not_measured", "Private memory was not measured.")),
        (4, ("not_yet", "4 generations so far, too few to tell.")),
    ],
)
def test_growth_that_is_not_told_after_five_generations_was_not_measured(
    generations: int, answer: tuple[str, str]
) -> None:
    assert _memory(verdict(growth=None), seen(generations)) == answer


@pytest.mark.parametrize(
    ("told", "outcome", "said"),
    [
        (verdict(), "done", "Nothing is suspected; memory changes by +5 B per generation over 10 generations."),
        (verdict(settled=3), "done", "Memory is flat since generation 3, and nothing is suspected "
            "(+5 B per generation)."),
        # Flat from the first on is flat all the time.
        (verdict(settled=0), "done", "Nothing is suspected; memory changes by +5 B per generation "
            "over 10 generations."),
        (verdict(settled=0.5), "done", "Memory is flat since generation 0.5, and nothing is "
            "suspected (+5 B per generation)."),
        (verdict(status="watch"), "not_yet", "Memory changes by +5 B per generation, too short or "
            "too unsteady to judge."),
        (
            verdict(status="filling"), "done",
            "Memory grows only as declared containers fill; beyond them it changes by +5 B per generation.",
        ),
        (verdict(finding("watch"), status="watch"), "not_yet", "Memory grows by 5 B per generation: watch."),
        # What is watched of a device is none of it: the host is what is too unsteady.
        (
            verdict(finding("watch", kind="gpu"), status="watch"), "not_yet",
            "Memory changes by +5 B per generation, too short or too unsteady to judge.",
        ),
    ],
)  # fmt: skip
def test_memory_is_steady_where_nothing_is_suspected(
    told: Verdict, outcome: str, said: str
) -> None:
    assert _memory(told, seen()) == (outcome, said)


def attempts(*ends: tuple[int, Sequence[int | None]]) -> RunHistory:
    rows = tuple(process(generation, attempt=attempt) for attempt, generation in ends)
    return RunHistory("r", processes=rows, total=50)


@pytest.mark.parametrize(
    ("history", "found"),
    [
        (attempts((1, [0, 1, 2])), None),
        (attempts((1, [0, 1, 2]), (2, [2, 3])), (1, 2, 3)),
        (attempts((2, [2, 3]), (1, [0, 1, 2])), (1, 2, 3)),
        # The one that came furthest, of those as far the later.
        (attempts((1, [0, 9]), (2, [5, 7]), (3, [4])), (1, 9, 4)),
        (attempts((1, [0, 9]), (2, [5, 9]), (3, [4])), (2, 9, 4)),
        # Its processes together.
        (attempts((1, [0, 9]), (1, [0, 4]), (2, [3])), (1, 9, 3)),
        (attempts((1, [0]), (2, [None])), (1, 0, None)),
        (attempts((1, [None]), (2, [3])), None),
        (RUN, None),
    ],
)
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


@pytest.mark.parametrize(
    ("complete", "ended", "outcome"),
    [(49, False, "not_yet"), (49, True, "failed"), (50, False, "done"), (51, True, "done")],
)
def test_a_run_has_passed_its_plan_once_as_many_are_complete(
    complete: int, ended: bool, outcome: str
) -> None:
    answer = _passed(attempts((1, [0])), seen(complete=complete, ended=ended))
    assert answer == (
        outcome, f"{complete} generations complete, held against the 50 that were planned.", "plan",
    )  # fmt: skip


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


def test_without_a_plan_nothing_is_known() -> None:
    assert _passed(RUN, seen())[0] == "not_measured"


def freed(name: str, *sizes: int | None) -> tuple[Event, ...]:
    return tuple(Event(0, 0.0, "cleanup", name, data={"freed_bytes": size}) for size in sizes)


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        (freed("a", 5), ("done", "a ran once and freed 5 B.")),
        (freed("a", 0, 0), ("failed", "a ran twice and freed nothing.")),
        (freed("a", 5, 0, 0), ("done", "a ran 3 times and freed 5 B, nothing twice.")),
        (freed("a", 5, -9, 5), ("done", "a ran 3 times and freed 10 B, nothing once.")),
        # Those that free nothing first, then those that ran most, then by name.
        ((*freed("b", 5), *freed("a", 5), *freed("z", 0)), ("done", "z ran once and freed nothing; "
            "a ran once and freed 5 B; b ran once and freed 5 B.")),
        ((*freed("a", 5), *freed("b", 5, 5)), ("done", "b ran twice and freed 10 B; a ran once and freed 5 B.")),
        (
            (*freed("a", 0), *freed("b", 0), *freed("c", 0), *freed("d", 0), *freed("e", 0)),
            ("failed", "a ran once and freed nothing; b ran once and freed nothing; c ran once and "
            "freed nothing; and 2 more."),
        ),
        (freed("a", None), ("not_measured", "No cleanup was recorded: wrap yours in run.cleanup(name).")),
    ],
)  # fmt: skip
def test_cleanups_are_done_where_any_of_them_frees_something(
    events: tuple[Event, ...], answer: tuple[str, str]
) -> None:
    assert _cleanups(RunHistory("r", events=events)) == answer


@pytest.mark.parametrize(
    ("number", "word"), [(1, "once"), (2, "twice"), (3, "3 times"), (1_000, "1,000 times")]
)
def test_times_are_told_in_words(number: int, word: str) -> None:
    assert _times(number) == word


def of_place(growth: float | None, *findings: str) -> ProcessGrowth:
    return ProcessGrowth("p", "i", None if growth is None else Interval(growth, 0, 0), findings)


def test_processes_that_a_finding_names_go_first_and_then_those_that_grow_most() -> None:
    order = [of_place(-5, "f"), of_place(9), of_place(0), of_place(-3), of_place(None)]
    mixed = [order[i] for i in (4, 2, 0, 3, 1)]
    assert sorted(mixed, key=_weight) == order


@pytest.mark.parametrize(("points", "known"), [(0, False), (1, False), (2, True)])
def test_two_readings_make_a_rate(points: int, known: bool) -> None:
    assert (measured(Slope(5, 4, 6, points)) == Interval(5, 4, 6)) is known


def test_processes_that_were_not_read_are_told() -> None:
    assert of_how_many(RUN) == ""
    left = RunHistory("r", processes=(process(), process()), processes_left_out=1_000)
    assert of_how_many(left) == " (of the 2 largest processes; 1,000 more are not studied)"


@pytest.mark.parametrize(("places", "told"), [(1_024, 1_024), (1_025, 1_024)])
def test_as_many_places_are_told_in_their_order(places: int, told: int) -> None:
    lanes = [SimpleNamespace(name=f"rank {i} main", instance=f"p{i}") for i in range(places)]
    moments = [
        (
            SimpleNamespace(lane=lane),
            SimpleNamespace(growth=Slope(0.0 if i == 3 else 9.0, 0, 9, 9)),
            (),
        )
        for i, lane in enumerate(lanes)
    ]
    found = process_growth(cast(Any, lanes), cast(Any, moments), ())
    names = [lane.name for lane in lanes if places == told or lane.name != "rank 3 main"]
    assert [each.process for each in found] == names

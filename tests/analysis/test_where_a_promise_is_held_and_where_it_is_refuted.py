"""Each promise of a fix at the edge of its rule: what still holds, what is refuted and what cannot be told yet."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leakline.analysis import RunHistory
from leakline.analysis.promises import (
    GENERATIONS,
    GROWTH,
    PEAK,
    PHASE_GROWTH,
    Answer,
    Fix,
    _answer,
    _at_most,
    _claims,
    _count,
    _generations,
    _gpu_peak,
    _growth,
    _in_all,
    _jump,
    _peak,
    _phase_growth,
    _possible,
    _rate,
    _too_few,
    declared_fixes,
)
from leakline.analysis.results import Interval
from leakline.analysis.since import Since
from leakline.snapshot import Event


def seen(**told: Any) -> Since:
    """A run of ten generations that goes on; what it shows is told, and may be a function of what is asked."""
    facts: dict[str, Any] = {
        "unit": "generation", "generations": 10, "complete": 10, "ended": False, "long_enough": True, **told,
    }  # fmt: skip
    asked = ("growth", "growth_under_limit", "growth_that_matters", "largest_jump", "names")
    answers: dict[str, Any] = {
        name: value if name not in asked else (lambda value=value: value)
        for name, value in facts.items()
    }
    return cast(Since, SimpleNamespace(**answers))


def between(low: float, estimate: float, high: float) -> Interval:
    return Interval(estimate, low, high)


def exactly(value: float) -> Interval:
    return Interval(value, value, value)


def about(answer: Answer) -> tuple[Interval | None, str]:
    return answer[0], answer[1]


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        # "About 100" is kept by 105: no promise is made to the last twentieth.
        (90, 105, "held"),
        (90, 105.1, "undecided"),
        (105, 120, "undecided"),
        (105.1, 120, "refuted"),
        (105, 105, "held"),
        (-20, -10, "held"),
    ],
)
def test_a_rate_is_refuted_above_the_promise_and_a_twentieth(
    low: float, high: float, outcome: str
) -> None:
    measured = between(low, (low + high) / 2, high)
    assert about(_rate(seen(), measured, 100, "It grows by")) == (measured, outcome)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(3, 7, "held"), (3, 7.1, "undecided"), (7, 9, "undecided"), (7.1, 9, "refuted")],
)
def test_no_growth_at_all_means_none_that_matters(low: float, high: float, outcome: str) -> None:
    measured = between(low, (low + high) / 2, high)
    assert _rate(seen(growth_that_matters=7), measured, 0, "It grows by")[1] == outcome


@pytest.mark.parametrize(
    ("estimate", "promised", "said"),
    [
        (200, 100, "It grows by 200 B per generation (150 B to 250 B), 2 times the 100 B promised."),
        (199, 100, "It grows by 199 B per generation (149 B to 249 B); 100 B were promised."),
        # Of nothing there are no multiples.
        (200, 0, "It grows by 200 B per generation (150 B to 250 B); 0 B were promised."),
    ],
)  # fmt: skip
def test_from_twice_the_promise_on_the_multiple_is_told(
    estimate: float, promised: float, said: str
) -> None:
    measured = between(estimate - 50, estimate, estimate + 50)
    answer = _rate(seen(growth_that_matters=1), measured, promised, "It grows by")
    assert answer == (measured, "refuted", said)


@pytest.mark.parametrize(
    ("estimate", "begins"),
    [(1, "Memory grows by 1 B"), (0, "Memory does not grow: 0 B"), (-1, "Memory does not grow: -1 B")],
)  # fmt: skip
def test_memory_grows_above_zero(estimate: float, begins: str) -> None:
    growth = exactly(estimate)
    assert _growth(seen(growth=growth), 100)[2].startswith(f"{begins} per generation")
    possible = seen(growth_under_limit=growth, memory_lasts=lambda _: (None, None, None))
    assert _possible(possible, 100)[2].startswith(f"{begins} per generation")


@pytest.mark.parametrize(
    ("generations", "said"),
    [
        (0, "No generation has ended with the fix yet."),
        (1, "1 generation with the fix so far; growth is told from 5 generations on."),
        (4, "4 generations with the fix so far; growth is told from 5 generations on."),
    ],
)
def test_too_few_generations_are_counted(generations: int, said: str) -> None:
    assert _too_few(seen(generations=generations)) == (None, "undecided", said)
    assert _growth(seen(generations=generations, growth=None), 5) == (None, "undecided", said)
    assert _jump(seen(generations=generations, largest_jump=None), 5) == (None, "undecided", said)


def of_phase(growth: Interval | None, *, times: int = 10, generations: int = 10) -> Since:
    return seen(
        generations=generations, times_run=lambda phase: times, phase_growth=lambda phase: growth
    )


@pytest.mark.parametrize(
    ("run", "phase", "said"),
    [
        (of_phase(exactly(5)), None, "The fix names no phase, so there is none to measure."),
        (of_phase(None, times=0, generations=0), "train", "No generation has ended with the fix yet."),
        (of_phase(exactly(5), times=0), "train", "train never ran: the claim was never tested."),
        (of_phase(None, times=1), "train", "train ran in 1 generation, too few to tell what it keeps."),
        (of_phase(None, times=2), "train", "train ran in 2 generations, too few to tell what it keeps."),
    ],
)  # fmt: skip
def test_a_phase_that_was_not_measured_refutes_nothing(
    run: Since, phase: str | None, said: str
) -> None:
    assert _phase_growth(run, phase, 100) == (None, "undecided", said)


@pytest.mark.parametrize(
    ("estimate", "begins"), [(1, "train keeps 1 B"), (0, "train keeps nothing: 0 B")]
)
def test_a_phase_keeps_what_is_above_zero(estimate: float, begins: str) -> None:
    answer = _phase_growth(of_phase(exactly(estimate), times=1, generations=1), "train", 100)
    assert about(answer) == (exactly(estimate), "held")
    assert answer[2].startswith(begins)


@pytest.mark.parametrize(("measured", "outcome"), [(99, "held"), (100, "held"), (101, "refuted")])
def test_a_maximum_may_be_reached_and_not_passed(measured: float, outcome: str) -> None:
    assert about(_at_most(seen(), measured, 100, "it was {}")) == (exactly(measured), outcome)


@pytest.mark.parametrize(
    ("run", "outcome", "said"),
    [
        (seen(), "held", "So far it was 9 B; 10 B at most were promised."),
        (seen(ended=True), "held", "It was 9 B; 10 B at most were promised."),
        (seen(long_enough=False, generations=3), "undecided", "It was 9 B, but only 3 generations ended yet."),
    ],
)  # fmt: skip
def test_a_maximum_stands_for_enough_of_the_run(run: Since, outcome: str, said: str) -> None:
    assert _at_most(run, 9, 10, "it was {}") == (exactly(9), outcome, said)


@pytest.mark.parametrize(
    ("tops", "measured", "said"),
    [
        ([(7, 4)], 7, "So far memory reached 7 B in generation 4; 10 B at most were promised."),
        ([(7, None)], 7, "So far memory reached 7 B; 10 B at most were promised."),
        # Of several processes that are added up, no generation is that of the peak.
        ([(4, 3), (5, 4)], 9, "So far memory reached 9 B; 10 B at most were promised."),
        ([(4, 3), (7, 4)], 11, "Memory reached 11 B; 10 B at most were promised."),
    ],
)  # fmt: skip
def test_the_peaks_of_processes_are_added_up(
    tops: list[tuple[float, int | None]], measured: float, said: str
) -> None:
    answer = _peak(seen(highest=lambda names: tops), 10)
    assert (answer[0], answer[2]) == (exactly(measured), said)


def test_a_peak_that_was_not_measured_is_undecided() -> None:
    assert about(_peak(seen(highest=lambda names: []), 10)) == (None, "undecided")
    assert about(
        _gpu_peak(seen(names={"cuda.0.reserved_bytes"}, highest=lambda names: []), 10)
    ) == (None, "undecided")


def test_the_peak_of_a_gpu_is_that_of_the_fullest_device() -> None:
    series = {
        "cuda.0.reserved_bytes": (6.0, 2), "gpu.1.process_bytes": (8.0, 3), "mps.driver_bytes": (7.0, 1),
        # What is free or of no device is no memory of this process.
        "gpu.1.total_bytes": (99.0, 0), "cuda.0.allocated_bytes": (50.0, 0), "process.reserved_bytes": (99.0, 0),
    }  # fmt: skip
    run = seen(names=set(series), highest=lambda names: [series[name] for name in names])
    answer = _gpu_peak(run, 8)
    assert about(answer) == (exactly(8), "held")
    assert answer[2].startswith("So far the most on one GPU was 8 B in generation 3;")


def test_a_jump_is_told_with_the_generations_around_it() -> None:
    answer = _jump(seen(largest_jump=(12.0, 3, 4)), 10)
    assert answer == (
        exactly(12),
        "refuted",
        "The largest jump was 12 B, from generation 3 to 4; 10 B at most were promised.",
    )


def alive(most: int, *, stays: bool, run: dict[str, Any] | None = None) -> Since:
    return seen(most_alive=lambda name, limit: (most, 6, stays), **(run or {}))


@pytest.mark.parametrize(
    ("most", "stays", "outcome"),
    [(17, True, "held"), (18, True, "refuted"), (18, False, "undecided"), (16, False, "held")],
)
def test_a_count_is_refuted_where_more_stay_than_were_promised(
    most: int, stays: bool, outcome: str
) -> None:
    assert about(_count(alive(most, stays=stays), "agents.Agent", 17)) == (exactly(most), outcome)


def test_a_count_is_told_with_the_generation_that_broke_it() -> None:
    broken = "18 Agent alive at the end of generation 6"
    assert (
        _count(alive(18, stays=True), "agents.Agent", 17)[2]
        == f"{broken}; 17 at most were promised."
    )
    assert _count(alive(18, stays=False), "agents.Agent", 17)[2] == (
        f"{broken}, which a collection may still free; 17 were promised."
    )
    assert _count(alive(17, stays=True), "agents.Agent", 17)[2] == (
        "So far at most 17 Agent alive at the end of a generation; 17 at most were promised."
    )


def test_what_is_alive_beside_half_an_instance_is_looked_for_above_whole_ones() -> None:
    asked: list[int] = []

    def most_alive(name: str, limit: int) -> None:
        asked.append(limit)

    assert about(_count(seen(most_alive=most_alive), "Agent", 2.9)) == (None, "undecided")
    assert asked == [2]


@pytest.mark.parametrize(
    ("complete", "ended", "outcome", "said"),
    [
        (24, False, "undecided", "24 generations complete so far; 25 were promised."),
        (24, True, "refuted", "The run ended after 24 generations; 25 were promised."),
        (25, False, "held", "25 generations complete; 25 were promised."),
        (26, True, "held", "26 generations complete; 25 were promised."),
    ],
)
def test_generations_are_held_once_as_many_are_complete(
    complete: int, ended: bool, outcome: str, said: str
) -> None:
    answer = _generations(seen(complete=complete, ended=ended), 25)
    assert answer == (exactly(complete), outcome, said)


@pytest.mark.parametrize(
    ("left", "in_all"),
    [(None, None), (math.inf, None), (0.0, 10), (0.99, 10), (1.0, 11), (15.5, 25)],
)
def test_a_generation_that_memory_does_not_finish_does_not_count(
    left: float | None, in_all: float | None
) -> None:
    assert _in_all(seen(), left) == in_all


@pytest.mark.parametrize(
    ("ends", "measured", "outcome"),
    [
        # Ten are complete; so many more fit as expected, at the soonest and at the latest.
        ((20, 15, 25), between(25, 30, 35), "held"),
        ((20, 14, 25), between(24, 30, 35), "undecided"),
        ((14, 14, 15), between(24, 24, 25), "undecided"),
        ((14, 14, 14.9), between(24, 24, 24), "refuted"),
        ((20, 14, None), None, "undecided"),
        ((20, 15, None), None, "held"),
        ((None, 14, None), None, "undecided"),
        ((None, 15, None), None, "held"),
        ((None, 15, 20), None, "held"),
        ((None, None, None), None, "held"),
    ],
)
def test_as_many_generations_are_possible_as_memory_lasts_at_the_high_end_of_its_growth(
    ends: tuple[float | None, float | None, float | None],
    measured: Interval | None,
    outcome: str,
) -> None:
    run = seen(growth_under_limit=exactly(5), memory_lasts=lambda growth: ends)
    assert about(_possible(run, 25)) == (measured, outcome)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((20, 15, 25), "which leaves room for 30 generations in all (25 to 35); 25 were promised."),
        ((20, 15, None), "which leaves room for at least 25 generations; 25 were promised."),
        ((None, 15, 20), "which leaves room for at least 25 generations; 25 were promised."),
        (
            (20, 14, 25),
            "which leaves room for 30 generations in all (24 to 35), too wide to tell from the 25 promised.",
        ),
    ],
)  # fmt: skip
def test_room_is_told_as_far_as_both_ends_are_known(
    ends: tuple[float | None, float | None, float | None], said: str
) -> None:
    run = seen(growth_under_limit=exactly(5), memory_lasts=lambda growth: ends)
    assert _possible(run, 25)[2] == f"Memory grows by 5 B per generation, {said}"


@pytest.mark.parametrize(
    ("growth", "complete", "outcome", "said"),
    [
        (None, 25, "held", "25 generations complete; 25 were promised."),
        (exactly(5), 25, "held", "25 generations complete; 25 were promised."),
        (None, 24, "undecided", "10 generations with the fix so far; growth is told from 5 generations on."),
        (exactly(5), 24, "undecided", "No limit of memory is known, so nothing tells how many generations it allows."),
    ],
)  # fmt: skip
def test_without_growth_or_a_limit_only_what_is_complete_tells(
    growth: Interval | None, complete: int, outcome: str, said: str
) -> None:
    run = seen(growth_under_limit=growth, complete=complete, memory_lasts=lambda growth: None)
    assert _possible(run, 25) == (None, outcome, said)


def fix(promises: dict[str, Any], phase: str | None = "train") -> Fix:
    return Fix("detach", phase, None, promises, 0.0)


@pytest.mark.parametrize(
    ("declared", "claims"),
    [
        (fix({GROWTH: 5}), [(GROWTH, 5), (PHASE_GROWTH, 5)]),
        (fix({GROWTH: 5}, None), [(GROWTH, 5)]),
        (fix({GROWTH: 5, PHASE_GROWTH: 2}), [(GROWTH, 5), (PHASE_GROWTH, 2)]),
        (fix({PEAK: 5}), [(PEAK, 5)]),
        (fix({PEAK: -1, GENERATIONS: "all"}), [(PEAK, None), (GENERATIONS, None)]),
        (fix({f"count:C{i}": i for i in range(25)}), [(f"count:C{i}", i) for i in range(20)]),
    ],
)
def test_a_promised_growth_is_claimed_of_the_phase_too_unless_that_has_its_own(
    declared: Fix, claims: list[tuple[str, float | None]]
) -> None:
    assert _claims(declared) == claims


@pytest.mark.parametrize(
    ("claim", "promised", "said"),
    [
        (PEAK, None, "What is promised is no number."),
        ("speed", 5, "No promise of this name is known."),
        ("count:agents.Agent", 5, "Agent has not been counted with the fix yet."),
        (PHASE_GROWTH, 5, "train never ran: the claim was never tested."),
        (PEAK, 5, "Resident memory has not been measured with the fix yet."),
    ],
)
def test_each_claim_is_answered_by_its_own_rule(
    claim: str, promised: float | None, said: str
) -> None:
    run = seen(
        most_alive=lambda name, limit: None, times_run=lambda phase: 0, phase_growth=lambda phase: None,
        highest=lambda names: [],
    )  # fmt: skip
    assert _answer(run, fix({}), claim, promised) == (None, "undecided", said)


def declared(name: str, at: float, *, phase: str | None = "train", **more: Any) -> Event:
    return Event(0, at, "fix", name, data={"phase": phase, "promises": {GROWTH: 5}, **more})


def fixes_of(*events: Event) -> list[Fix]:
    return list(declared_fixes(RunHistory("r", events=events)))


def test_a_fix_stands_since_it_was_first_declared_in_its_form() -> None:
    first = declared("a", 1)
    assert [f.since for f in fixes_of(first, declared("a", 9))] == [1]
    # As it was is decided by phase and promises; other words about it are no new form.
    assert [f.since for f in fixes_of(first, declared("a", 9, rejected="a cache"))] == [1]
    assert [f.since for f in fixes_of(first, declared("a", 9, phase="evolve"))] == [9]
    assert [f.since for f in fixes_of(first, declared("a", 9, promises={GROWTH: 6}))] == [9]
    # By their times, whatever order they arrived in.
    assert [f.since for f in fixes_of(declared("a", 9), first)] == [1]


def test_what_another_sender_made_up_is_no_text_and_no_promise() -> None:
    (found,) = fixes_of(
        Event(0, 1, "fix", "a", data={"phase": 3, "location": None, "promises": [1]})
    )
    assert found == Fix("a", None, None, {}, 1)
    assert fixes_of(Event(0, 1, "mark", "a", data={"promises": {}})) == []


def test_the_newest_twenty_fixes_count() -> None:
    names = [f.name for f in fixes_of(*(declared(f"f{i:02}", i) for i in range(25)))]
    assert names == [f"f{i:02}" for i in range(5, 25)]

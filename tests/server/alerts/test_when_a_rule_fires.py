"""When a rule fires and when it is over: each told once, whatever the looks and whatever comes late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from leakline_server.alerts.presets import PRESETS, SETS
from leakline_server.alerts.readings import Reading, Track
from leakline_server.alerts.thresholds import Outcome, judge, judge_forecast
from leakline_server.store.rules import State, Terms

NOW = 1_760_000_000.0
NEVER = None


def terms(**given: Any) -> Terms:
    return Terms(**{"name": "n", "series": "gauge.queue", "above": 50.0, **given})


def track(values: Sequence[float | None], first: int = 0, process: str | None = None) -> Track:
    known = {first + i: Reading.exact(v) for i, v in enumerate(values) if v is not None}
    return Track("gauge.queue", process, known)


def told(rule: Terms, values: Sequence[float | None], looks: Sequence[int] = ()) -> list[str]:
    """What is told when somebody looks after so many generations each (after every one, where none are given)."""
    state: State | None = None
    said: list[str] = []
    for upto in looks or range(1, len(values) + 1):
        outcome = judge(rule, [track(values[:upto])], state, NOW)
        said += describe(outcome)
        state = outcome.state or state
    return said


def describe(outcome: Outcome) -> list[str]:
    changes = (("fired", outcome.fired), ("over", outcome.over))
    return [f"{word} {at.generation}" for word, at in changes if at is not None]


CASES: dict[str, tuple[dict[str, Any], list[float | None], list[str]]] = {
    "nothing outside": ({}, [1, 50, 50, 49], []),
    "at once": ({}, [1, 51], ["fired 1"]),
    "only above the limit, not at it": ({}, [50, 50, 51], ["fired 2"]),
    "below": ({"above": None, "below": 10.0}, [10, 9, 9], ["fired 1"]),
    "outside of two limits, either side": (
        {"above": 16.0, "below": 16.0, "grace": 1}, [16, 17, 16, 15, 16], ["fired 1", "over 2", "fired 3", "over 4"],
    ),
    "not before it held": ({"hold": 3}, [60, 60, 1, 60, 60, 60, 60], ["fired 5"]),
    "not again while it holds": ({}, [60, 70, 60, 90, 60], ["fired 0"]),
    "over only after grace": ({}, [60, 1, 1, 1, 1], ["fired 0", "over 3"]),
    "back outside within grace is no end": ({}, [60, 1, 1, 60, 1, 1, 60], ["fired 0"]),
    "again after it was over": ({"grace": 1}, [60, 1, 60, 1], ["fired 0", "over 1", "fired 2", "over 3"]),
    "a gap counts neither way": ({"hold": 2, "grace": 2}, [60, None, 60, 1, None, None, 1], ["fired 2", "over 6"]),
    "nothing was ever read": ({}, [None, None], []),
    "a negative limit": ({"above": -5.0}, [-6, -5, -4], ["fired 2"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rule_is_told_when_it_fires_and_when_it_is_over(name: str) -> None:
    given, values, expected = CASES[name]
    assert told(terms(**given), values) == expected


@pytest.mark.parametrize("name", CASES)
def test_a_look_that_sees_nothing_new_tells_nothing(name: str) -> None:
    given, values, expected = CASES[name]
    twice = [upto for upto in range(1, len(values) + 1) for _ in range(3)]
    assert told(terms(**given), values, twice) == expected


def test_what_came_and_went_between_two_looks_is_told() -> None:
    assert told(terms(), [1, 60, 1, 1, 1], [1, 5]) == ["fired 1", "over 4"]


def test_what_was_over_before_anybody_looked_is_no_news() -> None:
    assert told(terms(), [1, 60, 1, 1, 1], [5]) == []
    assert told(terms(), [1, 60, 1, 1, 1, 60], [6]) == ["fired 5"]


def test_what_ended_and_began_again_between_two_looks_still_holds() -> None:
    assert told(terms(grace=1), [60, 1, 60, 60], [1, 4]) == ["fired 0"]
    assert told(terms(grace=1), [60, 1, 60, 60, 1], [1, 4, 5]) == ["fired 0", "over 4"]


def test_many_changes_between_two_looks_are_one_beginning_and_one_end() -> None:
    assert told(terms(grace=1), [1, 60, 1, 60, 1, 60, 1], [1, 7]) == ["fired 5", "over 6"]


def test_a_look_at_fewer_generations_than_the_one_before_tells_nothing_twice() -> None:
    """A second server that read the run a moment earlier, and writes a moment later."""
    rule, values = terms(grace=2), [1, 1, 1, 60, 60]
    newer = judge(rule, [track(values[:2])], None, NOW)
    fired = judge(rule, [track(values)], newer.state, NOW)
    assert describe(fired) == ["fired 3"]
    older = judge(rule, [track(values[:3])], fired.state, NOW)
    assert describe(older) == []
    assert describe(judge(rule, [track([*values, 60])], older.state, NOW)) == []


def test_readings_that_come_late_are_judged_and_told_once() -> None:
    rule = terms(hold=2)
    first = judge(rule, [track([1, 1, 60])], None, NOW)
    slower = track([1, 60, 60, 60], process="rank 1 main")
    late = judge(rule, [track([1, 1, 60]), slower], first.state, NOW)
    assert describe(late) == ["fired 3"]
    assert late.fired is not None
    assert late.fired.process == "rank 1 main"


def test_a_run_that_went_back_is_judged_from_where_it_is_now_on() -> None:
    rule = terms(grace=1)
    before = State(True, 100, 60.0, NOW)
    back = judge(rule, [track([1, 1])], before, NOW)
    assert describe(back) == []
    assert back.state is not None and back.state.firing
    assert describe(judge(rule, [track([1, 1, 1])], back.state, NOW)) == ["over 2"]


def test_the_worst_process_is_named() -> None:
    tracks = [track([60, 60], process="rank 0 main"), track([70, 70], process="rank 1 main")]
    fired = judge(terms(), tracks, None, NOW).fired
    assert fired is not None
    assert (fired.process, fired.value) == ("rank 1 main", 70.0)


def test_generations_in_a_row_are_those_of_one_series() -> None:
    taking_turns = [track([60, 1, 60, 1]), track([1, 60, 1, 60])]
    assert judge(terms(hold=2), taking_turns, None, NOW).fired is None


def test_it_is_over_only_when_every_process_is_inside() -> None:
    before = State(True, 0, 60.0, NOW)
    one_still_out = [track([60, 1, 1, 1]), track([1, 60, 60, 60])]
    for tracks in (one_still_out, one_still_out[::-1]):
        assert judge(terms(), tracks, before, NOW).over is None
    over = judge(terms(), [track([60, 1, 1, 1]), track([60, 2, 2, 2])], before, NOW).over
    assert over is not None
    assert (over.generation, over.value) == (3, 2.0)


def test_a_rate_lies_outside_only_with_its_whole_interval() -> None:
    rule = terms(measure="rate", above=0.0)
    scattered = Track("s", None, {9: Reading(0.5, -0.1, 1.0)})
    certain = Track("s", None, {9: Reading(0.5, 0.1, 1.0)})
    assert judge(rule, [scattered], None, NOW).fired is None
    fired = judge(rule, [certain], None, NOW).fired
    assert fired is not None and fired.value == 0.5
    falling = terms(measure="rate", above=None, below=0.0)
    assert judge(falling, [Track("s", None, {9: Reading(-0.5, -1, 0.1)})], None, NOW).fired is None
    assert judge(falling, [Track("s", None, {9: Reading(-0.5, -1, -0.1)})], None, NOW).fired


@pytest.mark.parametrize(
    ("tensors", "fires"),
    [
        (99, []),
        (100, ["elevated"]),
        (200, ["elevated"]),
        (201, ["elevated", "high"]),
        (500, ["elevated", "high"]),
        (501, ["elevated", "high", "critical"]),
        (4038, ["elevated", "high", "critical"]),
    ],
)
@pytest.mark.parametrize("kind", ["tensors", "tfjs"])
def test_the_bands_of_tensors_at_their_bounds(kind: str, tensors: int, fires: list[str]) -> None:
    found = [
        name
        for name in SETS[kind].names
        if judge(PRESETS[name], [track([float(tensors)])], None, NOW).fired
    ]
    assert found == [f"{kind}.{name}" for name in fires]


@pytest.mark.parametrize(
    ("preset", "inside", "outside"),
    [
        ("gpu.memory", 20e9, 20.1e9),
        ("uploads.pending", 50.0, 51.0),
        ("phases.evaluate", 4e9, 4.29e9),
        ("phases.train", 1e9, 8.56e9),
        ("phases.evolve", 0.5e9, 10.67e9),
        ("growth.high", 1.5e9, 1.6e9),
        ("growth.leak", 5e9, 7.1e9),
        ("time.generation", 0.05, 2.0),
    ],
)
def test_the_other_presets_fire_above_their_limit(
    preset: str, inside: float, outside: float
) -> None:
    rule = PRESETS[preset]
    assert judge(rule, [track([inside] * 5)], None, NOW).fired is None
    assert judge(rule, [track([outside] * 5)], None, NOW).fired
    assert judge(rule, [track([outside] * (rule.hold - 1))], None, NOW).fired is None


def forecasts(rule: Terms, left: Sequence[float | None]) -> list[str]:
    state: State | None = None
    said: list[str] = []
    for newest, each in enumerate(left):
        for _ in range(2):
            outcome = judge_forecast(rule, newest, each, state, NOW)
            said += describe(outcome)
            state = outcome.state or state
    return said


def forecast_rule(**given: Any) -> Terms:
    return terms(**{"measure": "forecast", "series": "", "above": None, "below": 5.0, **given})


@pytest.mark.parametrize(
    ("given", "left", "expected"),
    [
        ({}, [NEVER, 10, 5, 4, 3], ["fired 3"]),
        ({"hold": 2}, [4, NEVER, 4, 3], ["fired 3"]),
        ({}, [4, NEVER, NEVER, NEVER], ["fired 0", "over 3"]),
        ({}, [4, 9, 9, 4, 9, 9, 9, 9], ["fired 0", "over 6"]),
        ({"grace": 1}, [4, 6, 4], ["fired 0", "over 1", "fired 2"]),
        ({}, [NEVER, NEVER], []),
    ],
)
def test_a_forecast_is_held_against_its_limit(
    given: dict[str, Any], left: list[float | None], expected: list[str]
) -> None:
    assert forecasts(forecast_rule(**given), left) == expected


def test_nothing_is_written_while_nothing_changes() -> None:
    first = judge(terms(), [track([1, 1])], None, NOW)
    assert first.state == State(False, 1, None, NOW)
    assert judge(terms(), [track([1, 1, 1])], first.state, NOW + 9) == Outcome()
    assert judge_forecast(forecast_rule(), 3, None, None, NOW) == Outcome()
    assert judge(terms(), [], None, NOW) == Outcome()


def test_a_limit_without_end_never_fires() -> None:
    assert judge(terms(above=math.inf), [track([1e300])], None, NOW).fired is None

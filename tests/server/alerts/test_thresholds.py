"""When a rule fires and when it resolves, what it reads for that, and what its message says."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from leakline.analysis.results import Interval, OomForecast, Verdict
from leakline.analysis.run_history import ProcessHistory, RunHistory
from leakline_server.alerts.alert_payload import ExaminedRun
from leakline_server.alerts.rules import rule_evaluation
from leakline_server.alerts.rules.rule_evaluation import (
    Outcome,
    Reading,
    Track,
    generations_left,
    judge,
    judge_forecast,
    most_tracks,
    seen_by,
    tracks_of,
    unit_of,
)
from leakline_server.alerts.rules.rule_facts import Crossing, rule_facts, summary
from leakline_server.alerts.rules.rule_presets import PRESETS, SETS
from leakline_server.store.alerts.assertions import Rule, State, Terms

NOW = 1_760_000_000.0
NEVER = None


def terms(series: str = "gauge.queue", **given: Any) -> Terms:
    return Terms(**{"name": "n", "series": series, "above": 50.0, **given})


def track(values: Sequence[float | None], first: int = 0, process: str | None = None) -> Track:
    known = {first + i: Reading.exact(v) for i, v in enumerate(values) if v is not None}
    return Track("gauge.queue", process, known)


def sent(rule: Terms, values: Sequence[float | None], looks: Sequence[int] = ()) -> list[str]:
    """Return what is sent if the rule is evaluated at these ends, or after every generation if none are given."""
    state: State | None = None
    said: list[str] = []
    for end in looks or range(1, len(values) + 1):
        outcome = judge(rule, [track(values[:end])], state, NOW)
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
def test_a_rule_sends_a_message_when_it_fires_and_when_it_is_over(name: str) -> None:
    given, values, expected = CASES[name]
    assert sent(terms(**given), values) == expected
    # An evaluation without new data sends nothing.
    twice = [end for end in range(1, len(values) + 1) for _ in range(3)]
    assert sent(terms(**given), values, twice) == expected


@pytest.mark.parametrize(
    ("grace", "values", "looks", "expected"),
    [
        (3, [1, 60, 1, 1, 1], [1, 5], ["fired 1", "over 4"]),
        # A crossing that ended before the first evaluation is not sent.
        (3, [1, 60, 1, 1, 1], [5], []),
        (3, [1, 60, 1, 1, 1, 60], [6], ["fired 5"]),
        # A crossing that ended and began again is still firing.
        (1, [60, 1, 60, 60], [1, 4], ["fired 0"]),
        (1, [60, 1, 60, 60, 1], [1, 4, 5], ["fired 0", "over 4"]),
        # Many changes count as one beginning and one end.
        (1, [1, 60, 1, 60, 1, 60, 1], [1, 7], ["fired 5", "over 6"]),
    ],
)
def test_changes_between_two_evaluations_are_sent_once(
    grace: int, values: list[float | None], looks: list[int], expected: list[str]
) -> None:
    assert sent(terms(grace=grace), values, looks) == expected


def test_an_evaluation_of_fewer_generations_sends_nothing_twice() -> None:
    # As with a second server that reads the run a moment earlier and writes a moment later.
    rule, values = terms(grace=2), [1, 1, 1, 60, 60]
    newer = judge(rule, [track(values[:2])], None, NOW)
    fired = judge(rule, [track(values)], newer.state, NOW)
    assert describe(fired) == ["fired 3"]
    older = judge(rule, [track(values[:3])], fired.state, NOW)
    assert describe(older) == []
    assert describe(judge(rule, [track([*values, 60])], older.state, NOW)) == []


def test_late_readings_are_evaluated_and_sent_once() -> None:
    rule = terms(hold=2)
    first = judge(rule, [track([1, 1, 60])], None, NOW)
    slower = track([1, 60, 60, 60], process="rank 1 main")
    late = judge(rule, [track([1, 1, 60]), slower], first.state, NOW)
    assert describe(late) == ["fired 3"]
    assert late.fired is not None
    assert late.fired.process == "rank 1 main"


def test_a_resumed_run_is_evaluated_from_its_new_position() -> None:
    rule = terms(grace=1)
    before = State(True, 100, 60.0, NOW)
    back = judge(rule, [track([1, 1])], before, NOW)
    assert describe(back) == []
    assert back.state is not None and back.state.firing
    assert describe(judge(rule, [track([1, 1, 1])], back.state, NOW)) == ["over 2"]


def test_the_worst_process_fires_and_all_must_be_inside_to_resolve() -> None:
    tracks = [track([60, 60], process="rank 0 main"), track([70, 70], process="rank 1 main")]
    fired = judge(terms(), tracks, None, NOW).fired
    assert fired is not None
    assert (fired.process, fired.value) == ("rank 1 main", 70.0)
    # Generations in a row must be of one series.
    taking_turns = [track([60, 1, 60, 1]), track([1, 60, 1, 60])]
    assert judge(terms(hold=2), taking_turns, None, NOW).fired is None
    before = State(True, 0, 60.0, NOW)
    one_still_out = [track([60, 1, 1, 1]), track([1, 60, 60, 60])]
    for each in (one_still_out, one_still_out[::-1]):
        assert judge(terms(), each, before, NOW).over is None
    over = judge(terms(), [track([60, 1, 1, 1]), track([60, 2, 2, 2])], before, NOW).over
    assert over is not None
    assert (over.generation, over.value) == (3, 2.0)


def test_a_rate_fires_only_if_its_entire_interval_is_outside() -> None:
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
    ("tensors", "fires"), [(99, 0), (100, 1), (200, 1), (201, 2), (500, 2), (501, 3)]
)
@pytest.mark.parametrize("kind", ["tensors", "tfjs"])
def test_the_bands_of_the_tensors_preset_fire_at_their_bounds(
    kind: str, tensors: int, fires: int
) -> None:
    tracks = [track([float(tensors)])]
    found = [name for name in SETS[kind].rules if judge(PRESETS[name], tracks, None, NOW).fired]
    assert found == [f"{kind}.{name}" for name in ("elevated", "high", "critical")[:fires]]


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
def test_a_forecast_is_compared_with_its_limit(
    given: dict[str, Any], left: list[float | None], expected: list[str]
) -> None:
    assert forecasts(forecast_rule(**given), left) == expected


def test_nothing_is_written_while_nothing_changes() -> None:
    first = judge(terms(), [track([1, 1])], None, NOW)
    assert first.state == State(False, 1, None, NOW)
    assert judge(terms(), [track([1, 1, 1])], first.state, NOW + 9) == Outcome()
    assert judge_forecast(forecast_rule(), 3, None, None, NOW) == Outcome()
    assert judge(terms(), [], None, NOW) == Outcome()


Column = Sequence[float | None]


def process(ends: Mapping[str, Column], rank: int = 0, within: Mapping[str, Column] | None = None,
            attempt: int = 1, first: int = 0, began: float = NOW) -> ProcessHistory:  # fmt: skip
    """Return a phase and the end of each generation; ``ends`` are read at the end, ``within`` after the phase."""
    number = max(len(column) for column in (*ends.values(), *(within or {}).values()))
    rows = 2 * number
    series: dict[str, list[Any]] = {
        name: [v for value in column for v in (None, value)] for name, column in ends.items()
    }
    for name, column in (within or {}).items():
        have = series.setdefault(name, [None] * rows)
        have[::2] = column
    return ProcessHistory(
        f"p{rank}.{attempt}", rank, "main", attempt, range(rows), [began + i for i in range(rows)],
        [float(i) for i in range(rows)], [first + i // 2 for i in range(rows)],
        ["evaluate", None] * number, [""] * rows, ["phase_end", "generation_end"] * number, series,
    )  # fmt: skip


def run(*processes: ProcessHistory, **given: Any) -> RunHistory:
    return RunHistory("r1", processes=processes, **given)


def look(asked: Terms, history: RunHistory, oom: OomForecast | None = None) -> Outcome:
    return rule_evaluation.look(asked, seen_by(asked, history, oom or OomForecast()), None, NOW)


def values_of(asked: Terms, history: RunHistory) -> dict[tuple[str, str | None], dict[int, float]]:
    return {
        (t.series, t.process): {g: r.value for g, r in t.readings.items()}
        for t in tracks_of(asked, history)
    }


def examined() -> ExaminedRun:
    verdict = Verdict("r1", "generation", 9, "ok", "…", None, None)
    return ExaminedRun("r1", "erl", "before-fix", verdict, NOW)


def test_only_the_generations_that_count_are_read() -> None:
    history = run(process({"gauge.queue": [float(n) for n in range(500)]}))
    (readings,) = values_of(terms(hold=2, grace=4), history).values()
    assert list(readings) == list(range(430, 500))


LATER = NOW + 10_000
RESERVED = {f"cuda.{n}.reserved_bytes": [n + 1.0] for n in range(2)}
# The terms, the processes, and what is read: (series, process) -> generation -> value.
READ: dict[str, tuple[Terms, list[ProcessHistory], dict[tuple[str, str | None], dict[int, float]]]] = {
    "at the end of a generation": (
        terms(), [process({"gauge.queue": [1, None, 3], "gauge.other": [9, 9, 9]})],
        {("gauge.queue", None): {0: 1, 2: 3}},
    ),
    "nothing": (terms("gauge.nothing"), [process({"gauge.queue": [1]})], {}),
    "in a phase where it is read only there": (
        terms(), [process({"generation.seconds": [1, 1]}, within={"gauge.queue": [5, 6]})],
        {("gauge.queue", None): {0: 5, 1: 6}},
    ),
    "the highest peak in a generation": (
        terms("process.peak_bytes"),
        [process({"process.peak_bytes": [5, 6]}, within={"process.peak_bytes": [9, 2]})],
        {("process.peak_bytes", None): {0: 9, 1: 6}},
    ),
    "any name for a star, by process": (
        terms("cuda.*.reserved_bytes"),
        [process(RESERVED), process({"cuda.0.reserved_bytes": [3]}, rank=1)],
        {
            ("cuda.0.reserved_bytes", "rank 0 main"): {0: 1}, ("cuda.1.reserved_bytes", "rank 0 main"): {0: 2},
            ("cuda.0.reserved_bytes", "rank 1 main"): {0: 3},
        },
    ),
    "what a resumed run repeats counts once": (
        terms(), [process({"gauge.queue": [1, 2, 3, 4]}), process({"gauge.queue": [7, 8]}, attempt=2, first=2)],
        {("gauge.queue", None): {0: 1, 1: 2, 2: 7, 3: 8}},
    ),
    "of a process that did not come back, until where the run went back to": (
        terms(),
        [*(process({"gauge.queue": [1, 2, 3, 4]}, rank) for rank in range(2)),
         process({"gauge.queue": [7]}, attempt=2, first=2, began=LATER)],
        {("gauge.queue", "rank 0 main"): {0: 1, 1: 2, 2: 7}, ("gauge.queue", "rank 1 main"): {0: 1, 1: 2}},
    ),
    "nothing that nobody measures any more": (
        terms(),
        [process({"gauge.queue": [60, 60]}), process({"gauge.other": [1]}, attempt=2, first=1, began=LATER)], {},
    ),
    "of a process that goes on next to a later attempt of another": (
        terms(),
        [process({"gauge.queue": [1] * 9}), process({"gauge.queue": [1, 1]}, rank=1),
         process({"gauge.queue": [2]}, rank=1, attempt=2, first=2, began=NOW + 6)],
        {("gauge.queue", "rank 0 main"): dict.fromkeys(range(9), 1),
         ("gauge.queue", "rank 1 main"): {0: 1, 1: 1, 2: 2}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_rule_reads_its_series(name: str) -> None:
    asked, processes, expected = READ[name]
    assert values_of(asked, run(*processes)) == expected


def resumed(ranks: Sequence[int], end: int, value: float, before: float = 1.0) -> RunHistory:
    """Return a run in which two ranks reach generation 100 and the given ranks resume from 90."""
    return run(
        *(process({"gauge.queue": [before] * 101}, rank) for rank in range(2)),
        *(
            process({"gauge.queue": [value] * (end - 89)}, rank, attempt=2, first=90, began=LATER)
            for rank in ranks
        ),
    )


def heard(asked: Terms, histories: Iterable[RunHistory], before: float = 1.0) -> list[str]:
    """Return what is sent as the histories follow each other, after two ranks had the value ``before``."""
    state = look(asked, resumed([], 0, 0, before)).state
    said: list[str] = []
    for history in histories:
        outcome = rule_evaluation.look(asked, seen_by(asked, history, OomForecast()), state, NOW)
        state = outcome.state or state
        said += describe(outcome)
    return said


@pytest.mark.parametrize("ranks", [[0], [1], [0, 1]])
def test_a_rule_follows_a_resumed_run_whichever_rank_resumes(ranks: Sequence[int]) -> None:
    asked = terms()
    fired = heard(asked, (resumed(ranks, end, 60.0) for end in range(90, 104)))
    assert fired == ["fired 91"]
    # A rule that fired before resolves once.
    inside = (resumed(ranks, end, 1.0, before=60.0) for end in range(90, 104))
    assert heard(asked, inside, before=60.0) == ["over 92"]


def test_ranks_that_resume_one_after_the_other_send_nothing_old() -> None:
    # Rank 1 has only started so far: its readings from before the crash are not new.
    start = replace(
        process({"gauge.queue": [1]}, 1, attempt=2, began=LATER), generation=[None, None],
        kind=["baseline", "sample"],
    )  # fmt: skip
    old = [process({"gauge.queue": [1] * 90 + [60] * 11}, rank) for rank in range(2)]
    back = (
        process({"gauge.queue": [1] * end}, attempt=2, first=90, began=LATER) for end in range(1, 8)
    )
    assert heard(terms(), (run(*old, each, start) for each in back)) == []


def test_a_rate_is_the_robust_slope_and_needs_four_readings() -> None:
    rising = [100.0 + 3 * n for n in range(40)]
    (track,) = tracks_of(terms(measure="rate"), run(process({"gauge.queue": rising})))
    assert {round(r.value, 9) for r in track.readings.values()} == {3.0}
    assert max(track.readings) == 39
    (steady,) = tracks_of(terms(measure="rate"), run(process({"gauge.queue": [7.0] * 9})))
    assert set(steady.readings.values()) == {Reading.exact(0.0)}
    (short,) = tracks_of(terms(measure="rate"), run(process({"gauge.queue": rising[:5]})))
    assert list(short.readings) == [3, 4]
    assert tracks_of(terms(measure="rate"), run(process({"gauge.queue": rising[:3]}))) == []


def test_a_rate_with_noise_does_not_fire_and_one_that_rises_does() -> None:
    # A limit of zero is the hardest: of 200 steady series at most a twentieth seem to rise, while one that gains
    # a tenth of its scatter per generation does.
    dice = random.Random(5)
    rate = terms("generation.seconds", measure="rate", above=0.0, hold=3)
    fired = 0
    for _ in range(200):
        steady = [dice.gauss(10, 0.5) for _ in range(60)]
        history = run(process({"generation.seconds": steady}))
        fired += look(rate, history).fired is not None
    assert fired <= 200 * 0.05
    slower = [10 + 0.05 * n + dice.gauss(0, 0.5) for n in range(60)]
    found = look(rate, run(process({"generation.seconds": slower}))).fired
    assert found is not None
    assert found.value == pytest.approx(0.05, abs=0.02)


def test_a_forecast_counts_from_the_newest_generation_that_has_ended() -> None:
    history = run(process({"gauge.queue": [1.0] * 8}))
    oom = OomForecast("high", 2**30, "cgroup", Interval(11.0, 10.0, 13.0))
    assert generations_left(history, oom) == (7, 4.0)
    assert generations_left(history, OomForecast()) == (7, None)
    assert generations_left(run(), oom) == (None, None)
    # One of two processes went back and has not reached the same generation again.
    back = process({"gauge.queue": [7]}, attempt=2, first=2, began=LATER)
    assert generations_left(run(*history.processes, back), OomForecast()) == (2, None)
    soon = terms("", measure="forecast", above=None, below=5.0)
    assert look(soon, history, oom).fired == Crossing(7, 4.0, None, None)
    ended = run(*history.processes, ended=True)
    assert look(soon, ended, oom).fired is None


def test_a_program_without_generations_is_read_minute_by_minute() -> None:
    rows = 6 * 200
    timed = ProcessHistory(
        "p", 0, "main", 1, range(rows), [NOW + 10 * i for i in range(rows)],
        [10.0 * i for i in range(rows)], [None] * rows, [None] * rows, [""] * rows, ["sample"] * rows,
        {"gauge.queue": [float(i // 6) for i in range(rows)]},
    )  # fmt: skip
    history = run(timed)
    assert unit_of(history) == "minute"
    (readings,) = values_of(terms(), history).values()
    # Minutes count from the start of the program, even if few are read.
    assert readings[199] == 199 and min(readings) > 100
    assert all(minute == value for minute, value in readings.items())
    assert unit_of(run(process({"gauge.queue": [1]}))) == "generation"


def test_a_rule_reads_a_bounded_number_of_series_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_evaluation, "MAX_TRACKS", 5)
    columns: dict[str, Column] = {f"gauge.x{n}": [1.0, 2, 3, 4] for n in range(9)}
    history = run(process(columns), process(columns, rank=1))
    everything = terms("gauge.x*")
    assert [(t.series, t.process) for t in tracks_of(everything, history)] == [
        ("gauge.x0", "rank 0 main"), ("gauge.x0", "rank 1 main"), ("gauge.x1", "rank 0 main"),
        ("gauge.x1", "rank 1 main"), ("gauge.x2", "rank 0 main"),
    ]  # fmt: skip
    monkeypatch.setattr(rule_evaluation, "MAX_SLOPES", 25)
    rate = terms("gauge.x*", measure="rate", hold=2, grace=2)
    assert len(tracks_of(rate, history)) == most_tracks(rate) == 3


FACTS = (
    "title", "summary", "run", "where", "what", "how_much", "when", "forecast", "advice", "evidence", "link",
)  # fmt: skip


def stored(**given: Any) -> Rule:
    what = {"name": "GPU", "series": "cuda.*.reserved_bytes", "above": 20e9}
    return Rule(**{**what, "id": 7, "source": "api", "created_at": NOW, **given})


def test_the_message_says_where_what_how_much_and_when() -> None:
    at = Crossing(14, 22e9, "cuda.0.reserved_bytes", "rank 1 main")
    sent = rule_facts(stored(advice="Empty it."), at, "firing", ["mild"], examined(), "generation")
    assert set(FACTS) <= set(sent)
    assert sent["title"] == "Rule fired: GPU in erl/before-fix"
    assert sent["summary"] == (
        "cuda.0.reserved_bytes is 20.49 GiB in rank 1 main at generation 14: above 18.63 GiB"
    )
    assert sent["where"]["text"] == "cuda.0.reserved_bytes in rank 1 main"
    assert sent["how_much"]["value"] == 22e9
    assert sent["when"]["text"] == "at generation 14"
    assert sent["advice"] == ["Empty it."]
    assert sent["evidence"][-1] == "Also fired: mild."
    assert sent["rule"]["status"] == "firing" and sent["rule"]["id"] == 7
    assert sent["link"] == "/runs/r1"
    over = rule_facts(stored(), at, "resolved", [], examined(), "generation")
    assert over["title"].startswith("Rule resolved: GPU")
    assert "no longer above" in over["summary"]
    assert over["advice"] == ["No action is needed."]
    assert over["rule"]["status"] == "resolved"
    at = Crossing(1, 5e9, "phase.evaluate/run_episode.bytes", None)
    where = rule_facts(stored(), at, "firing", [], examined(), "generation")["where"]
    assert (where["phase"], where["phase_path"]) == ("evaluate", "evaluate/run_episode")
    # Names from a training are cut and cleaned.
    at = Crossing(1, 1.0, "gauge." + "x" * 600 + "\u202e", None)
    sent = rule_facts(stored(name="a\u202eb"), at, "firing", [], examined(), "generation")
    for key in ("title", "summary"):
        assert len(sent[key]) <= 300 and sent[key].isprintable()
    assert sent["where"]["text"].isprintable()


@pytest.mark.parametrize(
    ("given", "at", "said"),
    [
        ({"series": "gauge.q", "above": 50.0}, (3, 51.5, "gauge.q"), "gauge.q is 51.5 at generation 3: above 50"),
        ({"series": "tensors.count", "above": 99.0}, (3, 4038.0, "tensors.count"),
         "tensors.count is 4,038 at generation 3: above 99"),
        ({"series": "gauge.q", "above": 9.0, "below": 2.0}, (3, 1.0, "gauge.q"),
         "gauge.q is 1 at generation 3: below 2"),
        ({"series": "generation.seconds", "measure": "rate", "above": 0.1}, (3, 0.25, "generation.seconds"),
         "generation.seconds changes by +0.25 s per generation at generation 3: above 0.1 s"),
        ({"series": "", "measure": "forecast", "above": None, "below": 5.0}, (3, 2.46, None),
         "memory has 2.5 generations left at generation 3: below 5"),
    ],
)  # fmt: skip
def test_the_sentence_is_readable(given: Any, at: Any, said: str) -> None:
    generation, value, series = at
    asked = Terms(**{"name": "n", **given})
    assert summary(asked, Crossing(generation, value, series, None), "firing", "generation") == said

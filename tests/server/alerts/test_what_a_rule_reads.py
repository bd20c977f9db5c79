"""A rule reads the series that it names, at the ends of the newest generations, of every process."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from leakline.analysis.history import ProcessHistory, RunHistory
from leakline.analysis.results import Interval, OomForecast, Verdict
from leakline_server.alerts import readings, thresholds
from leakline_server.alerts.payload import ExaminedRun
from leakline_server.alerts.readings import (
    generations_left,
    most_tracks,
    seen_by,
    tracks_of,
    unit_of,
)
from leakline_server.alerts.rule_facts import Crossing, rule_facts, summary
from leakline_server.alerts.thresholds import Outcome
from leakline_server.store.rules import Rule, Terms

NOW = 1_760_000_000.0
Column = Sequence[float | None]


def process(ends: Mapping[str, Column], rank: int = 0, within: Mapping[str, Column] | None = None,
            attempt: int = 1, first: int = 0, began: float = NOW) -> ProcessHistory:  # fmt: skip
    """A phase and the end of each generation; ``ends`` are read at the end, ``within`` after the phase."""
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


def rule(series: str = "gauge.queue", **given: Any) -> Terms:
    return Terms(**{"name": "n", "series": series, "above": 50.0, **given})


def look(terms: Terms, history: RunHistory, oom: OomForecast | None = None) -> Outcome:
    return thresholds.look(terms, seen_by(terms, history, oom or OomForecast()), None, NOW)


def values_of(terms: Terms, history: RunHistory) -> dict[tuple[str, str | None], dict[int, float]]:
    return {
        (t.series, t.process): {g: r.value for g, r in t.readings.items()}
        for t in tracks_of(terms, history)
    }


def examined() -> ExaminedRun:
    verdict = Verdict("r1", "generation", 9, "ok", "…", None, None)
    return ExaminedRun("r1", "erl", "before-fix", verdict, NOW)


def test_a_value_is_read_at_the_end_of_a_generation() -> None:
    history = run(process({"gauge.queue": [1, None, 3], "gauge.other": [9, 9, 9]}))
    assert values_of(rule(), history) == {("gauge.queue", None): {0: 1, 2: 3}}
    assert values_of(rule("gauge.nothing"), history) == {}


def test_what_is_read_in_a_phase_only_is_read_there() -> None:
    history = run(process({"generation.seconds": [1, 1]}, within={"gauge.queue": [5, 6]}))
    assert values_of(rule(), history) == {("gauge.queue", None): {0: 5, 1: 6}}


def test_a_peak_is_the_highest_in_its_generation() -> None:
    history = run(process({"process.peak_bytes": [5, 6]}, within={"process.peak_bytes": [9, 2]}))
    assert values_of(rule("process.peak_bytes"), history) == {
        ("process.peak_bytes", None): {0: 9, 1: 6}
    }


def test_a_star_stands_for_any_name_and_processes_are_told_apart() -> None:
    history = run(
        process({"cuda.0.reserved_bytes": [1], "cuda.1.reserved_bytes": [2]}),
        process({"cuda.0.reserved_bytes": [3]}, rank=1),
    )
    assert values_of(rule("cuda.*.reserved_bytes"), history) == {
        ("cuda.0.reserved_bytes", "rank 0 main"): {0: 1},
        ("cuda.1.reserved_bytes", "rank 0 main"): {0: 2},
        ("cuda.0.reserved_bytes", "rank 1 main"): {0: 3},
    }


def test_only_as_many_generations_are_read_as_count() -> None:
    history = run(process({"gauge.queue": [float(n) for n in range(500)]}))
    (readings,) = values_of(rule(hold=2, grace=4), history).values()
    assert list(readings) == list(range(430, 500))


def test_a_resumed_run_reads_on_and_what_it_repeats_counts_once() -> None:
    history = run(
        process({"gauge.queue": [1, 2, 3, 4]}),
        process({"gauge.queue": [7, 8]}, attempt=2, first=2),
    )
    assert values_of(rule(), history) == {("gauge.queue", None): {0: 1, 1: 2, 2: 7, 3: 8}}


LATER = NOW + 10_000


def test_a_process_that_did_not_come_back_ends_where_the_run_went_back_to() -> None:
    history = run(
        *(process({"gauge.queue": [1, 2, 3, 4]}, rank) for rank in range(2)),
        process({"gauge.queue": [7]}, attempt=2, first=2, began=LATER),
    )
    assert values_of(rule(), history) == {
        ("gauge.queue", "rank 0 main"): {0: 1, 1: 2, 2: 7},
        ("gauge.queue", "rank 1 main"): {0: 1, 1: 2},
    }
    assert generations_left(history, OomForecast()) == (2, None)
    # What nobody measures any more is not judged.
    history = run(
        process({"gauge.queue": [60, 60]}),
        process({"gauge.other": [1]}, attempt=2, first=1, began=LATER),
    )
    assert tracks_of(rule(), history) == []


def test_a_process_that_is_still_heard_of_goes_on_beside_a_later_attempt_of_another() -> None:
    history = run(
        process({"gauge.queue": [1] * 9}),
        process({"gauge.queue": [1, 1]}, rank=1),
        process({"gauge.queue": [2]}, rank=1, attempt=2, first=2, began=NOW + 6),
    )
    assert values_of(rule(), history) == {
        ("gauge.queue", "rank 0 main"): dict.fromkeys(range(9), 1),
        ("gauge.queue", "rank 1 main"): {0: 1, 1: 1, 2: 2},
    }


def resumed(ranks: Sequence[int], upto: int, value: float, before: float = 1.0) -> RunHistory:
    """Two ranks reach generation 100, and these of them go on from 90."""
    return run(
        *(process({"gauge.queue": [before] * 101}, rank) for rank in range(2)),
        *(
            process({"gauge.queue": [value] * (upto - 89)}, rank, attempt=2, first=90, began=LATER)
            for rank in ranks
        ),
    )


@pytest.mark.parametrize("ranks", [[0], [1], [0, 1]])
def test_a_rule_hears_a_resumed_run_whoever_came_back(ranks: Sequence[int]) -> None:
    terms = rule()
    state = look(terms, resumed([], 0, 0)).state
    fired = []
    for upto in range(90, 104):
        seen = seen_by(terms, resumed(ranks, upto, 60.0), OomForecast())
        outcome = thresholds.look(terms, seen, state, NOW)
        state = outcome.state or state
        assert outcome.over is None
        if outcome.fired:
            fired.append(outcome.fired.generation)
    assert fired == [91]


@pytest.mark.parametrize("ranks", [[0], [1], [0, 1]])
def test_what_fired_before_a_resume_is_over_once_after_it(ranks: Sequence[int]) -> None:
    terms = rule()
    state = look(terms, resumed([], 0, 0, before=60.0)).state
    assert state is not None and state.firing
    over = []
    for upto in range(90, 104):
        seen = seen_by(terms, resumed(ranks, upto, 1.0, before=60.0), OomForecast())
        outcome = thresholds.look(terms, seen, state, NOW)
        state = outcome.state or state
        assert outcome.fired is None
        if outcome.over:
            over.append(outcome.over.generation)
    assert over == [92]


def test_ranks_that_come_back_one_after_the_other_tell_nothing_of_before() -> None:
    """Of rank 1 there is only its start so far: what it read before the crash is not news."""
    terms = rule()
    state = look(terms, resumed([], 0, 0)).state
    start = replace(
        process({"gauge.queue": [1]}, 1, attempt=2, began=LATER), generation=[None, None],
        kind=["baseline", "sample"],
    )  # fmt: skip
    old = [process({"gauge.queue": [1] * 90 + [60] * 11}, rank) for rank in range(2)]
    for upto in range(1, 8):
        back = process({"gauge.queue": [1] * upto}, attempt=2, first=90, began=LATER)
        seen = seen_by(terms, run(*old, back, start), OomForecast())
        outcome = thresholds.look(terms, seen, state, NOW)
        state = outcome.state or state
        assert (outcome.fired, outcome.over) == (None, None)


def test_a_rate_is_the_robust_slope_and_needs_four_readings() -> None:
    rising = [100.0 + 3 * n for n in range(40)]
    (track,) = tracks_of(rule(measure="rate"), run(process({"gauge.queue": rising})))
    assert {round(r.value, 9) for r in track.readings.values()} == {3.0}
    assert max(track.readings) == 39
    (short,) = tracks_of(rule(measure="rate"), run(process({"gauge.queue": rising[:5]})))
    assert list(short.readings) == [3, 4]
    assert tracks_of(rule(measure="rate"), run(process({"gauge.queue": rising[:3]}))) == []


def test_a_rate_that_only_scatters_does_not_fire_and_one_that_rises_does() -> None:
    """A limit of nothing at all is the hardest: of 200 steady series at most a twentieth seem to rise, while one that
    gains a tenth of its scatter each generation does."""
    dice = random.Random(5)
    rate = rule("generation.seconds", measure="rate", above=0.0, hold=3)
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
    soon = rule("", measure="forecast", above=None, below=5.0)
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
    (readings,) = values_of(rule(), history).values()
    # Counted from the start of the program, however few are read.
    assert readings[199] == 199 and min(readings) > 100
    assert all(minute == value for minute, value in readings.items())
    assert unit_of(run(process({"gauge.queue": [1]}))) == "generation"


def test_a_look_costs_little_however_many_series_there_are() -> None:
    """The slowest of what people set: the rate of every class, of a run with 400 of them, most of them steady."""
    dice = random.Random(1)
    columns: dict[str, Column] = {f"type.m.C{n}.count": [100.0] * 400 for n in range(380)}
    columns |= {f"type.m.D{n}.count": [dice.random() for _ in range(400)] for n in range(20)}
    history = run(process(columns))

    def costs(asked: Terms) -> float:
        """Without what a collection of this process's heap takes meanwhile, which is mostly that of other tests."""
        began = time.thread_time()
        look(asked, history)
        return time.thread_time() - began

    assert min(costs(rule("type.*.count", measure="rate")) for _ in range(3)) < 1.0
    assert min(costs(rule("type.*.count")) for _ in range(3)) < 0.5


def test_a_rule_reads_so_many_series_by_name_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "MAX_TRACKS", 5)
    columns: dict[str, Column] = {f"gauge.x{n}": [1.0, 2, 3, 4] for n in range(9)}
    history = run(process(columns), process(columns, rank=1))
    everything = rule("gauge.x*")
    assert [(t.series, t.process) for t in tracks_of(everything, history)] == [
        ("gauge.x0", "rank 0 main"), ("gauge.x0", "rank 1 main"), ("gauge.x1", "rank 0 main"),
        ("gauge.x1", "rank 1 main"), ("gauge.x2", "rank 0 main"),
    ]  # fmt: skip
    monkeypatch.setattr(readings, "MAX_SLOPES", 25)
    rate = rule("gauge.x*", measure="rate", hold=2, grace=2)
    assert len(tracks_of(rate, history)) == most_tracks(rate) == 3


def test_the_dearest_rules_have_a_bound() -> None:
    assert most_tracks(rule()) == 1_000
    assert most_tracks(rule(measure="rate")) == 500
    assert most_tracks(rule(measure="rate", hold=128, grace=128)) == 15


FACTS = (
    "title", "summary", "run", "where", "what", "how_much", "when", "forecast", "advice", "evidence", "link",
)  # fmt: skip


def stored(**given: Any) -> Rule:
    what = {"name": "GPU", "series": "cuda.*.reserved_bytes", "above": 20e9}
    return Rule(**{**what, "id": 7, "source": "api", "created_at": NOW, **given})


def test_the_message_says_where_what_how_much_and_when() -> None:
    at = Crossing(14, 22e9, "cuda.0.reserved_bytes", "rank 1 main")
    told = rule_facts(stored(advice="Empty it."), at, "firing", ["mild"], examined(), "generation")
    assert set(FACTS) <= set(told)
    assert told["title"] == "Rule fired: GPU in erl/before-fix"
    assert told["summary"] == (
        "cuda.0.reserved_bytes is 20.49 GiB in rank 1 main at generation 14: above 18.63 GiB"
    )
    assert told["where"]["text"] == "cuda.0.reserved_bytes in rank 1 main"
    assert told["how_much"]["value"] == 22e9
    assert told["when"]["text"] == "at generation 14"
    assert told["advice"] == ["Empty it."]
    assert told["evidence"][-1] == "Fired as well: mild."
    assert told["rule"]["status"] == "firing" and told["rule"]["id"] == 7
    assert told["link"] == "/runs/r1"
    over = rule_facts(stored(), at, "resolved", [], examined(), "generation")
    assert over["title"].startswith("Rule over: GPU")
    assert "no longer above" in over["summary"]
    assert over["advice"] == ["Nothing needs doing."]
    assert over["rule"]["status"] == "resolved"


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
def test_the_sentence_reads_as_people_read(given: Any, at: Any, said: str) -> None:
    generation, value, series = at
    terms = Terms(**{"name": "n", **given})
    assert summary(terms, Crossing(generation, value, series, None), "firing", "generation") == said


def test_the_phase_of_the_books_is_where_it_is() -> None:
    at = Crossing(1, 5e9, "phase.evaluate/run_episode.bytes", None)
    where = rule_facts(stored(), at, "firing", [], examined(), "generation")["where"]
    assert (where["phase"], where["phase_path"]) == ("evaluate", "evaluate/run_episode")


def test_names_from_a_training_are_cut_and_cleaned() -> None:
    at = Crossing(1, 1.0, "gauge." + "x" * 600 + "\u202e", None)
    told = rule_facts(stored(name="a\u202eb"), at, "firing", [], examined(), "generation")
    for key in ("title", "summary"):
        assert len(told[key]) <= 300 and told[key].isprintable()
    assert told["where"]["text"].isprintable()
